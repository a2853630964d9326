"""Pooling: reduce windows that slide along named axes, in any layout on devices.

The functions without `adaptive` take windows and strides, and are one `lax.reduce_window`. The adaptive ones take the
sizes of the result, and choose windows of perhaps different sizes.
"""

import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.typing import ArrayLike

from ..array import NamedArray
from ..axis import AxisSpec, axis_name, spec
from ..base.calls import explain_calls
from ..base.dtypes import limits, widen
from ..engine import along, auto, checks, kernels
from ..engine.core import Core, facts, shape_of, wrap
from ..errors import ArgumentError, AxisSizeError, message
from ..faults.padded_sums import sum_windows
from ..faults.shared_paddings import separate_padding
from ..faults.split_windows import (
    Slide,
    add_edges,
    choose_blocks,
    must_pool_in_blocks,
    pad_ends,
    trim,
)
from ..layout import assignment, context, explicit, partition
from ..layout.blocks import choose_manual_axes, find_entries, find_mesh
from ..layout.layout import Layout
from ..names import plans
from ..names.plans import Names
from ..ops import reduce
from ..partitioning.shard import auto_sharded
from .windows import (
    Padding,
    check_fit,
    count_sides,
    expand_setting,
    find_beyond,
    find_modes,
    read_padding,
)

__all__ = ["adaptive_max_pool", "adaptive_mean_pool", "max_pool", "mean_pool", "min_pool", "pool"]

Reduction = Callable[[Any, Any], Any]
# Reductions of arrays, and their functions of two elements, which windows need.
_PAIRWISE: dict[Callable[..., Any], Reduction] = {
    reduce.sum: lax.add,
    reduce.prod: lax.mul,
    reduce.max: lax.max,
    reduce.min: lax.min,
}


def pool(
    Window: AxisSpec,
    inputs: NamedArray,
    init: ArrayLike,
    reduce_fn: Reduction,
    stride: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
    use_ceil: bool = False,
) -> NamedArray:
    """Reduce the windows that slide along the axes of `Window`; all axes keep their names and places.

    Args:
        Window: the axes to slide along, with the sizes of the window.
        inputs: axes {*Window, ...}.
        init: the initial value of each window, and the value of padding; it must not change the result.
        reduce_fn: an associative function of two elements, such as `jax.lax.add`; or `axn.sum`, `axn.prod`, `axn.max`
            or `axn.min`. Sums from 0, maxima from -inf and minima from inf have gradients.
        stride: the step, for all axes or for each; by default 1.
        padding: "VALID" for none, "SAME" to keep the size at stride 1, an int, one for each axis, a pair for each
            axis, or a mapping by axis, which may say what lies beyond its ends, as in `Conv.init`.
        use_ceil: whether to reduce also a last window that extends beyond the padded input.

    Returns:
        The axes of `inputs`; those of `Window` have as many positions as there are windows.

    Raises:
        AxisNotFoundError: if `inputs` lacks an axis of `Window`.
        AxisSizeError: if a window does not fit.
        ArgumentError: if `stride` or `padding` is invalid.

    Examples:
        >>> x = axn.arange(axn.Axis("time", 6))
        >>> axn.nn.pool(axn.Axis("time", 3), x, 0, jax.lax.add, stride=3)
        NamedArray(int32[time=2])
        [ 3 12]
    """
    pairwise = _PAIRWISE.get(reduce_fn, reduce_fn)
    # A Python number, since the key of a kernel must be hashable.
    start = kernels.static("pool", {"init": np.asarray(init).item()})
    return _reduce_windows("pool", Window, inputs, start, pairwise, stride, padding, use_ceil)


