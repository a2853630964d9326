"""What is current: the mapping, the surrounding shard_map, and all else that traces depend on.

The `Context` is a `jax.make_user_context` value, so it is part of the key of every trace cache of JAX: a function that
is called under another mapping is traced again.
"""

import dataclasses
import inspect
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from ..axis import AxisSelector, selector
from ..errors import ArgumentError, OperandError, ShardingError, message
from ..names.plans import Names
from .assignment import (
    AxisMapping,
    Entry,
    Mappings,
    MeshAxes,
    MeshLike,
    ResourceMapping,
    checked_mapping,
    each_mapping,
    looked_up,
    normalized,
    with_bases,
)
from .entered import Blocks, Entered

__all__ = ["axis_mapping", "current_mapping", "pipelined"]


class Refused(NamedTuple):
    """An array that could not be laid out while a check ran.

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
        arrays: names, shape and spec of each array that was laid out.
        refused: those that could not be laid out.
    """

    def __init__(self) -> None:
        self.arrays: list[tuple[Names, tuple[int, ...], PartitionSpec]] = []
        self.refused: list[Refused] = []


@dataclasses.dataclass(frozen=True)
class Scope:
    """What collectives inside a shard_map know about it.

    Attributes:
        mappings: its mappings.
        sizes: the axes of its arguments, with their global sizes.
        hidden: axes that a surrounding `vmap` or `nmap` maps over.
        looped: axes that a surrounding loop runs along.
    """

    mappings: Mappings
    sizes: frozenset[tuple[str, int]]
    hidden: frozenset[str] = frozenset()
    looped: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """The names of the axes of the arguments."""
        return frozenset(name for name, _ in self.sizes)

    @property
    def is_in_data(self) -> bool:
        """Whether a surrounding map or loop runs along an axis of data, so that arrays inside may lack it."""
        return self.is_data((*self.hidden, *self.looped))

    def is_data(self, names: Iterable[str]) -> bool:
        """Return whether an array with these names is data, not a parameter."""
        return self.mappings.of(tuple(names)) == self.mappings.compute


class Ledger:
    """What is laid out while one function is traced, and the mappings that become current in it.

    A ledger is part of the keys of JAX's trace caches. Where a key of a mapping is no axis of the arguments, no other
    ledger equals this one, so that all functions inside are traced again and note what they lay out.

    Attributes:
        known: the names of the arguments.
        entered: the mappings that became current, in this function alone.
        seen: for each mapping, the names of the arrays that were laid out by it.
        outer: the ledger of a surrounding function, which sees them too.
        is_alone: whether no other ledger equals this one.
        sizes: the sizes of the axes of arrays that were laid out, where somebody asks for them.
        waiting: the largest part of its time that a stage of a pipeline waits.
    """

    def __init__(
        self,
        outer: "Ledger | None" = None,
        known: Set[str] = frozenset(),
        mappings: Sequence[AxisMapping | Mappings] = (),
    ) -> None:
        self.known = with_bases(known)
        self.entered: list[AxisMapping] = []
        self.seen: dict[AxisMapping, set[str]] = {}
        self.outer = outer
        self.sizes: dict[str, set[int]] | None = None
        self.waiting = 0.0
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
        inner.entered = self.entered
        return inner

    def _is_partly_unknown(self, mapping: AxisMapping | Mappings) -> bool:
        return any(key not in self.known for own in each_mapping(mapping) for key in own)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Ledger) and not self.is_alone and not other.is_alone
        )

    def __hash__(self) -> int:
        if self.is_alone:
            return id(self)
        return 0


@dataclasses.dataclass(frozen=True)
class Microbatches:
    """How pipelines cut their work.

    Attributes:
        axis: the name of the axis that is cut.
        count: the number of microbatches.
    """

    axis: str
    count: int


@dataclasses.dataclass(frozen=True)
class Context:
    """What is current: the value that JAX keeps for a thread, and that is part of the keys of its trace caches.

    Attributes:
        mapping: the mapping of the innermost `axis_mapping`.
        stored: what lays out the results of the surrounding compiled function, gradients of its parameters among them.
        manual: whether products gather their weights in a shard_map.
        rings: whether perceptrons send positions in rings.
        taken: Explicit mesh axes that a surrounding `vmap` maps over, so that nothing inside can be laid out on them.
        scope: the surrounding shard_map.
        audit: collects layouts and errors while a check runs; it makes JAX trace again.
        ledger: notes what is laid out, while a function with mappings of its own is traced.
        reshard_limit: for arrays of more bytes than this, moves that nobody asked for are reported.
        reshard_action: how: `error` or `warn`.
        microbatches: how pipelines cut their work.
    """

    mapping: AxisMapping | None = None
    stored: AxisMapping | Mappings | None = None
    manual: bool = False
    rings: bool = False
    taken: Entry = ()
    scope: Scope | None = None
    audit: Audit | None = None
    ledger: Ledger | None = None
    reshard_limit: int | None = None
    reshard_action: str = "error"
    microbatches: Microbatches | None = None

    @property
    def has_names(self) -> bool:
        """Whether what is traced may depend on the names of axes."""
        about_names = (
            self.mapping,
            self.scope,
            self.audit,
            self.reshard_limit,
            self.microbatches,
        )
        return any(value is not None for value in about_names)


