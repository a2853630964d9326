"""Internal. Dropout of attention weights by the index of each weight, so that blocks and devices make no difference.

The plain implementation and the loops over blocks call it. It must not know its caller: the arguments say where a part
of the weights begins, and how large the complete array is.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...array import NamedArray
from ...axis import Axis
from ...create import arange
from ...engine.core import wrap
from ...layout import tracing
from ...ops.where import where


def drop(
    weights: NamedArray,
    rate: float,
    key: jax.Array | None,
    starts: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> NamedArray:
    """Set weights to zero at random and scale up the others.

    Whether a weight is dropped depends on the key and on its index along each axis, in the order of the axes.

    Args:
        weights: any axes; that of keys is the last one.
        rate: the probability that a weight is dropped.
        key: for the draw.
        starts: the index of the first element along an axis, where these weights are a part of all; by default 0.
        sizes: the number of elements along an axis, where there are more than here.
    """
    if not rate or key is None:
        return weights
    keep = 1 - rate
    # Bits are compared as they are: numbers from 0 to 1 would first have to be made of them.
    bits = _draw_bits(weights, key, starts or {}, {**weights.shape, **(sizes or {})})
    kept = wrap(weights, bits < _find_bound(keep), weights.names)
    if keep:  # else all are dropped, and nothing is scaled
        weights = weights / keep
    return where(kept, weights, 0)


def _find_bound(keep: float) -> np.uint32:
    """Return the bound such that a share `keep` of all 32-bit numbers is below it."""
    return np.uint32(min(round(keep * 2**32), 2**32 - 1))


def _draw_bits(
    weights: NamedArray, key: jax.Array, starts: Mapping[str, Any], sizes: Mapping[str, int]
) -> jax.Array:
    """Draw 32 bits for each element: hash the hash of its row together with its index in the row."""
    # One hash of the key and the index of each weight would need wide integers: rows and columns are hashed in turn.
    shape = weights.array.shape
    anonymous = len(shape) - len(weights.names)
    indices: list[jax.Array] = [jnp.arange(size) for size in shape[:anonymous]]
    counts = list(shape)
    for at, name in enumerate(weights.names, start=anonymous):
        # By the name, so that each device draws for its part.
        indices.append(arange(Axis(name, shape[at])).array + starts.get(name, 0))
        counts[at] = sizes[name]

    # Modulo 2**32: of more rows, some that are far apart drop the same.
    *outer, in_row = indices
    rows = jnp.zeros((), jnp.uint32)
    for index, count in zip(outer, counts, strict=False):
        along = lax.expand_dims(index.astype(jnp.uint32), range(rows.ndim))
        rows = rows[..., None] * np.uint32(count % 2**32) + along

    # Other kinds of keys cannot all be folded many times at once.
    words = jax.random.bits(key, (2,), jnp.uint32)
    varying = set[str]().union(*map(tracing.varying_over, (weights.array, words, rows, in_row)))
    keys = jax.random.wrap_key_data(tracing.varying(words, varying), impl="threefry2x32")
    of_row: Any = functools.partial(jax.random.fold_in, keys)
    of_element: Any = jax.vmap(jax.random.fold_in, (None, 0))
    for _ in outer:
        of_row, of_element = jax.vmap(of_row), jax.vmap(of_element, (0, None))
    of_rows = of_row(tracing.varying(rows, varying))
    keys = of_element(of_rows, tracing.varying(in_row.astype(jnp.uint32), varying))
    bits: jax.Array = jax.random.key_data(keys)[..., 0]
    return bits
