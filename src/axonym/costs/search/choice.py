"""Internal. A choice of the search, and the changes that lead to another one.

`search` makes and compares choices. A choice has only tuples, so it can be a key of a dict; it must not know costs.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from ... import Mappings
from ...engine import Entry, only
from ...partitioning import if_free

Role: TypeAlias = Literal["stored", "computed", "both"]
Entries: TypeAlias = tuple[tuple[str, Entry], ...]


@dataclasses.dataclass(frozen=True)
class Choice:
    """A point of the search: each named axis with its mesh axes, sorted by name. Axes on no mesh axis are left out.

    Attributes:
        stored: the entries for parameters, gradients and the state of the optimiser.
        computed: the entries for activations and data.
        kept: the entries for the state of the optimiser; None if it is sharded like the parameters.
        microbatches: the number of microbatches of a pipeline; None without one.
        given: for each chosen keyword argument, the number of its value.
        yielding: the sorted axes of the computation that take their mesh axes only where other axes leave them free.
    """

    stored: Entries = ()
    computed: Entries = ()
    kept: Entries | None = None
    microbatches: int | None = None
    given: tuple[int, ...] = ()
    yielding: tuple[str, ...] = ()

    def make_mappings(self, parameters: Sequence[str], states: Sequence[str] = ()) -> Mappings:
        """Return the mappings of the choice.

        Args:
            parameters: the names of the axes of parameters.
            states: patterns of the paths at which an optimiser keeps arrays like the parameters.
        """
        stored, computed = dict(self.stored), dict(self.computed)
        listed: dict[str, Entry] = {}
        for name in parameters:
            # An array that has an axis only the computation lists would be taken for data.
            if name in stored or name in computed:
                listed[name] = stored.get(name, ())
        mapped = {
            name: if_free(entry) if name in self.yielding else entry
            for name, entry in computed.items()
        }
        if self.kept is None:
            return Mappings(listed, mapped)
        # Entries of the parameters do not apply to the state, so entries without a mesh axis are listed, too.
        kept = {**dict.fromkeys(listed, ()), **dict(self.kept)}
        return Mappings(listed, mapped, dict.fromkeys(states, kept))

    def divide(self, axis: str, inner: str) -> "Choice":
        """Return the same choice on a mesh where one axis is split in two: itself and its inner part."""
        kept = self.kept
        if kept is not None:
            kept = _divide(kept, axis, inner)
        stored = _divide(self.stored, axis, inner)
        computed = _divide(self.computed, axis, inner)
        return dataclasses.replace(self, stored=stored, computed=computed, kept=kept)

    def shard_groups(self, axis: str, inner: str, order: Entry) -> "Choice":
        """Return the same choice with parameters sharded along the inner part of a mesh axis, and not the outer.

        Args:
            axis: the mesh axis of the outer part.
            inner: the mesh axis of the inner part.
            order: all mesh axes, in the order in which entries list them.
        """
        computed = dict(self.computed)
        stored = (
            (name, entry)
            # Weights that are computed in parts stay where their parts are.
            if {*entry} & {*computed.get(name, ())}
            else (name, only(order, {*entry, inner} - {axis}))
            for name, entry in self.stored
        )
        return dataclasses.replace(self, stored=tuple(stored))


def _divide(entries: Entries, axis: str, inner: str) -> Entries:
    found: list[tuple[str, Entry]] = []
    for name, entry in entries:
        if axis in entry:
            at = entry.index(axis) + 1
            entry = (*entry[:at], inner, *entry[at:])
        found.append((name, entry))
    return tuple(found)


class Change(Protocol):
    """A change of a choice: a step of the search."""

    def apply(self, choice: Choice, /) -> Choice:
        """Return a choice after the change."""
        ...


class Move(NamedTuple):
    """A new entry for an axis; if the move evicts, other axes leave these mesh axes."""

    name: str
    entry: Entry
    role: Role
    evicts: bool

    def apply(self, choice: Choice) -> Choice:
        """Return a choice after the move."""
        stored, computed, yielding = choice.stored, choice.computed, choice.yielding
        if self.role in ("stored", "both"):
            stored = self._change(stored)
        if self.role in ("computed", "both"):
            computed = self._change(computed)
            others = {name for name, _ in computed} - {self.name}
            yielding = tuple(name for name in yielding if name in others)
        return dataclasses.replace(choice, stored=stored, computed=computed, yielding=yielding)

    def _change(self, entries: Entries) -> Entries:
        found: dict[str, Entry] = {self.name: self.entry}
        for name, entry in entries:
            if name == self.name:
                continue
            if self.evicts:
                entry = tuple(axis for axis in entry if axis not in self.entry)
            found[name] = entry
        return tuple(sorted((name, entry) for name, entry in found.items() if entry))


class Spread(NamedTuple):
    """An axis of data takes mesh axes wherever other axes leave them free, such as positions between products."""

    name: str
    entry: Entry

    def apply(self, choice: Choice) -> Choice:
        """Return a choice with the axis on these mesh axes; unchanged if it is mapped, or if one of them is unused."""
        used = {axis for _, entry in choice.computed for axis in entry}
        if self.name in dict(choice.computed) or not used.issuperset(self.entry):
            return choice
        computed = tuple(sorted((*choice.computed, (self.name, self.entry))))
        yielding = tuple(sorted((*choice.yielding, self.name)))
        return dataclasses.replace(choice, computed=computed, yielding=yielding)


class Swap(NamedTuple):
    """Two mesh axes exchange their roles, such as the one of the layers and one of the rows.

    Attributes:
        one: a mesh axis.
        other: another one.
        order: all mesh axes, in the order in which entries list them.
    """

    one: str
    other: str
    order: Entry

    def apply(self, choice: Choice) -> Choice:
        """Return a choice with exchanged roles; unchanged if it is a pipeline, whose stages divide the rows last."""
        if choice.microbatches is not None:
            return choice
        kept = choice.kept if choice.kept is None else self._exchange(choice.kept)
        stored, computed = self._exchange(choice.stored), self._exchange(choice.computed)
        return dataclasses.replace(choice, stored=stored, computed=computed, kept=kept)

    def _exchange(self, entries: Entries) -> Entries:
        roles = {self.one: self.other, self.other: self.one}
        return tuple(
            (name, only(self.order, {roles.get(axis, axis) for axis in entry}))
            for name, entry in entries
        )


class Keep(NamedTuple):
    """New entries for the state of the optimiser; None to use the entries of the parameters."""

    entries: Entries | None

    def apply(self, choice: Choice) -> Choice:
        """Return a choice with these entries for the state."""
        return dataclasses.replace(choice, kept=self.entries)


class Give(NamedTuple):
    """Another value of a keyword argument."""

    at: int
    number: int

    def apply(self, choice: Choice) -> Choice:
        """Return a choice with the value."""
        given = list(choice.given)
        given[self.at] = self.number
        return dataclasses.replace(choice, given=tuple(given))


class Pipeline(NamedTuple):
    """Layers along a mesh axis become stages of a pipeline, perhaps with a keyword value that stores them suitably."""

    layers: str
    rows: str
    axis: str
    microbatches: int
    gift: Give | None = None

    def apply(self, choice: Choice) -> Choice:
        """Return a choice with the pipeline."""
        others = dict(choice.computed).get(self.rows, ())
        # The mesh axis of the stages divides the rows last, so that each stage cuts its own rows.
        entry = (*(axis for axis in others if axis != self.axis), self.axis)
        piped = Move(self.layers, (self.axis,), "both", evicts=True).apply(choice)
        piped = Move(self.rows, entry, "computed", evicts=False).apply(piped)
        if self.gift is not None:
            piped = self.gift.apply(piped)
        return dataclasses.replace(piped, microbatches=self.microbatches)
