"""Internal. The text of a compiled program: its instructions, their numbers of runs, and its collectives.

The other modules of this room call it, and so do benchmarks. It must not know targets or names. It is tested on
programs of XLA's compilers for CPU and TPU.
"""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax
import numpy as np

from ...engine import find_iterations

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
    "ragged-all-to-all",
    "collective-broadcast",
)

# The number of the memory of the host.
HOST = 5

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]+)(\d*)(\w*)\[([\d,]*)\](\{[^}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_OPERANDS = re.compile(r"%([\w.\-]+)")
_END_OF_OPERANDS = re.compile(r"\)(?:,|$)")
_SOURCE = re.compile(r'op_name="([^"]*)"')
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)+)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=(?:\w+_)?mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? ?\{([^}]*)\}"
)
_ORDER = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS_PART = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
# The compiler for TPU gives this name to a fusion that sums, and keeps a part of the sum.
_SUM_AND_SLICE = "all-reduce-scatter"


class Array(NamedTuple):
    """The type of an array on one device.

    Attributes:
        dtype: the dtype, as XLA writes it.
        bits: the bits of an element.
        shape: the dimensions.
        space: the memory that holds it: 0 is the memory of the device, `HOST` the memory of the host; others are closer
            to the units of the device.
    """

    dtype: str
    bits: int
    shape: tuple[int, ...]
    space: int = 0

    @property
    def nbytes(self) -> int:
        """Its size; elements of 4 bits share bytes."""
        return math.ceil(math.prod(self.shape) * self.bits / 8)


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
        name: its own name.
        type: the text of its type.
        opcode: the name of its operation, such as `dot`.
        operands: the names of the instructions whose results it reads.
        line: the whole line.
        is_root: whether it is the result of its computation.
    """

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    line: str
    is_root: bool = False

    @property
    def source(self) -> str:
        """Its operation in the traced function; empty if the compiler does not say."""
        found = _SOURCE.search(self.line)
        return "" if found is None else found[1]


Computation: TypeAlias = Mapping[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A collective in the text of a program.

    Attributes:
        kind: one of `KINDS`.
        count: the number of runs, including iterations of loops.
        computation: the computation that it is in.
        instruction: its line.
        operands: the types of the arrays that it sends.
        results: the types of the arrays that it returns, one for each operand.
        groups: the numbers of the devices in each group, one row for each group; for a permute, a row is a source and
            its target.
    """

    kind: str
    count: int
    computation: str
    instruction: Instruction
    operands: tuple[Array, ...]
    results: tuple[Array, ...]
    groups: np.ndarray

    @property
    def nbytes(self) -> int:
        """The size of its operands on one device."""
        return sum_bytes(self.operands)

    @property
    def group(self) -> int:
        """The number of devices in one group."""
        return int(self.groups.shape[1])

    @property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """The source and the target of each message of a permute."""
        return frozenset(map(tuple, self.groups.tolist()))

    @property
    def name(self) -> str:
        """Its operation in the traced function, or else its name in the text."""
        return self.instruction.source or self.instruction.name


