"""Internal. Inside a shard_map, JAX forgets that the positions which a sort returns differ from device to device.

JAX would then consider a collective superfluous. All versions; `tests/upstream/test_varying.py` shows it.
"""

import jax

from ..layout.tracing import varying


def mark_varying_like(result: jax.Array, *operands: jax.Array) -> jax.Array:
    """Mark the type of a result as varying over the same mesh axes as the operand that it comes from."""
    mesh_axes = set[str]().union(*(jax.typeof(operand).mat.varying for operand in operands))
    return varying(result, mesh_axes)
