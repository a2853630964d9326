"""Linear layers."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax

from axonym import (
    Axis,
    AxisSpec,
    NamedArray,
    axis_name,
    axis_size,
    is_named_array,
    nn,
    ragged_dot,
    random,
    zeros,
)
from axonym.engine import spec
from axonym.errors import AxisClashError, message

from .._adapt import Function, adapted, adopt
from .._dot_general import DefaultDotGeneralOp
from .._node import is_hole
from ..partitioning import auto_sharded, on_entered_mesh
from ..state_dict import ModuleWithStateDictSerialization, StateDict
from ._constructor import TwoSpellings
from .mup import (
    AbstractLinearReparam,
    HiddenLinearMup,
    InputLinearMup,
    LinearStandardParam,
    OutputLinearMup,
    ReparamEnabled,
)

__all__ = ["Linear", "MoELinear", "gmm_sharded"]


def hashable(axes: AxisSpec) -> AxisSpec:
    """Convert lists and dicts of axes to tuples, which compiled functions can use as cache keys."""
    if isinstance(axes, Axis | tuple):
        return axes
    return spec(axes)


def drawn(key: jax.Array, axes: tuple[Axis, ...], scale: float) -> NamedArray:
    """Draw weights from a normal distribution truncated at three standard deviations, times a scale."""
    return adopt(random.truncated_normal(key, axes, -3, 3) * scale)


def _bias(axes: AxisSpec, is_used: bool) -> NamedArray | None:
    if not is_used:
        return None
    return adopt(zeros(axes))


class Linear(ModuleWithStateDictSerialization, ReparamEnabled, metaclass=TwoSpellings):
    """A linear layer: a product with a weight, summed over `In`, and a bias over `Out`.

    Differs from `axonym.nn.Linear`: `In` and `Out` are kept as given (a single axis is not a tuple), no name may be in
    both, and a parametrisation scales the weights. `Linear(In, Out, key=key)` calls `init`.

    Attributes:
        weight: axes {Out, In}.
        bias: axes {Out}, or None.
        In: the axes that are summed over.
        Out: the axes that replace them.
        dot_general: the product, such as a `DotGeneralOp` of `haliax.quantization`.
    """

    weight: NamedArray
    bias: NamedArray | None
    In: AxisSpec = eqx.field(static=True, converter=hashable)
    Out: AxisSpec = eqx.field(static=True, converter=hashable)
    dot_general: Function = eqx.field(default_factory=DefaultDotGeneralOp.init)
    _reparam_cls: type[AbstractLinearReparam] = eqx.field(static=True, default=LinearStandardParam)

    @staticmethod
    @adapted
    def init(
        In: AxisSpec,
        Out: AxisSpec,
        *,
        key: jax.Array,
        use_bias: bool = True,
        out_first: bool = True,
        dot_general: Function | None = None,
        init_scale: float = 1.0,
        reparam_cls: type[AbstractLinearReparam] = LinearStandardParam,
    ) -> "Linear":
        """Make a layer whose weight is drawn with the unsplit key, and whose bias is zero.

        Raises:
            AxisClashError: if a name is in both `In` and `Out`.
        """
        inputs, outputs = spec(In, "Linear.init"), spec(Out, "Linear.init")
        for axis in outputs:
            if axis.name in axis_name(inputs):
                problem = f"axis {axis.name!r} is in both In and Out"
                hint = f'give one side another name: Axis("{axis.name}", {axis.size}).alias("{axis.name}_out")'
                raise AxisClashError(message("Linear.init", problem, hint=hint))
        axes = (*inputs, *outputs)
        if out_first:
            axes = (*outputs, *inputs)
        weight = drawn(key, axes, init_scale * reparam_cls.init_scale(In, Out))
        if dot_general is None:
            dot_general = DefaultDotGeneralOp.init()
        elif jax.tree_util.all_leaves([dot_general]):
            # a function, which transformations do not accept among arrays
            dot_general = jax.tree_util.Partial(dot_general)
        return Linear(weight, _bias(outputs, use_bias), In, Out, dot_general, reparam_cls)

    @adapted
    def __call__(self, inputs: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layer: the axes of the inputs without `In` come first, then `Out`; `key` is not used.

        Raises:
            AxisNotFoundError: if the inputs lack an axis of `In`.
            AxisClashError: if they already have one of `Out`.
        """
        product: Function | None = self.dot_general
        if type(product) is DefaultDotGeneralOp:
            product = None
        weight = times(self.weight, self.reparam.active_scale)
        y = on_entered_mesh(nn.Linear(weight, None, spec(self.In), spec(self.Out), product)(inputs))
        if self.bias is None:
            return y
        return y + auto_sharded(self.bias)

    def flatten_for_export(self) -> "Linear":
        """Return the layer with one axis `__IN__` and one axis `__OUT__`, in their order in the weight."""
        inputs, outputs = spec(self.In), spec(self.Out)
        weight = _merged(_merged(self.weight, inputs, "__IN__"), outputs, "__OUT__")
        if _is_there(weight):
            order = ("__IN__", "__OUT__")
            if not inputs or self.weight.names[-1] in axis_name(inputs):
                order = ("__OUT__", "__IN__")
            weight = weight.rearrange((..., *order))
        return dataclasses.replace(
            self,
            weight=weight,
            bias=_merged(self.bias, outputs, "__OUT__"),
            In=Axis("__IN__", axis_size(inputs)),
            Out=Axis("__OUT__", axis_size(outputs)),
        )

    def unflatten_from_export(self, template: Any) -> "Linear":
        """Undo `flatten_for_export`, with the axes of `template`."""
        inputs, outputs = spec(template.In), spec(template.Out)
        weight = _parted(_parted(self.weight, "__IN__", inputs), "__OUT__", outputs)
        if _is_there(weight):
            weight = weight.rearrange(template.weight.names)
        return dataclasses.replace(
            self,
            weight=weight,
            bias=_parted(self.bias, "__OUT__", outputs),
            In=template.In,
            Out=template.Out,
        )

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        """Return the arrays by key; the weight is scaled, as in use."""
        return super(Linear, self._scaled(self.reparam.active_scale)).to_state_dict(prefix)

    def from_state_dict(self, state_dict: StateDict, prefix: str | None = None) -> "Linear":
        """Return the layer with the arrays of a state dict, whose weight is scaled."""
        return super().from_state_dict(state_dict, prefix)._scaled(1 / self.reparam.active_scale)

    def _scaled(self, scale: float) -> "Linear":
        if not _is_there(self.weight) or not eqx.is_array_like(self.weight.array):
            return self
        return dataclasses.replace(self, weight=times(self.weight, scale))

    @property
    def reparam(self) -> AbstractLinearReparam:
        """The parametrisation, for the axes of this layer."""
        return self._reparam_cls(self.In, self.Out)

    @staticmethod
    def input_reparam(use_mup: bool = True) -> type[AbstractLinearReparam]:
        """Return the parametrisation of layers at the input of a model."""
        return _reparam(InputLinearMup, use_mup)

    @staticmethod
    def hidden_reparam(use_mup: bool = True) -> type[AbstractLinearReparam]:
        """Return the parametrisation of layers between wide axes."""
        return _reparam(HiddenLinearMup, use_mup)

    @staticmethod
    def output_reparam(use_mup: bool = True) -> type[AbstractLinearReparam]:
        """Return the parametrisation of layers at the output of a model."""
        return _reparam(OutputLinearMup, use_mup)


