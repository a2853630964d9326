"""Texts to train on: the source of Python's standard library, or the user's own, as files of several forms.

Every machine that can run this has the standard library, so the default run needs no download.
"""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axonym.models.chats import read_lines

STDLIB_LIMIT = 8_000_000  # bytes; about what Python 3.13 has, so that versions with more train on as much

STRUCTURED = {".jsonl", ".parquet"}  # files that hold many texts each

# Tests, installed packages, and what is data rather than code: tables of characters, help texts, grammars.
_SKIPPED = {
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"),
    *("encodings", "idlelib", "lib2to3", "pydoc_data", "turtledemo"),
}

# Every file ends with a zero byte, which no text contains: so the model and the split know where files end.
_END = b"\0"


def text_files(path: Path | None) -> list[Path]:
    """Return the files of a text, see `load_text`."""
    if path is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        return [file for file in _files(root, _SKIPPED) if file.suffix == ".py"]
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path.absolute()}; pass a text file or a folder of them")
    files = _files(path) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no files in the folder {path}; pass a text file or a folder of them")
    return files


def text_of(path: Path | None) -> Iterator[str]:
    """Yield texts: each file, each line of a `.jsonl` file, or each row of a `.parquet` file.

    Raises:
        FileNotFoundError: where there is no such path.
        ValueError: where a file is damaged, or has no texts.
    """
    for file in text_files(path):
        if file.suffix == ".jsonl":
            yield from _lines(file)
        elif file.suffix == ".parquet":
            yield from _rows(file)
        else:
            try:
                yield _text(file).decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{file} is no text of UTF-8: {error}") from None


def _lines(file: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(file), 1):
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise ValueError(f'{file}, line {number}: expected {{"text": "..."}}')
        yield text


def _rows(file: Path) -> Iterator[str]:
    """Yield the texts of a Parquet file, which is read part by part."""
    try:
        # Without annotations, and not among what the project needs.
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError(f"{file} is a Parquet file, to read it: pip install pyarrow") from None
    try:
        table: Any = parquet.ParquetFile(file)
        columns = table.schema_arrow.names
        if "text" not in columns:
            raise ValueError(f'{file} has no column "text", but {", ".join(columns)}')
        number = 0
        for part in table.iter_batches(columns=["text"]):
            for text in part.column(0).to_pylist():
                number += 1
                if not isinstance(text, str):
                    raise ValueError(f"{file}, row {number}: expected a text, not {text!r}")
                yield text
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file} is damaged, or no Parquet file: {error}") from None


def load_text(path: Path | None = None) -> NDArray[np.uint8]:
    """Return text as one array of bytes, every file followed by a zero byte.

    Args:
        path: a file, or a folder whose files are read in sorted order, without hidden ones. None reads the
            source of the standard library, whole files up to `STDLIB_LIMIT` bytes.

    Raises:
        FileNotFoundError: where there is no such path, or no file in the folder.
        ValueError: where a file is not text.
    """
    files = text_files(path)
    if not files:
        root = sysconfig.get_paths()["stdlib"]
        raise FileNotFoundError(f"no Python source in the standard library's folder {root}; pass a path")
    return _join(files, STDLIB_LIMIT if path is None else None)


def _files(root: Path, skipped: Collection[str] = ()) -> list[Path]:
    """Return the files below a folder in sorted order, without hidden ones and skipped folders."""
    found: list[Path] = []
    for folder, inside, names in os.walk(root):
        # `os.walk` does not enter folders that leave the list: packages may have more files than the library.
        inside[:] = [name for name in inside if not name.startswith(".") and name not in skipped]
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return [file for file in sorted(found) if file.is_file()]


def _join(files: list[Path], limit: int | None) -> NDArray[np.uint8]:
    """Read files, each followed by a zero byte, as long as the total stays within the limit."""
    texts: list[bytes] = []
    size = 0
    for file in files:
        text = _text(file)
        size += len(text) + 1
        if limit is not None and size > limit:
            break
        texts.append(text)
    return np.frombuffer(b"".join(text + _END for text in texts), np.uint8)


def _text(file: Path) -> bytes:
    text = file.read_bytes()
    if _END in text:
        raise ValueError(f"{file} is not text: it has a zero byte; pass a text file or a folder of them")
    return text
