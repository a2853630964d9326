"""Stochastic rounding, so that weights in a narrow dtype follow updates that are smaller than their spacing."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .. import random
from ..array import NamedArray
from ..axis import Axis
from ..engine import pointwise
from ..engine.core import shape_of
from ..errors import OperandError, message

__all__ = ["stochastic_round"]


def stochastic_round(x: Any, dtype: DTypeLike, *, key: jax.Array) -> Any:
    """Round each element up or down at random to a narrower floating dtype, without changing the expectation.

    The nearer neighbour is more likely. So many updates, each less than half the distance between neighbours, move a
    bfloat16 weight by their sum, on average; rounding to nearest would never move it. Numbers of the dtype stay the
    same, and so do infinities and NaN. The derivative is that of a cast, which is the derivative of the expectation.

    Args:
        x: a NamedArray or an array, float32.
        dtype: a narrower floating dtype, such as bfloat16, float16 or one of 8 bits.
        key: for the draw, which does not depend on the layout.

    Raises:
        OperandError: if `x` is not float32, or `dtype` is not a narrower floating dtype.

    Reference:
        Gupta et al. (2015), Deep learning with limited numerical precision.

    Examples:
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
    # Anonymous dimensions get names here, since the draw is by name, and lose them again.
    if not isinstance(x, NamedArray):
        return stochastic_round(NamedArray(x, ()), dtype, key=key).array
    shape = shape_of("stochastic_round", x.array, x.names)
    anonymous = tuple(
        Axis(f"anonymous {i}", size) for i, size in enumerate(shape[: len(shape) - len(x.names)])
    )
    drawn = random.uniform(key, (*anonymous, *x.axes))
    return pointwise.nary(
        _stochastic_round, x, drawn.untag(*(axis.name for axis in anonymous)), dtype=narrow
    )


def _stochastic_round(x: jax.Array, drawn: jax.Array, *, dtype: Any) -> jax.Array:
    """Round up or down by random numbers from 0 to 1."""
    rounded: jax.Array = _round(x, drawn, dtype)
    return rounded


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _round(x: jax.Array, drawn: jax.Array, dtype: Any) -> jax.Array:
    kind = jnp.finfo(dtype)  # type: ignore[no-untyped-call]  # of jax
    # The unit in the last place is a power of two: all steps, including the cast, are exact.
    unit = jnp.maximum(jnp.frexp(x)[1] - 1, int(kind.minexp)) - kind.nmant
    units = jnp.ldexp(x, -unit)
    below = jnp.floor(units)
    rounded = jnp.ldexp(below + (drawn < units - below).astype(below.dtype), unit)
    nearest, largest = x.astype(dtype), float(kind.max)
    # The largest number has no next one.
    inside = jnp.clip(rounded, -largest, largest).astype(dtype)
    return jnp.where(jnp.isfinite(nearest), inside, nearest)


@_round.defjvp
def _(
    dtype: Any, primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    # JAX would give each step the derivative zero.
    return _round(*primals, dtype), tangents[0].astype(dtype)
