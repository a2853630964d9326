"""Files that hold several layers in one array, and one layer in several."""

from pathlib import Path

import jax
import numpy as np
import pytest

from axonym import state_dict as sd
from axonym.state_dict.fused import Fusion, combine, join_fused, split_fused, stack_parts


def test_experts_of_a_file_are_one_array_that_is_not_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"layer.{i}.{name}": rng.normal(size=(3, 5)).astype(np.float32) for i in range(4) for name in "ab"}
    sd.save_state_dict(arrays, tmp_path / "model.safetensors")
    files = sd.load_state_dict(tmp_path)
    for name in "ab":
        parts = [files[f"layer.{i}.{name}"] for i in range(4)]
        joined = stack_parts(parts)
        np.testing.assert_array_equal(joined, np.stack([arrays[f"layer.{i}.{name}"] for i in range(4)]))
        assert np.shares_memory(joined, parts[2])
        assert not joined.flags.writeable
        # Where the order is another one, or there are several buffers, they are copied.
        for others in (parts[:1] + parts[2:], [parts[0], parts[1], parts[0]], [np.ones((3, 5)), np.zeros((3, 5))]):
            copied = stack_parts(others)
            np.testing.assert_array_equal(copied, np.stack(others))
            assert not np.shares_memory(copied, others[0])


@pytest.mark.parametrize("axis", [0, -1])
def test_parts_of_heads_are_taken_apart_and_joined(axis: int) -> None:
    # Two heads of three parts, told apart by their numbers: head, part and place.
    whole = np.array(
        [100 * head + 10 * part + i for head in (1, 2) for part, n in enumerate((2, 1, 3)) for i in range(n)]
    )
    weight = np.stack([whole, whole + 1000], axis=1 if axis == 0 else 0)
    fusion = Fusion("qkv", (2, 1, 3), heads=2, axis=axis)
    state = split_fused({"layer.qkv.weight": weight, "layer.qkv.bias": whole, "layer.up.bias": whole}, [fusion])
    parts = [state[f"layer.qkv.{i}.bias"].tolist() for i in range(3)]
    assert parts == [[100, 101, 200, 201], [110, 210], [120, 121, 122, 220, 221, 222]]
    for i, part in enumerate(parts):
        own = state[f"layer.qkv.{i}.weight"]
        assert own.shape == state.spec(f"layer.qkv.{i}.weight").shape
        assert np.moveaxis(own, axis, 0)[:, 0].tolist() == part
    joined = join_fused(state, [fusion])
    assert sorted(joined) == ["layer.qkv.bias", "layer.qkv.weight", "layer.up.bias"]
    assert joined.spec("layer.qkv.weight") == jax.ShapeDtypeStruct(weight.shape, weight.dtype)
    np.testing.assert_array_equal(joined["layer.qkv.weight"], weight)
    np.testing.assert_array_equal(joined["layer.qkv.bias"], whole)


def test_arrays_without_a_field_are_taken_apart_and_two_of_a_kind_are_one() -> None:
    # As the experts of gpt-oss: gates and what they multiply take turns, in codes with scales.
    codes, scales = np.arange(12, dtype=np.uint8).reshape(2, 6), np.full((2, 6), 2, np.uint8)
    fusions = [Fusion(f"up{end}", (1, 1), heads=3, axis=-1) for end in ("_codes", "_scales")]
    files = {"layer.up_codes": codes, "layer.up_scales": scales, "layer.norm.weight": codes}
    state = split_fused(files, fusions)
    assert sorted(join_fused(state, fusions)) == sorted(files)
    found = combine(state, ("_codes", "_scales"), lambda one, other: (one * other).astype(np.float32))
    assert sorted(found) == ["layer.norm.weight", "layer.up.0", "layer.up.1"]
    assert found.spec("layer.up.1") == jax.ShapeDtypeStruct((2, 3), np.float32)
    np.testing.assert_array_equal(found["layer.up.1"], 2.0 * codes[:, 1::2])
    np.testing.assert_array_equal(found["layer.norm.weight"], codes)
