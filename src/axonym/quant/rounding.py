"""Stochastic rounding."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .. import random
from ..array import NamedArray
from ..axis import Axis
from ..core import shape_of
from ..errors import OperandError, message
from ..ops import _lift

__all__ = ["stochastic_round"]


def stochastic_round(x: Any, dtype: DTypeLike, *, key: jax.Array) -> Any:
    """Round each element up or down to a number of a narrower floating dtype, at random, so that the expectation stays.

    Of the two neighbours of an element, the nearer one is the more likely. A weight in bfloat16 that gets many updates,
    each of less than half of the distance to its neighbour, then moves by their sum, where rounding to the nearest
    would never move it. Numbers of the dtype stay what they are, and so do infinities and NaN. The derivative is that
    of the expectation, as of a cast.

    Args:
        x: a NamedArray or an array, float32.
        dtype: a floating dtype that is narrower, such as bfloat16, float16 or one of 8 bits.
        key: for the draw, which does not depend on the layout.

    Raises:
        OperandError: if `x` is not float32, or `dtype` is no narrower floating dtype.

    Reference:
        Gupta et al. (2015), Deep learning with limited numerical precision.

    Example:
        >>> x = axn.full(axn.Axis("i", 10_000), 1 + 2**-10)
        >>> rounded = axn.quant.stochastic_round(x, jnp.bfloat16, key=jax.random.key(0))
        >>> sorted(set(rounded.tolist()))
        [1.0, 1.0078125]
    """
    narrow = jnp.dtype(dtype)
    array = x.array if isinstance(x, NamedArray) else x
    have = getattr(array, "dtype", type(x).__name__)
    if have != jnp.float32 or not jnp.issubdtype(narrow, jnp.floating) or narrow.itemsize >= 4:
        problem = f"rounds float32 to a narrower floating dtype, not {have} to {narrow}"
        raise OperandError(message("stochastic_round", problem))
    if not isinstance(x, NamedArray):
        return _stochastic_round(x, jax.random.uniform(key, x.shape), dtype=narrow)
    shape = shape_of("stochastic_round", x.array, x.names)
    anonymous = tuple(Axis(f"anonymous {i}", size) for i, size in enumerate(shape[: len(shape) - len(x.names)]))
    drawn = random.uniform(key, (*anonymous, *x.axes))
    return _lift.nary(_stochastic_round, x, drawn.untag(*(axis.name for axis in anonymous)), dtype=narrow)


def _stochastic_round(x: jax.Array, drawn: jax.Array, *, dtype: Any) -> jax.Array:
    """Round by numbers from 0 to 1."""
    rounded: jax.Array = _rounded(x, drawn, dtype)
    return rounded


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _rounded(x: jax.Array, drawn: jax.Array, dtype: Any) -> jax.Array:
    kind = jnp.finfo(dtype)  # type: ignore[no-untyped-call]  # of jax
    # The unit in the last place is a power of two: nothing before the cast is rounded, nor is the cast.
    unit = jnp.maximum(jnp.frexp(x)[1] - 1, int(kind.minexp)) - kind.nmant
    units = jnp.ldexp(x, -unit)
    below = jnp.floor(units)
    rounded = jnp.ldexp(below + (drawn < units - below), unit)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(dtype)


@_rounded.defjvp
def _(dtype: Any, primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    # Written out, each step of it would have no slope.
    return _rounded(*primals, dtype), tangents[0].astype(dtype)
