"""Internal. The text in which a file keeps the axes of its arrays.

It is short and strict, since it is in the metadata of safetensors files, which other programs read and write.
"""

import json
from collections.abc import Callable, Mapping

from .axes import StoredAxes, StoredAxis


def axes_text(axes: StoredAxes, shape: tuple[int, ...]) -> str:
    """Format the axes of each dimension, such as `heads=2 * head_dim=4, embed=8`."""
    return ", ".join(map(_dim_text, axes, shape)) or "no axes"


def _dim_text(dim: tuple[StoredAxis, ...] | None, size: int) -> str:
    names = [] if dim is None else [f"{axis.name}={axis.size}" for axis in dim]
    return str(size) if dim is None else " * ".join(names) or "1"


def encode(axes: Mapping[str, StoredAxes]) -> str:
    """Write the axes of arrays as JSON: an object for each dimension, in which sizes of flipped axes are negative."""
    # Without spaces, as the header of the file.
    listed = {key: [_encode_dim(dim) for dim in dims] for key, dims in axes.items()}
    return json.dumps(listed, separators=(",", ":"))


def _encode_dim(dim: tuple[StoredAxis, ...] | None) -> dict[str, int] | None:
    if dim is None:
        return None
    return {axis.name: -axis.size if axis.flipped else axis.size for axis in dim}


def decode(
    text: str, parse: Callable[[str], dict[str, list[dict[str, int] | None]]]
) -> dict[str, StoredAxes]:
    """Read the axes of arrays.

    Raises:
        AttributeError, TypeError, ValueError: if they cannot be read.
    """
    return {key: tuple(map(_decode_dim, dims)) for key, dims in parse(text).items()}


def _decode_dim(dim: dict[str, int] | None) -> tuple[StoredAxis, ...] | None:
    if dim is None:
        return None
    for size in dim.values():
        if type(size) is not int:  # True is an int, too
            raise TypeError
    return tuple(StoredAxis(name, abs(size), size < 0) for name, size in dim.items())
