"""State dicts in safetensors files, read and written array by array."""

import json
import math
import os
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from ..errors import ArgumentError, message
from ._places import on_host, require_state, spec_of

__all__ = ["load_state_dict", "save_state_dict"]

DTYPES: dict[str, np.dtype[Any]] = {
    code: jnp.dtype(kind)
    for code, kind in {
        "BOOL": jnp.bool_,
        "U8": jnp.uint8,
        "I8": jnp.int8,
        "U16": jnp.uint16,
        "I16": jnp.int16,
        "U32": jnp.uint32,
        "I32": jnp.int32,
        "U64": jnp.uint64,
        "I64": jnp.int64,
        "F8_E4M3": jnp.float8_e4m3fn,
        "F8_E5M2": jnp.float8_e5m2,
        "F8_E8M0": jnp.float8_e8m0fnu,
        "F8_E4M3FNUZ": jnp.float8_e4m3fnuz,
        "F8_E5M2FNUZ": jnp.float8_e5m2fnuz,
        "F16": jnp.float16,
        "BF16": jnp.bfloat16,
        "F32": jnp.float32,
        "F64": jnp.float64,
        "C64": jnp.complex64,
    }.items()
}
CODES = {kind: code for code, kind in DTYPES.items()}
HEADER_LIMIT = 100_000_000  # of the format
METADATA = "__metadata__"


