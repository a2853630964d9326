"""Functions of values sampled along an axis: differences, slopes, integrals, interpolation, convolution.

In a second operand that is sampled along the same axis, such as the kernel of a convolution, the axis has the same name
and may have another size.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.export import is_symbolic_dim
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from ..axis import Axis, AxisSelection, AxisSelector, names_in, selection, selector, selectors
from ..base.calls import explain_calls
from ..base.dtypes import inexact_dtype, match_ranks
from ..engine import along, checks
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand, rename_axes
from ..errors import ArgumentError, AxisSizeError, message
from ..faults.slid_signals import slide_replicated
from ..names import plans
from . import elementwise

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["convolve", "correlate", "diff", "ediff1d", "gradient", "interp", "trapezoid", "unwrap"]


def convolve(
    x: Operand,
    v: Operand,
    axis: AxisSelector,
    *,
    mode: str = "full",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> "NamedArray":
    """Return the convolution of two signals along `axis`.

    Other axes that both signals have are matched. The result also has the axes of only one of them, so several filters
    can be applied to several signals at once. On a mesh of several axes, signals are gathered along `axis`.

    Args:
        x: axes {axis, ...}.
        v: axes {axis, ...}, where `axis` may have another size; or a plain 1-d array.
        axis: the axis to convolve along.
        mode: its size in the result, for sizes n and m: n + m - 1 for "full", the larger of the two for "same"; "valid"
            keeps the positions where the two overlap completely.
        precision: the precision of the products, as in `jax.lax`.
        preferred_element_type: the dtype to accumulate in and return; by default a float, for integers too.

    Returns:
        The axes of both.

    Raises:
        ArgumentError: if `mode` is unknown.
        AxisSizeError: if a signal is empty.

    Examples:
        >>> signal, kernel = axn.named([1., 2., 3.], "time"), axn.named([0.5, 0.5], "time")
        >>> axn.convolve(signal, kernel, "time", mode="valid")
        NamedArray(float32[time=2])
        [1.5 2.5]
    """
    return _slide(_convolve, x, v, axis, mode, precision, preferred_element_type)


def correlate(
    x: Operand,
    v: Operand,
    axis: AxisSelector,
    *,
    mode: str = "valid",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> "NamedArray":
    """Return the cross-correlation of `x` and `v` along `axis`; `v` is conjugated.

    Args:
        x: axes {axis, ...}.
        v: axes {axis, ...}, where `axis` may have another size; or a plain 1-d array.
        axis: the axis to correlate along.
        mode: as in `convolve`.
        precision: as in `convolve`.
        preferred_element_type: as in `convolve`.

    Returns:
        The axes of both.

    Raises:
        ArgumentError: if `mode` is unknown.
        AxisSizeError: if a signal is empty.

    Examples:
        >>> axn.correlate(axn.named([1., 2., 3.], "time"), axn.named([0., 1.], "time"), "time").tolist()
        [2.0, 3.0]
    """
    return _slide(_correlate, x, v, axis, mode, precision, preferred_element_type)


def diff(
    x: "NamedArray",
    axis: AxisSelector,
    n: int = 1,
    *,
    prepend: Operand | None = None,
    append: Operand | None = None,
) -> "NamedArray":
    """Return the `n`-th differences along `axis`.

    Args:
        x: axes {axis, ...}.
        axis: the axis to take differences along.
        n: the number of times to take differences, static.
        prepend: elements to put before `x` first; one if it lacks `axis`.
        append: elements to put after `x` first; one if it lacks `axis`.

    Returns:
        The axes of `x`; `axis` is `n` shorter.

    Raises:
        ArgumentError: if `n` is negative.

    Examples:
        >>> axn.diff(axn.named([1, 4, 9], "time"), "time", prepend=0)
        NamedArray(int32[time=3])
        [1 3 5]
    """
    # The usual call, whose kernel is found without its options.
    if prepend is None and append is None and n.__class__ is int and n == 1:
        return along.along(jnp.diff, x, axis)
    if operator.index(n) < 0:
        raise ArgumentError(message("diff", f"the order must not be negative, got {n}"))
    if prepend is None and append is None:
        return along.along_with(jnp.diff, x, axis, n=n)
    return _apply_with_ends(_diff, x, axis, {"prepend": prepend, "append": append}, n=n)


def ediff1d(
    x: "NamedArray",
    axis: AxisSelector,
    *,
    to_end: Operand | None = None,
    to_begin: Operand | None = None,
) -> "NamedArray":
    """Return the differences along `axis`, with elements added before and after them.

    Args:
        x: axes {axis, ...}.
        axis: the axis to take differences along; `jnp.ediff1d` flattens its argument.
        to_end: elements to put after the differences; one if it lacks `axis`.
        to_begin: elements to put before the differences; one if it lacks `axis`.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.ediff1d(axn.named([1, 4, 9], "time"), "time", to_begin=0).tolist()
        [0, 3, 5]
    """
    return _apply_with_ends(_ediff1d, x, axis, {"to_begin": to_begin, "to_end": to_end})


@overload
def gradient(  # type: ignore[overload-overlap]  # a str is a Sequence too
    x: "NamedArray",
    axis: AxisSelector,
    *,
    spacing: Operand | Mapping[str, Operand] = 1.0,
    edge_order: int = 1,
) -> "NamedArray": ...
@overload
def gradient(
    x: "NamedArray",
    axis: Sequence[AxisSelector] | Mapping[str, int | None],
    *,
    spacing: Operand | Mapping[str, Operand] = 1.0,
    edge_order: int = 1,
) -> tuple["NamedArray", ...]: ...
def gradient(
    x: "NamedArray",
    axis: AxisSelection,
    *,
    spacing: Operand | Mapping[str, Operand] = 1.0,
    edge_order: int = 1,
) -> "NamedArray | tuple[NamedArray, ...]":
    """Return the gradient of sampled values along `axis`, by central differences.

    Args:
        x: axes {axis, ...}.
        axis: one axis or several.
        spacing: an array with the axis gives the coordinates of the samples, one without it their distance. A mapping
            gives each axis its own; the distance is one along other axes.
        edge_order: 1, or 2 for second-order accuracy at the two ends too.

    Returns:
        The axes of `x`; with several axes, a tuple of gradients in their order.

    Raises:
        AxisSizeError: if an axis has fewer than `edge_order` + 1 elements.

    Examples:
        >>> time = axn.named([0., 1., 3.], "time")
        >>> axn.gradient(time * time, "time", spacing=time, edge_order=2)
        NamedArray(float32[time=3])
        [0. 2. 6.]
    """
    if not isinstance(x, Core):
        raise checks.no_names("gradient", x)
    if edge_order not in (1, 2):
        raise ArgumentError(message("gradient", f"edge_order must be 1 or 2, got {edge_order}"))
    pairs = selection(axis, "gradient")
    names = names_in(pairs)
    table = dict(spacing) if isinstance(spacing, Mapping) else dict.fromkeys(names, spacing)
    checks.run_plan("gradient", (x,), plans.require, names, tuple(table))

    results = tuple(_slope(x, pair, table.get(pair[0], 1.0), edge_order) for pair in pairs)
    return results[0] if isinstance(axis, str | Axis) else results


def interp(
    x: Operand,
    xp: Operand,
    fp: Operand,
    axis: AxisSelector,
    *,
    left: Operand | None = None,
    right: Operand | None = None,
    period: Operand | None = None,
) -> "NamedArray":
    """Interpolate linearly between samples along `axis`.

    Args:
        x: where to evaluate; any axes; one with the name of `axis` may have another size.
        xp: the coordinates of the samples, ascending; axes {axis, ...}, or a plain 1-d array.
        fp: the samples; axes {axis, ...}, or a plain 1-d array.
        axis: the axis of the samples.
        left: the value below the first sample; the first sample by default, or "extrapolate".
        right: the value above the last sample; the last sample by default, or "extrapolate".
        period: the period of the function, if any; `xp` then need not be ascending.

    Returns:
        The axes of `x`, then the others of `xp` and `fp`; axes that operands share are matched.

    Raises:
        ArgumentError: if `left` or `right` is an unknown text.

    Examples:
        >>> samples = axn.named([0., 10., 20.], "time")
        >>> axn.interp(axn.named([0.5, 1.25], "query"), jnp.arange(3.), samples, "time")
        NamedArray(float32[query=2])
        [ 5.  12.5]
    """
    name, size = selector(axis, "interp")
    # The axis of the samples gets a name that `x` lacks: positions to evaluate at are no samples.
    xp, first = _rename_axis(xp, name, "xp and fp", name)
    fp, second = _rename_axis(fp, name, "xp and fp", name)
    operands = [x, xp, fp]
    cores: list[AxisSelection] = [(), _give_size(first, size), _give_size(second, size)]

    given: list[str] = []
    fixed: dict[str, Any] = {}
    for label, value in (("left", left), ("right", right), ("period", period)):
        if isinstance(value, str):
            if value != "extrapolate":
                hint = 'values: a number, "extrapolate"'
                raise ArgumentError(message("interp", f"{label} cannot be {value!r}", hint=hint))
            fixed[label] = value
        elif value is not None:
            given.append(label)
            operands.append(value)
            cores.append(())

    # Numbers are operands, which may be traced and have axes; "extrapolate" is static.
    fixed["given"] = tuple(given)
    result: NamedArray = apply_batched(_interp, operands, cores, (), each=True, outer=True, **fixed)
    return result


def trapezoid(
    y: "NamedArray", axis: AxisSelector, *, x: Operand | None = None, dx: Operand = 1.0
) -> "NamedArray":
    """Return the integral of sampled values over `axis`, by the trapezoidal rule.

    Args:
        y: the samples; axes {axis, ...}.
        axis: the axis to integrate over.
        x: the coordinates of the samples; axes {axis, ...}, or a plain 1-d array.
        dx: their distance, without `x`; axes among those of `y`.

    Returns:
        The axes of `y` except `axis`.

    Examples:
        >>> axn.trapezoid(axn.named([0.0, 1.0, 2.0], "time"), "time", dx=0.5).item()
        1.0
    """
    if x is None:  # a distance scales the whole integral
        return apply_batched(_trapezoid, [y, dx], [axis, ()], (), coordinates=False)
    return apply_batched(_trapezoid, [y, x], [axis, axis], (), coordinates=True)


def unwrap(
    x: "NamedArray",
    axis: AxisSelector,
    *,
    discont: Operand | None = None,
    period: Operand = 2 * math.pi,
) -> "NamedArray":
    """Remove jumps along `axis` by adding multiples of `period`, so that neighbours differ by at most half a period.

    Args:
        x: axes {axis, ...}.
        axis: the axis to unwrap along.
        discont: the smallest difference that is a jump; half a period by default, and never less.
        period: the period of the values; axes among the others of `x`.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.unwrap(axn.named([350.0, 10.0, 20.0], "time"), "time", period=360).tolist()
        [350.0, 370.0, 380.0]
    """
    if isinstance(period, int | float) and isinstance(discont, int | float | None):
        # As floats: `jnp.unwrap` of integers, by an integer, is wrong.
        smallest = None if discont is None else float(discont)
        return along.along_with(jnp.unwrap, x, axis, discont=smallest, period=float(period))

    operands, cores = [x, period], [axis, ()]
    if discont is not None:
        operands.append(discont)
        cores.append(())
    return apply_batched(_unwrap, operands, cores, (selector(axis, "unwrap")[0],), in_place=True)


def _give_size(core: AxisSelection, size: int | None) -> AxisSelection:
    return Axis(core, size) if isinstance(core, str) and size is not None else core


def _rename_axis(
    operand: Operand, name: str, label: str, otherwise: AxisSelection
) -> tuple[Operand, AxisSelection]:
    """Rename an operand's axis whose size may differ from that in the first operand.

    Args:
        operand: the operand; a plain array has only this axis.
        name: the axis.
        label: the name of the operand in errors.
        otherwise: the core axes of an operand without this one.

    Returns:
        The operand and its core axes.
    """
    new = f"{name} of {label}"  # which errors show
    if isinstance(operand, Core):
        if name not in operand.names:
            return operand, otherwise
        return rename_axes(operand, plans.rename(operand.names, ((name, new),))), new
    return operand, new if getattr(operand, "ndim", 0) or otherwise else ()


HasAxis: TypeAlias = tuple[bool | None, bool | None]
"""Whether what comes before and after an array has its axis; None if nothing comes there."""


def _apply_with_ends(
    fn: checks.Function,
    x: "NamedArray",
    axis: AxisSelector,
    ends: dict[str, Operand | None],
    **options: Any,
) -> "NamedArray":
    """Apply a function of an array and elements to put before and after it; either of these may be None."""
    name, _ = selector(axis, checks.title(fn))
    operands: list[Operand] = [x]
    cores: list[AxisSelection] = [axis]
    has_axis: list[bool | None] = []
    for label, end in ends.items():
        if end is None:
            has_axis.append(None)
            continue
        own, core = _rename_axis(end, name, label, ())
        operands.append(own)
        cores.append(core)
        has_axis.append(bool(core))
    return apply_batched(
        fn, operands, cores, (name,), in_place=True, has_axis=tuple(has_axis), **options
    )


def _join_ends(array: jax.Array, ends: Sequence[jax.Array], has_axis: HasAxis) -> jax.Array:
    """Put the given ends before and after an array."""
    rest = iter(ends)
    before, after = has_axis
    pieces = [array]
    if before is not None:
        pieces.insert(0, _give_axis(next(rest), before))
    if after is not None:
        pieces.append(_give_axis(next(rest), after))

    # Ends may lack batch axes, over which `jnp.concatenate` does not broadcast.
    batch = jnp.broadcast_shapes(*(piece.shape[:-1] for piece in pieces))
    whole = [jnp.broadcast_to(piece, (*batch, piece.shape[-1])) for piece in pieces]
    return jnp.concatenate(whole, axis=-1)


def _give_axis(end: jax.Array, has_axis: bool) -> jax.Array:
    return end if has_axis else end[..., None]


def _diff(array: jax.Array, *ends: jax.Array, n: int, has_axis: HasAxis) -> jax.Array:
    return jnp.diff(_join_ends(array, ends, has_axis), n=n, axis=-1)


def _ediff1d(array: jax.Array, *ends: jax.Array, has_axis: HasAxis) -> jax.Array:
    differences = array[..., 1:] - array[..., :-1]
    return _join_ends(differences, [end.astype(array.dtype) for end in ends], has_axis)


def _slope(
    x: "NamedArray", pair: tuple[str, int | None], spacing: Operand, edge_order: int
) -> "NamedArray":
    """Return the gradient along one axis."""
    name, _ = pair
    (axis,) = selectors((pair,))
    options: dict[str, Any] = {"name": name, "edge_order": edge_order}
    # A plain array has coordinates, since a distance would have no dimension.
    is_sampled = (
        name in spacing.names if isinstance(spacing, Core) else getattr(spacing, "ndim", 0) > 0
    )
    if is_sampled:
        operands, core = [x, spacing], [axis, name]
        return apply_batched(_gradient, operands, core, (name,), in_place=True, **options)

    result = along.along_with(_gradient, x, axis, **options)
    if type(spacing) is float and spacing == 1.0:
        return result
    return elementwise.divide(result, spacing)


def _gradient(
    array: jax.Array, *places: jax.Array, name: str, edge_order: int, axis: int = -1
) -> jax.Array:
    """Return the gradient along an axis whose elements are at given coordinates, or 1 apart by default."""
    size = array.shape[axis]
    if size < edge_order + 1:
        problem = f"axis {name!r} has size {size}, but slopes need {edge_order + 1} elements"
        raise AxisSizeError(message("gradient", problem))
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(jnp.result_type(float))

    part = partial(lax.slice_in_dim, axis=axis)
    if places:
        between = part(array, 1, None) - part(array, 0, -1)
        steps = match_ranks(between, jnp.diff(_make_signed(places[0])))[1]
        between = between / steps
        # Each of the two slopes at an inner point is weighted by the distance on the other side, as in NumPy.
        before, behind = steps[..., :-1], steps[..., 1:]
        weighted = part(between, 0, -1) * behind + part(between, 1, None) * before
        inner = weighted / (before + behind)
        first, last = part(between, 0, 1), part(between, -1, None)
    else:
        inner = (part(array, 2, None) - part(array, 0, -2)) * 0.5
        first = part(array, 1, 2) - part(array, 0, 1)
        last = part(array, -1, None) - part(array, -2, -1)
    if edge_order == 2:  # the parabola through the three outermost points
        first = 2 * first - part(inner, 0, 1)
        last = 2 * last - part(inner, -1, None)
    return lax.concatenate([first, inner, last], axis % array.ndim)


def _make_signed(x: jax.Array) -> jax.Array:
    """Convert integers to a type that can hold their differences."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return x
    return x.astype(jnp.int64 if x.dtype.itemsize == 8 else jnp.int32)


