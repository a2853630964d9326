"""Fourier transforms."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import axonym as axn
from axonym import Axis, AxisSelector, NamedArray, axis_name
from axonym.engine import selection

from ._adapt import adapted
from ._elementwise import titled

__all__ = [
    "fft",
    "fftfreq",
    "fftshift",
    "hfft",
    "ifft",
    "ifftshift",
    "ihfft",
    "irfft",
    "rfft",
    "rfftfreq",
]

AxisSizeLike: TypeAlias = int | Axis | None
AxisMapping: TypeAlias = Mapping[AxisSelector, AxisSizeLike]
FftAxis: TypeAlias = AxisSelector | Sequence[AxisSelector] | AxisMapping | None

fftfreq = adapted(axn.fftfreq)
fftshift = adapted(axn.fftshift)
ifftshift = adapted(axn.ifftshift)
rfftfreq = adapted(axn.rfftfreq)


def _transform(named: Callable[..., Any]) -> Callable[..., Any]:
    """Make a transform, by default over the last axis."""
    of_named = adapted(named)

    def call(a: NamedArray, axis: FftAxis = None, norm: str | None = None) -> NamedArray:
        chosen: Any = axis
        if axis is None and isinstance(a, NamedArray):
            chosen = a.names[-1:]
        elif isinstance(axis, Mapping):
            chosen = {}
            for key, size in axis.items():
                if isinstance(size, Axis):
                    size = size.size
                chosen[axis_name(key)] = size
        elif not isinstance(axis, str) and isinstance(axis, Axis | Sequence):
            chosen = dict(selection(axis, named.__name__))  # the size of an Axis is a length here
        transformed: NamedArray = of_named(a, chosen, norm)
        return transformed

    return titled(
        call, named, "Apply `{}` over axes, by default the last one; an `Axis` sets the length."
    )


fft = _transform(axn.fft)
hfft = _transform(axn.hfft)
ifft = _transform(axn.ifft)
ihfft = _transform(axn.ihfft)
irfft = _transform(axn.irfft)
rfft = _transform(axn.rfft)
