"""What tests of layouts share: a mesh for each mix of axis types, and random arrays."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

import axonym as axn

KINDS = {
    "auto": (AxisType.Auto, AxisType.Auto),
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "explicit-auto": (AxisType.Explicit, AxisType.Auto),
    "auto-explicit": (AxisType.Auto, AxisType.Explicit),
}


def make_mesh(kind: str = "auto") -> jax.sharding.Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=KINDS[kind])


def draw(*axes: axn.Axis, seed: int = 0) -> Any:
    sizes = [axis.size for axis in axes]
    return axn.named(np.random.default_rng(seed).normal(size=sizes).astype(np.float32), axes)
