"""Arrays from nothing."""

from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

import axonym as axn
from axonym.axis import AxisSpec, spec

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

geomspace = adapted(axn.geomspace)
linspace = adapted(axn.linspace)
logspace = adapted(axn.logspace)


@adapted
def arange(axis: AxisSpec, *, start: Any = 0, step: Any = 1, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Count from `start` in steps, over one axis or in row-major order over several."""
    return axn.arange(axis, start=raw(start), step=raw(step), dtype=dtype)


@adapted
def full(shape: AxisSpec, fill_value: Any, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Make an array of one value; a plain array as value is repeated by position, as `jax.numpy` does."""
    value = raw(fill_value)
    if not jnp.ndim(value):
        return axn.full(shape, value, dtype)
    axes = spec(shape, "full")
    return axn.named(jnp.full(tuple(axis.size for axis in axes), value, dtype), axes)


@adapted
def zeros(shape: AxisSpec, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Make an array of zeros, in float32 unless told otherwise."""
    return axn.zeros(shape, jnp.float32 if dtype is None else dtype)


@adapted
def ones(shape: AxisSpec, dtype: DTypeLike | None = None) -> axn.NamedArray:
    """Make an array of ones, in float32 unless told otherwise."""
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
