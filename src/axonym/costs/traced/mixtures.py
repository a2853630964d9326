"""Internal. How devices share mixtures of experts in a template.

A mixture asks how many devices share its tokens, experts and hidden axis, and its program depends on these numbers. So
a template is traced for each set of numbers, on a mesh with that many devices along axes of its own. All mappings with
these numbers share it, whatever else they map.
"""

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from jax.sharding import AbstractMesh

from ...engine import AxisMapping, Entry, Mixture, assign_mesh_axes, only, without


class Share(NamedTuple):
    """How devices share a mixture of experts under a mapping.

    Attributes:
        key: what the program of a device depends on.
        sizes: the mesh axes of the template for this mixture.
        entries: the entries of the axes of the mixture on these mesh axes.
        routed: the mesh axes of one device, each with the mesh axes of the axis of tokens for which it stands.
        real: the mesh axes of several devices, each with the mesh axes of the mapping for which it stands.
        of_tokens: those of them that share tokens.
    """

    key: Hashable
    sizes: Mapping[str, int]
    entries: tuple[tuple[str, Entry], ...]
    routed: Mapping[str, Entry]
    real: Mapping[str, Entry]
    of_tokens: frozenset[str]

    def choose(self, entry: Entry) -> Entry:
        """Leave one kind of the mesh axes of tokens in the entry of a dimension.

        An axis of tokens has its own mesh axes, wherever those of all axes of tokens are in the template. Arrays that
        the backward pass reads have one dimension for all devices.
        """
        routed = only(entry, self.routed)
        is_whole = len(self.routed) > 1 or self.of_tokens <= {*entry}
        is_axis = len(routed) == 1 and is_whole
        return without(entry, self.of_tokens if is_axis else routed)


def share_mixture(number: int, mixture: Mixture, mapping: AxisMapping, mesh: AbstractMesh) -> Share:
    """Return how devices share a mixture of experts.

    Args:
        number: the number of the mixture.
        mixture: its axes.
        mapping: the mapping of the computation.
        mesh: the mesh.

    Raises:
        ShardingError: if the mapping does not fit the mixture.
        NotImplementedError: if a template cannot have the program of a device.
    """

    def assign(axes: dict[str, int]) -> dict[str, Entry]:
        return assign_mesh_axes(tuple(axes), tuple(axes.values()), mapping, mesh, "plan")

    title = f"mixture {number}"
    found = mixture.find_entries(assign, {axis for axis, size in mesh.shape.items() if size > 1})
    names = [name for name, _ in mixture.tokens]
    owners = {axis: name for name in names for axis in found.get(name, ())}
    experts, hidden = (found[name] for name, _ in (mixture.experts, mixture.hidden))

    def label(axis: str) -> str:
        """Return the mesh axis of the template for one of the mapping: all that share the same are one."""
        # A device computes the same for any axis of tokens, unless experts have a capacity.
        owner = owners.get(axis, "") and (owners[axis] if mixture.is_limited else "tokens")
        return f"{title} of {owner}{' and experts' * (axis in experts)}"

    real: dict[str, Entry] = {}
    for axis in (*owners, *experts):
        real[label(axis)] = (*without(real.get(label(axis), ()), (axis,)), axis)
    shared = frozenset(map(label, owners))
    of_experts = _merge(map(label, experts))
    if hidden:
        real[f"{title} hidden"] = hidden
    sizes = {axis: math.prod(mesh.shape[own] for own in entry) for axis, entry in real.items()}

    routed = {f"{title} {name} routed": found.get(name, ()) for name in names}
    entries: dict[str, Entry] = {name: (f"{title} {name} routed",) for name in names}
    if mixture.is_limited:
        for name in names:
            entries[name] += _merge(map(label, found.get(name, ())))
    else:
        for axis in sorted(shared):
            _add_to_tokens(axis, sizes, mixture, entries)
    entries[mixture.experts[0]] = of_experts
    entries[mixture.hidden[0]] = (f"{title} hidden",) if hidden else ()
    order = tuple(entry for _, entry in entries.items())
    return Share(
        (order, tuple(sorted(sizes.items()))),
        {**dict.fromkeys(routed, 1), **sizes},
        tuple(entries.items()),
        routed,
        real,
        shared,
    )


def _merge(axes: Iterable[str]) -> Entry:
    """Join equal mesh axes that follow one another.

    Raises:
        NotImplementedError: if others are between them.
    """
    found = tuple(axis for axis, _ in itertools.groupby(axes))
    if len({*found}) < len(found):
        raise NotImplementedError("mesh axes of experts and of tokens alternate")
    return found


def _add_to_tokens(
    axis: str, sizes: Mapping[str, int], mixture: Mixture, entries: dict[str, Entry]
) -> None:
    """Divide an axis of tokens along a mesh axis: to a device, it is the same which one.

    Raises:
        NotImplementedError: if no axis of tokens can be divided.
    """
    for name, size in mixture.tokens:
        own = (*entries[name], axis)
        if size % math.prod(sizes.get(one, 1) for one in own) == 0:
            entries[name] = own
            return
    raise NotImplementedError(f"no axis of tokens can be divided by {sizes[axis]}")
