"""Internal. A walk through a traced function, which counts operations, communication and memory accesses.

The reader runs one `Walk`, which runs another one for each body. It emits events; it must not know names, layers or
times.
"""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from ...engine import Entry, find_iterations, without
from ..shared.events import Amount
from ..shared.ring import Pairs
from .additions import Additions
from .bodies import join_entries, pass_arguments, pass_divisions
from .compilers import Compiler
from .crossing import write_crossing
from .edges import find_edge_moves
from .equations import (
    PASSING,
    Equation,
    Program,
    Used,
    Value,
    Variable,
    count_bytes,
    count_flops,
    count_shards,
    count_unstacked,
    divide_shape,
    find_estimate,
    find_layout,
    find_needed,
    find_needed_readers,
    find_rate_dtype,
    find_used_inside,
    is_copy,
    is_kernel_call,
    is_literal,
    list_bodies,
    select_branch,
    write_source,
    write_unknown,
)
from .fusions import Kernel, list_kernels
from .inlining import find_inlined, find_own
from .lookups import Part, find_gradient_moves, find_lookup_moves, find_sum_layout
from .loops import Loops
from .moves import Move, Sent, list_moves, order
from .numbering import Numbering, Places
from .products import find_product_moves
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
# These send numbers unchanged, so a compiler may round the numbers before.
_ROUNDED = ("all-gather", "all-to-all")
# A result of these is not the result of one run of the body: it is stacked, chosen or combined.
_REPEATING = ("scan", "while", "cond", "shard_map")
# The type of a result of these may ask for another layout than that of the operands.
_MOVING = ("reshard", "sharding_constraint", "dot_general", "gather", "conv_general_dilated")


