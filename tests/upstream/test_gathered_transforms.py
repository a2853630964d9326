"""XLA of JAX 0.10 gathers the batch of a Fourier transform on each device.

Where every supported version leaves it where it is, `faults/gathered_transforms.py` need only move the mesh axes of a
transformed axis.
"""

import re

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

IS_MENDED = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)


def test_a_split_batch(auto_mesh: Mesh) -> None:
    x = jax.device_put(jnp.ones((8, 16)), NamedSharding(auto_mesh, PartitionSpec("data")))
    program = jax.jit(lambda x: jnp.fft.fft(x)).lower(x).compile().as_text() or ""
    is_gathered = bool(re.search(r" all-gather(-start)?\(", program))
    assert is_gathered != IS_MENDED
