"""Convolutions, and their transposes, over any number of named axes, in any layout on devices.

`lax` has one batch dimension, so others are merged into it. The compiler gets gradients wrong where a spatial axis is
split (see `faults.split_windows`): there, each device convolves its block, and neighbours exchange edges.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ..array import NamedArray
from ..axis import Axis, AxisSelection, axis_name, names_in, selection, selectors, shown, sized
from ..engine import auto, checks, kernels
from ..engine.core import Core, facts, wrap
from ..engine.renaming import share_by_renaming
from ..errors import ArgumentError, AxisSizeError, message
from ..faults.split_windows import (
    must_convolve_in_blocks,
)
from ..layout import assignment, explicit, partition
from ..layout.blocks import choose_manual_axes, find_entries, find_mesh
from ..names import plans
from ..names.plans import Names
from ..partitioning.shard import auto_sharded
from .conv_blocks import convolve_blocks, convolve_whole
from .initializer import Initializer, between, uniform
from .inputs import check_input
from .layer import Layer
from .roles import Role
from .settings import check_int, draw_parameter
from .weights import add_bias, apply_gathered, find_stored_outputs
from .windows import (
    Padding,
    Pads,
    check_fit,
    count_sides,
    expand_setting,
    find_beyond,
    find_modes,
    read_padding,
)

__all__ = ["Conv", "ConvTranspose"]


class _Conv(Layer):
    """The fields and the product that both convolutions share."""

    weight: NamedArray
    bias: NamedArray | None
    Spatial: tuple[str | Axis, ...] = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)
    kernel_size: tuple[int, ...] = eqx.field(static=True)
    stride: tuple[int, ...] = eqx.field(static=True)
    padding: Pads = eqx.field(static=True)
    dilation: tuple[int, ...] = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    @property
    def axis_roles(self) -> dict[str, Role]:
        """The roles of axes of the weight that no field has: channels within a group, and the window."""
        windows = (f"kernel.{name}" for name in axis_name(self.Spatial))
        return {f"group.{self.In.name}": "input", **dict.fromkeys(windows, "window")}

    def _check_spatial_axes(self, x: NamedArray) -> tuple[Names, tuple[int, ...]]:
        """Check the input, and return the names and sizes of its spatial axes."""
        function = type(self).__name__
        if not isinstance(x, Core):
            raise checks.no_names(function, x, self.In.name)
        # Inside of the kernel, the weight's name of `Out` may be `<name>.out`, which the input must not have either.
        stored = Axis(self.weight.names[0], self.Out.size)
        sized = tuple(axis for axis in self.Spatial if isinstance(axis, Axis))
        # A block of `In` is a mistake if there are groups: it belongs to only some of the outputs.
        check_input(function, x, (self.In, *sized), (self.Out, stored), blocks=self.groups == 1)
        # Sizes of other spatial axes are free; `check_fit` compares them with the kernel.
        names = axis_name(self.Spatial)
        at = checks.run_plan(function, (x,), plans.positions, x.names, names)
        return names, tuple(x.array.shape[i] for i in at)

    @property
    def _spans(self) -> list[int]:
        """The distance between the ends of the kernel along each axis."""
        sizes = zip(self.kernel_size, self.dilation, strict=True)
        return [dilation * (size - 1) for size, dilation in sizes]

    def _apply(
        self, x: NamedArray, spatial: Names, *beyond: NamedArray, **options: object
    ) -> NamedArray:
        """Convolve with the weight, and add the bias; `beyond` lies beyond the ends of an axis."""
        options |= {"rhs_dilation": self.dilation, "feature_group_count": self.groups}
        # Tuples, as a part of the key of the kernel.
        operands, settings = (x.names, self.weight.names), tuple(options.items())
        kernel = _make_kernel(operands, spatial, self.In.name, self.Out.name, settings)

        def run(inputs: tuple[NamedArray, ...], weight: NamedArray) -> NamedArray:
            x, *beyond = inputs
            arrays = x.array, weight.array, *(own.array for own in beyond)
            return wrap(x, kernel.call(*arrays), kernel.names)

        return add_bias(auto_sharded(apply_gathered(run, (x, *beyond), self.weight)), self.bias)


class Conv(_Conv):
    """Convolve along the axes `Spatial`, from channels `In` to channels `Out`.

    There may be any number of spatial axes. All other axes of the input are batch axes, in any position. The result has
    the axes of the input in their order; `Out` replaces `In`, and spatial axes keep their names and change sizes.

    The weight has its own axes, so that a mapping for activations never splits a kernel: `kernel.<name>` for each
    spatial axis and, with several groups, `group.<in>` for the inputs of one group. If `Out` has the name of `In`, the
    weight calls it `<name>.out`, as in `Linear`, unless there are groups.

    As in other libraries of neural networks, the kernel is not flipped: the sums are those of a cross-correlation.

    Attributes:
        weight: axes {Out, In, kernel...}.
        bias: axes {Out}, or None.
        Spatial: the axes to slide along; inputs must have the size of one given as `Axis`.
        In: the axis to sum over.
        Out: the axis that replaces it.
        kernel_size: the size of the kernel along each spatial axis.
        stride: the step along each.
        padding: the number of zeros on each side of each, or "SAME" or "VALID", or what lies beyond the ends.
        dilation: the distance between neighbours in the kernel, along each.
        groups: the number of parts of `In` and `Out`; each part of `Out` sees only its part of `In`. The convolution
            is depthwise if there are as many groups as input channels.

    Examples:
        >>> Time, Channels, Features = axn.make_axes(time=5, channels=1, features=2)
        >>> conv = axn.nn.Conv.init("time", Channels, Features, kernel_size=3, key=jax.random.key(0))
        >>> conv.weight.shape
        {'features': 2, 'channels': 1, 'kernel.time': 3}
        >>> conv(axn.ones((Time, Channels))).shape
        {'time': 3, 'features': 2}
    """

    @classmethod
    def init(
        cls,
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: int | Sequence[int],
        *,
        key: jax.Array,
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        use_bias: bool = True,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a layer; settings are one int, or one for each spatial axis.

        Args:
            Spatial: the axes to slide along, or their names.
            In: the axis to sum over.
            Out: the axis of the result.
            kernel_size: the size of the kernel.
            key: for weight and bias.
            stride: the step.
            padding: zeros around the input: "SAME", "VALID", an int, one for each axis, or a pair for each axis. In a
                mapping by axis, also what lies beyond its ends, as much as keeps the size at stride 1: "wrap" for a
                circle, "reflect", "symmetric", "edge", "constant" for zeros, or a function. It gets the elements at
                one end, as many as it must add and in their order, and returns those beyond that end.
            dilation: the distance between neighbours in the kernel.
            groups: the number of independent parts.
            use_bias: whether to add a bias.
            initializer: makes the weight; by default, weight and bias are uniform within one over the square root of
                the number of inputs.

        Raises:
            ArgumentError: if a setting is invalid, or does not have one entry for each axis.
            AxisClashError: if an axis is given twice.

        Examples:
            >>> Channels, Features = axn.make_axes(channels=3, features=8)
            >>> conv = axn.nn.Conv.init(("height", "width"), Channels, Features, 3, stride=2, key=jax.random.key(0))
            >>> conv(axn.ones({"batch": 2, "height": 9, "width": 9, "channels": 3})).shape
            {'batch': 2, 'height': 4, 'width': 4, 'features': 8}
            >>> padding = {"lat": "edge", "lon": "wrap"}
            >>> conv = axn.nn.Conv.init(("lat", "lon"), Channels, Features, 3, padding=padding, key=jax.random.key(0))
            >>> conv(axn.ones({"lat": 4, "lon": 8, "channels": 3})).shape
            {'lat': 4, 'lon': 8, 'features': 8}
        """
        weight, bias, spatial, kernel, groups = _make_parameters(
            "Conv.init", Spatial, In, Out, kernel_size, groups, use_bias, initializer, key
        )
        count = len(spatial)
        steps = expand_setting("Conv.init", "stride", stride, count)
        apart = expand_setting("Conv.init", "dilation", dilation, count)
        windows = [step * (size - 1) + 1 for size, step in zip(kernel, apart, strict=True)]
        sides = read_padding("Conv.init", padding, count, axis_name(spatial), windows)
        return cls(weight, bias, spatial, In, Out, kernel, steps, sides, apart, groups)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layer.

        Args:
            x: axes {*Spatial, In, ...}.
            key: not used; every layer takes one.

        Returns:
            Axes {*Spatial, Out, ...}; the size of a spatial axis is the number of positions of the kernel.

        Raises:
            AxisNotFoundError: if `x` lacks an axis.
            AxisSizeError: if an axis has another size, or the kernel does not fit.
            AxisClashError: if `x` already has `Out`.
        """
        names, sizes = self._check_spatial_axes(x)
        windows = [span + 1 for span in self._spans]
        check_fit("Conv", names, sizes, windows, self.padding, facts(x))
        beyond = find_beyond("Conv", x, names, self.padding)
        padding = {"padding": count_sides(self.padding), "modes": find_modes(self.padding)}
        return self._apply(x, names, *beyond, window_strides=self.stride, **padding)


class ConvTranspose(_Conv):
    """Apply a transposed convolution, as the gradient of `Conv` does.

    It reverses the sizes: with the settings of a `Conv`, it takes inputs of the size of that layer's result, and gives
    results of the size of its input. The weight has the axes of `Conv`, {Out, In, kernel...}: for the transpose of a
    given `Conv`, take its weight, flip the kernel axes and exchange inputs and outputs.

    Attributes:
        weight: axes {Out, In, kernel...}, named as in `Conv`.
        bias: axes {Out}, or None.
        Spatial: the axes to slide along; inputs must have the size of one given as `Axis`.
        In: the axis to sum over.
        Out: the axis that replaces it.
        kernel_size: the size of the kernel along each spatial axis.
        stride: the distance in the result between neighbours of the input, along each.
        padding: how much to cut off on each side of the result, along each axis; "SAME" multiplies sizes by `stride`.
        dilation: the distance between neighbours in the kernel, along each.
        groups: the number of parts of `In` and `Out`.
        output_padding: how much longer the result is at its end, along each: with a stride, a `Conv` maps several sizes
            to one.

    Reference:
        Dumoulin, Visin (2016), A guide to convolution arithmetic for deep learning.

    Examples:
        >>> Time, Channels = axn.make_axes(time=4, channels=3)
        >>> up = axn.nn.ConvTranspose.init("time", Channels, Channels, 2, stride=2, key=jax.random.key(0))
        >>> up(axn.ones((Time, Channels))).shape
        {'time': 8, 'channels': 3}
    """

    output_padding: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: int | Sequence[int],
        *,
        key: jax.Array,
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        use_bias: bool = True,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a layer as `Conv.init` does, with its arguments.

        Args:
            Spatial: the axes to slide along, or their names.
            In: the axis to sum over.
            Out: the axis of the result.
            kernel_size: the size of the kernel.
            key: for weight and bias.
            stride: the distance in the result between neighbours of the input.
            padding: how much to cut off on each side of the result, in the forms of `Conv.init`.
            output_padding: how much longer the result is at its end; less than the stride.
            dilation: the distance between neighbours in the kernel.
            groups: the number of independent parts.
            use_bias: whether to add a bias.
            initializer: see `Conv.init`.

        Raises:
            ArgumentError: if a setting is invalid, or does not have one entry for each axis.
            AxisClashError: if an axis is given twice.
        """
        function = "ConvTranspose.init"
        weight, bias, spatial, kernel, groups = _make_parameters(
            function, Spatial, In, Out, kernel_size, groups, use_bias, initializer, key
        )
        count = len(spatial)
        steps = expand_setting(function, "stride", stride, count)
        apart = expand_setting(function, "dilation", dilation, count)
        extra = expand_setting(function, "output_padding", output_padding, count, least=0)
        for more, step in zip(extra, steps, strict=True):
            if more >= step:
                problem = f"output_padding must be less than the stride, not {more} where the stride is {step}"
                raise ArgumentError(message(function, problem))
        sides = read_padding(function, padding, count)
        return cls(weight, bias, spatial, In, Out, kernel, steps, sides, apart, groups, extra)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layer.

        Args:
            x: axes {*Spatial, In, ...}.
            key: not used; every layer takes one.

        Returns:
            Axes {*Spatial, Out, ...}.

        Raises:
            AxisNotFoundError: if `x` lacks an axis.
            AxisSizeError: if an axis has another size, or the padding would cut off more than the result.
            AxisClashError: if `x` already has `Out`.
        """
        names, sizes = self._check_spatial_axes(x)
        self._check_cut(x, names, sizes)
        # The transpose of a convolution is one with stride 1 over an input with zeros between its elements.
        steps, sides = (1,) * len(names), self._compute_padding()
        return self._apply(x, names, window_strides=steps, padding=sides, lhs_dilation=self.stride)

    def _check_cut(self, x: NamedArray, names: Names, sizes: tuple[int, ...]) -> None:
        """Check that the padding does not exceed the result."""
        padding = count_sides(self.padding)
        if isinstance(padding, str):  # "SAME" and "VALID" cut off less than the kernel adds
            return
        reach = map(operator.add, self._spans, self.output_padding)
        cuts = map(sum, padding)
        for name, size, more, step, cut in zip(names, sizes, reach, self.stride, cuts, strict=True):
            full = max((size - 1) * step + 1, 0) + more
            if cut > full:
                problem = f"axis {name!r} of size {size} becomes {full}, less than the padding of {cut} to remove"
                least = -(-(cut - more) // step) + 1
                hint = f"give the axis a size of at least {least}, or the layer less padding"
                raise AxisSizeError(
                    message("ConvTranspose", problem, f"input has: {facts(x)}", hint=hint)
                )

    def _compute_padding(self) -> tuple[tuple[int, int], ...]:
        """Return the padding of the convolution that is the transpose: what the kernel adds, less what is cut off."""
        sides: list[tuple[int, int]] = []
        padding = count_sides(self.padding)
        settings = zip(self._spans, self.stride, self.output_padding, strict=True)
        for i, (span, step, extra) in enumerate(settings):
            low = high = 0
            if padding == "SAME":
                # The kernel makes `span + 1` elements of one; all but `step` of them are cut off, on both sides.
                excess = span + 1 - step + extra
                low = max(excess, 0) // 2
                high = max(excess, 0) - low
                extra = max(-excess, 0)
            elif not isinstance(padding, str):
                low, high = padding[i]
            sides.append((span - low, span - high + extra))
        return tuple(sides)


def _make_parameters(
    function: str,
    Spatial: AxisSelection,
    In: Axis,
    Out: Axis,
    kernel_size: int | Sequence[int],
    groups: int,
    use_bias: bool,
    initializer: Initializer | None,
    key: jax.Array,
) -> tuple[NamedArray, NamedArray | None, tuple[str | Axis, ...], tuple[int, ...], int]:
    """Make weight and bias, and normalise the spatial axes, the size of the kernel and the number of groups."""
    given, In, Out = selection(Spatial, function), sized(In, function), sized(Out, function)
    names = names_in(given)
    # `In` and `Out` may share a name, so each is compared alone.
    plans.distinct((In.name, *names), f"{function}: ")
    plans.distinct((Out.name, *names), f"{function}: ")
    if not given:
        hint = "use nn.Linear without spatial axes"
        raise ArgumentError(message(function, "there is no spatial axis", hint=hint))

    groups = check_int(function, "groups", groups)
    if groups < 1 or In.size % groups or Out.size % groups:
        problem = f"{groups} groups do not divide both axes evenly"
        raise ArgumentError(message(function, problem, f"In: {shown(In)}", f"Out: {shown(Out)}"))
    kernel = expand_setting(function, "kernel_size", kernel_size, len(given))
    inputs = In if groups == 1 else Axis(f"group.{In.name}", In.size // groups)
    (stored,) = find_stored_outputs((inputs,), (Out,))
    window = [Axis(f"kernel.{name}", size) for name, size in zip(names, kernel, strict=True)]

    # The default of torch; `or 1` is for an axis or a kernel of size zero.
    limit = 1 / math.sqrt(math.prod(kernel) * inputs.size or 1)
    draw = uniform(-limit, limit)
    weight_key, bias_key = jax.random.split(key)
    make = between(initializer or draw, (inputs, *window), stored)
    # The order that `lax` takes without a transpose, and that torch stores.
    weight = draw_parameter(function, make, weight_key, (stored, inputs, *window))
    bias = draw(bias_key, (Out,)) if use_bias else None
    return weight, bias, selectors(given), kernel, groups


@share_by_renaming("operands", "spatial", "feature", "out")
def _make_kernel(
    operands: tuple[Names, Names],
    spatial: Names,
    feature: str,
    out: str,
    options: tuple[tuple[str, Any], ...],
) -> kernels.Kernel:
    """Make the kernel of a convolution of an input and a weight {out, in, kernel...}."""
    names, stored = operands
    target = plans.rename(names, ((feature, out),))
    core = plans.positions(names, (feature, *spatial))

    def body(x: jax.Array, weight: jax.Array, *beyond: jax.Array) -> jax.Array:
        # `lax` raises for two dtypes.
        dtype = jnp.promote_types(x.dtype, weight.dtype)
        x, weight = x.astype(dtype), weight.astype(dtype)
        beyond = tuple(own.astype(dtype) for own in beyond)

        mesh = find_mesh(x)
        entries, filters = find_entries(x, names), find_entries(weight, stored)
        shards = [partition.count_shards(mesh, entry) for entry in entries]
        is_explicit = any(map(explicit.has_explicit_axes, (x, weight)))
        manual = choose_manual_axes(mesh, [*entries, *filters], is_explicit)

        at = [i + x.ndim for i in core]
        settings = dict(options)
        padded = {
            i: mode for i, mode in zip(at[1:], settings.pop("modes", ()), strict=False) if mode
        }
        settings["modes"] = padded
        plain: Callable[..., jax.Array] = partial(
            convolve_whole, core=at, shards=shards, **settings
        )
        call = plain

        groups = settings["feature_group_count"]
        # The compiler may split an axis unevenly, and is then as wrong; blocks on devices need even ones.
        wanted = find_entries(x, names, is_even=False)
        if must_convolve_in_blocks(mesh, wanted, at[1:], groups, filters[0], manual):
            layout: dict[str, Any] = {"entries": entries, "filters": filters, "manual": manual}
            call = partial(convolve_blocks, core=at, **layout, **settings)
        if not is_explicit:
            return call(x, weight, *beyond)
        # Explicit axes want the type of the result before it is computed. Types without sharding give its shape.
        operands = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, weight, *beyond)]
        shape = jax.eval_shape(plain, *operands).shape
        anonymous = tuple(range(x.ndim - len(names)))
        # The feature axis is summed over, so its mesh axes do not go to the result: those of the weight's outputs do.
        labels = (*anonymous, *(None if name == feature else name for name in names))
        results = (*anonymous, *target)
        # A spatial axis whose new size cannot be split evenly is replicated here; `auto_sharded` shards it later.
        decided: dict[str, assignment.Entry] = {
            name: () if shape[i] % shards[i] else entries[i]
            for name, i in zip(spatial, at[1:], strict=True)
        }
        kinds = labels, (out, *(None for _ in stored[1:]))
        table = explicit.choose(results, kinds, (x, weight), decided)
        kept = list(plans.values_at(table, results))
        result: jax.Array = auto.local(call, [x, weight, *beyond], kept)
        return result

    return kernels.Kernel(target, body)