def _interp(
    x: jax.Array,
    xp: jax.Array,
    fp: jax.Array,
    *values: jax.Array,
    given: tuple[str, ...],
    **fixed: str,
) -> jax.Array:
    if not xp.shape[-1]:
        raise AxisSizeError(message("interp", "there are no samples to interpolate between"))
    options: dict[str, Any] = {**dict(zip(given, values, strict=True)), **fixed}
    return jnp.interp(x, xp, fp, **options)


def _slide(
    fn: checks.Function,
    x: Operand,
    v: Operand,
    axis: AxisSelector,
    mode: str,
    precision: PrecisionLike,
    preferred: DTypeLike | None,
) -> "NamedArray":
    """Apply a function of two 1-d signals."""
    function = checks.title(fn)
    if mode not in ("full", "same", "valid"):
        hint = "modes: full, same, valid"
        raise ArgumentError(message(function, f"unknown mode {mode!r}", hint=hint))
    name, _ = selector(axis, function)
    v, core = _rename_axis(v, name, "v", name)
    return apply_batched(
        fn,
        [x, v],
        [axis, core],
        (name,),
        each=True,
        outer=True,
        in_place=True,
        mode=mode,
        precision=precision,
        preferred_element_type=preferred,
    )


def _convolve(x: jax.Array, v: jax.Array, **options: Any) -> jax.Array:
    _require_elements("convolve", x, v)
    return slide_replicated(partial(_slide_any_size, jnp.convolve, **options), x, v)