class Program:
    """A compiled program.

    Attributes:
        entry: the name of the computation that runs first.
        computations: the instructions of each computation, by name.
        callers: for each computation, the instructions that run it, each with its own computation.
        runs: how often each computation runs.
        fused: computations inside of fusions, whose values are never in memory.
        unknown: computations inside of loops of unknown length, with the name of the loop.
        devices: the number of devices.

    Args:
        text: the result of `jax.jit(f).lower(...).compile().as_text()`.
        unknown_trip_count: the number of iterations of a loop whose length XLA does not know.

    Raises:
        ValueError: if the text is not the text of a compiled program.
    """

    def __init__(self, text: str, unknown_trip_count: int | None = None) -> None:
        self.entry, self.computations = _parse(text)
        # The first line says how many devices run the program.
        header = text.split("\n", 1)[0]
        counts = re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", header)
        self.devices = math.prod(map(int, counts))
        self.callers: dict[str, list[tuple[str, Instruction]]] = defaultdict(list)
        self.runs: dict[str, int] = dict.fromkeys(self.computations, 0)
        self.fused: set[str] = set()
        self.unknown: dict[str, str] = {}
        self._unknown_trip_count = unknown_trip_count
        self._count_runs()

    def _count_runs(self) -> None:
        """Count how often each computation runs."""
        # In the text, a computation comes after the ones that it calls, so callers come first in reverse order.
        self.runs[self.entry] = 1
        for computation in reversed(self.computations):
            count = self.runs[computation]
            if not count:
                continue
            for op in self.computations[computation].values():
                called = find_called(op)
                if called:
                    self._count_calls(computation, op, called, count)

    def _count_calls(
        self, computation: str, op: Instruction, called: Sequence[str], count: int
    ) -> None:
        # Inside of a loop of unknown length, all numbers of runs are unknown, too.
        loop = self.unknown.get(computation)
        if op.opcode == "while":
            known = count_iterations(op, computation, self.computations)
            if known is None:
                loop, known = op.name, self._unknown_trip_count or 1
            # The condition counts as often as the body, which makes no difference.
            count = round(count * known)
        for name in called:
            self.runs[name] += count
            self.callers[name].append((computation, op))
            if loop is not None:
                self.unknown[name] = loop
            if op.opcode.removesuffix("-start") == "fusion" or computation in self.fused:
                self.fused.add(name)

    def find_source_around(self, computation: str) -> str:
        """Return the operation in the traced function that runs a computation, such as a loop; empty if unknown."""
        here = computation
        while callers := self.callers.get(here):
            here, op = callers[0]
            if op.source:
                return op.source
        return ""

    def list_transfers(self) -> list[Transfer]:
        """List the collectives, with the number of times each one runs.

        Each branch of a conditional counts. The compiler for TPU repeats a collective in each fusion that takes part in
        it, so all repetitions with the same channel and chain count once. Its all-reduce-scatter counts as
        reduce-scatter.

        Raises:
            ValueError: if a collective is inside a loop of unknown length, and no length was given.
        """
        found: list[Transfer] = []
        parts: dict[tuple[str, str, str], Transfer] = {}
        for computation, ops in self.computations.items():
            if not self.runs[computation]:
                continue
            for op in ops.values():
                kind = op.opcode.removesuffix("-start")
                if kind not in KINDS:
                    continue
                one = self._make_transfer(kind, computation, op)
                channel = re.search(r"channel_id=(\d+)", op.line)
                chain = re.search(r'chain_id="(\d+)"', op.line)
                # Parts of one collective have the same channel and chain.
                if chain and channel and computation in self.fused:
                    parts.setdefault((one.kind, channel[1], chain[1]), one)
                else:
                    found.append(one)
        return [*found, *parts.values()]

    def _make_transfer(self, kind: str, computation: str, op: Instruction) -> Transfer:
        if computation in self.unknown and self._unknown_trip_count is None:
            raise ValueError(
                f"cannot count the executions of {op.name} ({kind}): it is inside the loop "
                f"{self.unknown[computation]}, whose trip count XLA does not know; "
                "pass unknown_trip_count="
            )
        # Such a fusion contains an all-reduce, but devices send only parts.
        if computation.startswith(_SUM_AND_SLICE):
            kind = "reduce-scatter"
        ops = self.computations[computation]
        operands: list[Array] = []
        for name in _find_operands(kind, op):
            operands += parse_arrays(ops[name].type)
        # A start returns its operands before its results.
        results = parse_arrays(op.type)[-len(operands) :]
        groups = parse_groups(op.line, self.devices)
        count = self.runs[computation]
        return Transfer(kind, count, computation, op, tuple(operands), tuple(results), groups)


def _find_operands(kind: str, op: Instruction) -> tuple[str, ...]:
    """Return the operands that a collective sends; a ragged collective also has offsets and the result as operands."""
    return op.operands[:1] if kind == "ragged-all-to-all" else op.operands


def sum_bytes(arrays: Iterable[Array]) -> int:
    """Return the size of several arrays together, in bytes."""
    total = 0
    for array in arrays:
        total += array.nbytes
    return total


def parse_arrays(type_: str) -> list[Array]:
    """Return the arrays of a type such as `bf16[8,128]{1,0}`, or of a tuple of them."""
    found: list[Array] = []
    for letters, digits, rest, dims, layout in _ARRAY.findall(type_):
        # The digits of a dtype are its bits; a bool has no digits, and takes a byte.
        bits = int(digits or 0)
        if letters == "pred":
            bits = 8
        space = 0
        if elsewhere := _SPACE.search(layout):
            space = int(elsewhere[1])
        found.append(Array(letters + digits + rest, bits, tuple(_parse_numbers(dims)), space))
    return found


