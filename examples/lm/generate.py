"""Continue texts with a model of `train.py`, or with a checkpoint of Hugging Face.

    python generate.py --model runs/first --prompt "def main(" --prompt "import "
    python generate.py --model ~/Llama-3.2-1B --temperature 0.7 --top-p 0.9 --dtype bfloat16
    python generate.py --model ~/Llama-3.2-1B-Instruct --chat

A folder has `config.json` and `model.safetensors`, and, unless its tokens are bytes, a `tokenizer.json`. The settings
of a `generation_config.json` are the defaults. Tokens are shown as they come. Prompts of about the
same length share a compiled program.

With `--chat` you talk to the model: each line of the input is what you say, and its template writes the conversation.
The end of the input ends it.
"""

import collections
import contextlib
import dataclasses
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import tyro

import axonym as axn
from axonym.models import Sampling, TextGenerator, load, read_sampling, read_template, read_tokenizer
from axonym.models.chats import Message, Template

PARAMETERS = {"kv_heads": "model", "mlp": "model", "vocab": "model"}
LAYOUT = {"batch": "data", **PARAMETERS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Sampling):
    """Options of a generation.

    Attributes:
        model: the folder of the model.
        prompt: the texts to continue.
        chat: answer the lines of the input, instead of continuing a text.
        mesh: devices along the mesh axes data and model.
        dtype: of parameters; by default as in the file.
    """

    model: Path
    prompt: tuple[str, ...] = ("",)
    chat: bool = False
    mesh: tuple[int, int] = (1, 1)
    dtype: Literal["float32", "bfloat16"] | None = None


def said() -> Iterator[str]:
    """Yield the lines of the input that are not empty; a terminal shows where to write."""
    invitation = "> " if sys.stdin.isatty() else ""
    with contextlib.suppress(EOFError):
        while True:
            if line := input(invitation).strip():
                yield line


def show(texts: Iterator[list[str]]) -> str:
    """Show one text as it comes, and return it."""
    shown = last = ""
    for (last,) in texts:
        # A character of several tokens is shown when it is whole.
        whole = last.rstrip("\N{REPLACEMENT CHARACTER}")
        if whole.startswith(shown):
            print(whole[len(shown) :], end="", flush=True)
            shown = whole
    print()
    return last


def need_template(folder: Path) -> Template:
    """Return the template of a model to talk to."""
    template = read_template(folder)
    if template is None:
        put = "put one into chat_template.jinja there, or leave --chat out and pass --prompt"
        raise ValueError(f"{folder} has no chat template: {put}")
    return template


def talk(generator: TextGenerator, template: Template) -> list[str]:
    """Answer the lines of the input, each after the whole conversation, and return the answers."""
    messages: list[Message] = []
    for line in said():
        messages.append({"role": "user", "content": line})
        answer = show(generator.texts([template(messages, True)], bare=True))
        messages.append({"role": "assistant", "content": answer})
    return [message["content"] for message in messages[1::2]]


def main(options: Options) -> list[str]:
    """Generate, show, and return the continuations, or the answers of a conversation."""
    if not options.prompt:
        raise ValueError("there is no text to continue: pass --prompt, which may be an empty text")
    if options.chat and options.prompt != ("",):
        raise ValueError("chat reads from the input what you say: leave --prompt out")
    kind = (jax.sharding.AxisType.Auto,) * 2
    devices = jax.devices()[: options.mesh[0] * options.mesh[1]]
    mesh = jax.make_mesh(options.mesh, ("data", "model"), axis_types=kind, devices=devices)
    tokenizer = read_tokenizer(options.model)
    template = need_template(options.model) if options.chat else None
    with axn.set_mesh(mesh):
        dtype = options.dtype and jnp.dtype(options.dtype)
        model = load(options.model, dtype=dtype, mapping=PARAMETERS, mesh=mesh)
        generator = TextGenerator(model, tokenizer, options, LAYOUT)
        if template is not None:
            return talk(generator, template)
        if len(options.prompt) == 1:
            print(options.prompt[0], end="", flush=True)
            return [show(generator.texts(options.prompt))]
        nothing = [[""] * len(options.prompt)]
        (last,) = collections.deque(generator.texts(options.prompt), maxlen=1) or nothing
    print("\n---\n".join(f"{prompt}{text}" for prompt, text in zip(options.prompt, last, strict=True)))
    return last


if __name__ == "__main__":
    try:
        given = tyro.cli(Options, description=__doc__)
        # The defaults are the settings of the model, so the model must be known first.
        asked = dataclasses.asdict(read_sampling(given.model))
        usual = Options(model=given.model, **asked)
        main(tyro.cli(Options, description=__doc__, default=usual))
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
