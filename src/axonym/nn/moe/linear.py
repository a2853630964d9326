"""A linear layer for each expert, of elements that are stacked or sorted by expert."""

from typing import Self

import equinox as eqx
import jax

from ...array import NamedArray
from ...axis import Axis, sized
from ...base.kinds import type_text
from ...create import arange, zeros
from ...engine.core import Core, facts
from ...errors import OperandError, message
from ...names import plans
from ...ops.cumulative import cumsum
from ...ops.index import take
from ...ops.logical import greater_equal
from ...ops.segment import ragged_dot
from ...partitioning.shard import auto_sharded
from ..initializer import Initializer, between, fan_in
from ..inputs import check_input
from ..layer import Layer
from ..settings import draw_parameter
from ..weights import add_bias, apply_gathered, find_stored_outputs, make_if, multiply, order_axes

__all__ = ["MoELinear"]


class MoELinear(Layer):
    """Apply a linear map from `In` to `Out` for each expert.

    Attributes:
        weight: axes {Experts, In, Out}; an `Out` of the same name as `In` is called `<name>.out`.
        bias: axes {Experts, Out}, or None.
        Experts: the axis of experts.
        In: the axis to sum over.
        Out: the axis that replaces it.

    Examples:
        >>> Experts, In, Out, Token = axn.make_axes(experts=2, embed=4, mlp=3, token=5)
        >>> linear = axn.nn.MoELinear.init(Experts, In, Out, key=jax.random.key(0))
        >>> linear(axn.ones((Token, In)), axn.named([3, 2], Experts)).shape
        {'token': 5, 'mlp': 3}
    """

    weight: NamedArray
    bias: NamedArray | None
    Experts: Axis = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        Experts: Axis,
        In: Axis,
        Out: Axis,
        *,
        key: jax.Array,
        use_bias: bool = True,
        out_first: bool = False,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make the layers of all experts.

        Args:
            Experts: the axis of experts.
            In: the axis to sum over.
            Out: the axis of the result.
            key: for the weight; biases start at zero.
            use_bias: whether each expert has one.
            out_first: store the weight as {Experts, Out, In}.
            init_scale: a factor for the default initializer.
            initializer: makes the weight; by default `fan_in` of the size of `In`.

        Examples:
            >>> Experts, In, Out = axn.make_axes(experts=2, embed=4, mlp=3)
            >>> axn.nn.MoELinear.init(Experts, In, Out, key=jax.random.key(0)).weight.names
            ('experts', 'embed', 'mlp')
        """
        Experts, In, Out = (sized(axis, "MoELinear.init") for axis in (Experts, In, Out))
        (stored,) = find_stored_outputs((In,), (Out,))
        if initializer is None:
            initializer = fan_in(In.size, init_scale)
        axes = (Experts, *order_axes((In,), (stored,), out_first))
        weight = draw_parameter("MoELinear.init", between(initializer, In, stored), key, axes)
        bias = make_if(use_bias, zeros, (Experts, Out))
        return cls(weight, bias, Experts, In, Out)

    def __call__(
        self, x: NamedArray, group_sizes: NamedArray | None = None, *, key: jax.Array | None = None
    ) -> NamedArray:
        """Apply each expert to its own elements.

        Args:
            x: axes {Experts, In, ...}, the elements of each expert; or, with `group_sizes`, {In, ...} and one more
                axis, along which elements are sorted by expert.
            group_sizes: integers, axes {Experts, ...}: how many elements along that axis belong to each expert. They
                should sum to its size. Further axes are axes of `x` with separate groups, which take the place of a
                `vmap`: JAX has none for `ragged_dot`.
            key: not used; every layer takes one.

        Returns:
            The axes of `x` without `In`, then `Out`.

        Raises:
            AxisNotFoundError: if `x` lacks `In`, or `Experts` and there are no sizes.
            AxisClashError: if `x` already has `Out`.
            OperandError: if it is ambiguous along which axis `x` is sorted.

        Examples:
            >>> Experts, In, Out, Token = axn.make_axes(experts=2, embed=4, mlp=3, token=5)
            >>> linear = axn.nn.MoELinear.init(Experts, In, Out, key=jax.random.key(0))
            >>> linear(axn.ones((Experts, Token, In))).names
            ('experts', 'token', 'mlp')
        """
        (stored,) = find_stored_outputs((self.In,), (self.Out,))
        if group_sizes is None:
            check_input("MoELinear", x, (self.Experts, self.In), (self.Out, stored), blocks=True)
            y, bias = multiply(x, self.weight, (self.In,)), self.bias
        else:
            check_input("MoELinear", x, (self.In,), (self.Out, stored), blocks=True)
            y, bias = self._multiply_groups(x, group_sizes)

        if stored != self.Out:
            y = auto_sharded(y.rename({stored.name: self.Out.name}))
        return add_bias(y, bias)

    def _multiply_groups(
        self, x: NamedArray, group_sizes: NamedArray
    ) -> tuple[NamedArray, NamedArray | None]:
        """Multiply sorted elements by the weights of their experts; return the bias of each element too."""
        ragged = self._find_ragged_axis(x, group_sizes)

        def product(x: NamedArray, weight: NamedArray) -> NamedArray:
            return ragged_dot(
                x, weight, group_sizes, axis=self.In.name, ragged=ragged, groups=self.Experts.name
            )

        y = apply_gathered(product, x, self.weight)
        if self.bias is None:
            return y, None

        # Elements beyond all groups have no expert: they get the last bias, to have one.
        ends = cumsum(group_sizes, self.Experts.name)
        rows = arange(x.resolve_axis(ragged)).broadcast_axis(ends.axes)
        expert = greater_equal(rows, ends).sum(self.Experts.name)
        return y, take(self.bias, self.Experts.name, expert, mode="clip")

    def _find_ragged_axis(self, x: NamedArray, group_sizes: NamedArray) -> str:
        """Find the axis along which elements are sorted."""
        if not isinstance(group_sizes, Core):
            problem = f"group_sizes must be a NamedArray, not {type_text(group_sizes)}"
            hint = f'axn.named(sizes, "{self.Experts.name}")'
            raise OperandError(message("MoELinear", problem, hint=hint))

        names = plans.without(x.names, (self.In.name, *group_sizes.names))
        if len(names) != 1:
            candidates = ", ".join(names) or "none"
            problem = (
                f"elements must be sorted along one axis, but the candidates are: {candidates}"
            )
            lines = f"input has: {facts(x)}", f"group_sizes has: {facts(group_sizes)}"
            hint = 'flatten the axes first: x.flatten_axes((...), "token")'
            raise OperandError(message("MoELinear", problem, *lines, hint=hint))
        return names[0]