def save_state_dict(
    state_dict: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    max_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write arrays to a safetensors file, or to several with an index, as Hugging Face does.

    Arrays are brought to the host and written one by one. A file of the same name is replaced once the new one is
    complete. All processes have to call this, and the first one writes.

    Args:
        state_dict: arrays by key, such as what `to_state_dict` returns.
        path: the file, such as `model.safetensors`.
        max_bytes: the largest number of bytes of arrays in a file. Several files are called
            `model-00001-of-00002.safetensors` and so on, and `model.safetensors.index.json` lists the arrays of each.
        metadata: strings by key, stored in each file beside `format: pt`.

    Raises:
        ArgumentError: if an array has a dtype that the format lacks, a key that is not a string or is `__metadata__`,
            or no values; if `metadata` has anything but strings; or if `max_bytes` is not a positive number.
        OperandError: if `state_dict` is not a mapping, or a value has names or cannot be read by numpy.
        OSError: if the files cannot be written, on all processes.
    """
    require_state("save_state_dict", state_dict, "write save_state_dict(to_state_dict(model), path)")
    if max_bytes is not None and not (isinstance(max_bytes, Real) and max_bytes > 0):
        problem = f"max_bytes must be a positive number of bytes, not {max_bytes!r}"
        raise ArgumentError(message("save_state_dict", problem))
    if METADATA in state_dict:
        problem = f"no array can have the key {METADATA!r}, which the format reserves for metadata"
        raise ArgumentError(message("save_state_dict", problem, hint="pass text as metadata="))
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str):
            problem = f"keys and values of metadata must be strings, but {key!r} has {text!r}"
            raise ArgumentError(message("save_state_dict", problem, hint=f"write {{{str(key)!r}: {str(text)!r}}}"))
    target = Path(path)
    specs = {key: spec_of("save_state_dict", state_dict, key) for key in state_dict}
    for key, spec in specs.items():
        if spec.dtype not in CODES:
            lines = f"dtypes of the format: {', '.join(map(str, CODES))}"
            raise ArgumentError(message("save_state_dict", f"{key!r} has dtype {spec.dtype}", lines))
    groups = _groups(specs, max_bytes)
    names = [target.name]
    if len(groups) > 1:
        names = [f"{target.stem}-{at:05}-of-{len(groups):05}{target.suffix}" for at in range(1, len(groups) + 1)]
    for name, keys in zip(names, groups, strict=True):
        _write(target.with_name(name), keys, specs, state_dict, {"format": "pt", **(metadata or {})})
    index = target.with_name(f"{target.name}.index.json")
    with _together(index):
        if jax.process_index() == 0:
            (target if len(groups) > 1 else index).unlink(missing_ok=True)  # of an earlier save
            if len(groups) > 1:
                where = {key: name for name, keys in zip(names, groups, strict=True) for key in keys}
                total = sum(spec.size * spec.dtype.itemsize for spec in specs.values())
                index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2))
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"save_state_dict {path}")


def _groups(specs: Mapping[str, Any], max_bytes: int | None) -> list[list[str]]:
    """Return the keys of the arrays of each file."""
    groups: list[list[str]] = [[]]
    filled = 0
    for key, spec in specs.items():
        size = spec.size * spec.dtype.itemsize
        if groups[-1] and max_bytes is not None and filled + size > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(key)
        filled += size
    return groups


def _write(
    file: Path, keys: Sequence[str], specs: Mapping[str, Any], state: Mapping[str, Any], metadata: Mapping[str, str]
) -> None:
    header: dict[str, Any] = {METADATA: metadata}
    ordered = sorted(keys, key=lambda key: -specs[key].dtype.itemsize)  # then all are aligned
    end = 0
    for key in ordered:
        start, end = end, end + specs[key].size * specs[key].dtype.itemsize
        header[key] = {"dtype": CODES[specs[key].dtype], "shape": specs[key].shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    leader, unfinished = jax.process_index() == 0, file.with_name(f"{file.name}.unfinished")
    with _together(file):
        if leader:
            unfinished.write_bytes(len(text).to_bytes(8, "little") + text)
    arrays = (on_host(state[key]) for key in ordered)
    with _together(file):
        try:
            if leader:
                with unfinished.open("ab") as out:
                    for array in arrays:
                        out.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                unfinished.replace(file)
        finally:
            if jax.process_count() > 1:
                deque(arrays, 0)  # all processes bring all arrays to the host, though one writes


@contextmanager
def _together(file: Path) -> Generator[None]:
    """Let the first process write; if it fails, the others raise an error too instead of waiting for it."""
    failure: OSError | None = None
    try:
        yield
    except OSError as error:
        failure = error
    if jax.process_count() > 1 and multihost_utils.broadcast_one_to_all(np.asarray(failure is not None)):
        failure = failure or OSError(message("save_state_dict", f"the first process could not write {file}"))
    if failure is not None:
        raise failure


def load_state_dict(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Open safetensors files and return their arrays by key.

    The arrays are memory-mapped: nothing is read before it is used. They are read-only.

    Args:
        path: a file, an index of several (`model.safetensors.index.json`), the name that an index was written for, or a
            folder with a `model.safetensors` or its index.

    Raises:
        ArgumentError: if a file or an index is damaged, is incomplete, or has a dtype that JAX lacks or a 4-bit one.
        FileNotFoundError: if there is no such file.
    """
    file = Path(path)
    file = file / "model.safetensors" if file.is_dir() else file
    index = file.with_name(f"{file.name}.index.json")
    if file.suffix != ".json" and (file.exists() or not index.exists()):
        return _read(file)
    index = file if file.suffix == ".json" else index
    try:
        where = {key: index.with_name(name) for key, name in json.loads(index.read_text())["weight_map"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ArgumentError(message("load_state_dict", f"{index.name} is not a readable index of files")) from None
    files = {each: _read(each) for each in dict.fromkeys(where.values())}
    absent = [key for key, each in where.items() if key not in files[each]]
    if absent:
        problem = f"{index.name} lists {len(absent)} arrays that its files lack"
        raise ArgumentError(message("load_state_dict", problem, f"the first: {absent[0]} in {where[absent[0]].name}"))
    return {key: files[each][key] for key, each in where.items()}


def _read(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(HEADER_LIMIT, size - 8):
            raise ArgumentError(message("load_state_dict", f"{file.name} is not a safetensors file, or is incomplete"))
        try:
            header = json.loads(opened.read(length))
            entries = [_entry(key, entry) for key, entry in header.items() if key != METADATA]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ArgumentError(message("load_state_dict", f"{file.name} has no readable header")) from None
    data = np.asarray(np.memmap(file, np.uint8, "r"))[8 + length :]
    arrays = {}
    for key, code, shape, start, end in entries:
        kind = DTYPES.get(code)
        if kind is None:
            raise ArgumentError(message("load_state_dict", f"{key!r} in {file.name} has dtype {code}"))
        fits = end - start == math.prod(shape) * kind.itemsize and min(shape, default=0) >= 0
        if not fits or not 0 <= start <= end <= len(data):
            problem = f"{key!r} in {file.name} is incomplete or damaged"
            lines = f"shape {shape} of {kind}, bytes {start} to {end} of {len(data)}"
            raise ArgumentError(message("load_state_dict", problem, lines))
        arrays[key] = data[start:end].view(kind).reshape(shape)
    return arrays


def _entry(key: str, entry: Any) -> tuple[str, str, tuple[int, ...], int, int]:
    """Parse the header of an array: key, dtype, shape and where its bytes start and end.

    Raises:
        KeyError, TypeError, ValueError: if it cannot be read.
    """
    code, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if not isinstance(code, str) or not all(type(number) is int for number in (*shape, start, end)):
        raise TypeError
    return key, code, shape, start, end
