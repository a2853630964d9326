"""Functions that JAX cannot type: on Explicit axes they are computed as on Auto ones."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..names.plans import Names
from . import assignment, explicit, tracing


def whole(array: jax.Array, at: Sequence[int], names: Names = ()) -> jax.Array:
    """On a mesh with Explicit axes, gather the given dimensions, which an operation cannot process in shards."""
    if not explicit.has_explicit_axes(array):
        return array
    entries = list(explicit.entries_from_type(array))
    for position in at:
        entries[position] = ()
    return explicit.relayout(array, entries, names)


def local(fn: Callable[..., Any], arrays: Sequence[jax.Array], results: Any) -> Any:
    """Call a function of arrays with Explicit shardings as on Auto axes.

    Many operations of JAX do not support Explicit shardings; within the function the compiler decides on layouts.

    Args:
        fn: a function of arrays.
        arrays: its arguments.
        results: the mesh axes of each dimension of the result; a tuple of such lists for several results.
    """
    typed = next((array for array in arrays if explicit.has_explicit_axes(array)), None)
    if typed is None:
        return fn(*arrays)
    mesh = explicit.mesh_of_type(typed)
    if isinstance(results, tuple):
        out: Any = tuple(explicit.sharding_from(typed, entries) for entries in results)
    else:
        out = explicit.sharding_from(typed, results)
    return explicit.untyped(fn, mesh, out)(*map(_with_typed_gradient, arrays))


def _with_typed_gradient(value: object) -> Any:
    """Multiply an array made before the mesh by one: its gradient then has the mesh's type, not that in `local`.

    In an eager gradient, the types do not show whether this is needed.
    """
    if not isinstance(value, Tracer) or not jnp.issubdtype(value.dtype, jnp.inexact):
        return value
    if explicit.mesh_of_type(value).empty or not tracing.tracing():
        return value * 1
    return value


def broadcast_entries(arrays: Sequence[Any]) -> list[assignment.Entry]:
    """Return the mesh axes of each dimension after broadcasting arrays of agreed layouts by position."""
    entries: list[assignment.Entry] = [()] * max(map(jnp.ndim, arrays))
    for array in arrays:
        for at, entry in enumerate(reversed(explicit.entries_from_type(array)), start=1):
            entries[-at] = entry or entries[-at]
    return entries
