"""What XLA does wrong where it joins what devices have computed, on CPUs.

Each test holds while JAX has the fault. Where one begins to fail, the workaround can go: `faults/lost_nan.py` for
the first (not before NCCL keeps NaN too), `faults/narrow_sums.py` for the second.
"""

import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def test_maxima_lose_nan(auto_mesh: Mesh) -> None:
    values = np.array([0, np.nan, 2, 3], np.float32)
    assert np.isnan(jnp.max(jnp.asarray(values)))
    assert jnp.max(jax.device_put(values, NamedSharding(auto_mesh, PartitionSpec("data")))) == 3


SUM_OF_BFLOAT16 = """
import jax, jax.numpy as jnp
Auto = jax.sharding.AxisType.Auto
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(Auto, Auto))
total = lambda x: jax.lax.psum(x.sum(0), "data")
split, whole = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
run = jax.jit(jax.shard_map(total, mesh=mesh, axis_names={"data"}, in_specs=split, out_specs=whole))
run(jnp.ones((8, 4), "bfloat16"))
"""


def test_a_sum_of_bfloat16_beside_an_auto_axis_aborts_the_process() -> None:
    command = [sys.executable, "-c", SUM_OF_BFLOAT16]
    assert subprocess.run(command, env=dict(os.environ), capture_output=True).returncode == -signal.SIGABRT
