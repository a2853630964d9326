"""Products in 8-bit integers."""

import functools
from collections.abc import Sequence
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from ..layout.tracing import INLINE
from .product import (
    DimensionNumbers,
    Dtypes,
    Scaled,
    alike,
    cotangent,
    divided,
    dtypes_of,
    hashable,
    once_differentiable,
)

__all__ = ["Int8DotGeneral"]

Residuals: TypeAlias = tuple[Scaled, Scaled]

_LIMIT = 127  # symmetric: -128 has no counterpart


class Int8DotGeneral(eqx.Module):
    """Multiply in 8-bit integers, and accumulate in 32-bit ones.

    Each operand is divided by a scale that maps its largest magnitude to 127, and rounded. There is one scale for each
    position along the dimensions that are not summed over, such as each token and each output of a layer. There is no
    state.

    The gradient is the straight-through estimate: the backward pass multiplies by the rounded operands, kept as 8-bit
    integers, in the dtype of the gradient. There are no forward-mode or second derivatives.

    Reference:
        Jacob et al. (2018), Quantization and training of neural networks for efficient integer-arithmetic-only
        inference.
    """

    def __call__(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: Sequence[Sequence[Sequence[int]]],
        precision: PrecisionLike = None,
        preferred_element_type: DTypeLike | None = None,
    ) -> jax.Array:
        """Multiply like `jax.lax.dot_general`; `precision` affects only the backward pass."""
        lhs, rhs = alike(lhs, rhs)
        options = (
            hashable(dimension_numbers),
            precision,
            dtypes_of(lhs, rhs, preferred_element_type),
        )
        product: jax.Array = _compiled(lhs, rhs, *options)
        return product


# Outside of a program, it is one of its own: step by step, constants would move to the device at each call.
@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=INLINE)
def _compiled(
    lhs: jax.Array,
    rhs: jax.Array,
    numbers: DimensionNumbers,
    precision: PrecisionLike,
    dtypes: Dtypes,
) -> jax.Array:
    return _product(lhs, rhs, numbers, precision, dtypes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _product(
    lhs: jax.Array,
    rhs: jax.Array,
    numbers: DimensionNumbers,
    precision: PrecisionLike,
    dtypes: Dtypes,
) -> jax.Array:
    product, _ = _forward(lhs, rhs, numbers, precision, dtypes)
    return product


def _forward(
    lhs: jax.Array,
    rhs: jax.Array,
    numbers: DimensionNumbers,
    precision: PrecisionLike,
    dtypes: Dtypes,
) -> tuple[jax.Array, Residuals]:
    lhs, rhs = once_differentiable(lhs), once_differentiable(rhs)
    left, right = _quantized(lhs, numbers[0][0]), _quantized(rhs, numbers[0][1])
    product = lax.dot_general(left.values, right.values, numbers, preferred_element_type=jnp.int32)
    # The scales have size 1 along the summed dimensions, so this sums over nothing.
    scale = lax.dot_general(left.scale, right.scale, numbers, precision=lax.Precision.HIGHEST)
    return (product.astype(scale.dtype) * scale).astype(dtypes[2]), (left, right)


def _backward(
    numbers: DimensionNumbers,
    precision: PrecisionLike,
    dtypes: Dtypes,
    residuals: Residuals,
    gradient: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    left, right = (x.restored().astype(gradient.dtype) for x in residuals)
    multiply = functools.partial(lax.dot_general, precision=precision)
    d_lhs = cotangent(multiply, gradient, right, numbers, of_left=True)
    d_rhs = cotangent(multiply, gradient, left, numbers, of_left=False)
    return d_lhs.astype(dtypes[0]), d_rhs.astype(dtypes[1])


_product.defvjp(_forward, _backward)


def _quantized(x: jax.Array, summed: tuple[int, ...]) -> Scaled:
    """Round an array to 8 bits, with a scale for each position along the dimensions that are not summed over."""
    scale = jnp.abs(x).max(summed, keepdims=True, initial=0).astype(jnp.float32) / _LIMIT
    scale = jnp.where(scale < np.finfo(np.float32).tiny, 1.0, scale)
    return Scaled(jnp.clip(jnp.round(divided(x, scale)), -_LIMIT, _LIMIT).astype(jnp.int8), scale)