class Walk:
    """A walk through one program, which notes the operations, communication and memory accesses of devices.

    A program inside of an equation, such as the body of a loop, gets a separate walk.

    Args:
        mesh: sizes of the mesh axes.
        compiler: the compiler whose program is counted.
        is_auto: whether the mesh axes are Auto for the compiler.
        numbering: which arrays are known to be the same.
        loops: which arrays are known to be the same in every iteration of a loop.
        additions: which arrays are known to be sums among devices.

    Attributes:
        sent: the collectives.
        done: the operations and memory accesses so far.
        unknown: notes about what cannot be counted, each with its operation: loops whose length the program does not
            say, and kernels that do not say what they compute.
        values: the arrays with their layouts, by the id of their variables.
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
        # Inner walks share these three: a compiler also merges across the borders of calls.
        self._numbering = numbering or Numbering(merges=compiler.merges)
        self._loops = loops or Loops()
        self._additions = additions or Additions()
        self.sent: list[Sent] = []
        self.done: list[Amount] = []
        self.unknown: list[tuple[str, str]] = []
        self.values: dict[int, Value] = {}
        # For arrays that are products: their operations, to find products that send their results in parts.
        self._products: dict[int, float] = {}
        # These describe the program that `run` walks through.
        self._readers: Mapping[int, Sequence[Equation]] = {}
        self._returned: Set[int] = frozenset()
        self._divisions: Mapping[int, Mapping[str, int]] = {}
        self._prefix = ""
        self._count = 1
        self._places = Places()

    def find_value(self, variable: Variable) -> Value:
        """Return an array with its layout."""
        if is_literal(variable):
            return find_layout(variable)
        own = find_own(variable)
        found = self.values.get(id(own))
        if found is None:
            found = self.values[id(own)] = find_layout(own)
        return found

    @property
    def uses_host(self) -> bool:
        """Whether some array is in the memory of the host."""
        return any(value.is_on_host for value in self.values.values())

    def count_bytes(self, variable: Variable) -> int:
        """Return the bytes of an array in the memory of one device; zero for an array on the host."""
        value = self.find_value(variable)
        return 0 if value.is_on_host else count_bytes(value, self._mesh)

    def count_host_bytes(self, variable: Variable) -> int:
        """Return the bytes of an array that the host holds for one device."""
        value = self.find_value(variable)
        return count_bytes(value, self._mesh) if value.is_on_host else 0

    def run(
        self,
        program: Program,
        given: Sequence[Value],
        source: str = "",
        count: int = 1,
        used: Used = None,
        divisions: Mapping[int, Mapping[str, int]] | None = None,
        places: Places | None = None,
    ) -> list[Value]:
        """Walk through a program.

        Args:
            program: the program.
            given: the arguments with their layouts.
            source: the name of the equation that runs it.
            count: how often it runs.
            used: which of its results are used; by default all.
            divisions: for the id of a result, the mesh axes that divide it outside, each with the dimension.
            places: for the program of a call, the places of equations in the program around it, which counts accesses.

        Returns:
            Its results with their layouts.
        """
        for variable, value in zip(program.invars, given, strict=True):
            self.values[id(variable)] = find_layout(variable, value.entries)
        self._readers = find_needed_readers(program, used)
        # An unused result keeps no equation alive, and so no collective.
        self._returned = {
            id(variable) for i, variable in enumerate(program.outvars) if used is None or used[i]
        }
        self._divisions = divisions or {}
        self._prefix, self._count = source, count
        self._places = places or Places()
        for equation in find_needed(program, used):
            sent, done = len(self.sent), len(self.done)
            is_repeated = not list_bodies(equation) and self._numbering.is_repeated(equation)
            # An equation that repeats another one costs nothing, but its result needs a layout.
            self._visit(equation)
            if is_repeated:
                del self.sent[sent:], self.done[done:]
            if find_inlined(equation) is None:
                numbers = map(self._numbering.find, equation.outvars)
                self._places.note(next(numbers, -1), is_repeated=is_repeated)
        if places is None:
            self._count_accesses(list_kernels(program, used, tuple(self._places.repeated)))
        return [self.find_value(variable) for variable in program.outvars]

    def _visit(self, equation: Equation) -> None:
        inputs = [self.find_value(variable) for variable in equation.invars]
        if inner := list_bodies(equation):
            self._visit_bodies(equation, inner, inputs)
            return
        self._loops.note(equation)
        if self._compiler.adds:
            redundant = self._additions.find_redundant(equation, self._readers, self._returned)
            if redundant is not None:
                # By identity: another layer may send an equal array.
                self.sent = [one for one in self.sent if one is not redundant]
        self._compute(equation, inputs)
        name = equation.primitive.name
        if name in _COLLECTIVES:
            self._visit_collective(equation, inputs)
            return
        if name == "dot_general":
            self._products[id(equation.outvars[0])] = count_flops(equation, inputs, self._mesh)
            # Several products of one array gather it once.
            moves = find_product_moves(equation, inputs, self._mesh)
            is_new = self._numbering.is_new
            self._send_parts(equation, [part for own, part in moves if is_new(own, part.move)])
        elif name == "conv_general_dilated":
            # The gradient of the kernel reads the image with the edges that the forward pass has kept.
            for part, pairs in find_edge_moves(equation, inputs, self._mesh):
                if self._numbering.is_new(equation.invars[0], (part.move, pairs)):
                    self._send_parts(equation, [part], pairs)
        elif is_kernel_call(equation):
            self._visit_kernel(equation)
        elif name in PASSING and id(equation.invars[0]) in self._products:
            self._products[id(equation.outvars[0])] = self._products[id(equation.invars[0])]
        entries, sums = propagate(equation, inputs)
        if name.startswith("scatter"):
            entries, sums = self._scatter(equation, inputs, entries, sums)
        for variable in equation.outvars:
            # Further results, such as the indices of a sort, may have another rank.
            is_alike = len(entries) == len(getattr(variable.aval, "shape", ()))
            self.values[id(variable)] = find_layout(variable, entries if is_alike else ())
        if name == "gather":
            result = self.find_value(equation.outvars[0])
            self._send_parts(equation, find_lookup_moves(equation, inputs, result, self._mesh))
        parts: Entry = inputs[0].partial if name in PASSING and inputs else ()
        for one in sums:
            parts = (*parts, *one.mesh_axes)
        # Other equations have the layout of their operands, so that nothing is sent for them.
        if parts or name in _MOVING or name.startswith("scatter"):
            has = Reached(tuple(entries), parts, sums)
            sources = [write_source(equation, self._prefix)]
            if self._is_auto and name == "reshard":
                sources = self._find_slicing_loops(equation, has) or sources
            for source in sources:
                self._reach(equation, has, source)

    def _scatter(
        self,
        equation: Equation,
        inputs: Sequence[Value],
        entries: Sequence[Entry],
        sums: Sequence[Sum],
    ) -> tuple[list[Entry], tuple[Sum, ...]]:
        """Send the updates of rows that other devices store; return the layout and the unfinished sums."""
        parts = tuple(axis for one in sums for axis in one.mesh_axes)
        users = self._readers.get(id(equation.outvars[0]), ())
        found = find_gradient_moves(equation, inputs, users, parts, self._mesh)
        if found is None:
            return find_sum_layout(entries, parts, users), tuple(sums)
        moved, kept = found
        self._send_parts(equation, moved)
        return list(kept), ()

    def _compute(self, equation: Equation, inputs: Sequence[Value]) -> None:
        """Count the operations of an equation."""
        source = write_source(equation, self._prefix)
        flops = count_flops(equation, inputs, self._mesh, self._compiler)
        unknown = "" if flops else write_unknown(equation)
        notes = unknown, write_crossing(equation, inputs, self._mesh)
        self.unknown += [(text, source) for text in notes if text]
        if flops:
            dtype = find_rate_dtype(equation, inputs)
            self.done.append(Amount(source, self._count * flops, dtype, 0.0))

    def _send_parts(
        self, equation: Equation, parts: Sequence[Part], pairs: Pairs = frozenset()
    ) -> None:
        """Note the collectives of a lookup in a table, or of the operands of a product or a convolution."""
        source = write_source(equation, self._prefix)
        count = self._loops.count_runs(equation, self._count)
        for move, value in parts:
            self.sent.append(Sent(move, value.dtype, value.itemsize, source, count, pairs=pairs))

    def _find_slicing_loops(self, equation: Equation, has: "Reached") -> list[str]:
        """List the loops that slice an array along a split dimension: on Auto mesh axes, each loop gathers it."""
        variable = equation.outvars[0]
        if not has.entries or has.entries[0] == self.find_value(variable).entries[0]:
            return []
        found: list[str] = []
        for reader in self._readers.get(id(variable), ()):
            if reader.primitive.name == "scan":
                (body,) = list_bodies(reader)
                sliced = reader.invars[count_unstacked(reader.invars, body.invars) :]
                if id(variable) in set(map(id, sliced)):
                    found.append(write_source(reader, self._prefix))
        return found

    def _reach(self, equation: Equation, has: "Reached", source: str) -> None:
        """Note the collectives that a result's layout requires; a sum may wait until devices use a part of it."""
        variable = equation.outvars[0]
        wanted = self.find_value(variable)
        if not has.parts and has.entries == wanted.entries:
            return
        count = self._loops.count_runs(equation, self._count)
        compiler = self._compiler
        is_deferred = bool(has.parts) and self._is_deferred(variable, has)
        # A compiler that scatters leaves the sum unfinished until the reader that divides it.
        is_waiting = is_deferred and compiler.scatters
        if is_deferred:
            # Each device takes its part of one sum, even where the compiler makes no reduce-scatter.
            compiler = compiler._replace(folds=True)
        keeping = has.parts if is_waiting or not has.parts else wanted.partial
        value = wanted._replace(entries=has.entries, partial=has.parts)
        # A reader outside of this program may divide the result, too.
        elsewhere: Mapping[str, int] = {}
        if compiler.scatters and has.parts and not is_deferred:
            elsewhere = self._find_divisions(variable)
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
            is_scattered = move.kind == "reduce-scatter"
            is_windowed = is_scattered and self._is_windowed(variable, move, value)
            # A windowed product sends parts of any size; a reduce-scatter needs complete tiles.
            if is_scattered and not is_windowed and not self._is_scattered(variable, move):
                move = move._replace(kind="all-reduce")
            dtype, itemsize = self._round(variable, move, value)
            found.append(Sent(move, dtype, itemsize, source, count, is_windowed))
        self.sent += found
        # Sums in several steps are not merged with others.
        if len(found) == 1 and found[0].move.kind in _SUMS:
            self._additions.note(variable, found[0])
        if is_waiting:
            self.values[id(variable)] = wanted._replace(partial=has.parts)

    def _round(self, variable: Variable, move: Move, value: Value) -> tuple[str, int]:
        """Return the dtype and the bytes per element in which an array is sent."""
        if move.kind in _ROUNDED and self._compiler.rounds:
            width = find_width(variable, self._readers, self._returned)
            if width < value.itemsize:
                return "bfloat16", width
        return value.dtype, value.itemsize

    def _is_windowed(self, variable: Variable, move: Move, value: Value) -> bool:
        """Return whether a product sends the parts of its result around while it computes."""
        least = self._compiler.windows
        if least is None or id(variable) not in self._products:
            return False
        if count_shards(move.mesh_axes, self._mesh) > self._compiler.ring:
            return False
        nbytes = move.elements * value.itemsize
        # The product must take long enough to send something meanwhile.
        is_long = self._products[id(variable)] >= self._compiler.intensity * nbytes
        is_split = bool(_collect_axes(value) - set(move.mesh_axes))
        return is_long and not is_split and nbytes >= least

    def _is_scattered(self, variable: Variable, move: Move) -> bool:
        """Return whether the compiler makes a reduce-scatter of a sum, if each device uses a part of it."""
        if not self._compiler.tiles:
            return True
        wanted = self.find_value(variable)
        over = set(move.mesh_axes)
        cut = [dimension for dimension, entry in enumerate(wanted.entries) if over & set(entry)]
        # A sum that is cut along two dimensions stays an all-reduce, even if both cuts are at borders of tiles.
        part = divide_shape(wanted.shape, wanted.entries, self._mesh)
        return len(cut) < 2 and is_tiled(part, cut)

    def _is_cut_at_tiles(
        self, shape: Sequence[int], cut: Mapping[str, int], over: Sequence[str]
    ) -> bool:
        """Return whether parts of a sum in a `shard_map` are complete tiles of its last two dimensions."""
        if not self._compiler.tiles:
            return True
        part = list(shape)
        dimensions = {len(part) + cut[axis] for axis in over}
        # A dimension along which a loop stacks does not belong to this array, and only one dimension is scattered.
        if min(dimensions) < 0 or len(dimensions) > 1:
            return False
        for axis in over:
            part[cut[axis]] //= self._mesh[axis]
        return is_tiled(part, dimensions, as_written=True)

    def _is_deferred(self, variable: Variable, has: "Reached") -> bool:
        """Return whether the only reader of a sum uses a part of it on each device."""
        parts = set(has.parts)
        # The type asks for a divided result here already.
        if parts & _collect_axes(self.find_value(variable)):
            return False
        return bool(parts & self._find_divisions(variable, within=True).keys())

    def _find_divisions(self, variable: Variable, *, within: bool = False) -> dict[str, int]:
        """Return the mesh axes that divide the result of an array's only reader, each with the divided dimension.

        Dimensions are counted from the last one, -1, so they stay the same if a loop stacks the array.

        Args:
            variable: the array.
            within: whether to ignore readers outside of this program.
        """
        found: dict[str, int] = {}
        here = variable
        while id(here) not in self._returned:
            users = self._readers.get(id(here), ())
            # Two readers, or one that computes, need the complete array.
            if len(users) != 1 or users[0].primitive.name not in PASSING:
                return found
            here = users[0].outvars[0]
            entries = find_layout(here).entries
            for dimension, entry in enumerate(entries):
                found |= dict.fromkeys(entry, dimension - len(entries))
        # A result that is also read inside is needed complete.
        if not within and id(here) not in self._readers:
            found |= self._divisions.get(id(here), {})
        return found

    def _visit_collective(self, equation: Equation, inputs: Sequence[Value]) -> None:
        """Note a collective of a `shard_map`: one operand is sent for each result; others give the destinations."""
        params = equation.params
        source = write_source(equation, self._prefix)
        named = params.get("axes", params.get("axis_name", ()))
        if isinstance(named, str):
            named = (named,)
        # Axes of a surrounding `vmap` are no mesh axes.
        over = order((axis for axis in named if axis in self._mesh), self._mesh)
        groups = params.get("axis_index_groups")
        if groups and len(over) == 1:
            # `data:2` stands for two devices of a longer mesh axis.
            over = (f"{over[0]}:{len(groups[0])}",)
        for variable, value in zip(equation.outvars, inputs, strict=False):
            result = self.values[id(variable)] = find_layout(variable, value.entries)
            shape = divide_shape(value.shape, value.entries, self._mesh)
            pairs = zip(value.shape, result.shape, strict=False)
            changed = tuple(max(before, after) for before, after in pairs if before != after)
            move = Move(_COLLECTIVES[equation.primitive.name], over, shape, changed)
            if over:
                self._send(variable, value, move, source, frozenset(params.get("perm", ())))

    def _visit_kernel(self, equation: Equation) -> None:
        """Note the sums of gradients of a kernel: an operand may be whole along mesh axes that divide others."""
        results = list(map(find_layout, equation.outvars))
        dividing = order(set().union(*map(_collect_axes, results)), self._mesh)
        source = write_source(equation, self._prefix)
        for variable, value in zip(equation.outvars, results, strict=True):
            if over := without(dividing, _collect_axes(value)):
                shape = divide_shape(value.shape, value.entries, self._mesh)
                self._send(variable, value, Move("all-reduce", over, shape, ()), source)

    def _send(
        self,
        variable: Variable,
        value: Value,
        move: Move,
        source: str,
        pairs: Pairs = frozenset(),
    ) -> None:
        """Note a collective that a program asks for; a sum of which each device uses a part becomes a scatter."""
        if move.kind == "all-reduce" and self._compiler.scatters:
            cut, over = self._find_divisions(variable), move.mesh_axes
            if cut.keys() >= set(over) and self._is_cut_at_tiles(move.shape, cut, over):
                move = move._replace(kind="reduce-scatter")
        dtype, itemsize = self._round(variable, move, value)
        self.sent.append(Sent(move, dtype, itemsize, source, self._count, pairs=pairs))

    def _visit_bodies(
        self, equation: Equation, inner: Sequence[Program], inputs: Sequence[Value]
    ) -> None:
        """Walk through the program that an equation runs; among branches, take the one with the most operations."""
        name, results = equation.primitive.name, equation.outvars
        inner = select_branch(equation, inner, self._compiler.platform)
        source = write_source(equation, self._prefix)
        used = [id(one) in self._readers or id(one) in self._returned for one in results]
        divided = [self._find_divisions(one) for one in results]
        given = pass_arguments(equation, inner[0], inputs)
        count = self._count
        if name == "scan":
            count *= equation.params["length"]
        elif name == "while" and (mean := find_iterations(source)) is not None:
            count = round(count * mean)
        elif name == "while":
            text = "loops whose length the program does not say count as one iteration"
            self.unknown.append((text, source))

        values: list[Value] = []
        walks: list[Walk] = []
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
            divisions = pass_divisions(equation, program, divided)
            arguments = given[: len(program.invars)]
            places = None if find_inlined(equation) is None else self._places
            values = own.run(program, arguments, source, count, inside, divisions, places)
            self._numbering.leave(equation, program.outvars, scope)
            self._loops.leave(equation, program, outer)
            if name not in _REPEATING:
                self._additions.note_results(program.outvars, results, program.eqns)
            self.values.update(own.values)
            self.unknown += own.unknown
            walks.append(own)
        # Which branch runs is not known, so the longest one counts.
        longest = max(walks, key=_measure)
        self.sent += longest.sent
        self.done += longest.done
        for i, variable in enumerate(results):
            guess: Sequence[Entry] = ()
            if i < len(values):
                # A loop stacks its results along new dimensions in front.
                more = len(getattr(variable.aval, "shape", ())) - len(values[i].entries)
                guess = ((),) * more + values[i].entries
            if name == "shard_map":
                guess = join_entries(equation.params["out_specs"][i], guess)
            self.values[id(variable)] = find_layout(variable, guess)

    def _is_kept(self, reshard: Equation) -> bool:
        """Return whether a reshard leaves an array as it is."""
        before, after = map(self.find_value, (*reshard.invars, *reshard.outvars))
        return before.entries == after.entries

    def _count_accesses(self, kernels: Sequence[Kernel]) -> None:
        """Count the bytes that are read and written; fused chains of elementwise operations count only at the ends."""
        for equation, operands in kernels:
            name = equation.primitive.name
            if name == "reshard" and operands == equation.invars and self._is_kept(equation):
                # A reshard to Auto mesh axes keeps the layout, on which the compiler decides from there on.
                continue
            nbytes = sum(map(self.count_bytes, equation.outvars))
            copied = 0
            if is_copy(equation):
                variables = (*equation.invars, *equation.outvars)
                copied = sum(map(self.count_host_bytes, variables))
            if name in ("gather", "dynamic_slice", "slice"):
                # Only the slice of the operand is read.
                nbytes *= 2
            elif name.startswith("scatter") or name == "dynamic_update_slice":
                # The array is changed in place: the update is read, and written.
                update = 2 if name.startswith("scatter") else 1
                nbytes = 2 * self.count_bytes(equation.invars[update])
            else:
                nbytes += sum(map(self.count_bytes, operands))
                nbytes = int(find_estimate(equation, "bytes_accessed")) or nbytes
            if nbytes or copied:
                inner = write_source(equation, equation.prefix)
                source = f"{self._prefix}/{inner}" if self._prefix else inner
                self.done.append(
                    Amount(source, 0.0, "", self._count * nbytes, self._count * copied)
                )


class Reached(NamedTuple):
    """The result of an equation if devices use only their shards.

    Attributes:
        entries: the mesh axes of each dimension of the result.
        parts: the mesh axes along which devices have parts of a sum.
        sums: the dimensions that this equation sums over.
    """

    entries: tuple[Entry, ...]
    parts: Entry
    sums: tuple[Sum, ...]


def _measure(walk: Walk) -> tuple[float, float]:
    """Return the operations and the bytes of a walk, to find the branch that takes longest."""
    return sum(one.flops for one in walk.done), sum(one.nbytes for one in walk.done)


def _collect_axes(value: Value) -> set[str]:
    return {axis for entry in value.entries for axis in entry}
