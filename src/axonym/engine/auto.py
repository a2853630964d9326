"""Internal. Functions that JAX cannot type: on Explicit axes they are computed as on Auto ones.

`whole` gathers a dimension first. `local` lets the compiler decide, and names the type of the result. `move_elements`
is `local` with the type of the operand, as far as sizes divide; `move_into_parts` does so for several results.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..faults.gathered_pieces import keep_apart
from ..layout import assignment, explicit, partition, tracing
from ..names.plans import Names


def whole(array: jax.Array, at: Sequence[int], names: Names = ()) -> jax.Array:
    """On a mesh with Explicit axes, gather the given dimensions, which an operation cannot process in shards.

    Args:
        array: the array.
        at: the dimensions.
        names: the names of the last dimensions, for reports of `limit_reshards`.

    Returns:
        The array itself on all other meshes, or without one.

    Examples:
        >>> from axonym.engine import whole
        >>> whole(jnp.ones((2, 3)), [0]).shape
        (2, 3)
    """
    if not explicit.has_explicit_axes(array):
        return array
    entries = list(explicit.get_layout(array))
    for position in at:
        entries[position] = ()
    return explicit.reshard(array, entries, names)


def local(fn: Callable[..., Any], arrays: Sequence[jax.Array], results: Any) -> Any:
    """Call a function of arrays with Explicit shardings as if they were on Auto axes.

    Many operations of JAX do not support Explicit shardings; within the function the compiler decides on layouts.

    Args:
        fn: a function of arrays.
        arrays: its arguments.
        results: the mesh axes of each dimension of the result; a tuple of such lists for several results.
    """
    # Operands from before the mesh have no type, and any other one names the mesh.
    typed = next((array for array in arrays if explicit.has_explicit_axes(array)), None)
    if typed is None:
        return fn(*arrays)
    mesh = explicit.mesh_of_type(typed)
    of_type = functools.partial(explicit.make_sharding, typed)
    out: Any = tuple(map(of_type, results)) if isinstance(results, tuple) else of_type(results)
    return explicit.make_auto(fn, mesh, out)(*map(_with_typed_gradient, arrays))


def move_elements(
    fn: Callable[..., jax.Array],
    arrays: Sequence[Any],
    entries: Sequence[assignment.Entry] | None = None,
) -> jax.Array:
    """Call a function that moves elements, and let the compiler decide what devices send each other.

    On a mesh with Explicit axes, each dimension of the result is split as wanted if its size divides.

    Args:
        fn: a function of arrays.
        arrays: its arguments.
        entries: the mesh axes wanted for each dimension of the result; by default those of the first array.
    """
    if not any(map(explicit.has_explicit_axes, arrays)):
        return fn(*arrays)
    if entries is None:
        entries = explicit.get_layout(arrays[0])
    (fitting,) = keep_dividing(fn, arrays, [entries])
    if fitting != list(entries):
        # A dimension that no longer divides is gathered, which users want to know of large arrays.
        explicit.report_gathered(arrays[0], fitting)
        fn = keep_apart(fn)
    result: jax.Array = local(fn, arrays, fitting)
    return result


def move_into_parts(
    fn: Callable[[jax.Array], tuple[jax.Array, ...]], array: jax.Array, count: int
) -> tuple[jax.Array, ...]:
    """Do what `move_elements` does for a function of one array that has `count` results."""
    if not explicit.has_explicit_axes(array):
        return fn(array)
    entries = [explicit.get_layout(array)] * count
    results: tuple[jax.Array, ...] = local(
        keep_apart(fn), [array], tuple(keep_dividing(fn, [array], entries))
    )
    return results


def keep_dividing(
    fn: Callable[..., Any],
    arrays: Sequence[Any],
    wanted: Sequence[Sequence[assignment.Entry]],
) -> list[list[assignment.Entry]]:
    """Return the wanted mesh axes of each dimension of each result of a function, where they divide its size."""
    mesh = explicit.mesh_of_type(next(filter(explicit.has_explicit_axes, arrays)))
    types = [jax.ShapeDtypeStruct(jnp.shape(array), jnp.result_type(array)) for array in arrays]
    results = jax.tree.leaves(jax.eval_shape(fn, *types))

    def fit(size: int, entry: assignment.Entry) -> assignment.Entry:
        # JAX replicates what has no elements.
        return entry if size and not size % partition.count_shards(mesh, entry) else ()

    pairs = zip(results, wanted, strict=True)
    return [list(map(fit, result.shape, entries)) for result, entries in pairs]


def _with_typed_gradient(value: object) -> Any:
    """Multiply an array made before the mesh by one: its gradient then has the mesh's type, not that in `local`.

    An eager gradient always multiplies, since the types in it do not show whether this is needed.
    """
    if not isinstance(value, Tracer) or not jnp.issubdtype(value.dtype, jnp.inexact):
        return value
    if explicit.mesh_of_type(value).empty or not tracing.tracing():
        return value * 1
    return value


def broadcast_entries(arrays: Sequence[Any]) -> list[assignment.Entry]:
    """Return the mesh axes of each dimension after broadcasting arrays of agreed layouts by position."""
    entries: list[assignment.Entry] = [()] * max(map(jnp.ndim, arrays))
    # Positional broadcasting aligns from the right. Dimensions of one element have no mesh axes, and give way.
    for array in arrays:
        for at, entry in enumerate(reversed(explicit.get_layout(array)), start=1):
            entries[-at] = entry or entries[-at]
    return entries
