"""Split keys over axes, and fold numbers into them."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import AxisSpec
from ..base.calls import explain_calls
from ..engine import batched
from ..engine.core import Core, Operand
from .draw import Key, draw, one_key

__all__ = [
    "fold_in",
    "split",
]

Shape: TypeAlias = tuple[int, ...]
Dtype: TypeAlias = DTypeLike | None


def split(key: Key, axis: AxisSpec) -> NamedArray:
    """Split a key into keys over one or more axes; `axn.vmap` and `axn.scan` pass one to each position.

    If the keys are an argument of their own, the function gets a plain key, which `jax.random` takes too.

    Args:
        key: the key; legacy keys, which are vectors of integers, become typed keys.
        axis: the axes over which to split, with their sizes.

    Returns:
        Keys with these axes.

    Examples:
        >>> Layers, Embed = axn.make_axes(layers=2, embed=3)
        >>> keys = axn.random.split(jax.random.key(0), Layers)
        >>> axn.vmap(lambda key: axn.random.normal(key, Embed), Layers)(keys).axes
        (Axis(name='layers', size=2), Axis(name='embed', size=3))
    """
    return draw(_split, _convert_key("split", key), axis)


def _split(key: jax.Array, *, shape: Shape) -> jax.Array:
    return jax.random.split(key, shape)


def fold_in(key: Key, data: Operand) -> NamedArray:
    """Make a new key for each number of `data`.

    Args:
        key: a key, or a named array of keys.
        data: an integer, or a named array of integers; its axes are matched with those of `key` by name.

    Returns:
        Keys with the axes of both.

    Examples:
        >>> axn.random.fold_in(jax.random.key(0), axn.arange(axn.Axis("step", 3))).shape
        {'step': 3}
    """
    key = _convert_key("fold_in", key)
    if not isinstance(key, Core) and not isinstance(data, Core) and not jnp.ndim(data):
        key = NamedArray(key, ())
    return batched.apply_batched(_fold_in, [key, data], [(), ()], (), each=True)


def _fold_in(key: jax.Array, data: jax.Array) -> jax.Array:
    return jax.random.fold_in(key, data)


def _convert_key(function: str, key: Key) -> Key:
    """Convert a legacy key, a vector of integers, to a typed key."""
    if isinstance(key, Core) or jnp.issubdtype(one_key(function, key).dtype, jax.dtypes.prng_key):
        return key
    typed: jax.Array = jax.random.wrap_key_data(jnp.asarray(key))
    return typed


explain_calls(globals(), __all__)
