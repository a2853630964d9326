"""Continue texts with a model of `train.py`, or with a checkpoint of Hugging Face.

    python generate.py --model runs/first --prompt "def main(" --prompt "import "
    python generate.py --model ~/Llama-3.2-1B --temperature 0.7 --top-p 0.9 --dtype bfloat16

A folder has `config.json` and `model.safetensors`, and, unless its tokens are bytes, a `tokenizer.json`. Tokens are
shown as they come. What was compiled serves all prompts of about one length.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from decoder import Decoder
from huggingface import load
from tokenizer import Bytes, Tokenizer, Vocabulary, check_tokens

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

PARAMETERS = {"kv_heads": "model", "mlp": "model", "vocab": "model"}
LAYOUT = {"batch": "data", **PARAMETERS}
SHOWN = Axis("new", 8)  # tokens from one look at them to the next
NO_TOKEN = -1  # in the place of a token, where a score is NaN


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a generation.

    Attributes:
        model: the folder of the model.
        prompt: the texts to continue.
        new: the most tokens to add to each.
        temperature: 0 takes the most probable token each time.
        top_k: keep this many of the most probable tokens.
        top_p: keep the fewest tokens whose probabilities sum to this.
        min_p: keep tokens that are at least this share as probable as the best.
        repetition: divides the logits of tokens that have occurred.
        stop: texts that end a continuation.
        mesh: devices along the mesh axes data and model.
        dtype: of parameters; by default as in the file.
        seed: of the draws.
    """

    model: Path
    prompt: tuple[str, ...] = ("",)
    new: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    stop: tuple[str, ...] = ()
    mesh: tuple[int, int] = (1, 1)
    dtype: Literal["float32", "bfloat16"] | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Generator:
    """The compiled functions of a generation, for the mesh that is current when they are called."""

    model: Decoder
    tokenizer: Tokenizer
    options: Options
    layout: axn.ResourceMapping = dataclasses.field(default_factory=lambda: LAYOUT)

    def choose(self, logits: NamedArray, seen: NamedArray | None, key: jax.Array | None) -> NamedArray:
        """Choose a token by the options; none where a score is NaN, which would be the best one each time."""
        token = self.best(logits, seen, key)
        return axn.where(axn.isnan(logits).any("vocab"), NO_TOKEN, token)

    def best(self, logits: NamedArray, seen: NamedArray | None, key: jax.Array | None) -> NamedArray:
        options = self.options
        if seen is not None:
            logits = nn.penalize_repetition(logits, seen, options.repetition)
        if options.top_k is not None:
            logits = nn.keep_top_k(logits, "vocab", options.top_k)
        if options.temperature == 0:
            return nn.sample(logits, "vocab", 0)
        # The temperature comes before the shares, as in other libraries.
        logits = logits / options.temperature
        logits = nn.keep_min_p(nn.keep_top_p(logits, "vocab", options.top_p), "vocab", options.min_p)
        return nn.sample(logits, "vocab", key=key)

    @functools.cached_property
    def run(self) -> axn.NamedJit[..., nn.Generated]:
        """Add some tokens to prompts."""

        def run(
            model: Decoder,
            cache: nn.KVCache,
            prompt: NamedArray,
            count: NamedArray,
            seen: NamedArray | None,
            key: jax.Array,
        ) -> nn.Generated:
            options = {"choose": self.choose, "stop": self.tokenizer.ends, "seen": seen, "key": key}
            return nn.generate(model.extend, cache, prompt, SHOWN, count=count, **options)

        return axn.named_jit(run, self.layout, donate_args=(False, True), strict=False)

    def stream(self, prompts: list[list[int]]) -> Iterator[list[list[int]]]:
        """Yield new tokens of each prompt, some at a time; to a sequence that ended, none are added."""
        Batch, count = Axis("batch", len(prompts)), np.array([len(prompt) for prompt in prompts])
        if count.min() == 0:
            raise ValueError("a prompt must have at least one token")
        for prompt in prompts:
            check_tokens(np.array(prompt), self.model.config.vocab, "a prompt")
        known = self.model.config.positions
        if count.max() + self.options.new > known:
            wanted = f"{count.max()} tokens of the longest prompt and {self.options.new} new ones"
            raise ValueError(f"the model knows {known} positions, but there are {wanted}")
        longest = min(power_of_two(count.max()), known)
        Places = power_of_two(longest + self.options.new + SHOWN.size)
        padded = np.zeros((Batch.size, longest), np.int32)
        for row, prompt in zip(padded, prompts, strict=True):
            row[: len(prompt)] = prompt
        cache = axn.named_jit(lambda: self.model.cache(Places, Batch), self.layout, strict=False)()
        tokens, left = axn.named(padded, ("batch", "pos")), axn.named(count, "batch")
        seen = self.counted(padded, count) if self.options.repetition != 1.0 else None
        key = jax.random.key(self.options.seed)
        for start in range(0, self.options.new, SHOWN.size):
            out = self.run(self.model, cache, tokens, left, seen, jax.random.fold_in(key, start))
            some = min(SHOWN.size, self.options.new - start)
            rows = np.asarray(out.tokens.rearrange(("batch", "new")).array)
            lengths = np.minimum(np.asarray(out.count.array), some)
            if (rows[:, :some] == NO_TOKEN).any():
                raise ValueError("scores of the model are NaN: look at its weights, axn.debug.diagnose(model)")
            ended = yield [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]
            over = np.asarray(out.ended.array) | (False if ended is None else np.asarray(ended))
            if over.all():
                return
            cache, seen = out.cache, out.seen
            tokens, left = axn.named(rows[:, -1:], ("batch", "pos")), axn.named((~over).astype(int), "batch")

    def counted(self, padded: np.ndarray, count: np.ndarray) -> NamedArray:
        """Count the tokens of prompts."""
        vocab = self.model.config.vocab
        rows = [np.bincount(row[:length], minlength=vocab) for row, length in zip(padded, count, strict=True)]
        return axn.named(np.stack(rows).astype(np.int32), ("batch", "vocab"))


