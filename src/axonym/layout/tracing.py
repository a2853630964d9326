"""Internal. The state of JAX: whether it traces, and over which mesh axes a value varies.

JAX has no public functions for this, so these functions probe the behaviour of public ones.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

# The option that inlines a `jax.jit` into a surrounding program; from jax 0.12 on, True leaves it to the compiler.
INLINE: Any = getattr(getattr(jax, "Inline", None), "JAX_EARLY", True)


def tracing() -> bool:
    """Return whether operations are being traced; in an eager gradient or `vmap` they run at once."""
    try:
        return isinstance(jnp.asarray(0.0), Tracer)
    except jax.errors.JaxRuntimeError:  # of `jax.transfer_guard`, which only eager transfers meet
        return False


def transforming() -> bool:
    """Return whether a JAX transformation is active, such as `grad`, where `device_put` of a constant has no effect."""
    # It raises inside of transformations.
    try:
        jax.sharding.get_mesh()
    except ValueError:
        return True
    return False


def varying(array: jax.Array, mesh_axes: Iterable[str]) -> jax.Array:
    """Inside a shard_map, mark the type of an array as varying over mesh axes."""
    missing = sorted(set(mesh_axes) - varying_over(array))
    # A cast to what an array is already raises.
    marked: jax.Array = lax.pcast(array, tuple(missing), to="varying") if missing else array
    return marked


def varying_over(array: object) -> frozenset[str]:
    """Inside a shard_map, return the mesh axes over which an array varies, according to its type."""
    axes: frozenset[str] = frozenset(jax.typeof(array).mat.varying)
    return axes
