"""Sampled signals: windows of samples, and the frequencies of their transforms."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .array import NamedArray
from .axis import Axis, sized
from .base.calls import explain_calls
from .base.kinds import type_text
from .engine import checks
from .engine.core import Core
from .errors import OperandError, message
from .layout import constraints

__all__ = ["bartlett", "blackman", "fftfreq", "hamming", "hanning", "kaiser", "rfftfreq"]


def bartlett(axis: Axis) -> NamedArray:
    """Make a Bartlett window: a triangle that is zero at both ends.

    Args:
        axis: the axis of the window, with its size.

    Returns:
        A window with this axis, as `jnp.bartlett` of its size.

    Examples:
        >>> axn.bartlett(axn.Axis("time", 5)).round(2)
        NamedArray(float32[time=5])
        [0.  0.5 1.  0.5 0. ]
    """
    return _make_window(jnp.bartlett, axis)


def blackman(axis: Axis) -> NamedArray:
    """Make a Blackman window, the sum of a constant and two cosines.

    Args:
        axis: the axis of the window, with its size.

    Returns:
        A window with this axis, as `jnp.blackman` of its size.

    Examples:
        >>> axn.blackman(axn.Axis("time", 5)).round(2)
        NamedArray(float32[time=5])
        [-0.    0.34  1.    0.34 -0.  ]
    """
    return _make_window(jnp.blackman, axis)


def hamming(axis: Axis) -> NamedArray:
    """Make a Hamming window, a raised cosine that is above zero at both ends.

    Args:
        axis: the axis of the window, with its size.

    Returns:
        A window with this axis, as `jnp.hamming` of its size.

    Examples:
        >>> axn.hamming(axn.Axis("time", 3)).round(2)
        NamedArray(float32[time=3])
        [0.08 1.   0.08]
    """
    return _make_window(jnp.hamming, axis)


def hanning(axis: Axis) -> NamedArray:
    """Make a von Hann window, a raised cosine that is zero at both ends.

    Args:
        axis: the axis of the window, with its size.

    Returns:
        A window with this axis, as `jnp.hanning` of its size.

    Examples:
        >>> axn.hanning(axn.Axis("time", 5)).round(2)
        NamedArray(float32[time=5])
        [0.  0.5 1.  0.5 0. ]
    """
    return _make_window(jnp.hanning, axis)


def kaiser(axis: Axis, beta: ArrayLike) -> NamedArray:
    """Make a Kaiser window, from a Bessel function.

    Args:
        axis: the axis of the window, with its size.
        beta: the shape; the window is narrower for a larger one.

    Returns:
        A window with this axis, as `jnp.kaiser` of its size.

    Examples:
        >>> axn.kaiser(axn.Axis("time", 3), 2.0).round(2)
        NamedArray(float32[time=3])
        [0.44 1.   0.44]
    """
    if isinstance(beta, Core) or jnp.ndim(beta):
        raise OperandError(message("kaiser", f"beta must be a scalar, not {type_text(beta)}"))
    return _make_window(jnp.kaiser, axis, beta)


def _make_window(fn: Callable[..., jax.Array], axis: Axis, *arguments: ArrayLike) -> NamedArray:
    given = sized(axis, checks.title(fn))
    return _name(fn(given.size, *arguments), given)


def _name(array: jax.Array, axis: Axis) -> NamedArray:
    return NamedArray(constraints.shard_new(array, (axis.name,)), (axis.name,))


def fftfreq(axis: Axis, d: ArrayLike = 1.0, *, dtype: DTypeLike | None = None) -> NamedArray:
    """Return the frequencies of `fft` over an axis whose samples are `d` apart, in cycles per unit of `d`.

    Args:
        axis: the axis of the samples, with its size.
        d: the distance of neighbouring samples.
        dtype: by default JAX's float dtype.

    Returns:
        The frequencies over the same axis; the negative ones come last.

    Examples:
        >>> axn.fftfreq(axn.Axis("time", 4), 0.5).tolist()
        [0.0, 0.5, -1.0, -0.5]
    """
    samples = sized(axis, "fftfreq")
    return _name(jnp.fft.fftfreq(samples.size, d, dtype=dtype), samples)


def rfftfreq(axis: Axis, d: ArrayLike = 1.0, *, dtype: DTypeLike | None = None) -> NamedArray:
    """Return the frequencies of `rfft` over an axis whose samples are `d` apart, in cycles per unit of `d`.

    Args:
        axis: the axis of the samples, with its size n.
        d: the distance of neighbouring samples.
        dtype: by default JAX's float dtype.

    Returns:
        The frequencies over an axis of the same name, of size n // 2 + 1.

    Examples:
        >>> axn.rfftfreq(axn.Axis("time", 4), 0.5).axes
        (Axis(name='time', size=3),)
    """
    samples = sized(axis, "rfftfreq")
    return _name(jnp.fft.rfftfreq(samples.size, d, dtype=dtype), samples)


explain_calls(globals(), __all__)
