"""Tokens to train on: the source of the Python standard library, or the user's own texts.

Every machine that can run this has the standard library, so the default run needs no download. Its tokens are bytes,
which need no tokenizer. Texts that are too large for the memory are made into a file of tokens once, which is mapped:

    python data.py my_texts/ --tokenizer tokenizer.json --out tokens.npy
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from tokenizer import Bytes, Tokenizer, Vocabulary

Tokens = NDArray[np.unsignedinteger]
VOCAB = 256
STDLIB_LIMIT = 8_000_000  # bytes; about what Python 3.13 has, so that versions with more train on as much

# Tests, installed packages, and what is data rather than code: tables of characters, help texts, grammars.
_SKIPPED = {
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"),
    *("encodings", "idlelib", "lib2to3", "pydoc_data", "turtledemo"),
}

# Every file ends with a zero byte, which no text contains: so the model and the split know where files end.
_END = b"\0"


def load_tokens(path: Path | None, tokenizer: Tokenizer) -> Tokens:
    """Return texts as tokens, each text followed by the token that ends it.

    Args:
        path: a file of tokens, `.npy`, which is mapped into memory; or what `load_text` takes, or `.jsonl` files, whose
            lines have a "text" each.
        tokenizer: of texts; the tokens of a file must be among its own.

    Raises:
        FileNotFoundError: where there is no such path.
        ValueError: where a file is not text, or is damaged, or has other tokens.
    """
    if path is not None and path.suffix == ".npy":
        return open_tokens(path, tokenizer)
    if isinstance(tokenizer, Bytes) and (path is None or path.suffix != ".jsonl"):
        return load_text(path)
    encoded = [[*tokenizer.encode(text), *tokenizer.ends[:1]] for text in text_of(path)]
    return np.concatenate([np.asarray(tokens, kind_of(tokenizer)) for tokens in encoded])


def open_tokens(path: Path, tokenizer: Tokenizer) -> Tokens:
    """Map a file of tokens into memory, and check it."""
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged, or no file of tokens: {error}") from None
    if tokens.ndim != 1 or tokens.dtype.kind != "u":
        raise ValueError(f"{path} has {tokens.dtype} numbers of shape {tokens.shape}, not tokens; see data.py --help")
    # Not the whole file, which may be large: its ends, and some of each part.
    some = np.concatenate([tokens[:1000], tokens[:: max(1, tokens.size // 100_000)], tokens[-1000:]])
    if some.size and some.max() >= tokenizer.vocab:
        raise ValueError(f"{path} has token {some.max()}, but the tokenizer has {tokenizer.vocab} tokens")
    return tokens


def kind_of(tokenizer: Tokenizer) -> type[np.unsignedinteger]:
    """Return the smallest dtype that holds all tokens."""
    return next(kind for kind in (np.uint8, np.uint16, np.uint32) if tokenizer.vocab <= np.iinfo(kind).max + 1)


def text_files(path: Path | None) -> list[Path]:
    """Return the files of a text, see `load_text`."""
    if path is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        return [f for f in _files(root, "*.py") if not _SKIPPED.intersection(f.relative_to(root).parts)]
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path.absolute()}; pass a text file or a folder of them")
    files = list(_files(path, "*")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no files in the folder {path}; pass a text file or a folder of them")
    return files


def text_of(path: Path | None) -> Iterator[str]:
    """Yield texts: each file, or each line of a `.jsonl` file."""
    for file in text_files(path):
        if file.suffix != ".jsonl":
            yield _text(file).decode()
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            try:
                yield json.loads(line)["text"]
            except (ValueError, KeyError, TypeError):
                raise ValueError(f'{file}, line {number}: expected {{"text": "..."}}') from None


def write_tokens(path: Path | None, tokenizer: Tokenizer, out: Path) -> int:
    """Make a file of tokens, text by text, and return their number."""
    ends, kind = tokenizer.ends[:1], kind_of(tokenizer)
    count = sum(len(tokenizer.encode(text)) + len(ends) for text in text_of(path))
    part = out.with_name(f"{out.name}.part")
    tokens, at = open_memmap(part, mode="w+", dtype=kind, shape=(count,)), 0
    for text in text_of(path):
        own = [*tokenizer.encode(text), *ends]
        tokens[at : at + len(own)] = own
        at += len(own)
    tokens.flush()
    part.rename(out)
    return count


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


def train_valid_split(tokens: Tokens, valid_fraction: float = 0.05, end: int | None = 0) -> tuple[Tokens, Tokens]:
    """Return (train, valid): about `valid_fraction` of the tokens are held out.

    Whole files are held out, every 20th for a fraction of 0.05. Whole, because a window that begins a few
    lines from a training window of the same file would test memory. Every 20th, because neighbours in the
    sorted order resemble each other, so that the last files alone would not stand for all. Where files are
    so few or so unequal that this gives less than half or more than twice the fraction, the tail of the text
    is held out, as where `end`, the token behind each file, is not known, and of tokens in a mapped file.
    """
    if not 0 < valid_fraction <= 0.5:
        raise ValueError(f"valid_fraction must be above 0 and at most 0.5, got {valid_fraction}")
    cut = tokens.size - round(valid_fraction * tokens.size)
    if end is None or isinstance(tokens, np.memmap):
        return tokens[:cut], tokens[cut:]
    files = [file for file in np.split(tokens, np.flatnonzero(tokens == end) + 1) if file.size]
    every = round(1 / valid_fraction)
    valid = files[every // 2 :: every]
    held_out = sum(file.size for file in valid)
    if not valid_fraction / 2 <= held_out / max(tokens.size, 1) <= valid_fraction * 2:
        return tokens[:cut], tokens[cut:]
    train = [file for i, file in enumerate(files) if i % every != every // 2]
    return np.concatenate(train), np.concatenate(valid)


def unigram_entropy(tokens: Tokens) -> float:
    """Return the entropy of single tokens in nats: the loss of a model that knows their frequencies alone."""
    if tokens.size == 0:
        raise ValueError("the entropy of an empty text is not defined")
    counts = np.bincount(tokens)
    p = counts[counts > 0] / tokens.size
    return float(-(p * np.log(p)).sum())


def batches(tokens: Tokens, *, microbatches: int, batch: int, length: int, seed: int, step: int) -> NDArray[np.int32]:
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


def main() -> None:
    """Make a file of tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text file, a .jsonl file, or a folder of them")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; by default tokens are bytes")
    parser.add_argument("--out", type=Path, default=Path("tokens.npy"))
    options = parser.parse_args()
    tokenizer = Vocabulary(options.tokenizer) if options.tokenizer else Bytes()
    print(f"{write_tokens(options.text, tokenizer, options.out)} tokens: {options.out}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
