"""Internal. Questions that every operation asks of its operands, and the errors if they do not fit.

All kinds of operations call this. It looks at names, sizes and types; it moves nothing. Most checks run while a kernel
is traced, so that a repeated operation pays nothing for them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from ..axis import Axis, AxisSelection, Pairs, names_in, selection
from ..base.calls import IN_ORDER, find_order
from ..base.kinds import Payload, type_text
from ..base.phrases import missing_axis, verb, write_size_conflict
from ..errors import AxisError, AxisSizeError, OperandError, describe, explained, message
from ..layout.scope import current_scope
from ..names import plans
from ..names.plans import Names
from ..shape import Shape
from .core import Core, facts, shape_of, sizes_of

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")

NAME_IT = "name it first: axn.named(array, (...)); plain operands must be scalars"

APART = "take it apart first: y, *rest = ..."

NUMBERS = {bool, int, float, complex}

_PLAIN = (int, float, complex, np.generic, np.ndarray, jax.Array)


def title(fn: Function | str) -> str:
    """Return the name of a function in errors."""
    if isinstance(fn, str):
        return fn
    if isinstance(fn, partial):
        return title(fn.func)
    # A private function, such as `_sort`, does the work of the public one.
    return fn.__name__.lstrip("_")


def run_plan(
    function: Function | str,
    operands: Sequence[object],
    plan: Callable[P, R],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Call a plan; its errors get the name of the function and the axes of the operands."""
    try:
        return plan(*args, **kwargs)
    except AxisError as flaw:
        # The error is not chained: the first one has the same text without the facts.
        raise with_operands(flaw, function, operands) from None


def with_operands(
    flaw: AxisError, function: Function | str, operands: Sequence[object]
) -> AxisError:
    """Add to the error of a plan what was called, and the axes of the operands."""
    if flaw.function is not None:  # not about names alone: its text has all this already
        return flaw
    return explained(flaw, title(function), *_list_facts(operands))


def _list_facts(operands: Sequence[object]) -> list[str]:
    named = [x for x in operands if isinstance(x, Core)]
    if len(named) == 1:
        return [f"array has: {facts(named[0])}"]
    return facts_by_number(operands)


def facts_by_number(operands: Sequence[object]) -> list[str]:
    """Describe the axes of those operands that have names, for an error."""
    numbered = enumerate(operands, start=1)
    return [f"operand {i} has: {facts(x)}" for i, x in numbered if isinstance(x, Core)]


def check_sizes(
    function: str, operands: Sequence[Names], arrays: Sequence[Payload]
) -> dict[str, int]:
    """Check that each name has one size in all operands, and return the sizes; a plain operand has no names.

    Raises:
        AxisSizeError: if a name has two.
    """
    pairs = zip(arrays, operands, strict=True)
    shapes = [find_shape(function, array, names) for array, names in pairs]
    return one_size(function, operands, shapes)


def find_shape(function: str, array: Payload, names: Names) -> tuple[int, ...]:
    """Return the shape of an operand; one without names may be a scalar of Python."""
    return shape_of(function, array, names) if names else jnp.shape(array)


