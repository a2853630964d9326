"""Conversations to learn from: a file of them, as the model's template writes them, and which tokens count.

A line is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}, or
{"prompt": "...", "completion": "..."}. Only what the assistant says counts.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from texts import lines_of
from tokenizer import Tokenizer

Message = dict[str, Any]
# From messages to text; whether the beginning of an answer follows.
Template = Callable[[list[Message], bool], str]
WANTED = '{"prompt": "...", "completion": "..."} or {"messages": [...]}'


def plain(messages: list[Message], begins: bool = False) -> str:
    """Write messages for a model that has no template of its own."""
    parts = [f"<|{message['role']}|>\n{message['content']}\n" for message in messages]
    return "".join([*parts, "<|assistant|>\n" if begins else ""])


def read_template(folder: Path) -> Template | None:
    """Return the template of a model of Hugging Face, if it has one.

    Raises:
        ValueError: if there is no jinja2 to run it.
    """
    file, settings_file = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text()) if settings_file.exists() else {}
    source = file.read_text() if file.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several of them, by name
        source = next((one["template"] for one in source if one["name"] == "default"), None)
    if source is None:
        return None
    tokens = {name: text_of(value) for name, value in settings.items() if name.endswith("_token")}
    return compiled(source, tokens, folder)


def text_of(token: Any) -> Any:
    """Return the text of a special token, which may be stored beside its properties."""
    return token.get("content") if isinstance(token, dict) else token


def compiled(source: str, tokens: dict[str, Any], folder: Path) -> Template:
    """Compile a template: a program of the checkpoint, which runs without access to anything else."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ValueError(f"{folder} has a chat template, to run it: pip install jinja2") from None

    def refuse(problem: str) -> None:
        raise TemplateError(problem)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "ensure_ascii": False}
    environment.globals["raise_exception"] = refuse
    template = environment.from_string(source)

    def write(messages: list[Message], begins: bool = False) -> str:
        try:
            return template.render(messages=messages, add_generation_prompt=begins, **tokens)
        except TemplateError as error:
            raise ValueError(f"the chat template of {folder}: {error}") from None

    return write


def said(told: dict[str, Any], template: Template) -> list[tuple[str, bool]]:
    """Return the parts of a conversation, and whether each is what the model learns to say.

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
            raise ValueError("the template changes what was said before, so what counts is not known")
        parts += [(before[len(written) :], False), (after[len(before) :], True)]
        written = after
    return parts


def conversations(
    path: Path, tokenizer: Tokenizer, length: int, template: Template | None = None
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the tokens of all conversations, padded, and which of them count; (number, length + 1) each.

    Args:
        path: the file of conversations.
        tokenizer: of the model.
        length: what is beyond it is cut.
        template: of the model; without one, roles are marked as `plain` does, and an end is learnt behind each answer.

    Raises:
        ValueError: where a line is no conversation, or none has a part that counts.
    """
    tokens: list[list[int]] = []
    counts: list[list[bool]] = []
    for number, line in enumerate(lines_of(path), 1):
        try:
            told = json.loads(line)
            parts = said(told, template or plain)
        except (KeyError, TypeError, json.JSONDecodeError):
            raise ValueError(f"{path}, line {number}: expected {WANTED}") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        has_end = template is not None and "messages" in told
        own: list[int] = []
        learned: list[bool] = []
        for text, counted in parts:
            # A template writes the tokens at the ends itself; otherwise they are around the whole conversation.
            encoded = tokenizer.encode(text, bare=template is not None or bool(own))
            if counted and not has_end:
                encoded = [*encoded, *tokenizer.ends[:1]]
            own += encoded
            learned += [counted] * len(encoded)
        tokens.append(own[: length + 1])
        counts.append(learned[: length + 1])
    table, mask = np.zeros((len(tokens), length + 1), np.int32), np.zeros((len(tokens), length + 1), bool)
    for i, (own, learned) in enumerate(zip(tokens, counts, strict=True)):
        table[i, : len(own)], mask[i, : len(own)] = own, learned
    if not mask[:, 1:].any():
        raise ValueError(f"{path} has nothing that the assistant says within {length} tokens")
    return table, mask
