"""Internal. The equations of a jaxpr: how their arrays are laid out, what they read, and what they compute.

All modules of this room call it. It is the one place that knows how JAX stores equations; it must not know names or
layers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...engine import Entry, Layout, find_auto_axes, only, without
from ..shared.convolutions import Sliding, count_meetings
from .compilers import Compiler

# JAX publishes no types of these.
Program: TypeAlias = Any
Equation: TypeAlias = Any
Variable: TypeAlias = Any

# What changes the form of an array, its type or its layout, but not what it is.
PASSING = ("transpose", "convert_element_type", "reshape", "squeeze", "reshard", "copy")
# What XLA calls dtypes.
_SHORT = {
    "bfloat16": "bf16",
    "bool": "pred",
    "complex64": "c64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2",
    "int16": "s16",
    "int32": "s32",
    "int64": "s64",
    "int8": "s8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "uint8": "u8",
}


class Value(NamedTuple):
    """An array of a traced function.

    Attributes:
        shape: its dimensions; those along which a `shard_map` divides it are those of one device.
        dtype: its dtype.
        itemsize: bytes of one element.
        entries: the mesh axes of each dimension.
        partial: the mesh axes along which devices have parts of a sum.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    entries: tuple[Entry, ...]
    partial: Entry = ()


def count_shards(entry: Entry, mesh: Mapping[str, int]) -> int:
    """Return into how many parts mesh axes split a dimension."""
    return math.prod(mesh[axis] for axis in entry)


