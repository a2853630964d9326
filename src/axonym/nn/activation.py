"""Activation functions for named arrays; most are those of `jax.nn`. All but `glu` are elementwise.

They save memory in the backward pass: `relu` keeps only its result, which the next layer keeps anyway; functions whose
derivative needs several arrays keep only their input, and compute the rest again (see `from_inputs`). Parameters such
as `negative_slope` are operands of the compiled program, so another value does not compile another program.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..array import NamedArray
from ..axis import AxisSelector, shown
from ..base.calls import explain_calls
from ..engine import along, pointwise
from ..engine.core import facts
from ..engine.primitives import add, multiply, subtract
from ..errors import ArgumentError, AxisSizeError, message
from .recompute import from_inputs
from .settings import as_python, keeps_intermediates

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "mish",
    "quick_gelu",
    "relu",
    "relu6",
    "relu_squared",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
]


def celu(x: NamedArray, alpha: float = 1.0) -> NamedArray:
    """Return x if positive, else alpha * (exp(x / alpha) - 1), for each element.

    Examples:
        >>> axn.nn.celu(axn.named([-1.0, 2.0], "i")).tolist()
        [-0.632..., 2.0]
    """
    return pointwise.binary(_recompute(jax.nn.celu), x, as_python(alpha))


def elu(x: NamedArray, alpha: float = 1.0) -> NamedArray:
    """Return x if positive, else alpha * (exp(x) - 1), for each element.

    Examples:
        >>> axn.nn.elu(axn.named([-1.0, 2.0], "i")).tolist()
        [-0.632..., 2.0]
    """
    return pointwise.binary(_recompute(jax.nn.elu), x, as_python(alpha))


def gelu(x: NamedArray, approximate: bool = True) -> NamedArray:
    """Return x times the normal CDF of x, for each element.

    Args:
        x: any axes.
        approximate: whether to approximate the CDF by tanh, as GPT-2 does; the difference is at most 5e-4.

    Raises:
        ArgumentError: if `approximate` is neither true nor false.

    Reference:
        Hendrycks, Gimpel (2016), Gaussian error linear units.

    Examples:
        >>> axn.nn.gelu(axn.named([-1.0, 2.0], "i")).tolist()
        [-0.158..., 1.954...]
    """
    return pointwise.unary_with(_gelu, x, approximate=approximate)


def glu(x: NamedArray, axis: AxisSelector) -> NamedArray:
    """Multiply the first half of `x` along an axis by the sigmoid of the second half.

    Args:
        x: axes {axis, ...}.
        axis: the axis to halve, of an even size.

    Returns:
        The same axes, `axis` with half the size.

    Raises:
        AxisNotFoundError: if `x` lacks the axis.
        AxisSizeError: if the axis has an odd size.

    Reference:
        Dauphin et al. (2017), Language modeling with gated convolutional networks.

    Examples:
        >>> axn.nn.glu(axn.named([1.0, 2.0, 0.0, 0.0], "i"), "i").tolist()
        [0.5, 1.0]
    """
    # JAX's own error would name neither the axis nor the array. `along` checks what is not a named array.
    if isinstance(x, NamedArray) and x.axis_size(axis) % 2:
        problem = f"{shown(x.resolve_axis(axis))} cannot be split into two halves"
        raise AxisSizeError(message("glu", problem, f"array has: {facts(x)}"))
    return along.along(_recompute(jax.nn.glu), x, axis)


def hard_sigmoid(x: NamedArray) -> NamedArray:
    """Return relu6(x + 3) / 6, for each element.

    Examples:
        >>> axn.nn.hard_sigmoid(axn.named([-4.0, 0.0, 4.0], "i")).tolist()
        [0.0, 0.5, 1.0]
    """
    return pointwise.unary(jax.nn.hard_sigmoid, x)


def hard_silu(x: NamedArray) -> NamedArray:
    """Return x * hard_sigmoid(x), for each element.

    Examples:
        >>> axn.nn.hard_silu(axn.named([0.0, 4.0], "i")).tolist()
        [0.0, 4.0]
    """
    return pointwise.unary(_recompute(jax.nn.hard_silu), x)


def hard_tanh(x: NamedArray) -> NamedArray:
    """Return x, clipped to [-1, 1], for each element.

    Examples:
        >>> axn.nn.hard_tanh(axn.named([-4.0, 0.5, 4.0], "i")).tolist()
        [-1.0, 0.5, 1.0]
    """
    return pointwise.unary(_recompute(jax.nn.hard_tanh), x)


def leaky_relu(x: NamedArray, negative_slope: float = 0.01) -> NamedArray:
    """Return x if positive, else `negative_slope` times x, for each element.

    Examples:
        >>> axn.nn.leaky_relu(axn.named([-1.0, 2.0], "i"), 0.5).tolist()
        [-0.5, 2.0]
    """
    return pointwise.binary(jax.nn.leaky_relu, x, as_python(negative_slope))


def log1mexp(x: NamedArray) -> NamedArray:
    """Return log(1 - exp(-x)), for each element, without loss of precision near 0; x must be positive.

    Examples:
        >>> axn.nn.log1mexp(axn.named([2.0], "i")).tolist()
        [-0.145...]
    """
    return pointwise.unary(jax.nn.log1mexp, x)


def log_sigmoid(x: NamedArray) -> NamedArray:
    """Return log(sigmoid(x)), for each element.

    Examples:
        >>> axn.nn.log_sigmoid(axn.named([0.0, 2.0], "i")).tolist()
        [-0.693..., -0.126...]
    """
    return pointwise.unary(_recompute(jax.nn.log_sigmoid), x)


def mish(x: NamedArray) -> NamedArray:
    """Return x * tanh(softplus(x)), for each element.

    Examples:
        >>> axn.nn.mish(axn.named([-1.0, 2.0], "i")).tolist()
        [-0.303..., 1.943...]
    """
    return pointwise.unary(_recompute(jax.nn.mish), x)


def quick_gelu(x: NamedArray) -> NamedArray:
    """Return x * sigmoid(1.702 x), for each element.

    Examples:
        >>> axn.nn.quick_gelu(axn.named([-1.0, 2.0], "i")).tolist()
        [-0.154..., 1.935...]
    """
    return pointwise.unary(_recompute(_quick_gelu), x)


def relu(x: NamedArray) -> NamedArray:
    """Return max(x, 0), for each element.

    Examples:
        >>> axn.nn.relu(axn.named([-1.0, 2.0], "i")).tolist()
        [0.0, 2.0]
    """
    return pointwise.unary(_relu, x)


def relu6(x: NamedArray) -> NamedArray:
    """Return min(max(x, 0), 6), for each element.

    Examples:
        >>> axn.nn.relu6(axn.named([-1.0, 2.0, 9.0], "i")).tolist()
        [0.0, 2.0, 6.0]
    """
    return pointwise.unary(jax.nn.relu6, x)


def relu_squared(x: NamedArray) -> NamedArray:
    """Return max(x, 0) squared, for each element.

    Examples:
        >>> axn.nn.relu_squared(axn.named([-1.0, 3.0], "i")).tolist()
        [0.0, 9.0]
    """
    return pointwise.unary(_recompute(_relu_squared), x)


def selu(x: NamedArray) -> NamedArray:
    """Return 1.0507 * elu(x, 1.6733), for each element: with suitable weights, layers keep mean 0 and variance 1.

    Examples:
        >>> axn.nn.selu(axn.named([-1.0, 2.0], "i")).tolist()
        [-1.111..., 2.101...]
    """
    return pointwise.unary(_recompute(jax.nn.selu), x)


def sigmoid(x: NamedArray) -> NamedArray:
    """Return 1 / (1 + exp(-x)), for each element.

    Examples:
        >>> axn.nn.sigmoid(axn.named([-1.0, 0.0], "i")).tolist()
        [0.268..., 0.5]
    """
    return pointwise.unary(jax.nn.sigmoid, x)


def silu(x: NamedArray) -> NamedArray:
    """Return x * sigmoid(x), for each element.

    Examples:
        >>> axn.nn.silu(axn.named([-1.0, 2.0], "i")).tolist()
        [-0.268..., 1.761...]
    """
    return pointwise.unary(_silu, x)


def soft_sign(x: NamedArray) -> NamedArray:
    """Return x / (|x| + 1), for each element.

    Examples:
        >>> axn.nn.soft_sign(axn.named([-1.0, 0.0], "i")).tolist()
        [-0.5, 0.0]
    """
    return pointwise.unary(_recompute(jax.nn.soft_sign), x)


def softplus(x: NamedArray) -> NamedArray:
    """Return log(1 + exp(x)), for each element.

    Examples:
        >>> axn.nn.softplus(axn.named([0.0, 2.0], "i")).tolist()
        [0.693..., 2.126...]
    """
    return pointwise.unary(_recompute(jax.nn.softplus), x)


def sparse_plus(x: NamedArray) -> NamedArray:
    """Return 0 below -1, x above 1, and (x + 1)**2 / 4 between them, for each element.

    Examples:
        >>> axn.nn.sparse_plus(axn.named([-1.0, 0.0, 2.0], "i")).tolist()
        [0.0, 0.25, 2.0]
    """
    return pointwise.unary(_recompute(jax.nn.sparse_plus), x)


def sparse_sigmoid(x: NamedArray) -> NamedArray:
    """Return (x + 1) / 2, clipped to [0, 1], for each element: the derivative of `sparse_plus`.

    Examples:
        >>> axn.nn.sparse_sigmoid(axn.named([-1.0, 0.0, 2.0], "i")).tolist()
        [0.0, 0.5, 1.0]
    """
    return pointwise.unary(_recompute(jax.nn.sparse_sigmoid), x)


def squareplus(x: NamedArray, b: float = 4.0) -> NamedArray:
    """Return (x + sqrt(x**2 + b)) / 2, for each element.

    Examples:
        >>> axn.nn.squareplus(axn.named([-1.0, 0.0], "i")).tolist()
        [0.618..., 1.0]
    """
    return pointwise.binary(_recompute(jax.nn.squareplus), x, as_python(b))


# Cached: `pointwise` looks up kernels by function, and `from_inputs` returns another function in each call.
_recompute = lru_cache(None)(from_inputs)


def _gelu(x: jax.Array, approximate: bool) -> jax.Array:
    # Any string is true, even "none", which is a choice of torch.
    if approximate not in (True, False):
        raise ArgumentError(
            message("gelu", f"approximate must be True (tanh) or False, not {approximate!r}")
        )
    return _gelu_tanh(x) if approximate else _gelu_exact(x)


def _attach_slope(
    general: Callable[[jax.Array], jax.Array],
    fn: Callable[[jax.Array], jax.Array],
    slope: Callable[[jax.Array], jax.Array],
) -> Callable[[jax.Array], jax.Array]:
    """Give an elementwise function its derivative in closed form, so that the backward pass keeps only the input.

    The closed form has fewer equations than the derivative that JAX finds for a recomputed function.

    Args:
        general: the function of JAX, for integers and complex numbers.
        fn: the same function for floats, in primitives, which trace faster.
        slope: the derivative of `fn`.
    """

    def change(x: jax.Array, tangent: jax.Array) -> jax.Array:
        return multiply(tangent, slope(x))

    # A custom VJP would have no forward mode.
    differentiable: jax.custom_jvp[jax.Array] = jax.custom_jvp(fn)

    @differentiable.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        # The checkpoint keeps the arrays within the slope out of what the backward pass keeps.
        return differentiable(*primals), jax.checkpoint(change)(*primals, *tangents)

    @wraps(general)
    def run(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return general(x)
        if keeps_intermediates():
            return fn(x)
        return differentiable(x)

    return run


def _compute_gelu_tanh(x: jax.Array) -> jax.Array:
    """Compute x (1 + t) / 2, where t = tanh(u) and u = c (x + a x^3)."""
    inner = add(x, multiply(0.044715, lax.integer_pow(x, 3)))
    t = lax.tanh(multiply(math.sqrt(2 / math.pi), inner))
    return multiply(x, multiply(0.5, add(1, t)))


def _gelu_tanh_slope(x: jax.Array) -> jax.Array:
    """Differentiate x (1 + t) / 2, where t = tanh(u) and u = c (x + a x^3)."""
    # Beyond 10, the slope is 0 or 1 in any dtype, and the square of a large number would overflow.
    x = lax.clamp(np.array(-10, x.dtype), x, np.array(10, x.dtype))
    cubed = multiply(0.044715, multiply(x, x))
    scaled = multiply(math.sqrt(2 / math.pi), x)
    t = lax.tanh(multiply(scaled, add(1, cubed)))
    steep = multiply(scaled, add(1, multiply(3, cubed)))
    return multiply(multiply(0.5, add(1, t)), add(1, multiply(subtract(1, t), steep)))


_gelu_tanh = _attach_slope(
    partial(jax.nn.gelu, approximate=True), _compute_gelu_tanh, _gelu_tanh_slope
)


def _compute_gelu_exact(x: jax.Array) -> jax.Array:
    """Compute x Phi(x), where Phi is the normal distribution."""
    return multiply(multiply(0.5, x), lax.erfc(multiply(-math.sqrt(0.5), x)))


def _gelu_exact_slope(x: jax.Array) -> jax.Array:
    """Differentiate x Phi(x), where Phi is the normal distribution."""
    # Beyond 40, the slope is 0 or 1 in any dtype, and infinity times a density of zero would be NaN.
    x = lax.clamp(np.array(-40, x.dtype), x, np.array(40, x.dtype))
    scaled = multiply(math.sqrt(0.5), x)
    # erfc of the negative number is exact where 1 + erf would cancel, at large negative x.
    down = lax.neg(scaled)
    density = multiply(math.sqrt(1 / math.pi), lax.exp(multiply(down, scaled)))
    return add(multiply(0.5, lax.erfc(down)), multiply(scaled, density))


_gelu_exact = _attach_slope(
    partial(jax.nn.gelu, approximate=False), _compute_gelu_exact, _gelu_exact_slope
)


def _compute_silu(x: jax.Array) -> jax.Array:
    return multiply(x, lax.logistic(x))


def _silu_slope(x: jax.Array) -> jax.Array:
    """Differentiate x s(x): the derivative of the sigmoid s is s (1 - s)."""
    s = lax.logistic(x)
    return multiply(s, add(1, multiply(x, subtract(1, s))))


_silu = _attach_slope(jax.nn.silu, _compute_silu, _silu_slope)


def _quick_gelu(x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(x * 1.702)


@jax.custom_jvp
def _relu(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x)


@_relu.defjvp
def _relu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Find the mask from the result, which the next layer keeps anyway: the rule of JAX would keep a mask as well."""
    result = _relu(*primals)
    return result, _where_positive(result, *tangents)


@from_inputs
def _where_positive(result: jax.Array, tangent: jax.Array) -> jax.Array:
    return jnp.where(result > 0, tangent, 0)


def _relu_squared(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x) ** 2


explain_calls(globals(), __all__)
