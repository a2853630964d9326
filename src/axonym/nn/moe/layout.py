"""Internal. How the tokens and the experts of a mixture are sharded, and how tokens get from one device to another.

Each call of a mixture finds its layout here, from the mapping and the mesh, once. The code that computes experts asks
the layout for numbers of devices and experts, and for exchanges.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from jax import lax

from ...array import NamedArray
from ...axis import Axis
from ...create import arange
from ...current.machine import MACHINE
from ...engine.core import wrap
from ...layout import constraints, modes, partition
from ...layout.assignment import AxisMapping, Entry, MeshLike
from ...layout.context import context_mesh, current_mapping, get_taken_axes
from ...layout.records import Mixture, note_mixture
from ...layout.scope import current_scope
from ...names.plans import Names
from ...ops.logical import logical_and
from ...ops.where import where
from ...partitioning.addresses import list_manual_axes
from .linear import MoELinear

# Internal axes, under names that no input has.
TOKEN, CHOICE, SLOT, PLACE, QUEUE, GROUP, DEVICE, ROW = (
    f"routed {what}"
    for what in ("token", "choice", "slot", "place", "queue", "group", "device", "row")
)


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """The layout of one call.

    Attributes:
        tokens: the axes of tokens.
        competing: those whose tokens compete for the capacity of an expert.
        capacity: the number of choices that an expert takes from each group of them; None for all.
        entries: the mesh axes of tokens, experts and the hidden axis, where they are split.
        experts: the mesh axes of the experts.
        hidden: the mesh axes of the hidden axis.
        mesh_sizes: the sizes of mesh axes.
        is_spread: whether the call is outside of any `shard_map`, on a mesh.
        is_nested: whether it is inside of a map over other mesh axes, and JAX could not differentiate a `shard_map`.
        hidden_size: the size of the hidden axis without padding, if it is padded.
    """

    tokens: Names
    competing: Names
    capacity: int | None = None
    entries: tuple[tuple[str, Entry], ...] = ()
    experts: Entry = ()
    hidden: Entry = ()
    mesh_sizes: tuple[tuple[str, int], ...] = ()
    is_spread: bool = False
    is_nested: bool = False
    hidden_size: int | None = None

    @property
    def groups(self) -> Names:
        """The axes of tokens along which each position has its own queues."""
        return partition.without(self.tokens, self.competing)

    @property
    def shared(self) -> Entry:
        """The mesh axes that split both experts and tokens, over which tokens are sent, in the order of the mesh."""
        entries = dict(self.entries)
        used: set[str] = set()
        for name in self.tokens:
            used.update(entries.get(name, ()))
        return partition.only(dict(self.mesh_sizes), used.intersection(self.experts))

    @property
    def alone(self) -> Entry:
        """The mesh axes that split experts only: their devices have the same tokens."""
        return partition.without(self.experts, self.shared)

    @property
    def queued(self) -> dict[str, Entry]:
        """The axes of competing tokens that are split, with their mesh axes."""
        return {
            name: entry
            for name, entry in self.entries
            if name in self.competing and self.count(entry) > 1
        }

    def count(self, mesh_axes: Entry) -> int:
        """Return how many devices there are along mesh axes."""
        sizes = dict(self.mesh_sizes)
        return math.prod(sizes[axis] for axis in mesh_axes)

    def local_experts(self, Experts: Axis) -> Axis:
        """Return the axis of the experts of one device."""
        return Experts.resize(Experts.size // self.count(self.experts))

    def number_choices(self, chosen: NamedArray, Experts: Axis) -> NamedArray:
        """Return the experts' numbers, in the order of the devices that receive tokens.

        Experts out of reach come last, and so do the choices of masked tokens, which choose no expert. Devices along
        `alone` have the same tokens, and each does the choices that fall on its own experts.
        """
        if not self.experts:
            return chosen
        local, sizes = self.local_experts(Experts).size, dict(self.mesh_sizes)
        zeros, places = _find_places(chosen // local, self.experts, sizes)
        device = _number_devices(zeros, places, self.shared, sizes)
        is_reached = chosen < Experts.size
        for axis in self.alone:
            is_reached = logical_and(is_reached, places[axis] == lax.axis_index(axis))
        return where(is_reached, device * local + chosen % local, self.count(self.shared) * local)

    def list_reached(self, Experts: Axis) -> NamedArray:
        """List the experts of each device that tokens are sent to, in the order of their numbers, {DEVICE, Experts}."""
        Local, sizes = self.local_experts(Experts), dict(self.mesh_sizes)
        devices = arange(Axis(DEVICE, self.count(self.shared))).broadcast_axis(Local)
        zeros, places = _find_places(devices, self.shared, sizes)
        for axis in self.alone:
            places[axis] = lax.axis_index(axis)
        return _number_devices(zeros, places, self.experts, sizes) * Local.size + arange(Local)

    def exchange(self, x: NamedArray) -> NamedArray:
        """Send each device its part of the first axis, `DEVICE`; afterwards, it has what the other devices sent."""
        if not self.shared:
            return x
        assert x.names[0] == DEVICE
        sent = lax.all_to_all(x.array, self.shared, split_axis=0, concat_axis=0, tiled=True)
        return wrap(x, sent, x.names)


def _find_places(
    number: NamedArray, mesh_axes: Entry, sizes: Mapping[str, int]
) -> tuple[NamedArray, dict[str, Any]]:
    """Return zeros, and the place of numbered devices along each mesh axis; the last axis counts fastest."""
    places: dict[str, Any] = {}
    for axis in reversed(mesh_axes):
        places[axis] = number % sizes[axis]
        number = number // sizes[axis]
    return number, places


def _number_devices(
    zeros: NamedArray, places: Mapping[str, Any], mesh_axes: Entry, sizes: Mapping[str, int]
) -> NamedArray:
    """Return each device's number, given its place along each mesh axis; the inverse of `_find_places`."""
    number = zeros
    for axis in mesh_axes:
        number = number * sizes[axis] + places[axis]
    return number


