"""Creation of arrays."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax.numpy as jnp
from jax.typing import DTypeLike

import axonym as axn
from axonym import AxisSpec
from axonym.engine import spec
from axonym.errors import ShardingError

from ._adapt import adapted
from ._elementwise import raw

__all__ = [
    "arange",
    "full",
    "full_like",
    "geomspace",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

P = ParamSpec("P")
R = TypeVar("R")


def _made(fn: Callable[P, R]) -> Callable[P, R]:
    """Adapt a function that makes an array; if the mapping cannot split it evenly, it is replicated."""

    @functools.wraps(fn)
    def make(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except ShardingError:
            with axn.axis_mapping({}):
                return fn(*args, **kwargs)

    return adapted(make)


geomspace = _made(axn.geomspace)
linspace = _made(axn.linspace)
logspace = _made(axn.logspace)


@_made
def arange(
    axis: AxisSpec, *, start: Any = 0, step: Any = 1, dtype: DTypeLike | None = None
) -> axn.NamedArray:
    """Count from `start` by `step`, over one axis or in row-major order over several."""
    return axn.arange(axis, start=raw(start), step=raw(step), dtype=dtype)


@_made
def full(shape: AxisSpec, fill_value: Any, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Make an array of one value; a plain array as value is broadcast by position, as in `jax.numpy`."""
    value = raw(fill_value)
    if not jnp.ndim(value):
        return axn.full(shape, value, dtype)
    axes = spec(shape, "full")
    return axn.named(jnp.full(tuple(axis.size for axis in axes), value, dtype), axes)


@_made
def zeros(shape: AxisSpec, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Make an array of zeros, by default in float32."""
    return axn.zeros(shape, jnp.float32 if dtype is None else dtype)


@_made
def ones(shape: AxisSpec, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Make an array of ones, by default in float32."""
    return axn.ones(shape, jnp.float32 if dtype is None else dtype)


@adapted
def full_like(a: axn.NamedArray, fill_value: Any, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Make an array of one value with the axes and dtype of another."""
    return axn.full_like(a, raw(fill_value), dtype)


@adapted
def zeros_like(a: axn.NamedArray, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Make an array of zeros with the axes and dtype of another."""
    return axn.zeros_like(a, dtype)


@adapted
def ones_like(a: axn.NamedArray, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Make an array of ones with the axes and dtype of another."""
    return axn.ones_like(a, dtype)
