"""Internal. A walk through a traced function: what its equations compute, send, read and write, and how often.

The reader runs one `Walk`, which runs another one for each body. It emits events; it must not know names, layers or
times.
"""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from jax.sharding import PartitionSpec

from ...engine import Entry, entries_from_spec, without
from ..shared.events import Amount
from .additions import Additions
from .compilers import Compiler
from .equations import (
    PASSING,
    Equation,
    Program,
    Value,
    Variable,
    count_bytes,
    count_flops,
    count_unstacked,
    divide_shape,
    find_layout,
    find_needed,
    find_readers,
    find_used_inside,
    is_literal,
    list_bodies,
    write_source,
)
from .fusions import Fusion, is_chain
from .lookups import Part, find_gradient_moves, find_lookup_moves, find_sum_layout
from .loops import Loops
from .moves import Move, Sent, list_moves, order
from .numbering import Numbering
from .propagation import Sum, propagate
from .rounding import find_width
from .tiles import is_tiled

# Collectives that a `shard_map` has, and the kinds that reports call them.
_COLLECTIVES = {
    "psum": "all-reduce",
    "psum2": "all-reduce",
    "psum_invariant": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "all_gather_reduced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "psum_scatter": "reduce-scatter",
    "unreduced_psum": "all-reduce",
    "unreduced_reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "ragged-all-to-all",
    "ppermute": "collective-permute",
}
# Sums among devices.
_SUMS = ("all-reduce", "reduce-scatter")
# What is sent as it is, and so may be rounded before.
_ROUNDED = ("all-gather", "all-to-all")
# What these return is not what their bodies do.
_REPEATING = ("scan", "while", "cond", "shard_map")
# After these, the layout of the type may be another one than that of the operands.
_MOVING = ("reshard", "sharding_constraint", "dot_general", "gather", "conv_general_dilated")


