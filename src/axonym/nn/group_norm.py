"""Normalisation over groups of channels, which is independent of the size of the batch."""

from typing import Self

import equinox as eqx
import jax
from jax import lax

from ..array import NamedArray
from ..axis import Axis, AxisSelection, names_in, selection, shown, sized
from ..base.dtypes import at_least_float32
from ..create import ones, zeros
from ..engine import auto, checks, kernels
from ..engine.core import wrap
from ..engine.renaming import share_by_renaming
from ..errors import ArgumentError, message
from ..layout import explicit
from ..names import plans
from ..names.plans import Names
from .inputs import check_input, list_sized_axes
from .layer import Layer
from .recompute import from_inputs
from .settings import check_int
from .weights import apply_affine, collect_parameters, make_if

__all__ = ["GroupNorm"]


class GroupNorm(Layer):
    """Split an axis into groups of neighbours, and normalise each group together with the axes `over`.

    Mean and variance are over one group and all of `over`, such as height and width; all other axes, such as the batch,
    are batch axes. A single group gives a `LayerNorm` over `axis` and `over` whose weight has only `axis`; as many
    groups as channels give an instance norm.

    The layer computes in float32 or wider, and returns the dtype of its input.

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

    Examples:
        >>> Channels = axn.Axis("channels", 4)
        >>> norm = axn.nn.GroupNorm.init(Channels, 2, use_bias=False)
        >>> norm(axn.named([1.0, 3.0, 20.0, 10.0], Channels)).round(2).tolist()
        [-1.0, 1.0, 1.0, -1.0]
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

        Examples:
            >>> Channels = axn.Axis("channels", 6)
            >>> norm = axn.nn.GroupNorm.init(Channels, 3, ("height", "width"))
            >>> x = axn.random.normal(jax.random.key(0), axn.make_axes(batch=2, height=4, width=4, channels=6))
            >>> bool(abs(norm(x).mean(("height", "width", "channels"))).max() < 1e-5)
            True
        """
        axis, given = sized(axis, "GroupNorm.init"), selection(over, "GroupNorm.init")
        names = names_in(given)
        plans.distinct((axis.name, *names), "GroupNorm.init: ")
        groups = check_int("GroupNorm.init", "groups", groups)
        if groups < 1 or axis.size % groups:
            raise ArgumentError(
                message("GroupNorm.init", f"{groups} groups do not divide {shown(axis)} evenly")
            )
        weight = make_if(use_weight, ones, axis)
        bias = make_if(use_bias, zeros, axis)
        return cls(axis, groups, names, weight, bias, float(eps), list_sized_axes(given))

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalise `x`.

        Args:
            x: axes {axis, *over, ...}.
            key: not used; every layer takes one.

        Returns:
            The same axes.

        Raises:
            AxisNotFoundError: if `x` lacks an axis.
            AxisSizeError: if `axis`, or one of `over` that was given as `Axis`, has another size.
        """
        check_input("GroupNorm", x, (self.axis, *self.fixed), ())
        normalized = (self.axis.name, *self.over)
        at = checks.run_plan("GroupNorm", (x,), plans.positions, x.names, normalized)
        weighted, biased = self.weight is not None, self.bias is not None
        kernel = _normalize(x.names, at, self.groups, weighted, biased, self.eps)
        operands = [x, *collect_parameters(self.weight, self.bias)]
        return wrap(x, kernel.call(*[operand.array for operand in operands]), x.names)


@share_by_renaming("names")
def _normalize(
    names: Names, at: tuple[int, ...], groups: int, weighted: bool, biased: bool, eps: float
) -> kernels.Kernel:
    """Make the kernel that normalises groups of the dimension `at[0]` over the other dimensions in `at`."""
    axis = (names[at[0]],)

    def normalize(x: jax.Array, *parameters: jax.Array) -> jax.Array:
        split, *over = at
        where = split % x.ndim
        shape = (*x.shape[:where], groups, x.shape[where] // groups, *x.shape[where + 1 :])
        # The split dimension becomes two, so those behind it move on by one. All of `at` count from the end.
        reduced = (where + 1, *(other % x.ndim + (other > split) for other in over))

        computed = x.astype(at_least_float32(x.dtype)).reshape(shape)
        # In two passes: the mean of squares less the squared mean would cancel where the mean is large.
        computed = computed - computed.mean(reduced, keepdims=True)
        scale = lax.rsqrt(lax.square(computed).mean(reduced, keepdims=True) + eps)
        result = (computed * scale).reshape(x.shape)
        return apply_affine(result, parameters, weighted, biased).astype(x.dtype)

    def body(x: jax.Array, *parameters: jax.Array) -> jax.Array:
        operands = (names, *[axis] * len(parameters))
        # On Explicit axes, weight and bias follow the layout of the input.
        x, *rest = kernels.align_layouts(operands, (x, *parameters), names)
        lined = [kernels.line_up(own, axis, names) for own in rest]
        # JAX has no rule for the types of a reshape that splits a sharded dimension: on Explicit axes, the compiler
        # decides within, and the result has the type of the input.
        result: jax.Array = auto.local(
            from_inputs(normalize), [x, *lined], list(explicit.get_layout(x))
        )
        return result

    return kernels.Kernel(names, body)
