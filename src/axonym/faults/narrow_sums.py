"""Internal. XLA for CPUs ends the process over a bfloat16 sum over devices, in a mesh that is Manual in part.

In other meshes, XLA itself converts such sums to float32. All versions up to at least jax 0.12.0.1;
`tests/upstream/test_joins_of_devices.py` shows it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..layout import modes


def reduce_in_float32(reduce: Callable[[jax.Array], Any], array: jax.Array) -> Any:
    """Reduce an array over devices; on a CPU, in a mesh with only some Manual axes, reduce bfloat16 as float32."""
    is_manual = modes.is_manual(jax.sharding.get_abstract_mesh())
    if array.dtype != jnp.bfloat16 or is_manual or jax.default_backend() != "cpu":
        return reduce(array)
    return reduce(array.astype(jnp.float32)).astype(jnp.bfloat16)
