"""Internal. Records of layouts, which are made while a function is traced.

A `Ledger` serves the check that a mapping has no misspelt key, and the reports; an `Audit` serves `axn.check`.
`constraints` writes both. They know names and sizes, but no arrays: a record that kept a tracer would leak it.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from typing import NamedTuple

from jax.sharding import PartitionSpec

from ..current.features import Feature
from ..errors import ShardingError
from ..names.plans import Names
from .assignment import AxisMapping, Entry, Mappings, MeshLike, add_bases, each_mapping
from .partition import only, without


class Refused(NamedTuple):
    """An array that could not be sharded while a check ran.

    Attributes:
        names: its names.
        shape: its shape.
        mapping: the mapping that was current.
        mesh: the mesh that was current.
        error: what is wrong.
    """

    names: Names
    shape: tuple[int, ...]
    mapping: AxisMapping
    mesh: MeshLike
    error: ShardingError


class Audit:
    """Collect layouts and their errors while a function is traced, instead of stopping at the first error.

    Attributes:
        arrays: names, shape and spec of each array that was sharded.
        refused: those that could not be sharded.
    """

    def __init__(self) -> None:
        self.arrays: list[tuple[Names, tuple[int, ...], PartitionSpec]] = []
        self.refused: list[Refused] = []


class Mixture(NamedTuple):
    """The axes of a mixture of experts, each with its size.

    Attributes:
        tokens: the axes of tokens.
        experts: the axis of experts.
        hidden: the hidden axis.
        is_limited: whether experts have a capacity.
    """

    tokens: tuple[tuple[str, int], ...]
    experts: tuple[str, int]
    hidden: tuple[str, int]
    is_limited: bool = False

    def find_entries(
        self, assign: Callable[[dict[str, int]], dict[str, Entry]], mesh_axes: Set[str]
    ) -> dict[str, Entry]:
        """Return the mesh axes over which tokens are sent, and those of the weights that a device has a part of.

        Args:
            assign: returns the mesh axes of an array with some axes, of given sizes.
            mesh_axes: those with several devices.
        """
        experts, hidden = self.experts[0], self.hidden[0]
        # Tokens and hidden axis as in one array: a sum over parts of the hidden axis must not mix tokens.
        found = assign(dict((*self.tokens, self.hidden)))
        found[experts] = assign(dict((self.experts, self.hidden))).get(experts, ())
        kept = {name: only(entry, mesh_axes) for name, entry in found.items()}
        kept[hidden] = without(kept.get(hidden, ()), kept[experts])
        return kept


class Table(NamedTuple):
    """A table, and the ids that look rows up in it.

    Attributes:
        names: the names of the table.
        shape: its shape.
        rows: the axis that ids count.
        axes: the names of the ids.
        ids_shape: their shape.
    """

    names: Names
    shape: tuple[int, ...]
    rows: str
    axes: Names
    ids_shape: tuple[int, ...]


class Ledger:
    """The arrays that are sharded while one function is traced, and the mappings that become current in it.

    A ledger is part of the keys of JAX's trace caches. If a key of a mapping is not an axis of the arguments, the
    ledger equals no other one, so all functions inside are traced again and note which arrays they shard.

    Attributes:
        known: the names of the arguments.
        entered: the mappings that became current, in this function alone.
        seen: for each mapping, the names of the arrays that were sharded by it.
        outer: the ledger of a surrounding function, which sees them too.
        is_alone: whether no other ledger equals this one.
        sizes: the sizes of the axes of arrays that were sharded, where somebody asks for them.
        waiting: the largest part of its time that a stage of a pipeline waits.
        pipelines: for each axis of layers inside of `pipelined`, whether the mapping has it.
        decisive: the axes whose entries in the mapping decide which program is traced.
        mixtures: the mixtures of experts, in order.
        tables: the tables of parameters in which rows are looked up, in order.
    """

    def __init__(
        self,
        outer: "Ledger | None" = None,
        known: Set[str] = frozenset(),
        mappings: Sequence[AxisMapping | Mappings] = (),
    ) -> None:
        self.known = add_bases(known)
        self.entered: list[AxisMapping] = []
        self.seen: dict[AxisMapping, set[str]] = {}
        self.outer = outer
        self.sizes: dict[str, set[int]] | None = None
        self.waiting = 0.0
        self.pipelines: dict[str, bool] = {}
        self.decisive: set[str] = set()
        self.mixtures: dict[Mixture, None] = {}
        self.tables: dict[Table, None] = {}
        # Alone, if a key of a mapping may be that of an array inside, which only a trace can tell.
        self.is_alone: bool = (outer is not None and outer.is_alone) or any(
            map(self._is_partly_unknown, mappings)
        )

    def entering(self, mapping: AxisMapping) -> "Ledger":
        """Return the ledger for a block in which a mapping is current."""
        if mapping not in self.entered:  # loops enter the same ones repeatedly
            self.entered.append(mapping)
        if self.is_alone or not self._is_partly_unknown(mapping):
            return self
        inner = Ledger(self, self.known, (mapping,))
        inner.entered = self.entered  # one list, for the function as a whole
        return inner

    def _is_partly_unknown(self, mapping: AxisMapping | Mappings) -> bool:
        return any(key not in self.known for own in each_mapping(mapping) for key in own)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Ledger) and not self.is_alone and not other.is_alone
        )

    def __hash__(self) -> int:
        return id(self) if self.is_alone else 0  # all others are equal


AUDIT: Feature[Audit | None] = Feature(None, depends_on_names=True)
"""The audit of the check that is running; it makes JAX trace again."""

LEDGER: Feature[Ledger | None] = Feature(None)
"""The ledger of the function that is being traced."""


def _iterate_ledgers() -> Iterator[Ledger]:
    """Yield the ledgers of the functions that are being traced: one inside of another is a part of it."""
    ledger = LEDGER.get()
    while ledger is not None:
        yield ledger
        ledger = ledger.outer


def note(mapping: AxisMapping, names: Sequence[str], shape: Sequence[int] = ()) -> None:
    """Record that a mapping shards an array with these names, for the functions that are being traced."""
    for ledger in _iterate_ledgers():
        ledger.seen.setdefault(mapping, set()).update(names)
        if ledger.sizes is not None and shape:
            for name, size in zip(names, shape[len(shape) - len(names) :], strict=True):
                ledger.sizes.setdefault(name, set()).add(size)


def note_waiting(share: float) -> None:
    """Record the fraction of its time that a pipeline stage waits, for the functions that are being traced."""
    for ledger in _iterate_ledgers():
        ledger.waiting = max(ledger.waiting, share)


def note_decisive(name: str) -> None:
    """Record an axis whose entry in the mapping decides what is traced, for the functions that are being traced."""
    for ledger in _iterate_ledgers():
        ledger.decisive.add(name)


def note_mixture(mixture: Mixture) -> None:
    """Record a mixture of experts whose work devices share, for the functions that are being traced."""
    for ledger in _iterate_ledgers():
        ledger.mixtures[mixture] = None


def note_table(table: Table) -> None:
    """Record a table of parameters in which rows are looked up, for the functions that are being traced."""
    for ledger in _iterate_ledgers():
        ledger.tables[table] = None
