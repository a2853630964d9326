"""Internal. The origin of an operand: an argument of the program, a product, or another operation.

`attribution` and `work` follow an operand back through fusions, calls and loops. The module knows the text of HLO; it
must not know names.
"""

import re
from typing import NamedTuple

from .program import Array, Computation, Instruction, Program, parse_arrays

# These change the form of an array, but not its content.
_PASSING = {
    "all-gather-done",
    "bitcast",
    "convert",
    "copy",
    "copy-done",
    "copy-start",
    "dynamic-slice",
    "get-tuple-element",
    "optimization-barrier",
    "reshape",
    "slice",
    "transpose",
}
# The largest number of steps back: a loop may pass its value on to itself.
_LONGEST = 200
# The compiler for CPU computes and sends these in float32.
_NARROW = ("bf16", "f16", "f8e4m3fn", "f8e5m2")


class Origin(NamedTuple):
    """The origin of a value.

    Attributes:
        computation: the computation that makes it.
        op: the instruction that makes it: a parameter of the program, a product, or another one that changes content.
        source: the first name of an operation on the path back to the origin.
        narrow: the type of the array before the compiler widened its numbers; None if it did not.
    """

    computation: str
    op: Instruction
    source: str
    narrow: Array | None


def find_origin(program: Program, computation: str, name: str) -> Origin:
    """Go back from a value to the instruction that makes it, through fusions, calls and loops."""
    source = ""
    narrow = None
    # Entries of tuples that were taken apart, and must be found where a tuple is built.
    places: list[int] = []
    here, op = computation, program.computations[computation][name]
    for _ in range(_LONGEST):
        source = source or op.source
        narrow = narrow or _find_narrow_type(op, program.computations[here])
        step = _step_back(program, here, op, places)
        if step is None:
            break
        here, op = step
    return Origin(here, op, source, narrow)


def _find_narrow_type(op: Instruction, ops: Computation) -> Array | None:
    """Return the type of an array before the compiler widened it; None if it did not.

    A conversion that the function itself asks for has an operation name of its own.
    """
    if op.opcode != "convert" or op.source.endswith("convert_element_type"):
        return None
    before, after = parse_arrays(ops[op.operands[0]].type)[0], parse_arrays(op.type)[0]
    return before if before.bits < after.bits and before.dtype in _NARROW else None


def find_later_type(program: Program, computation: str, name: str, place: int | None) -> str | None:
    """Return the dtype to which all readers of a value narrow it; None if some reader does not narrow it.

    Args:
        program: the program.
        computation: the computation that makes the value.
        name: its instruction.
        place: its entry in a tuple; None for the complete value.
    """
    found: set[str | None] = set()
    for op in program.computations[computation].values():
        if name not in op.operands:
            continue
        if place is not None and op.opcode == "get-tuple-element":
            if f"index={place}" in re.split(r"[, )]+", op.line):
                found.add(find_later_type(program, computation, op.name, None))
        elif op.opcode == "convert":
            found.add(_find_result_type(op))
        elif op.opcode == "fusion":
            # Inside, the value has the name of a parameter.
            body = _find_body(op)
            parameter = _find_parameter(program.computations[body], op.operands.index(name))
            found.add(find_later_type(program, body, parameter, None))
        elif op.opcode in _PASSING:
            found.add(find_later_type(program, computation, op.name, None))
        else:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def _find_result_type(op: Instruction) -> str | None:
    result = parse_arrays(op.type)[0].dtype
    if result in _NARROW and not op.source.endswith("convert_element_type"):
        return result
    return None


def _find_parameter(ops: Computation, at: int) -> str:
    """Return the name of a parameter of a computation."""
    for op in ops.values():
        if op.opcode == "parameter" and f" parameter({at})" in op.line:
            return op.name
    raise ValueError(f"the computation has no parameter {at}")


def _step_back(
    program: Program, here: str, op: Instruction, places: list[int]
) -> tuple[str, Instruction] | None:
    """Return the instruction whose value this instruction passes on; None if it makes a value of its own.

    Args:
        program: the program.
        here: the computation of the instruction.
        op: the instruction.
        places: the tuple entries to look for, the innermost last. The call changes this list.
    """
    ops = program.computations[here]
    if op.opcode == "parameter":
        return _find_argument(program, here, op)
    if op.opcode == "get-tuple-element":
        places.append(int(op.line.rsplit("index=", 1)[1].split(",")[0]))
        return here, ops[op.operands[0]]
    if op.opcode == "tuple" and places:
        return here, ops[op.operands[places.pop()]]
    if op.opcode in ("fusion", "call", "while"):
        return _find_result(program, op)
    if op.opcode in _PASSING and op.operands:
        return here, ops[op.operands[0]]
    return None


def _find_result(program: Program, op: Instruction) -> tuple[str, Instruction] | None:
    """Return the result of the computation that an instruction runs."""
    body = _find_body(op)
    for own in program.computations.get(body, {}).values():
        if own.is_root:
            return body, own
    return None


def _find_body(op: Instruction) -> str:
    found = re.search(r"\b(?:calls|to_apply|body)=%?([\w.\-]+)", op.line)
    return "" if found is None else found[1]


def _find_argument(program: Program, here: str, op: Instruction) -> tuple[str, Instruction] | None:
    """Return the operand that a caller passes for a parameter of a computation."""
    callers = program.callers.get(here)
    if not callers:
        return None
    # Several callers pass similar arrays, so the first one represents all.
    outside, call = callers[0]
    at = int(op.line.split(" parameter(", 1)[1].split(")")[0])
    if at >= len(call.operands):
        return None
    return outside, program.computations[outside][call.operands[at]]
