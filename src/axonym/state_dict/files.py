"""State dicts in safetensors files, read and written array by array."""

import json
import math
import os
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Real
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from ..base.calls import explain_calls
from ..base.kinds import Payload, Typed
from ..errors import ArgumentError, message
from .axes import StoredArray, StoredAxes
from .format import CODES, METADATA, File, Unreadable, header_of, open_file, parse
from .places import axes_of, on_host, require_state, spec_of
from .record import decode, encode
from .switch import Replacement, index_of, open_set, write

__all__ = ["load_state_dict", "save_state_dict"]

AXES = "axonym.axes"
SUMS = "axonym.sums"


def save_state_dict(
    state_dict: Mapping[str, Payload],
    path: str | os.PathLike[str],
    *,
    max_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write arrays to a safetensors file, or to several with an index, as Hugging Face does.

    Arrays are brought to the host and written one by one. Earlier files of the same name are replaced in one step, once
    the new files are complete and on the disk. So if the program or the machine stops, either all earlier files or all
    new files are there. All processes have to call this, and the first one writes.

    Args:
        state_dict: arrays by key, such as what `to_state_dict` returns. The axes of `StateDict` and `StoredArray` are
            stored too, and compared when they are loaded.
        path: the file, such as `model.safetensors`.
        max_bytes: the largest number of bytes of arrays in a file. Several files are called
            `model-00001-of-00002.safetensors` and so on, and `model.safetensors.index.json` lists the arrays of each.
            If there are such files, the new ones have the number of the save in their names:
            `model-0f3a62c1d58be974-00001-of-00002.safetensors`.
        metadata: strings by key, stored in each file beside `format: pt`.

    Raises:
        ArgumentError: if an array has a dtype that the format lacks, a key that is not a string or is `__metadata__`,
            or no values; if `metadata` has anything but strings, or names that begin with `axonym.`; or if `max_bytes`
            is not a positive number.
        OperandError: if `state_dict` is not a mapping, or a value has names or cannot be read by numpy.
        OSError: if the files cannot be written, on all processes.

    Examples:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> axn.state_dict.save_state_dict({"x": np.arange(3)}, path)
        >>> axn.state_dict.load_state_dict(path)["x"].tolist()
        [0, 1, 2]
    """
    require_state(
        "save_state_dict", state_dict, "write save_state_dict(to_state_dict(model), path)"
    )
    if max_bytes is not None and not (isinstance(max_bytes, Real) and max_bytes > 0):
        problem = f"max_bytes must be a positive number of bytes, not {max_bytes!r}"
        raise ArgumentError(message("save_state_dict", problem))
    if METADATA in state_dict:
        problem = f"no array can have the key {METADATA!r}, which the format reserves for metadata"
        raise ArgumentError(message("save_state_dict", problem, hint="pass text as metadata="))
    _require_text(metadata or {})
    target = Path(path)
    # All checks come first: an error in the middle would leave some files written.
    specs: dict[str, Typed] = {}
    for key in state_dict:
        specs[key] = spec_of("save_state_dict", state_dict, key)
        if specs[key].dtype not in CODES:
            problem = f"{key!r} has dtype {specs[key].dtype}"
            known = f"dtypes of the format: {', '.join(map(str, CODES))}"
            raise ArgumentError(message("save_state_dict", problem, known))
    groups = _group_keys(specs, max_bytes)
    replacement: Replacement | None = None
    with _write_together(target):
        if jax.process_index() == 0:
            replacement = Replacement(target, len(groups))
    for at, keys in enumerate(groups):
        own = {"format": "pt", **(metadata or {}), **_make_axes_metadata(state_dict, keys, specs)}
        if replacement is not None:
            own |= replacement.metadata
        sums = dict.fromkeys(keys, 0)
        make_header = partial(_make_header, keys, specs, own, sums)
        _, ordered = header_of(keys, specs, own)
        arrays = ((key, on_host(state_dict[key])) for key in ordered)
        parts = _list_bytes(make_header(), arrays, sums)
        with _write_together(target):
            try:
                if replacement is not None:
                    write(replacement.files[at], parts, make_header)
            finally:
                if jax.process_count() > 1:
                    deque(parts, 0)  # all processes bring all arrays to the host, though one writes
    with _write_together(target):
        if replacement is not None:
            files_of: dict[str, Path] = {}
            for file, keys in zip(replacement.files, groups, strict=True):
                files_of |= dict.fromkeys(keys, file)
            replacement.finish(files_of, sum(map(_count_bytes, specs.values())))
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"save_state_dict {path}")


def _make_axes_metadata(
    state_dict: Mapping[str, Payload], keys: Iterable[str], specs: Mapping[str, Typed]
) -> dict[str, str]:
    """Return the axes of arrays as metadata; nothing if none are known."""
    pairs = ((key, axes_of(state_dict, key, specs[key])) for key in keys)
    known = {key: axes for key, axes in pairs if axes is not None}
    return {AXES: encode(known)} if known else {}


def _count_bytes(spec: Typed) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _require_text(metadata: Mapping[str, str]) -> None:
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str):
            problem = f"keys and values of metadata must be strings, but {key!r} has {text!r}"
            raise ArgumentError(
                message("save_state_dict", problem, hint=f"write {{{str(key)!r}: {str(text)!r}}}")
            )
        if key.startswith("axonym."):
            problem = f"metadata has {key!r}, but names that begin with 'axonym.' are those of this library"
            raise ArgumentError(
                message("save_state_dict", problem, hint="leave it out: axes are stored anyway")
            )


def _group_keys(specs: Mapping[str, Typed], max_bytes: int | None) -> list[list[str]]:
    """Return the keys of the arrays of each file; each file has at least one array, however large."""
    groups: list[list[str]] = [[]]
    total = 0
    for key, spec in specs.items():
        size = _count_bytes(spec)
        if groups[-1] and max_bytes is not None and total + size > max_bytes:
            groups.append([])
            total = 0
        groups[-1].append(key)
        total += size
    return groups


def _make_header(
    keys: Sequence[str],
    specs: Mapping[str, Typed],
    metadata: Mapping[str, str],
    sums: Mapping[str, int],
) -> bytes:
    """Make the beginning of a file; its length does not depend on the values of the checksums."""
    text = json.dumps({key: f"{sums[key]:08x}" for key in keys})
    header, _ = header_of(keys, specs, {**metadata, SUMS: text} if keys else metadata)
    return header


def _list_bytes(
    header: bytes, arrays: Iterator[tuple[str, NDArray[np.generic]]], sums: dict[str, int]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file, and note the checksum of each array in `sums`."""
    yield header
    for key, array in arrays:
        part = _get_bytes(array)
        sums[key] = zlib.crc32(part)
        yield part


def _get_bytes(array: NDArray[np.generic]) -> memoryview:
    # As bytes, since the buffers of bfloat16 and float8 have types that Python does not know.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@contextmanager
def _write_together(file: Path) -> Generator[None]:
    """Let the first process write; if it fails, the others raise an error too instead of waiting for it."""
    # A process that raised alone would leave the others in the next collective for ever.
    failure: OSError | None = None
    try:
        yield
    except OSError as error:
        failure = error
    if jax.process_count() > 1 and multihost_utils.broadcast_one_to_all(
        np.asarray(failure is not None)
    ):
        failure = failure or OSError(
            message("save_state_dict", f"the first process could not write {file}")
        )
    if failure is not None:
        raise failure


def load_state_dict(
    path: str | os.PathLike[str], *, check: bool = False
) -> dict[str, NDArray[np.generic]]:
    """Open safetensors files and return their arrays by key.

    The arrays are memory-mapped: only booleans are read before they are used. They are read-only, and of the class
    `StoredArray`, which has the axes that an array was saved with.

    Args:
        path: a file, an index of several (`model.safetensors.index.json`), the name that an index was written for, or a
            folder with a `model.safetensors` or its index.
        check: read all arrays, and compare them with the checksums that `save_state_dict` has stored.

    Raises:
        ArgumentError: if a file or an index is damaged, is incomplete, or has a dtype that JAX lacks or a 4-bit one; if
            the files that an index lists are not all from one save; with `check`, if an array is not the one that was
            saved, or has no checksum.
        FileNotFoundError: if there is no such file.

    Examples:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> model = {"x": axn.arange(axn.Axis("pos", 3))}
        >>> axn.state_dict.save_state_dict(axn.state_dict.to_state_dict(model), path)
        >>> axn.state_dict.from_state_dict(model, axn.state_dict.load_state_dict(path))["x"].tolist()
        [0, 1, 2]
    """
    file = Path(path)
    if file.is_dir():
        file = file / "model.safetensors"
    index = index_of(file)
    # A single file goes before an index: saving removes it when its successors are complete, see `switch`.
    if file.suffix != ".json" and (file.exists() or not index.exists()):
        return dict(_list_arrays(file, open_file(file), check))
    if file.suffix == ".json":
        index = file
    where = open_set(index)
    files = {
        each: dict(_list_arrays(each, opened, check))
        for each, opened in dict(where.values()).items()
    }
    return {key: files[each][key] for key, (each, _) in where.items()}


def _check_sums(file: Path, opened: File) -> None:
    """Raise for arrays of a file that differ from the saved ones."""
    try:
        sums = dict(parse(opened.metadata.get(SUMS, "{}")))
    except (ValueError, TypeError, RecursionError):
        sums = {}
    for key, array in opened.arrays.items():
        if key not in sums:
            problem = f"{file.name} has no checksum of {key!r}"
            hint = "only save_state_dict stores them; without check=True, the file loads"
            raise ArgumentError(message("load_state_dict", problem, hint=hint))
        if f"{zlib.crc32(_get_bytes(array)):08x}" != sums[key]:
            problem = f"{key!r} in {file.name} has changed since it was saved"
            raise ArgumentError(message("load_state_dict", problem, hint="take a copy of the file"))


def _list_arrays(file: Path, opened: File, check: bool) -> Iterator[tuple[str, StoredArray]]:
    """Yield the arrays of a file by key, with their axes."""
    if check:
        _check_sums(file, opened)
    try:
        axes = decode(opened.metadata.get(AXES, "{}"), parse)
    except Unreadable:
        problem = f"{file.name} has no readable names of axes in its metadata"
        raise ArgumentError(message("load_state_dict", problem)) from None
    # `format: pt` is in all files that torch reads, also in ours, which have axes.
    is_foreign = AXES not in opened.metadata and opened.metadata.get("format") == "pt"
    for key, array in opened.arrays.items():
        own = axes.get(key)
        if own is not None and not _fits(own, array.shape):
            problem = f"{key!r} in {file.name} has shape {array.shape}, which is not that of the axes it was saved with"
            hint = f"a program has changed the array and kept the metadata: remove {AXES!r} from it"
            raise ArgumentError(message("load_state_dict", problem, hint=hint))
        yield key, StoredArray.of(array, own, is_foreign)


def _fits(axes: StoredAxes, shape: tuple[int, ...]) -> bool:
    return len(axes) == len(shape) and all(
        dim is None or math.prod(axis.size for axis in dim) == size
        for dim, size in zip(axes, shape, strict=True)
    )


explain_calls(globals(), __all__)
