"""Normalisation over groups of channels."""

from functools import lru_cache
from typing import Any, Self

import equinox as eqx
import jax
from jax import lax

from .. import _constraints, plans
from ..array import NamedArray
from ..axis import Axis, AxisSelection, selection, shown, sized
from ..core import wrap
from ..create import ones, zeros
from ..errors import ArgumentError, AxisError, message
from ..ops import _lift
from ..ops._widen import at_least_float32, widened_to
from ..partitioning.shard import auto_sharded
from ..plans import Names
from ._inputs import check_input, with_sizes
from ._settings import integer
from .recompute import from_inputs

__all__ = ["GroupNorm"]


class GroupNorm(eqx.Module):
    """Split an axis into groups of neighbours, and normalise each group together with the axes `over`.

    Mean and variance are over one group and all of `over`, such as height and width; all other axes, such as the batch,
    are batch axes. With one group, it is a `LayerNorm` over `axis` and `over` with a weight over only `axis`; with one
    group per channel, an instance norm.

    It computes in float32 or wider, and returns the dtype of its input.

    Attributes:
        axis: the axis to split, such as channels.
        groups: the number of groups.
        over: the names of the other axes to normalise over.
        weight: axes {axis}, or None.
        bias: axes {axis}, or None.
        eps: added to the variance before the square root.
        fixed: those of `over` that were given as `Axis`, whose sizes inputs must have.

    Reference:
        Wu, He (2018), Group normalization.
    """

    axis: Axis = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    over: tuple[str, ...] = eqx.field(static=True)
    weight: NamedArray | None
    bias: NamedArray | None
    eps: float = eqx.field(static=True, default=1e-5)
    fixed: tuple[Axis, ...] = eqx.field(static=True, default=())

    @classmethod
    def init(
        cls,
        axis: Axis,
        groups: int,
        over: AxisSelection = (),
        eps: float = 1e-5,
        *,
        use_weight: bool = True,
        use_bias: bool = True,
    ) -> Self:
        """Make a layer; weights start at one and biases at zero.

        Args:
            axis: the axis to split.
            groups: the number of groups.
            over: the other axes to normalise over, or their names; inputs must have the size of one given as `Axis`.
            eps: added to the variance before the square root.
            use_weight: whether to multiply by a learned weight.
            use_bias: whether to add a learned bias.

        Raises:
            ArgumentError: if `groups` is not an int, or does not divide the axis.
            AxisClashError: if an axis is given twice.

        Example:
            >>> Channels = axn.Axis("channels", 6)
            >>> norm = axn.nn.GroupNorm.init(Channels, 3, ("height", "width"))
            >>> x = axn.random.normal(jax.random.key(0), axn.make_axes(batch=2, height=4, width=4, channels=6))
            >>> bool(abs(norm(x).mean(("height", "width", "channels"))).max() < 1e-5)
            True
        """
        axis, given = sized(axis, "GroupNorm.init"), selection(over, "GroupNorm.init")
        names = tuple(name for name, _ in given)
        plans.distinct((axis.name, *names), "GroupNorm.init: ")
        groups = integer("GroupNorm.init", "groups", groups)
        if groups < 1 or axis.size % groups:
            raise ArgumentError(message("GroupNorm.init", f"{groups} groups do not divide {shown(axis)} evenly"))
        weight, bias = ones(axis) if use_weight else None, zeros(axis) if use_bias else None
        return cls(axis, groups, names, weight, bias, float(eps), with_sizes(given))

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalise `x`; the result has the same axes {axis, over, ...}.

        Raises:
            AxisNotFoundError: if `x` lacks an axis.
            AxisSizeError: if `axis`, or one of `over` that was given as `Axis`, has another size.
        """
        check_input("GroupNorm", x, (self.axis, *self.fixed), ())
        try:
            at = plans.positions(x.names, (self.axis.name, *self.over))
        except AxisError as flaw:
            _lift.fail("GroupNorm", flaw, x)
        parameters = [auto_sharded(p) for p in (self.weight, self.bias) if p is not None]
        kernel = _normalize(x.names, at, self.groups, self.weight is not None, self.bias is not None, self.eps)
        return wrap(x, kernel.call(x.array, *(p.array for p in parameters)), x.names)


@lru_cache(plans.CACHE)
def _normalize(
    names: Names, at: tuple[int, ...], groups: int, weighted: bool, biased: bool, eps: float
) -> _lift.Kernel:
    """Make the kernel that normalises groups of the dimension `at[0]` over the other dimensions in `at`."""
    axis = (names[at[0]],)

    def normalized(x: Any, *lined: Any) -> Any:
        parameters = iter(lined)
        where = at[0] % x.ndim
        shape = (*x.shape[:where], groups, x.shape[where] // groups, *x.shape[where + 1 :])
        reduced = (where + 1, *(i % x.ndim + (i > at[0]) for i in at[1:]))
        computed = x.astype(at_least_float32(x.dtype)).reshape(shape)
        computed = computed - computed.mean(reduced, keepdims=True)
        scale = lax.rsqrt(lax.square(computed).mean(reduced, keepdims=True) + eps)
        result = (computed * scale).reshape(x.shape)
        if weighted:
            result = result * widened_to(result.dtype, next(parameters))
        if biased:
            result = result + widened_to(result.dtype, next(parameters))
        return result.astype(x.dtype)

    def body(x: jax.Array, *parameters: jax.Array) -> Any:
        operands = (names, *[axis] * len(parameters))
        x, *rest = _lift.agreed(operands, (x, *parameters), names)
        lined = [_lift.lined_up(p, axis, names) for p in rest]
        return _lift.local(from_inputs(normalized), [x, *lined], list(_constraints.entries_of(x)))

    return _lift.Kernel(names, body)
