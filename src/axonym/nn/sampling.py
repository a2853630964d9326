"""Choose the next token from logits: filters that rule tokens out, a penalty on repeating them, and the draw.

A filter gives logits of minus infinity to the tokens that it rules out, so filters are applied one after another.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from ..array import NamedArray, named
from ..axis import AxisSelector
from ..base.dtypes import widen
from ..engine import checks
from ..engine.batched import apply_batched
from ..engine.core import Core, facts
from ..errors import ArgumentError, OperandError, message
from ..faults.sorted_positions import mark_varying_like
from ..ops.elementwise import exp, stop_gradient
from ..ops.reduce import argmax
from ..ops.softmax import softmax
from ..ops.sorting import top_k
from ..ops.where import where
from ..random import categorical
from .inputs import find_axis_name
from .settings import as_python, check_int

__all__ = ["keep_min_p", "keep_top_k", "keep_top_p", "penalize_repetition", "sample"]

Number: TypeAlias = float | jax.Array | NamedArray

# A division by smaller temperatures makes logits infinite, which tie.
_COLDEST = 1e-30


def keep_top_k(logits: NamedArray, Vocab: AxisSelector, k: int) -> NamedArray:
    """Rule out all but the `k` most probable tokens, and those as probable as the last of them.

    Args:
        logits: axes {Vocab, ...}.
        Vocab: the axis of tokens.
        k: the number of tokens to keep, a static int; more than there are tokens keeps all.

    Returns:
        The logits, with minus infinity for tokens that are ruled out.

    Raises:
        ArgumentError: if `k` is not an int of at least one.

    Examples:
        >>> axn.nn.keep_top_k(axn.named([1.0, 3.0, 2.0], "vocab"), "vocab", 2).tolist()
        [-inf, 3.0, 2.0]
    """
    name = find_axis_name("keep_top_k", logits, Vocab)
    k = min(check_int("keep_top_k", "k", k, least=1), logits.axis_size(name))
    return _rule_out_below(logits, top_k(logits, name, k)[0][name, -1])


def keep_top_p(logits: NamedArray, Vocab: AxisSelector, p: Number) -> NamedArray:
    """Rule out all but the most probable tokens whose probabilities sum to at least `p`, as few as possible.

    Tokens as probable as the last of them stay, too. Along a split axis, devices add up probabilities, and gather no
    logits.

    Args:
        logits: axes {Vocab, ...}.
        Vocab: the axis of tokens.
        p: above 0, up to 1, which keeps all; may be traced, and have axes of `logits` such as batch.

    Returns:
        The logits, with minus infinity for tokens that are ruled out.

    Raises:
        ArgumentError: if `p` is a number out of range.

    Examples:
        >>> logits = axn.log(axn.named([0.5, 0.2, 0.3], "vocab"))
        >>> axn.isfinite(axn.nn.keep_top_p(logits, "vocab", 0.7)).tolist()
        [True, False, True]

    Reference:
        Holtzman et al. (2019), The curious case of neural text degeneration, section 3.1 (nucleus sampling).
    """
    name = find_axis_name("keep_top_p", logits, Vocab)
    _check_range("keep_top_p", "p", p, 0, 1, open_below=True)
    # In narrow dtypes, sums of many small probabilities would stop growing.
    wide = stop_gradient(widen(logits))
    # By the least logit that stays, not by position: tokens with equal logits stay or go together.
    least = apply_batched(_find_least, [wide, softmax(wide, name), p], [name, name, ()], ())
    return _rule_out_below(logits, least)


def keep_min_p(logits: NamedArray, Vocab: AxisSelector, min_p: Number) -> NamedArray:
    """Rule out tokens that are less probable than `min_p` times the most probable one.

    Args:
        logits: axes {Vocab, ...}.
        Vocab: the axis of tokens.
        min_p: from 0, which keeps all, to 1; may be traced, and have axes of `logits` such as batch.

    Returns:
        The logits, with minus infinity for tokens that are ruled out.

    Raises:
        ArgumentError: if `min_p` is a number out of range.

    Examples:
        >>> logits = axn.log(axn.named([0.6, 0.1, 0.3], "vocab"))
        >>> axn.isfinite(axn.nn.keep_min_p(logits, "vocab", 0.4)).tolist()
        [True, False, True]

    Reference:
        Nguyen et al. (2024), Turning up the heat: min-p sampling for creative and coherent LLM outputs.
    """
    name = find_axis_name("keep_min_p", logits, Vocab)
    _check_range("keep_min_p", "min_p", min_p, 0, 1)
    wide = widen(logits)
    # Ratios to the largest probability need no sum over the tokens.
    shares = exp(wide - wide.max(name))
    return where(shares < min_p, -jnp.inf, logits)


def penalize_repetition(logits: NamedArray, seen: NamedArray, penalty: Number) -> NamedArray:
    """Divide positive logits of tokens that have occurred by `penalty`, and multiply negative ones by it.

    Args:
        logits: axes {...}, that of tokens among them.
        seen: whether each token has occurred, or how often: booleans or integers, axes among those of `logits`.
        penalty: positive; 1 changes nothing; may be traced, and have axes of `logits` such as batch.

    Returns:
        The logits, of the same dtype.

    Raises:
        ArgumentError: if `penalty` is a number, and not positive.
        OperandError: if `seen` has floats, such as probabilities.

    Examples:
        >>> Vocab = axn.Axis("vocab", 3)
        >>> seen = axn.bincount(axn.named([0, 2], "pos"), Vocab)
        >>> axn.nn.penalize_repetition(axn.named([2.0, 1.0, -1.0], Vocab), seen, 2.0).tolist()
        [1.0, 1.0, -2.0]

    Reference:
        Keskar et al. (2019), CTRL: a conditional transformer language model for controllable generation, section 4.1.
    """
    function = "penalize_repetition"
    for x in (logits, seen):
        if not isinstance(x, Core):
            raise checks.no_names(function, x)
    if jnp.issubdtype(seen.dtype, jnp.inexact):
        problem = f"seen must be booleans or counts, not {seen.dtype}"
        hint = 'axn.bincount(tokens, Vocab, "pos") counts tokens'
        raise OperandError(message(function, problem, f"seen has: {facts(seen)}", hint=hint))
    _check_range(function, "penalty", penalty, 0, jnp.inf, open_below=True)
    # A product alone would make tokens with positive logits more probable.
    changed = where(logits > 0, logits / penalty, logits * penalty)
    has_occurred = seen if seen.dtype == jnp.bool_ else seen > 0
    return where(has_occurred, changed, logits).astype(logits.dtype)


def sample(
    logits: NamedArray,
    Vocab: AxisSelector,
    temperature: Number = 1.0,
    *,
    key: jax.Array | None = None,
) -> NamedArray:
    """Draw a token with probabilities `softmax(logits / temperature)`; the most probable one at temperature 0.

    Args:
        logits: axes {Vocab, ...}.
        Vocab: the axis of tokens.
        temperature: at least 0; may be traced, and have axes of `logits` such as batch.
        key: for the draw; not needed for a temperature that is the number 0.

    Returns:
        Integers, the axes of `logits` without `Vocab`.

    Raises:
        ArgumentError: if `temperature` is a number, and negative.
        OperandError: without a key.

    Examples:
        >>> logits = axn.named([[1.0, 3.0, 2.0], [5.0, 0.0, 0.0]], ("batch", "vocab"))
        >>> axn.nn.sample(logits, "vocab", temperature=0).tolist()
        [1, 0]
        >>> axn.nn.sample(axn.nn.keep_top_k(logits, "vocab", 1), "vocab", key=jax.random.key(0)).tolist()
        [1, 0]
    """
    name = find_axis_name("sample", logits, Vocab)
    _check_range("sample", "temperature", temperature, 0, jnp.inf)
    best, temperature = argmax(logits, name), as_python(temperature)
    wide = widen(logits)
    is_number = isinstance(temperature, int | float)
    if is_number and temperature < _COLDEST:
        return best
    if key is None:
        hint = "pass key=..., or temperature=0 for the most probable token"
        raise OperandError(message("sample", "a draw needs a key", hint=hint))
    if is_number:
        return categorical(key, wide / temperature, name).astype(best.dtype)
    if not isinstance(temperature, NamedArray):  # a traced number
        temperature = named(temperature, ())
    is_warm = temperature >= _COLDEST
    # Both are computed, since a traced temperature is unknown. Without the 1.0, cold rows would have NaN.
    token = categorical(key, wide / where(is_warm, temperature, 1.0), name)
    return where(is_warm, token.astype(best.dtype), best)


# How many bits of a logit are found at a time: four take 15 sums over all tokens.
_DIGIT = 4


def _find_least(logits: jax.Array, probabilities: jax.Array, p: jax.Array | float) -> jax.Array:
    """Return the largest logit that has, with all larger ones, a probability of at least `p`; along the last dimension.

    The bits of floats, as integers, have the order of the floats, once those of negative ones are inverted. From the
    first to the last, each digit is as large as sums of probabilities let it be. A sort would gather a split axis, and
    takes longer on one device, too.
    """
    bits = 8 * logits.dtype.itemsize
    unsigned = jnp.dtype(f"uint{bits}")
    sign = unsigned.type(1 << (bits - 1))
    pattern = lax.bitcast_convert_type(logits, unsigned)
    ranks = jnp.where(pattern < sign, pattern | sign, ~pattern)
    digits = jnp.arange(1, 1 << _DIGIT, dtype=unsigned)
    p = jnp.asarray(p)
    if p.ndim:  # as many dimensions as the sums have, since JAX may be told to add none
        p = lax.expand_dims(p, range(ranks.ndim - 1 - p.ndim))

    def find_digit(i: jax.Array, found: jax.Array) -> jax.Array:
        shift = (bits - _DIGIT * (i + 1)).astype(unsigned)

        def is_enough(digit: jax.Array) -> jax.Array:
            is_above = ranks >= jnp.expand_dims(found + (digit << shift), -1)
            # Rounded sums may reach one before the last token.
            return (jnp.where(is_above, probabilities, 0).sum(-1) >= p) & (p < 1)

        return found + (jax.vmap(is_enough)(digits).sum(0, dtype=unsigned) << shift)

    largest = ranks.max(-1)
    start = mark_varying_like(jnp.zeros_like(largest), logits, p)
    # The most probable token stays for any `p`.
    found = jnp.minimum(lax.fori_loop(0, bits // _DIGIT, find_digit, start), largest)
    return lax.bitcast_convert_type(jnp.where(found < sign, ~found, found ^ sign), logits.dtype)


def _rule_out_below(logits: NamedArray, least: NamedArray) -> NamedArray:
    """Rule out tokens with smaller logits; NaN stays, so that nobody takes it for a choice."""
    return where(widen(logits) < widen(least), -jnp.inf, logits)


def _check_range(
    function: str, what: str, value: object, least: float, most: float, *, open_below: bool = False
) -> None:
    """Raise for a number out of range. Arrays pass: to read their values would wait for the device."""
    value = as_python(value)
    if not isinstance(value, int | float):
        return
    if not least <= value <= most or (open_below and value == least):
        start = "above" if open_below else "at least"
        end = "" if most == jnp.inf else f" and at most {most}"
        raise ArgumentError(message(function, f"{what} must be {start} {least}{end}, not {value}"))
