"""Internal. Errors of functions that have no result along an empty axis, such as maxima."""

import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

from ..errors import AxisSizeError, AxonymError, describe, message
from ..names.plans import Names

_WITHOUT_IDENTITY = {
    "argmax",
    "argmin",
    "max",
    "min",
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmin",
    "ptp",
}


def check_nonempty(
    function: str,
    names: Names,
    shape: tuple[int, ...],
    removed: Sequence[int],
    options: dict[str, object],
) -> None:
    """Check that a reduction without a result for zero elements has elements, or an initial value.

    Raises:
        AxisSizeError: if a dimension that it removes has size zero.
    """
    is_least = options.get("ord") == -math.inf  # a norm that is a minimum
    if not (function in _WITHOUT_IDENTITY or is_least) or options.get("initial") is not None:
        return
    empty = [names[at] for at in removed if shape[at] == 0]
    if empty:
        problem = f"there is no {function} of no elements: axis {empty[0]!r} has size 0"
        # Only functions that return an element take an initial one.
        has_initial = "arg" not in function and not is_least
        hint = "give a value to start from: initial=..." if has_initial else None
        raise AxisSizeError(
            message(function, problem, f"array has: {describe(names, shape)}", hint=hint)
        )


@contextmanager
def explain_empty(
    function: str, known: Iterable[tuple[Names, tuple[int, ...], Names]]
) -> Generator[None]:
    """Raise AxisSizeError in place of JAX's own error if an axis that a function works on is empty.

    Args:
        function: the name of the function.
        known: for each operand, its names, its shape, and the names of the axes that the function works on.
    """
    try:
        yield
    except AxonymError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as flaw:
        for names, shape, core in known:
            sizes = dict(zip(reversed(names), reversed(shape), strict=False))
            empty = [name for name in core if sizes.get(name) == 0]
            if empty:
                problem = f"there is no result of no elements: axis {empty[0]!r} has size 0"
                lines = (f"array has: {describe(names, shape)}", f"JAX says: {flaw}")
                raise AxisSizeError(message(function, problem, *lines)) from flaw
        raise
