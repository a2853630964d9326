"""Products in 8-bit floating point, with one scale for each operand."""

import functools
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from ..engine import kernels
from ..errors import ArgumentError, message
from ..layout.tracing import INLINE
from ..nn.layer import Made
from .overwrite import OverwriteWithGradient
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

__all__ = ["Fp8CurrentDotGeneral", "Fp8DotGeneral"]

Histories: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]


class Fp8DotGeneral(OverwriteWithGradient, Made):
    """Multiply in 8-bit floating point with delayed scaling: recent steps set the scales.

    Both operands are rounded to e4m3, and in the backward pass the gradient of the product to e5m2. Before rounding,
    each operand is divided by a scale that maps the largest magnitude of its history to the largest number of the
    format; larger values, infinity included, are clipped. Sums are in float32. An empty history gives the scale 1, so
    that the first step is coarse.

    The state is updated by differentiation: the gradient of a history is the history after the step, see
    `partition_for_grad_overwrite`. Under `vmap`, all elements of a batch count as one array. Use each state for only
    one product per gradient: gradients of several products would be added up. There are no forward-mode or second
    derivatives.

    Attributes:
        input_amax_history: the largest magnitudes of left operands, the latest first; zero stands for none.
        kernel_amax_history: the same of right operands.
        output_grad_amax_history: the same of gradients of the product.

    Examples:
        >>> dot = axn.quant.Fp8DotGeneral.init(amax_history_length=4)
        >>> dot(jnp.ones((2, 3)), jnp.ones((3, 1)), (((1,), (0,)), ((), ()))).round()
        Array([[3.],
               [3.]], dtype=float32)

    Reference:
        Micikevicius et al. (2022), FP8 formats for deep learning.
    """

    input_amax_history: jax.Array
    kernel_amax_history: jax.Array
    output_grad_amax_history: jax.Array

    @classmethod
    def init(cls, amax_history_length: int = 1024) -> Self:
        """Make an empty state with a history of this many steps.

        Args:
            amax_history_length: the number of steps; a scale falls only when the largest magnitude is older.

        Raises:
            ArgumentError: if the number is not positive.
        """
        if amax_history_length < 1:
            problem = f"amax_history_length must be at least 1 step, not {amax_history_length}"
            raise ArgumentError(message("Fp8DotGeneral.init", problem))
        return cls(
            *(kernels.run(functools.partial(jnp.full, amax_history_length), 0.0) for _ in range(3))
        )

    def __call__(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: Sequence[Sequence[Sequence[int]]],
        precision: PrecisionLike = None,
        preferred_element_type: DTypeLike | None = None,
    ) -> jax.Array:
        """Multiply like `jax.lax.dot_general`; `precision` is ignored."""
        histories = (
            self.input_amax_history,
            self.kernel_amax_history,
            self.output_grad_amax_history,
        )
        return _multiply(histories, lhs, rhs, dimension_numbers, preferred_element_type)


class Fp8CurrentDotGeneral(eqx.Module):
    """Multiply in 8-bit floating point with current scaling: each array sets its own scale.

    Unlike `Fp8DotGeneral`, it has no state and no coarse first step, and clips nothing. But it reads each array once
    more, for its largest magnitude, before it rounds the array.

    Examples:
        >>> dot = axn.quant.Fp8CurrentDotGeneral()
        >>> dot(jnp.ones((2, 3)), jnp.ones((3, 1)), (((1,), (0,)), ((), ()))).round()
        Array([[3.],
               [3.]], dtype=float32)
    """

    def __call__(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: Sequence[Sequence[Sequence[int]]],
        precision: PrecisionLike = None,
        preferred_element_type: DTypeLike | None = None,
    ) -> jax.Array:
        """Multiply like `jax.lax.dot_general`; `precision` is ignored."""
        return _multiply(None, lhs, rhs, dimension_numbers, preferred_element_type)


def _multiply(
    histories: Histories | None,
    lhs: jax.Array,
    rhs: jax.Array,
    numbers: Sequence[Sequence[Sequence[int]]],
    dtype: DTypeLike | None,
) -> jax.Array:
    # Gradients have the dtypes of the operands after they were made alike: the cast before has its own transpose.
    lhs, rhs = make_alike(lhs, rhs)
    dtypes = check_dtypes(lhs, rhs, dtype)
    product: jax.Array = _multiply_at_once(histories, lhs, rhs, make_hashable(numbers), dtypes)
    return product


