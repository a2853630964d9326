"""Histograms, bins and covariances."""

import builtins
import math
from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    names_and_sizes,
    selection,
    selector,
    selectors,
    sized,
)
from ..base.calls import explain_calls
from ..base.kinds import type_text
from ..engine import checks
from ..engine.batched import apply_batched, hashable
from ..engine.core import Core, Operand, wrap
from ..engine.operands import integers, names_of, only_axis
from ..errors import ArgumentError, OperandError, message
from ..faults import uneven_scatters
from ..faults.lost_nan import find_max, find_min
from ..names import plans

if TYPE_CHECKING:
    from ..array import NamedArray


__all__ = [
    "bincount",
    "corrcoef",
    "cov",
    "digitize",
    "histogram",
    "histogram2d",
    "histogram_bin_edges",
    "histogramdd",
]

Range = tuple[Operand, Operand]


def bincount(
    x: "NamedArray",
    Counts: Axis,
    axis: AxisSelection | None = None,
    *,
    weights: "NamedArray | None" = None,
) -> "NamedArray":
    """Count how often each integer from 0 to the size of `Counts` - 1 occurs; others are ignored.

    Args:
        x: integers.
        Counts: the axis of the counts.
        axis: the axes to count over, None for all; each position of the others has its own counts.
        weights: the weight of each element, over the same axes.

    Returns:
        Counts as integers, or sums in the dtype of `weights`; axes {..., Counts}.

    Raises:
        OperandError: if `x` is not of integers.

    Examples:
        >>> axn.bincount(axn.named([2, 0, 2], "i"), axn.Axis("value", 4)).tolist()
        [1, 0, 2, 0]
    """
    over, size = _choose_axes("bincount", x, axis), sized(Counts, "bincount")
    integers("bincount", "the counted array", x)
    operands = [x] if weights is None else [x, weights]
    core = (over,) * len(operands)
    return apply_batched(_bincount, operands, core, (size.name,), each=True, size=size.size)


def corrcoef(
    x: "NamedArray", variable: AxisSelector, observation: AxisSelection, to: AxisSelector
) -> "NamedArray":
    """Return the Pearson correlation coefficients of variables.

    Args:
        x: axes {variable, observation, ...}.
        variable: the axis of the variables.
        observation: the axes to average over.
        to: the name of the second axis of the variables.

    Returns:
        Axes {..., variable, to}.

    Examples:
        >>> x = axn.named([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]], ("feature", "sample"))
        >>> axn.corrcoef(x, "feature", "sample", "feature2").tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
    """
    return _compare_variables(_corrcoef, x, variable, observation, to, ())


def cov(
    x: "NamedArray",
    variable: AxisSelector,
    observation: AxisSelection,
    to: AxisSelector,
    *,
    ddof: int = 1,
    fweights: "NamedArray | None" = None,
    aweights: "NamedArray | None" = None,
) -> "NamedArray":
    """Return the covariances of variables: the mean products of their deviations from their means.

    Args:
        x: axes {variable, observation, ...}.
        variable: the axis of the variables.
        observation: the axes to average over.
        to: the name of the second axis of the variables, along which complex numbers are conjugated.
        ddof: a number subtracted from the number of observations.
        fweights: integers over `observation`: how often to count each observation.
        aweights: numbers over `observation`: the weight of each observation.

    Returns:
        Axes {..., variable, to}.

    Examples:
        >>> x = axn.named([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]], ("feature", "sample"))
        >>> axn.cov(x, "feature", "sample", "feature2").tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
    """
    if fweights is not None:
        integers("cov", "fweights", fweights)
    return _compare_variables(_cov, x, variable, observation, to, (fweights, aweights), ddof=ddof)