def power_of_two(number: int) -> int:
    """Return the next power of two, at least 16: of so many sizes there are few programs."""
    return max(16, 1 << (int(number) - 1).bit_length())


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a model: that of its folder, else bytes."""
    settings = json.loads((folder / "config.json").read_text())
    if (folder / "tokenizer.json").exists():
        read = Vocabulary(folder / "tokenizer.json")
        # Some models leave tokens out that their texts never have, such as those of images.
        if read.vocab > settings["vocab_size"]:
            held = f"{folder} has a tokenizer of {read.vocab} tokens, and a table of {settings['vocab_size']}"
            print(f"warning: {held}: a text with one of the last tokens is refused", file=sys.stderr)
        return read
    if settings["vocab_size"] != Bytes.vocab:
        raise ValueError(f"{folder} has no tokenizer.json, and {settings['vocab_size']} tokens, which are not bytes")
    return Bytes()


def texts(generator: Generator, prompts: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the continuations so far, each up to a stop text."""
    tokenizer, stops = generator.tokenizer, generator.options.stop
    encoded = [tokenizer.encode(prompt) or list(tokenizer.ends[:1]) for prompt in prompts]
    so_far: list[list[int]] = [[] for _ in prompts]
    stream, ended = generator.stream(encoded), None
    while True:
        try:
            parts = stream.send(ended)
        except StopIteration:
            return
        for tokens, part in zip(so_far, parts, strict=True):
            tokens += part
        found = [cut(tokenizer.decode(without(tokens, tokenizer.ends)), stops) for tokens in so_far]
        ended = [is_over for _, is_over in found]
        yield [text for text, _ in found]


def without(tokens: list[int], ends: tuple[int, ...]) -> list[int]:
    return tokens[:-1] if tokens and tokens[-1] in ends else tokens


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Return the text before the first of some stop texts, and whether there is one."""
    places = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(places)], True) if places else (text, False)


def check_options(options: Options) -> None:
    """Refuse values that make no sense, before anything is read.

    Raises:
        ValueError: for a value.
    """
    if not options.temperature >= 0:
        raise ValueError(f"temperature={options.temperature} must be at least 0")
    if options.new < 0:
        raise ValueError(f"new={options.new} must be at least 0")
    if not options.prompt:
        raise ValueError("there is no text to continue: pass --prompt, which may be an empty text")


def main(options: Options) -> list[str]:
    """Generate, show, and return the continuations."""
    check_options(options)
    kind = (jax.sharding.AxisType.Auto,) * 2
    devices = jax.devices()[: options.mesh[0] * options.mesh[1]]
    mesh = jax.make_mesh(options.mesh, ("data", "model"), axis_types=kind, devices=devices)
    tokenizer = read_tokenizer(options.model)
    with axn.set_mesh(mesh):
        dtype = options.dtype and jnp.dtype(options.dtype)
        model = load(options.model, dtype=dtype, mapping=PARAMETERS, mesh=mesh)
        generator = Generator(model, tokenizer, options)
        shown, last = "", [""] * len(options.prompt)
        if len(options.prompt) == 1:
            print(options.prompt[0], end="", flush=True)
        for last in texts(generator, options.prompt):
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
    chosen = tyro.cli(Options, description=__doc__)
    try:
        main(chosen)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
