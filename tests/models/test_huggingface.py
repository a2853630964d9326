"""Experts in files of Hugging Face: joined without reading them."""

from pathlib import Path

import numpy as np

from axonym import state_dict as sd
from axonym.models.huggingface import stacked


def test_experts_of_a_file_are_one_array_that_is_not_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"layer.{i}.{name}": rng.normal(size=(3, 5)).astype(np.float32) for i in range(4) for name in "ab"}
    sd.save_state_dict(arrays, tmp_path / "model.safetensors")
    files = sd.load_state_dict(tmp_path)
    for name in "ab":
        parts = [files[f"layer.{i}.{name}"] for i in range(4)]
        joined = stacked(parts)
        np.testing.assert_array_equal(joined, np.stack([arrays[f"layer.{i}.{name}"] for i in range(4)]))
        assert np.shares_memory(joined, parts[2])
        assert not joined.flags.writeable
        # Where the order is another one, or there are several buffers, they are copied.
        for others in (parts[:1] + parts[2:], [parts[0], parts[1], parts[0]], [np.ones((3, 5)), np.zeros((3, 5))]):
            copied = stacked(others)
            np.testing.assert_array_equal(copied, np.stack(others))
            assert not np.shares_memory(copied, others[0])