def max_pool(
    Window: AxisSpec,
    inputs: NamedArray,
    stride: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
    use_ceil: bool = False,
) -> NamedArray:
    """Return the largest element of each window, never one of the padding.

    Args:
        Window: the axes to slide along, with the sizes of the window.
        inputs: axes {*Window, ...}.
        stride: the step, for all axes or for each; by default 1, unlike torch, whose default is the window.
        padding: see `pool`.
        use_ceil: see `pool`.

    Returns:
        The axes of `inputs`; those of `Window` have as many positions as there are windows.

    Raises:
        AxisNotFoundError: if `inputs` lacks an axis of `Window`.
        AxisSizeError: if a window does not fit.
        ArgumentError: if `stride` or `padding` is invalid.

    Examples:
        >>> axn.nn.max_pool(axn.Axis("time", 2), axn.named([1, 5, 2, 3], "time"), stride=2).tolist()
        [5, 3]
    """
    return _reduce_windows("max_pool", Window, inputs, (), lax.max, stride, padding, use_ceil)


def min_pool(
    Window: AxisSpec,
    inputs: NamedArray,
    stride: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
    use_ceil: bool = False,
) -> NamedArray:
    """Return the smallest element of each window; arguments, result and errors are those of `max_pool`.

    Examples:
        >>> axn.nn.min_pool(axn.Axis("time", 2), axn.named([1, 5, 2, 3], "time"), stride=2).tolist()
        [1, 2]
    """
    return _reduce_windows("min_pool", Window, inputs, (), lax.min, stride, padding, use_ceil)


def mean_pool(
    Window: AxisSpec,
    inputs: NamedArray,
    stride: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
    *,
    use_ceil: bool = False,
    count_include_pad: bool = False,
) -> NamedArray:
    """Average each window, in float32 or wider; the errors are those of `pool`.

    Args:
        Window: the axes to slide along, with the sizes of the window.
        inputs: axes {*Window, ...}; means of integers are floats.
        stride: the step.
        padding: see `pool`.
        use_ceil: see `pool`.
        count_include_pad: whether padding counts, as zeros; by default, only elements of the input do. Positions that
            `use_ceil` adds beyond the padding never count.

    Returns:
        The axes of `inputs`; those of `Window` have as many positions as there are windows.

    Examples:
        >>> axn.nn.mean_pool(axn.Axis("time", 3), axn.arange(axn.Axis("time", 4)), padding="SAME").tolist()
        [0.5, 1.0, 2.0, 2.5]
    """
    slides, beyond = _plan_slides("mean_pool", Window, inputs, stride, padding, use_ceil)
    x, *ends = map(widen, (inputs, *beyond))
    kernel = _find_kernel(x.names, slides, lax.add, ())
    total = wrap(x, kernel.call(x.array, *(own.array for own in ends)), x.names)
    # The count of a window is a product over axes: a division for each axis needs no array as large as the result.
    for slide in slides:
        counts = slide.count_elements(count_include_pad)
        if len(set(counts)) > 1:
            divisors = kernels.constant(counts.astype(x.dtype))
            total = total / NamedArray(divisors, (x.names[slide.at],))
        else:
            total = total / int(counts[0])
    return auto_sharded(_restore_dtype(total, inputs))


def adaptive_max_pool(Target: AxisSpec, inputs: NamedArray) -> NamedArray:
    """Return the largest element of each window; see `adaptive_mean_pool` for the windows and the errors.

    Args:
        Target: the axes to shrink, with the sizes of the result.
        inputs: axes {*Target, ...}, of other sizes.

    Examples:
        >>> axn.nn.adaptive_max_pool(axn.Axis("time", 2), axn.named([1, 5, 2, 3, 0], "time")).tolist()
        [5, 3]
    """
    return _shrink_axes(_adaptive_max_pool, Target, inputs)


def adaptive_mean_pool(Target: AxisSpec, inputs: NamedArray) -> NamedArray:
    """Average windows, chosen so that the axes get the sizes of `Target`.

    An axis of size n shrinks to size m: window i has the positions from floor(i n / m) up to, but without,
    ceil((i + 1) n / m). If m divides n, windows are equal and do not overlap.

    Args:
        Target: the axes to shrink, with the sizes of the result.
        inputs: axes {*Target, ...}, of other sizes; means of integers are floats.

    Returns:
        The axes of `inputs`; those of `Target` have its sizes.

    Raises:
        AxisNotFoundError: if `inputs` lacks an axis of `Target`.
        AxisSizeError: if such an axis is empty.

    Examples:
        >>> axn.nn.adaptive_mean_pool(axn.Axis("time", 2), axn.arange(axn.Axis("time", 6))).tolist()
        [1.0, 4.0]
    """
    return _restore_dtype(_shrink_axes(_adaptive_mean_pool, Target, widen(inputs)), inputs)


