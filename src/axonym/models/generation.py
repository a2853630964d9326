"""Continue texts with a decoder: prompts of different lengths in one batch, sampling settings, and stop texts."""

import collections
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import axonym as axn

from .. import nn
from ..array import NamedArray
from ..axis import Axis
from ..layout.assignment import ResourceMapping
from ..partitioning.jit import NamedJit
from .decoder import Decoder
from .files import read_json
from .tokenizer import Tokenizer, check_tokens

SHOWN = Axis("new", 8)  # tokens from one look at them to the next
NO_TOKEN = -1  # in the place of a token, where a score is NaN


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a continuation is sampled, and how long it may be.

    Attributes:
        new: the most tokens to add to each text.
        temperature: 0 takes the most probable token each time.
        top_k: keep this many of the most probable tokens.
        top_p: keep the fewest tokens whose probabilities sum to this.
        min_p: keep tokens that are at least this share as probable as the best.
        repetition: divides the logits of tokens that have occurred.
        stop: texts that end a continuation.
        seed: of the draws.

    Raises:
        ValueError: for a value that makes no sense.
    """

    new: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature} must be at least 0")
        if self.new < 0:
            raise ValueError(f"new={self.new} must be at least 0")


def read_sampling(folder: str | os.PathLike[str], **changes: Any) -> Sampling:
    """Return the sampling that the `generation_config.json` of a model asks for.

    Missing settings have the defaults of transformers: without `do_sample`, take the most probable token each time.

    Args:
        folder: of the model; without such a file, the result is `Sampling()` with the changes.
        changes: fields of `Sampling` to set in its place.
    """
    file = Path(folder) / "generation_config.json"
    if not file.exists():
        return Sampling(**changes)
    given = {key: value for key, value in read_json(file).items() if value is not None}
    found: dict[str, Any] = {"temperature": 0.0}
    if given.get("do_sample"):
        keys = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
        found = {key: given.get(key, usual) for key, usual in keys.items()}
        found["top_k"] = found["top_k"] or None
    found["repetition"] = given.get("repetition_penalty", 1.0)
    if "max_new_tokens" in given:
        found["new"] = given["max_new_tokens"]
    return Sampling(**{**found, **changes})


def generate(
    model: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    sampling: Sampling | None = None,
    *,
    mapping: ResourceMapping | None = None,
) -> list[str]:
    """Continue texts, each up to a token that ends it or a stop text.

    Args:
        model: see `axonym.models.load`.
        tokenizer: that of the model, see `read_tokenizer`.
        prompts: texts of any lengths; an empty one starts with the token that ends a text.
        sampling: by default `Sampling()`.
        mapping: of the computation, see `axn.named_jit`; parameters stay as they are laid out.

    Returns:
        The continuations alone, in the order of the prompts.

    Raises:
        ValueError: if a prompt and its new tokens are more than the model knows, a prompt has a token without a row
            in the table, or scores are NaN.

    Examples:
        >>> from axonym.models import Bytes, Decoder, DecoderConfig, Sampling, generate
        >>> sizes = {"embed": 16, "mlp": 32, "heads": 2, "kv_heads": 1, "head_dim": 8}
        >>> config = DecoderConfig(vocab=256, layers=1, positions=32, **sizes)
        >>> model = Decoder.init(config, key=jax.random.key(0))
        >>> len(generate(model, Bytes(), ["Once", "It"], Sampling(new=4, temperature=0)))
        2
    """
    if isinstance(prompts, str):
        raise TypeError(f"prompts must be a list of texts, not one text: pass [{prompts!r}]")
    generator = TextGenerator(model, tokenizer, sampling or Sampling(), mapping)
    (last,) = collections.deque(generator.texts(prompts), maxlen=1) or [[""] * len(prompts)]
    return last


@dataclasses.dataclass(frozen=True)
class TextGenerator:
    """The compiled functions of a generation, for the mesh that is current when they are called.

    Attributes:
        model: the decoder.
        tokenizer: that of the model.
        sampling: how tokens are drawn.
        mapping: of the computation, see `axn.named_jit`; parameters stay as they are laid out.
    """

    model: Decoder
    tokenizer: Tokenizer
    sampling: Sampling
    mapping: ResourceMapping | None = None

    def choose(
        self, logits: NamedArray, seen: NamedArray | None, key: jax.Array | None
    ) -> NamedArray:
        """Choose a token by the options, or `NO_TOKEN` where a score is NaN: a NaN would always count as the best."""
        options, is_broken = self.sampling, axn.isnan(logits).any("vocab")
        if seen is not None:
            logits = nn.penalize_repetition(logits, seen, options.repetition)
        if options.top_k is not None:
            logits = nn.keep_top_k(logits, "vocab", options.top_k)
        if options.temperature == 0:
            return axn.where(is_broken, NO_TOKEN, nn.sample(logits, "vocab", 0))
        # The temperature comes before the shares, as in other libraries.
        logits = nn.keep_top_p(logits / options.temperature, "vocab", options.top_p)
        logits = nn.keep_min_p(logits, "vocab", options.min_p)
        return axn.where(is_broken, NO_TOKEN, nn.sample(logits, "vocab", key=key))

    @functools.cached_property
    def run(self) -> NamedJit[..., nn.Generated]:
        """Add some tokens to prompts."""

        def run(
            model: Decoder,
            cache: nn.KVCache,
            prompt: NamedArray,
            count: NamedArray,
            seen: NamedArray | None,
            key: jax.Array,
        ) -> nn.Generated:
            return nn.generate(
                model.extend,
                cache,
                prompt,
                SHOWN,
                count=count,
                choose=self.choose,
                stop=self.tokenizer.ends,
                seen=seen,
                key=key,
            )

        return axn.named_jit(run, self.mapping, donate_args=(False, True), strict=False)

    def stream(
        self, prompts: list[list[int]], ended: list[bool] | None = None
    ) -> Iterator[list[list[int]]]:
        """Yield new tokens of each prompt, some at a time; a sequence that ended gets no more tokens.

        The caller may mark more sequences in `ended`, in addition to those that a token ended.
        """
        Batch, count = Axis("batch", len(prompts)), np.array([len(prompt) for prompt in prompts])
        if count.min() == 0:
            raise ValueError("a prompt must have at least one token")
        for prompt in prompts:
            check_tokens(np.array(prompt), self.model.config.vocab, "a prompt")
        known = self.model.config.positions
        if count.max() + self.sampling.new > known:
            wanted = f"{count.max()} tokens of the longest prompt and {self.sampling.new} new ones"
            raise ValueError(f"the model knows {known} positions, but there are {wanted}")
        longest = min(power_of_two(count.max()), known)
        Places = power_of_two(longest + self.sampling.new + SHOWN.size)
        padded = np.zeros((Batch.size, longest), np.int32)
        for row, prompt in zip(padded, prompts, strict=True):
            row[: len(prompt)] = prompt
        cache = axn.named_jit(lambda: self.model.cache(Places, Batch), self.mapping, strict=False)()
        tokens, left = axn.named(padded, ("batch", "pos")), axn.named(count, "batch")
        seen = self.count_tokens(prompts) if self.sampling.repetition != 1.0 else None
        key = jax.random.key(self.sampling.seed)
        for start in range(0, self.sampling.new, SHOWN.size):
            out = self.run(self.model, cache, tokens, left, seen, jax.random.fold_in(key, start))
            some = min(SHOWN.size, self.sampling.new - start)
            rows = np.asarray(out.tokens.rearrange(("batch", "new")).array)
            lengths = np.minimum(np.asarray(out.count.array), some)
            if (rows[:, :some] == NO_TOKEN).any():
                raise ValueError(
                    "scores of the model are NaN: look at its weights, axn.debug.diagnose(model)"
                )
            yield [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]
            over = np.asarray(out.ended.array) | np.asarray(ended or False)
            if over.all():
                return
            cache, seen = out.cache, out.seen
            tokens = axn.named(rows[:, -1:], ("batch", "pos"))
            left = axn.named((~over).astype(int), "batch")

    def texts(self, prompts: Sequence[str], *, bare: bool = False) -> Iterator[list[str]]:
        """Yield the continuations so far, each up to a stop text; `bare` prompts get no marks."""
        ends = list(self.tokenizer.ends[:1])
        encoded = [self.tokenizer.encode(prompt, bare=bare) or ends for prompt in prompts]
        so_far: list[list[int]] = [[] for _ in prompts]
        ended = [False] * len(prompts)
        for parts in self.stream(encoded, ended):
            for tokens, part in zip(so_far, parts, strict=True):
                tokens += part
            pairs = zip(encoded, so_far, strict=True)
            found = [self.text_until(prompt, tokens) for prompt, tokens in pairs]
            ended[:] = [is_over for _, is_over in found]
            yield [text for text, _ in found]

    def text_until(self, prompt: list[int], tokens: list[int]) -> tuple[str, bool]:
        """Return the text of new tokens up to an end or a stop text, and whether there is a stop text.

        The search for stop texts includes special tokens, although the returned text leaves them out.
        """
        if tokens and tokens[-1] in self.tokenizer.ends:
            tokens = tokens[:-1]
        whole = self.write_text(prompt, tokens, special=True)
        places = [at for at in (whole.find(stop) for stop in self.sampling.stop) if at >= 0]
        if not places:
            return self.write_text(prompt, tokens), False
        # The tokens that lie before it as a whole, and its part of the next one.
        ends = (len(self.write_text(prompt, tokens[:n], special=True)) for n in range(len(tokens)))
        count = max((n for n, end in enumerate(ends) if end <= min(places)), default=0)
        before = self.write_text(prompt, tokens[:count], special=True)
        return self.write_text(prompt, tokens[:count]) + whole[len(before) : min(places)], True

    def write_text(self, prompt: list[int], tokens: list[int], *, special: bool = False) -> str:
        """Return the text of new tokens, with the leading space that a tokenizer drops at the start of a text."""
        before = self.tokenizer.decode(prompt, special=special)
        whole = self.tokenizer.decode([*prompt, *tokens], special=special)
        if whole.startswith(before):
            return whole[len(before) :]
        return self.tokenizer.decode(tokens, special=special)

    def count_tokens(self, prompts: list[list[int]]) -> NamedArray:
        """Count the tokens of prompts."""
        rows = [np.bincount(prompt, minlength=self.model.config.vocab) for prompt in prompts]
        return axn.named(np.stack(rows).astype(np.int32), ("batch", "vocab"))


def power_of_two(number: int) -> int:
    """Return the next power of two, at least 16: rounding sizes up means that few programs are compiled."""
    return max(16, 1 << (int(number) - 1).bit_length())
