"""Internal. The equations of a jaxpr: the layouts of their arrays, their operands, and their operations.

All modules of this room call it. Only this module knows how JAX stores equations; it must not know names or layers.
"""

import functools
import math
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import jax

from ...engine import Entry, Layout, find_auto_axes, find_kernel_call, only, without
from ..shared.convolutions import Sliding, count_meetings
from ..shared.dtypes import XLA_NAMES, find_precision, find_real, pack_bytes
from ..shared.events import write_uncounted
from .compilers import Compiler

# JAX publishes no types for these.
Program: TypeAlias = Any
Equation: TypeAlias = Any
Variable: TypeAlias = Any
Used: TypeAlias = tuple[bool, ...] | None

P = ParamSpec("P")
Result = TypeVar("Result")

# These change the form, the dtype or the layout of an array, but not its content.
PASSING = ("transpose", "convert_element_type", "reshape", "squeeze", "reshard", "copy")


class Value(NamedTuple):
    """An array of a traced function.

    Attributes:
        shape: its dimensions; inside of a `shard_map`, the dimensions of one device's shard.
        dtype: its dtype.
        itemsize: bytes of one element.
        entries: the mesh axes of each dimension.
        partial: the mesh axes along which devices have parts of a sum.
        is_on_host: whether it is in the memory of the host.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    entries: tuple[Entry, ...]
    partial: Entry = ()
    is_on_host: bool = False


def remember(find: Callable[P, Result]) -> Callable[P, Result]:
    """Remember what a function finds in each program, as long as the program is alive.

    Args:
        find: a function of a program and of values with a hash. Its result must not depend on layouts, since a template
            changes them, and must not refer to the program.
    """
    known: weakref.WeakKeyDictionary[Program, dict[Hashable, Result]]
    known = weakref.WeakKeyDictionary()

    @functools.wraps(find)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        program, *rest = args
        own, key = known.setdefault(program, {}), (*rest, *kwargs.items())
        if key not in own:
            own[key] = find(*args, **kwargs)
        return own[key]

    return call


def count_shards(entry: Entry, mesh: Mapping[str, int]) -> int:
    """Return the number of parts into which mesh axes split a dimension."""
    return math.prod(mesh[axis] for axis in entry)


def divide_shape(
    shape: Sequence[int], entries: Sequence[Entry], mesh: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the dimensions of one device's shard of an array; uneven shards are rounded up."""
    # Most dimensions are not split.
    return tuple(
        -(-size // count_shards(entry, mesh)) if entry else size
        for size, entry in zip(shape, entries, strict=True)
    )


def count_bytes(value: Value, mesh: Mapping[str, int]) -> int:
    """Return the bytes of one device's shard of an array."""
    elements = math.prod(divide_shape(value.shape, value.entries, mesh))
    return pack_bytes(elements * value.itemsize, value.dtype)


def abbreviate(dtype: str) -> str:
    """Return the name of a dtype in compiled programs, such as `f32`."""
    return XLA_NAMES.get(dtype, dtype)


def is_literal(variable: Variable) -> bool:
    """Return whether an operand is a literal."""
    # The class of literals is private to JAX.
    return hasattr(variable, "val")


def is_wider(one: Variable, other: Variable) -> bool:
    """Return whether the elements of an array have more bytes than those of another one."""
    return bool(one.aval.dtype.itemsize > other.aval.dtype.itemsize)


def find_layout(variable: Variable, guess: Sequence[Entry] = ()) -> Value:
    """Return an array with the layout of its type, completed by a guess.

    Args:
        variable: the array in the program.
        guess: mesh axes of its dimensions; mesh axes that are Explicit in its type are ignored.
    """
    aval = variable.aval
    # Tokens and keys of random numbers have no shape or no dtype with a size.
    shape = tuple(getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", "")
    sharding = getattr(aval, "sharding", None)
    typed, partial, free = _read_sharding(sharding, len(shape))
    entries = typed
    # Explicit mesh axes leave nothing to guess.
    if guess and free != ():
        entries = _complete(typed, guess, free)
    itemsize = int(getattr(dtype, "itemsize", 0))
    is_on_host = getattr(aval, "memory_space", None) == jax.memory.Space.Host
    return Value(shape, _write_dtype(dtype), itemsize, entries, partial, is_on_host)


def is_auto(variable: Variable) -> bool:
    """Return whether the compiler decides on the layout of an array, whose type has mesh axes that are Auto."""
    sharding = getattr(variable.aval, "sharding", None)
    return sharding is not None and bool(find_auto_axes(sharding.mesh))


# NumPy writes a dtype anew each time.
_write_dtype = functools.cache(str)


@functools.lru_cache(maxsize=1024)
def _read_sharding(sharding: Any, rank: int) -> tuple[tuple[Entry, ...], Entry, Entry | None]:
    """Return the mesh axes in a type: of each dimension, of partial sums, and the ones that may be guessed."""
    # Without a mesh in the type, all mesh axes are free to be guessed.
    if sharding is None or sharding.mesh.empty:
        return ((),) * rank, (), None
    # A mesh axis of one device divides nothing.
    several = {axis for axis, size in sharding.mesh.shape.items() if size > 1}
    typed = tuple(only(entry, several) for entry in Layout.from_spec(sharding.spec, rank))
    partial = only(tuple(getattr(sharding.spec, "unreduced", ())), several)
    return typed, partial, only(sharding.mesh.axis_names, find_auto_axes(sharding.mesh))


def _complete(
    typed: Sequence[Entry], guess: Sequence[Entry], free: Entry | None
) -> tuple[Entry, ...]:
    """Return the mesh axes of each dimension in a type, completed by the free mesh axes of a guess."""
    entries: list[Entry] = []
    used: set[str] = set()
    for i, entry in enumerate(typed):
        own = entry
        if i < len(guess):
            more = guess[i] if free is None else only(guess[i], free)
            # A mesh axis divides one dimension of an array, and the first one wins.
            own = (*entry, *without(more, (*entry, *used)))
        entries.append(own)
        used.update(own)
    return tuple(entries)


# Each pass asks for the bodies of each equation several times.
@functools.lru_cache(maxsize=2**13)
def list_bodies(equation: Equation) -> Sequence[Program]:
    """Return the programs that an equation runs, except programs that only combine two elements."""
    name = equation.primitive.name
    # Kernels count by their own estimate.
    if name.startswith(("scatter", "reduce")) or name == "pallas_call" or is_kernel_call(equation):
        return []
    found: list[Program] = []
    for value in equation.params.values():
        several = value if isinstance(value, tuple | list) else (value,)
        for part in several:
            # A closed jaxpr wraps an open one.
            program = getattr(part, "jaxpr", part)
            if hasattr(program, "eqns"):
                found.append(program)
    if name == "while":
        # The condition computes a few numbers, so only the body counts.
        body = equation.params["body_jaxpr"]
        return [getattr(body, "jaxpr", body)]
    return found


def select_branch(
    equation: Equation, bodies: Sequence[Program], platform: str
) -> Sequence[Program]:
    """Return the branch for a platform, if the platform decides; otherwise all programs that an equation runs."""
    # None stands for all other platforms, and comes last.
    for names, body in zip(equation.params.get("branches_platforms") or (), bodies, strict=False):
        if names is None or platform in names:
            return [body]
    return bodies


def is_copy(equation: Equation) -> bool:
    """Return whether an equation copies an array between device memory and host memory."""
    if equation.primitive.name != "device_put":
        return False
    pairs = zip(equation.invars, equation.outvars, strict=True)
    return any(find_layout(one).is_on_host != find_layout(other).is_on_host for one, other in pairs)


def is_kernel_call(equation: Equation) -> bool:
    """Return whether an equation calls a kernel whose name gives its operations."""
    if equation.primitive.name != "jit":
        return False
    return find_kernel_call(equation.params.get("name", "")) is not None


def count_unstacked(outside: Sequence[Variable], inside: Sequence[Variable]) -> int:
    """Return the number of arrays that a scan does not slice or stack; they come first."""
    # A slice has one dimension less than the array outside.
    count = 0
    for variable, own in zip(outside, inside, strict=True):
        count += len(variable.aval.shape) == len(own.aval.shape)
    return count


def write_source(equation: Equation, prefix: str) -> str:
    """Return the name of an operation as it appears in a compiled program.

    Args:
        equation: the equation.
        prefix: the name of the equation whose program has this one.
    """
    own = _write_own(equation)
    return f"{prefix}/{own}" if prefix else own


@functools.lru_cache(maxsize=2**13)
def _write_own(equation: Equation) -> str:
    own = str(equation.source_info.name_stack)
    name = str(equation.primitive.name)
    if name == "jit":
        # Compiled programs name the function of a call, and not its primitive.
        name = f"jit({equation.params.get('name', '')})"
    return f"{own}/{name}" if own else name


@remember
def find_needed(program: Program, used: Used = None) -> list[Equation]:
    """Return the equations whose results are used: compilers drop the others.

    Args:
        program: the program.
        used: which of its results are used; by default all.
    """
    live = {id(variable) for i, variable in enumerate(program.outvars) if used is None or used[i]}
    found: list[Equation] = []
    # Readers come after what they read, so one pass from the end finds all.
    for equation in reversed(program.eqns):
        if has_effect(equation) or live.intersection(map(id, equation.outvars)):
            used_here = [id(variable) in live for variable in equation.outvars]
            found.append(equation)
            live.update(map(id, _find_operands(equation, used_here)))
    found.reverse()
    return found


def _find_operands(equation: Equation, used: Sequence[bool]) -> Sequence[Variable]:
    """Return the operands that the used results of an equation depend on; for a call, these may be a subset."""
    operands: Sequence[Variable] = equation.invars
    inner = list_bodies(equation)
    # With several bodies, or other arguments than operands, all operands count.
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
    """Return whether an equation must run even if its results are not used."""
    # Collectives in a `shard_map` have an effect that only names mesh axes. JAX has no public name for it.
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in equation.effects)


def find_used_inside(equation: Equation, body: Program, used: Sequence[bool]) -> Used:
    """Return which results of a body are used, also by the next iteration of a loop; None for all.

    Args:
        equation: what runs the body.
        body: the body.
        used: which results of the equation are used.
    """
    name = equation.primitive.name
    if name == "while" or len(body.outvars) != len(used):
        return None
    found = list(used)
    if name != "scan":
        return tuple(found)
    carried = count_unstacked(equation.outvars, body.outvars)
    # Constants come before the carried arguments.
    first = count_unstacked(equation.invars, body.invars) - carried
    is_settled = False
    # One more used result may make another one used, so this goes on until nothing changes.
    while not is_settled:
        is_settled = True
        read = {id(each) for one in find_needed(body, tuple(found)) for each in one.invars}
        for i, variable in enumerate(body.outvars):
            if found[i]:
                read.add(id(variable))
        for i in range(carried):
            if not found[i] and id(body.invars[first + i]) in read:
                found[i] = True
                is_settled = False
    return tuple(found)


@remember
def find_needed_readers(program: Program, used: Used = None) -> dict[int, list[Equation]]:
    """Return the equations that read each array of a program, without those whose results are not used."""
    return find_readers(find_needed(program, used))


def find_used(program: Program, used: Used = None) -> Callable[[Variable], bool]:
    """Return a function that says whether something reads an array of a program, or uses it as a result."""
    # An unused result keeps no equation alive, and so no collective.
    found = {id(variable) for i, variable in enumerate(program.outvars) if used is None or used[i]}
    found |= find_needed_readers(program, used).keys()
    return lambda variable: id(variable) in found


def find_readers(equations: Sequence[Equation]) -> dict[int, list[Equation]]:
    """Return the equations that read each array, by its id."""
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
    """Return the operations of a product, a convolution or a kernel on one device; zero for other equations.

    Args:
        equation: the equation.
        inputs: its operands with their layouts.
        mesh: sizes of the mesh axes.
        compiler: the compiler, whose redundant operations count, too; without it, there are none.
    """
    name = equation.primitive.name
    if name == "dot_general":
        return _count_real_products(equation, compiler) * _count_product(equation, inputs, mesh)
    if name in ("ragged_dot", "ragged_dot_general"):
        return _count_ragged(equation, inputs, mesh, compiler)
    if name == "conv_general_dilated":
        own = _count_real_products(equation, compiler)
        return own * _count_convolution(equation, inputs, mesh)
    if name == "pallas_call":
        return find_estimate(equation, "flops")
    if is_kernel_call(equation):
        return _count_kernel(equation, mesh)
    return 0.0


def find_estimate(equation: Equation, name: str) -> float:
    """Return the `flops` or the `bytes_accessed` that a kernel of Pallas says; zero if it says nothing."""
    return float(getattr(equation.params.get("cost_estimate"), name, 0) or 0)


def write_unknown(equation: Equation) -> str:
    """Return a note about an equation whose operations are not counted; an empty text for others."""
    name = equation.primitive.name
    if name == "pallas_call":
        return "kernels that do not say what they compute count as nothing"
    return write_uncounted(name)


def _count_kernel(equation: Equation, mesh: Mapping[str, int]) -> float:
    """Return the operations of a kernel by its name, for one device's shards of the arrays."""
    one = find_kernel_call(equation.params["name"])
    result = find_layout(equation.outvars[0])
    if one is None or not one.elements:
        return 0.0
    # A vmap around the call makes it one call on all arrays, with the same name.
    return one.flops * math.prod(divide_shape(result.shape, result.entries, mesh)) / one.elements


def find_rate_dtype(equation: Equation, inputs: Sequence[Value]) -> str:
    """Return what sets the rate of a product or a kernel: the dtype of its wider operand, and a float32 precision."""
    if equation.primitive.name in ("pallas_call", "jit"):
        # Numbers that say what to do, such as a table of blocks, may stand in front of the arrays.
        floating = [one for one in inputs if "float" in one.dtype]
        return (floating or inputs)[0].dtype
    dtype = find_real(max(inputs[:2], key=lambda one: one.itemsize).dtype)
    return find_precision(dtype, str(equation.params.get("precision")))


def _count_real_products(equation: Equation, compiler: Compiler | None) -> int:
    """Return the number of products of real numbers that a product of complex ones is; 1 for real numbers."""
    if "complex" not in find_layout(equation.outvars[0]).dtype:
        return 1
    # JAX writes a convolution of complex numbers as three, and the compiler for TPU also other products.
    is_expanded = equation.primitive.name != "dot_general"
    return 3 if is_expanded or (compiler is not None and compiler.platform == "tpu") else 4


def _count_product(equation: Equation, inputs: Sequence[Value], mesh: Mapping[str, int]) -> float:
    labels = label_dimensions(equation, inputs)
    # Mesh axes that divide an operand are taken; the type of the result may ask for more.
    used = {axis for label in labels.values() for axis in label.entry}
    asked = list(find_layout(equation.outvars[0]).entries)
    total = 2.0
    for label in labels.values():
        entry = label.entry
        if not label.is_summed:
            # A device computes only the part of the result that it keeps.
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


def label_dimensions(equation: Equation, inputs: Sequence[Value]) -> dict[tuple[str, int], Label]:
    """Return the dimensions of a product: first the dimensions of the result, in order, then the summed ones."""
    left, right = inputs[:2]
    (left_over, right_over), (left_shared, right_shared) = equation.params["dimension_numbers"]
    pairs: list[tuple[tuple[str, int], int, Entry, bool]] = []

    # One operand is sent if the two differ, and the left one decides.
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
    # Each mesh axis divides one dimension of the product: the one that it divides in the type of the result.
    asked = find_layout(equation.outvars[0]).entries
    owners = {
        axis: key
        for (key, _, entry, _), wanted in zip(pairs, asked, strict=True)
        for axis in only(entry, wanted)
    }
    for i, j in zip(left_over, right_over, strict=True):
        pairs.append((("over", i), left.shape[i], join_entries(i, j), True))

    found: dict[tuple[str, int], Label] = {}
    for key, size, entry, is_summed in pairs:
        own = tuple(axis for axis in entry if owners.setdefault(axis, key) == key)
        found[key] = Label(size, own, is_summed)
    return found


def _count_ragged(
    equation: Equation,
    inputs: Sequence[Value],
    mesh: Mapping[str, int],
    compiler: Compiler | None,
) -> float:
    """Count each row once, with the matrix of its group, or with the matrices of all groups."""
    sums = False
    numbers = equation.params.get("ragged_dot_dimension_numbers")
    # Dimensions of the right operand that are not its columns: groups, and the summed dimension.
    shared: tuple[int, ...] = (0, 1)
    if numbers is not None:
        (_, over), (_, alike) = numbers.dot_dimension_numbers
        shared = (*over, *alike, *numbers.rhs_group_dimensions)
        (summed, _), _ = numbers.dot_dimension_numbers
        # A gradient of the matrices sums over the rows of each group.
        sums = bool(set(summed) & set(numbers.lhs_ragged_dimensions))
    left, right = inputs[:2]
    total = 2.0 * math.prod(divide_shape(left.shape, left.entries, mesh))
    for i, size in enumerate(divide_shape(right.shape, right.entries, mesh)):
        if i not in shared:
            total *= size
    if compiler is not None and (compiler.masks or (sums and compiler.masks_sums)):
        # The operand with the sizes of the groups says how many there are.
        total *= inputs[2].shape[-1]
    return total


def _count_convolution(
    equation: Equation, inputs: Sequence[Value], mesh: Mapping[str, int]
) -> float:
    """Count the operations of a convolution; padding, and the gaps between elements of the image, do not count."""
    image, kernel = inputs[:2]
    params = equation.params
    numbers = params["dimension_numbers"]
    result = find_layout(equation.outvars[0])
    (rows, channels, *image_places), (features, summed, *kernel_places), out = numbers
    over = kernel.entries[summed]
    # With groups of features, the kernel has fewer channels than the image.
    if kernel.shape[summed] == image.shape[channels]:
        over = over or image.entries[channels]
    # A device computes its own rows and features, even if the result is gathered later.
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
        sizes.append((pairs, kernel.entries[along] or entries[at] or image.entries[own]))
    total = 2.0
    used: set[str] = set()
    for size, entry in (*sizes, (kernel.shape[summed], over)):
        total *= -(-size // count_shards(without(entry, used), mesh))
        used.update(entry)
    return total


def iterate_arrays(variables: Sequence[Variable]) -> Iterator[Variable]:
    """Yield the arrays that an equation reads, without literals."""
    for variable in variables:
        if not is_literal(variable):
            yield variable
