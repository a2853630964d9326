"""Internal. The axes that a search can map, and the mappings that experts write for them.

`search` tries what `Axes` lists. It must not know how a choice is scored.
"""

import dataclasses
import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from ...engine import Entry, only
from .choice import Change, Choice, Give, Keep, Move, Pipeline, Role, Spread, Swap

# The number of sets of axes that are tried for dividing the layers.
GROUPS = 4
# Microbatches for each stage of a pipeline, in this order. Stages wait for a shorter time if there are more.
MICROBATCHES = (4, 8, 2, 1)
# The number of axes of its own along which the state of the optimiser is tried.
KEPT = 2
# An axis of data that fewer elements of parameters have, by their share, is no axis of the layers.
RARE = 0.05
# The number of choices that map something, and leave most mesh axes empty.
ALONE = 3


@dataclasses.dataclass(frozen=True)
class Axes:
    """The axes that can be mapped, and the choices that they allow.

    Attributes:
        mesh: the axes of the mesh with their sizes.
        parameters: the sizes of each axis of parameters.
        data: the sizes of each axis of data.
        fixed: the entries that stay.
        arrays: for each set of axes, the number of elements of the parameters that have these axes.
        piped: the axis of layers that may become stages, and the axis that is cut into microbatches.
        alternatives: for each chosen keyword argument, the number of its values.
        has_state: whether an optimiser keeps arrays like the parameters.
        layers: the number of stored layers, including empty places, by values of keyword arguments.
        paces: for axes of data, the time of a step in which two devices divide this axis.
        is_replicated: whether starts with parameters that lie whole along free mesh axes come before sharded ones.
        is_whole_between: whether starts without other data that is sharded between the layers come first.
    """

    mesh: Mapping[str, int]
    parameters: Mapping[str, frozenset[int]]
    data: Mapping[str, frozenset[int]]
    fixed: Choice
    arrays: Mapping[tuple[str, ...], int] = dataclasses.field(default_factory=dict)
    piped: tuple[str, str] | None = None
    alternatives: tuple[int, ...] = ()
    has_state: bool = False
    layers: Mapping[Give, int] = dataclasses.field(default_factory=dict)
    paces: Mapping[str, float] = dataclasses.field(default_factory=dict)
    is_replicated: bool = False
    is_whole_between: bool = False

    @property
    def mesh_axes(self) -> Entry:
        """The mesh axes with more than one device."""
        return tuple(name for name, size in self.mesh.items() if size > 1)

    @property
    def _narrow_first(self) -> list[str]:
        """The mesh axes, the shortest first, because short ones are the most likely to divide layers."""
        # Among equal mesh axes, the last one of the mesh comes first: its devices are neighbours.
        places = {name: place for place, name in enumerate(self.mesh)}
        return sorted(self.mesh_axes, key=lambda name: (self.mesh[name], -places[name]))

    def is_divisible(self, name: str, entry: Entry) -> bool:
        """Return whether these mesh axes divide all sizes of an axis."""
        sizes = self.parameters.get(name, frozenset()) | self.data.get(name, frozenset())
        return all(size % self.count_devices(entry) == 0 for size in sizes)

    def count_devices(self, entry: Entry) -> int:
        """Return the number of devices along some mesh axes."""
        return math.prod(self.mesh[axis] for axis in entry)

    def count_ways(self, name: str, entry: Entry) -> int:
        """Return the number of parts into which mesh axes can split an axis, if mesh axes may be split themselves."""
        sizes = self.parameters.get(name, frozenset()) | self.data.get(name, frozenset())
        return math.gcd(self.count_devices(entry), *sizes)

    def iterate_entries(self, name: str) -> Iterator[Entry]:
        """Yield sets of mesh axes that can split an axis, where each one adds parts: none, then one, then several."""
        widest = list(reversed(self._narrow_first))
        for count in range(len(widest) + 1):
            for chosen in itertools.combinations(widest, count):
                ways = self.count_ways(name, chosen)
                fewer = itertools.combinations(chosen, count - 1) if count else ()
                if all(self.count_ways(name, own) < ways for own in fewer):
                    yield only(self.mesh_axes, set(chosen))

    def find_widest(self, name: str, among: Entry) -> Entry:
        """Return the subset of mesh axes that splits an axis into the most parts."""

        def rank(entry: Entry) -> tuple[int, int, list[int]]:
            # For equally many parts, prefer the fewest devices; then long mesh axes, whatever their names are.
            sizes = [self.mesh[axis] for axis in entry]
            return self.count_ways(name, entry), -math.prod(sizes), sorted(sizes, reverse=True)

        entries = [entry for entry in self.iterate_entries(name) if set(entry) <= set(among)]
        return max(entries, key=rank)

    def list_moves(self) -> list[Change]:
        """List all changes: first of axes of data, then of parameter axes, the ones with the most elements first."""
        # Data is divided in almost all good mappings, so its axes come first.
        found: list[Change] = [*self.list_gifts()]
        for name in dict.fromkeys((*self.data, *self._sort_by_elements())):
            for entry in self.iterate_entries(name):
                for role in self._list_roles(name):
                    found.append(Move(name, entry, role, evicts=False))
                    if entry:
                        found.append(Move(name, entry, role, evicts=True))
        for axis in self._narrow_first:
            found += self.list_pipelines(axis)
        found += [one for axis in self._narrow_first for one in self._list_spreads((axis,))]
        # ZeRO: the state of the optimiser may be divided where parameters are not.
        if self.has_state:
            found.append(Keep(None))
            for name in self._sort_by_elements()[:KEPT]:
                # A state in larger parts than the parameters saves nothing.
                found += [Keep(((name, entry),)) for entry in self.iterate_entries(name) if entry]
        return found

    def list_swaps(self) -> list[Change]:
        """List the exchanges of two mesh axes; even if they are equally long, their links may differ."""
        pairs = itertools.combinations(self._narrow_first, 2)
        return [Swap(*pair, self.mesh_axes) for pair in pairs]

    def _list_spreads(self, entry: Entry) -> list[Spread]:
        """List the moves of pure data axes to mesh axes that divide them, wherever other axes leave these free."""
        names = [name for name in self.data if name not in self.parameters]
        unmapped = [name for name in names if name not in dict(self.fixed.computed)]
        return [Spread(name, entry) for name in unmapped if self.count_ways(name, entry) > 1]

    def list_gifts(self) -> list[Give]:
        """List all values of keyword arguments."""
        found: list[Give] = []
        for at, count in enumerate(self.alternatives):
            found += [Give(at, number) for number in range(count)]
        return found

    def _list_roles(self, name: str) -> list[Role]:
        """Return the roles in which an axis may move."""
        # As stages, layers move together with the number of microbatches.
        is_stage = self.piped is not None and name == self.piped[0]
        found: list[Role] = []
        if name not in dict(self.fixed.computed) and not is_stage:
            found.append("computed")
        if name in self.parameters and name not in dict(self.fixed.stored):
            found.append("stored")
        if len(found) == 2:
            found.append("both")
        return found

    def list_pipelines(self, axis: str) -> list[Pipeline]:
        """List the pipelines along a mesh axis, by their numbers of microbatches."""
        if self.piped is None:
            return []
        layers, rows = self.piped
        gifts: list[Give | None] = [None]
        if not self.is_divisible(layers, (axis,)):
            gifts = [own for own, size in self.layers.items() if size % self.mesh[axis] == 0]
        return [
            Pipeline(layers, rows, axis, number, gifts[0])
            for number in (several * self.mesh[axis] for several in MICROBATCHES if gifts)
            if all(size % number == 0 for size in self.data.get(rows, ()))
        ]

    def list_starts(self) -> list[Choice]:
        """List the choices that experts begin with, sorted by how often they are the best.

        They are: data on all mesh axes, with parameters sharded along all, some or none of them; axes of the layers on
        one or all mesh axes, with data and the other parameters on the rest, and perhaps other data sharded between the
        layers; two axes of data on separate mesh axes; axes such as experts on the mesh axes of the rows; pipelines
        along one mesh axis; and no mapping.
        """
        # Each rule gives its choices in order, and rules take turns: a small limit sees the first choices of all.
        rows: list[Iterator[Choice]] = []
        for name, most in self._list_divisions(self.mesh_axes):
            rows.append(self._divide_data(Move(name, most, "computed", evicts=True)))
        layers = [self._divide_layers((axis,)) for axis in self._narrow_first]
        # For a small model, no mapping is worth its communication.
        alone = iter((self.fixed,))
        # The first rules have two turns in each round: with parameters sharded or replicated, and with other data
        # between the layers or not. Along a single mesh axis, layers leave no devices to data, so they come later.
        row, layer = rows[:1], layers[:1]
        both = [*row, *layer, *layer, *row, alone]
        if len(self.mesh_axes) == 1:
            both = [*row, *row, alone, *layer, *layer]
        rules: list[Iterator[Choice]] = [
            *both,
            *rows[1:],
            self._share_rows(),
            self._divide_several(),
        ]
        rules += [self._divide_stages(axis) for axis in self._narrow_first]
        rules += layers[1:]
        if len(self.mesh_axes) > 1:
            rules.append(self._divide_layers(self.mesh_axes))
        turns = itertools.chain.from_iterable(itertools.zip_longest(*rules))
        found = (choice for choice in turns if choice is not None)
        return list(dict.fromkeys(map(self._restore_fixed, found)))

    def _list_divisions(self, among: Entry) -> list[tuple[str, Entry]]:
        """List the axes of data, each with the mesh axes that split it into the most parts, the fastest first."""
        found = {name: self.find_widest(name, among) for name in self.data}

        def rank(one: tuple[str, Entry]) -> tuple[bool, float]:
            # Two devices can divide almost any axis, but many devices may be too many for a short one.
            name, entry = one
            return name not in self.paces, self.paces.get(name, 1.0) / self.count_ways(name, entry)

        divided = [one for one in found.items() if one[1]]
        return sorted(divided, key=rank) if self.paces else divided

    def list_whole(self) -> list[tuple[Choice, Choice]]:
        """List for each axis of data the choices with parameters sharded along all mesh axes, and replicated."""
        found: list[tuple[Choice, Choice]] = []
        for name, most in self._list_divisions(self.mesh_axes):
            pair = itertools.islice(self._divide_data(Move(name, most, "computed", evicts=True)), 2)
            own = [self._restore_fixed(one) for one in pair]
            found.append((own[0], own[-1]))
        return found

    def list_between(self) -> list[tuple[Choice, Choice]]:
        """List the first choices of divided layers with other data sharded between the layers, and without it."""
        if len(self.mesh_axes) < 2:
            return []
        first = next(self._divide_layers((self._narrow_first[0],)), self.fixed)
        computed = tuple(pair for pair in first.computed if pair[0] not in first.yielding)
        whole = dataclasses.replace(first, computed=computed, yielding=())
        pair = self._restore_fixed(first), self._restore_fixed(whole)
        return [pair] if first.yielding else []

    def list_divided(self) -> dict[str, Choice]:
        """Return the first start of each axis of data."""
        found: dict[str, Choice] = {}
        for name in self.data:
            if most := self.find_widest(name, self.mesh_axes):
                first = next(self._divide_data(Move(name, most, "computed", evicts=True)))
                found[name] = self._restore_fixed(first)
        return found

    def _divide_data(self, data: Move) -> Iterator[Choice]:
        """Yield choices with data along mesh axes, and parameters stored along some of them."""
        divided = data.apply(self.fixed)
        # All mesh axes first: it needs the least memory. Then all but one, such as those inside of slices.
        rest = [only(self.mesh_axes, {*self.mesh_axes} - {axis}) for axis in self._narrow_first]
        entries = dict.fromkeys([self.mesh_axes, *rest, *((axis,) for axis in self._narrow_first)])
        for at, entry in enumerate(filter(None, entries)):
            name, own = self._find_stored(entry, ())
            if own:
                yield Move(name, own, "stored", evicts=True).apply(divided)
            if not at:
                yield divided

    def _divide_layers(self, entry: Entry) -> Iterator[Choice]:
        """Yield choices with some axes of the layers along mesh axes, and data along the others."""
        sets = self.find_groups(entry)
        # Small layers are faster if only their largest products are divided: one, two and so on.
        fewer = [names[:count] for names in sets[:1] for count in range(1, len(names))]
        groups = [
            self._divide_group(names, entry) for names in dict.fromkeys((*sets[:1], *fewer, *sets))
        ]
        # The first group is best most often, so that it has two choices before the others have one.
        for first in groups[:1]:
            yield from itertools.islice(first, 2)
        turns = itertools.chain.from_iterable(itertools.zip_longest(*groups))
        yield from (choice for choice in turns if choice is not None)

    def _divide_several(self) -> Iterator[Choice]:
        """Yield choices with an axis of data along one mesh axis, and another axis along the other mesh axes."""
        for axis in self._narrow_first:
            rest = tuple(other for other in self.mesh_axes if other != axis)
            # The best axis of data to divide first takes the most devices.
            for other, name in itertools.permutations(self.data, 2):
                is_split = self.count_ways(name, (axis,)) > 1
                if is_split and (most := self.find_widest(other, rest)):
                    base = Move(name, (axis,), "computed", evicts=False).apply(self.fixed)
                    base = Move(other, most, "computed", evicts=False).apply(base)
                    yield from self._order_rest(base)

    def _share_rows(self) -> Iterator[Choice]:
        """Yield choices with an axis that shares the mesh axes of the rows, such as experts."""
        for rows, most in self._list_divisions(self.mesh_axes):
            base = Move(rows, most, "computed", evicts=True).apply(self.fixed)
            for name in sorted(self._sort_by_elements(), key=self._rank_shared):
                ways = [self._share(base, name, axis) for axis in self._narrow_first]
                # Each mesh axis has a turn, since experts between nodes differ from experts inside.
                turns = itertools.chain.from_iterable(itertools.zip_longest(*ways))
                yield from dict.fromkeys(choice for choice in turns if choice is not None)

    def _share(self, base: Choice, name: str, axis: str) -> list[Choice]:
        """Return the choices that divide an axis along a mesh axis of the rows."""
        if "both" not in self._list_roles(name) or self.count_ways(name, (axis,)) < 2:
            return []
        shared = Move(name, (axis,), "both", evicts=False).apply(base)
        found = self._order_rest(shared)
        if len(found) == 1:
            # With no mesh axis left, parameters that lack this axis are stored along the same ones.
            found.insert(self.is_replicated, self._store_beside(shared))
        return found

    def _store_beside(self, choice: Choice) -> Choice:
        """Return a choice in which parameters that lack all of its stored axes are stored along its mesh axes."""
        for name in self._sort_by_elements():
            entry = self.find_widest(name, self.mesh_axes)
            beside = Move(name, entry, "stored", evicts=False).apply(choice)
            if name not in dict(choice.stored) and entry and not self.has_clash(beside):
                choice = beside
        return choice

    def _rank_shared(self, name: str) -> tuple[bool, int, int]:
        # If most parameters have an axis, it belongs to the layers, or to the rows that they compute. Among the others,
        # such as experts and their widths, the shortest one counts the places to which rows may be sent.
        is_common = 2 * sum(name in own for own in self.arrays) > len(self.arrays)
        share = self._count_elements(name) / (sum(self.arrays.values()) or 1)
        return is_common, -round(20 * share), max(self.parameters[name])

    def _divide_group(self, group: Sequence[str], entry: Entry) -> Iterator[Choice]:
        """Yield choices with these axes of the layers along mesh axes, and data along the others."""
        base = self.fixed
        for name in group:
            base = Move(name, self.find_widest(name, entry), "both", evicts=False).apply(base)
        rest = tuple(other for other in self.mesh_axes if other not in entry)
        ways = self._list_divisions(rest)
        moves = [Move(name, most, "computed", evicts=False) for name, most in ways]
        # With all mesh axes taken, or a single row, no data is divided.
        bases = [move.apply(base) for move in moves] or [base]
        # With few rows, layers take the other mesh axes, too, as in Pope et al. (2022), section 3.2.2. Rows, as those
        # of a cache, take these mesh axes wherever they are free.
        most = max((self.count_ways(*one) for one in ways), default=1)
        name, wide = self._find_stored(rest, dict(base.stored))
        among = entry
        if wide and (
            most < self.count_ways(name, wide) or self._count_rows() < max(self.parameters[name])
        ):
            bases.insert(1, Move(name, wide, "both", evicts=False).apply(base))
            among = rest
        for divided in bases:
            for choice in self._order_rest(divided):
                # Other axes of data, such as positions, are divided between the layers.
                own = [*self._list_spreads(entry), *self._list_spreads(among)]
                spreads = [spread.apply(choice) for spread in own]
                found = [*dict.fromkeys((*(one for one in spreads if one != choice), choice))]
                yield from found[::-1] if self.is_whole_between else found

    def _count_rows(self) -> int:
        """Return the number of rows that the layers compute, such as the tokens of all sequences."""
        return math.prod(min(own) for name, own in self.data.items() if name not in self.parameters)

    def _divide_stages(self, axis: str) -> Iterator[Choice]:
        """Yield pipelines along a mesh axis, with data along the others, and perhaps with divided stages."""
        for name, most in self._list_divisions(self.mesh_axes):
            divided = Move(name, most, "computed", evicts=True).apply(self.fixed)
            yield from self._add_stages(divided, axis)
        for other in self._narrow_first:
            for group in self.find_groups((other,))[:1]:
                if other != axis:
                    for choice in self._divide_group(group, (other,)):
                        yield from self._add_stages(choice, axis)

    def _add_stages(self, choice: Choice, axis: str) -> Iterator[Choice]:
        """Yield a choice as a pipeline, if it can be one."""
        for pipeline in self.list_pipelines(axis):
            piped = pipeline.apply(choice)
            if not self.has_clash(piped):
                yield from self._add_rest(piped)
                return

    def _add_rest(self, choice: Choice) -> Iterator[Choice]:
        """Yield a choice, and variants with parameters stored along mesh axes that are free in them."""
        yield choice
        taken = {axis for _, entry in choice.stored for axis in entry}
        free = tuple(axis for axis in self.mesh_axes if axis not in taken)
        # The shortest mesh axis that is free often connects slices, each with all parameters.
        short = next((axis for axis in self._narrow_first if axis in free), "")
        inside = tuple(axis for axis in free if axis != short and len(self.mesh_axes) > 2)
        for among in filter(None, (inside, free)):
            name, most = self._find_stored(among, dict(choice.stored))
            if most:
                yield Move(name, most, "stored", evicts=False).apply(choice)

    def _order_rest(self, choice: Choice) -> list[Choice]:
        """Return a choice and its variants, those first that are usually better."""
        # Parameters are usually stored along all mesh axes.
        found = list(self._add_rest(choice))
        return found if self.is_replicated else found[::-1]

    def _find_stored(self, among: Entry, without: Container[str]) -> tuple[str, Entry]:
        """Return the axis of parameters that saves most memory if it is divided, and the mesh axes that divide it."""
        total = sum(self.arrays.values()) or 1

        def count_saved(one: tuple[str, Entry]) -> int:
            name, entry = one
            # In percent, so that norms do not count.
            return round(
                100 * self._count_elements(name) / total * (1 - 1 / self.count_ways(name, entry))
            )

        names = [name for name in self._sort_by_elements() if name not in without]
        found = [(name, self.find_widest(name, among)) for name in names]
        return max(found, key=count_saved, default=("", ()))

    def find_groups(self, entry: Entry) -> list[tuple[str, ...]]:
        """List the sets of axes that divide most elements of parameters; no parameter has two axes of one set."""
        names: list[str] = []
        for name in self._sort_by_elements():
            # Heads may be axes of a cache, too. Learned positions are axes of data.
            is_rare = self._count_elements(name) < RARE * sum(self.arrays.values())
            is_layer = name not in self.data or not is_rare
            if is_layer and self.count_ways(name, entry) > 1 and "both" in self._list_roles(name):
                names.append(name)
        groups = [
            one for one in _separate(names, list(self.arrays)) if not self.data.keys() >= {*one}
        ]
        return sorted(groups, key=lambda one: self._rank_group(one, entry))[:GROUPS]

    def _rank_group(self, names: Sequence[str], entry: Entry) -> tuple[int, int, int]:
        # In steps of 5 %, so that norms do not count, even those of tiny models. Among sets that divide as much, larger
        # ones treat more layers alike. Then short axes come first: heads before features, over which attention sums.
        total = sum(self.arrays.values()) or 1
        divided = 0.0
        for own, count in self.arrays.items():
            # Mesh axes count only as far as they divide the size; beyond that, devices hold copies.
            parts = max((self.count_ways(name, entry) for name in names if name in own), default=1)
            divided += count * (1 - 1 / parts) / (1 - 1 / self.count_devices(entry))
        size = sum(max(self.parameters[name]) for name in names)
        return -round(20 * divided / total), -len(names), size

    def _count_elements(self, name: str) -> int:
        """Return the number of elements of the parameters that have an axis."""
        return sum(count for own, count in self.arrays.items() if name in own)

    def _sort_by_elements(self) -> list[str]:
        """Return the axes of parameters, the one with most elements first.

        In percent, so norms do not count. If several axes have equally many elements, the longest one comes first, and
        so layers come last.
        """
        total = sum(self.arrays.values()) or 1

        def rank(name: str) -> tuple[int, int, int]:
            count = self._count_elements(name)
            return -round(100 * count / total), -max(self.parameters[name]), -count

        return sorted(self.parameters, key=rank)

    def move_along(self, choice: Choice, axis: str) -> list[Choice]:
        """List the choices that move a single axis, a group of axes, or layers (as stages) to a mesh axis."""
        found = [pipeline.apply(choice) for pipeline in self.list_pipelines(axis)]
        names = [(name,) for name in dict.fromkeys((*self._sort_by_elements(), *self.data))]
        for group in (*self.find_groups((axis,))[:1], *names):
            # Axes that are there may have to leave, or may stay in other arrays.
            for evicts in (True, False):
                other = choice
                for name in group:
                    if self.count_ways(name, (axis,)) > 1 and (roles := self._list_roles(name)):
                        other = Move(name, (axis,), roles[-1], evicts).apply(other)
                found.append(other)
        return [
            other for other in dict.fromkeys(found) if other != choice and self.is_allowed(other)
        ]

    def count_shared(self, choice: Choice) -> int:
        """Return the number of mesh axes that several axes of data have: one of them usually takes the mesh axis."""
        entries = [entry for name, entry in choice.computed if name not in self.parameters]
        used = [axis for entry in entries for axis in entry]
        return len(used) - len(set(used))

    def count_apart(self, before: Choice, after: Choice) -> int:
        """Return the number of axes that are computed in shards, or were, and are no longer stored in the same ones."""
        stored, computed = dict(after.stored), dict(after.computed)
        divided = {*computed} | {name for name, _ in {*before.stored} & {*before.computed}}
        return sum(stored.get(name) != computed.get(name) for name in divided & {*self.parameters})

    def list_alone(self) -> list[Choice]:
        """List the choices that move something to the shortest mesh axis, and leave the others empty."""
        if not self.mesh_axes:
            return []
        # Data first, since devices that divide it send nothing but gradients.
        entry = (self._narrow_first[0],)
        divided = [name for name in self.data if self.count_ways(name, entry) > 1]
        data = [Move(name, entry, "computed", evicts=True).apply(self.fixed) for name in divided]
        moved = [*filter(self.is_allowed, data), *self.move_along(self.fixed, *entry)]
        return [*dict.fromkeys(moved)][:ALONE]

    def is_one(self, choice: Choice) -> bool:
        """Return whether a choice uses all mesh axes as one."""
        several = {entry for _, entry in (*choice.stored, *choice.computed)}
        return len(self.mesh_axes) > 1 and several <= {self.mesh_axes}

    def has_clash(self, choice: Choice) -> bool:
        """Return whether two axes of a parameter share a mesh axis, or the rows do not divide into microbatches."""
        # An axis that yields to others cannot clash with them.
        computed = [pair for pair in choice.computed if pair[0] not in choice.yielding]
        for entries in (choice.stored, computed, choice.kept or ()):
            held = dict(entries)
            for names in self.arrays:
                used = [axis for name in names for axis in held.get(name, ())]
                if len(used) > len(set(used)):
                    return True
        return self.piped is not None and not self._is_cut(choice, *self.piped)

    def _is_cut(self, choice: Choice, layers: str, rows: str) -> bool:
        """Return whether each device can cut its rows into microbatches."""
        computed = dict(choice.computed)
        stages = computed.get(layers, ())
        # The stages divide the rows after the cut, so they do not count.
        across = [axis for axis in computed.get(rows, ()) if axis not in stages]
        parts = (choice.microbatches or 1) * math.prod(self.mesh[axis] for axis in across)
        return all(size % parts == 0 for size in self.data.get(rows, ()))

    def is_allowed(self, choice: Choice) -> bool:
        """Return whether a choice has all fixed entries, and no entry without effect."""
        return self._restore_fixed(choice) == choice

    def _restore_fixed(self, choice: Choice) -> Choice:
        """Return a choice with the fixed entries, and without entries that have no effect."""
        stored = {**dict(choice.stored), **dict(self.fixed.stored)}
        computed = {**dict(choice.computed), **dict(self.fixed.computed)}
        microbatches = choice.microbatches
        if self.piped is not None and self.piped[0] not in computed:
            microbatches = self.fixed.microbatches
        kept = choice.kept
        # A state that is sharded like the parameters needs no entries of its own.
        if kept == tuple(sorted(stored.items())):
            kept = None
        return dataclasses.replace(
            choice,
            stored=tuple(sorted(stored.items())),
            computed=tuple(sorted(computed.items())),
            kept=kept,
            microbatches=microbatches,
            yielding=tuple(sorted({*self.fixed.yielding, *computed.keys() & choice.yielding})),
        )


def _separate(names: Sequence[str], arrays: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the largest sets of axes such that no array has two axes of one set."""
    found: list[tuple[str, ...]] = []

    def has_common(name: str, group: Iterable[str]) -> bool:
        return any(name in own and other in own for own in arrays for other in group)

    def extend(group: tuple[str, ...], rest: Sequence[str]) -> None:
        for at, name in enumerate(rest):
            if not has_common(name, group):
                extend((*group, name), rest[at + 1 :])
        others = [name for name in names if name not in group]
        if group and all(has_common(name, group) for name in others):
            found.append(group)

    extend((), names)
    return found