def digitize(
    x: Operand, bins: "NamedArray", axis: AxisSelector | None = None, *, right: bool = False
) -> "NamedArray":
    """Return the bin of each element: 0 before the first edge, 1 between the first two, and so on.

    Args:
        x: any axes.
        bins: edges along `axis`, ascending or descending; other axes are matched by name.
        axis: the axis of the edges, needed if `bins` has several.
        right: whether a bin contains its right edge instead of its left one.

    Returns:
        Integers; the axes of `x`, and those of `bins` except `axis`.

    Examples:
        >>> axn.digitize(axn.named([0.5, 2.5], "i"), axn.named([0.0, 1.0, 2.0], "edge")).tolist()
        [1, 3]
    """
    if axis is None:
        axis = only_axis("digitize", bins)
    return apply_batched(_digitize, (x, bins), ((), axis), (), each=True, right=right)


def histogram(
    x: "NamedArray",
    Bins: Axis,
    axis: AxisSelection | None = None,
    *,
    range: Range | None = None,
    edges: "NamedArray | None" = None,
    weights: "NamedArray | None" = None,
    density: bool = False,
) -> "tuple[NamedArray, NamedArray]":
    """Count the elements in each bin. A bin contains its left edge, the last one also its right edge.

    Args:
        x: any axes.
        Bins: the axis of the counts; its size is the number of bins.
        axis: the axes to count over, None for all; each position of the others has its own counts.
        range: the outermost edges of bins of equal width; by default the smallest and the largest element, for each
            position of the other axes.
        edges: all edges instead, ascending, over an axis with one element more than `Bins`.
        weights: the weight of each element, over the same axes.
        density: return counts divided by their sum and by the width of the bin.

    Returns:
        Integer counts, sums in the dtype of `weights`, or densities, axes {..., Bins}; and the edges, over an axis with
        the name of `Bins` and "_edges" appended.

    Raises:
        ArgumentError: if `range` is not a pair.

    Examples:
        >>> counts, edges = axn.histogram(axn.named([0.0, 1.0, 1.5, 4.0], "i"), axn.Axis("bin", 2))
        >>> counts.tolist(), edges.tolist()
        ([3, 1], [0.0, 2.0, 4.0])
    """
    given = None if edges is None else [edges]
    counts, (found,) = _count_points(
        _histogram, [x], [Bins], axis, [range], given, weights, density
    )
    return counts, found


def histogram2d(
    x: "NamedArray",
    y: "NamedArray",
    Bins: tuple[Axis, Axis],
    axis: AxisSelection | None = None,
    *,
    range: tuple[Range | None, Range | None] = (None, None),
    edges: "tuple[NamedArray, NamedArray] | None" = None,
    weights: "NamedArray | None" = None,
    density: bool = False,
) -> "tuple[NamedArray, NamedArray, NamedArray]":
    """Count pairs of elements in a grid of bins: `histogramdd` of two arrays, with the edges as separate results.

    Args:
        x: the first coordinate of each point.
        y: the second coordinate, over the same axes.
        Bins: the axis of the counts for each coordinate.
        axis: the axes to count over, None for all those of `x`.
        range: the outermost edges, or None, for each coordinate.
        edges: all edges instead, for each coordinate.
        weights: the weight of each point, over the same axes.
        density: return counts divided by their sum and by the area of the bin.

    Returns:
        Counts, axes {..., *Bins}; the edges of the first coordinate, and those of the second.

    Examples:
        >>> x, y = axn.named([0.0, 1.0], "i"), axn.named([0.0, 3.0], "i")
        >>> counts, _, _ = axn.histogram2d(x, y, axn.make_axes(a=2, b=2))
        >>> counts.tolist()
        [[1, 0], [0, 1]]
    """
    counts, (first, second) = _count_points(
        _histogram2d, [x, y], Bins, axis, range, edges, weights, density
    )
    return counts, first, second


