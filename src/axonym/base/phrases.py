"""Internal. Texts that several errors share, each written once."""

from collections.abc import Iterable
from types import NoneType

from ..errors import AxisNotFoundError, OperandError, describe, message, suggestion
from .callers import array_at_work

_SEVERAL = {"keys", "logits", "values"}


def missing_axis(
    function: str | None,
    name: str,
    known: Iterable[str],
    *facts: str,
    what: str = "",
    role: str = "",
    hint: str | None = None,
) -> AxisNotFoundError:
    """Build the error for an axis that is not there.

    Args:
        function: what was called; None in a plan, whose caller adds it.
        name: the axis.
        known: the names that may be meant.
        facts: what is there.
        what: what lacks it, such as `input` or `keys`.
        role: what the axis is, behind its name, such as `, the positions`.
        hint: what would work; by default, the closest name.
    """
    problem = f"no axis named {name!r}{role}"
    if what:
        problem = f"the {what} {verb(what, 'lacks', 'lack')} axis {name!r}{role}"
    near = hint or suggestion(name, known)
    if function is None:
        return AxisNotFoundError(problem, near, facts)
    return AxisNotFoundError(message(function, problem, *facts, hint=near))


def verb(what: str, of_one: str = "has", of_several: str = "have") -> str:
    """Return the verb that goes with an operand, such as `input` or `keys`."""
    return of_several if what in _SEVERAL else of_one


def write_size_conflict(name: str, size: object, but: str) -> str:
    """Write that the size of an `Axis` differs from that of the axis in the array."""
    return f"axis {name!r} was given with size {size}, but {but}"


def refuse_entry(entry: object, function: str, need_sizes: bool) -> OperandError:
    """Build the error for something that is no axis: a size, a position, or an argument in a wrong place."""
    from .calls import IN_ORDER, find_order, is_axes, is_axis
    from .kinds import type_text  # imports JAX, which plans of names do without

    if isinstance(entry, int) and not isinstance(entry, bool):
        if need_sizes:
            hint = f'name it: Axis("name", {entry}), or {{"name": {entry}}}'
            problem, lines = f"{entry} is a size without a name", find_order(entry, is_axis)
            if lines:
                problem, hint = f"{entry} stands where axes go", IN_ORDER
            return OperandError(message(function, problem, *lines, hint=hint))
        # A selection does not know its array. The frame of the caller does, and an error may take its time.
        x = array_at_work()
        names = () if x is None else x.names
        is_there = -len(names) <= entry < len(names)
        example = 'write the name of an axis, such as "batch"'
        hint = f'write "{names[entry]}"' if is_there else example
        facts = (
            [] if x is None else [f"array has: {describe(names, getattr(x.array, 'shape', None))}"]
        )
        problem = f"{entry} is a position, but axes have names"
        return OperandError(message(function, problem, *facts, hint=hint))
    what = type_text(entry)
    text = what if " " in what else f"an object of type {what}"
    if what == "NamedArray":
        text = "a NamedArray"
    if isinstance(entry, float | NoneType):
        text = repr(entry)
    hint = 'an axis is written as Axis("batch", 32)' + ("" if need_sizes else ', or as "batch"')
    if what == "a PRNG key":
        hint = "the key is the first argument, or goes by its name: key=..."
    if what == "NamedArray" and function in ("max", "min"):
        hint = f"axn.{function}imum(x, y) compares the elements of two arrays"
    problem = f"{text} is neither an Axis nor the name of one"
    # An array or a function has its own place, so that its arguments may be exchanged.
    lines = find_order(entry, is_axes) if what in ("NamedArray", "function", "float") else ()
    hint = IN_ORDER if lines else hint
    return OperandError(message(function, problem, *lines, hint=hint))
