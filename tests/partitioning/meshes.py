"""What tests of layouts share: a mesh for each mix of axis types, and random arrays."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

import axonym as axn

KINDS = {
    "auto": (AxisType.Auto, AxisType.Auto),
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "explicit-auto": (AxisType.Explicit, AxisType.Auto),
    "auto-explicit": (AxisType.Auto, AxisType.Explicit),
}


def make_mesh(kind: str = "auto") -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=KINDS[kind])


def values(*axes: axn.Axis, seed: int = 0) -> np.ndarray:
    """Make the elements of `draw`, for references in numpy."""
    return np.random.default_rng(seed).normal(size=[axis.size for axis in axes]).astype(np.float32)


def draw(*axes: axn.Axis, seed: int = 0) -> Any:
    # `jnp.asarray` would compile a program for each shape and mesh.
    place = None if jax.sharding.get_abstract_mesh().empty else PartitionSpec()
    return axn.named(jax.device_put(values(*axes, seed=seed), place), axes)