# Outside of a program, it is one of its own: step by step, constants would move to the device at each call.
@functools.partial(jax.jit, static_argnums=(3, 4), inline=INLINE)
def _multiply_at_once(
    histories: Histories | None,
    lhs: jax.Array,
    rhs: jax.Array,
    numbers: DimensionNumbers,
    dtypes: Dtypes,
) -> Any:
    return _product(histories, lhs, rhs, numbers, dtypes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _product(
    histories: Histories | None,
    lhs: jax.Array,
    rhs: jax.Array,
    numbers: DimensionNumbers,
    dtypes: Dtypes,
) -> Any:
    return _forward(histories, lhs, rhs, numbers, dtypes)[0]


def _forward(
    histories: Histories | None,
    lhs: jax.Array,
    rhs: jax.Array,
    numbers: DimensionNumbers,
    dtypes: Dtypes,
) -> Any:
    history_left, history_right, history_gradient = histories or (None, None, None)
    left, after_left = _quantize(lhs, jnp.float8_e4m3fn, history_left)
    right, after_right = _quantize(rhs, jnp.float8_e4m3fn, history_right)
    product = _dequantizing_dot(left, right, numbers).astype(dtypes[2])
    return product, (left, right, after_left, after_right, history_gradient)


def _backward(numbers: DimensionNumbers, dtypes: Any, residuals: Any, gradient: jax.Array) -> Any:
    left, right, after_left, after_right, history = residuals
    # The histories of the operands are their own "gradients", and known since the forward pass.
    scaled, after = _quantize(gradient, jnp.float8_e5m2, history)
    d_lhs = cotangent(_dequantizing_dot, scaled, right, numbers, of_left=True).astype(dtypes[0])
    d_rhs = cotangent(_dequantizing_dot, scaled, left, numbers, of_left=False).astype(dtypes[1])
    if history is None:
        return None, d_lhs, d_rhs
    return (after_left, after_right, after), d_lhs, d_rhs


_product.defvjp(_forward, _backward)


def _dequantizing_dot(left: Scaled, right: Scaled, numbers: DimensionNumbers) -> jax.Array:
    # One scale for each operand, so that it can leave the sum: hardware multiplies the 8-bit numbers as they are.
    product = lax.dot_general(
        left.values, right.values, numbers, preferred_element_type=jnp.float32
    )
    return product * (left.scale * right.scale)


def _quantize(
    x: jax.Array, dtype: Any, history: jax.Array | None
) -> tuple[Scaled, jax.Array | None]:
    """Round an array to 8 bits, and return its updated history."""
    x = once_differentiable(x)
    seen, history = lax.stop_gradient((x, history))
    limit = float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]  # of jax
    if history is None:
        magnitude = largest = jnp.abs(seen).max(initial=0).astype(jnp.float32)
    else:
        magnitude = _find_magnitude(seen, history)
        largest = history.max().astype(jnp.float32)
        history = _record(history, magnitude)

    scale = largest / limit
    # Zero, as in an empty history, or a subnormal number, which devices may flush to zero.
    scale = jnp.where(scale < np.finfo(np.float32).tiny, 1.0, scale)
    # These formats do not saturate: values that are too large become infinite or NaN.
    values = jnp.clip(divide(x, scale), -limit, limit).astype(dtype)
    return Scaled(values, scale), history


@jax.custom_batching.custom_vmap
def _find_magnitude(x: jax.Array, history: jax.Array) -> jax.Array:
    """Return the largest magnitude in `x` for each history; leading dimensions of `history` are also those of `x`."""
    return jnp.abs(x).max(range(history.ndim - 1, x.ndim), initial=0).astype(jnp.float32)


@_find_magnitude.def_vmap
def _(
    size: int, batched: tuple[bool, bool], x: jax.Array, history: jax.Array
) -> tuple[jax.Array, bool]:
    if batched[1]:  # each element of the batch has a history of its own, as layers of a `Stacked`
        if not batched[0]:
            x = jnp.broadcast_to(x, (size, *x.shape))
        return _find_magnitude(x, history), True
    # One maximum for the whole batch: autodiff would add up the states of its elements.
    return _find_magnitude(jnp.moveaxis(x, 0, history.ndim - 1), history), False


def _record(history: jax.Array, magnitude: jax.Array) -> jax.Array:
    """Put a magnitude at the front of a history; an infinite one would spoil the scales of all later steps."""
    # Blocks of a shard_map share one replicated state.
    if differing := tuple(jax.typeof(magnitude).mat.varying - jax.typeof(history).mat.varying):
        magnitude = lax.pmax(magnitude, differing)
    latest = magnitude.astype(history.dtype)  # which may overflow
    return jnp.concatenate([jnp.where(jnp.isfinite(latest), latest, 0)[None], history[:-1]])