def histogram_bin_edges(
    x: "NamedArray", Bins: Axis, axis: AxisSelection | None = None, *, range: Range | None = None
) -> "NamedArray":
    """Return the edges that `histogram` uses without counting.

    Args:
        x: any axes.
        Bins: the axis of the counts; its size is the number of bins.
        axis: the axes to count over, None for all; each position of the others has its own edges.
        range: the outermost edges; by default the smallest and the largest element.

    Returns:
        The edges, over an axis with the name of `Bins` and "_edges" appended.

    Examples:
        >>> axn.histogram_bin_edges(axn.named([0.0, 4.0], "i"), axn.Axis("bin", 2)).axes
        (Axis(name='bin_edges', size=3),)
    """
    over, size = _choose_axes("histogram_bin_edges", x, axis), sized(Bins, "histogram_bin_edges")
    # Edges between given limits do not depend on elements, and so have no batch axes.
    if range is not None:
        return _make_edges("histogram_bin_edges", x, size, range)
    return apply_batched(
        _histogram_bin_edges, (x,), (over,), (_name_edges(size),), each=True, size=size.size
    )


def histogramdd(
    samples: "Sequence[NamedArray]",
    Bins: Sequence[Axis],
    axis: AxisSelection | None = None,
    *,
    range: Sequence[Range | None] | None = None,
    edges: "Sequence[NamedArray] | None" = None,
    weights: "NamedArray | None" = None,
    density: bool = False,
) -> "tuple[NamedArray, tuple[NamedArray, ...]]":
    """Count points in a grid of bins, as `histogram` does in one dimension.

    Args:
        samples: one array for each coordinate, over the same axes; `x.unbind(axis)` if they are along an axis.
        Bins: the axis of the counts for each coordinate.
        axis: the axes to count over, None for all those of the first array.
        range: the outermost edges, or None, for each coordinate.
        edges: all edges instead, for each coordinate.
        weights: the weight of each point, over the same axes.
        density: return counts divided by their sum and by the volume of the bin.

    Returns:
        Counts, axes {..., *Bins}; and the edges for each coordinate.

    Raises:
        ArgumentError: if there are not as many arrays, bins, ranges or edges as coordinates.

    Examples:
        >>> points = axn.named([[0.0, 0.0], [1.0, 3.0]], ("point", "coordinate"))
        >>> counts, edges = axn.histogramdd(points.unbind("coordinate"), axn.make_axes(a=2, b=2))
        >>> counts.tolist()
        [[1, 0], [0, 1]]
    """
    return _count_points(_histogramdd, samples, Bins, axis, range, edges, weights, density)


def _choose_axes(function: str, x: object, axis: AxisSelection | None) -> AxisSelection:
    names = names_of(function, x)
    return names if axis is None else hashable(axis, function)


def _count_points(
    fn: checks.Function,
    samples: "Sequence[NamedArray]",
    Bins: Sequence[Axis],
    axis: AxisSelection | None,
    ranges: Sequence[Range | None] | None,
    edges: "Sequence[NamedArray] | None",
    weights: "NamedArray | None",
    density: bool,
) -> "tuple[NamedArray, tuple[NamedArray, ...]]":
    """Count points; edges that do not depend on elements are made first, without batch axes."""
    function = checks.title(fn)
    _check_lengths(function, samples, Bins, ranges, edges)
    bins = [sized(one, function) for one in Bins]
    over = _choose_axes(function, samples[0], axis)

    # The others are found in the elements, for each position of the batch axes, by the mapped function itself.
    known: dict[int, NamedArray] = {}
    for i, x in enumerate(samples):
        limits = None if ranges is None else ranges[i]
        if edges is not None:
            known[i] = edges[i]
        elif limits is not None:
            known[i] = _make_edges(function, x, bins[i], limits)
    missing = [i for i in builtins.range(len(samples)) if i not in known]

    operands = [*samples]
    core = [over] * len(samples)
    for i, made in known.items():
        operands.append(made)
        core.append(_find_edges_axis(function, made, bins[i]))
    if weights is not None:
        operands.append(weights)
        core.append(over)

    names, sizes = names_and_sizes(bins)
    counts, *found = apply_batched(
        fn,
        operands,
        core,
        (names, *((_name_edges(bins[i]),) for i in missing)),
        each=True,
        sizes=sizes,
        known=tuple(known),
        density=density,
    )
    known.update(zip(missing, found, strict=True))
    return counts, plans.values_at(known, builtins.range(len(samples)))


