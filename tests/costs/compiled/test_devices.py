"""Devices to compile for."""

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from axonym.costs.compiled.devices import describe_devices, find_obstacle, make_device_mesh
from axonym.errors import OperandError
from axonym.partitioning import TARGETS

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
CPU = TARGETS["cpu"]


def test_simulated_devices_make_a_mesh_of_the_same_types():
    abstract = AbstractMesh((2, 2), ("data", "model"), axis_types=(AUTO, EXPLICIT))
    mesh = make_device_mesh({}, abstract, CPU)
    assert dict(mesh.shape) == {"data": 2, "model": 2}
    assert mesh.axis_types == (AUTO, EXPLICIT)
    assert mesh.devices.flatten().tolist() == jax.devices()[:4]


def test_a_mesh_with_devices_stays(auto_mesh):
    assert make_device_mesh(auto_mesh, auto_mesh.abstract_mesh, CPU) is auto_mesh


def test_too_few_devices():
    with pytest.raises(OperandError) as raised:
        make_device_mesh({}, AbstractMesh((64,), ("data",), axis_types=(AUTO,)), CPU)
    assert str(raised.value) == (
        "cost: the mesh has 64 devices, and this machine has 8\n"
        "  hint: simulate them: set jax.config.update('jax_num_cpu_devices', 64), or"
        " XLA_FLAGS=--xla_force_host_platform_device_count=64, before JAX is first used; for TPUs, install libtpu,"
        " which compiles without devices"
    )


def test_only_tpus_are_described():
    assert describe_devices(CPU, 8) == []
    assert describe_devices(TARGETS["v5e"], 7) == []


def test_what_can_be_compiled_here_has_no_obstacle(auto_mesh):
    abstract = auto_mesh.abstract_mesh
    assert find_obstacle({}, abstract, CPU) == ""
    assert find_obstacle(auto_mesh, abstract, CPU) == ""


@pytest.mark.parametrize(
    ("target", "size", "text"),
    [
        ("cpu", 64, "the mesh has 64 devices, and this machine has 8"),
        (
            "h100",
            8,
            "programs for h100 need devices of gpu, and these are cpu; jax[cuda13] compiles for them without one, if"
            " JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 is set before JAX starts",
        ),
        ("v5e", 6, "there are no 6 connected devices of v5e to compile for"),
    ],
)
def test_obstacles(target, size, text):
    assert find_obstacle({}, AbstractMesh((size,), ("data",), axis_types=(AUTO,)), TARGETS[target]) == text


def test_devices_of_another_kind_are_an_obstacle(auto_mesh):
    text = find_obstacle(auto_mesh, auto_mesh.abstract_mesh, TARGETS["v5e"])
    assert text == "programs for v5e need devices of tpu, and these are cpu"


def test_a_missing_library_is_an_obstacle(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = find_obstacle({}, AbstractMesh((8,), ("data",), axis_types=(AUTO,)), TARGETS["v5e"])
    assert text == "without libtpu, programs for v5e cannot be compiled here"
