"""The current mesh, including that of `with mesh:`, the predecessor of `jax.set_mesh`, which Axonym ignores."""

import dataclasses
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from axonym.engine import AxisMapping, MeshLike, context_mesh, resolve_mapping, transforming

__all__ = ["current_mesh", "entering_mesh", "uneven"]

_NONE = AbstractMesh((), ())


def uneven(mapping: Any) -> Any:
    """Convert a mapping so that JAX decides about sizes that mesh axes do not divide; None stays None."""
    resolved = resolve_mapping(mapping)
    if isinstance(resolved, AxisMapping):
        return dataclasses.replace(resolved, uneven=True)
    return resolved


def current_mesh(mesh: MeshLike | None = None) -> MeshLike | None:
    """Return the given mesh, or else the one of `jax.set_mesh`, or else the one of `with mesh:`, or None."""
    if mesh is not None:
        return mesh
    with suppress(ValueError):  # while tracing there is only an abstract mesh
        concrete = jax.sharding.get_mesh()
        if not concrete.empty:
            return concrete
    return context_mesh() or _entered_mesh()


def entering_mesh() -> AbstractContextManager[object]:
    """Pass the mesh of `with mesh:` to `jax.set_mesh`, unless there is one already."""
    if context_mesh() is not None:
        return nullcontext()
    entered = _entered_mesh()
    if entered is None:
        return nullcontext()
    if transforming():
        return jax.sharding.use_abstract_mesh(entered.abstract_mesh)
    return jax.set_mesh(entered)


def _entered_mesh() -> Mesh | None:
    """Return the mesh of `with mesh:`, or None."""
    with jax.sharding.use_abstract_mesh(_NONE):
        found: _Found = jax.eval_shape(_look)
    return found.mesh


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Found:
    mesh: Mesh | None


@jax.jit  # for its cache, whose key includes the mesh of `with mesh:`
def _look() -> _Found:
    """Find the mesh that JAX uses for a constraint without a mesh; nothing is computed."""
    try:
        program = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()))(
            np.float32(0)
        )
    except RuntimeError:
        return _Found(None)
    return _Found(program.eqns[0].params["sharding"].mesh)
