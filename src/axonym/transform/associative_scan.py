"""Prefix results of an associative function along a named axis, in a logarithmic number of steps.

`associative_scan` is the parallel sibling of `scan`: use it if the step is associative, such as a sum, a product, or a
linear recurrence. An axis that is split over devices is scanned block by block, so each device sends only one element.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from ..array import NamedArray, is_named_array
from ..axis import AxisSelector, selector
from ..base.calls import explain_calls
from ..base.kinds import is_array
from ..engine import auto, checks, kernels, prefixes
from ..engine.core import facts
from ..errors import AxisError, OperandError, message
from ..layout import context, explicit, modes, partition
from ..layout.assignment import Entry
from ..names import plans
from .carry import Keeper, settle_carry
from .leaves import Arguments, is_hole, take_arrays

__all__ = ["associative_scan"]

T = TypeVar("T")

_FUNCTION = "associative_scan"


def associative_scan(
    f: Callable[[T, T], T], axis: AxisSelector, *, reverse: bool = False
) -> Callable[[T], T]:
    """Combine all elements up to each position of an axis, for all positions in parallel.

    `associative_scan(f, axis)(elements)` gives at each position `f(...f(f(x0, x1), x2)..., xi)`. Because `f` is
    associative, it takes about 2 log2(n) rounds of vectorised calls instead of n steps; for a linear recurrence on an
    accelerator, that is faster than `scan`.

    Args:
        f: an associative function of an earlier and a later element. It is called with slices of any size along the
            axis, and must act on each position separately.
        axis: the axis; an `Axis` checks its size.
        reverse: combine from the last position to each; the first argument of `f` is the later one.

    Returns:
        A function of a tree of arrays that all have the axis; plain arrays have it as dimension 0. Their other axes may
        differ. It returns the same tree.

    Raises:
        AxisSizeError: if sizes of the axis differ.
        AxisNotFoundError: if a named array lacks the axis.
        AxisError: if `f` changes the axes of an element.
        OperandError: if `f` changes the structure of an element, or a leaf is not an array with a dimension.

    Reference:
        Blelloch (1990), Prefix sums and their applications.

    Examples:
        >>> decay, x = axn.full(axn.Axis("time", 4), 0.5), axn.ones(axn.Axis("time", 4))
        >>> axn.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "time")((decay, x))[1].tolist()
        [1.0, 1.5, 1.75, 1.875]
    """
    name, size = selector(axis, _FUNCTION)

    def dimension(_: int, leaf: Any) -> int:
        if isinstance(leaf, NamedArray):
            return checks.run_plan(_FUNCTION, (leaf,), plans.positions, leaf.names, (name,))[0]
        if is_array(leaf) and leaf.ndim:
            return 0
        problem = f"each element must be an array with axis {name!r}, not {_describe_leaf(leaf)}"
        raise OperandError(message(_FUNCTION, problem))

    def run(elements: object) -> Any:
        dims = Arguments(_FUNCTION, (name, size), ((elements,), {}), dimension).dims
        parts, skeleton = take_arrays(elements)
        # `lax` wants the axis at one position in all arrays; unlike a transpose, leading size-1 dimensions are free.
        place = max(dims, default=0)
        added = [tuple(range(place - dim)) for dim in dims]

        def name_arrays(arrays: Sequence[jax.Array]) -> Any:
            return skeleton.fill(map(lax.squeeze, arrays, added))

        def scan_with(elems: Sequence[jax.Array], keep: Keeper) -> Any:
            def combine(first: Sequence[jax.Array], second: Sequence[jax.Array]) -> list[jax.Array]:
                return keep(first, call(first, second))

            return lax.associative_scan(combine, elems, reverse=reverse, axis=place)

        def call(first: Sequence[jax.Array], second: Sequence[jax.Array]) -> list[jax.Array]:
            earlier = name_arrays(first)
            results = _check_element(earlier, f(earlier, name_arrays(second)))
            # `lax` cuts the dimension in halves, whose types on Explicit mesh axes it cannot say if it is split.
            arrays = map(lax.expand_dims, results, added)
            return [auto.whole(array, (place,)) for array in arrays]

        def along_part(elems: Sequence[jax.Array]) -> list[jax.Array]:
            return list(settle_carry(scan_with, elems))

        def join(first: Sequence[jax.Array], second: Sequence[jax.Array]) -> list[jax.Array]:
            return list(map(explicit.reshard_like, call(first, second), first))

        elems = list(map(lax.expand_dims, map(jnp.asarray, parts), added))
        entry, count = _find_split(elems, place, name)
        with context.unmap_names((name,)):  # slices along it are too small to be split
            if count == 1:
                return name_arrays(along_part([auto.whole(elem, (place,)) for elem in elems]))
            elems = [_shard_dimension(elem, place, entry) for elem in elems]
            scan = _map_over_parts(along_part, place, entry)
            join_parts = _map_over_parts(join, place, entry)
            results = prefixes.scan_parts(
                lambda elems, _: scan(elems), join_parts, elems, place, count, reverse=reverse
            )
        return name_arrays(results)

    # Made once, since JAX looks programs up by the function that it compiled.
    compiled = jax.jit(run)

    @functools.wraps(f)
    def scan_elements(elements: object) -> Any:
        # On a mesh with Explicit and Auto axes, JAX loses the layout of slices that are taken outside of a program.
        loses_layout = any(map(_is_on_mixed_axes, jax.tree.leaves(elements)))
        return compiled(elements) if loses_layout else run(elements)

    return scan_elements


def _is_on_mixed_axes(leaf: object) -> bool:
    """Return whether an array that is not traced is on a mesh with Explicit and Auto axes."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return False
    # An array that was made before the mesh has no mesh in its type.
    meshes = (explicit.mesh_of_type(leaf), jax.sharding.get_abstract_mesh())
    return any(modes.has_explicit(mesh) and modes.has_auto(mesh) for mesh in meshes)