def find_token_layout(
    x: NamedArray,
    layer: MoELinear,
    competing: Names | None = None,
    capacity: Callable[[int], int] | None = None,
) -> TokenLayout:
    """Find the layout of a call.

    Args:
        x: the tokens.
        layer: the layer of the experts to the hidden axis.
        competing: the axes whose tokens compete for capacity; None for all.
        capacity: the number of choices that an expert takes from so many competing tokens; None for no limit.

    Raises:
        ShardingError: if tokens and the hidden axis are mapped to one mesh axis, or experts and the hidden axis.
    """
    sizes: dict[str, int] = dict(x.shape.items())
    del sizes[layer.In.name]
    tokens = tuple(sizes)
    if competing is None:
        competing = tokens
    found = TokenLayout(tokens, competing)

    mapping, mesh, manual = current_mapping(), context_mesh(), set(list_manual_axes())
    is_inside = current_scope() is not None
    if mapping is not None and mesh is not None:
        Experts, Hidden = layer.Experts, layer.Out
        own = (Experts.name, Experts.size), (Hidden.name, Hidden.size)
        mixture = Mixture(tuple(sizes.items()), *own, is_limited=capacity is not None)
        entries = _find_entries(mixture, layer, mapping, mesh)
        used = set[str]().union(*entries.values()) - manual
        found = dataclasses.replace(
            found,
            entries=tuple(entries.items()),
            experts=entries[Experts.name],
            hidden=entries[Hidden.name],
            mesh_sizes=tuple(mesh.shape.items()),
            is_spread=not is_inside,
            is_nested=bool(used) and (is_inside or _is_typed_map(mesh)),
        )
    if capacity is None:
        return found
    count = math.prod(sizes[name] for name in competing)
    if is_inside:  # sizes are those of blocks
        for entry in found.queued.values():
            count *= found.count(partition.only(entry, manual))
    return dataclasses.replace(found, capacity=capacity(count))


def _is_typed_map(mesh: MeshLike) -> bool:
    """Return whether a surrounding `vmap` maps over Explicit mesh axes."""
    return bool(modes.find_explicit_axes(mesh).intersection(get_taken_axes()))


def _find_entries(
    mixture: Mixture, layer: MoELinear, mapping: AxisMapping, mesh: MeshLike
) -> dict[str, Entry]:
    """Return the mesh axes over which tokens are sent, and those of the weights that this device has a part of."""
    taken, is_inside = get_taken_axes(), current_scope() is not None
    if not (taken or is_inside):
        note_mixture(mixture)
        machine = MACHINE.get()
        if machine is not None and (given := dict(machine.mixtures).get(mixture)) is not None:
            return dict(given)
    # Axes of weights that are whole on each device.
    own = (mixture.experts, mixture.hidden)
    whole = {name for name, size in own if layer.weight.axis_size(name) == size}

    def assign(axes: dict[str, int]) -> dict[str, Entry]:
        names = tuple(axes)
        if is_inside:
            # No layout is asked for on Manual mesh axes, so that nothing else would check them.
            found = partition.assign_mesh_axes(names, tuple(axes.values()), mapping, mesh)
        else:
            found = constraints.decide_layout(names, axes) or {}
        for name in whole.intersection(found):
            found[name] = partition.without(found[name], list_manual_axes())
        return found

    free = {axis for axis, size in mesh.shape.items() if size > 1} - set(taken)
    return mixture.find_entries(assign, free)