def _correlate(x: jax.Array, v: jax.Array, **options: Any) -> jax.Array:
    _require_elements("correlate", x, v)
    return slide_replicated(partial(_slide_any_size, jnp.correlate, **options), x, v)


def _slide_any_size(
    fn: Callable[..., jax.Array],
    x: jax.Array,
    v: jax.Array,
    *,
    mode: str,
    precision: PrecisionLike,
    preferred_element_type: DTypeLike | None,
) -> jax.Array:
    """Apply `jnp.convolve` or `jnp.correlate`; both refuse symbolic sizes of `jax.export`."""
    options: Any = {"precision": precision, "preferred_element_type": preferred_element_type}
    sizes = x.size, v.size
    if not any(map(is_symbolic_dim, sizes)):
        return fn(x, v, mode=mode, **options)
    dtype = inexact_dtype(jnp.result_type(x, v))
    x, v = x.astype(dtype), jnp.flip(v).astype(dtype)
    if fn is jnp.correlate:
        v = jnp.flip(v).conj()
    # A convolution of XLA needs a static padding, in its gradient too: each place takes its window of x.
    padded = jnp.pad(x, (v.size - 1, v.size - 1))
    at = jnp.arange(x.size + v.size - 1)[:, None] + jnp.arange(v.size)
    full: jax.Array = jnp.dot(padded[at], v, **options)
    if mode == "full":
        return full
    # JAX asks for a constraint on the sizes if it cannot tell the longer one.
    is_shorter = x.size < v.size
    short, long = sizes if is_shorter else sizes[::-1]
    if mode == "valid":
        return lax.slice_in_dim(full, short - 1, long)
    start = short // 2 if is_shorter and fn is jnp.correlate else (short - 1) // 2
    return lax.slice_in_dim(full, start, start + long)


def _require_elements(function: str, x: jax.Array, v: jax.Array) -> None:
    if not (x.size and v.size):
        problem = f"a signal is empty: the sizes are {x.size} and {v.size}"
        raise AxisSizeError(message(function, problem))


def _trapezoid(y: jax.Array, spacing: jax.Array, coordinates: bool) -> jax.Array:
    if not y.shape[-1]:  # JAX reads a first sample; none has the area of one, zero
        y = jnp.zeros((*y.shape[:-1], 1), y.dtype)
        if coordinates:
            spacing = jnp.zeros((*spacing.shape[:-1], 1), spacing.dtype)
    if coordinates:
        return jnp.trapezoid(*match_ranks(y, spacing), axis=-1)
    return spacing * jnp.trapezoid(y, axis=-1)


def _unwrap(array: jax.Array, period: jax.Array, discont: jax.Array | None = None) -> jax.Array:
    # Periods of batch axes need a dimension for the axis that is unwrapped.
    if period.ndim:
        period = period[..., None]
    if discont is not None and discont.ndim:
        discont = discont[..., None]
    return jnp.unwrap(array, discont, axis=-1, period=period)


explain_calls(globals(), __all__)
