"""Convolutions, whose weights have the spatial axes under their own names."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import equinox as eqx
import jax

import axonym as axn
from axonym import Axis, AxisSelection, axis_name

from .._adapt import adapted

__all__ = ["Conv", "ConvTranspose", "T"]

T = TypeVar("T")
Setting: TypeAlias = int | Sequence[int]
Padding: TypeAlias = str | int | Sequence[int] | Sequence[tuple[int, int]]


class _ConvBase(eqx.Module):
    Spatial: tuple[str | Axis, ...] = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)
    weight: axn.NamedArray
    bias: axn.NamedArray | None
    kernel_size: tuple[int, ...] = eqx.field(static=True)
    stride: tuple[int, ...] = eqx.field(static=True)
    padding: Any = eqx.field(static=True)

    def _of_axonym(self) -> dict[str, Any]:
        """Return the fields of Axonym's layer, for inputs of any spatial size; its kernel is never split."""
        spatial = _names(self.Spatial)
        weight = self.weight.rearrange((self.Out.name, self.In.name, *spatial))
        kernel = weight.rename({name: f"kernel.{name}" for name in spatial})
        return _fields(self, weight=kernel, Spatial=spatial)


class Conv(_ConvBase):
    """Slide a kernel along the axes `Spatial`; the weight has the axes {Out, In / groups, Spatial...}.

    Only the name of an `Axis` in `Spatial` is used: the size of the input is not checked.
    """

    dilation: tuple[int, ...] = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    @staticmethod
    @adapted
    def init(
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: Setting,
        *,
        stride: Setting = 1,
        padding: Padding = 0,
        dilation: Setting = 1,
        groups: int = 1,
        use_bias: bool = True,
        key: jax.Array,
    ) -> "Conv":
        """Make a layer; `padding` may also be "SAME" or "VALID"."""
        settings: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        made = axn.nn.Conv.init(
            Spatial, In, Out, kernel_size, use_bias=use_bias, key=key, **settings
        )
        return Conv(**_of_haliax(made))

    @adapted
    def __call__(self, inputs: axn.NamedArray, *, key: jax.Array | None = None) -> axn.NamedArray:
        """Apply the layer; the result has `Out` in place of `In`."""
        return axn.nn.Conv(**self._of_axonym())(inputs)


class ConvTranspose(_ConvBase):
    """A transposed convolution; weight and `Spatial` are as in `Conv`."""

    output_padding: tuple[int, ...] = eqx.field(static=True)
    dilation: tuple[int, ...] = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    @staticmethod
    @adapted
    def init(
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: Setting,
        *,
        stride: Setting = 1,
        padding: Padding = 0,
        output_padding: Setting = 0,
        dilation: Setting = 1,
        groups: int = 1,
        use_bias: bool = True,
        key: jax.Array,
    ) -> "ConvTranspose":
        """Make a layer; `padding` may also be "SAME" or "VALID"."""
        settings: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        settings |= {"output_padding": output_padding, "use_bias": use_bias}
        made = axn.nn.ConvTranspose.init(Spatial, In, Out, kernel_size, key=key, **settings)
        return ConvTranspose(**_of_haliax(made))

    @adapted
    def __call__(self, inputs: axn.NamedArray, *, key: jax.Array | None = None) -> axn.NamedArray:
        """Apply the layer; the result has `Out` in place of `In`."""
        return axn.nn.ConvTranspose(**self._of_axonym())(inputs)


def _names(Spatial: tuple[str | Axis, ...]) -> tuple[str, ...]:
    return tuple(axis_name(axis) for axis in Spatial)


def _of_haliax(made: Any) -> dict[str, Any]:
    """Return the fields of Haliax's layer from one of Axonym, whose weight has different names."""
    names = (made.Out.name, made.In.name, *_names(made.Spatial))
    return _fields(made, weight=axn.NamedArray(made.weight.array, names))


def _fields(layer: Any, **changed: Any) -> dict[str, Any]:
    return {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer)} | changed
