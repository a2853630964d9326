"""Activation functions.

For the backward pass, `relu` keeps its result, and functions whose derivative needs several arrays keep only their
input, see `from_inputs`. Slopes and other numbers are operands: a new value does not compile a new program.
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
from ..core import facts
from ..engine import along, pointwise
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
    """Return x if positive, else alpha * (exp(x / alpha) - 1), for each element."""
    return pointwise.binary(_from_inputs(jax.nn.celu), x, as_python(alpha))


def elu(x: NamedArray, alpha: float = 1.0) -> NamedArray:
    """Return x if positive, else alpha * (exp(x) - 1), for each element."""
    return pointwise.binary(_from_inputs(jax.nn.elu), x, as_python(alpha))


def gelu(x: NamedArray, approximate: bool = True) -> NamedArray:
    """Return x times the normal CDF of x, for each element; by default, its tanh approximation.

    Raises:
        ArgumentError: if `approximate` is neither true nor false.

    Reference:
        Hendrycks, Gimpel (2016), Gaussian error linear units.
    """
    return pointwise.unary_with(_gelu, x, approximate=approximate)


def glu(x: NamedArray, axis: AxisSelector) -> NamedArray:
    """Return the first half of `x` along an axis times the sigmoid of the second half; the axis keeps its name.

    Raises:
        AxisSizeError: if the axis has an odd size.

    Reference:
        Dauphin et al. (2017), Language modeling with gated convolutional networks.
    """
    if isinstance(x, NamedArray) and x.axis_size(axis) % 2:
        problem = f"{shown(x.resolve_axis(axis))} cannot be split into two halves"
        raise AxisSizeError(message("glu", problem, f"array has: {facts(x)}"))
    return along.along(_from_inputs(jax.nn.glu), x, axis)


def hard_sigmoid(x: NamedArray) -> NamedArray:
    """Return relu6(x + 3) / 6, for each element."""
    return pointwise.unary(jax.nn.hard_sigmoid, x)


def hard_silu(x: NamedArray) -> NamedArray:
    """Return x * hard_sigmoid(x), for each element."""
    return pointwise.unary(_from_inputs(jax.nn.hard_silu), x)


def hard_tanh(x: NamedArray) -> NamedArray:
    """Return x, clipped to [-1, 1], for each element."""
    return pointwise.unary(_from_inputs(jax.nn.hard_tanh), x)


def leaky_relu(x: NamedArray, negative_slope: float = 0.01) -> NamedArray:
    """Return x if positive, else `negative_slope` times x, for each element."""
    return pointwise.binary(jax.nn.leaky_relu, x, as_python(negative_slope))


def log1mexp(x: NamedArray) -> NamedArray:
    """Return log(1 - exp(-x)), for each element, without loss of precision near 0; x must be positive."""
    return pointwise.unary(jax.nn.log1mexp, x)


def log_sigmoid(x: NamedArray) -> NamedArray:
    """Return log(sigmoid(x)), for each element."""
    return pointwise.unary(_from_inputs(jax.nn.log_sigmoid), x)


def mish(x: NamedArray) -> NamedArray:
    """Return x * tanh(softplus(x)), for each element."""
    return pointwise.unary(_from_inputs(jax.nn.mish), x)


def quick_gelu(x: NamedArray) -> NamedArray:
    """Return x * sigmoid(1.702 x), for each element."""
    return pointwise.unary(_from_inputs(_quick_gelu), x)


def relu(x: NamedArray) -> NamedArray:
    """Return max(x, 0), for each element."""
    return pointwise.unary(_relu, x)


def relu6(x: NamedArray) -> NamedArray:
    """Return min(max(x, 0), 6), for each element."""
    return pointwise.unary(jax.nn.relu6, x)


def relu_squared(x: NamedArray) -> NamedArray:
    """Return max(x, 0) squared, for each element."""
    return pointwise.unary(_from_inputs(_relu_squared), x)


def selu(x: NamedArray) -> NamedArray:
    """Return the scaled exponential linear unit, for each element."""
    return pointwise.unary(_from_inputs(jax.nn.selu), x)


def sigmoid(x: NamedArray) -> NamedArray:
    """Return 1 / (1 + exp(-x)), for each element."""
    return pointwise.unary(jax.nn.sigmoid, x)


def silu(x: NamedArray) -> NamedArray:
    """Return x * sigmoid(x), for each element."""
    return pointwise.unary(_silu, x)


def soft_sign(x: NamedArray) -> NamedArray:
    """Return x / (|x| + 1), for each element."""
    return pointwise.unary(_from_inputs(jax.nn.soft_sign), x)


def softplus(x: NamedArray) -> NamedArray:
    """Return log(1 + exp(x)), for each element."""
    return pointwise.unary(_from_inputs(jax.nn.softplus), x)


def sparse_plus(x: NamedArray) -> NamedArray:
    """Return 0 below -1, x above 1, and (x + 1)**2 / 4 between them, for each element."""
    return pointwise.unary(_from_inputs(jax.nn.sparse_plus), x)


def sparse_sigmoid(x: NamedArray) -> NamedArray:
    """Return (x + 1) / 2, clipped to [0, 1], for each element: the derivative of `sparse_plus`."""
    return pointwise.unary(_from_inputs(jax.nn.sparse_sigmoid), x)


def squareplus(x: NamedArray, b: float = 4.0) -> NamedArray:
    """Return (x + sqrt(x**2 + b)) / 2, for each element."""
    return pointwise.binary(_from_inputs(jax.nn.squareplus), x, as_python(b))


# Cached, so that each function has one kernel.
_from_inputs = lru_cache(None)(from_inputs)


def _gelu(x: jax.Array, approximate: bool) -> jax.Array:
    # Any string is true, even "none".
    if approximate not in (True, False):
        raise ArgumentError(
            message("gelu", f"approximate must be True (tanh) or False, not {approximate!r}")
        )
    if approximate:
        return _gelu_tanh(x)
    return _gelu_exact(x)


def _sloped(
    general: Callable[[jax.Array], jax.Array],
    fn: Callable[[jax.Array], jax.Array],
    slope: Callable[[jax.Array], jax.Array],
) -> Callable[[jax.Array], jax.Array]:
    """Make a function of elements keep its input alone, and give its derivative in closed form.

    It has fewer equations than the derivative of the function computed again. A custom JVP has forward mode.

    Args:
        general: the function of JAX, which takes other numbers than floats.
        fn: the same for floats, in primitives.
        slope: its derivative.
    """

    def change(x: jax.Array, tangent: jax.Array) -> jax.Array:
        return multiply(tangent, slope(x))

    differentiable: jax.custom_jvp[jax.Array] = jax.custom_jvp(fn)

    @differentiable.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        return differentiable(*primals), jax.checkpoint(change)(*primals, *tangents)

    @wraps(general)
    def run(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return general(x)
        if keeps_intermediates():
            return fn(x)
        return differentiable(x)

    return run


def _gelu_of_float(x: jax.Array) -> jax.Array:
    """Compute x (1 + t) / 2, where t = tanh(u) and u = c (x + a x^3)."""
    inner = add(x, multiply(0.044715, lax.integer_pow(x, 3)))
    t = lax.tanh(multiply(math.sqrt(2 / math.pi), inner))
    return multiply(x, multiply(0.5, add(1, t)))


def _gelu_slope(x: jax.Array) -> jax.Array:
    """Differentiate x (1 + t) / 2, where t = tanh(u) and u = c (x + a x^3)."""
    # Beyond 10 it is 0 or 1 in any dtype, and the square of a large number would be infinite.
    x = lax.clamp(np.array(-10, x.dtype), x, np.array(10, x.dtype))
    cubed = multiply(0.044715, multiply(x, x))
    scaled = multiply(math.sqrt(2 / math.pi), x)
    t = lax.tanh(multiply(scaled, add(1, cubed)))
    steep = multiply(scaled, add(1, multiply(3, cubed)))
    return multiply(multiply(0.5, add(1, t)), add(1, multiply(subtract(1, t), steep)))


_gelu_tanh = _sloped(partial(jax.nn.gelu, approximate=True), _gelu_of_float, _gelu_slope)


def _gelu_exact_of_float(x: jax.Array) -> jax.Array:
    """Compute x Phi(x), where Phi is the normal distribution."""
    return multiply(multiply(0.5, x), lax.erfc(multiply(-math.sqrt(0.5), x)))


def _gelu_exact_slope(x: jax.Array) -> jax.Array:
    """Differentiate x Phi(x), where Phi is the normal distribution."""
    # Beyond 40 it is 0 or 1 in any dtype, and infinity times zero would be no number.
    x = lax.clamp(np.array(-40, x.dtype), x, np.array(40, x.dtype))
    scaled = multiply(math.sqrt(0.5), x)
    down = lax.neg(scaled)
    density = multiply(math.sqrt(1 / math.pi), lax.exp(multiply(down, scaled)))
    return add(multiply(0.5, lax.erfc(down)), multiply(scaled, density))


_gelu_exact = _sloped(
    partial(jax.nn.gelu, approximate=False), _gelu_exact_of_float, _gelu_exact_slope
)


def _silu_of_float(x: jax.Array) -> jax.Array:
    return multiply(x, lax.logistic(x))


def _silu_slope(x: jax.Array) -> jax.Array:
    s = lax.logistic(x)
    return multiply(s, add(1, multiply(x, subtract(1, s))))


_silu = _sloped(jax.nn.silu, _silu_of_float, _silu_slope)


def _quick_gelu(x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(x * 1.702)


@jax.custom_jvp
def _relu(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x)


@_relu.defjvp
def _relu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Keep for the backward pass only the result, which the next layer keeps anyway, and no mask."""
    result = _relu(*primals)
    return result, _where_positive(result, *tangents)


@from_inputs
def _where_positive(result: jax.Array, tangent: jax.Array) -> jax.Array:
    return jnp.where(result > 0, tangent, 0)


def _relu_squared(x: jax.Array) -> jax.Array:
    return jax.nn.relu(x) ** 2
