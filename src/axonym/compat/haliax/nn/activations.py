"""Activation functions, which also take plain arrays and then return plain ones."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

import axonym as axn
from axonym import Axis, AxisSelector
from axonym.engine import shown, sized
from axonym.errors import ArgumentError, message

from .._adapt import KindError, Operand, adapted
from .._elementwise import of_either, unary

__all__ = [
    "A",
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "log_sigmoid",
    "one_hot",
    "quick_gelu",
    "relu",
    "relu6",
    "relu_squared",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "swish",
]

A = TypeVar("A")


class ClassError(ArgumentError, AssertionError):
    """A class number is out of range, for which Haliax raises AssertionError."""


celu = unary(axn.nn.celu, jax.nn.celu)
elu = unary(axn.nn.elu, jax.nn.elu)
hard_sigmoid = unary(axn.nn.hard_sigmoid, jax.nn.hard_sigmoid)
hard_silu = unary(axn.nn.hard_silu, jax.nn.hard_silu)
hard_swish = hard_silu
hard_tanh = unary(axn.nn.hard_tanh, jax.nn.hard_tanh)
leaky_relu = unary(axn.nn.leaky_relu, jax.nn.leaky_relu)
log_sigmoid = unary(axn.nn.log_sigmoid, jax.nn.log_sigmoid)
relu = unary(axn.nn.relu, jax.nn.relu)
relu6 = unary(axn.nn.relu6, jax.nn.relu6)
selu = unary(axn.nn.selu, jax.nn.selu)
sigmoid = unary(axn.nn.sigmoid, jax.nn.sigmoid)
silu = unary(axn.nn.silu, jax.nn.silu)
soft_sign = unary(axn.nn.soft_sign, jax.nn.soft_sign)
softplus = unary(axn.nn.softplus, jax.nn.softplus)
swish = silu


def gelu(a: Operand, approximate: bool = True) -> Any:
    """Return x times the normal distribution function of x, by default approximated by tanh; also for plain arrays."""
    return _gelu(a, approximate)


def quick_gelu(x: Operand) -> Any:
    """Return x * sigmoid(1.702 x) of each element; also for plain arrays."""
    return _quick_gelu(x)


def relu_squared(x: Operand) -> Any:
    """Return max(x, 0) squared of each element; also for plain arrays."""
    return _relu_squared(x)


def glu(x: Operand, axis: AxisSelector | int) -> Any:
    """Return the first half along an axis times the sigmoid of the second half; in Haliax, this always fails."""
    return _glu(x, axis)


def one_hot(x: Operand, class_axis: Axis, *, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Convert class numbers to vectors over `class_axis`, the last axis; a single int may count from the end.

    Raises:
        ClassError: if an int is out of range.
    """
    if not isinstance(x, axn.NamedArray):
        x = _class(x, class_axis)
    return _one_hot(x, class_axis, dtype=dtype)


def _class(x: ArrayLike, class_axis: Axis) -> axn.NamedArray:
    """Convert a single class number to a NamedArray without axes."""
    if jnp.ndim(x) or not jnp.issubdtype(jnp.result_type(x), jnp.integer):
        problem = f"a class number must be a NamedArray, an int or a single integer, not {type(x).__name__}"
        raise KindError(
            message("one_hot", problem, hint="name an array first: hax.named(x, (...))")
        )
    size = sized(class_axis, "one_hot").size
    if isinstance(x, int | np.integer) and not -size <= x < size:
        facts = f"axis of classes: {shown(class_axis)}"
        raise ClassError(message("one_hot", "the class number is out of range", facts))
    return axn.NamedArray(jnp.where(jnp.less(x, 0), jnp.add(x, size), x), ())


_gelu = of_either(axn.nn.gelu, jax.nn.gelu)
_glu = of_either(axn.nn.glu, jax.nn.glu)
_one_hot = adapted(axn.one_hot)
_quick_gelu = of_either(axn.nn.quick_gelu, lambda x: x * jax.nn.sigmoid(x * 1.702))
_relu_squared = of_either(axn.nn.relu_squared, lambda x: jnp.square(jax.nn.relu(x)))
