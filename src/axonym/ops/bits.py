"""Bits packed into bytes along an axis, as in `numpy.packbits`."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ..axis import AxisSelector
from ..engine import along
from ..errors import ArgumentError, OperandError, message

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["packbits", "unpackbits"]


def packbits(x: "NamedArray", axis: AxisSelector, *, bitorder: str = "big") -> "NamedArray":
    """Pack every eight elements along `axis` into the bits of a byte; the last byte is padded with zeros.

    Args:
        x: booleans, or integers, of which all but zero count as true; axes {axis, ...}.
        axis: the axis to pack; its size is divided by eight and rounded up.
        bitorder: whether the first element is the highest bit ("big") or the lowest ("little").

    Returns:
        Bytes (uint8) with the axes of `x`.

    Raises:
        ArgumentError: if `bitorder` is unknown.
        OperandError: if `x` holds neither booleans nor integers.

    Examples:
        >>> axn.packbits(axn.named([1, 0, 0, 0, 0, 0, 0, 1, 1], "bit"), "bit").tolist()
        [129, 128]
    """
    return along.along_with(_packbits, x, axis, bitorder=_check_bitorder("packbits", bitorder))


def unpackbits(
    x: "NamedArray", axis: AxisSelector, *, count: int | None = None, bitorder: str = "big"
) -> "NamedArray":
    """Unpack each byte along `axis` to eight zeros or ones: the inverse of `packbits`.

    Args:
        x: bytes (uint8); axes {axis, ...}.
        axis: the axis to unpack, whose size becomes `count`.
        count: how many bits to keep, None for all; if negative, how many to drop.
        bitorder: as for `packbits`.

    Returns:
        Zeros and ones (uint8) with the axes of `x`.

    Raises:
        ArgumentError: if `bitorder` is unknown.
        OperandError: if `x` does not hold bytes.

    Examples:
        >>> axn.unpackbits(axn.named(jnp.uint8([5]), "bit"), "bit").tolist()
        [0, 0, 0, 0, 0, 1, 0, 1]
    """
    return along.along_with(
        _unpackbits, x, axis, count=count, bitorder=_check_bitorder("unpackbits", bitorder)
    )


def _check_bitorder(function: str, bitorder: str) -> str:
    if bitorder not in ("big", "little"):
        raise ArgumentError(
            message(function, f"unknown bitorder {bitorder!r}", hint="orders: big, little")
        )
    return bitorder


def _packbits(array: jax.Array, axis: int, bitorder: str) -> jax.Array:
    if not (array.dtype == bool or jnp.issubdtype(array.dtype, jnp.integer)):
        raise OperandError(message("packbits", f"needs booleans or integers, got {array.dtype}"))
    return jnp.packbits(array, axis, bitorder)


def _unpackbits(array: jax.Array, axis: int, count: int | None, bitorder: str) -> jax.Array:
    if array.dtype != jnp.uint8:
        raise OperandError(
            message("unpackbits", f"needs uint8, got {array.dtype}", hint='write x.astype("uint8")')
        )
    if not array.size:  # JAX cannot tell the length of an axis without elements
        bits = 8 * array.shape[axis]
        shape = list(array.shape)
        shape[axis] = bits if count is None else count if count >= 0 else max(bits + count, 0)
        return jnp.zeros(shape, jnp.uint8)
    return jnp.unpackbits(array, axis, count, bitorder)
