"""Internal. A causal convolution of a few positions, each channel by itself, which can go on from the last inputs."""

import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ...array import NamedArray
from ...axis import Axis, AxisSpec, spec
from ...base.dtypes import widen
from ...create import arange, zeros
from ...ops.cumulative import cumsum
from ...ops.index import index
from ...ops.join import concatenate
from ...ops.pad import pad
from ...ops.roll import roll
from ...ops.where import where
from ..initializer import uniform
from ..layer import Layer
from ..roles import Role
from ..settings import check_int
from ..weights import make_if, read_vector

TAP = "tap"


class ShortConv(Layer):
    """Sum the last few positions of each channel, with weights of its own.

    Attributes:
        weight: axes {tap, *axis}; the last tap is that of the position itself.
        bias: axes {*axis}, or None.
        axis: the channels.
    """

    weight: NamedArray
    bias: NamedArray | None
    axis: tuple[Axis, ...] = eqx.field(static=True)

    @classmethod
    def init(cls, axis: AxisSpec, size: int, *, key: jax.Array, use_bias: bool) -> Self:
        """Make a layer that sees `size` positions."""
        size, channels = (
            check_int("ShortConv.init", "window", size, 1),
            spec(axis, "ShortConv.init"),
        )
        draw = uniform(-1 / math.sqrt(size), 1 / math.sqrt(size))
        weight = draw(key, (Axis(TAP, size), *channels))
        return cls(weight, make_if(use_bias, zeros, channels), channels)

    @property
    def axis_roles(self) -> dict[str, Role]:
        """The role of the axis that no field has."""
        return {TAP: "window"}

    def __call__(
        self,
        x: NamedArray,
        name: str,
        recent: NamedArray | None = None,
        real: NamedArray | None = None,
        begins: NamedArray | None = None,
    ) -> tuple[NamedArray, NamedArray]:
        """Convolve all positions.

        Args:
            x: axes {name, *axis, ...}.
            name: the axis of positions.
            recent: the inputs just before, axes {tap, *axis, ...}; by default zeros.
            real: which positions are real; others count as zeros, and are not among the next recent inputs.
            begins: at which positions a sequence begins, which sees nothing before.

        Returns:
            The sums, and the recent inputs for the positions that follow.
        """
        count, reach = x.axis_size(name), read_vector(self.weight).axis_size(TAP) - 1
        if real is not None:
            x = where(real, x, 0.0)
        emptied = None if begins is None else cumsum(begins.astype(jnp.int32), name)
        if recent is not None:
            # Only a call that goes on makes the axis longer, so that devices may not be able to share it.
            x = concatenate(name, [recent.rename({TAP: name}).astype(x.dtype), x])
            emptied = None if emptied is None else pad(emptied, {name: (reach, 0)})
        y = self._sum(x, name, emptied)
        if emptied is not None and count:
            x = where(emptied == emptied[name, -1], x, 0.0)
        if recent is not None:
            y = y[name, reach:]
        elif real is None:
            # Longer by `reach`, devices could not share it, and on Explicit axes each would get all of it.
            x = pad(x, {name: (max(reach - count, 0), 0)})
        else:
            x = pad(x, {name: (reach, 0)})
        if real is None or not count:
            return y, x[name, x.axis_size(name) - reach :].rename({name: TAP})
        end = where(real, arange(real.resolve_axis(name)) + 1, 0).max(name)
        Kept = Axis(TAP, reach)
        return y, index(x, {name: end.broadcast_axis(Kept) + arange(Kept)})

    def step(self, x: NamedArray, recent: NamedArray | None) -> tuple[NamedArray, NamedArray]:
        """Convolve one position, axes {*axis, ...}; see `__call__`."""
        weight = read_vector(self.weight)
        taps = weight.resolve_axis(TAP)
        if recent is None:
            seen = pad(x.broadcast_axis(taps.resize(1)), {TAP: (taps.size - 1, 0)})
        else:
            one = x.broadcast_axis(taps.resize(1))
            seen = concatenate(TAP, [recent.astype(x.dtype), one])
        y = (widen(seen) * widen(weight)).sum(TAP)
        return self._finish(y, x), seen[TAP, 1:]

    def _sum(self, x: NamedArray, name: str, emptied: NamedArray | None) -> NamedArray:
        weight, place = widen(read_vector(self.weight)), arange(x.resolve_axis(name))
        size = weight.axis_size(TAP)
        y = widen(x) * weight[TAP, size - 1]
        for back in range(1, size):
            # A roll of positions that devices share sends only those that cross.
            seen = place >= back
            if emptied is not None:
                seen = seen & (emptied == roll(emptied, back, name))
            y = y + where(seen, widen(roll(x, back, name)), 0.0) * weight[TAP, size - 1 - back]
        return self._finish(y, x)

    def _finish(self, y: NamedArray, x: NamedArray) -> NamedArray:
        if self.bias is not None:
            y = y + widen(read_vector(self.bias))
        result: NamedArray = y.astype(jnp.result_type(x.dtype, self.weight.dtype))
        return result
