"""Internal. The named axis and the layer of each collective in a compiled program.

The reader calls `Attribution`. A compiled program has no named axes, so several weak signs are tried in turn:
arguments, sizes of dimensions, mesh axes and layers. The module must not know the types of traced arrays.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property

from ...report import ArrayLayout, identifiers
from ..shared.events import Sending
from ..shared.names import NameTable, has_axis, narrow
from ..shared.overlap import apply_window
from ..shared.places import Place, Places, count_parts, expand_merged, find_layer
from ..shared.ring import find_distance, is_sent_one_way, strip_counts
from ..shared.rows import Collective
from ..shared.targets import Target
from .origin import Origin, find_later_type, find_origin
from .program import (
    Array,
    Program,
    Transfer,
    find_mesh_axes,
    find_pairs,
    iterate_instructions,
)
from .schedule import find_concurrent, find_windows
from .work import count_contracted

# These sum over an axis; the others move or gather one.
_SUMS = ("all-reduce", "reduce-scatter")


@dataclasses.dataclass(frozen=True)
class _Part:
    """One operand of a collective.

    Attributes:
        kind: the kind of the collective.
        mesh_axes: the mesh axes along which devices take part, without numbers.
        array: the type of the operand.
        result: the type of the result for this operand.
        place: the layer and the phase.
        origin: the origin of the operand.
        argument: the argument that the operand is a part of; None if it is computed.
    """

    kind: str
    mesh_axes: tuple[str, ...]
    array: Array
    result: Array
    place: Place
    origin: Origin
    argument: ArrayLayout | None


class Attribution:
    """Find, for each collective of a program, its mesh axes, its layer and the named axis that makes it necessary.

    Args:
        program: the program.
        named: the facts about the program that come from names.
        target: the device for which times are estimated.

    Attributes:
        places: the layers and phases of operations.
    """

    def __init__(self, program: Program, named: NameTable, target: Target) -> None:
        self._program = program
        self._named = named
        self._target = target
        self.places = Places(op.source for _, op in iterate_instructions(program))

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The layers that operations belong to."""
        found = {
            self.places.find(op.source).layer: None
            for _, op in iterate_instructions(self._program)
            if op.source
        }
        found.pop("", None)
        return tuple(found)

    @cached_property
    def _argument_layers(self) -> dict[str, str]:
        """The layers, by their paths in the arguments."""
        return {".".join(self._named.find_in_arguments(layer)): layer for layer in self.layers}

    def find_collectives(self) -> tuple[Collective, ...]:
        """Return the collectives of the program with their overlap, with one row for each array that is sent."""
        hiding = find_windows(self._program, self.places.find, self._target)
        transfers = list(map(_join_parts, self._program.list_transfers()))
        permutes = find_concurrent(self._program, transfers)
        found: list[Collective] = []
        for transfer in transfers:
            key = transfer.computation, transfer.instruction.name
            mesh_axes = find_mesh_axes(transfer.groups, self._named.mesh)
            # Only a permute may leave one direction of the ring unused, or send further than to a neighbour.
            is_one_way, distance = False, 1
            if key in permutes:
                plain = strip_counts(mesh_axes)
                ways = self._named.count_shards(plain)
                is_one_way = is_sent_one_way(transfer.pairs, ways, permutes[key])
                distance = find_distance(find_pairs(transfer, self._named.mesh, plain), ways)
            rows = [
                self._find_collective(transfer, mesh_axes, i, is_one_way, distance)
                for i in range(len(transfer.operands))
            ]
            found += apply_window(rows, hiding.get(key))
        return tuple(found)

    def _find_collective(
        self,
        transfer: Transfer,
        mesh_axes: tuple[str, ...],
        i: int,
        is_one_way: bool,
        distance: int,
    ) -> Collective:
        # Devices send the array of the function, even if the compiler has widened it.
        part = self._find_part(transfer, mesh_axes, i)
        array = self._find_array(transfer, part, i)
        event = Sending(
            transfer.kind,
            mesh_axes,
            self.find_axes(part),
            part.place,
            transfer.count,
            transfer.group,
            array.nbytes,
            array.shape,
            array.dtype,
            is_one_way,
            len(transfer.operands),
            distance,
        )
        return event.estimate(self._target, dict(self._named.mesh))

    def _find_part(self, transfer: Transfer, mesh_axes: tuple[str, ...], i: int) -> _Part:
        op = transfer.instruction
        # A tuple is one operand with several arrays.
        operand = op.operands[min(i, len(op.operands) - 1)]
        origin = find_origin(self._program, transfer.computation, operand)
        argument = None
        if origin.op.opcode == "parameter":
            argument = self._named.arguments.get(*identifiers([origin.op.source]))
        source = self._find_source(op.source, origin.source, len(transfer.operands), i)
        source = source or self._program.find_source_around(transfer.computation)
        place = self.places.find(source)
        if argument is not None:
            layer = find_layer(argument.path, self._argument_layers)
            # The longer path is more specific: a gather before a loop has no layer of its own.
            layer = max(place.layer, layer, key=count_parts)
            place = place._replace(layer=layer)
        plain = strip_counts(mesh_axes)
        result = transfer.results[min(i, len(transfer.results) - 1)]
        array = transfer.operands[i]
        return _Part(transfer.kind, plain, array, result, place, origin, argument)

    def _find_array(self, transfer: Transfer, part: _Part, i: int) -> Array:
        """Return the array that the function sends, before the compiler for CPU widened 16-bit numbers."""
        array = part.array
        if array.dtype != "f32":
            return array
        # It widens before a collective, or narrows after it.
        narrow = None
        if part.origin.narrow is not None:
            narrow = part.origin.narrow.dtype
        else:
            place = i if len(transfer.operands) > 1 else None
            at, name = transfer.computation, transfer.instruction.name
            narrow = find_later_type(self._program, at, name, place)
        return array if narrow is None else Array(narrow, 16, array.shape)

    def _find_source(self, own: str, origin: str, count: int, i: int) -> str:
        """Return the name of the operation that an operand of a collective belongs to."""
        # A merged collective may have one name for each operand.
        merged = expand_merged(own)
        if count > 1 and len(merged) == count:
            return merged[i]
        if (count > 1 and origin) or not own:
            return origin
        return own

    def find_axes(self, part: _Part) -> tuple[str, ...]:
        """Return the named axis that makes a collective necessary.

        Returns:
            Its name; several names if each has separate mesh axes; no name if there are several candidates.
        """
        named = self._named
        computed = named.find_on(named.computed, part.mesh_axes)
        stored = named.find_on(named.stored, part.mesh_axes)
        candidates = narrow((*computed, *stored), self._list_preferences(part, computed, stored))
        if len(candidates) == 1 or self._has_axis_each(candidates, part.mesh_axes):
            return tuple(candidates)
        return ()

    def _has_axis_each(self, candidates: Sequence[str], mesh_axes: Sequence[str]) -> bool:
        """Return whether each mesh axis divides one of these axes, as in a sum over the batch and positions."""
        named = self._named
        found: list[str] = []
        for name in candidates:
            entry = named.computed.get(name) or named.stored.get(name, ())
            found += [axis for axis in entry if axis in mesh_axes]
        return bool(found) and sorted(found) == sorted(mesh_axes)

    def _list_preferences(
        self, part: _Part, computed: Sequence[str], stored: Sequence[str]
    ) -> list[Callable[[str], bool]]:
        """List the signs that distinguish axes on the same mesh axes, the surest first.

        Args:
            part: the operand.
            computed: the candidates by the layout of the computation.
            stored: the candidates by the layout of parameters.
        """
        found: list[Callable[[str], bool]] = []
        if part.argument is not None:
            names = part.argument.names
            found.append(lambda name: has_axis(name, names))
        if part.kind == "collective-permute":
            # A pipeline sends from one stage to the next.
            found.append(lambda name: f"{name}.stage" in self._named.sizes)
        if part.kind in _SUMS:
            # An optimiser has no activations, so the layout of parameters decides there.
            is_update = part.place.phase == "other" and self.places.has_gradient
            first = stored if is_update else computed
            summed = self._count_summed(part)
            found.append(lambda name: name in first)
            found.append(lambda name: self._is_along(name, part.mesh_axes))
            found.append(lambda name: self._has_all(name, part.mesh_axes))
            found.append(lambda name: summed in self._find_block_sizes(name))
            found.append(lambda name: _has_divisor(self._find_block_sizes(name), summed))
        else:
            found.append(lambda name: self._is_gathered(name, part))
            found.append(lambda name: self._is_along(name, part.mesh_axes))
            found.append(lambda name: self._has_all(name, part.mesh_axes))
            found.append(lambda name: self._is_block(name, part))
        if part.kind == "all-to-all":
            # It may be between the axes of parameters and those of an override, which is then the reason.
            found.append(lambda name: name in self._named.kept)
        layer = part.place.layer
        found.append(lambda name: self._named.is_in(name, layer))
        if part.kind in _SUMS:
            found.append(lambda name: self._named.is_possible_in(name, layer))
        return found

    def _is_along(self, name: str, mesh_axes: Sequence[str]) -> bool:
        """Return whether exactly these mesh axes shard an axis."""
        both = (self._named.computed, self._named.stored)
        return any(set(mesh_axes) == set(entries.get(name, ())) for entries in both)

    def _has_all(self, name: str, mesh_axes: Sequence[str]) -> bool:
        """Return whether all of these mesh axes, and perhaps more, shard an axis."""
        both = (self._named.computed, self._named.stored)
        return any(set(mesh_axes) <= set(entries.get(name, ())) for entries in both)

    def _count_summed(self, part: _Part) -> int:
        """Return the number of elements that the product of the operand sums over; 0 if it is not a product."""
        op = part.origin.op
        if op.opcode != "dot":
            return 0
        return count_contracted(op, self._program.computations[part.origin.computation])

    def _is_gathered(self, name: str, part: _Part) -> bool:
        """Return whether the collective gathers an axis."""
        if part.kind != "all-gather":
            return False
        # The dimension that is longer afterwards is the gathered one.
        for before, after in zip(part.array.shape, part.result.shape, strict=False):
            if after > before and after in self._find_gathered_sizes(name, part.mesh_axes):
                return True
        return False

    def _is_block(self, name: str, part: _Part) -> bool:
        """Return whether a dimension of the operand has the size of a block of an axis."""
        return bool(self._find_block_sizes(name) & set(part.array.shape))

    def _find_block_sizes(self, name: str) -> set[int]:
        """Return the sizes of an axis on one device."""
        named = self._named
        found: set[int] = set()
        for entries in (named.computed, named.stored):
            ways = named.count_shards(entries.get(name, ()))
            found.update(size // ways for size in named.sizes.get(name, ()) if size % ways == 0)
        return found

    def _find_gathered_sizes(self, name: str, mesh_axes: Sequence[str]) -> set[int]:
        """Return the sizes of an axis that is gathered along mesh axes."""
        named = self._named
        found: set[int] = set()
        for entries in (named.computed, named.stored):
            # Mesh axes that are not gathered still divide the result.
            rest = tuple(axis for axis in entries.get(name, ()) if axis not in mesh_axes)
            ways = named.count_shards(rest)
            found.update(size // ways for size in named.sizes.get(name, ()))
        return found


def _join_parts(transfer: Transfer) -> Transfer:
    """Join the operands of an all-to-all into one array: XLA writes a part for each device."""
    count = len(transfer.operands)
    if transfer.kind != "all-to-all" or count == 1:
        return transfer
    first = transfer.operands[0]
    whole = Array(first.dtype, first.bits, (count, *first.shape))
    return dataclasses.replace(transfer, operands=(whole,), results=(whole,))


def _has_divisor(blocks: set[int], size: int) -> bool:
    return size > 0 and any(block > 1 and size % block == 0 for block in blocks)