def divide_shape(
    shape: Sequence[int], entries: Sequence[Entry], mesh: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the dimensions of what one device holds of an array; uneven parts are rounded up."""
    return tuple(
        -(-size // count_shards(entry, mesh)) for size, entry in zip(shape, entries, strict=True)
    )


def count_bytes(value: Value, mesh: Mapping[str, int]) -> int:
    """Return the bytes that one device holds of an array."""
    return math.prod(divide_shape(value.shape, value.entries, mesh)) * value.itemsize


def abbreviate(dtype: str) -> str:
    """Return what compiled programs call a dtype."""
    return _SHORT.get(dtype, dtype)


def is_literal(variable: Variable) -> bool:
    """Return whether what an equation reads is a number in the program."""
    return hasattr(variable, "val")


def find_layout(variable: Variable, guess: Sequence[Entry] = ()) -> Value:
    """Return how an array is laid out: by its type where that tells, otherwise as guessed.

    Args:
        variable: the array in the program.
        guess: mesh axes of its dimensions, of which those that are Auto in its type count.
    """
    aval = variable.aval
    shape = tuple(getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", "")
    sharding = getattr(aval, "sharding", None)
    typed: list[Entry] = [()] * len(shape)
    free: list[str] | None = None
    partial: Entry = ()
    if sharding is not None and not sharding.mesh.empty:
        free = list(only(sharding.mesh.axis_names, find_auto_axes(sharding.mesh)))
        typed = list(Layout.from_spec(sharding.spec, len(shape)))
        partial = tuple(getattr(sharding.spec, "unreduced", ()))
    entries: list[Entry] = []
    used: set[str] = set()
    for i, entry in enumerate(typed):
        own = entry
        if i < len(guess):
            more = guess[i]
            if free is not None:
                more = only(more, free)
            own = (*entry, *without(more, (*entry, *used)))
        entries.append(own)
        used.update(own)
    itemsize = int(getattr(dtype, "itemsize", 0))
    return Value(shape, str(dtype), itemsize, tuple(entries), partial)


def list_bodies(equation: Equation) -> list[Program]:
    """Return the programs that an equation runs, without those that only say how two elements combine."""
    name = equation.primitive.name
    if name.startswith(("scatter", "reduce")) or name == "pallas_call":
        return []
    found: list[Program] = []
    for value in equation.params.values():
        several = value if isinstance(value, tuple | list) else (value,)
        for part in several:
            program = getattr(part, "jaxpr", part)
            if hasattr(program, "eqns"):
                found.append(program)
    if name == "while":
        # The condition is a few numbers.
        body = equation.params["body_jaxpr"]
        return [getattr(body, "jaxpr", body)]
    return found


def count_unstacked(outside: Sequence[Variable], inside: Sequence[Variable]) -> int:
    """Return how many arrays a scan does not slice or stack; they come first."""
    count = 0
    for variable, own in zip(outside, inside, strict=True):
        count += len(variable.aval.shape) == len(own.aval.shape)
    return count


def write_source(equation: Equation, prefix: str) -> str:
    """Return the name of an operation, as a compiled program has it.

    Args:
        equation: the equation.
        prefix: the name of the equation whose program has this one.
    """
    own = str(equation.source_info.name_stack)
    name = str(equation.primitive.name)
    if name == "jit":
        name = f"jit({equation.params.get('name', '')})"
    return "/".join(part for part in (prefix, own, name) if part)


def find_needed(program: Program, used: Sequence[bool] | None = None) -> list[Equation]:
    """Return the equations whose results somebody uses.

    Args:
        program: the program.
        used: which of its results somebody uses; by default all.
    """
    live = {id(variable) for i, variable in enumerate(program.outvars) if used is None or used[i]}
    found: list[Equation] = []
    for equation in reversed(program.eqns):
        if has_effect(equation) or live.intersection(map(id, equation.outvars)):
            used_here = [id(variable) in live for variable in equation.outvars]
            found.append(equation)
            live.update(map(id, _find_operands(equation, used_here)))
    found.reverse()
    return found


def _find_operands(equation: Equation, used: Sequence[bool]) -> Sequence[Variable]:
    """Return what an equation reads for the results that somebody uses: of a call, perhaps not all that it takes."""
    operands: Sequence[Variable] = equation.invars
    inner = list_bodies(equation)
    if all(used) or len(inner) != 1 or len(inner[0].invars) != len(operands):
        return operands
    (body,) = inner
    inside = find_used_inside(equation, body, used)
    if inside is None:
        return operands
    read = {id(each) for one in find_needed(body, inside) for each in one.invars}
    for variable, is_used in zip(body.outvars, inside, strict=True):
        if is_used:
            read.add(id(variable))
    return [operand for operand, own in zip(operands, body.invars, strict=True) if id(own) in read]


def has_effect(equation: Equation) -> bool:
    """Return whether an equation does something beside its results; that devices take part in it is none of that."""
    # JAX has no public name for this effect of collectives.
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in equation.effects)


def find_used_inside(equation: Equation, body: Program, used: Sequence[bool]) -> list[bool] | None:
    """Return which results of a body somebody uses: of a loop, also those that its next turn uses; None for all.

    Args:
        equation: what runs the body.
        body: the body.
        used: which results of the equation somebody uses.
    """
    name = equation.primitive.name
    if name == "while" or len(body.outvars) != len(used):
        return None
    found = list(used)
    if name != "scan":
        return found
    carried = count_unstacked(equation.outvars, body.outvars)
    first = count_unstacked(equation.invars, body.invars) - carried
    is_settled = False
    while not is_settled:
        is_settled = True
        read = {id(each) for one in find_needed(body, found) for each in one.invars}
        for i, variable in enumerate(body.outvars):
            if found[i]:
                read.add(id(variable))
        for i in range(carried):
            if not found[i] and id(body.invars[first + i]) in read:
                found[i] = True
                is_settled = False
    return found


def find_readers(equations: Sequence[Equation]) -> dict[int, list[Equation]]:
    """Return who reads each array, by its id."""
    found: dict[int, list[Equation]] = {}
    for equation in equations:
        for variable in equation.invars:
            if not is_literal(variable):
                found.setdefault(id(variable), []).append(equation)
    return found


def count_flops(
    equation: Equation,
    inputs: Sequence[Value],
    mesh: Mapping[str, int],
    compiler: Compiler | None = None,
) -> float:
    """Return the operations of a product or a convolution on one device; all else counts as none.

    Args:
        equation: the equation.
        inputs: how its operands are laid out.
        mesh: sizes of the mesh axes.
        compiler: what it computes in vain; without it, nothing.
    """
    name = equation.primitive.name
    if name == "dot_general":
        return _count_product(equation, inputs, mesh)
    if name in ("ragged_dot", "ragged_dot_general"):
        return _count_ragged(equation, inputs, mesh, compiler)
    if name == "conv_general_dilated":
        return _count_convolution(equation, inputs, mesh)
    if name == "pallas_call":
        estimate = equation.params.get("cost_estimate")
        return float(getattr(estimate, "flops", 0) or 0)
    return 0.0


def _count_product(equation: Equation, inputs: Sequence[Value], mesh: Mapping[str, int]) -> float:
    labels = label_dimensions(inputs[0], inputs[1], equation.params["dimension_numbers"])
    used = {axis for label in labels.values() for axis in label.entry}
    asked = list(find_layout(equation.outvars[0]).entries)
    total = 2.0
    for label in labels.values():
        entry = label.entry
        if not label.is_summed:
            # A result that is asked for in smaller parts is computed so.
            entry = (*entry, *without(asked.pop(0), used))
        total *= -(-label.size // count_shards(entry, mesh))
    return total


class Label(NamedTuple):
    """A dimension of a product.

    Attributes:
        size: how long it is.
        entry: its mesh axes.
        is_summed: whether the product sums over it.
    """

    size: int
    entry: Entry
    is_summed: bool


def label_dimensions(left: Value, right: Value, numbers: Any) -> dict[tuple[str, int], Label]:
    """Return the dimensions of a product: those of the result in its order, then those that are summed over."""
    (left_over, right_over), (left_shared, right_shared) = numbers
    pairs: list[tuple[tuple[str, int], int, Entry, bool]] = []

    def join_entries(i: int, j: int) -> Entry:
        return left.entries[i] or right.entries[j]

    for i, j in zip(left_shared, right_shared, strict=True):
        pairs.append((("shared", i), left.shape[i], join_entries(i, j), False))
    for i, size in enumerate(left.shape):
        if i not in left_over and i not in left_shared:
            pairs.append((("left", i), size, left.entries[i], False))
    for j, size in enumerate(right.shape):
        if j not in right_over and j not in right_shared:
            pairs.append((("right", j), size, right.entries[j], False))
    for i, j in zip(left_over, right_over, strict=True):
        pairs.append((("over", i), left.shape[i], join_entries(i, j), True))

    found: dict[tuple[str, int], Label] = {}
    used: set[str] = set()
    for key, size, entry, is_summed in pairs:
        own = without(entry, used)
        used.update(own)
        found[key] = Label(size, own, is_summed)
    return found


def _count_ragged(
    equation: Equation,
    inputs: Sequence[Value],
    mesh: Mapping[str, int],
    compiler: Compiler | None,
) -> float:
    """Count each row once, with the matrix of its group, or with those of all groups."""
    sums = False
    numbers = equation.params.get("ragged_dot_dimension_numbers")
    shared: tuple[int, ...] = (0, 1)
    if numbers is not None:
        (_, over), (_, alike) = numbers.dot_dimension_numbers
        shared = (*over, *alike, *numbers.rhs_group_dimensions)
        (summed, _), _ = numbers.dot_dimension_numbers
        sums = bool(set(summed) & set(numbers.lhs_ragged_dimensions))
    left, right = inputs[:2]
    total = 2.0 * math.prod(divide_shape(left.shape, left.entries, mesh))
    for i, size in enumerate(divide_shape(right.shape, right.entries, mesh)):
        if i not in shared:
            total *= size
    if compiler is not None and (compiler.masks or (sums and compiler.masks_sums)):
        total *= inputs[2].shape[-1]
    return total


def _count_convolution(
    equation: Equation, inputs: Sequence[Value], mesh: Mapping[str, int]
) -> float:
    """Count the operations of a convolution; elements of the padding, and between those of an image, do not count."""
    image, kernel = inputs[:2]
    params = equation.params
    numbers = params["dimension_numbers"]
    result = find_layout(equation.outvars[0])
    (rows, channels, *image_places), (features, summed, *kernel_places), out = numbers
    over = kernel.entries[summed]
    if kernel.shape[summed] == image.shape[channels]:
        over = over or image.entries[channels]
    entries = list(result.entries)
    entries[out[0]] = entries[out[0]] or image.entries[rows]
    entries[out[1]] = entries[out[1]] or kernel.entries[features]
    sizes = [(result.shape[at], entries[at]) for at in out[:2]]
    for i, (own, along, at) in enumerate(zip(image_places, kernel_places, out[2:], strict=True)):
        sliding = Sliding(
            params["window_strides"][i],
            params["rhs_dilation"][i],
            params["lhs_dilation"][i],
            params["padding"][i][0],
        )
        pairs = count_meetings(image.shape[own], kernel.shape[along], result.shape[at], sliding)
        sizes.append((pairs, (*entries[at], *kernel.entries[along])))
    total = 2.0
    used: set[str] = set()
    for size, entry in (*sizes, (kernel.shape[summed], over)):
        total *= -(-size // count_shards(without(entry, used), mesh))
        used.update(entry)
    return total


def iterate_arrays(variables: Sequence[Variable]) -> Iterator[Variable]:
    """Yield the arrays of what an equation reads, without numbers of the program."""
    for variable in variables:
        if not is_literal(variable):
            yield variable
