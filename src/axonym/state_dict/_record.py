"""The text in which a file keeps the axes of its arrays."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from .axes import StoredAxes, StoredAxis

__all__ = ["axes_text", "decoded", "encoded"]


def axes_text(axes: StoredAxes, shape: tuple[int, ...]) -> str:
    """Format the axes of each dimension, such as `heads=2 * head_dim=4, embed=8`."""
    dims = [
        str(size) if dim is None else " * ".join(f"{axis.name}={axis.size}" for axis in dim) or "1"
        for dim, size in zip(axes, shape, strict=True)
    ]
    return ", ".join(dims) or "no axes"


def encoded(axes: Mapping[str, StoredAxes]) -> str:
    """Write the axes of arrays as JSON: an object for each dimension, in which sizes of flipped axes are negative."""
    listed = {
        key: [
            None if dim is None else {one.name: -one.size if one.flipped else one.size for one in dim} for dim in dims
        ]
        for key, dims in axes.items()
    }
    return json.dumps(listed, separators=(",", ":"))


def decoded(text: str, parse: Callable[[str], Any]) -> dict[str, StoredAxes]:
    """Read the axes of arrays.

    Raises:
        AttributeError, TypeError, ValueError: if they cannot be read.
    """
    return {key: tuple(_dim(dim) for dim in dims) for key, dims in parse(text).items()}


def _dim(dim: Any) -> tuple[StoredAxis, ...] | None:
    if dim is None:
        return None
    for size in dim.values():
        if type(size) is not int:
            raise TypeError
    return tuple(StoredAxis(name, abs(size), size < 0) for name, size in dim.items())