_NOTHING = Context()

_current = jax.make_user_context(default_value=_NOTHING)

_blocks = Blocks("axis_mapping", _NOTHING, lambda context: str(context.mapping))

_never_entered: dict[int, str] = {}


class NamesMatter(BaseException):
    """What is traced for any names asks for what is current for its own; no code of users is to catch that."""


class _Nameless(threading.local):
    depth = 0


_nameless = _Nameless()


@contextmanager
def nameless() -> Generator[None, None, None]:
    """Trace for any names, inside a `with` block: what depends on names must not be looked up."""
    _nameless.depth += 1
    try:
        yield
    finally:
        _nameless.depth -= 1


def current() -> Context:
    """Return what is current in this thread.

    Raises:
        ShardingError: if it is what another task or generator of the thread made current; if a mapping was made, and
            not made current.
    """
    value: Context = _current.value
    if _blocks.innermost.get().value is not value:
        _blocks.check()
    if _never_entered and threading.get_ident() in _never_entered:
        raise ShardingError(_never_entered.pop(threading.get_ident()))
    if _nameless.depth and value.has_names:
        raise NamesMatter
    return value


class _Block(AbstractContextManager[None]):
    """A block in which a context is current; one object may be entered again inside itself and in other threads.

    A context of JAX stores the previous value on itself, so each entry makes a new one.
    """

    def __init__(self, change: Callable[[Context], Context]) -> None:
        self._change = change
        self._entered = threading.local()

    def __enter__(self) -> None:
        changed = self._change(current())
        entered = _blocks.enter(changed, _current(changed))
        self._entered.__dict__.setdefault("stack", []).append(entered)

    def __exit__(self, *raised: object) -> None:
        entered: Entered[Context] = self._entered.stack.pop()
        _blocks.leave(entered, *raised)


class _MappingBlock(_Block):
    """The block of an `axis_mapping`, which notices if it is never entered."""

    def __init__(
        self, change: Callable[[Context], Context], mapping: AxisMapping, place: str
    ) -> None:
        super().__init__(change)
        self._unused: tuple[AxisMapping, str] | None = mapping, place

    def __enter__(self) -> None:
        self._unused = None
        super().__enter__()

    def __del__(self) -> None:
        if self._unused is not None:
            mapping, place = self._unused
            facts = f"mapping: {mapping}", f"made in: {place}"
            problem = "a mapping was made, and never made current"
            hint = "use a block: with axn.axis_mapping(...):"
            text = message("axis_mapping", problem, *facts, hint=hint)
            _never_entered[threading.get_ident()] = text


def context(**changes: Any) -> AbstractContextManager[Any]:
    """Change what is current, inside a `with` block: attributes of `Context` by keyword."""
    return _Block(lambda outer: dataclasses.replace(outer, **changes))


def resolve_mapping(mapping: ResourceMapping | None) -> AxisMapping | None:
    """Bring a mapping into normal form; None stands for the current one.

    Raises:
        OperandError: if a key is not an axis name, or a value not a mesh axis, tuple of mesh axes or None.
    """
    if mapping is None:
        return current_mapping()
    return normalized(mapping)


def current_mapping() -> AxisMapping | None:
    """Return the mapping of the innermost `axis_mapping`, or None."""
    return current().mapping


def stored_mapping(names: Names) -> AxisMapping | None:
    """Return the mapping by which a parameter with these names leaves the surrounding compiled function.

    None if it is not known: outside of compiled functions, and where mappings depend on paths. Data leaves a loss
    function, if at all, by the current mapping.
    """
    mapping, stored = current_mapping(), current().stored
    if mapping is None or stored is None:
        return None
    if isinstance(stored, AxisMapping):
        stored = Mappings(stored, mapping)
    if stored.overrides:
        return None
    own = stored.of(names)
    if own == stored.compute:
        return mapping
    return own


def mapped(names: Iterable[str]) -> dict[str, Entry]:
    """Look up names in the current mapping; leave out those without an entry for them or a base."""
    entries: Mapping[str, Entry] = current_mapping() or {}
    found: dict[str, Entry] = {}
    for name in names:
        entry = looked_up(entries, name)
        if entry is not None:
            found[name] = entry
    return found


def axis_mapping(
    mapping: ResourceMapping, *, merge: bool = False, **more: MeshAxes
) -> AbstractContextManager[Any]:
    """Make a mapping the current one, inside a `with` block.

    Args:
        mapping: axis names to mesh axes; a tuple of mesh axes shards over all of them, None over none.
        merge: keep the entries of the current mapping; where both have a name, the new one wins.
        more: further entries, by keyword.

    Examples:
        >>> with axn.axis_mapping({"batch": "data"}, mlp="model"):
        ...     print(axn.current_mapping())
        {'batch': 'data', 'mlp': 'model'}
    """
    normal = normalized({**dict(checked_mapping(mapping)), **more})
    # an AxisMapping may be of a subclass, which stays what it is
    kind = normal
    if isinstance(mapping, AxisMapping):
        kind = mapping

    def changed(outer: Context) -> Context:
        entries = dict(normal)
        if merge:
            entries = {**(outer.mapping or {}), **normal}
        inner = dataclasses.replace(kind, entries=tuple(entries.items()))
        if outer.ledger is None:
            return dataclasses.replace(outer, mapping=inner)
        return dataclasses.replace(outer, mapping=inner, ledger=outer.ledger.entering(inner))

    return _MappingBlock(changed, normal, _line_above(inspect.currentframe()))


