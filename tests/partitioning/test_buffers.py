"""Memory on its way to devices: what JAX takes over, and copies of any layout."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axonym.partitioning.buffers import copy_aligned, fill, make_buffer, release

SHAPES = [(), (0, 3), (1, 1), (7,), (300, 200), (1, 130, 2, 70), (3, 200, 150), (2, 3, 4, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_copies_have_the_same_elements_in_any_order_of_strides(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 1000, shape).astype(np.float32)
    for order in itertools.permutations(range(values.ndim)):
        # The same elements, in memory that has the dimensions in another order.
        back = sorted(range(values.ndim), key=order.__getitem__)
        stored = np.array(values.transpose(order), order="C").transpose(back)
        copy = copy_aligned(stored)
        assert copy.flags.c_contiguous
        assert copy.dtype == stored.dtype
        np.testing.assert_array_equal(copy, values)
        flipped = (..., *(slice(None, None, -1) for _ in shape))
        np.testing.assert_array_equal(copy_aligned(stored[flipped]), values[flipped])


def test_a_copy_converts_to_the_dtype_of_its_target() -> None:
    values = np.arange(200 * 300, dtype=np.float64).reshape(200, 300) / 7
    target = make_buffer((300, 200), jnp.bfloat16)
    fill(target, values.T)
    np.testing.assert_array_equal(target, values.T.astype(jnp.bfloat16))


def mapped_bytes() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile:"))
    return int(line.split()[1]) * 1024


def test_pages_of_a_mapped_file_are_given_back_without_a_change_lost(tmp_path: Path) -> None:
    values = np.arange(2**22, dtype=np.float32)
    values.tofile(tmp_path / "values")
    target, before = make_buffer((2**21 + 5,), np.float32), mapped_bytes()
    for offset in (0, 16, 4096, 2**20):
        opened = np.memmap(tmp_path / "values", np.float32, "r", offset=offset)
        for first in (0, 7, 2**20):
            part = np.asarray(opened)[first : first + target.size]
            fill(target, part[::-1])
            release(part[::-1])
            np.testing.assert_array_equal(target, values[first + offset // 4 :][: target.size][::-1])
        release(part[:0])
        rows = np.lib.stride_tricks.as_strided(part, (2, 2**20), (part.nbytes // 4, part.itemsize), writeable=False)
        fill(target[: 2**21].reshape(rows.shape), rows)
        release(rows)
        assert mapped_bytes() < before + 2**20
        assert (np.asarray(opened) == values[offset // 4 :]).all()
        del opened, part
    private = np.memmap(tmp_path / "values", np.float32, "c", shape=target.shape)
    private[5] = -1
    fill(target, private)
    release(private)
    assert private[5] == target[5] == -1


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "bfloat16", "complex64"])
def test_a_cpu_keeps_a_buffer_as_its_array(dtype: str) -> None:
    buffer = make_buffer((33, 7), jnp.dtype(dtype))
    buffer[...] = 1
    array = jax.device_put(buffer)
    assert array.unsafe_buffer_pointer() == buffer.ctypes.data
    assert array.dtype == dtype
    assert np.asarray(array).all()
