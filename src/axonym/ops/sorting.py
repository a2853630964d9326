"""Functions that sort along an axis, or select by order."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from ..axis import Axis, AxisSelection, AxisSelector, axis_name, selector
from ..base.calls import explain_calls
from ..base.dtypes import inexact_dtype
from ..engine import along, checks
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand
from ..engine.operands import integers, only_axis, own_names, static_int
from ..errors import ArgumentError, AxisSizeError, OperandError, message
from ..faults.gathered_top_k import Blocks, find_blocks, select_by_blocks
from ..faults.sorted_positions import mark_varying_like
from ..faults.split_sorts import gather_sorted
from ..names import plans

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "approx_max_k",
    "approx_min_k",
    "argpartition",
    "argsort",
    "lexsort",
    "partition",
    "searchsorted",
    "sort",
    "sort_complex",
    "top_k",
]

_METHODS = ("scan", "scan_unrolled", "sort", "compare_all")


def approx_max_k(
    x: "NamedArray",
    axis: AxisSelector,
    k: int | Axis,
    new_axis: AxisSelector | None = None,
    *,
    recall_target: float = 0.95,
) -> tuple["NamedArray", "NamedArray"]:
    """Return an approximate `top_k`, faster on accelerators.

    Args:
        x: axes {axis, ...}.
        axis: the axis to select along; its size becomes `k`.
        k: the number of elements, static; or the new axis, with its size.
        new_axis: a new name for the axis.
        recall_target: the fraction of the true `k` largest elements that it should find.

    Returns:
        The elements and their indices along `axis`; the axes of `x`.

    Raises:
        AxisSizeError: as in `top_k`.

    Examples:
        >>> values, indices = axn.approx_max_k(axn.named([1., 3., 2.], "vocab"), "vocab", 2)
        >>> values.tolist(), indices.tolist()
        ([3.0, 2.0], [1, 2])
    """
    return _select_k(_approx_max_k, x, axis, k, new_axis, recall_target=recall_target)


def approx_min_k(
    x: "NamedArray",
    axis: AxisSelector,
    k: int | Axis,
    new_axis: AxisSelector | None = None,
    *,
    recall_target: float = 0.95,
) -> tuple["NamedArray", "NamedArray"]:
    """Return the `k` smallest elements along `axis` and their indices, approximately, as in `approx_max_k`.

    Args:
        x: axes {axis, ...}.
        axis: the axis to select along; its size becomes `k`.
        k: the number of elements, static; or the new axis, with its size.
        new_axis: a new name for the axis.
        recall_target: the fraction of the true `k` smallest elements that it should find.

    Returns:
        The elements and their indices along `axis`; the axes of `x`.

    Raises:
        AxisSizeError: as in `top_k`.

    Examples:
        >>> values, indices = axn.approx_min_k(axn.named([1., 3., 2.], "vocab"), "vocab", 2)
        >>> values.tolist(), indices.tolist()
        ([1.0, 2.0], [0, 2])
    """
    return _select_k(_approx_min_k, x, axis, k, new_axis, recall_target=recall_target)


def argpartition(x: "NamedArray", axis: AxisSelector, kth: int) -> "NamedArray":
    """Return the indices that would partition along `axis`, as in `partition`.

    Args:
        x: axes {axis, ...}.
        axis: the axis.
        kth: the position that gets its sorted element; it may count from the end.

    Returns:
        Integers with the axes of `x`, for `take_along_axis`.

    Raises:
        AxisSizeError: if `kth` is out of range.

    Examples:
        >>> axn.argpartition(axn.named([3, 1, 2], "i"), "i", 0)["i", 0].item()
        1
    """
    kth = static_int("argpartition", "kth", kth)  # an option of the kernel, which must be hashable
    return along.along_with(_argpartition, x, axis, kth=kth, name=selector(axis, "argpartition")[0])


def argsort(
    x: "NamedArray", axis: AxisSelector, *, stable: bool = True, descending: bool = False
) -> "NamedArray":
    """Return the indices that would sort along `axis`.

    Args:
        x: axes {axis, ...}.
        axis: the axis to sort along.
        stable: whether equal elements keep their order.
        descending: whether the largest element comes first.

    Returns:
        Integers with the axes of `x`, for `take_along_axis`.

    Examples:
        >>> axn.argsort(axn.named([3, 1, 2], "i"), "i").tolist()
        [1, 2, 0]
    """
    return along.along_with(_argsort, x, axis, stable=stable, descending=descending)


def lexsort(keys: Sequence["NamedArray"], axis: AxisSelector) -> "NamedArray":
    """Return the indices that would sort along `axis` by several keys, of which the last is the primary one.

    Args:
        keys: axes {axis, ...} each; the other axes are matched by name.
        axis: the axis to sort along.

    Returns:
        Integers with the axes of all keys, for `take_along_axis`.

    Raises:
        ArgumentError: if there are no keys.

    Examples:
        >>> surname, given = axn.named([1, 0, 1], "person"), axn.named([5, 7, 2], "person")
        >>> axn.lexsort((given, surname), "person")
        NamedArray(int32[person=3])
        [1 2 0]
    """
    keys = tuple(keys)
    if not keys:
        raise ArgumentError(message("lexsort", "there are no keys to sort by"))
    return apply_batched(
        _lexsort, keys, [axis] * len(keys), (selector(axis, "lexsort")[0],), in_place=True
    )


def partition(x: "NamedArray", axis: AxisSelector, kth: int) -> "NamedArray":
    """Put at `kth` along `axis` the element that sorting puts there, smaller ones before it and larger ones after it.

    Both sides are in fact sorted, since a sort is fastest; do not rely on it.

    Args:
        x: axes {axis, ...}.
        axis: the axis.
        kth: the position that gets its sorted element; it may count from the end.

    Returns:
        The axes of `x`.

    Raises:
        AxisSizeError: if `kth` is out of range.

    Examples:
        >>> axn.partition(axn.named([3, 1, 2], "i"), "i", 0)["i", 0].item()
        1
    """
    kth = static_int("partition", "kth", kth)
    return along.along_with(
        _partition, x, axis, gathers=True, kth=kth, name=selector(axis, "partition")[0]
    )


def sort(
    x: "NamedArray", axis: AxisSelector, *, stable: bool = True, descending: bool = False
) -> "NamedArray":
    """Sort along `axis`; NaN is larger than all numbers.

    Args:
        x: axes {axis, ...}.
        axis: the axis to sort along; `jnp.sort` takes the last one by default.
        stable: whether equal elements keep their order, which shows for zeros with signs.
        descending: whether the largest element comes first.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.sort(axn.named([3, 1, 2], "i"), "i", descending=True).tolist()
        [3, 2, 1]
    """
    return along.along_with(_sort, x, axis, gathers=True, stable=stable, descending=descending)


def sort_complex(x: "NamedArray", axis: AxisSelector) -> "NamedArray":
    """Sort along `axis`, by real parts and then by imaginary ones.

    Args:
        x: axes {axis, ...}.
        axis: the axis to sort along.

    Returns:
        Complex numbers with the axes of `x`.

    Examples:
        >>> axn.sort_complex(axn.named([2, 1 + 1j, 1], "i"), "i").tolist()
        [(1+0j), (1+1j), (2+0j)]
    """
    return along.along(_sort_complex, x, axis)


def top_k(
    x: "NamedArray", axis: AxisSelector, k: int | Axis, new_axis: AxisSelector | None = None
) -> tuple["NamedArray", "NamedArray"]:
    """Return the `k` largest elements along `axis`, largest first, and their indices; NaN counts as largest.

    Args:
        x: axes {axis, ...}.
        axis: the axis to select along; its size becomes `k`.
        k: the number of elements, static; or the new axis, with its size.
        new_axis: a new name for the axis.

    Returns:
        The elements and their indices along `axis`; the axes of `x`.

    Raises:
        AxisSizeError: if the axis has fewer than `k` elements, or `new_axis` another size than `k`.
        AxisClashError: if the new name is already in use.

    Examples:
        >>> logits = axn.named([[1., 3., 2.], [6., 5., 4.]], ("batch", "vocab"))
        >>> values, indices = axn.top_k(logits, "vocab", 2, "beam")
        >>> indices
        NamedArray(int32[batch=2, beam=2])
        [[1 2]
         [0 1]]
    """
    return _select_k(_top_k, x, axis, k, new_axis)


def _select_k(
    fn: checks.Function,
    x: "NamedArray",
    axis: AxisSelector,
    k: int | Axis,
    new_axis: AxisSelector | None,
    **options: Any,
) -> tuple["NamedArray", "NamedArray"]:
    """Apply a function that selects `k` elements along an axis and returns their indices too."""
    function = checks.title(fn)
    if isinstance(k, Axis) and new_axis is None:
        new_axis, k = k, k.size
    # `jax.lax.top_k` and PyTorch take the number second.
    if isinstance(axis, int) and isinstance(k, str | Axis):
        hint = f'write {function}(x, "{axis_name(k)}", {axis})'
        raise OperandError(
            message(function, "the axis comes before the number of elements", hint=hint)
        )
    k = static_int(function, "k", k)
    name, _ = selector(axis, function)

    new = name
    if new_axis is not None:
        new, size = selector(new_axis, function)
        # The kernel checks that there are enough elements; that the sizes agree is known here.
        checks.require_size(function, (new, size), k, "{} elements are chosen")

    out = (new,)
    options |= {"k": k, "name": name, "blocks": None}
    if isinstance(x, Core) and name in x.names:
        options["blocks"] = find_blocks(x.array, x.names, name)
    values, indices = apply_batched(fn, [x], [axis], (out, out), in_place=True, **options)
    return values, indices


def _check_k(function: str, k: int, name: str, array: jax.Array) -> None:
    """Check the number of elements to select along the last axis."""
    size = array.shape[-1]
    if not 0 <= k <= size:
        problem = f"cannot choose {k} elements of axis {name!r}, which has size {size}"
        raise AxisSizeError(message(function, problem))


def _top_k(array: jax.Array, k: int, name: str, blocks: Blocks | None) -> tuple[jax.Array, ...]:
    _check_k("top_k", k, name, array)
    if jnp.issubdtype(array.dtype, jnp.floating):
        # `lax.top_k` orders NaN by its sign, which processors set when they subtract infinities.
        array = jnp.where(jnp.isnan(array), jnp.nan, array)
    return select_by_blocks(lax.top_k, array, k, blocks)


def _approx_max_k(
    array: jax.Array, k: int, name: str, blocks: Blocks | None, recall_target: float
) -> tuple[jax.Array, ...]:
    _check_k("approx_max_k", k, name, array)
    return _approx_k(lax.approx_max_k, array, k, blocks, recall_target)


def _approx_min_k(
    array: jax.Array, k: int, name: str, blocks: Blocks | None, recall_target: float
) -> tuple[jax.Array, ...]:
    _check_k("approx_min_k", k, name, array)
    return _approx_k(lax.approx_min_k, array, k, blocks, recall_target)


def _approx_k(
    select: checks.Function, array: jax.Array, k: int, blocks: Blocks | None, recall_target: float
) -> tuple[jax.Array, ...]:
    if blocks is not None and blocks.entries[-1]:
        recall_target **= 0.5  # what one step out of two misses
    return select_by_blocks(partial(select, recall_target=recall_target), array, k, blocks)


def _lexsort(*keys: jax.Array) -> jax.Array:
    return jnp.lexsort(jnp.broadcast_arrays(*keys), axis=-1)


def _partition(array: jax.Array, axis: int, kth: int, name: str) -> jax.Array:
    _check_kth("partition", kth, name, array.shape[axis])
    # `jnp.partition` is two `top_k`, which take longer than one sort.
    return _sort(array, axis, stable=False)


def _sort(array: jax.Array, axis: int, stable: bool, descending: bool = False) -> jax.Array:
    array = gather_sorted(array, (axis,))
    return jnp.sort(array, axis, stable=stable, descending=descending)


def _argsort(array: jax.Array, axis: int, stable: bool, descending: bool = False) -> jax.Array:
    return mark_varying_like(jnp.argsort(array, axis, stable=stable, descending=descending), array)


def _argpartition(array: jax.Array, axis: int, kth: int, name: str) -> jax.Array:
    _check_kth("argpartition", kth, name, array.shape[axis])
    return _argsort(array, axis, stable=False)


def _check_kth(function: str, kth: int, name: str, size: int) -> None:
    if not -size <= kth < size:
        raise AxisSizeError(
            message(
                function, f"position {kth} lies outside of axis {name!r}, which has size {size}"
            )
        )


def _sort_complex(array: jax.Array, axis: int) -> jax.Array:
    # Real numbers sort faster than complex ones.
    is_wide = inexact_dtype(array.dtype) in (jnp.float64, jnp.complex128)
    dtype = jnp.complex128 if is_wide else jnp.complex64
    return jnp.sort(array, axis).astype(dtype)


def searchsorted(
    a: "NamedArray",
    v: Operand,
    axis: AxisSelector | None = None,
    *,
    side: str = "left",
    sorter: "NamedArray | None" = None,
    method: str = "scan",
) -> "NamedArray":
    """Return the positions at which to insert values into sorted ones to keep them sorted.

    Args:
        a: values in ascending order along `axis`; other axes are matched by name.
        v: values to insert; any axes.
        axis: the axis of the sorted values, needed if `a` has several.
        side: whether to insert before ("left") or after ("right") equal values.
        sorter: indices over the axes of `a` that sort it, if it is not sorted.
        method: the algorithm: "scan", "scan_unrolled", "sort" or "compare_all".

    Returns:
        Integers; the axes of `v`, and those of `a` except `axis`.

    Raises:
        ArgumentError: if `side` or `method` is unknown.

    Examples:
        >>> a = axn.named([1.0, 2.0, 2.0, 4.0], "level")
        >>> axn.searchsorted(a, axn.named([2.0, 3.0], "i")).tolist()
        [1, 3]
    """
    for what, value, known in (("side", side, ("left", "right")), ("method", method, _METHODS)):
        if value not in known:
            problem = f"the {what} must be one of {', '.join(known)}, not {value!r}"
            raise ArgumentError(message("searchsorted", problem))
    if axis is None:
        axis = only_axis("searchsorted", a)
    # The method "sort" sorts all values at once, which mapping over the axes of `v` alone would prevent.
    own = plans.without(own_names(v), a.names) if method == "sort" else ()
    operands: list[Operand] = [v, a]
    core: list[AxisSelection] = [own, axis]
    if sorter is not None:
        integers("searchsorted", "the sorter", sorter)
        operands.append(sorter)
        core.append(axis)
    return apply_batched(
        _searchsorted,
        operands,
        core,
        own,
        each=True,
        in_place=True,
        whole=True,
        side=side,
        method=method,
    )


def _searchsorted(
    v: jax.Array, a: jax.Array, sorter: jax.Array | None = None, *, side: str, method: str
) -> jax.Array:
    # The loop of "scan" starts from constants, by which JAX takes its result to be the same on all devices.
    found = jnp.searchsorted(a, v, side=side, sorter=sorter, method=method)
    return mark_varying_like(found, a, v)


explain_calls(globals(), __all__)
