"""Internal. Facts about a program that come from names: mesh axes and sizes of axes, and the layers that have them.

The readers use a `NameTable` to find out why a collective is necessary. It knows mappings, the ledger of a trace and
arguments; it must not know collectives.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from jax.sharding import AbstractMesh

from ... import Mappings
from ...engine import AxisMapping, Entry, Ledger, Names, bases_of
from ...report import ArrayLayout
from .places import is_within


@dataclasses.dataclass(frozen=True)
class NameTable:
    """The facts about a program that come from names.

    Attributes:
        mesh: the axes of the mesh with their sizes.
        computed: the mesh axes of each axis of activations and data.
        stored: the mesh axes of each axis of parameters.
        sizes: the sizes of each axis, which may have several.
        arguments: the arguments, by their names in the program.
        of_parameters: the axes of parameters.
        kept: the axes of overrides, such as the axes along which an optimiser divides its work.
    """

    mesh: tuple[tuple[str, int], ...]
    computed: Mapping[str, Entry]
    stored: Mapping[str, Entry]
    sizes: Mapping[str, frozenset[int]]
    arguments: Mapping[str, ArrayLayout]
    of_parameters: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()

    def count_shards(self, entry: Entry) -> int:
        """Return the number of parts into which mesh axes divide an axis."""
        sizes = dict(self.mesh)
        return math.prod(sizes.get(axis, 1) for axis in entry)

    def find_on(self, entries: Mapping[str, Entry], mesh_axes: Sequence[str]) -> list[str]:
        """List the names that are mapped to some of these mesh axes."""
        return [name for name, entry in entries.items() if set(entry) & set(mesh_axes)]

    @cached_property
    def _words(self) -> frozenset[str]:
        """The words in the paths of arguments."""
        found = {part for argument in self.arguments.values() for part in argument.path.split(".")}
        return frozenset(found)

    def find_in_arguments(self, layer: str) -> list[str]:
        """Return a layer's path from its first part that also occurs in paths of arguments."""
        # A module that is the function itself adds its class to the names of operations.
        parts = layer.split(".")
        while parts and parts[0] not in self._words:
            parts.pop(0)
        return parts

    def is_in(self, name: str, layer: str) -> bool:
        """Return whether a parameter of a layer has this axis."""
        parts = self.find_in_arguments(layer)
        if not parts:
            return False
        for argument in self.arguments.values():
            if has_axis(name, argument.names) and is_within(parts, argument.path.split(".")):
                return True
        return False

    def is_possible_in(self, name: str, layer: str) -> bool:
        """Return whether a layer may sum over an axis: false if only parameters of other layers have it."""
        return name not in self.of_parameters or self.is_in(name, layer)


def collect_names(
    mappings: Mappings,
    ledger: Ledger,
    rows: Mapping[str, ArrayLayout],
    parameters: Sequence[ArrayLayout],
    mesh: AbstractMesh,
) -> NameTable:
    """Collect the mesh axes of axes, their sizes, and the axes that parameters have.

    Args:
        mappings: the mappings of parameters and of the computation.
        ledger: the mappings and sizes that were recorded during the trace.
        rows: the layouts of the arguments, by their names in the program.
        parameters: the layouts of the parameters.
        mesh: the mesh.
    """
    sizes: dict[str, set[int]] = {}
    for name, several in (ledger.sizes or {}).items():
        for base in bases_of(name):
            sizes.setdefault(base, set()).update(several)
    for row in rows.values():
        for name, size in zip(row.names, row.shape[len(row.shape) - len(row.names) :], strict=True):
            for base in bases_of(name):
                sizes.setdefault(base, set()).add(size)

    def choose(mapping: AxisMapping, name: str) -> Entry:
        return mapping.choose(name, math.gcd(*sizes.get(name, ())), mesh)

    stored: dict[str, Entry] = {}
    overrides = [extra for _, extra in mappings.overrides]
    keeping = [mappings.parameters, *overrides]
    for mapping in keeping:
        for name in mapping:
            stored.setdefault(name, choose(mapping, name))
    computed: dict[str, Entry] = {}
    for mapping in (mappings.compute, *ledger.seen):
        if mapping in keeping:
            continue
        for name in mapping:
            entry = choose(mapping, name)
            # Inside of a pipeline, axes lie on fewer mesh axes, so the longest entry counts.
            computed[name] = max(computed.get(name, ()), entry, key=len)
    for name in list(computed):
        # A pipeline names its stages and the parts of a microbatch so; their bases are the axes of the user.
        base, _, role = name.rpartition(".")
        if role == "stage" and base in computed:
            del computed[name]
            computed.pop(f"{base}.ways", None)
    if not computed:
        computed = stored

    known = {name: frozenset(several) for name, several in sizes.items()}
    held = {axis for row in parameters for name in row.names for axis in bases_of(name)}
    kept = frozenset(name for extra in overrides for name in extra if extra[name])
    return NameTable(
        tuple(mesh.shape.items()), computed, stored, known, rows, frozenset(held), kept
    )


def narrow(candidates: Iterable[str], preferences: Iterable[Callable[[str], bool]]) -> list[str]:
    """Filter candidates by preferences; ignore a preference that no candidate meets."""
    found = list(dict.fromkeys(candidates))
    for is_preferred in preferences:
        if len(found) > 1:
            found = list(filter(is_preferred, found)) or found
    return found


def has_axis(name: str, names: Names) -> bool:
    """Return whether an array with these names has an axis, or an axis derived from it."""
    return any(name in bases_of(own) for own in names)
