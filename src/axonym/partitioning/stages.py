"""Internal. The ahead-of-time stages of `named_jit`: stages of JAX, called with the arguments of the function.

JAX's own stages take lists of arrays and return a list of arrays. Reports and costs read programs from these stages.
"""

from collections.abc import Callable
from typing import Any

import jax

from ..errors import ArgumentError, message


class _Stage:
    """A wrapper of a stage of JAX, which provides all attributes that are not set here.

    Args:
        stage: the stage of JAX.
        calling: turns a function of lists of arrays into one of the arguments.
    """

    def __init__(self, stage: Any, calling: Callable[[Any], Callable[..., Any]]) -> None:
        self._stage = stage
        self._calling = calling

    def __getattr__(self, name: str) -> Any:
        # `self._stage` would call this again for ever, while a copy of a stage does not have it yet.
        return getattr(object.__getattribute__(self, "_stage"), name)


class Compiled(_Stage, jax.stages.Compiled):
    """A compiled function, for arguments with the structure and the static values that it was lowered for."""

    def __init__(
        self, stage: jax.stages.Compiled, calling: Callable[[Any], Callable[..., Any]]
    ) -> None:
        super().__init__(stage, calling)
        self._called = calling(stage)

    def __call__(self, *args: object, **kwargs: object) -> Any:
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
            ArgumentError: for other options, such as internal ones of `jax.export`, which would see lists of arrays
                instead of arguments and result.
        """
        if others:
            problem = f"a traced function cannot be lowered with the option {next(iter(others))!r}"
            hint = "for jax.export, wrap the function in jax.jit: jax.export.export(jax.jit(f))"
            raise ArgumentError(
                message("named_jit", problem, "options: lowering_platforms", hint=hint)
            )
        return Lowered(self._stage.lower(lowering_platforms=lowering_platforms), self._calling)
