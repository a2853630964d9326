"""Activation functions."""

import jax

from ..array import NamedArray
from ..ops import _lift

__all__ = [
    "celu",
    "elu",
    "gelu",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "quick_gelu",
    "relu",
    "relu6",
    "relu_squared",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
]


def celu(x: NamedArray) -> NamedArray:
    """Return x if positive, else exp(x) - 1, for each element."""
    return _lift.unary(jax.nn.celu, x)


def elu(x: NamedArray) -> NamedArray:
    """Return x if positive, else exp(x) - 1, for each element."""
    return _lift.unary(jax.nn.elu, x)


def gelu(x: NamedArray, approximate: bool = True) -> NamedArray:
    """Return x times the normal distribution function of x, for each element; by default its tanh approximation.

    Reference:
        Hendrycks, Gimpel (2016), Gaussian error linear units.
    """
    return _lift.unary(jax.nn.gelu, x, approximate=approximate)


def hard_sigmoid(x: NamedArray) -> NamedArray:
    """Return relu6(x + 3) / 6, for each element."""
    return _lift.unary(jax.nn.hard_sigmoid, x)


def hard_silu(x: NamedArray) -> NamedArray:
    """Return x * hard_sigmoid(x), for each element."""
    return _lift.unary(jax.nn.hard_silu, x)


def hard_tanh(x: NamedArray) -> NamedArray:
    """Return x, limited to -1 and 1, for each element."""
    return _lift.unary(jax.nn.hard_tanh, x)


def leaky_relu(x: NamedArray, negative_slope: float = 0.01) -> NamedArray:
    """Return x if positive, else `negative_slope` times x, for each element."""
    return _lift.unary(jax.nn.leaky_relu, x, negative_slope=negative_slope)


def log_sigmoid(x: NamedArray) -> NamedArray:
    """Return log(sigmoid(x)), for each element."""
    return _lift.unary(jax.nn.log_sigmoid, x)


def quick_gelu(x: NamedArray) -> NamedArray:
    """Return x * sigmoid(1.702 x), for each element."""
    return x * sigmoid(x * 1.702)


def relu(x: NamedArray) -> NamedArray:
    """Return max(x, 0), for each element."""
    return _lift.unary(jax.nn.relu, x)


def relu6(x: NamedArray) -> NamedArray:
    """Return min(max(x, 0), 6), for each element."""
    return _lift.unary(jax.nn.relu6, x)


def relu_squared(x: NamedArray) -> NamedArray:
    """Return max(x, 0) squared, for each element."""
    return relu(x) ** 2


def selu(x: NamedArray) -> NamedArray:
    """Return the scaled exponential linear unit, for each element."""
    return _lift.unary(jax.nn.selu, x)


def sigmoid(x: NamedArray) -> NamedArray:
    """Return 1 / (1 + exp(-x)), for each element."""
    return _lift.unary(jax.nn.sigmoid, x)


def silu(x: NamedArray) -> NamedArray:
    """Return x * sigmoid(x), for each element."""
    return _lift.unary(jax.nn.silu, x)


def soft_sign(x: NamedArray) -> NamedArray:
    """Return x / (|x| + 1), for each element."""
    return _lift.unary(jax.nn.soft_sign, x)


def softplus(x: NamedArray) -> NamedArray:
    """Return log(1 + exp(x)), for each element."""
    return _lift.unary(jax.nn.softplus, x)