class Walk:
    """What was found in a traced function.

    Args:
        mesh: sizes of the mesh axes.
        compiler: what makes the program.
        is_auto: whether it is made for Auto mesh axes.
        numbering: what is known of which arrays are the same.
        loops: what is known of which arrays are the same in every turn of a loop.
        additions: what is known of which arrays devices have summed.

    Attributes:
        sent: the collectives.
        done: what was computed, read and written.
        unknown: loops whose length the program does not say, and kernels that do not say what they compute.
        values: how the arrays are laid out, by the id of their variables.
    """

    def __init__(
        self,
        mesh: Mapping[str, int],
        *,
        compiler: Compiler,
        is_auto: bool = False,
        numbering: Numbering | None = None,
        loops: Loops | None = None,
        additions: Additions | None = None,
    ) -> None:
        self._mesh = mesh
        self._compiler = compiler
        self._is_auto = is_auto
        self._numbering = numbering or Numbering(merges=compiler.merges)
        self._loops = loops or Loops()
        self._additions = additions or Additions()
        self.sent: list[Sent] = []
        self.done: list[Amount] = []
        self.unknown: list[tuple[str, str]] = []
        self._split: Mapping[int, Mapping[str, int]] = {}
        self._products: dict[int, float] = {}
        self.values: dict[int, Value] = {}

    def find_value(self, variable: Variable) -> Value:
        """Return how an array is laid out."""
        if is_literal(variable):
            return find_layout(variable)
        found = self.values.get(id(variable))
        if found is None:
            found = self.values[id(variable)] = find_layout(variable)
        return found

    def count_bytes(self, variable: Variable) -> int:
        """Return the bytes of an array on one device."""
        return count_bytes(self.find_value(variable), self._mesh)

    def run(
        self,
        program: Program,
        given: Sequence[Value],
        source: str = "",
        count: int = 1,
        used: Sequence[bool] | None = None,
        split: Mapping[int, Mapping[str, int]] | None = None,
    ) -> list[Value]:
        """Walk through a program.

        Args:
            program: the program.
            given: how its arguments are laid out.
            source: the name of the equation that runs it.
            count: how often it runs.
            used: which of its results somebody uses; by default all.
            split: mesh axes that divide what becomes of a result, by its id, and which of its dimensions.

        Returns:
            How its results are laid out.
        """
        for variable, value in zip(program.invars, given, strict=True):
            self.values[id(variable)] = find_layout(variable, value.entries)
        self._split = split or {}
        equations = find_needed(program, used)
        readers = find_readers(equations)
        returned = set(map(id, program.outvars))
        if used is not None:
            returned = {id(program.outvars[i]) for i, is_used in enumerate(used) if is_used}
        computed: list[Equation] = []
        for equation in equations:
            before = len(self.sent), len(self.done)
            is_repeated = not list_bodies(equation) and self._numbering.is_repeated(equation)
            self._visit(equation, readers, returned, source, count)
            if is_repeated:
                del self.sent[before[0] :], self.done[before[1] :]
            else:
                computed.append(equation)
        self._count_accesses(Fusion(computed, program.outvars), source, count)
        return [self.find_value(variable) for variable in program.outvars]

    def _visit(
        self,
        equation: Equation,
        readers: Mapping[int, Sequence[Equation]],
        returned: Set[int],
        prefix: str,
        count: int,
    ) -> None:
        inputs = [self.find_value(variable) for variable in equation.invars]
        source = write_source(equation, prefix)
        inner = list_bodies(equation)
        if inner:
            used = [id(one) in readers or id(one) in returned for one in equation.outvars]
            divided = [self._find_divisions(one, readers, returned) for one in equation.outvars]
            self._visit_bodies(equation, inner, inputs, used, divided, source, count)
            return
        self._loops.note(equation)
        if self._compiler.adds:
            spared = self._additions.find_redundant(equation, readers, returned)
            if spared is not None:
                self.sent = [one for one in self.sent if one is not spared]
        self._compute(equation, inputs, source, count)
        name = equation.primitive.name
        if name in _COLLECTIVES:
            self._visit_collective(equation, inputs, readers, returned, source, count)
            return
        if name == "dot_general":
            self._products[id(equation.outvars[0])] = count_flops(equation, inputs, self._mesh)
        elif name in PASSING and id(equation.invars[0]) in self._products:
            self._products[id(equation.outvars[0])] = self._products[id(equation.invars[0])]
        entries, sums = propagate(equation, inputs)
        if name.startswith("scatter"):
            users = readers.get(id(equation.outvars[0]), ())
            entries, sums = self._scatter(equation, inputs, entries, sums, users, source, count)
        for variable in equation.outvars:
            guess: Sequence[Entry] = ()
            if len(entries) == len(getattr(variable.aval, "shape", ())):
                guess = entries
            self.values[id(variable)] = find_layout(variable, guess)
        if name == "gather":
            moved = find_lookup_moves(
                equation, inputs, self.find_value(equation.outvars[0]), self._mesh
            )
            self._send(moved, source, self._loops.count_runs(equation, count))
        parts: Entry = inputs[0].partial if name in PASSING and inputs else ()
        for one in sums:
            parts = (*parts, *one.mesh_axes)
        if parts or name in _MOVING or name.startswith("scatter"):
            has = Reached(tuple(entries), parts, sums)
            sources = [source]
            if self._is_auto and name == "reshard":
                sources = self._find_slicing_loops(equation, has, readers, prefix) or sources
            for place in sources:
                self._reach(equation, has, readers, returned, place, count)

    def _scatter(
        self,
        equation: Equation,
        inputs: Sequence[Value],
        entries: Sequence[Entry],
        sums: Sequence[Sum],
        users: Sequence[Equation],
        source: str,
        count: int,
    ) -> tuple[list[Entry], tuple[Sum, ...]]:
        """Send what is added to rows that other devices keep; return the layout and the sums that are left."""
        parts = tuple(axis for one in sums for axis in one.mesh_axes)
        split = find_gradient_moves(equation, inputs, users, parts, self._mesh)
        if split is None:
            return find_sum_layout(entries, parts, users), tuple(sums)
        moved, kept = split
        self._send(moved, source, self._loops.count_runs(equation, count))
        return list(kept), ()

    def _compute(
        self, equation: Equation, inputs: Sequence[Value], source: str, count: int
    ) -> None:
        flops = count_flops(equation, inputs, self._mesh, self._compiler)
        if equation.primitive.name == "pallas_call" and not flops:
            text = "kernels that do not say what they compute count as nothing"
            self.unknown.append((text, source))
        if flops:
            self.done.append(Amount(source, count * flops, inputs[0].dtype, 0.0))

    def _send(self, parts: Sequence[Part], source: str, count: int) -> None:
        for move, value in parts:
            self.sent.append(Sent(move, value.dtype, value.itemsize, source, count))

    def _find_slicing_loops(
        self,
        equation: Equation,
        has: "Reached",
        readers: Mapping[int, Sequence[Equation]],
        prefix: str,
    ) -> list[str]:
        """List the loops that slice an array along a split dimension: on Auto mesh axes, each one gathers it."""
        variable = equation.outvars[0]
        if not has.entries or has.entries[0] == self.find_value(variable).entries[0]:
            return []
        found: list[str] = []
        for reader in readers.get(id(variable), ()):
            if reader.primitive.name == "scan":
                (body,) = list_bodies(reader)
                sliced = reader.invars[count_unstacked(reader.invars, body.invars) :]
                if id(variable) in set(map(id, sliced)):
                    found.append(write_source(reader, prefix))
        return found

    def _reach(
        self,
        equation: Equation,
        has: "Reached",
        readers: Mapping[int, Sequence[Equation]],
        returned: Set[int],
        source: str,
        count: int,
    ) -> None:
        """Send what the layout of a result asks for; a sum may wait until devices use a part of it."""
        variable = equation.outvars[0]
        wanted = self.find_value(variable)
        count = self._loops.count_runs(equation, count)
        compiler = self._compiler
        is_divided = bool(has.parts) and self._is_deferred(variable, has, readers, returned)
        waiting = is_divided and compiler.scatters
        if is_divided:
            # A part of one sum is taken, also where it is no reduce-scatter.
            compiler = compiler._replace(folds=True)
        if waiting or not has.parts:
            keeping: Entry = has.parts
        else:
            keeping = wanted.partial
        value = wanted._replace(entries=has.entries, partial=has.parts)
        elsewhere: Mapping[str, int] = {}
        if compiler.scatters and has.parts and not is_divided:
            elsewhere = self._find_divisions(variable, readers, returned)
        found: list[Sent] = []
        for move in list_moves(
            value,
            wanted.entries,
            self._mesh,
            sums=has.sums,
            keeping=keeping,
            compiler=compiler,
        ):
            if move.kind == "all-reduce" and elsewhere.keys() >= set(move.mesh_axes):
                move = move._replace(kind="reduce-scatter")
            dtype, itemsize = value.dtype, value.itemsize
            if move.kind in _ROUNDED and compiler.rounds:
                width = find_width(variable, readers, returned)
                if width < itemsize:
                    dtype, itemsize = "bfloat16", width
            is_scattered = move.kind == "reduce-scatter"
            is_windowed = is_scattered and self._is_windowed(variable, move, value)
            if is_scattered and not is_windowed and not self._is_scattered(variable, move):
                move = move._replace(kind="all-reduce")
            found.append(Sent(move, dtype, itemsize, source, count, is_windowed))
        self.sent += found
        if len(found) == 1 and found[0].move.kind in _SUMS:
            self._additions.note(variable, found[0])
        if waiting:
            self.values[id(variable)] = wanted._replace(partial=has.parts)

    def _is_windowed(self, variable: Variable, move: Move, value: Value) -> bool:
        """Return whether a product sends around the parts of its result."""
        least = self._compiler.windows
        if least is None or id(variable) not in self._products:
            return False
        nbytes = move.elements * value.itemsize
        is_long = self._products[id(variable)] >= self._compiler.intensity * nbytes
        is_split = bool(_collect_axes(value) - set(move.mesh_axes))
        return is_long and not is_split and nbytes >= least

    def _is_scattered(self, variable: Variable, move: Move) -> bool:
        """Return whether the compiler makes a reduce-scatter of a sum of which devices use parts."""
        if not self._compiler.tiles:
            return True
        wanted = self.find_value(variable)
        cut = [
            dimension
            for dimension, entry in enumerate(wanted.entries)
            if set(entry) & set(move.mesh_axes)
        ]
        return is_tiled(divide_shape(wanted.shape, wanted.entries, self._mesh), cut)

    def _is_cut_at_tiles(
        self, shape: Sequence[int], cut: Mapping[str, int], over: Sequence[str]
    ) -> bool:
        """Return whether parts of a sum in a `shard_map` are whole tiles, of the last two dimensions there."""
        if not self._compiler.tiles:
            return True
        part = list(shape)
        dimensions = {len(part) + cut[axis] for axis in over}
        if min(dimensions) < 0:
            return False
        for axis in over:
            part[cut[axis]] //= self._mesh[axis]
        return is_tiled(part, dimensions, as_written=True)

    def _is_deferred(
        self,
        variable: Variable,
        has: "Reached",
        readers: Mapping[int, Sequence[Equation]],
        returned: Set[int],
    ) -> bool:
        """Return whether the one who uses a sum uses a part of it on each device."""
        parts = set(has.parts)
        if parts & _collect_axes(self.find_value(variable)):
            return False
        return bool(parts & self._find_divisions(variable, readers, returned, within=True).keys())

    def _find_divisions(
        self,
        variable: Variable,
        readers: Mapping[int, Sequence[Equation]],
        returned: Set[int],
        *,
        within: bool = False,
    ) -> dict[str, int]:
        """Return the mesh axes that divide what the only one who uses an array makes of it, and which dimension.

        The dimensions are counted from the last one, -1; stacked or not, they are the same.

        Args:
            variable: the array.
            readers: who reads each array of its program.
            returned: the results of that program.
            within: whether what becomes of these elsewhere does not count.
        """
        found: dict[str, int] = {}
        here = variable
        while id(here) not in returned:
            users = readers.get(id(here), ())
            if len(users) != 1 or users[0].primitive.name not in PASSING:
                return found
            here = users[0].outvars[0]
            entries = find_layout(here).entries
            for dimension, entry in enumerate(entries):
                found |= dict.fromkeys(entry, dimension - len(entries))
        if not within and id(here) not in readers:
            found |= self._split.get(id(here), {})
        return found

    def _visit_collective(
        self,
        equation: Equation,
        inputs: Sequence[Value],
        readers: Mapping[int, Sequence[Equation]],
        returned: Set[int],
        source: str,
        count: int,
    ) -> None:
        """Read a collective of a `shard_map`: for each result, an operand is sent; others say where to."""
        params = equation.params
        named = params.get("axes", params.get("axis_name", ()))
        if isinstance(named, str):
            named = (named,)
        over = order((axis for axis in named if axis in self._mesh), self._mesh)
        for variable, value in zip(equation.outvars, inputs, strict=False):
            result = self.values[id(variable)] = find_layout(variable, value.entries)
            shape = divide_shape(value.shape, value.entries, self._mesh)
            changed = [
                max(before, after)
                for before, after in zip(value.shape, result.shape, strict=False)
                if before != after
            ]
            move = Move(_COLLECTIVES[equation.primitive.name], over, shape, tuple(changed))
            if move.kind == "all-reduce" and self._compiler.scatters:
                cut = self._find_divisions(variable, readers, returned)
                if cut.keys() >= set(over) and self._is_cut_at_tiles(shape, cut, over):
                    move = move._replace(kind="reduce-scatter")
            dtype, itemsize = value.dtype, value.itemsize
            if move.kind in _ROUNDED and self._compiler.rounds:
                width = find_width(variable, readers, returned)
                if width < itemsize:
                    dtype, itemsize = "bfloat16", width
            if over:
                pairs = frozenset(params.get("perm", ()))
                self.sent.append(Sent(move, dtype, itemsize, source, count, pairs=pairs))

    def _visit_bodies(
        self,
        equation: Equation,
        inner: Sequence[Program],
        inputs: Sequence[Value],
        used: Sequence[bool],
        divided: Sequence[Mapping[str, int]],
        source: str,
        count: int,
    ) -> None:
        """Walk through what an equation runs: of branches, the one that computes most."""
        name = equation.primitive.name
        given = _pass_arguments(equation, inner[0], inputs)
        if name == "scan":
            count *= equation.params["length"]
        elif name == "while":
            text = "loops whose length the program does not say count as one iteration"
            self.unknown.append((text, source))

        results: list[Value] = []
        best: tuple[float, float, Walk] | None = None
        for program in inner:
            own = Walk(
                self._mesh,
                compiler=self._compiler,
                is_auto=self._is_auto,
                numbering=self._numbering,
                loops=self._loops,
                additions=self._additions,
            )
            outer = self._loops.enter(equation, program)
            scope = self._numbering.enter(equation, program.invars)
            inside = find_used_inside(equation, program, used)
            split = _pass_divisions(equation, program, divided)
            arguments = given[: len(program.invars)]
            results = own.run(program, arguments, source, count, inside, split)
            self._numbering.leave(equation, program.outvars, scope)
            self._loops.leave(equation, program, outer)
            if name not in _REPEATING:
                self._additions.note_results(program.outvars, equation.outvars, program.eqns)
            self.values.update(own.values)
            self.unknown += own.unknown
            flops = sum(one.flops for one in own.done)
            nbytes = sum(one.nbytes for one in own.done)
            if best is None or (flops, nbytes) > best[:2]:
                best = flops, nbytes, own
        if best is not None:
            self.sent += best[2].sent
            if not is_chain(equation):
                self.done += best[2].done
        for i, variable in enumerate(equation.outvars):
            guess: Sequence[Entry] = ()
            if i < len(results):
                guess = results[i].entries
                more = len(getattr(variable.aval, "shape", ())) - len(guess)
                guess = ((),) * more + tuple(guess)
            if name == "shard_map":
                guess = _join_entries(equation.params["out_specs"][i], guess)
            self.values[id(variable)] = find_layout(variable, guess)

    def _count_accesses(self, fusion: Fusion, source: str, count: int) -> None:
        """Count the bytes that are read and written, of chains of elements only at their ends."""
        for equation, operands in fusion.iterate_kernels():
            nbytes = sum(map(self.count_bytes, equation.outvars))
            name = equation.primitive.name
            if name in ("gather", "dynamic_slice", "slice"):
                nbytes *= 2
            elif name.startswith("scatter") or name == "dynamic_update_slice":
                last = 2 if name.startswith("scatter") else 1
                nbytes = 2 * self.count_bytes(equation.invars[last])
            else:
                nbytes += sum(map(self.count_bytes, operands))
            if nbytes:
                self.done.append(Amount(write_source(equation, source), 0.0, "", count * nbytes))


