"""Text as bytes: the source of the Python standard library, or the user's own files.

Every machine that can run this has the standard library, so the default run needs no download. Bytes need no
tokenizer: the vocabulary is the 256 values of a byte.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VOCAB = 256
STDLIB_LIMIT = 8_000_000  # bytes; about what Python 3.13 has, so that versions with more train on as much

# Tests, installed packages, and what is data rather than code: tables of characters, help texts, grammars.
_SKIPPED = {
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"),
    *("encodings", "idlelib", "lib2to3", "pydoc_data", "turtledemo"),
}

# Every file ends with a zero byte, which no text contains: so the model and the split know where files end.
_END = b"\0"


def load_text(path: Path | None = None) -> NDArray[np.uint8]:
    """Return text as one array of bytes, every file followed by a zero byte.

    Args:
        path: a file, or a folder whose files are read in sorted order, without hidden ones. None reads the
            source of the standard library, whole files up to `STDLIB_LIMIT` bytes.

    Raises:
        FileNotFoundError: where there is no such path, or no file in the folder.
        ValueError: where a file is not text.
    """
    if path is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        files = [f for f in _files(root, "*.py") if not _SKIPPED.intersection(f.relative_to(root).parts)]
        if not files:
            raise FileNotFoundError(f"no Python source in the standard library's folder {root}; pass a path")
        return _join(files, STDLIB_LIMIT)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path.absolute()}; pass a text file or a folder of them")
    files = list(_files(path, "*")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no files in the folder {path}; pass a text file or a folder of them")
    return _join(files, None)


def train_valid_split(
    tokens: NDArray[np.uint8], valid_fraction: float = 0.05
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return (train, valid): about `valid_fraction` of the bytes are held out.

    Whole files are held out, every 20th for a fraction of 0.05. Whole, because a window that begins a few
    lines from a training window of the same file would test memory. Every 20th, because neighbours in the
    sorted order resemble each other, so that the last files alone would not stand for all. Where files are
    so few or so unequal that this gives less than half or more than twice the fraction, the tail of the text
    is held out.
    """
    if not 0 < valid_fraction <= 0.5:
        raise ValueError(f"valid_fraction must be above 0 and at most 0.5, got {valid_fraction}")
    files = [file for file in np.split(tokens, np.flatnonzero(tokens == 0) + 1) if file.size]
    every = round(1 / valid_fraction)
    valid = files[every // 2 :: every]
    held_out = sum(file.size for file in valid)
    if not valid_fraction / 2 <= held_out / max(tokens.size, 1) <= valid_fraction * 2:
        cut = tokens.size - round(valid_fraction * tokens.size)
        return tokens[:cut], tokens[cut:]
    train = [file for i, file in enumerate(files) if i % every != every // 2]
    return np.concatenate(train), np.concatenate(valid)


def unigram_entropy(tokens: NDArray[np.uint8]) -> float:
    """Return the entropy of single bytes in nats: the loss of a model that knows their frequencies alone."""
    if tokens.size == 0:
        raise ValueError("the entropy of an empty text is not defined")
    counts = np.bincount(tokens, minlength=VOCAB)
    p = counts[counts > 0] / tokens.size
    return float(-(p * np.log(p)).sum())


def batches(
    tokens: NDArray[np.uint8], *, microbatches: int, batch: int, length: int, seed: int, step: int
) -> NDArray[np.int32]:
    """Return the batch of one step: random windows, (microbatches, batch // microbatches, length + 1).

    A window holds one byte more than `length`, because each byte is predicted from those before it. The
    windows depend on `seed` and `step`: not on earlier steps, so that a run can resume anywhere; not on the
    devices; nor on `microbatches`, which cuts the same windows into other pieces.
    """
    if microbatches < 1 or batch < 1 or batch % microbatches:
        raise ValueError(
            f"cannot split a batch of {batch} into {microbatches} microbatches; microbatches must divide batch"
        )
    if tokens.size < length + 1:
        raise ValueError(
            f"a window takes {length + 1} bytes (length {length}, and one more to predict), but the text has "
            f"{tokens.size}; pass a longer text, or a length of at most {max(tokens.size - 1, 0)}"
        )
    starts = np.random.default_rng((seed, step)).integers(tokens.size - length, size=batch)
    windows = tokens[starts[:, None] + np.arange(length + 1)]
    return windows.astype(np.int32).reshape(microbatches, batch // microbatches, length + 1)


def _files(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files below a folder in sorted order, without hidden files and folders."""
    for path in sorted(root.rglob(pattern)):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path


def _join(files: list[Path], limit: int | None) -> NDArray[np.uint8]:
    """Read files, each followed by a zero byte, as long as the total stays within the limit."""
    texts: list[bytes] = []
    size = 0
    for file in files:
        text = file.read_bytes()
        if _END in text:
            raise ValueError(f"{file} is not text: it has a zero byte; pass a text file or a folder of them")
        size += len(text) + 1
        if limit is not None and size > limit:
            break
        texts.append(text)
    return np.frombuffer(b"".join(text + _END for text in texts), np.uint8)