def one_size(
    function: str, operands: Sequence[Names], shapes: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """Do `check_sizes` for shapes."""
    # Operands may have their axes in any order.
    sizes: dict[str, int] = {}
    for names, shape in zip(operands, shapes, strict=True):
        for name, size in sizes_of(names, shape).items():
            if sizes.setdefault(name, size) != size:
                described = map(describe, operands, shapes)
                lines = [f"operand {i} has: {text}" for i, text in enumerate(described, start=1)]
                problem = f"axis {name!r} has two sizes: {sizes[name]} and {size}"
                hint = cure_of_sizes(name, sizes[name], size)
                raise AxisSizeError(message(function, problem, *lines, hint=hint))
    return sizes


def anonymous_shape(
    function: str, operands: Sequence[Names], shapes: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """Broadcast the anonymous dimensions of all operands, as `jax.numpy` does.

    Raises:
        AxisSizeError: if they have different sizes, neither of which is 1.
    """
    pairs = zip(operands, shapes, strict=True)
    # Most operands have equal ones, or only names: JAX is asked only about different shapes.
    found = list(dict.fromkeys(shape[: len(shape) - len(names)] for names, shape in pairs))
    if len(found) == 1:
        return found[0]
    try:
        return jnp.broadcast_shapes(*found)
    except ValueError:
        described = map(describe, operands, shapes)
        lines = [f"operand {i} has: {text}" for i, text in enumerate(described, start=1)]
        hint = "name them: x.tag(...)"
        problem = "the anonymous dimensions do not broadcast"
        raise AxisSizeError(message(function, problem, *lines, hint=hint)) from None


def cure_of_sizes(name: str, first: int, second: int) -> str | None:
    """Return a hint for an axis of two sizes, by the likely reason: a block, a size of 1, a shift, or two axes."""
    # Symbolic sizes have no order, by which to say which is the longer one.
    if is_symbolic_dim(first) or is_symbolic_dim(second):
        return None
    small, large = sorted((first, second))
    scope = current_scope()
    if scope is not None and small and not large % small and (name, large) in scope.sizes:
        blocks = f"inside of a shard_map arrays are blocks, with {name}={small}"
        return f"{blocks}: make both of this size, or pass both in"
    if small == 1:
        return f'an axis of size 1 is not stretched: drop it, x["{name}", 0]'
    if large - small == 1:
        cuts = f'x["{name}", :-1] or x["{name}", 1:]'
        return f"if one is shifted by a place, cut the longer one: {cuts}"
    same, other = f'x["{name}", :{small}]', f'x.rename({{"{name}": ...}})'
    return f"if they are the same axis, cut the longer one, {same}; if not, rename one: {other}"


def check_given(
    function: str, given: Pairs, names: Names, shape: tuple[int, ...], what: str = ""
) -> None:
    """Check the sizes of axes that were given as `Axis`; errors call the array `what`."""
    sizes = sizes_of(names, shape)
    for name, size in given:
        if size is not None and sizes[name] != size:
            has = f"the {what} {verb(what)}" if what else "has"
            but = f"{has} size {sizes[name]}"
            problem = write_size_conflict(name, size, but)
            raise AxisSizeError(
                message(function, problem, write_axes(describe(names, shape), what))
            )


def require_size(
    function: str, axis: tuple[str, int | None], size: int, but: str, *operands: Core
) -> None:
    """Check the size of a new axis that was given as `Axis`; `but` describes the real one, with `{}` for its size."""
    name, given = axis
    if given is not None and given != size:
        problem = write_size_conflict(name, given, but.format(size))
        raise AxisSizeError(message(function, problem, *_list_facts(operands)))


def write_axes(axes: str, what: str = "") -> str:
    """Write the line of an error about the axes of an array."""
    what = what or "array"
    return f"{what} {verb(what)}: {axes}"


def require(
    function: str,
    x: object,
    axes: AxisSelection,
    what: str = "",
    role: str = "",
    needs: str = "",
    hint: str | None = None,
) -> tuple[Axis, ...]:
    """Look axes up in an array; everything that takes axes by name calls this.

    Args:
        function: what was called.
        x: the array.
        axes: the axes.
        what: what the array is, such as `input` or `keys`; without it, errors speak of the array.
        role: what the axes are, behind the name of a missing one, such as `, the positions`.
        needs: a line for the error about a missing axis, on the purpose of all of them.
        hint: the hint about a missing axis; by default, the closest name.

    Raises:
        AxisNotFoundError: if one is missing.
        AxisSizeError: if one that was given as `Axis` has another size.
        OperandError: if `x` is not a NamedArray.
    """
    if not isinstance(x, Core):
        raise no_names(function, x)
    given = selection(axes, function)
    wanted = names_in(given)
    (array,), names = x.node
    shape = shape_of(function, array, names)
    for name in wanted:
        if name not in names:
            lines = filter(None, (write_axes(facts(x), what), needs))
            # Axes that the call names already are no suggestion for a misspelled one.
            known = plans.without(names, wanted)
            raise missing_axis(function, name, known, *lines, what=what, role=role, hint=hint)
    check_given(function, given, names, shape, what)
    sizes = sizes_of(names, shape)
    return tuple(Axis(name, sizes[name]) for name in wanted)


def plain(function: str, operand: Payload) -> Any:
    """Accept a scalar or an array as an operand without names.

    Raises:
        OperandError: for anything else.
    """
    if is_plain(operand):
        return operand
    problem = f"cannot combine a NamedArray and {type_text(operand)}"
    hint = "operands are NamedArrays, scalars or 0-d arrays"
    if holds_named(operand):
        # A layer with a state returns a pair: its first part is meant.
        problem = f"cannot combine a NamedArray and a {type(operand).__name__} of {len(operand)}"
        hint = APART
    elif isinstance(operand, list | tuple):
        hint = NAME_IT
    raise OperandError(message(function, problem, hint=hint))


def is_plain(operand: Payload) -> bool:
    """Return whether an object is a scalar or an array without names, or a symbolic size."""
    # The set comes first: `isinstance` of `jax.Array` asks a metaclass, which runs in Python.
    return operand.__class__ in NUMBERS or isinstance(operand, _PLAIN) or is_symbolic_dim(operand)


def holds_named(operand: Payload) -> bool:
    """Return whether an object is several arrays, such as the pair that a layer with a state returns."""
    return isinstance(operand, list | tuple) and any(isinstance(part, Core) for part in operand)


def refuse_names(function: str, array: Payload) -> None:
    """Raise if the array to name already has names."""
    if isinstance(array, Core):
        problem = "the array has names already"
        hint = "rename its axes with x.rename, name its anonymous dimensions with x.tag, or pass x.array"
        raise OperandError(message(function, problem, f"array has: {facts(array)}", hint=hint))


def refuse_words(function: str, array: Payload) -> None:
    """Raise for names in the place of the array."""
    words = (array,) if isinstance(array, str) else array
    if isinstance(words, tuple) and words and all(isinstance(one, str) for one in words):
        problem = "names are given in the place of the array"
        order = f"the array comes first: {function}(array, axes)"
        raise OperandError(message(function, problem, hint=order))


def no_names(function: str, x: Payload, *wanted: str) -> OperandError:
    """Build the error for a first operand without names; `wanted` are names that it should have."""
    problem = f"expected a NamedArray, got {type_text(x)}"
    # The shape of a NamedArray is ours, so that a wrapper that passes attributes on shows what it holds.
    if isinstance(getattr(x, "shape", None), Shape):  # such as a variable of Flax around one
        taken = f"take the NamedArray out of the {type(x).__name__} first"
        return OperandError(message(function, problem, hint=taken))
    shape = tuple(x.shape) if hasattr(x, "shape") else None
    lines = [] if shape is None else [f"its shape: {shape}"]
    named = _example_names(shape, wanted)
    hint: str | None = f"name its dimensions first: axn.named(array, {named})"
    if holds_named(x):
        hint = APART
    elif isinstance(x, str | Axis | int) and (
        order := find_order(x, lambda one: isinstance(one, Core))
    ):
        lines, hint = [*order], IN_ORDER
    elif isinstance(x, list | tuple) and any(isinstance(one, Axis) for one in x):
        hint = "these are axes; axn.zeros(axes) is an array"
    elif shape is None and not isinstance(x, list | tuple | int | float):
        hint = getattr(type(x), "how_to_read", None)
    return OperandError(message(function, problem, *lines, hint=hint))


def _example_names(shape: tuple[int, ...] | None, wanted: Sequence[str]) -> str:
    """Write names for an array: usual names for the first dimensions, then the wanted names."""
    usual = ("batch", "pos", "heads" if wanted else "embed")
    # The example has as many names as the array has dimensions, so that it can be pasted.
    free = 2 if shape is None else len(shape) - len(wanted)
    names = (*usual[: max(free, 0)], *(f"axis{i}" for i in range(len(usual), free)), *wanted)
    # Most arrays of two dimensions have no positions.
    if len(names) == 2 and not wanted:
        names = ("batch", "embed")
    shown: object = names[0] if len(names) == 1 else names
    return repr(shown).replace("'", '"')


def make_axis_key(axis: AxisSelection | None, fn: Function) -> str | Pairs | None:
    """Convert an axis argument to a cache key, in few steps in the usual cases.

    Names keep their form, since `"x"` and `Axis("x", 3)` differ in what they check.
    """
    if axis is None or isinstance(axis, str):
        return axis
    if isinstance(axis, Axis):
        return ((axis.name, axis.size),)
    if axis.__class__ is not tuple:
        return selection(axis, title(fn))
    # To read several axes takes a quarter of an operation.
    try:
        return _selected[axis]
    except (KeyError, TypeError):  # of an entry without a hash, which is no axis
        return plans.keep(_selected, axis, selection(axis, title(fn)))


# A plain dict, since a cached function would call Python once more.
_selected: dict[Any, Pairs] = {}


def resolve_axis(axis: Any, function: str, names: Names) -> Pairs:
    """Normalise the axis argument in the key of a kernel; None means all axes."""
    if axis is None:
        return tuple((name, None) for name in names)
    if isinstance(axis, tuple):
        return axis
    return selection(axis, function)
