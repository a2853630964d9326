"""What `named_jit` gives ahead of a call: the stages of JAX, called with the arguments of the function.

JAX is given lists of arrays and gives back a list of arrays, so that its own stages could only be called with these.
"""

from collections.abc import Callable
from typing import Any

import jax

from ..errors import ArgumentError, message

__all__ = ["Compiled", "Lowered", "Traced"]


class _Stage:
    """A stage of JAX in all but its steps: what is not set here, and what its methods need, is read from it.

    Args:
        stage: the stage of JAX.
        calling: makes, of a function that takes the lists of arrays, one that takes the arguments.
    """

    def __init__(self, stage: Any, calling: Callable[[Any], Callable[..., Any]]) -> None:
        self._stage = stage
        self._calling = calling

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_stage"), name)


class Compiled(_Stage, jax.stages.Compiled):
    """A compiled function; it takes arguments of the structure and with the static data that it was lowered for."""

    def __init__(self, stage: jax.stages.Compiled, calling: Callable[[Any], Callable[..., Any]]) -> None:
        super().__init__(stage, calling)
        self._called = calling(stage)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._called(*args, **kwargs)


class Lowered(_Stage, jax.stages.Lowered):
    """A lowered function, ready to be compiled."""

    def compile(self, *args: Any, **options: Any) -> Compiled:
        """Compile; the options are those of `jax.stages.Lowered.compile`."""
        return Compiled(self._stage.compile(*args, **options), self._calling)


class Traced(_Stage, jax.stages.Traced):
    """A traced function, ready to be lowered."""

    def lower(self, *, lowering_platforms: tuple[str, ...] | None = None, **others: Any) -> Lowered:
        """Lower, as `jax.stages.Traced.lower` does.

        Raises:
            ArgumentError: for other options, such as those that `jax.export` has for itself: it would take the lists of
                arrays for the arguments and the result.
        """
        if others:
            problem = f"a traced function is lowered without the option {next(iter(others))!r}"
            hint = "if this is jax.export, give it a jit around the function: jax.export.export(jax.jit(f))"
            raise ArgumentError(message("named_jit", problem, "options: lowering_platforms", hint=hint))
        return Lowered(self._stage.lower(lowering_platforms=lowering_platforms), self._calling)
