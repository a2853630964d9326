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
    check_dtypes,
    cotangent,
    divide,
    make_alike,
    make_hashable,
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

    Examples:
        >>> dot = axn.quant.Int8DotGeneral()
        >>> dot(jnp.array([[1.0, -0.5]]), jnp.ones((2, 1)), (((1,), (0,)), ((), ()))).round(2).tolist()
        [[0.5]]

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
        lhs, rhs = make_alike(lhs, rhs)
        options = (
            make_hashable(dimension_numbers),
            precision,
            check_dtypes(lhs, rhs, preferred_element_type),
        )
        product: jax.Array = _multiply_at_once(lhs, rhs, *options)
        return product


# Outside of a program, it is one of its own: step by step, constants would move to the device at each call.
@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=INLINE)
def _multiply_at_once(
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
    left, right = _quantize(lhs, numbers[0][0]), _quantize(rhs, numbers[0][1])
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
    # Kept as 8 bits, residuals take a quarter of the memory of the operands.
    left, right = (x.restore().astype(gradient.dtype) for x in residuals)
    multiply = functools.partial(lax.dot_general, precision=precision)
    d_lhs = cotangent(multiply, gradient, right, numbers, of_left=True)
    d_rhs = cotangent(multiply, gradient, left, numbers, of_left=False)
    return d_lhs.astype(dtypes[0]), d_rhs.astype(dtypes[1])


_product.defvjp(_forward, _backward)


def _quantize(x: jax.Array, summed: tuple[int, ...]) -> Scaled:
    """Round an array to 8 bits, with a scale for each position along the dimensions that are not summed over."""
    scale = jnp.abs(x).max(summed, keepdims=True, initial=0).astype(jnp.float32) / _LIMIT
    # Rows of zeros have no scale; devices may flush a subnormal one to zero.
    scale = jnp.where(scale < np.finfo(np.float32).tiny, 1.0, scale)
    return Scaled(jnp.clip(jnp.round(divide(x, scale)), -_LIMIT, _LIMIT).astype(jnp.int8), scale)
