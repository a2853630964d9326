"""Internal. The operations of each instruction in a compiled program, and the bytes that it reads and writes.

The reader and the schedule call it. It knows the text of HLO; it must not know layers or names.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...engine import find_kernel_call
from ..shared.convolutions import Sliding, count_meetings
from ..shared.dtypes import JAX_NAMES, find_precision, find_real
from ..shared.events import Amount
from ..shared.places import find_place
from .origin import find_origin
from .program import (
    HOST,
    Array,
    Computation,
    Instruction,
    Program,
    iterate_instructions,
    parse_arrays,
    sum_bytes,
)

_CONTRACTING = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_PRODUCTS = ("gemm", "matmul", "dot")
# Kernels for ragged products have this in their text.
_RAGGED = "ragged_dot_tiling"
# Kernels of Pallas, and those that the compiler for TPU makes of attention, estimate their operations.
_ESTIMATE = re.compile(r'"cost_estimate":\s*\{"flops":\s*"?(\d+)')
_ESTIMATED_BYTES = re.compile(r'"cost_estimate":\s*\{[^}]*"bytes_accessed":\s*"?(\d+)')
_PRECISION = re.compile(r"\b(?:operand_precision=\{|algorithm=dot_)([\w,]+)")
# The call that stands for a kernel that cannot be compiled here.
_STAND_IN = "python_cpu_callback"
# These write another operand into a part of their first one, in place.
_CHANGING = {"dynamic-update-slice": 1, "scatter": -1}
# These move no memory: they rename a value, change its form, or call instructions that count themselves.
_FREE = {
    "after-all",
    "async-start",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "domain",
    "get-tuple-element",
    "iota",
    "opt-barrier",
    "optimization-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
    "while",
}


def iterate_amounts(program: Program) -> Iterator[Amount]:
    """Yield the amounts of all instructions; instructions inside of fusions have only operations, no bytes."""
    for computation, op in iterate_instructions(program):
        count = program.runs[computation]
        one = count_amount(program, computation, op)
        if one.flops or one.nbytes or one.copied:
            source = _find_source(program, op) or program.find_source_around(computation)
            if one.flops and op.operands and not source:
                # Some products of the compiler for CPU have no name: the name of an operand is close.
                source = find_origin(program, computation, op.operands[0]).source
            numbers = count * one.flops, one.dtype, count * one.nbytes, count * one.copied
            yield Amount(source, *numbers)


def count_amount(program: Program, computation: str, op: Instruction) -> Amount:
    """Return the amounts of one run of an instruction, without the instructions inside of it."""
    ops = program.computations[computation]
    flops = count_flops(op, ops)
    # Values inside of a fusion never reach memory.
    nbytes = copied = 0
    if computation not in program.fused and op.opcode not in _FREE:
        nbytes, copied = _count_accessed(program, op, ops), _count_copied(op, ops)
    dtype = _find_dtype(program, computation, op) if flops and op.operands else ""
    known = find_precision(
        find_real(JAX_NAMES.get(dtype, dtype)), ",".join(_PRECISION.findall(op.line))
    )
    return Amount(op.source, flops, known, nbytes, copied)


def _find_dtype(program: Program, computation: str, op: Instruction) -> str:
    """Return the dtype of a product's wider operand in the traced function, before the compiler widened it."""
    ops = program.computations[computation]
    found: list[Array] = []
    for name in op.operands:
        narrow = find_origin(program, computation, name).narrow
        found += parse_arrays(ops[name].type)[:1] if narrow is None else [narrow]
    if op.opcode == "custom-call":
        # Tables of integers, which tell a kernel what to do, may come before the arrays.
        found = [array for array in found if "f" in array.dtype][:1] or found
    return max(found[:2], key=lambda array: array.bits).dtype


def _find_source(program: Program, op: Instruction) -> str:
    """Return the operation in the traced function; a fusion without a name takes that of its last named instruction."""
    if _RAGGED in op.line:
        # The name of the kernel follows the operation.
        return op.source.rpartition("/")[0]
    if op.source or op.opcode != "fusion":
        return op.source
    sources = [own.source for own in _find_fused(program, op).values()]
    return next(filter(None, reversed(sources)), "")


def _find_fused(program: Program, op: Instruction) -> Computation:
    """Return the instructions inside of a fusion; empty for other instructions."""
    called = re.search(r"\bcalls=%?([\w.\-]+)", op.line)
    return {} if called is None else program.computations[called[1]]


def parse_operands(op: Instruction, ops: Computation) -> list[Array]:
    """Return the types of the operands of an instruction."""
    found: list[Array] = []
    for name in op.operands:
        found += parse_arrays(ops[name].type)
    return found