class Reached(NamedTuple):
    """What an equation makes of what devices have.

    Attributes:
        entries: the mesh axes of each dimension of its result.
        parts: the mesh axes along which devices have parts of a sum.
        sums: over which dimensions they are, where this equation sums.
    """

    entries: tuple[Entry, ...]
    parts: Entry
    sums: tuple[Sum, ...]


def _collect_axes(value: Value) -> set[str]:
    return {axis for entry in value.entries for axis in entry}


def _pass_arguments(equation: Equation, body: Program, inputs: Sequence[Value]) -> list[Value]:
    """Return how the arguments of a body are laid out, by those of the equation that runs it."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        whole = count_unstacked(equation.invars, body.invars)
        return [*inputs[:whole], *map(_slice, inputs[whole:])]
    if name == "while":
        return list(inputs[params["cond_nconsts"] :])
    if name == "cond":
        return list(inputs[1:])
    if name != "shard_map":
        return list(inputs)
    given: list[Value] = []
    for variable, value in zip(body.invars, inputs, strict=True):
        rest = [without(entry, params["newly_manual_axes"]) for entry in value.entries]
        given.append(find_layout(variable, rest))
    return given


def _pass_divisions(
    equation: Equation, body: Program, divided: Sequence[Mapping[str, int]]
) -> dict[int, Mapping[str, int]]:
    """Return the mesh axes that divide what becomes of the results of a body."""
    name = equation.primitive.name
    if name in ("while", "cond"):
        return {}
    first = 0
    if name == "scan":
        # What a loop carries is used in its next turn, too.
        first = count_unstacked(equation.outvars, body.outvars)
    return {
        id(variable): axes
        for variable, axes in zip(body.outvars[first:], divided[first:], strict=False)
    }


def _join_entries(spec: PartitionSpec, entries: Sequence[Entry]) -> list[Entry]:
    """Return the mesh axes of a result of a `shard_map`: those that divide it, and those that did inside."""
    own = entries_from_spec(spec)
    found: list[Entry] = []
    for i, entry in enumerate(entries):
        outer: Entry = own[i] if i < len(own) else ()
        found.append((*outer, *entry))
    return found


def _slice(value: Value) -> Value:
    """Return what a loop takes of an array in one step."""
    return value._replace(shape=value.shape[1:], entries=value.entries[1:])
