"""Internal. A mapping and a mesh near given ones, in which the mesh axes of each entry divide the size of its axis.

`fit_mapping` calls it with the sizes that it found in arrays. It must not know arrays.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from jax.sharding import AbstractMesh, Mesh

from ..names.plans import Names
from .assignment import Entry, Mappings, MeshLike

# A mapping of `Mappings`, by its number, and a key of it.
_User = tuple[int, str]


class Fit(NamedTuple):
    """A mapping and a mesh that fit.

    Attributes:
        mappings: the mappings.
        mesh: the mesh: the given one, or one of the same devices in the same order with more axes.
        split: for each mesh axis that was split, its parts with their sizes.
    """

    mappings: Mappings
    mesh: MeshLike
    split: dict[str, dict[str, int]]


class _Part(NamedTuple):
    """A prime factor of the size of a mesh axis."""

    axis: str
    at: int
    size: int


def fit_sizes(
    mappings: Mappings, mesh: MeshLike, sizes: Mapping[str, int], partners: Mapping[str, str]
) -> Fit:
    """Return mappings and a mesh that fit.

    Args:
        mappings: the mappings.
        mesh: the mesh. Entries over axes that it does not have stay as they are.
        sizes: what the mesh axes of each axis must divide. Axes without a size stay as they are.
        partners: for some axes, an axis without an entry that gets the mesh axes that the first one leaves.
    """
    factors = {axis: list(_factor(axis, size)) for axis, size in mesh.shape.items()}
    owned: dict[_User, list[_Part]] = {}
    order: dict[_User, Entry] = {}
    slots = (mappings.parameters, mappings.compute, *(extra for _, extra in mappings.overrides))
    for at, slot in enumerate(slots):
        for name in slot:
            entry = slot.choose(name, sizes.get(name, 0), mesh)
            parts = [part for axis in entry for part in factors.get(axis, ())]
            own = _take(parts, sizes.get(name, 0))
            owned[at, name], order[at, name] = own, entry
            partner = partners.get(name)
            if partner is not None and (at, partner) not in owned:
                rest = _take((part for part in parts if part not in own), sizes[partner])
                if rest:
                    owned[at, partner], order[at, partner] = rest, entry

    split: dict[str, dict[str, int]] = {}
    names: dict[_Part, str] = {}
    for axis, parts in factors.items():
        groups = _group(parts, owned)
        labels = _labels(axis, mesh.axis_names)
        split[axis] = {}
        for label, group in zip(labels, groups, strict=False):
            split[axis][label] = math.prod(part.size for part in group)
            names.update(dict.fromkeys(group, label))

    entries: list[dict[str, Entry]] = [{} for _ in slots]
    for (at, name), own in owned.items():
        kept = {names[part] for part in own}
        found: list[str] = []
        for axis in order[at, name]:
            found += [
                label for label in split.get(axis, {axis: 1}) if label in kept or axis not in split
            ]
        entries[at][name] = tuple(found)
    # An array with an axis that only `compute` lists would be taken for data.
    for name in entries[1].keys() - dict(mappings.compute.entries).keys():
        entries[0].setdefault(name, ())
    stored, computed, *extras = [
        dataclasses.replace(slot, entries=tuple(own.items()), fallbacks=())
        for slot, own in zip(slots, entries, strict=True)
    ]
    patterns = [pattern for pattern, _ in mappings.overrides]
    fitted = Mappings(stored, computed, dict(zip(patterns, extras, strict=True)))
    split = {axis: parts for axis, parts in split.items() if len(parts) > 1}
    return Fit(fitted, divide_mesh(mesh, split), split)


def find_partners(arrays: Iterable[Names], mappings: Mappings) -> dict[str, str]:
    """For axes of the mappings, return the only axis without an entry that can split some of their arrays further.

    All arrays with the partner have the axis, but some have only the axis: queries have a group for each key head. If
    there are several partners, nothing says which one to divide. Derived names follow their bases.

    Args:
        arrays: the names of the axes of each array.
        mappings: the mappings.
    """
    having: dict[str, set[int]] = {}
    for number, names in enumerate(arrays):
        for name in names:
            having.setdefault(name, set()).add(number)
    known = {name for mapping in mappings.all() for name in mapping}
    free = {name: own for name, own in having.items() if name not in known and "." not in name}
    found: dict[str, str] = {}
    for name in sorted(known & having.keys()):
        partners = [other for other, own in free.items() if own < having[name]]
        if len(partners) == 1:
            found[name] = partners[0]
    return found


def _factor(axis: str, size: int) -> Iterator[_Part]:
    """Yield the prime factors of the size of a mesh axis; the size itself if it has none."""
    found, prime = 0, 2
    while size > 1:
        if prime * prime > size:
            prime = size
        if size % prime:
            prime += 1
            continue
        yield _Part(axis, found, prime)
        size, found = size // prime, found + 1
    if not found:
        yield _Part(axis, 0, size)


def _take(parts: Iterable[_Part], size: int) -> list[_Part]:
    """Take each part that divides the rest of a size."""
    taken: list[_Part] = []
    for part in parts:
        if size % (part.size * math.prod(one.size for one in taken)) == 0:
            taken.append(part)
    return taken


def _group(parts: list[_Part], owned: Mapping[_User, list[_Part]]) -> list[list[_Part]]:
    """Group the parts of a mesh axis that the same axes use; parts that the most axes use come first."""
    groups: dict[frozenset[_User], list[_Part]] = {}
    for part in parts:
        users = frozenset(user for user, own in owned.items() if part in own)
        groups.setdefault(users, []).append(part)
    return [groups[users] for users in sorted(groups, key=len, reverse=True)]


def _labels(axis: str, taken: Iterable[str]) -> Iterator[str]:
    """Yield names for the parts of a mesh axis: its own name, and new ones."""
    known = set(taken)
    yield axis
    yield from (label for i in itertools.count(2) if (label := f"{axis}_{i}") not in known)


def divide_mesh(mesh: MeshLike, split: Mapping[str, Mapping[str, int]]) -> MeshLike:
    """Return the mesh of the same devices, in the same order, with some axes split."""
    if not split:
        return mesh
    sizes: dict[str, int] = {}
    kinds = []
    for (axis, size), kind in zip(mesh.shape.items(), mesh.axis_types, strict=True):
        parts = split.get(axis, {axis: size})
        sizes.update(parts)
        kinds += [kind] * len(parts)
    if isinstance(mesh, Mesh):
        devices = mesh.devices.reshape(tuple(sizes.values()))
        return Mesh(devices, tuple(sizes), axis_types=tuple(kinds))
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=tuple(kinds))
