"""Layers and functions that normalise over axes."""

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import InitVar
from typing import Any, Self, TypeVar

import equinox as eqx
import jax
from jax.typing import DTypeLike

import axonym as axn
from axonym import Axis, AxisSelection, AxisSpec, axis_size
from axonym.engine import Tree, spec

from .._adapt import Function, Operand, adapted, adopt
from .._node import is_hole
from .._reduce import along, reduction
from ..state_dict import ModuleWithStateDictSerialization
from ..util import UNSPECIFIED

__all__ = [
    "A",
    "LayerNorm",
    "LayerNormBase",
    "RmsNorm",
    "log_softmax",
    "logsumexp",
    "softmax",
    "standardize",
]

A = TypeVar("A")
FLAT = "__OUT"
_LEFT_OUT: Any = UNSPECIFIED


class LayerNormBase(ModuleWithStateDictSerialization):
    """Normalisation over `axis`, followed by an optional weight and bias.

    A call without weight and bias, as in older models, creates them: `LayerNorm(Embed, eps=1e-5, use_bias=False)`.
    """

    axis: AxisSpec = eqx.field(static=True)
    weight: axn.NamedArray | None = _LEFT_OUT
    bias: axn.NamedArray | None = _LEFT_OUT
    eps: float = eqx.field(static=True, default=1e-5)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)
    use_weight: InitVar[bool] = dataclasses.field(default=True, kw_only=True)
    use_bias: InitVar[bool] = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self, use_weight: bool, use_bias: bool) -> None:
        if isinstance(self.weight, int | float):  # the position of eps in older models
            self.eps, self.weight = self.weight, _LEFT_OUT
        if self.weight is _LEFT_OUT:
            self.weight = _filled(axn.ones, self.axis, use_weight)
        if self.bias is _LEFT_OUT:
            self.bias = _filled(axn.zeros, self.axis, use_bias)

    @classmethod
    def init(
        cls,
        axis: AxisSpec,
        eps: float = 1e-5,
        *,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """Make a layer with a weight of ones and a bias of zeros."""
        weight, bias = _filled(axn.ones, axis, use_weight), _filled(axn.zeros, axis, use_bias)
        return cls(axis, weight, bias, eps, dtype)

    @abc.abstractmethod
    def __call__(self, x: axn.NamedArray, *, key: jax.Array | None = None) -> axn.NamedArray:
        """Normalise `x`."""

    def flatten_for_export(self) -> Self:
        """Return the layer over one axis `__OUT`, unless it was made for a single axis."""
        if isinstance(self.axis, Axis):
            return self
        axes = spec(self.axis)
        return self._with(Axis(FLAT, axis_size(axes)), lambda x: axn.flatten_axes(x, axes, FLAT))

    def unflatten_from_export(self, template: Any) -> Self:
        """Return the layer over the axes of `template`."""
        if isinstance(template.axis, Axis):
            return self
        axes = spec(template.axis)
        return self._with(template.axis, lambda x: axn.unflatten_axis(x, FLAT, axes))

    def _with(self, axis: AxisSpec, change: Callable[[axn.NamedArray], axn.NamedArray]) -> Self:
        def changed(x: axn.NamedArray | None) -> axn.NamedArray | None:
            if x is None or is_hole(x):
                return x
            return adapted(change)(x)

        weight, bias = changed(self.weight), changed(self.bias)
        return dataclasses.replace(self, axis=axis, weight=weight, bias=bias)

    @adapted
    def _normalized(self, layer: Function, x: axn.NamedArray) -> axn.NamedArray:
        """Apply a layer of Axonym; a weight with all axes determines their order in the result, as in `weight * x`."""
        out: axn.NamedArray = layer(spec(self.axis), self.weight, self.bias, self.eps, self.dtype)(
            x
        )
        if self.weight is None or self.weight.names == out.names:
            return out
        if set(self.weight.names) != set(out.names):
            return out
        return out.rearrange(self.weight.names)


class LayerNorm(LayerNormBase):
    """Layer normalisation: subtract the mean over `axis`, divide by the standard deviation, then apply weight and bias.

    It computes in `dtype`, by default at least float32, and returns the dtype of its input, as in Axonym.
    """

    def __call__(self, x: axn.NamedArray, *, key: jax.Array | None = None) -> axn.NamedArray:
        """Normalise `x`, whose axes do not change."""
        return self._normalized(axn.nn.LayerNorm, x)


class RmsNorm(LayerNormBase):
    """RMS normalisation: divide by the root mean square over `axis`, then apply weight and bias.

    It computes in `dtype`, by default at least float32, and returns the dtype of its input, as in Axonym.
    """

    def __call__(self, x: axn.NamedArray, *, key: jax.Array | None = None) -> axn.NamedArray:
        """Normalise `x`, whose axes do not change."""
        return self._normalized(axn.nn.RmsNorm, x)


def _filled(
    make: Callable[[AxisSpec], axn.NamedArray], axis: AxisSpec, is_used: bool
) -> axn.NamedArray | None:
    if not is_used:
        return None
    return adopt(make(axis))


def softmax(a: Operand, axis: AxisSelection | None = None) -> Any:
    """Return exponentials divided by their sum over axes; `axis=None` means all, and returns a plain array."""
    return along(_softmax, jax.nn.softmax, a, axis)


def log_softmax(a: Operand, axis: AxisSelection | None = None) -> Any:
    """Return the logarithm of `softmax`; `axis=None` means all axes, and returns a plain array."""
    return along(_log_softmax, jax.nn.log_softmax, a, axis)


def logsumexp(a: Tree, axis: AxisSelection | None = None) -> Tree:
    """Return the logarithm of the sum of exponentials over axes, of an array or of each array of a tree."""
    return _logsumexp(a, axis)


@adapted
def standardize(
    x: axn.NamedArray,
    axis: AxisSpec,
    *,
    mean: axn.NamedArray | None = None,
    variance: axn.NamedArray | None = None,
    epsilon: float = 1e-5,
    where: axn.NamedArray | None = None,
) -> axn.NamedArray:
    """Shift and scale elements so that over axes their mean is zero and their variance one; as in Axonym."""
    return axn.standardize(x, axis, mean=mean, variance=variance, epsilon=epsilon, where=where)


_log_softmax, _softmax = adapted(axn.log_softmax), adapted(axn.softmax)
_logsumexp = reduction(axn.logsumexp, jax.nn.logsumexp)
