"""Functions that have no result of no elements, such as maxima."""

import math
from collections.abc import Sequence

from ..errors import AxisSizeError, describe, message
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
    """Check that a function that has no result of no elements has some, or an initial value.

    Raises:
        AxisSizeError: if a dimension that it removes has size zero.
    """
    is_least = options.get("ord") == -math.inf  # a norm that is a minimum
    if not (function in _WITHOUT_IDENTITY or is_least) or options.get("initial") is not None:
        return
    empty = [names[at] for at in removed if shape[at] == 0]
    if empty:
        problem = f"there is no {function} of no elements: axis {empty[0]!r} has size 0"
        hint = None
        if "arg" not in function and not is_least:
            hint = "give a value to start from: initial=..."
        raise AxisSizeError(
            message(function, problem, f"array has: {describe(names, shape)}", hint=hint)
        )
