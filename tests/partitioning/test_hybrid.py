"""Meshes of several slices, of devices that say which slice or process they are in."""

import dataclasses

import jax
import numpy as np
import pytest

from axonym.errors import OperandError
from axonym.partitioning import make_hybrid_mesh


@dataclasses.dataclass(frozen=True)
class Device:
    """A device of a GPU cluster or of TPU slices, which `Mesh` takes like those of JAX."""

    id: int
    slice_index: int
    process_index: int
    platform: str = "gpu"
    device_kind: str = "fake"


def numbers(mesh):
    return np.vectorize(lambda device: device.id)(mesh.devices)


def test_simulated_devices_are_divided_in_their_order():
    mesh = make_hybrid_mesh({"data": 2, "model": 2}, {"slice": 2})
    assert dict(mesh.shape) == {"slice": 2, "data": 2, "model": 2}
    assert numbers(mesh).tolist() == np.arange(8).reshape(2, 2, 2).tolist()
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_an_axis_on_both_networks_has_neighbours_in_one_slice():
    mesh = make_hybrid_mesh({"data": 2, "model": 2}, {"model": 2})
    assert dict(mesh.shape) == {"data": 2, "model": 4}
    # Along `model`, the first two devices are in the first slice.
    assert numbers(mesh)[0].tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("attribute", ["slice_index", "process_index"])
def test_slices_are_those_that_devices_tell(attribute):
    # Devices of three slices, mixed. With one slice, processes take its place.
    devices = [Device(i, 0, 0) for i in range(6)]
    devices = [dataclasses.replace(one, **{attribute: one.id % 3}) for one in devices]
    mesh = make_hybrid_mesh({"data": 2}, {"slice": 3}, devices=devices)
    assert numbers(mesh).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_sizes_that_do_not_fit():
    with pytest.raises(OperandError) as raised:
        make_hybrid_mesh({"data": 4}, {"slice": 4})
    assert str(raised.value) == (
        "make_hybrid_mesh: {'data': 4} inside of each of {'slice': 4} does not fit the devices\n"
        "  the devices are 4 slices of 2"
    )
