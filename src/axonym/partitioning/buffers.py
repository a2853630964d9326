"""Internal. Host memory from which arrays are copied to devices; `placement` and the reader of checkpoints use it."""

import itertools
import math
import mmap
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import DTypeLike, NDArray

# In bytes. JAX on a CPU uses memory with this alignment as it is, and copies other memory.
ALIGNMENT = 64
# As many rows of a transposed copy as a first cache has room for, which plain copies of NumPy do not look after.
TILE = 64


def make_buffer(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
    """Return memory without values. On a CPU, JAX takes it over without a copy, so never write to it afterwards."""
    kind: np.dtype[np.generic] = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    # NumPy aligns to 16 bytes only: take more, and begin at the first place that is aligned.
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(kind).reshape(shape)


def copy_aligned(source: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return a copy in such memory, contiguous."""
    if source.dtype.hasobject:  # for which JAX has an error
        return np.array(source)
    target = make_buffer(source.shape, source.dtype)
    fill(target, source)
    return target


def fill(target: NDArray[np.generic], source: NDArray[np.generic]) -> None:
    """Copy elements, and convert them to the dtype of the target; this is fast for transposed arrays too."""
    dims = [dim for dim, size in enumerate(source.shape) if size > 1]
    if source.size and dims:
        along = min(dims, key=lambda dim: abs(source.strides[dim]))
        others = [dim for dim in dims if dim != along]
        # Tiles pay if their copies are large beside the calls from Python that make them.
        count = math.prod(source.shape[dim] for dim in others[:-1])
        if along != dims[-1] and count * TILE**2 <= source.size:
            _fill_tiles(target, source, others)
            return
    np.copyto(target, source, casting="unsafe")


def release(array: NDArray[np.generic]) -> None:
    """Release the pages of the memory-mapped file that holds an array; the system may still cache them.

    They count as memory of the process from their first read on. Call it only when all blocks are copied: a later read
    costs a page fault for each page.
    """
    base: Any = array
    # Not all of them are arrays: `as_strided` puts an object of its own between.
    while not isinstance(above := getattr(base, "base", None), mmap.mmap) and above is not None:
        base = above
    # Only of files that are just read: in the other modes, pages may hold changes.
    if not array.size or not isinstance(base, np.memmap) or base.mode != "r":
        return
    pages: Any = base.base
    if not hasattr(pages, "madvise"):  # on Windows
        return
    first, last = (at - base.ctypes.data for at in byte_bounds(array))
    # A map begins at such a step of the file, at or before the array of NumPy.
    skipped = base.offset % mmap.ALLOCATIONGRANULARITY
    start = (first + skipped) // mmap.PAGESIZE * mmap.PAGESIZE
    pages.madvise(mmap.MADV_DONTNEED, start, last + skipped - start)


def _fill_tiles(target: NDArray[np.generic], source: NDArray[np.generic], dims: list[int]) -> None:
    """Copy position by position along the given dimensions, and tile by tile along the last of them."""
    *outer, last = dims
    ranges = [range(source.shape[dim]) for dim in outer]
    where: list[int | slice] = [slice(None)] * source.ndim
    for at in itertools.product(*ranges):
        for dim, number in zip(outer, at, strict=True):
            where[dim] = number
        for start in range(0, source.shape[last], TILE):
            where[last] = slice(start, start + TILE)
            np.copyto(target[tuple(where)], source[tuple(where)], casting="unsafe")