def _reduce_windows(
    function: str,
    Window: AxisSpec,
    inputs: NamedArray,
    start: kernels.Options,
    reduction: Reduction,
    stride: int | Sequence[int] | None,
    padding: Padding,
    use_ceil: bool,
) -> NamedArray:
    """Reduce windows, which start from the option `init` or, without it, from the identity of the reduction."""
    slides, beyond = _plan_slides(function, Window, inputs, stride, padding, use_ceil)
    kernel = _find_kernel(inputs.names, slides, reduction, start)
    reduced = kernel.call(inputs.array, *(own.array for own in beyond))
    return auto_sharded(wrap(inputs, reduced, inputs.names))


# A kernel lives as long as the user's function: no cache keeps the function, and what it refers to, alive.
_kernels: MutableMapping[Reduction, dict[Any, kernels.Kernel]] = weakref.WeakKeyDictionary()


def _find_kernel(
    names: Names, slides: "tuple[_AxisSlide, ...]", reduction: Reduction, start: kernels.Options
) -> kernels.Kernel:
    """Look up or make the kernel of a pooling."""
    key = names, slides, start
    try:
        own = _kernels.setdefault(reduction, {})
        refer = cast(Callable[[], Reduction], weakref.ref(reduction))
    except TypeError:  # without a hash or without weak references
        return _make_kernel(*key, lambda: reduction)
    return own.get(key) or plans.keep(own, key, _make_kernel(*key, refer))


class _AxisSlide(NamedTuple):
    """How a window slides along one axis of an array.

    Attributes:
        at: the dimension of the axis, counted from the end.
        size: the size of the axis.
        window: the size of the window.
        step: the distance between neighbouring windows.
        low: the padding at the start.
        high: the padding at the end.
        over: how far the last window extends beyond the padding.
        mode: what the padding consists of, as `windows.find_modes` says; None for the identity of the reduction.
    """

    at: int
    size: int
    window: int
    step: int
    low: int
    high: int
    over: int
    mode: str | None = None

    @property
    def positions(self) -> int:
        """How many windows there are."""
        return (self.size + self.low + self.high + self.over - self.window) // self.step + 1

    def count_elements(self, include_pad: bool) -> npt.NDArray[np.integer]:
        """Count the elements of each window that a mean divides by."""
        starts = np.arange(self.positions) * self.step
        first, end = self.low, self.low + self.size
        if include_pad or self.mode:
            first, end = 0, end + self.high
        return np.clip(starts + self.window, first, end) - np.clip(starts, first, end)


