"""From text to tokens and back: bytes, or a `tokenizer.json` of the package `tokenizers`."""

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from ..base.lazy import library
from .files import read_json

END = "<|endoftext|>"


class Tokenizer(Protocol):
    """The facts about text that a model needs: the number of tokens, and the tokens that end a text."""

    vocab: int
    ends: tuple[int, ...]

    def encode(self, text: str, *, bare: bool = False) -> list[int]:
        """Return the tokens of a text; `bare` leaves out the tokens that some tokenizers put around each text."""
        ...

    def locate(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a bare text, and the span of characters of each token."""
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens; `special` includes the tokens that mark ends and turns."""
        ...


class Bytes:
    """Text as UTF-8. A zero byte, which no text contains, ends a text."""

    vocab: int = 256
    ends: tuple[int, ...] = (0,)

    def encode(self, text: str, *, bare: bool = False) -> list[int]:
        """Return the tokens of a text."""
        check_text(text)
        return list(text.encode())

    def locate(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a bare text, and the span of characters of each."""
        places = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
        return self.encode(text), places

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens."""
        return bytes(token for token in tokens if token).decode("utf-8", "replace")


class Vocabulary:
    """A tokenizer read from a file, such as those of Hugging Face.

    Args:
        file: a `tokenizer.json`.
        ends: tokens that end a text; by default those that the files beside it name, or the one that this program
            makes.
    """

    def __init__(self, file: Path, ends: tuple[int, ...] = ()) -> None:
        loaded = library("Vocabulary", "tokenizers", extra="models").Tokenizer
        try:
            self._loaded = loaded.from_file(str(file))
        except Exception as error:  # the package raises no class of its own
            raise ValueError(f"{file} is no tokenizer: {error}") from None
        own = self._loaded.token_to_id(END)
        # There may be fewer tokens than the largest one says.
        self.vocab = 1 + max(self._loaded.get_vocab().values())
        ends = ends or read_ends(file.parent, self._loaded.token_to_id)
        self.ends = ends or (() if own is None else (own,))

    def encode(self, text: str, *, bare: bool = False) -> list[int]:
        """Return the tokens of a text."""
        check_text(text)
        ids: list[int] = self._loaded.encode(text, add_special_tokens=not bare).ids
        return ids

    def locate(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a bare text, and the span of characters of each."""
        check_text(text)
        encoded = self._loaded.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens."""
        text: str = self._loaded.decode(list(tokens), skip_special_tokens=not special)
        return text

    def save(self, file: Path) -> None:
        """Write the tokenizer as it was read."""
        self._loaded.save(str(file))


def check_text(text: str) -> None:
    """Refuse half of a surrogate pair, which JSON may contain: no tokenizer has a token for it.

    Raises:
        ValueError: for the first of them.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"a text has a lone surrogate, {text[error.start]!r}, at character {error.start}"
        raise ValueError(f"{half}: it is half of a character") from None


def read_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer in the folder of a model, or bytes if there is none."""
    folder = Path(folder)
    settings = read_json(folder / "config.json")
    if (folder / "tokenizer.json").exists():
        read = Vocabulary(folder / "tokenizer.json")
        # Some models leave tokens out that their texts never have, such as those of images.
        if read.vocab > settings["vocab_size"]:
            held = f"{folder} has a tokenizer of {read.vocab} tokens, and a table of {settings['vocab_size']}"
            told = f"{held}: a text with one of the last tokens is refused"
            warnings.warn(told, stacklevel=2)
        return read
    if settings["vocab_size"] != Bytes.vocab:
        raise ValueError(
            f"{folder} has no tokenizer.json, and {settings['vocab_size']} tokens, which are not bytes"
        )
    return Bytes()


def read_ends(folder: Path, number: Callable[[str], int | None]) -> tuple[int, ...]:
    """Return the tokens that end a text, as the files of a model name them.

    Args:
        folder: of the model.
        number: from the text of a token to its number.
    """
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        if (folder / name).exists():
            ends = read_json(folder / name).get("eos_token_id")
            found += [] if ends is None else ends if isinstance(ends, list) else [ends]
    if not found and (folder / "tokenizer_config.json").exists():
        own = read_json(folder / "tokenizer_config.json").get("eos_token")
        text = own.get("content") if isinstance(own, dict) else own
        found = [end for end in [None if text is None else number(text)] if end is not None]
    return tuple(dict.fromkeys(found))


def check_tokens(tokens: NDArray[Any], rows: int, source: str) -> None:
    """Refuse tokens without a row in a table: a program would silently read NaN or another row.

    Args:
        tokens: of any shape.
        rows: how many tokens the model knows.
        source: where they come from, for the error.

    Raises:
        ValueError: for the first of such tokens.
    """
    if not tokens.size or (tokens.min() >= 0 and tokens.max() < rows):
        return
    outside = tokens[(tokens < 0) | (tokens >= rows)][0]
    known = f"the table of the model has {rows} rows, for the tokens 0 to {rows - 1}"
    cause = "is the tokenizer that of the model, and was a token added to it?"
    raise ValueError(f"{source} has token {outside}, but {known}: {cause}")
