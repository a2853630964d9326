"""Internal. Reports of numbers that are wrong only while a program runs, such as indices out of range.

Inside of `axonym.debug.checks`, programs are traced with calls back to Python, which look at the numbers; elsewhere,
nothing is added to them. An error in such a call would leave the other devices of a mesh waiting until the process is
aborted. So the block collects reports, and raises an error at its end.
"""

from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from ..errors import message


class Report:
    """The findings of the programs that were traced for this report; each finding once, in order.

    Reports share no programs: the report is part of the key under which JAX caches compiled programs.
    """

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, problem: str) -> None:
        """Add a finding."""
        self._found.setdefault(problem)

    def take(self) -> list[str]:
        """Return the findings once all programs have ended, and forget them."""
        # Programs run asynchronously: their calls back may still be under way.
        jax.effects_barrier()
        found = list(self._found)
        self._found.clear()
        return found


# A context of JAX, not a `Feature`: programs that were traced with callbacks must not run outside of the block.
_current = jax.make_user_context(default_value=None)


def checking(report: Report) -> AbstractContextManager[Any]:
    """Make a report current."""
    context: AbstractContextManager[object] = _current(report)
    return context


def current_report() -> Report | None:
    """Return the current report; None if nothing is checked."""
    report: Report | None = _current.value
    return report


def expect(
    function: str, what: str, numbers: object, least: object, most: object, *lines: str, room: str
) -> None:
    """Report the first number outside a range that includes both ends; do nothing if nothing is checked.

    Args:
        function: what the user called.
        what: what the numbers are, such as "index".
        numbers: integers, traced or not.
        least: the smallest that is right.
        most: the largest.
        lines: facts for the message.
        room: what the numbers are to fit, such as "pos=8".
    """
    report = current_report()
    if report is None:
        return

    def look(numbers: object) -> None:
        numbers = np.asarray(numbers)
        # The first one is enough: a table of wrong ids would fill the screen.
        for number in numbers[(numbers < least) | (numbers > most)][:1].tolist():
            report.add(message(function, f"{what} {number} is out of range for {room}", *lines))

    jax.debug.callback(look, numbers)