def _plan_slides(
    function: str,
    Window: AxisSpec,
    inputs: NamedArray,
    stride: int | Sequence[int] | None,
    padding: Padding,
    use_ceil: bool,
) -> tuple[tuple[_AxisSlide, ...], tuple[NamedArray, ...]]:
    """Check the arguments of a pooling; return how its windows slide, and what `windows.find_beyond` does."""
    if not isinstance(inputs, Core):
        raise checks.no_names(function, inputs)
    axes = spec(Window, function)
    names, windows = axis_name(axes), [axis.size for axis in axes]
    steps = expand_setting(function, "stride", 1 if stride is None else stride, len(axes))
    padded = read_padding(function, padding, len(axes), names, windows)
    modes = find_modes(padded) or (None,) * len(axes)
    if use_ceil and any(modes):
        problem = "use_ceil extends windows beyond the padding, which only zeros allow"
        raise ArgumentError(message(function, problem, hint="pad by numbers"))
    sides = count_sides(padded)
    shape = shape_of(function, inputs.array, inputs.names)
    places = checks.run_plan(function, (inputs,), plans.positions, inputs.names, names)
    sizes = [shape[at] for at in places]
    check_fit(function, names, sizes, windows, sides, facts(inputs))
    # As numbers, since `use_ceil` and blocks change the padding at one end.
    if isinstance(sides, str):
        sides = tuple(lax.padtype_to_pads(sizes, windows, steps, sides))
    slides: list[_AxisSlide] = []
    for at, size, window, step, (low, high), mode in zip(
        places, sizes, windows, steps, sides, modes, strict=True
    ):
        over = -(size + low + high - window) % step if use_ceil else 0
        # As in torch, a last window that would begin in the padding at the end is left out.
        over = over if high + over < window else 0
        slides.append(_AxisSlide(at, size, window, step, low, high, over, mode))
    return tuple(slides), find_beyond(function, inputs, names, padded)


def _make_kernel(
    names: Names,
    slides: tuple[_AxisSlide, ...],
    start: kernels.Options,
    refer: Callable[[], Reduction],
) -> kernels.Kernel:
    """Make the kernel of a pooling, whose reduction `refer` returns."""

    def body(x: jax.Array, *beyond: jax.Array) -> jax.Array:
        reduction = refer()
        modes = {own.at + x.ndim: own.mode for own in slides if own.mode}
        window, stride, padding = [1] * x.ndim, [1] * x.ndim, [(0, 0)] * x.ndim
        shape = list(x.shape)
        for slide in slides:
            window[slide.at], stride[slide.at] = slide.window, slide.step
            if slide.mode is None:
                padding[slide.at] = (slide.low, slide.high + slide.over)
            shape[slide.at] = slide.positions

        if start:
            initial = kernels.keywords_of(start)["init"]
        else:
            initial = _find_identity(reduction, x.dtype)
        # A NumPy number is known while tracing, so that JAX recognises a reduction that has a derivative.
        first = np.asarray(initial, x.dtype)

        def call(x: jax.Array, padding: Sequence[tuple[int, int]]) -> jax.Array:
            def reduce_plain(x: jax.Array) -> jax.Array:
                result: jax.Array = lax.reduce_window(x, first, reduction, window, stride, padding)
                return result

            # Each guard is for a fault of the compiler, see the modules that they come from.
            if reduction is lax.add:
                return sum_windows(reduce_plain, x, [slide.at for slide in slides])
            return reduce_plain(separate_padding(x))

        def reduce_whole(x: jax.Array, *beyond: jax.Array) -> jax.Array:
            sides = {own.at + x.ndim: (own.low, own.high) for own in slides if own.mode}
            return call(pad_ends(x, sides, modes, beyond), padding)

        run: Callable[..., jax.Array] = reduce_whole
        mesh, sharding = find_mesh(x), find_entries(x, names)
        overlapping = (slide.at for slide in slides if slide.window > slide.step)
        # The compiler may split an axis unevenly, and is then as wrong; blocks on devices need even ones.
        wanted = find_entries(x, names, is_even=False)
        is_split = any(partition.count_shards(mesh, sharding[at]) > 1 for at in modes)
        if is_split or must_pool_in_blocks(reduction, mesh, wanted, overlapping):
            manual = choose_manual_axes(mesh, sharding, explicit.has_explicit_axes(x))
            run = partial(_reduce_blocks, call, slides, sharding, manual, first, modes)
        if not explicit.has_explicit_axes(x):
            return run(x, *beyond)

        # The result keeps the type of the input, but an axis whose new size cannot be split evenly is replicated.
        mesh = jax.typeof(x).sharding.mesh
        entries: list[assignment.Entry] = [
            () if size % partition.count_shards(mesh, entry) else entry
            for size, entry in zip(shape, explicit.get_layout(x), strict=True)
        ]
        result: jax.Array = auto.local(run, [x, *beyond], entries)
        return result

    return kernels.Kernel(names, body)


