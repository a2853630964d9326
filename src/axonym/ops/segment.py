"""Reductions over groups of elements: segments given by an array of ids, and the groups of a ragged axis."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import PrecisionLike
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from ..axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    axis_name,
    names_in,
    selection,
    selector,
    selectors,
    sized,
)
from ..base.calls import explain_calls
from ..base.dtypes import at_least_float32
from ..engine import checks
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand, facts
from ..engine.operands import integers, names_of
from ..engine.position import make_reach
from ..errors import OperandError, message
from ..faults import uneven_scatters
from ..faults.lost_nan import may_lose_nan
from ..layout import explicit, modes
from ..names import plans

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "ragged_dot",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
]

_MODES = ("promise_in_bounds", "clip", "drop", "fill")


def ragged_dot(
    x: "NamedArray",
    w: "NamedArray",
    group_sizes: "NamedArray",
    *,
    axis: AxisSelection,
    ragged: AxisSelector,
    groups: AxisSelector,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> "NamedArray":
    """Multiply each group of consecutive elements by its weights and sum over `axis`, as in a mixture of experts.

    The first `group_sizes[0]` elements along `ragged` belong to the first group, the next `group_sizes[1]` to the
    second, and so on. The sizes should sum to that of `ragged`: the result for elements after the last group depends on
    the backend (zeros on CPU).

    `jax.lax` does not support this under `jax.vmap` and `axn.vmap`: keep such an axis named. On a mesh with Explicit
    axes `ragged`, `axis`, `groups` and the axes that only `w` has are gathered; to distribute groups over devices, use
    `jax.shard_map`.

    Args:
        x: axes {ragged, axis, ...}.
        w: axes {groups, axis, ...}; axes that `x` has too, and that are not summed over, are matched.
        group_sizes: integers, axes {groups, ...}; each position of the others, axes of `x`, has its own groups.
        axis: the axes to sum over.
        ragged: the axis of `x` whose elements belong to groups.
        groups: the axis of the groups.
        precision: as in `jax.lax.ragged_dot`.
        preferred_element_type: the dtype to accumulate in and return.

    Returns:
        The axes of `x` without `axis`, with `ragged` last; then those that only `w` has.

    Raises:
        OperandError: if `group_sizes` is not of integers, or under a `vmap`.

    Examples:
        >>> Token, In, Out, Expert = axn.make_axes(token=6, embed=3, mlp=4, expert=2)
        >>> x, w = axn.ones((Token, In)), axn.ones((Expert, In, Out))
        >>> sizes = axn.named([4, 2], "expert")
        >>> axn.ragged_dot(x, w, sizes, axis=In, ragged=Token, groups=Expert).axes
        (Axis(name='token', size=6), Axis(name='mlp', size=4))
    """
    has, weights = names_of("ragged_dot", x), names_of("ragged_dot", w)
    integers("ragged_dot", "group_sizes", group_sizes)
    (stretch, _), contracted = selector(ragged, "ragged_dot"), selection(axis, "ragged_dot")
    over = selectors(contracted)
    inner = (selector(groups, "ragged_dot")[0], *names_in(contracted))
    new = plans.without(plans.without(weights, has), inner)
    try:
        return apply_batched(
            _ragged_dot,
            (x, w, group_sizes),
            ((ragged, *over), (groups, *over, *new), groups),
            (stretch, *new),
            contracted=len(over),
            new=len(new),
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
    except NotImplementedError as error:  # JAX's, in the words of its implementation
        if "vmap" not in str(error):
            raise
        problem = f"JAX does not map it by vmap: {error}"
        hint = (
            "keep the axis named, without vmap; of a MixtureOfExperts, a capacity_factor works, too"
        )
        raise OperandError(
            message("ragged_dot", problem, f"x has: {facts(x)}", hint=hint)
        ) from error


def segment_max(
    x: "NamedArray",
    ids: "NamedArray",
    Segment: Axis,
    axis: AxisSelection | None = None,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | None = None,
) -> "NamedArray":
    """Return the maximum of each segment; an empty one gives the lowest value of the dtype.

    Args:
        x: axes {axis, ...}.
        ids: as in `segment_sum`, like all further arguments.
        Segment: the axis of the segments.
        axis: the axes to reduce, None for all axes of `ids`.
        indices_are_sorted: a promise that the ids ascend along `axis`.
        unique_indices: a promise that no id occurs twice.
        mode: how to treat ids out of range.

    Returns:
        The axes of `x`, with `Segment` instead of `axis`.

    Examples:
        >>> x, ids = axn.named([1.0, 2.0, 4.0], "node"), axn.named([0, 1, 0], "node")
        >>> axn.segment_max(x, ids, axn.Axis("graph", 2)).tolist()
        [4.0, 2.0]
    """
    return _reduce_segments(
        _segment_max, x, ids, Segment, axis, indices_are_sorted, unique_indices, mode
    )


def segment_mean(
    x: "NamedArray",
    ids: "NamedArray",
    Segment: Axis,
    axis: AxisSelection | None = None,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | None = None,
) -> "NamedArray":
    """Return the mean of each segment, NaN for an empty one.

    Args:
        x: axes {axis, ...}.
        ids: as in `segment_sum`, like all further arguments.
        Segment: the axis of the segments.
        axis: the axes to reduce, None for all axes of `ids`.
        indices_are_sorted: a promise that the ids ascend along `axis`.
        unique_indices: a promise that no id occurs twice.
        mode: how to treat ids out of range.

    Returns:
        Floats with the axes of `x`, with `Segment` instead of `axis`.

    Examples:
        >>> x, ids = axn.named([1.0, 2.0, 4.0], "node"), axn.named([0, 1, 0], "node")
        >>> axn.segment_mean(x, ids, axn.Axis("graph", 2)).tolist()
        [2.5, 2.0]
    """
    return _reduce_segments(
        _segment_mean, x, ids, Segment, axis, indices_are_sorted, unique_indices, mode
    )


def segment_min(
    x: "NamedArray",
    ids: "NamedArray",
    Segment: Axis,
    axis: AxisSelection | None = None,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | None = None,
) -> "NamedArray":
    """Return the minimum of each segment; an empty one gives the highest value of the dtype.

    Args:
        x: axes {axis, ...}.
        ids: as in `segment_sum`, like all further arguments.
        Segment: the axis of the segments.
        axis: the axes to reduce, None for all axes of `ids`.
        indices_are_sorted: a promise that the ids ascend along `axis`.
        unique_indices: a promise that no id occurs twice.
        mode: how to treat ids out of range.

    Returns:
        The axes of `x`, with `Segment` instead of `axis`.

    Examples:
        >>> x, ids = axn.named([1.0, 2.0, 4.0], "node"), axn.named([0, 1, 0], "node")
        >>> axn.segment_min(x, ids, axn.Axis("graph", 2)).tolist()
        [1.0, 2.0]
    """
    return _reduce_segments(
        _segment_min, x, ids, Segment, axis, indices_are_sorted, unique_indices, mode
    )


def segment_prod(
    x: "NamedArray",
    ids: "NamedArray",
    Segment: Axis,
    axis: AxisSelection | None = None,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | None = None,
) -> "NamedArray":
    """Return the product of each segment, 1 for an empty one.

    Args:
        x: axes {axis, ...}.
        ids: as in `segment_sum`, like all further arguments.
        Segment: the axis of the segments.
        axis: the axes to reduce, None for all axes of `ids`.
        indices_are_sorted: a promise that the ids ascend along `axis`.
        unique_indices: a promise that no id occurs twice.
        mode: how to treat ids out of range.

    Returns:
        The axes of `x`, with `Segment` instead of `axis`.

    Examples:
        >>> x, ids = axn.named([1.0, 2.0, 4.0], "node"), axn.named([0, 1, 0], "node")
        >>> axn.segment_prod(x, ids, axn.Axis("graph", 2)).tolist()
        [4.0, 2.0]
    """
    return _reduce_segments(
        _segment_prod, x, ids, Segment, axis, indices_are_sorted, unique_indices, mode
    )


def segment_sum(
    x: "NamedArray",
    ids: "NamedArray",
    Segment: Axis,
    axis: AxisSelection | None = None,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | None = None,
) -> "NamedArray":
    """Return the sum of each segment, that is, of the elements with the same id.

    Args:
        x: axes {axis, ...}.
        ids: integers, axes {axis, ...}: the segment of each element; elements with an id out of range are dropped.
        Segment: the axis of the segments, which replaces `axis` if that is a single axis, and comes last otherwise.
        axis: the axes to reduce, None for all axes of `ids`; other axes are matched by name.
        indices_are_sorted: a promise that the ids ascend along `axis` (in the order in which several are given).
        unique_indices: a promise that no id occurs twice.
        mode: how to treat ids out of range, as in `jax.ops.segment_sum`.

    Returns:
        The axes of `x`, with `Segment` instead of `axis`.

    Raises:
        OperandError: if `ids` is not of integers, or `Segment` has no size.
        ArgumentError: if `mode` is unknown.

    Examples:
        >>> x, ids = axn.named([1.0, 2.0, 4.0], "node"), axn.named([0, 1, 0], "node")
        >>> axn.segment_sum(x, ids, axn.Axis("graph", 2)).tolist()
        [5.0, 2.0]
    """
    return _reduce_segments(
        _segment_sum, x, ids, Segment, axis, indices_are_sorted, unique_indices, mode
    )


def _reduce_segments(
    fn: checks.Function,
    x: Operand,
    ids: Operand,
    size: Axis,
    axis: AxisSelection | None,
    is_sorted: bool,
    unique: bool,
    mode: str | None,
) -> "NamedArray":
    function = checks.title(fn)
    size = sized(size, function)
    make_reach(function, _MODES, mode)
    every = names_of(function, ids)
    if axis is None:
        axis = every
    over = selectors(selection(axis, function))
    integers(function, "ids", ids)
    rows = _find_rows(x, ids, over)
    return apply_batched(
        fn,
        (x, ids),
        ((*over, *rows), over),
        (size.name, *rows),
        each=True,
        in_place=True,
        num_segments=size.size,
        indices_are_sorted=is_sorted,
        unique_indices=unique,
        mode=mode,
    )


def _find_rows(x: object, ids: object, over: Sequence[AxisSelector]) -> tuple[str, ...]:
    """Return the axes of rows that share an id: those after the reduced one.

    As core axes of the function, not batch axes, they form a row in memory, which the scatter moves in one piece.
    """
    # Core axes of Explicit mesh axes are gathered, batch axes are not.
    if not (isinstance(x, Core) and isinstance(ids, Core) and len(over) == 1):
        return ()
    if explicit.has_explicit_axes(x.array):
        return ()
    name = axis_name(over[0])
    if name not in x.names or not set(ids.names) <= set(x.names):
        return ()
    after = x.names[x.names.index(name) + 1 :]
    return plans.without(after, ids.names)


def _reduce_rows(
    reduction: Callable[..., jax.Array], x: jax.Array, ids: jax.Array, **options: Any
) -> jax.Array:
    """Reduce by a function of `jax.ops` over the flattened axes of the ids; rows stay."""
    x, ids = x.reshape(ids.size, *x.shape[ids.ndim :]), ids.ravel()
    more = uneven_scatters.count_missing(x, ids.shape)
    if any(more):
        # The added positions are out of range, and must be dropped; "clip" would take them for the last segment.
        size = options["num_segments"]
        if options["mode"] == "clip":
            ids, options = jnp.clip(ids, 0, size - 1), {**options, "mode": None}
        (ids,) = uneven_scatters.extend_writes((ids,), (size,), more)
        x = uneven_scatters.extend(x, [0], more)
    return reduction(x, ids, **options)


def _find_extreme(
    reduction: Callable[..., jax.Array], x: jax.Array, ids: jax.Array, **options: Any
) -> jax.Array:
    """Find the maximum or minimum of each segment; a NaN is both, on all devices."""
    found = _reduce_rows(reduction, x, ids, **options)
    # A second scatter marks the segments with NaN, where devices would lose it.
    if not may_lose_nan(x, range(ids.ndim)):
        return found
    marks = _reduce_rows(jax.ops.segment_max, jnp.isnan(x).astype(jnp.int8), ids, **options)
    return jnp.where(marks > 0, jnp.nan, found)


def _segment_max(x: jax.Array, ids: jax.Array, **options: Any) -> jax.Array:
    return _find_extreme(jax.ops.segment_max, x, ids, **options)


def _segment_mean(x: jax.Array, ids: jax.Array, **options: object) -> jax.Array:
    # As in jnp.mean, half precision is only used for the result.
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.result_type(float)
    total = _segment_sum(x.astype(at_least_float32(dtype)), ids, **options)
    counts = _segment_sum(jnp.ones(ids.shape, int), ids, **options).astype(total.real.dtype)
    return (total / lax.expand_dims(counts, range(1, total.ndim))).astype(dtype)


def _segment_min(x: jax.Array, ids: jax.Array, **options: Any) -> jax.Array:
    return _find_extreme(jax.ops.segment_min, x, ids, **options)


def _segment_prod(x: jax.Array, ids: jax.Array, **options: Any) -> jax.Array:
    return _reduce_rows(jax.ops.segment_prod, x, ids, **options)


def _segment_sum(x: jax.Array, ids: jax.Array, **options: Any) -> jax.Array:
    return _reduce_rows(jax.ops.segment_sum, x, ids, **options)


def _ragged_dot(
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    *,
    contracted: int,
    new: int,
    precision: PrecisionLike,
    preferred_element_type: DTypeLike | None,
) -> jax.Array:
    """Multiply (..., ragged, contracted...) by (..., groups, contracted..., new...) with sizes (..., groups).

    A leading dimension of size 1 stands for one that an operand lacks.
    """
    # Give all three the same leading dimensions, in the order of `apply_batched`.
    own = 1 + contracted
    rank = max(x.ndim - own, w.ndim - own - new, sizes.ndim - 1)
    x = lax.expand_dims(x, range(rank + own - x.ndim))
    w = lax.expand_dims(w, range(rank + own + new - w.ndim))
    sizes = lax.expand_dims(sizes, range(rank + 1 - sizes.ndim))
    lead = jnp.broadcast_shapes(x.shape[:rank], w.shape[:rank], sizes.shape[:rank])

    # Dimensions that w shares with x are batch dimensions of the product; all others before the ragged one are rows.
    shared = [i for i in range(rank) if w.shape[i] != 1]
    rows = [i for i in range(rank) if i not in shared]

    # `ragged_dot_general` takes one dtype, and does not broadcast.
    common = jnp.promote_types(x.dtype, w.dtype)
    x = jnp.broadcast_to(x, (*lead, *x.shape[rank:])).astype(common)
    w = lax.squeeze(w, rows).astype(common)
    if all(size == 1 for size in sizes.shape[:rank]):
        sizes = lax.squeeze(sizes, range(rank))
    else:
        sizes = jnp.broadcast_to(sizes, (*lead, sizes.shape[-1])).transpose(*shared, *rows, rank)

    batch = len(shared)
    sums = range(rank + 1, x.ndim), range(batch + 1, batch + 1 + contracted)
    pairs = (sums, (shared, range(batch)))
    numbers = lax.RaggedDotDimensionNumbers(pairs, [rank], [batch])

    def multiply(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        return lax.ragged_dot_general(
            x, w, sizes, numbers, precision=precision, preferred_element_type=preferred_element_type
        )

    product: checks.Function = multiply
    # JAX has no rule for Explicit axes here, and refuses the call on such a mesh even for arrays that are not on it.
    if modes.has_explicit(jax.sharding.get_abstract_mesh()):
        product = jax.sharding.auto_axes(multiply, out_sharding=PartitionSpec())
    result: jax.Array = product(x, w, sizes)
    # The product has its batch dimensions first; they go back between the rows.
    back = np.argsort([*shared, *rows]).tolist()
    return lax.transpose(result, (*back, *range(rank, result.ndim)))


explain_calls(globals(), __all__)
