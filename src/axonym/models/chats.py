"""Conversations to learn from: read a file, apply the model's chat template, and mark the tokens that count.

A line is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}, or
{"prompt": "...", "completion": "..."}. Only what the assistant says counts.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.lazy import library
from .files import read_json
from .tokenizer import Tokenizer, check_text

Message = dict[str, Any]
# From messages to text; whether the beginning of an answer follows.
Template = Callable[[list[Message], bool], str]
WANTED = '{"prompt": "...", "completion": "..."} or {"messages": [...]}'


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, split only at newlines: JSON may contain other separators of `str.splitlines`."""
    try:
        with path.open(encoding="utf-8") as lines:
            yield from lines
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text of UTF-8: {error}") from None


def write_plain(messages: list[Message], begins: bool = False) -> str:
    """Write messages for a model that has no template of its own."""
    parts = [f"<|{message['role']}|>\n{message['content']}\n" for message in messages]
    return "".join([*parts, "<|assistant|>\n" if begins else ""])


def read_template(folder: str | os.PathLike[str]) -> Template | None:
    """Return the template of a model of Hugging Face, if it has one.

    Raises:
        ValueError: if there is no jinja2 to run it.
    """
    folder = Path(folder)
    file, settings_file = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.exists() else {}
    source = file.read_text() if file.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several of them, by name
        source = next((one["template"] for one in source if one["name"] == "default"), None)
    if source is None:
        return None
    tokens = {name: get_text(value) for name, value in settings.items() if name.endswith("_token")}
    return compile_template(source, tokens, folder)


def get_text(token: Any) -> Any:
    """Return the text of a special token, which may be stored beside its properties."""
    return token.get("content") if isinstance(token, dict) else token


def compile_template(source: str, tokens: dict[str, Any], folder: Path) -> Template:
    """Compile the chat template of a checkpoint; it is a program, which runs in a sandbox."""
    library("read_template", "jinja2", extra="models")
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag around the assistant's text, ignored here: offsets show which text is the assistant's."""

        tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(problem: str) -> None:
        raise TemplateError(problem)

    def to_json(
        value: object, indent: int | None = None, ensure_ascii: bool = False, **options: Any
    ) -> str:
        # Jinja's own filter writes characters such as < for web pages.
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)

    try:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        environment.filters["tojson"] = to_json
        known: dict[str, Any] = environment.globals
        known |= {
            "raise_exception": refuse,
            "strftime_now": lambda form: datetime.now().strftime(form),
        }
        template = environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"the chat template of {folder}: {error}") from None

    def write(messages: list[Message], begins: bool = False) -> str:
        nothing = {"tools": None, "documents": None}
        try:
            return template.render(
                messages=messages, add_generation_prompt=begins, **nothing, **tokens
            )
        except TemplateError as error:
            raise ValueError(f"the chat template of {folder}: {error}") from None

    return write


def split_conversation(told: dict[str, Any], template: Template) -> list[tuple[str, bool]]:
    """Return the parts of a conversation, and whether the model learns to say each part.

    Raises:
        ValueError: if the template writes what came before in another way once the assistant has answered.
    """
    if "prompt" in told:
        return [(told["prompt"], False), (told["completion"], True)]
    messages, parts, written = told["messages"], [], ""
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = template(messages[:i], True), template(messages[: i + 1], False)
        if not (before.startswith(written) and after.startswith(before)):
            raise ValueError("the template changes what was said, so what counts is not known")
        parts += [(before[len(written) :], False), (after[len(before) :], True)]
        written = after
    return parts


def encode_parts(
    parts: list[tuple[str, bool]], tokenizer: Tokenizer, *, has_marks: bool
) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation, and whether each token overlaps a part that counts.

    The text is encoded in one call, since some tokenizers add a space at the start of each text.

    Args:
        parts: texts, and whether each counts.
        tokenizer: of the model.
        has_marks: whether the text has the tokens at its ends, which a tokenizer otherwise puts in front.
    """
    text = "".join(part for part, _ in parts)
    tokens, places = tokenizer.locate(text)
    counted = np.repeat([counts for _, counts in parts], [len(part) for part, _ in parts])
    learned = [bool(counted[start:stop].any()) for start, stop in places]
    if has_marks:
        return tokens, learned
    framed = tokenizer.encode(text)
    # Those behind the text are left out: an end is put behind each answer.
    starts = range(len(framed) - len(tokens) + 1)
    front = framed[: next((at for at in starts if framed[at : at + len(tokens)] == tokens), 0)]
    return [*front, *tokens], [False] * len(front) + learned


def add_ends(
    tokens: list[int], learned: list[bool], ends: tuple[int, ...]
) -> tuple[list[int], list[bool]]:
    """Append the end-of-text token to each answer."""
    told: list[tuple[int, bool]] = []
    for token, own, goes_on in zip(tokens, learned, [*learned[1:], False], strict=True):
        told += [(token, own), *((end, True) for end in ends if own and not goes_on)]
    return [token for token, _ in told], [counts for _, counts in told]


def conversations(
    path: Path, tokenizer: Tokenizer, length: int, template: Template | None = None
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the padded tokens of all conversations, and which tokens count; both have shape (number, length + 1).

    Args:
        path: the file of conversations.
        tokenizer: of the model.
        length: what is beyond it is cut.
        template: of the model; without one, `write_plain` marks roles, and an end is learnt behind each answer.

    Raises:
        ValueError: where a line is no conversation, or none has a part that counts. One that has none within the
            length is left out, with a warning.
    """
    rows: list[tuple[list[int], list[bool]]] = []
    cut = 0
    for number, line in enumerate(read_lines(path), 1):
        try:
            told = json.loads(line)
            parts = split_conversation(told, template or write_plain)
            check_text("".join(part for part, _ in parts))
        except (KeyError, TypeError, json.JSONDecodeError):
            raise ValueError(f"{path}, line {number}: expected {WANTED}") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        own, learned = encode_parts(parts, tokenizer, has_marks=template is not None)
        if template is None or "messages" not in told:
            own, learned = add_ends(own, learned, tokenizer.ends[:1])
        if any(learned[1 : length + 1]):
            rows.append((own[: length + 1], learned[: length + 1]))
        else:
            cut += 1
    if not rows:
        raise ValueError(f"{path} has nothing that the assistant says within {length} tokens")
    if cut:
        lost = f"{cut} conversations of {path} have no answer within {length} tokens"
        warnings.warn(f"{lost}, and are left out: pass a larger length", stacklevel=2)
    table = np.zeros((2, len(rows), length + 1), np.int32)
    for i, row in enumerate(rows):
        table[:, i, : len(row[0])] = row
    return table[0], table[1].astype(bool)