def _reduce_blocks(
    call: Callable[..., jax.Array],
    slides: tuple[_AxisSlide, ...],
    entries: Sequence[assignment.Entry],
    manual: Set[str],
    outside: object,
    modes: Mapping[int, str],
    x: jax.Array,
    *beyond: jax.Array,
) -> jax.Array:
    """Reduce the windows of each block on its own device; blocks exchange their edges.

    Args:
        call: reduces the windows of an array with a padding.
        slides: how windows slide.
        entries: the mesh axes of each dimension.
        manual: the mesh axes that become Manual.
        outside: the value of padding.
        modes: the modes of dimensions that are padded by something else.
        x: the input.
        beyond: what lies beyond the ends of the dimension whose mode is "given".
    """
    moves = {
        own.at + x.ndim: Slide(own.size, own.window, own.step, (own.low, own.high + own.over))
        for own in slides
    }
    mesh = find_mesh(x)
    sharding, edges, inside = choose_blocks(mesh, entries, moves, modes)
    padding = [(0, 0)] * x.ndim
    for at, sides in zip(moves, inside, strict=True):
        padding[at] = sides
    spec = Layout(sharding).spec
    # All devices get the values beyond an end: only those at the end of the mesh use them.
    ends = Layout(() if modes.get(at) == "given" else own for at, own in enumerate(sharding)).spec

    def reduce_block(x: jax.Array, *beyond: jax.Array) -> jax.Array:
        return call(add_edges(x, edges, sharding, outside, modes, beyond), padding)

    run = jax.shard_map(
        reduce_block,
        mesh=context.mesh_for_blocks(mesh),
        in_specs=(spec, *[ends] * len(beyond)),
        out_specs=spec,
        axis_names=manual,
    )
    return trim(run(x, *beyond), moves)


def _find_identity(reduction: Reduction, dtype: object) -> Any:
    """Return the identity of `lax.add`, `lax.max` or `lax.min`."""
    if reduction is lax.add:
        return 0
    lowest, highest = limits(dtype)
    return lowest if reduction is lax.max else highest


def _restore_dtype(mean: NamedArray, x: NamedArray) -> NamedArray:
    """Cast the mean of floats back to their dtype; that of integers stays a float."""
    return mean.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else mean


def _shrink_axes(
    function: Callable[..., jax.Array], Target: AxisSpec, inputs: NamedArray
) -> NamedArray:
    """Shrink one axis after the other: the windows of several are products, so maxima and means may be nested."""
    for axis in spec(Target, checks.title(function)):
        inputs = along.along_with(function, inputs, axis.name, windows=axis.size)
    return auto_sharded(inputs)


def _adaptive_max_pool(x: jax.Array, axis: int, windows: int) -> jax.Array:
    return _shrink("adaptive_max_pool", jnp.max, x, axis % x.ndim, windows)


def _adaptive_mean_pool(x: jax.Array, axis: int, windows: int) -> jax.Array:
    return _shrink("adaptive_mean_pool", jnp.mean, x, axis % x.ndim, windows)


def _shrink(
    function: str, reduction: Callable[..., jax.Array], x: jax.Array, axis: int, windows: int
) -> jax.Array:
    """Reduce one dimension to a number of windows: equal ones by a reshape, others one by one."""
    size = x.shape[axis]
    if not size or not windows:
        problem = f"cannot split an axis of size {size} into {windows} windows"
        raise AxisSizeError(message(function, problem))
    if not size % windows:
        # A single reduction, whatever the number of windows.
        split = x.reshape(*x.shape[:axis], windows, size // windows, *x.shape[axis + 1 :])
        return reduction(split, axis=axis + 1)
    bounds = [(i * size // windows, -(-(i + 1) * size // windows)) for i in range(windows)]
    parts = [lax.slice_in_dim(x, start, end, axis=axis) for start, end in bounds]
    return jnp.stack([reduction(part, axis=axis) for part in parts], axis)


explain_calls(globals(), __all__)