def _check_lengths(
    function: str,
    samples: Sequence[object],
    bins: Sequence[object],
    ranges: Sequence[object] | None,
    edges: Sequence[object] | None,
) -> None:
    """Check that the argument is a list with one entry for each coordinate."""
    every = {
        "arrays": samples,
        "axes of bins": bins,
        "ranges": ranges,
        "arrays of edges": edges,
    }
    given = {what: parts for what, parts in every.items() if parts is not None}

    for what, parts in given.items():
        if isinstance(parts, Core) or not hasattr(parts, "__len__"):
            problem = f"the {what} must be given as a list, not as {type_text(parts)}"
            raise OperandError(message(function, problem))
    number = len(samples)
    for what, parts in given.items():
        if len(parts) != number:
            raise ArgumentError(message(function, f"{number} coordinates, but {len(parts)} {what}"))
    if not number:
        raise ArgumentError(message(function, "no coordinates given"))


def _name_edges(bins: Axis) -> str:
    return f"{bins.name}_edges"


def _find_edges_axis(function: str, edges: object, bins: Axis) -> Axis:
    # Edges that `histogram` returned have this name; others may have any one axis.
    name = _name_edges(bins)
    has_name = name in names_of(function, edges)
    return Axis(name if has_name else only_axis(function, edges), bins.size + 1)


def _make_edges(function: str, x: "NamedArray", bins: Axis, limits: Range) -> "NamedArray":
    """Make the edges of bins between two limits, in a dtype that fits `x`."""
    if not isinstance(limits, Sequence | np.ndarray) or len(limits) != 2:
        kind = type(limits).__name__
        has_length = hasattr(limits, "__len__") and not isinstance(limits, Core)
        given = f"a {kind} of {len(limits)}" if has_length else kind
        problem = f"a range must be a pair (lowest edge, highest edge), not {given}"
        raise ArgumentError(message(function, problem))
    # JAX looks at the array only for its dtype if it is given limits.
    like = wrap(x, jnp.zeros((), x.dtype), ())
    return apply_batched(
        _histogram_bin_edges,
        (like, *limits),
        ((), (), ()),
        (_name_edges(bins),),
        each=True,
        size=bins.size,
    )


def _compare_variables(
    fn: checks.Function,
    x: "NamedArray",
    variable: AxisSelector,
    observation: AxisSelection,
    to: AxisSelector,
    weights: "Sequence[NamedArray | None]",
    **options: Any,
) -> "NamedArray":
    """Compute a matrix over variables."""
    function = checks.title(fn)
    first, second = selector(variable, function), selector(to, function)
    over = selectors((first, *selection(observation, function)))
    given = [one for one in weights if one is not None]
    which = tuple(one is not None for one in weights)
    # The second axis of the variables exists only in the result, so its size is checked there.
    result = apply_batched(
        fn,
        (x, *given),
        (over, *[over[1:]] * len(given)),
        (first[0], second[0]),
        each=True,
        which=which,
        **options,
    )
    checks.check_given(function, (second,), result.names, result.array.shape)
    return result


def _bincount(x: jax.Array, weights: jax.Array | None = None, *, size: int) -> jax.Array:
    if weights is None:
        weights = jnp.ones(x.size, int)
    # Positions are flattened: in their own shape, constant ones would be copied.
    return _sum_by_position(weights.ravel(), x.ravel(), size)


def _sum_by_position(weights: jax.Array, at: jax.Array, size: int) -> jax.Array:
    """Sum weights by position; those out of range are ignored."""
    if weights.dtype == bool:  # whose sum would be `any`
        weights = weights.astype(int)
    # jax.ops.segment_sum needs one dimension: flattening several sharded ones would gather them.
    more = uneven_scatters.count_missing(weights, at.shape)
    if any(more):
        (at,) = uneven_scatters.extend_writes((at,), (size,), more)
        weights = uneven_scatters.extend(weights, range(weights.ndim), more)
    # Without wrapping, -1 is out of range, and dropped, instead of the last position.
    zeros = jnp.zeros(size, weights.dtype)
    return zeros.at[at].add(weights, mode="drop", wrap_negative_indices=False)


