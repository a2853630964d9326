"""XLA gathers the batch of a Fourier transform on each device.

The test holds on all versions so far. Where it begins to fail, `faults/gathered_transforms.py` need only move the mesh
axes of a transformed axis.
"""

import re

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def test_a_split_batch(auto_mesh: Mesh) -> None:
    x = jax.device_put(jnp.ones((8, 16)), NamedSharding(auto_mesh, PartitionSpec("data")))
    program = jax.jit(lambda x: jnp.fft.fft(x)).lower(x).compile().as_text() or ""
    assert re.search(r" all-gather(-start)?\(", program)
