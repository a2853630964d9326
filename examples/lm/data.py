"""Tokens to train on, and a file of them, which is mapped: for texts that are too large for the memory.

    python data.py my_texts/ --tokenizer tokenizer.json --out tokens.npy

Texts are plain files, `.jsonl` with a "text" on each line, or `.parquet` with a column "text".
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from texts import STRUCTURED, load_text, text_files, text_of

from axonym.models import Bytes, Tokenizer, Vocabulary

Tokens = NDArray[np.unsignedinteger]
WHOLE = 2**30


def load_tokens(path: Path | None, tokenizer: Tokenizer) -> Tokens:
    """Return texts as tokens, each text followed by the token that ends it.

    Args:
        path: a file of tokens, `.npy`, which is mapped into memory; or what `load_text` and `text_of` take.
        tokenizer: of texts; the tokens of a file must be among its own.

    Raises:
        FileNotFoundError: where there is no such path.
        ValueError: where a file is not text, or is damaged, or has other tokens.
    """
    if path is not None and path.suffix == ".npy":
        return open_tokens(path, tokenizer)
    of_texts = any(file.suffix in STRUCTURED for file in text_files(path))
    if isinstance(tokenizer, Bytes) and not of_texts:
        return load_text(path)
    encoded = [[*tokenizer.encode(text), *tokenizer.ends[:1]] for text in text_of(path)]
    if not encoded:
        raise ValueError(f"{path} has no texts")
    return np.concatenate([np.asarray(tokens, kind_of(tokenizer)) for tokens in encoded])


def open_tokens(path: Path, tokenizer: Tokenizer) -> Tokens:
    """Map a file of tokens into memory, and check it."""
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged, or no file of tokens: {error}") from None
    if tokens.ndim != 1 or tokens.dtype.kind != "u":
        raise ValueError(f"{path} has {tokens.dtype} numbers of shape {tokens.shape}, not tokens; see data.py --help")
    if not tokens.size:
        raise ValueError(f"{path} has no tokens")
    # Not the whole file, which may be large: its ends, and some of each part.
    some = np.concatenate([tokens[:1000], tokens[:: max(1, tokens.size // 100_000)], tokens[-1000:]])
    if some.max() >= tokenizer.vocab:
        raise ValueError(f"{path} has token {some.max()}, but the tokenizer has {tokenizer.vocab} tokens")
    return tokens


def kind_of(tokenizer: Tokenizer) -> type[np.unsignedinteger]:
    """Return the smallest dtype that holds all tokens."""
    return next(kind for kind in (np.uint8, np.uint16, np.uint32) if tokenizer.vocab <= np.iinfo(kind).max + 1)


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


def fingerprint(tokens: Tokens) -> str:
    """Return a number that tells tokens from others: of all, or of 1000 pieces if there are very many."""
    size = tokens.size if tokens.size <= WHOLE else 2**16
    found = hashlib.blake2b(f"{tokens.dtype} {tokens.size}".encode(), digest_size=8)
    for start in np.linspace(0, tokens.size - size, 1 if size == tokens.size else 1000).astype(int):
        found.update(np.ascontiguousarray(tokens[start : start + size]))
    return found.hexdigest()


def unigram_entropy(*texts: Tokens, weights: Sequence[float] = (1.0,)) -> float:
    """Return the entropy of single tokens in nats: the loss of a model that knows their frequencies alone.

    Args:
        texts: one or more, which are mixed.
        weights: the share of each.
    """
    if not all(tokens.size for tokens in texts):
        raise ValueError("the entropy of an empty text is not defined")
    most = max(int(tokens.max()) for tokens in texts) + 1
    pairs = zip(texts, weights, strict=True)
    p = sum(weight / tokens.size * np.bincount(tokens, minlength=most) for tokens, weight in pairs)
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def main() -> None:
    """Make a file of tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a text, .jsonl or .parquet file, or a folder of them")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; by default tokens are bytes")
    parser.add_argument("--end", type=int, help="the token behind each text; by default that of the model's files")
    parser.add_argument("--out", type=Path, default=Path("tokens.npy"))
    options = parser.parse_args()
    given = () if options.end is None else (options.end,)
    tokenizer = Vocabulary(options.tokenizer, given) if options.tokenizer else Bytes()
    if not tokenizer.ends:
        raise ValueError(f"{options.tokenizer} does not say which token ends a text: pass --end")
    print(f"{write_tokens(options.text, tokenizer, options.out)} tokens: {options.out}")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
