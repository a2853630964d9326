"""Module fields that name the axes of plain arrays."""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from axonym.errors import ArgumentError, message

__all__ = ["field"]


def field(
    *,
    converter: Callable[[Any], Any] | None = None,
    static: bool = False,
    axis_names: tuple[str, ...] | None = None,
    **kwargs: Any,
) -> Any:
    """Declare a field like `equinox.field`; `axis_names` are the axes of a plain array in it, for layouts."""
    if axis_names is not None:
        if static:
            raise ArgumentError(
                message("field", "a static field is not laid out and has no axis_names")
            )
        kwargs["metadata"] = {**kwargs.get("metadata", {}), "axis_names": tuple(axis_names)}
    if converter is not None:
        kwargs["converter"] = converter
    return eqx.field(static=static, **kwargs)
