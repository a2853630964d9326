"""Internal. Static Python numbers that change from call to call: each new value compiles another program.

`named_jit` calls this for each new program, to warn of a step counter that compiles in each step.
"""

import warnings
from collections.abc import Hashable, Sequence
from typing import Any

from ..errors import message

_MOST = 4  # Programs that differ in one number alone: a loop over a few settings is meant, a count of steps is not.


class ChangingNumbers:
    """The past values of the static numbers of a function; calls that compile nothing do not use it."""

    def __init__(self) -> None:
        self._values: dict[Hashable, list[int | float]] = {}
        self._warned = False

    def note(
        self, name: str, rest: Hashable, statics: tuple[Any, ...], names: Sequence[str]
    ) -> None:
        """Note the static values of a new program, and warn at the first number that has had several.

        Args:
            name: what the function is called.
            rest: what else programs differ in.
            statics: positions, kinds and values of the leaves that are not arrays.
            names: those of all leaves.
        """
        for place in statics:
            at, _, value = place
            if type(value) not in (int, float) or self._warned:
                continue
            # Programs that also differ in something else would be compiled anyway.
            key = (rest, at, *(other for other in statics if other is not place))
            known = self._values.setdefault(key, [])
            known.append(value)
            if len(known) > _MOST:
                self._warned = True
                shown = ", ".join(map(repr, known))
                problem = f"{name} is compiled for each value of {names[at]}, and was so {len(known)} times"
                hint = f"a Python number is static; an array is not: pass jnp.asarray({names[at]})"
                # The level shows the line that called `NamedJit.__call__`.
                warnings.warn(
                    message("named_jit", problem, f"its values: {shown}", hint=hint), stacklevel=4
                )
