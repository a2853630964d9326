"""Internal. On Explicit mesh axes, JAX 0.10 cannot fetch or print a split result without elements.

XLA replicates an array without elements whatever its layout, so the sharding of the result differs from its type.
`tests/upstream/test_empty_arrays.py` shows it. Collectives of XLA do not take an empty dimension either.
"""

from typing import Any

import jax

from ..layout.explicit import reshard


def replicate_empty(results: object) -> Any:
    """On a mesh with Explicit axes, replicate the results that have no elements."""

    def replicate(result: object) -> Any:
        if isinstance(result, jax.Array) and 0 in result.shape:
            return reshard(result, [()] * result.ndim)
        return result

    # Most often there is one array, which needs no walk through a tree.
    is_one = isinstance(results, jax.Array)
    return replicate(results) if is_one else jax.tree.map(replicate, results)


def is_refused_by_collectives(array: jax.Array, dimension: int) -> bool:
    """Return whether XLA refuses to gather or scatter along a dimension, since it is empty."""
    return not array.shape[dimension]