def _check_element(element: object, result: object) -> list[jax.Array]:
    """Return the arrays of an element that `f` returned, with their axes in the previous order.

    Raises:
        OperandError: if the structure differs.
        AxisError: if an array has other axes, or other sizes.
    """
    tree: object
    olds, tree = jax.tree.flatten(element, is_leaf=is_named_array)
    news, other = jax.tree.flatten(result, is_leaf=is_named_array)
    if tree != other or any(map(_are_different, olds, news)):
        lines = (f"before: {tree}", f"after: {other}")
        raise OperandError(
            message(_FUNCTION, "the function changes the structure of an element", *lines)
        )
    # `f` may return axes in another order; `lax` compares shapes by position.
    arrays: list[jax.Array] = []
    for old, new in zip(olds, news, strict=True):
        if is_hole(old):  # a place that a filter has emptied: nothing to scan
            continue
        before, names = _unwrap(old)
        array, others = _unwrap(new)
        array = jnp.asarray(array)
        fits = set(names) == set(others)
        if fits:
            array = kernels.line_up(array, others, names)
        if not fits or array.shape != before.shape:
            lines = (f"before: {_describe_leaf(old)}", f"after: {_describe_leaf(new)}")
            raise AxisError(
                message(_FUNCTION, "the function changes the axes of an element", *lines)
            )
        arrays.append(array)
    return arrays


def _are_different(old: object, new: object) -> bool:
    return is_named_array(old) != is_named_array(new) or is_hole(old) != is_hole(new)


def _find_split(elems: Sequence[jax.Array], at: int, name: str) -> tuple[Entry, int]:
    """Return the mesh axes that split a dimension, and the number of parts."""
    # The array that is split most finely decides, and the others are split like it: gathering it would cost more.
    found = [prefixes.find_parts(elem, at, name) for elem in elems]
    return max(found, key=lambda each: each[1], default=((), 1))


def _map_over_parts(fn: Callable[..., Any], at: int, entry: Entry) -> Callable[..., Any]:
    """Map a function of arrays over a dimension that counts parts and is split over mesh axes."""

    def map_parts(*args: Sequence[jax.Array]) -> Any:
        # Inside, these mesh axes split the parts, so that no array may be split over them again.
        with context.take_axes(entry):
            return jax.vmap(fn, in_axes=at, out_axes=at)(*args)

    return map_parts


def _shard_dimension(elem: jax.Array, at: int, entry: Entry) -> jax.Array:
    """On a mesh with Explicit axes, split a dimension over mesh axes, and no other dimension over them."""
    if not explicit.has_explicit_axes(elem):
        return elem
    mesh = explicit.mesh_of_type(elem)
    entries = [partition.without(own, entry) for own in explicit.get_layout(elem)]
    entries[at] = partition.only(entry, modes.find_explicit_axes(mesh))
    return explicit.reshard(elem, entries)


def _unwrap(leaf: object) -> tuple[Any, tuple[str, ...]]:
    return (leaf.array, leaf.names) if isinstance(leaf, NamedArray) else (leaf, ())


def _describe_leaf(leaf: Any) -> str:
    if isinstance(leaf, NamedArray):
        return facts(leaf)
    if is_array(leaf):
        return f"a plain array of shape {jnp.shape(leaf)}"
    return type(leaf).__name__


explain_calls(globals(), __all__)
