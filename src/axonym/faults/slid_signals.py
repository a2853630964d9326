"""Internal. XLA sums gradients of convolved signals over mesh axes that split none of the arrays.

All versions, on Auto axes of a mesh of several axes; `tests/upstream/test_split_windows.py` shows it.
"""

from collections.abc import Callable

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from ..layout import modes


def slide_replicated(slide: Callable[..., jax.Array], x: jax.Array, v: jax.Array) -> jax.Array:
    """Slide one signal along the other; on a mesh of several axes, the signals and the result are replicated.

    XLA's partitioner would also sum gradients, and some results, over mesh axes that are not used.
    """
    meshes = (
        jax.sharding.get_abstract_mesh(),
        *(jax.typeof(signal).sharding.mesh for signal in (x, v)),
    )
    mesh = next((mesh for mesh in meshes if modes.has_auto(mesh)), None)
    if mesh is None or sum(size > 1 for size in mesh.shape.values()) < 2:
        return slide(x, v)
    # Under a `vmap`, its dimension keeps its layout.
    whole = NamedSharding(mesh, PartitionSpec(None))
    x, v = lax.with_sharding_constraint((x, v), whole)
    result: jax.Array = lax.with_sharding_constraint(slide(x, v), whole)
    return result
