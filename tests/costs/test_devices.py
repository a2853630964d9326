"""Devices to compile for."""

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from axonym.costs.devices import described_devices, mesh_of_devices
from axonym.errors import OperandError
from axonym.partitioning import TARGETS

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
CPU = TARGETS["cpu"]


def test_simulated_devices_make_a_mesh_of_the_same_types():
    abstract = AbstractMesh((2, 2), ("data", "model"), axis_types=(AUTO, EXPLICIT))
    mesh = mesh_of_devices({}, abstract, CPU)
    assert dict(mesh.shape) == {"data": 2, "model": 2}
    assert mesh.axis_types == (AUTO, EXPLICIT)
    assert mesh.devices.flatten().tolist() == jax.devices()[:4]


def test_a_mesh_with_devices_stays(auto_mesh):
    assert mesh_of_devices(auto_mesh, auto_mesh.abstract_mesh, CPU) is auto_mesh


def test_too_few_devices():
    with pytest.raises(OperandError) as raised:
        mesh_of_devices({}, AbstractMesh((64,), ("data",), axis_types=(AUTO,)), CPU)
    assert str(raised.value) == (
        "cost: the mesh has 64 devices, and this machine has 8\n"
        "  hint: simulate them: set jax.config.update('jax_num_cpu_devices', 64), or"
        " XLA_FLAGS=--xla_force_host_platform_device_count=64, before JAX is first used; for TPUs, install libtpu,"
        " which compiles without devices"
    )


def test_only_tpus_are_described():
    assert described_devices(CPU, 8) == []
    assert described_devices(TARGETS["v5e"], 7) == []