def count_contracted(op: Instruction, ops: Computation) -> int:
    """Return the number of elements that a product sums over; 1 if it is not known."""
    found = _CONTRACTING.search(op.line)
    if found is None:
        return 1
    shape = parse_operands(op, ops)[0].shape
    return math.prod(shape[int(i)] for i in re.findall(r"\d+", found[1]))


def count_flops(op: Instruction, ops: Computation) -> float:
    """Return the operations of a product, a convolution or a kernel with an estimate; zero for other instructions."""
    if op.opcode == "convolution":
        return _count_convolution(op, ops)
    if _RAGGED in op.line:
        return _count_ragged(op, ops)
    if op.opcode == "custom-call" and (own := _count_kernel(op, ops)) is not None:
        return own
    estimate = _ESTIMATE.search(op.line)
    if op.opcode == "custom-call" and estimate is not None:
        return float(estimate[1])
    is_call = op.opcode == "custom-call" and any(mark in op.line for mark in _PRODUCTS)
    if op.opcode != "dot" and not (is_call and _CONTRACTING.search(op.line)):
        return 0.0
    result = parse_arrays(op.type)[0]
    # A product of complex numbers is four of real ones.
    own = 4.0 if result.dtype.startswith("c") else 1.0
    return own * 2.0 * math.prod(result.shape) * count_contracted(op, ops)


def _count_kernel(op: Instruction, ops: Computation) -> float | None:
    """Return the operations of a kernel by its name; None if an instruction does not call a kernel with such a name.

    The compiler may write several kernels for one call, such as two for a gradient: the first has all operations.
    """
    source = op.source
    one = find_kernel_call(source)
    if one is None:
        return None
    call = source[: source.index(one.name)]
    several = (
        own
        for own in ops.values()
        if own.opcode == "custom-call" and own.source.startswith(call + one.name)
    )
    if next(several) is not op or not one.elements:
        return 0.0
    if _STAND_IN in op.line:
        # A vmap around the call makes it one call on all arrays, with the same name.
        return one.flops * math.prod(parse_arrays(op.type)[0].shape) / one.elements
    # JAX derived the gradient of the call, so that the name is that of the call.
    is_backward = find_place(source, has_gradient=True).phase == "backward"
    return float(one.backward if is_backward else one.flops)


def _count_ragged(op: Instruction, ops: Computation) -> float:
    """Count each row of a ragged product once, as the kernel for TPU computes it."""
    # The last two operands are the rows, and the matrices of all groups.
    rows = parse_operands(op, ops)[-2]
    result = parse_arrays(op.type)[0]
    return 2.0 * math.prod(rows.shape) * result.shape[-1]


def _count_convolution(op: Instruction, ops: Computation) -> float:
    """Count the operations of a convolution; padding does not count.

    The compiler for TPU writes all products as convolutions. A batch dimension of a product is a window with one
    element.
    """
    labels = _LABELS.search(op.line)
    if labels is None:
        return 0.0
    image, kernel = parse_operands(op, ops)[:2]
    result = parse_arrays(op.type)[0]
    window = _parse_window(op.line)
    # Digits are dimensions of the image, letters are the batch and the features.
    total = 2.0
    for label, size in zip(labels[3], result.shape, strict=True):
        if not label.isdigit():
            total *= size
    for label, size in zip(labels[2], kernel.shape, strict=True):
        if label == "i":
            total *= size
    for label in labels[3]:
        if label.isdigit():
            at = int(label)
            sizes = (
                image.shape[labels[1].index(label)],
                kernel.shape[labels[2].index(label)],
                result.shape[labels[3].index(label)],
            )
            total *= count_meetings(*sizes, _parse_sliding(window, at))
    return total


def _parse_window(line: str) -> dict[str, list[str]]:
    """Return the properties of a window, each with a value for each dimension."""
    found = _WINDOW.search(line)
    properties: dict[str, list[str]] = {}
    for part in (found[1] if found else "").split():
        name, _, values = part.partition("=")
        properties[name] = values.split("x")
    return properties


def _parse_sliding(window: Mapping[str, Sequence[str]], at: int) -> Sliding:
    """Return how a kernel slides along one dimension."""

    def of(name: str, default: str) -> int:
        values = window.get(name)
        return int(default) if values is None else int(values[at].split("_")[0])

    return Sliding(of("stride", "1"), of("rhs_dilate", "1"), of("lhs_dilate", "1"), of("pad", "0"))


def count_bytes(arrays: Iterable[Array]) -> int:
    """Return the bytes of the arrays in the memory of the device; other arrays are closer to its units."""
    return sum_bytes(array for array in arrays if not array.space)


