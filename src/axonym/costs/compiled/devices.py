"""Internal. Devices to compile for: devices of a mesh, simulated devices, or descriptions of absent devices.

`axn.cost` and `axn.plan` call it before they compile. It must not know programs.
"""

import importlib.util
import math
import os
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractMesh, Mesh

from ...errors import OperandError, message, suggestion
from ..shared.targets import TARGETS, Target
from .gpus import describe_gpus, write_hint

# The topology of the slices that exist, by their number of chips: a torus of two or three dimensions.
_FLAT = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_SOLID = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
    512: "8x8x8",
}
_SLICES = {"v5e": _FLAT, "v5p": _SOLID, "v6e": _FLAT}
# JAX has another name for these platforms.
_PLATFORMS = {"cuda": "gpu"}
# Without these variables, libtpu asks the network which machine it is on, and waits.
_OFFLINE = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
}


def find_target(target: Target | str, function: str = "cost") -> Target:
    """Return a target, which may be given by its name.

    Args:
        target: the target.
        function: what was called, for the message.

    Raises:
        OperandError: for an unknown name, and for an object that is neither a name nor a target.
    """
    if isinstance(target, Target):
        return target
    known = ", ".join(TARGETS)
    if not isinstance(target, str):
        problem = f"a target must be a name or a Target, not {target!r}"
        raise OperandError(message(function, problem, f"names: {known}"))
    if target not in TARGETS:
        problem = f"there is no target {target!r}"
        hint = suggestion(target, TARGETS) or "describe it by axn.partitioning.Target(...)"
        raise OperandError(message(function, problem, f"names: {known}", hint=hint))
    return TARGETS[target]


def make_device_mesh(mesh: object, abstract: AbstractMesh, target: Target) -> Mesh:
    """Return a mesh with devices to compile for.

    A mesh may have devices already. Otherwise, the mesh gets descriptions of the target's devices if JAX can compile
    for them here, and else the devices of this machine, which may be simulated.

    Args:
        mesh: the mesh of the caller, with or without devices.
        abstract: the mesh without its devices.
        target: the device to compile for.

    Raises:
        OperandError: if there are too few devices.
    """
    if isinstance(mesh, Mesh):
        return mesh
    devices = describe_devices(target, abstract.size) or jax.devices()
    if len(devices) < abstract.size:
        problem = f"the mesh has {abstract.size} devices, and this machine has {len(devices)}"
        hint = (
            "simulate them: set jax.config.update('jax_num_cpu_devices',"
            f" {abstract.size}), or XLA_FLAGS=--xla_force_host_platform_device_count={abstract.size},"
            " before JAX is first used; for TPUs, install libtpu, which compiles without devices"
        )
        raise OperandError(message("cost", problem, hint=hint))
    sizes = tuple(abstract.shape.values())
    grid = np.array(devices[: math.prod(sizes)]).reshape(sizes)
    return Mesh(grid, abstract.axis_names, axis_types=abstract.axis_types)


def find_obstacle(mesh: object, abstract: AbstractMesh, target: Target) -> str:
    """Return why programs for a target cannot be compiled here; an empty text if they can."""
    platform = _PLATFORMS.get(target.platform, target.platform)
    try:
        devices = make_device_mesh(mesh, abstract, target).devices
    except OperandError as error:
        if platform == jax.default_backend():
            return error.problem
        # The platform of the devices is a better reason than their number.
        devices = np.array(jax.devices())
    own = devices.flat[0].platform
    if has_compiler_of(devices.flat[0], target):
        return ""
    if platform != "tpu" or isinstance(mesh, Mesh):
        hint = "" if isinstance(mesh, Mesh) else write_hint(target.name)
        return f"programs for {target.name} need devices of {platform}, and these are {own}{hint}"
    if target.name not in _SLICES or abstract.size not in _SLICES[target.name]:
        return f"there are no {abstract.size} connected devices of {target.name} to compile for"
    return f"without libtpu, programs for {target.name} cannot be compiled here"


def has_compiler_of(device: Any, target: Target) -> bool:
    """Return whether a device has the compiler of a target."""
    return bool(device.platform == _PLATFORMS.get(target.platform, target.platform))


def describe_devices(target: Target, count: int) -> list[Any]:
    """Return descriptions of absent devices that JAX can compile for; empty if it cannot."""
    if target.platform == "cuda":
        return describe_gpus(target.name, count)
    slices = _SLICES.get(target.name, {})
    if target.platform != "tpu" or count not in slices or jax.default_backend() == "tpu":
        return []
    library = importlib.util.find_spec("libtpu")
    # A folder called libtpu looks like a package, but has no file.
    if library is None or library.origin is None:
        return []
    for name, value in _OFFLINE.items():
        os.environ.setdefault(name, value)
    name = f"{target.name}:{slices[count]}"
    described = topologies.get_topology_desc(platform="tpu", topology_name=name)
    return list(described.devices)
