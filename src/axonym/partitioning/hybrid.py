"""Make a mesh of devices that two networks connect: a fast one inside slices or hosts, and a slow one between them."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ..errors import OperandError, message
from ..layout.modes import Modes, repeat_mode

__all__ = ["make_hybrid_mesh"]


def make_hybrid_mesh(
    inside: Mapping[str, int],
    between: Mapping[str, int],
    *,
    axis_types: Modes | None = None,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Make a mesh of several slices of TPUs, or of several hosts of GPUs.

    The size of an axis in both mappings is the product of its two sizes, and its devices in one slice are neighbours.
    The `slice_index` of the devices says which slice they are in; without it, each process is a slice. Devices with
    neither several slices nor several processes, such as simulated ones, are divided equally, in order.

    Args:
        inside: the sizes of mesh axes inside of one slice, as for `jax.make_mesh`.
        between: the sizes of mesh axes between slices, whose product is the number of slices. Axes that are only
            between slices come first.
        axis_types: the types of the axes; by default, all are Auto.
        devices: the devices; by default `jax.devices()`.

    Returns:
        The mesh. Devices along the last axis of `inside` are next to each other.

    Raises:
        OperandError: if the sizes do not fit the devices.

    Examples:
        >>> mesh = axn.partitioning.make_hybrid_mesh({"data": 2, "model": 2}, {"slice": 2})
        >>> dict(mesh.shape)
        {'slice': 2, 'data': 2, 'model': 2}
        >>> dict(axn.partitioning.make_hybrid_mesh({"data": 2, "model": 2}, {"data": 2}).shape)
        {'data': 4, 'model': 2}
    """
    given = list(jax.devices() if devices is None else devices)
    names = [*(name for name in between if name not in inside), *inside]
    inner = [inside.get(name, 1) for name in names]
    outer = [between.get(name, 1) for name in names]
    slices = _group_devices(given, int(np.prod(outer)))
    if len(slices) != np.prod(outer) or any(len(own) != np.prod(inner) for own in slices):
        problem = f"{dict(inside)} inside of each of {dict(between)} does not fit the devices"
        sizes = ", ".join(map(str, sorted({len(own) for own in slices})))
        fact = f"the devices are {len(slices)} slices of {sizes}"
        raise OperandError(message("make_hybrid_mesh", problem, fact))
    types = tuple(axis_types or repeat_mode("Auto", len(names)))
    grids = [jax.make_mesh(inner, names, types, devices=own).devices for own in slices]
    # Each axis becomes two, the one between slices first, and the two are joined.
    stacked = np.stack(grids).reshape(*outer, *inner)
    count = len(names)
    paired = [place for axis in range(count) for place in (axis, count + axis)]
    shape = [one * other for one, other in zip(outer, inner, strict=True)]
    return Mesh(stacked.transpose(paired).reshape(shape), tuple(names), axis_types=types)


def _group_devices(devices: Sequence[Any], count: int) -> list[list[Any]]:
    """Return the devices of each slice, or of each process, or of equal parts if there is one slice and one process."""
    for attribute in ("slice_index", "process_index"):
        groups: dict[int, list[Any]] = {}
        for device in devices:
            groups.setdefault(getattr(device, attribute, 0), []).append(device)
        if len(groups) > 1:
            return [groups[key] for key in sorted(groups)]
    return [list(own) for own in np.array_split(np.array(devices, dtype=object), count)]