def _as_matrix(x: jax.Array) -> jax.Array:
    """Merge all dimensions but the first; a size of -1 would divide by zero if the first dimension is empty."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def _corrcoef(x: jax.Array, *, which: tuple[bool, ...]) -> jax.Array:
    del which  # an option of `cov`, which shares the engine's call
    return jnp.corrcoef(_as_matrix(x)).reshape(x.shape[0], x.shape[0])


def _cov(x: jax.Array, *weights: jax.Array, which: tuple[bool, ...], ddof: int) -> jax.Array:
    given = dict(zip(compress(("fweights", "aweights"), which), weights, strict=True))
    result = jnp.cov(_as_matrix(x), ddof=ddof, **jax.tree.map(jnp.ravel, given))
    return result.reshape(x.shape[0], x.shape[0])


def _digitize(x: jax.Array, bins: jax.Array, *, right: bool) -> jax.Array:
    return jnp.digitize(x, bins, right)


def _histogram(*arrays: jax.Array, **options: Any) -> tuple[jax.Array, ...]:
    return _count_in_bins(*arrays, **options)


def _histogram2d(*arrays: jax.Array, **options: Any) -> tuple[jax.Array, ...]:
    return _count_in_bins(*arrays, **options)


def _histogramdd(*arrays: jax.Array, **options: Any) -> tuple[jax.Array, ...]:
    return _count_in_bins(*arrays, **options)


def _count_in_bins(
    *arrays: jax.Array, sizes: tuple[int, ...], known: tuple[int, ...], density: bool
) -> tuple[jax.Array, ...]:
    """Count points in bins; also return the edges along the coordinates that are not `known`."""
    samples, rest = arrays[: len(sizes)], iter(arrays[len(sizes) :])
    shape = samples[0].shape

    edges = [
        next(rest) if i in known else _histogram_bin_edges(sample, size=size)
        for i, (sample, size) in enumerate(zip(samples, sizes, strict=True))
    ]
    (weights,) = (*rest,) or (jnp.ones(shape, int),)

    # One number stands for a bin of the grid, so that a single scatter counts in any number of dimensions.
    place, inside = jnp.zeros(shape, int), jnp.ones(shape, bool)
    for sample, edge, size in zip(samples, edges, sizes, strict=True):
        point = _match_edges(sample, edge)
        # The last bin contains its right edge, too.
        at = jnp.where(point == edge[-1], size - 1, jnp.searchsorted(edge, point, side="right") - 1)
        inside &= (at >= 0) & (at < size)
        place = place * size + at

    counts = _sum_by_position(weights, jnp.where(inside, place, -1), math.prod(sizes)).reshape(
        sizes
    )
    if density:
        counts = counts / counts.sum()
        for i, edge in enumerate(edges):
            counts = counts / jnp.diff(edge).reshape(-1, *[1] * (len(sizes) - 1 - i))
    return (counts, *(edge for i, edge in enumerate(edges) if i not in known))


def _match_edges(sample: jax.Array, edges: jax.Array) -> jax.Array:
    """Convert integers and masks to the dtype of their edges, even with strict dtype promotion."""
    exact = not jnp.issubdtype(edges.dtype, jnp.inexact)
    if jnp.issubdtype(sample.dtype, jnp.inexact) or (exact and sample.dtype != bool):
        return sample
    return sample.astype(edges.dtype)


def _histogram_bin_edges(x: jax.Array, *limits: jax.Array, size: int) -> jax.Array:
    if limits:
        return jnp.histogram_bin_edges(x, size, limits)
    if not x.size:  # there is no smallest element
        return jnp.histogram_bin_edges(x, size, (0, 1))
    return jnp.histogram_bin_edges(x, size, (find_min(x), find_max(x)))


explain_calls(globals(), __all__)