def parse_groups(line: str, devices: int) -> np.ndarray:
    """Return the groups of devices of a collective, by their numbers.

    XLA writes them in one of four ways: as pairs of a permute, as lists, as a grid of numbers, or as axes of a mesh.

    Raises:
        ValueError: if groups are written in another way.
    """
    if pairs := _PAIRS.search(line):
        numbers = re.findall(r"\d+", pairs[1])
        return np.array(numbers, int).reshape(-1, 2)
    if listed := _LISTED.search(line):
        rows = [_parse_numbers(row) for row in re.findall(r"\{([\d,]*)\}", listed[1])]
        if rows and rows[0]:
            return np.array(rows, int)
    if iota := _IOTA.search(line):
        count, size = int(iota[1]), int(iota[2])
        return _arrange(iota[3], iota[4]).reshape(count, size)
    if mesh := _MESH.search(line):
        return _parse_mesh_groups(mesh)
    if "replica_groups=" in line and "replica_groups={}" not in line:
        raise ValueError(f"cannot read the groups of devices in {line.strip()}")
    # Without groups, all devices take part.
    return np.arange(devices).reshape(1, devices)


def _arrange(dims: str, order: str | None) -> np.ndarray:
    """Return the device numbers in a grid with transposed dimensions."""
    sizes = _parse_numbers(dims)
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    if order:
        grid = grid.transpose(_parse_numbers(order))
    return grid


def _parse_numbers(text: str) -> list[int]:
    return list(map(int, re.findall(r"\d+", text)))


def _parse_mesh_groups(mesh: re.Match[str]) -> np.ndarray:
    """Return the groups along axes of a mesh; `'name':(stride)size` stands for a part of an axis."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
    grid = np.arange(math.prod(sizes.values()))
    if mesh[2]:
        order = _ORDER.fullmatch(mesh[2])
        if order is not None:
            grid = _arrange(order[1], order[2])
        else:
            grid = np.array(_parse_numbers(mesh[2]))
    # Each axis as three: what is before the part, the part, and what is behind it.
    split: list[int] = []
    along: list[int] = []
    rest: list[int] = []
    count = 1
    wanted = {
        name: (int(before or 1), int(part or sizes[name]))
        for name, before, part in _AXIS_PART.findall(mesh[3])
    }
    for name, size in sizes.items():
        before, part = wanted.get(name, (1, 1))
        first = len(split)
        rest += [first, first + 2]
        along.append(first + 1)
        count *= part
        split += [before, part, size // before // part]
    return grid.reshape(split).transpose([*rest, *along]).reshape(-1, count)


def find_mesh_axes(groups: np.ndarray, mesh: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Return the mesh axes along which the devices of a group differ.

    Args:
        groups: the numbers of devices, a row for each group.
        mesh: the axes with their sizes. Devices are numbered by their place, and the last axis varies fastest.

    Returns:
        The names. If only some devices along an axis take part, their number follows: `data:2`.
    """
    sizes = list(dict(mesh).values())
    if not sizes or groups.max(initial=0) >= math.prod(sizes):
        return ()
    found: list[str] = []
    is_pair = groups.shape[1] == 2
    for (name, size), places in zip(mesh, np.unravel_index(groups, sizes), strict=True):
        if not (places != places[:, :1]).any():
            continue
        several = len(set(places[0].tolist()))
        if is_pair and several < size and len(groups) > 1:
            # A permute around a ring is written as pairs of neighbours, so all pairs count together.
            several = len(set(places.ravel().tolist()))
        if several < size:
            name = f"{name}:{several}"
        found.append(name)
    return tuple(found)


def find_pairs(
    transfer: Transfer, mesh: Sequence[tuple[str, int]], mesh_axes: Sequence[str]
) -> frozenset[tuple[int, int]]:
    """Return the source and the target of each message of a permute, as coordinates along mesh axes."""
    if not mesh_axes:
        return frozenset()
    numbers = np.unravel_index(transfer.groups, [size for _, size in mesh])
    place = np.zeros_like(transfer.groups)
    for own, (name, size) in zip(numbers, mesh, strict=True):
        if name in mesh_axes:
            place = place * size + own
    return frozenset((source, target) for source, target in place.tolist())


