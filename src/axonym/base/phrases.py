"""Internal. Texts that several errors share, each written once."""

from collections.abc import Iterable

from ..errors import AxisNotFoundError, message, suggestion

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


def given_with_size(name: str, size: object, but: str) -> str:
    """Write that an `Axis` has another size than what it stands for."""
    return f"axis {name!r} was given with size {size}, but {but}"
