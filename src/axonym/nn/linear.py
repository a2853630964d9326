"""Linear maps between named axes: a weight has the axes to sum over and those of the result, whatever their number."""

from collections.abc import Callable
from typing import Self

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSpec, axis_size, names_and_sizes, shown, spec
from ..create import zeros
from ..errors import AxisClashError, message
from ..ops.shape import rename
from ..partitioning.shard import auto_sharded
from .initializer import Initializer, between, fan_in
from .inputs import check_input
from .layer import Layer
from .settings import draw_parameter
from .weights import (
    add_bias,
    find_derived_names,
    find_stored_outputs,
    make_if,
    multiply,
    order_axes,
)

__all__ = ["Linear"]


class Linear(Layer):
    """Replace the axes `In` by `Out`: multiply by a weight, and add a bias.

    `In` and `Out` are one axis, several, or none. A name may be on both sides: the weight then calls the output side
    `<name>.out`, and the result has the plain name. A mapping for the name then shards only the input side of the
    weight, since a mesh axis can shard one axis of an array; the output side needs an entry for `<name>.out`.

    Attributes:
        weight: axes {*In, *Out}.
        bias: axes {*Out}, or None.
        In: the axes to sum over.
        Out: the axes that replace them.
        dot_general: the function that multiplies, with the signature of `jax.lax.dot_general`, the default. It may be a
            module with arrays; in stacked layers, these have a leading dimension for the layers.

    Examples:
        >>> Embed, Heads, HeadDim = axn.make_axes(embed=8, heads=2, head_dim=4)
        >>> query = axn.nn.Linear.init(Embed, (Heads, HeadDim), key=jax.random.key(0))
        >>> query(axn.ones({"batch": 3, "embed": 8})).shape
        {'batch': 3, 'heads': 2, 'head_dim': 4}
        >>> axn.nn.Linear.init(Embed, Embed, key=jax.random.key(0)).weight.shape
        {'embed': 8, 'embed.out': 8}
    """

    weight: NamedArray
    bias: NamedArray | None
    In: tuple[Axis, ...] = eqx.field(static=True)
    Out: tuple[Axis, ...] = eqx.field(static=True)
    dot_general: Callable[..., jax.Array] | None = None

    @classmethod
    def init(
        cls,
        In: AxisSpec,
        Out: AxisSpec,
        *,
        key: jax.Array,
        use_bias: bool = True,
        out_first: bool = False,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
        dot_general: Callable[..., jax.Array] | None = None,
    ) -> Self:
        """Make a layer.

        Args:
            In: the axes to sum over.
            Out: the axes of the result.
            key: for the weight; the bias starts at zero.
            use_bias: whether there is one.
            out_first: whether to store the weight as {*Out, *In}, as torch does; the order {*In, *Out} needs no
                transpose.
            init_scale: a factor for the default initializer.
            initializer: makes the weight; by default `fan_in` of the size of `In`.
            dot_general: the function that multiplies; see `axonym.quant` for quantised products.

        Raises:
            AxisClashError: if the weight would have an axis `<name>.out` twice.
        """
        inputs, outputs = spec(In, "Linear.init"), spec(Out, "Linear.init")
        stored = find_stored_outputs(inputs, outputs)
        _check_distinct(inputs, outputs, stored)

        if initializer is None:
            initializer = fan_in(axis_size(inputs), init_scale)
        axes = order_axes(inputs, stored, out_first)
        # `between` names the sides, since the axes of the weight alone do not say which ones are summed over.
        weight = draw_parameter("Linear.init", between(initializer, inputs, stored), key, axes)
        bias = make_if(use_bias, zeros, outputs)

        # Transformations reject a plain function as a leaf; a `Partial` is a node that holds it.
        if jax.tree_util.all_leaves([dot_general]):
            dot_general = jax.tree_util.Partial(dot_general)
        return cls(weight, bias, inputs, outputs, dot_general)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layer.

        Inside `shard_map`, the weight may be a local block. If that splits `In`, the result is a partial sum: use a
        layer without bias, and `axn.psum`.

        Args:
            x: axes {*In, ...}, in any order.
            key: not used; every layer takes one.

        Returns:
            Axes {..., *Out}: those of `x` without `In`, in their order, then `Out`.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `In`.
            AxisSizeError: if an axis has another size.
            AxisClashError: if `x` already has an axis of `Out`, or the `<name>.out` of the weight.
        """
        stored = find_stored_outputs(self.In, self.Out)
        # A second axis of the name of a stored output would be multiplied position by position.
        check_input("Linear", x, self.In, (*self.Out, *stored), blocks=True)

        y = multiply(x, self.weight, self.In, self.dot_general)
        if stored != self.Out:
            plain = {
                derived: name for name, derived in find_derived_names(self.In, self.Out).items()
            }
            y = auto_sharded(rename(y, plain))  # the mapping may shard the plain name otherwise
        return add_bias(y, self.bias)


def _check_distinct(
    inputs: tuple[Axis, ...], outputs: tuple[Axis, ...], stored: tuple[Axis, ...]
) -> None:
    """Check that no input is called `<name>.out` beside an output that the weight would call so."""
    names, _ = names_and_sizes((*inputs, *stored))
    for own, out in zip(stored, outputs, strict=True):
        if names.count(own.name) > 1:
            problem = (
                f"the weight would store output {out.name!r} as {own.name!r}, which it already has"
            )
            lines = (f"In: {shown(*inputs)}", f"Out: {shown(*outputs)}")
            hint = "rename one of the two"
            raise AxisClashError(message("Linear.init", problem, *lines, hint=hint))
