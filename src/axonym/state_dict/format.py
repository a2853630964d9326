"""Internal. The format of safetensors files: a header of JSON, and the bytes of the arrays.

`files` and `switch` call it; it knows neither names of axes nor sets of files. It does the checks of the safetensors
package, https://github.com/huggingface/safetensors: each byte belongs to one array, and the header is strict JSON.
It also checks that no name occurs twice, and that booleans are zeros and ones.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..base.kinds import Typed
from ..errors import ArgumentError, message

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
HEADER_LIMIT = 100_000_000  # of the package
DEPTH_LIMIT = 127  # of the package: that of serde_json
DIMENSION_LIMIT = 64  # of NumPy
METADATA = "__metadata__"
Unreadable = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What is raised where text has another form than expected."""


class Entry(NamedTuple):
    """An array in a header."""

    key: str
    code: str
    shape: tuple[int, ...]
    start: int
    end: int


class File(NamedTuple):
    """An opened file."""

    arrays: dict[str, NDArray[np.generic]]
    metadata: dict[str, str]


def header_of(
    keys: Sequence[str], specs: Mapping[str, Typed], metadata: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """Make the beginning of a file; returns it and the keys in the order of the arrays' bytes."""
    header: dict[str, object] = {METADATA: metadata}
    ordered = sorted(keys, key=lambda key: -specs[key].dtype.itemsize)  # then all are aligned
    end = 0
    for key in ordered:
        start, end = end, end + math.prod(specs[key].shape) * specs[key].dtype.itemsize
        header[key] = {
            "dtype": CODES[specs[key].dtype],
            "shape": specs[key].shape,
            "data_offsets": (start, end),
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the arrays begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text, ordered


def parse(text: bytes | str) -> Any:
    """Read JSON, strictly by its standard.

    Raises:
        ValueError: if it is not JSON, a name occurs twice in an object, or a text is not valid Unicode.
        RecursionError, ValueError: if it is nested too deeply.
    """
    # The json module would guess the encoding of bytes.
    string = text if isinstance(text, str) else text.decode("utf-8")
    value = json.loads(
        string,
        object_pairs_hook=_check_distinct,
        parse_constant=_refuse,
        parse_int=_parse_integer,
        parse_float=_parse_float,
    )
    # Level by level: a function that calls itself would end at Python's own limit, which depends on the caller.
    level: list[object] = [value]
    for _ in range(DEPTH_LIMIT + 1):
        inside: list[object] = []
        for each in level:
            if isinstance(each, str):
                each.encode("utf-8")  # an escape may be half of a character
            elif isinstance(each, dict):
                inside += each.values()
            elif isinstance(each, list):
                inside += each
        level = inside
    if level:
        raise ValueError("too deep")
    return value


def _check_distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    for name, _ in pairs:
        name.encode("utf-8")
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _parse_integer(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)  # as in serde_json


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number


def open_file(file: Path) -> File:
    """Map the arrays of a file into memory; only arrays of booleans are read, to check their values.

    Raises:
        ArgumentError: if the file is damaged, is incomplete, or has a dtype that JAX lacks or a 4-bit one.
        OSError: if it cannot be read.
    """
    entries, metadata, start = _read_header(file)
    # As a plain array: slices of a memmap would be memmaps, too.
    data = np.asarray(np.memmap(file, np.uint8, "r"))[start:]
    _check_coverage(file, entries, len(data))
    arrays: dict[str, NDArray[np.generic]] = {
        each.key: data[each.start : each.end].view(DTYPES[each.code]).reshape(each.shape)
        for each in entries
    }
    for each in entries:
        if each.code == "BOOL" and (data[each.start : each.end] > 1).any():
            problem = f"{each.key!r} in {file.name} has booleans other than 0 and 1"
            raise ArgumentError(
                message("load_state_dict", problem, "operations would disagree on what they are")
            )
    return File(arrays, metadata)


def metadata_of(file: Path) -> dict[str, str]:
    """Read the metadata of a file.

    Raises:
        ArgumentError: if the file has no readable header.
        OSError: if it cannot be read.
    """
    return _read_header(file)[1]


def _read_header(file: Path) -> tuple[list[Entry], dict[str, str], int]:
    """Read the header of a file: its arrays, its metadata, and where the bytes of the arrays start."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        # A file of another kind may claim a header of exabytes, which must not be allocated.
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > min(HEADER_LIMIT, size - 8):
            raise ArgumentError(
                message(
                    "load_state_dict", f"{file.name} is not a safetensors file, or is incomplete"
                )
            )
        text = opened.read(length)
    try:
        header = parse(text)
        metadata = _parse_metadata(header.pop(METADATA, None))
        entries = [_parse_entry(key, entry) for key, entry in header.items()]
    except Unreadable:
        raise ArgumentError(
            message("load_state_dict", f"{file.name} has no readable header")
        ) from None
    for each in entries:
        _check_entry(file, each)
    return entries, metadata, 8 + length


def _parse_metadata(found: Any) -> dict[str, str]:
    metadata = {} if found is None else dict(found.items())
    if not all(isinstance(text, str) for text in metadata.values()):
        raise TypeError
    return metadata


def _parse_entry(key: str, entry: Any) -> Entry:
    """Parse the header of an array: key, dtype, shape and where its bytes start and end.

    Raises:
        KeyError, TypeError, ValueError: if it cannot be read.
    """
    code, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    # A string has entries, too, and True is an int: JSON of a damaged file may have either.
    if not isinstance(code, str) or not isinstance(shape, list):
        raise TypeError
    if not all(type(number) is int for number in (*shape, start, end)):
        raise TypeError
    return Entry(key, code, tuple(shape), start, end)


def _check_entry(file: Path, entry: Entry) -> None:
    """Raise ArgumentError unless the dtype is known, and the shape fits the bytes."""
    key, code, shape, start, end = entry
    kind = DTYPES.get(code)
    if kind is None:
        raise ArgumentError(message("load_state_dict", f"{key!r} in {file.name} has dtype {code}"))
    fits = min((*shape, start, end)) >= 0 and end - start == math.prod(shape) * kind.itemsize
    # NumPy multiplies sizes also where one of them is zero.
    possible = (
        len(shape) <= DIMENSION_LIMIT and math.prod(filter(None, shape)) * kind.itemsize < 2**63
    )
    if not fits or not possible:
        raise ArgumentError(_describe_damage(file, entry, f"bytes {start} to {end}"))


def _check_coverage(file: Path, entries: list[Entry], total: int) -> None:
    """Raise ArgumentError unless each byte belongs to exactly one array."""
    # In the order of the bytes, by which arrays without elements come before those that begin where they do.
    reached = 0
    for each in sorted(entries, key=lambda each: (each.start, each.end)):
        if each.end > total:
            raise ArgumentError(
                _describe_damage(file, each, f"bytes {each.start} to {each.end} of {total}")
            )
        if each.start != reached:
            overlaps = each.start < reached
            kind = "overlap those of another array" if overlaps else "follow bytes of no array"
            raise ArgumentError(
                _describe_damage(file, each, f"bytes {each.start} to {each.end}, which {kind}")
            )
        reached = each.end
    if reached != total:
        problem = f"{file.name} has {total - reached} bytes after those of its arrays"
        raise ArgumentError(message("load_state_dict", problem))


def _describe_damage(file: Path, entry: Entry, lies: str) -> str:
    problem = f"{entry.key!r} in {file.name} is incomplete or damaged"
    return message(
        "load_state_dict", problem, f"shape {entry.shape} of {DTYPES[entry.code]}, {lies}"
    )
