"""How runs are laid out: pairs of mappings, and the mesh."""

import math
from typing import Literal

import jax

import axonym as axn

Strategy = Literal["single", "dp", "fsdp", "tp", "fsdp+tp"]
KINDS = {"auto": jax.sharding.AxisType.Auto, "explicit": jax.sharding.AxisType.Explicit}
HEADS = {"kv_heads": "model", "mlp": "model"}

# For each strategy: how parameters and optimiser state are laid out, and how the computation is.
STRATEGIES: dict[Strategy, tuple[axn.ResourceMapping, axn.ResourceMapping]] = {
    "single": ({}, {}),
    "dp": ({}, {"batch": ("data", "model")}),
    "fsdp": ({"embed": ("data", "model")}, {"batch": ("data", "model")}),
    "tp": (HEADS, {"batch": "data", **HEADS}),
    "fsdp+tp": ({"embed": "data", **HEADS}, {"batch": "data", **HEADS}),
}


def make_mesh(shape: tuple[int, int], axis_types: Literal["auto", "explicit"] = "auto") -> jax.sharding.Mesh:
    """Make a mesh with the axes data and model."""
    have = len(jax.devices())
    if min(shape) < 1:
        raise ValueError(f"a mesh of {shape[0]} x {shape[1]} must have at least 1 device along each axis")
    if math.prod(shape) > have:
        raise ValueError(f"a mesh of {shape[0]} x {shape[1]} needs {math.prod(shape)} devices, this machine has {have}")
    devices = jax.devices()[: math.prod(shape)]
    return jax.make_mesh(shape, ("data", "model"), axis_types=(KINDS[axis_types],) * 2, devices=devices)


def abstract_mesh(
    shape: tuple[int, int], axis_types: Literal["auto", "explicit"] = "auto"
) -> jax.sharding.AbstractMesh:
    """Describe a mesh of devices that need not exist."""
    if min(shape) < 1:
        raise ValueError(f"a mesh of {shape[0]} x {shape[1]} must have at least 1 device along each axis")
    return jax.sharding.AbstractMesh(shape, ("data", "model"), axis_types=(KINDS[axis_types],) * 2)
