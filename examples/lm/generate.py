"""Continue texts with a model of `train.py`, or with a checkpoint of Hugging Face.

    python generate.py --model runs/first --prompt "def main(" --prompt "import "
    python generate.py --model ~/Llama-3.2-1B --temperature 0.7 --top-p 0.9 --dtype bfloat16

A folder has `config.json` and `model.safetensors`, and, unless its tokens are bytes, a `tokenizer.json`. The settings
of a `generation_config.json` are the defaults. Tokens are shown as they come. What was compiled serves all prompts of
about one length.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import tyro

import axonym as axn
from axonym.models import Sampling, TextGenerator, load, read_sampling, read_tokenizer

PARAMETERS = {"kv_heads": "model", "mlp": "model", "vocab": "model"}
LAYOUT = {"batch": "data", **PARAMETERS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Sampling):
    """Options of a generation.

    Attributes:
        model: the folder of the model.
        prompt: the texts to continue.
        mesh: devices along the mesh axes data and model.
        dtype: of parameters; by default as in the file.
    """

    model: Path
    prompt: tuple[str, ...] = ("",)
    mesh: tuple[int, int] = (1, 1)
    dtype: Literal["float32", "bfloat16"] | None = None


def main(options: Options) -> list[str]:
    """Generate, show, and return the continuations."""
    if not options.prompt:
        raise ValueError("there is no text to continue: pass --prompt, which may be an empty text")
    kind = (jax.sharding.AxisType.Auto,) * 2
    devices = jax.devices()[: options.mesh[0] * options.mesh[1]]
    mesh = jax.make_mesh(options.mesh, ("data", "model"), axis_types=kind, devices=devices)
    tokenizer = read_tokenizer(options.model)
    with axn.set_mesh(mesh):
        dtype = options.dtype and jnp.dtype(options.dtype)
        model = load(options.model, dtype=dtype, mapping=PARAMETERS, mesh=mesh)
        generator = TextGenerator(model, tokenizer, options, LAYOUT)
        shown, last = "", [""] * len(options.prompt)
        if len(options.prompt) == 1:
            print(options.prompt[0], end="", flush=True)
        for last in generator.texts(options.prompt):
            # A character of several tokens is shown when it is whole.
            whole = last[0].rstrip("\N{REPLACEMENT CHARACTER}")
            if len(options.prompt) == 1 and whole.startswith(shown):
                print(whole[len(shown) :], end="", flush=True)
                shown = whole
    if len(options.prompt) > 1:
        print("\n---\n".join(f"{prompt}{text}" for prompt, text in zip(options.prompt, last, strict=True)), end="")
    print()
    return last


if __name__ == "__main__":
    try:
        given = tyro.cli(Options, description=__doc__)
        # What the model asks for are the defaults, which only the model tells.
        asked = dataclasses.asdict(read_sampling(given.model))
        usual = Options(model=given.model, **asked)
        main(tyro.cli(Options, description=__doc__, default=usual))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