def _parse(text: str) -> tuple[str, dict[str, dict[str, Instruction]]]:
    """Return the name of the entry computation, and the instructions of every computation."""
    entry = ""
    computations: dict[str, dict[str, Instruction]] = {}
    current: dict[str, Instruction] = {}
    last = ""
    # A computation is a header, a line for each instruction, and a closing brace.
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current, last = {}, ""
            computations[header[2]] = current
            if header[1]:
                entry = header[2]
        elif match := _INSTRUCTION.match(line):
            root, name, type_, opcode, rest = match.groups()
            operands = tuple(_OPERANDS.findall(_END_OF_OPERANDS.split(rest, maxsplit=1)[0]))
            current[name], last = Instruction(name, type_, opcode, operands, line, bool(root)), name
        elif last and line != "}":
            # The metadata of a Pallas kernel takes several lines.
            current[last] = current[last]._replace(line=current[last].line + line)
    if not entry:
        raise ValueError(
            "this is not the text of a compiled HLO module: it has no ENTRY computation"
        )
    return entry, computations


def count_iterations(
    loop: Instruction, computation: str, computations: Mapping[str, Computation]
) -> float | None:
    """Return the number of iterations of a loop, or the mean number given in its name; None if unknown.

    Args:
        loop: the loop.
        computation: the computation that it is in.
        computations: all computations.
    """
    known = _find_iterations(loop, computation, computations)
    return find_iterations(loop.source) if known is None else known


def _find_iterations(
    loop: Instruction, computation: str, computations: Mapping[str, Computation]
) -> int | None:
    """Return the number of iterations of a loop; None if XLA does not know it.

    The compiler for TPU does not write the number down. Its loops count up to the constant in their condition; the
    counter of an unrolled loop takes larger steps.
    """
    if known := _TRIP_COUNT.search(loop.line):
        return int(known[1])
    condition = re.search(r"\bcondition=%?([\w.\-]+)", loop.line)
    if condition is None:
        return None
    # Only conditions of the form `counter < constant` are understood.
    ops = computations[condition[1]]
    last = list(ops.values())[-1:]
    if not last or last[0].opcode != "compare" or "direction=LT" not in last[0].line:
        return None
    counter, limit = map(ops.__getitem__, last[0].operands)
    place = re.search(r"\bindex=(\d+)", counter.line)
    end = _parse_constant(limit)
    if end is None or place is None or counter.opcode != "get-tuple-element":
        return None
    start = _find_start(loop, computations[computation], int(place[1]))
    if start is None:
        return None
    return max(0, -((start - end) // _find_step(loop, computations, int(place[1]))))


def _find_start(loop: Instruction, ops: Computation, place: int) -> int | None:
    """Return the first value of a loop's counter; zero if the loop takes one tuple; None if unknown."""
    given = ops[loop.operands[0]]
    if given.opcode != "tuple":
        return 0
    op = ops[given.operands[place]]
    while op.opcode in ("copy", "copy-done", "copy-start"):
        op = ops[op.operands[0]]
    return _parse_constant(op)


def _find_step(loop: Instruction, computations: Mapping[str, Computation], place: int) -> int:
    """Return the step of a loop's counter in one iteration; one if the body does not say."""
    body = re.search(r"\bbody=%?([\w.\-]+)", loop.line)
    if body is None:
        return 1
    ops = computations[body[1]]
    last = list(ops.values())[-1]
    if last.opcode != "tuple":
        return 1
    step = ops[last.operands[place]]
    if step.opcode != "add":
        return 1
    for name in step.operands:
        number = _parse_constant(ops[name])
        if number:
            return number
    return 1


def _parse_constant(op: Instruction) -> int | None:
    number = re.search(r" constant\((-?\d+)\)", op.line)
    return None if number is None else int(number[1])


def find_called(op: Instruction) -> list[str]:
    """Return the computations that an instruction runs."""
    # The end of an asynchronous operation names the computation that its start has run.
    if op.opcode.endswith(("-update", "-done")):
        return []
    called: list[str] = _CALLED.findall(op.line)
    if branches := _BRANCHES.search(op.line):
        called += re.findall(r"[\w.\-]+", branches[1])
    return called


def find_text(compiled: jax.stages.Compiled | str) -> str:
    """Return the text of a compiled program, or the argument if it is a text."""
    return compiled if isinstance(compiled, str) else compiled.as_text() or ""


def iterate_instructions(program: Program) -> Iterator[tuple[str, Instruction]]:
    """Yield the instructions that run, each with the name of its computation."""
    for computation, ops in program.computations.items():
        if program.runs[computation]:
            for op in ops.values():
                yield computation, op
