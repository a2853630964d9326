"""Softmax and standardisation over axes, which stay."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from ..axis import AxisSelection
from ..base.calls import explain_calls
from ..engine import pointwise, primitives, reduction
from ..engine.batched import hashable
from ..engine.core import Core, Operand, facts
from ..errors import OperandError, message
from . import reduce
from .cumulative import Positions

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["log_softmax", "softmax", "standardize"]


def log_softmax(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Return the logarithm of `softmax`, without overflow.

    Args:
        x: axes {axis, ...}.
        axis: one axis, or several; for all, write `x.names`. `jax.nn.log_softmax` takes the last one by default.
        where: axes among those of `x`; the elements to include; the others become minus infinity.

    Returns:
        The axes of `x`.

    Raises:
        OperandError: without an axis.

    Examples:
        >>> axn.log_softmax(axn.named([0.0, 0.0], "vocab"), "vocab").tolist()
        [-0.693..., -0.693...]
    """
    _check_chosen("log_softmax", x, axis)
    return reduction.normalization(jax.nn.log_softmax, x, axis, where)


def softmax(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Return exponentials divided by their sum over `axis`: positive numbers that sum to one.

    Args:
        x: axes {axis, ...}.
        axis: one axis, or several; for all, write `x.names`. `jax.nn.softmax` takes the last one by default.
        where: axes among those of `x`; the elements to include; the others become zero.

    Returns:
        The axes of `x`.

    Raises:
        OperandError: without an axis.

    Examples:
        >>> axn.softmax(axn.named([1.0, 1.0], "vocab"), "vocab").tolist()
        [0.5, 0.5]
    """
    _check_chosen("softmax", x, axis)
    return reduction.normalization(_softmax, x, axis, where)


def standardize(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    mean: Operand | None = None,
    variance: Operand | None = None,
    epsilon: float = 1e-5,
    where: Operand | None = None,
) -> "NamedArray":
    """Shift and scale elements so that over `axis` their mean is zero and their variance one.

    The variance is the mean of squared differences from the mean, in two passes, which avoids cancellation.

    Args:
        x: axes {axis, ...}.
        axis: one axis, or several; for all, write `x.names`.
        mean: the mean, if already known; axes among those of `x`.
        variance: the variance, if already known; axes among those of `x`.
        epsilon: a number added to the variance.
        where: axes among those of `x`; the elements to include in the mean and the variance.

    Returns:
        The axes of `x`.

    Raises:
        OperandError: without an axis.

    Examples:
        >>> axn.standardize(axn.named([1.0, 3.0], "embed"), "embed", epsilon=0).tolist()
        [-1.0, 1.0]
    """
    _check_chosen("standardize", x, axis)
    if mean is None and variance is None and isinstance(epsilon, int | float):
        return reduction.normalization(_standardize, x, axis, where, epsilon)
    # A mean or a variance that is known may lack or have any axes, so that this is a chain of operations by name.
    if axis is not None:
        axis = hashable(axis, "standardize")
    if mean is None:
        mean = reduce.mean(x, axis, where=where)
    if variance is None:
        variance = reduce.mean(pointwise.binary(_squared_distance, x, mean), axis, where=where)
    return pointwise.nary(_standardize, x, mean, variance, epsilon)


def _check_chosen(function: str, x: object, axis: AxisSelection | None) -> None:
    """Check that the axes to normalise over were given: over all axes, elements of a batch would affect each other."""
    if axis is not None or not isinstance(x, Core):
        return
    example = f'"{x.names[-1]}"' if x.names else "..."
    problem = "say over which axis: without one, elements of a batch would be normalised together"
    hint = f"write {function}(x, {example}); for all axes, {function}(x, x.names)"
    raise OperandError(message(function, problem, f"array has: {facts(x)}", hint=hint))


def _softmax(array: jax.Array, axis: Positions, where: jax.Array | None = None) -> jax.Array:
    # By position: JAX's own checks miscount a static keyword.
    result: jax.Array = _compute_softmax(array, axis, where)
    return result


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _compute_softmax(array: jax.Array, axis: Positions, where: jax.Array | None) -> jax.Array:
    if where is not None or not jnp.issubdtype(array.dtype, jnp.floating):
        return jax.nn.softmax(array, axis, where)
    # Exponentials of differences do not overflow, and the largest element cancels, so it has no gradient.
    highest = lax.stop_gradient(primitives.largest(array, axis))
    exponentials = lax.exp(primitives.subtract(array, highest))
    return primitives.divide(exponentials, primitives.total(exponentials, axis))


@_compute_softmax.defjvp
def _softmax_jvp(axis: Positions, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """For the backward pass, save only the result, which attention needs anyway, and not the exponentials."""
    array, where = primals
    result = _compute_softmax(array, axis, where)
    if where is None:
        return result, _change_softmax(result, tangents[0], axis)
    # Without the checkpoint, the backward pass would save the mask, too.
    change = jax.checkpoint(_change_masked, prevent_cse=False, static_argnums=2)
    return result, change(result, tangents[0], axis)


def _change_softmax(result: jax.Array, tangent: jax.Array, axis: Positions) -> jax.Array:
    weighted = primitives.multiply(result, tangent)
    shared = primitives.total(weighted, axis)
    return primitives.subtract(weighted, primitives.multiply(result, shared))


def _change_masked(result: jax.Array, tangent: jax.Array, axis: Positions) -> jax.Array:
    """Treat zeros as constants: their product with a tangent that is not finite would be NaN."""
    hidden = result == 0
    change = _change_softmax(result, jnp.where(hidden, 0, tangent), axis)
    return jnp.where(hidden, 0, change)


def _standardize(
    array: jax.Array,
    *numbers: ArrayLike,
    axis: Positions | None = None,
    where: jax.Array | None = None,
) -> jax.Array:
    """Standardize over axes, by an epsilon alone, or by a mean, a variance and an epsilon."""
    if axis is not None:
        return _standardize_over(array, *numbers, axis=axis, where=where)
    mean, variance, epsilon = numbers
    result: jax.Array = (array - mean) * lax.rsqrt(variance + epsilon)
    return result


def _standardize_over(
    array: jax.Array, epsilon: ArrayLike, *, axis: Positions, where: jax.Array | None
) -> jax.Array:
    # `jnp.var` would compute the mean again, and save the differences from it twice.
    dtype = array.dtype
    is_narrow = jnp.issubdtype(dtype, jnp.inexact) and dtype.itemsize < 4
    wide = array.astype(jnp.float32) if is_narrow else array

    centered = wide - jnp.mean(wide, axis, keepdims=True, where=where)
    variance = jnp.mean(_square_absolute(centered), axis, keepdims=True, where=where)
    # Not in float16, where a variance above 65504 overflows, as does the slope of the root near zero.
    result: jax.Array = centered * lax.rsqrt(variance + epsilon)
    return result.astype(dtype) if is_narrow else result


def _square_absolute(array: jax.Array) -> jax.Array:
    """Square absolute values without computing them: the absolute value of a complex number has no slope at zero."""
    return jnp.real(array * jnp.conj(array)) if jnp.iscomplexobj(array) else jnp.square(array)


def _squared_distance(array: jax.Array, mean: jax.Array) -> jax.Array:
    return jnp.square(jnp.abs(array - mean))


explain_calls(globals(), __all__)