def _count_accessed(program: Program, op: Instruction, ops: Computation) -> int:
    """Return the bytes that an instruction reads and writes; a slice reads only its part of the operand."""
    # The start of an asynchronous operation has already counted.
    if op.opcode.endswith(("-done", "-update")):
        return 0
    estimate = _ESTIMATED_BYTES.search(op.line) if op.opcode == "custom-call" else None
    if estimate is not None and int(estimate[1]):
        return int(estimate[1])
    results = parse_arrays(op.type)
    operands = parse_operands(op, ops)
    if op.opcode == "copy-start":
        results = results[:1]
    elif op.opcode.endswith("-start") and len(results) > len(operands):
        # A start returns its operands before its results, except for that of an all-reduce.
        results = results[len(operands) :]
    written = count_bytes(results)
    kind = op.opcode.removesuffix("-start")
    if kind in ("dynamic-slice", "slice", "gather"):
        # The operand may be in memory while the slice is closer to the units.
        return written + _count_part(results[0], operands[0])
    if kind in _CHANGING:
        change = operands[_CHANGING[kind]]
        return count_bytes([change]) + _count_part(change, results[0])
    if kind == "fusion":
        called = _find_fused(program, op)
        if called:
            return _count_fusion(program, called)
    return written + count_bytes(operands)


def _count_copied(op: Instruction, ops: Computation) -> int:
    """Return the bytes that an instruction copies to or from the host: a complete array there, or a slice of it."""
    if op.opcode.endswith(("-done", "-update")):
        return 0
    arrays = (*parse_operands(op, ops), *parse_arrays(op.type))
    # A slice is as large as the array of the device; numbers that say where it is are smaller.
    sizes = [array.nbytes for array in arrays if array.space != HOST]
    return max(sizes, default=0) if len(sizes) < len(arrays) else 0


def _count_part(part: Array, whole: Array) -> int:
    """Return the bytes of a part of an array; zero if the array is not in the memory of the device."""
    return count_bytes([part._replace(space=whole.space)])


def _count_fusion(program: Program, ops: Computation) -> int:
    """Return the bytes that a fusion reads from its parameters and writes as its result."""
    total = 0
    for op in ops.values():
        if op.opcode == "parameter":
            # A fusion that only slices a parameter reads less than all of it.
            whole = count_bytes(parse_arrays(op.type))
            total += min(whole, _count_reads(program, ops, op.name, whole))
        if op.is_root:
            total += _count_writes(op, ops)
    return total


def _count_reads(program: Program, ops: Computation, name: str, whole: int) -> int:
    """Return the bytes that a fusion reads from one of its parameters."""
    parts = 0
    for user in ops.values():
        if name not in user.operands:
            continue
        is_first = user.operands[0] == name
        inner = _find_fused(program, user) if user.opcode == "fusion" else {}
        if user.opcode == "bitcast":
            parts += _count_reads(program, ops, user.name, whole)
        elif inner:
            # The fusion of a product has others inside, which slice its operands.
            for one in inner.values():
                if one.opcode == "parameter" and user.operands[_find_number(one)] == name:
                    parts += _count_reads(program, inner, one.name, whole)
        elif user.opcode in ("dynamic-slice", "slice", "gather") and is_first:
            parts += parse_arrays(user.type)[0].nbytes
        elif user.opcode in _CHANGING and is_first:
            # The parameter is changed in place, and not read.
            continue
        else:
            return whole
    return parts


def _find_number(parameter: Instruction) -> int:
    return int(parameter.line.split("parameter(", 1)[1].split(")", 1)[0])


def _count_writes(op: Instruction, ops: Computation) -> int:
    """Return the bytes that a fusion writes."""
    # The type of its result says which memory it writes to; types inside do not.
    results = parse_arrays(op.type)
    made = [op]
    if op.opcode == "tuple":
        made = list(map(ops.__getitem__, op.operands))
    total = 0
    for one in made:
        count = len(parse_arrays(one.type))
        own, results = results[:count], results[count:]
        changes = _find_changes(one, ops)
        if changes:
            own = [change._replace(space=own[0].space) for change in changes]
        total += count_bytes(own)
    return total


def _find_changes(op: Instruction, ops: Computation) -> list[Array]:
    """Return the arrays that a fusion writes into one of its parameters; empty if it makes a new array."""
    found: list[Array] = []
    # Several changes of one parameter may follow each other.
    while op.opcode in ("bitcast", *_CHANGING):
        if op.opcode in _CHANGING:
            found.append(parse_operands(op, ops)[_CHANGING[op.opcode]])
        op = ops[op.operands[0]]
    return [] if op.opcode != "parameter" else found