def pipelined(axis: AxisSelector, microbatches: int) -> AbstractContextManager[Any]:
    """Say how pipelines cut their work, inside a `with` block.

    Where the current mapping has the layer axis of a `nn.Stacked` or an `nn.Interleaved`, each device applies its own
    layers, and microbatches go from one device to the next. A device starts with its next microbatch while the others
    work on theirs.

    Args:
        axis: the axis of the activations that is cut, such as the batch.
        microbatches: their number: a multiple of the number of stages. The more there are, the shorter devices wait.

    Raises:
        ArgumentError: if there is not at least one microbatch.

    Reference:
        Huang et al. (2019), GPipe: efficient training of giant neural networks using pipeline parallelism.
    """
    name, _ = selector(axis, "pipelined")
    if not isinstance(microbatches, int) or isinstance(microbatches, bool) or microbatches < 1:
        problem = f"the number of microbatches must be a positive int, not {microbatches!r}"
        hint = f'write axn.pipelined("{name}", 8)'
        raise ArgumentError(message("pipelined", problem, hint=hint))
    return context(microbatches=Microbatches(name, microbatches))


def _line_above(frame: FrameType | None) -> str:
    """Write the line that called the function of a frame."""
    if frame is None or frame.f_back is None:
        return ""
    caller = frame.f_back
    return f"{caller.f_code.co_filename}, line {caller.f_lineno}"


def taking(mesh_axes: Entry) -> AbstractContextManager[Any]:
    """Prevent layouts inside from using Explicit mesh axes that a `vmap` maps over."""
    if not mesh_axes:
        return nullcontext()
    return context(taken=(*current().taken, *mesh_axes))


def hiding(names: Iterable[str], *, loop: bool = False) -> AbstractContextManager[Any]:
    """Tell collectives inside a shard_map about axes that a `vmap` or `nmap` maps over, or a loop runs along."""
    scope = current().scope
    if scope is None:
        return nullcontext()
    if loop:
        inner = dataclasses.replace(scope, looped=scope.looped | set(names))
    else:
        inner = dataclasses.replace(scope, hidden=scope.hidden | set(names))
    return context(scope=inner)


def unmapped(names: Iterable[str]) -> AbstractContextManager[Any]:
    """Lay arrays out inside as if the current mapping mapped these axes to nothing."""
    mapping = current_mapping()
    if mapping is None or not any(looked_up(dict(mapping), name) for name in names):
        return nullcontext()
    entries = {**mapping, **dict.fromkeys(names, ())}
    return context(mapping=dataclasses.replace(mapping, entries=tuple(entries.items())))


def current_scope() -> Scope | None:
    """Return the scope of the surrounding shard_map."""
    return current().scope


def taken_axes() -> Entry:
    """Return the Explicit mesh axes that surrounding `vmap`s map over."""
    return current().taken


def context_mesh(mesh: MeshLike | None = None) -> MeshLike | None:
    """Return the given mesh, otherwise the one of `jax.set_mesh`, or None.

    Raises:
        OperandError: if the argument is not a mesh.
    """
    if mesh is not None:
        if not isinstance(mesh, Mesh | AbstractMesh):
            problem = f"a mesh must be a Mesh or an AbstractMesh, not {mesh!r}"
            raise OperandError(
                message("mesh", problem, hint='write jax.make_mesh((4, 2), ("data", "model"))')
            )
        return mesh
    abstract = jax.sharding.get_abstract_mesh()
    if abstract.empty:
        return None
    return abstract


def mesh_for_blocks(mesh: MeshLike) -> MeshLike | None:
    """Return the mesh to give to `jax.shard_map`: none if one is current, of which the given one may be a part."""
    if context_mesh():
        return None
    return mesh


def note(mapping: AxisMapping, names: Sequence[str], shape: Sequence[int] = ()) -> None:
    """Note that an array with these names is laid out by a mapping, for the functions that are being traced."""
    ledger = current().ledger
    while ledger is not None:
        ledger.seen.setdefault(mapping, set()).update(names)
        if ledger.sizes is not None and shape:
            for name, size in zip(names, shape[len(shape) - len(names) :], strict=True):
                ledger.sizes.setdefault(name, set()).add(size)
        ledger = ledger.outer


def note_waiting(share: float) -> None:
    """Note which part of its time a stage of a pipeline waits, for the functions that are being traced."""
    ledger = current().ledger
    while ledger is not None:
        ledger.waiting = max(ledger.waiting, share)
        ledger = ledger.outer
