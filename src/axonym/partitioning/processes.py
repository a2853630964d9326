"""Internal. Arrays of one process on a mesh that spans several; `trees` checks them before it shards them."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from ..errors import ShardingError, describe, message
from ..names.plans import Names


def is_of_one_process(array: Any, target: NamedSharding) -> bool:
    """Return whether each process has an array of its own, for a sharding over the devices of all processes."""
    devices: set[Any] = target.device_set
    of_all = {device.process_index for device in devices}
    own = isinstance(array, np.ndarray | np.generic) or (
        isinstance(array, jax.Array) and array.is_fully_addressable
    )
    return own and len(of_all) == jax.process_count()


def check_equal(function: str, array: Any, names: Names) -> None:
    """Check that all processes have the same array; each must call this.

    Raises:
        ShardingError: if one has other values.
    """
    is_key = isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    values = np.ascontiguousarray(jax.random.key_data(array) if is_key else array)
    # A digest of 32 bytes is sent, not the array; the shape is part of it, since bytes do not show it.
    header = f"{values.shape} {values.dtype} ".encode()
    digest = np.frombuffer(hashlib.sha256(header + values.tobytes()).digest(), np.uint8)
    if len(np.unique(multihost_utils.process_allgather(digest), axis=0)) > 1:
        problem = "the processes have different values for one array"
        facts = f"array has: {describe(names, array.shape)}"
        hint = "use from_local where each process has its part"
        raise ShardingError(message(function, problem, facts, hint=hint))