def _reparam(mup: type[AbstractLinearReparam], use_mup: bool) -> type[AbstractLinearReparam]:
    if use_mup:
        return mup
    return LinearStandardParam


def times(weight: NamedArray, scale: float) -> NamedArray:
    """Multiply a weight by a scale, if any."""
    if scale == 1:
        return weight
    return weight * scale


def _is_there(x: object) -> bool:
    """Return whether a parameter is an array that has not been filtered out of the layer."""
    return is_named_array(x) and not is_hole(x)


def _merged(x: Any, axes: tuple[Axis, ...], name: str) -> Any:
    if not _is_there(x):
        return x
    if not axes:
        return x.broadcast_axis(Axis(name, 1))
    return x.flatten_axes(axes, name)


def _parted(x: Any, name: str, axes: tuple[Axis, ...]) -> Any:
    if not _is_there(x):
        return x
    if not axes:
        return x[name, 0]
    return x.unflatten_axis(name, axes)


class MoELinear(eqx.Module, metaclass=TwoSpellings):
    """A layer that multiplies groups along an axis by the weights of their experts, and adds a common bias.

    Differs from `axonym.nn.MoELinear`: the bias has no axis of experts, and `Out` replaces `In` in place.

    Attributes:
        weight: axes {Experts, In, Out}.
        bias: axes {Out}, or None.
        Experts: the axis of experts.
        In: the axis that is summed over.
        Out: the axis that replaces it.
        use_gmm: not used; JAX chooses the kernel.
    """

    weight: NamedArray
    bias: NamedArray | None
    Experts: AxisSpec = eqx.field(static=True, converter=hashable)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)
    use_gmm: bool = eqx.field(static=True)

    @staticmethod
    @adapted
    def init(
        Experts: Axis,
        In: Axis,
        Out: Axis,
        *,
        key: jax.Array,
        use_bias: bool = True,
        out_first: bool = False,
        init_scale: float = 1.0,
        use_gmm: bool = False,
    ) -> "MoELinear":
        """Make the layers of all experts, each with the scale of a `Linear`."""
        experts = spec(Experts, "MoELinear.init")
        axes = (*experts, In, Out)
        if out_first:
            axes = (*experts, Out, In)
        weight = drawn(key, axes, init_scale / math.sqrt(In.size))
        return MoELinear(weight, _bias(Out, use_bias), Experts, In, Out, use_gmm)

    @adapted
    def __call__(
        self, inputs: NamedArray, group_sizes: NamedArray, *, key: jax.Array | None = None
    ) -> NamedArray:
        """Apply each expert to its own group of elements.

        Args:
            inputs: axes {In} and one other, along which the elements are sorted by expert.
            group_sizes: integers, axes {Experts}: the number of elements of each expert.
            key: not used.
        """
        experts = spec(self.Experts)
        weight, sizes, groups = self.weight, group_sizes, experts[0]
        if len(experts) > 1:
            groups = Axis("__EXPERTS__", axis_size(experts))
            weight, sizes = (
                weight.flatten_axes(experts, groups),
                sizes.flatten_axes(experts, groups),
            )
        y = nn.MoELinear(weight, None, groups, self.In, self.Out)(inputs, sizes)
        order = list(inputs.names)
        order[order.index(self.In.name)] = self.Out.name
        y = auto_sharded(y.rearrange(order))
        if self.bias is None:
            return y
        return auto_sharded(y + auto_sharded(self.bias))

    @property
    def out_first(self) -> bool:
        """Whether the weight has `Out` before `In`."""
        names = self.weight.names
        return names.index(self.Out.name) < names.index(self.In.name)


def gmm_sharded(
    lhs_: jax.Array, rhs_: jax.Array, group_sizes_: jax.Array, ar: bool = False
) -> jax.Array:
    """Multiply each group of rows by its own matrix, on all backends; JAX handles the layout, so that `ar` is ignored.

    Args:
        lhs_: (rows, in), sorted by group.
        rhs_: (groups, in, out).
        group_sizes_: (groups,) integers, the numbers of rows.
        ar: not used.
    """
    rows, inputs, outputs, groups = "__ROWS__", "__IN__", "__OUT__", "__GROUPS__"
    lhs, rhs = NamedArray(lhs_, (rows, inputs)), NamedArray(rhs_, (groups, inputs, outputs))
    sizes = NamedArray(group_sizes_, (groups,))
    return ragged_dot(lhs, rhs, sizes, axis=inputs, ragged=rows, groups=groups).array
