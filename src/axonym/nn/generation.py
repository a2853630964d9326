"""Generate tokens with any model that has a cache: read a prompt, choose a token, feed it back, and repeat.

The model comes in as a function, so this module knows nothing of attention or of the form of a cache. All tokens but
the first come from one `scan`, so that the compiled program does not grow with their number.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSelector, selector, sized
from ..base.kinds import type_text
from ..create import full, one_hot
from ..engine.core import facts
from ..errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError, message
from ..ops.join import concatenate, stack
from ..ops.logical import equal
from ..ops.reduce import argmax
from ..ops.where import where
from ..transform.scan import scan
from .inputs import find_axis_name
from .settings import check_int

__all__ = ["Generated", "generate"]

Extend: TypeAlias = Callable[[Any, NamedArray, NamedArray | None], tuple[Any, NamedArray]]
Choose: TypeAlias = Callable[[NamedArray, NamedArray | None, jax.Array | None], NamedArray]


class Generated(eqx.Module):
    """The result of `generate`, with all that a further call needs.

    Attributes:
        tokens: the new tokens, padded behind a stop token; axes {New, ...}.
        count: how many of them are real, the stop token included; axes {...}.
        ended: whether a sequence has ended with a stop token; axes {...}.
        cache: the cache, with all tokens but the last.
        seen: how often each token has occurred, axes {Vocab, ...}; None unless you gave it.

    Examples:
        >>> Vocab, New = axn.make_axes(vocab=8, new=4)
        >>> after = lambda cache, tokens, count: (cache, axn.one_hot(tokens + 1, Vocab))  # a model that counts
        >>> out = axn.nn.generate(after, None, axn.named([1, 2], "pos"), New, stop=[4])
        >>> out.tokens.tolist(), out.count.item(), out.ended.item()
        ([3, 4, 0, 0], 2, True)
    """

    tokens: NamedArray
    count: NamedArray
    ended: NamedArray
    cache: Any
    seen: NamedArray | None


def generate(
    extend: Extend,
    cache: Any,
    prompt: NamedArray,
    New: Axis,
    *,
    choose: Choose | None = None,
    Pos: AxisSelector = "pos",
    Vocab: AxisSelector = "vocab",
    count: NamedArray | None = None,
    stop: Sequence[int] = (),
    pad: int = 0,
    seen: NamedArray | None = None,
    key: jax.Array | None = None,
) -> Generated:
    """Read a prompt, and choose as many tokens as `New` has, each from the logits that follow those before it.

    Call it under `named_jit`, which compiles once for each size of the prompt and of `New`. You may generate some
    tokens at a time, for long texts or to show tokens early. A further call then takes these arguments from the last
    result:

    - the prompt is the last token, `stack(Pos, [out.tokens[New, -1]])`;
    - the cache is `out.cache`, and `seen` is `out.seen`;
    - the count is `1 - out.ended`.

    Args:
        extend: a function of a cache, tokens and a count that returns the next cache and logits. Tokens have the axes
            {Pos, ...}, or {...} for one token of each sequence; the count says how many of them are real, axes {...},
            or is None. Logits have the axes {Vocab, ...}, and those of a prompt may have `Pos`.
        cache: for the prompt and all tokens.
        prompt: integers, axes {Pos, ...}.
        New: the axis of new tokens.
        choose: a function of logits {Vocab, ...}, `seen` and a key that returns tokens {...}; by default the most
            probable ones. See `sample`, and filters such as `keep_top_p`.
        Pos: the axis of positions.
        Vocab: the axis of tokens in logits.
        count: how many tokens of each prompt are real, integers over other axes of it; the rest is padding behind them.
            A sequence without any has ended. By default all are real.
        stop: tokens that end a sequence. The cache must have a length for each sequence then, as it must with `count`.
        pad: what follows a stop token.
        seen: how often each token has occurred so far, `bincount(prompt, Vocab, Pos)`: integers, axes {Vocab, ...}. It
            is counted on, and passed to `choose`.
        key: split into one for each token, for `choose`.

    Returns:
        New tokens, axes {New, ...}, and what a further call needs.

    Raises:
        AxisNotFoundError: if `prompt` lacks `Pos` or an axis of `count`, or logits lack `Vocab`.
        AxisClashError: if `prompt` has `New`.
        AxisSizeError: if `prompt` or `New` has no position.
        OperandError: if a count has no names, or `stop` is not a sequence.

    Examples:
        >>> Vocab, New = axn.make_axes(vocab=8, new=3)
        >>> after = lambda cache, tokens, count: (cache, axn.one_hot(tokens + 1, Vocab))  # a model that counts
        >>> axn.nn.generate(after, None, axn.named([1, 2], "pos"), New).tokens.tolist()
        [3, 4, 5]
    """
    pos = find_axis_name("generate", prompt, Pos)
    New = sized(New, "generate")
    rest = tuple(axis for axis in prompt.axes if axis.name != pos)
    _check_operands(prompt, New, count, pos)
    ends = _parse_stops(stop)
    # The first key is for the token that follows the prompt; the loop slices the others.
    keys: Any = [None] if key is None else jax.random.split(key, New.size)
    later: tuple[jax.Array, ...] = () if key is None else (keys[1:],)
    # A model without counts may assume that all tokens are real, and keep one length of the cache for all sequences.
    counts = bool(ends) or count is not None
    # Each sequence has its own number, also where one number was given for all: the loop carries it.
    real, ended = None, full(rest, False)
    if count is not None:
        real = count.broadcast_axis(rest).rearrange(rest)
        ended = equal(real, 0)

    def choose_next(
        logits: NamedArray, seen: NamedArray | None, ended: NamedArray, key: Any
    ) -> Any:
        token = argmax(logits, vocab) if choose is None else choose(logits, seen, key)
        # The carry of a loop keeps dtype and order of axes, whatever `choose` returns.
        token = where(ended, pad, token).astype(prompt.dtype).rearrange(rest)
        if seen is not None:
            once = one_hot(token, logits.resolve_axis(vocab), dtype=seen.dtype)
            seen = where(ended, seen, seen + once).rearrange(seen.axes)
        is_real = ~ended  # before the update: a stop token counts
        for end in ends:
            ended = ended | equal(token, end)
        return token, seen, ended, is_real

    def step(carry: Any, key: object = None) -> Any:
        cache, token, seen, ended, number = carry
        # A sequence that has ended feeds zero tokens: its padding must not enter the cache.
        cache, logits = extend(cache, token, (~ended).astype(int) if counts else None)
        token, seen, ended, is_real = choose_next(logits, seen, ended, key)
        return (cache, token, seen, ended, number + is_real), token

    # The prompt is read in one call. The last token is chosen but not fed, so the loop has one step less than `New`.
    cache, logits = extend(cache, prompt, real)
    vocab = find_axis_name("generate", logits, selector(Vocab, "generate")[0])
    if logits.has_axis(pos):
        logits = _take_last(logits, pos, real)
    first, seen, ended, is_real = choose_next(logits, seen, ended, keys[0])
    start = (cache, first, seen, ended, is_real.astype(int))
    (cache, _, seen, ended, number), others = scan(step, New.resize(New.size - 1))(start, *later)
    tokens = concatenate(New, [stack(New.resize(1), [first]), others])
    return Generated(tokens, number, ended, cache, seen)


def _take_last(logits: NamedArray, pos: str, real: NamedArray | None) -> NamedArray:
    """Return the logits of the last real token of each sequence, by default of the last token."""
    # A sequence without tokens has ended, so any logits do.
    return logits[pos, -1 if real is None else where(equal(real, 0), 0, real - 1)]


def _parse_stops(stop: object) -> tuple[int, ...]:
    """Return the stop tokens as Python ints."""
    if isinstance(stop, Iterable):
        return tuple(check_int("generate", "a stop token", token) for token in stop)
    problem = f"stop must be a sequence of tokens, not {type_text(stop)}"
    raise OperandError(message("generate", problem, hint="write stop=(token,) for one of them"))


def _check_operands(prompt: NamedArray, New: Axis, count: NamedArray | None, pos: str) -> None:
    """Check prompt, count and the axis of new tokens, which otherwise fail within the model."""
    if New.name in prompt.names:
        problem = f"the prompt has axis {New.name!r}, the axis of new tokens"
        there, hint = f"prompt has: {facts(prompt)}", "rename one of the two"
        raise AxisClashError(message("generate", problem, there, hint=hint))
    if prompt.axis_size(pos) == 0:
        problem = f"the prompt has no token to continue: {pos}=0"
        hint = "begin it with a token, such as the one that begins or ends a text"
        raise AxisSizeError(message("generate", problem, f"prompt has: {facts(prompt)}", hint=hint))
    if not New.size:
        problem = f"there is no token to choose: {New.name}={New.size}"
        raise AxisSizeError(message("generate", problem))
    if count is None:
        return
    if not isinstance(count, NamedArray):
        problem = f"count must be a NamedArray, not {type_text(count)}"
        raise OperandError(message("generate", problem, hint='axn.named([3, 5], "batch")'))
    for name in count.names:
        if name == pos or name not in prompt.names:
            problem = f"the count has axis {name!r}, along which there are no sequences"
            lines = f"count has: {facts(count)}", f"prompt has: {facts(prompt)}"
            raise AxisNotFoundError(message("generate", problem, *lines))
