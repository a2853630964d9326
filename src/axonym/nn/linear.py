"""Linear maps between named axes."""

from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSelector, AxisSpec, axis_size, shown, spec
from ..create import zeros
from ..errors import AxisClashError, message
from ..ops.shape import rename
from ..partitioning.shard import auto_sharded
from ._inputs import check_input
from ._settings import drawn
from ._weights import multiply, stored_outputs
from .initializer import Initializer, between, fan_in

__all__ = ["Linear"]


class Linear(eqx.Module):
    """Multiply by a weight over `In`, put `Out` in its place, and add a bias over `Out`.

    `In` and `Out` are one axis, several, or none. A name may be on both sides: the weight then keeps the one of the
    output as the derived axis `<name>.out`: a mapping for the name lays out the input side, and the output side unless
    it has an entry of its own or the mesh axis is taken. What comes out has the plain name.

    Attributes:
        weight: axes {In, Out}.
        bias: axes {Out}, or None.
        In: the axes that are summed over.
        Out: the axes that come in their place.
        dot_general: what multiplies, called like `jax.lax.dot_general`, which it is if None. It may be a module with
            arrays of its own; in layers that are stored along an axis, these have a leading dimension for it.
    """

    weight: NamedArray
    bias: NamedArray | None
    In: tuple[Axis, ...] = eqx.field(static=True)
    Out: tuple[Axis, ...] = eqx.field(static=True)
    dot_general: Callable[..., Any] | None = None

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
        dot_general: Callable[..., Any] | None = None,
    ) -> Self:
        """Make a layer.

        Args:
            In: the axes to sum over.
            Out: the axes of the result.
            key: for the weight; the bias starts at zero.
            use_bias: whether there is one.
            out_first: store the weight as {Out, In}; by default as {In, Out}, whose product needs no transpose.
            init_scale: a factor for the default initializer.
            initializer: what makes the weight; by default `fan_in` of the size of `In`.
            dot_general: what multiplies; see `axonym.quant` for quantised products.

        Raises:
            AxisClashError: if the weight would have an axis `<name>.out` twice.
        """
        inputs, outputs = spec(In, "Linear.init"), spec(Out, "Linear.init")
        stored = stored_outputs(inputs, outputs)
        names = [axis.name for axis in (*inputs, *stored)]
        for kept, out in zip(stored, outputs, strict=True):
            if names.count(kept.name) > 1:
                problem = f"the weight would keep the output {out.name!r} as {kept.name!r}, which it has already"
                lines = (f"In: {shown(*inputs)}", f"Out: {shown(*outputs)}")
                raise AxisClashError(message("Linear.init", problem, *lines, hint="rename one of the two"))
        if initializer is None:
            initializer = fan_in(axis_size(inputs), init_scale)
        initialize = between(initializer, inputs, stored)
        weight = drawn("Linear.init", initialize, key, (*stored, *inputs) if out_first else (*inputs, *stored))
        if jax.tree_util.all_leaves([dot_general]):  # a function, which transformations refuse among arrays
            dot_general = jax.tree_util.Partial(dot_general)
        return cls(weight, zeros(outputs) if use_bias else None, inputs, outputs, dot_general)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layer; the axes of `x` without `In` come first, then `Out`.

        Inside of a `shard_map`, the layer may have a block of its weight. If that splits `In`, the result is a part of
        a sum: use a layer without bias, and `axn.psum`.

        Args:
            x: axes {In, ...}.
            key: not used; every layer takes one.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `In`.
            AxisSizeError: if it has another size there.
            AxisClashError: if `x` already has an axis of `Out`, or the `<name>.out` under which the weight keeps it.
        """
        stored = stored_outputs(self.In, self.Out)
        check_input("Linear", x, self.In, (*self.Out, *stored), blocks=True)
        y = multiply(x, self.weight, self.In, self.dot_general)
        changed: dict[AxisSelector, AxisSelector] = {
            kept.name: out.name for kept, out in zip(stored, self.Out, strict=True) if kept != out
        }
        if changed:
            y = auto_sharded(rename(y, changed))
        # A bias that is sharded otherwise would lay out the result in its own way.
        return y if self.bias is None else y + auto_sharded(self.bias)
