"""Discrete Fourier transforms along named axes.

A transformed axis keeps its place and its name, but not always its size. `axis` is

* one axis, or several: the transform is over all of them. The size of an `Axis` is checked: it is the size of the input
or, for `irfft` and `hfft`, whose input is a half, of the result;
* a mapping from axes to lengths, to which the input is cropped or padded with zeros (for `irfft` and `hfft`, it is the
  size of the result), or to None for the present size;
* None for the only axis of an array.

Over several axes, `rfft` halves the last one given, and `irfft` over the same axes is its inverse.

`norm` determines which transform is divided by the number of elements n: the inverse one ("backward", the default),
the forward one ("forward"), or both by the square root of n ("ortho").
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..axis import Axis, AxisSelection, AxisSelector, axis_name, names_in, selection, selector
from ..base.calls import explain_calls
from ..base.kinds import type_text
from ..base.phrases import write_size_conflict
from ..engine import auto, checks, reduction
from ..engine.batched import apply_batched
from ..engine.core import Core, axes_of, facts, wrap
from ..engine.operands import one_of
from ..errors import ArgumentError, AxisError, AxisSizeError, OperandError, message
from ..faults.gathered_transforms import transform_blocks
from ..faults.transform_layouts import must_gather_before

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["fft", "fftshift", "hfft", "ifft", "ifftshift", "ihfft", "irfft", "rfft"]

FftAxis: TypeAlias = (
    AxisSelector | Sequence[AxisSelector] | Mapping[AxisSelector, int | Axis | None] | None
)
Norm: TypeAlias = Literal["backward", "ortho", "forward"] | None
Sizes = tuple[int | None, ...]


def fft(a: "NamedArray", axis: FftAxis = None, norm: Norm = None) -> "NamedArray":
    """Return the Fourier transform over one or more axes.

    Args:
        a: axes {axis, ...}.
        axis: one axis, several, a mapping from axes to lengths, or None for the only axis.
        norm: which transform is divided by the number of elements: "backward" (None), "forward" or "ortho".

    Returns:
        Complex numbers with the axes of `a`.

    Raises:
        AxisError: without an axis, unless `a` has just one.
        ArgumentError: if `norm` is unknown, or a length is not positive.

    Examples:
        >>> x = axn.ones((axn.Axis("batch", 2), axn.Axis("time", 4)))
        >>> axn.fft(x, "time").axes
        (Axis(name='batch', size=2), Axis(name='time', size=4))
        >>> axn.fft(x, {"batch": None, "time": 8}).axes
        (Axis(name='batch', size=2), Axis(name='time', size=8))
    """
    return _transform(_fft, a, axis, norm)


def fftshift(x: "NamedArray", axes: AxisSelection | None = None) -> "NamedArray":
    """Shift frequency zero from the start to the middle of each given axis.

    Args:
        x: axes {axes, ...}.
        axes: one axis, several, or None for all.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.fftshift(axn.fftfreq(axn.Axis("frequency", 4)), "frequency").tolist()
        [-0.5, -0.25, 0.0, 0.25]
    """
    return reduction.normalization(_fftshift, x, axes)


def hfft(a: "NamedArray", axis: FftAxis = None, norm: Norm = None) -> "NamedArray":
    """Return the real spectrum of a signal with Hermitian symmetry, of which `a` is the first half.

    Args:
        a: axes {axis, ...}.
        axis: one axis, a mapping from it to the length of the result, or None for the only axis. An axis of size n
            becomes one of size 2 (n - 1) by default.
        norm: as in `fft`.

    Returns:
        Real numbers with the axes of `a`.

    Examples:
        >>> axn.hfft(axn.named([1.0, 0.0, 0.0], "time"), "time").tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    return _transform(_hfft, a, axis, norm, one=True)


def ifft(a: "NamedArray", axis: FftAxis = None, norm: Norm = None) -> "NamedArray":
    """Return the inverse of `fft`.

    Args:
        a: axes {axis, ...}.
        axis: as in `fft`.
        norm: as in `fft`.

    Returns:
        Complex numbers with the axes of `a`.

    Examples:
        >>> axn.ifft(axn.named([4.0, 0.0, 0.0, 0.0], "frequency")).real.tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    return _transform(_ifft, a, axis, norm)


def ifftshift(x: "NamedArray", axes: AxisSelection | None = None) -> "NamedArray":
    """Return the inverse of `fftshift`, for odd sizes too.

    Args:
        x: axes {axes, ...}.
        axes: one axis, several, or None for all.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.ifftshift(axn.named([-1, 0, 1], "frequency"), "frequency").tolist()
        [0, 1, -1]
    """
    return reduction.normalization(_ifftshift, x, axes)


def ihfft(a: "NamedArray", axis: FftAxis = None, norm: Norm = None) -> "NamedArray":
    """Return the inverse of `hfft`: an axis of size n becomes one of size n // 2 + 1.

    Args:
        a: real numbers; axes {axis, ...}.
        axis: one axis, a mapping from it to a length, or None for the only axis.
        norm: as in `fft`.

    Returns:
        Complex numbers with the axes of `a`.

    Examples:
        >>> axn.ihfft(axn.named([4.0, 0.0, 0.0, 0.0], "time"), "time").real.tolist()
        [1.0, 1.0, 1.0]
    """
    return _transform(_ihfft, a, axis, norm, one=True)


def irfft(a: "NamedArray", axis: FftAxis = None, norm: Norm = None) -> "NamedArray":
    """Return the inverse of `rfft`, which is real.

    Args:
        a: axes {axis, ...}.
        axis: as in `fft`, but a length is that of the result. The last axis given, of size n, becomes one of size
            2 (n - 1) by default; an odd size must be given.
        norm: as in `fft`.

    Returns:
        Real numbers with the axes of `a`.

    Raises:
        AxisSizeError: if the last one is an `Axis` of which `a` is not the half.

    Examples:
        >>> Time = axn.Axis("time", 5)
        >>> axn.irfft(axn.rfft(axn.arange(Time), "time"), Time).axes
        (Axis(name='time', size=5),)
    """
    return _transform(_irfft, a, axis, norm)


def rfft(a: "NamedArray", axis: FftAxis = None, norm: Norm = None) -> "NamedArray":
    """Return the Fourier transform of real numbers, without the redundant half of the result.

    Args:
        a: real numbers; axes {axis, ...}.
        axis: as in `fft`; the last axis given, of size n, becomes one of size n // 2 + 1.
        norm: as in `fft`.

    Returns:
        Complex numbers with the axes of `a`.

    Examples:
        >>> axn.rfft(axn.ones((axn.Axis("batch", 2), axn.Axis("time", 8))), "time").axes
        (Axis(name='batch', size=2), Axis(name='time', size=5))
    """
    return _transform(_rfft, a, axis, norm)


def _transform(
    fn: checks.Function, a: "NamedArray", axis: FftAxis, norm: Norm, *, one: bool = False
) -> "NamedArray":
    """Apply a transform over the axes of an axis argument, in their order."""
    function = checks.title(fn)
    if not isinstance(a, Core):
        raise checks.no_names(function, a)
    one_of(function, "norm", norm, (None, "backward", "ortho", "forward"))
    core, sizes = _read_axes(function, a, axis, of_half=fn in (_irfft, _hfft))
    names = names_in(selection(core, function))
    if not names or (one and len(names) != 1):
        needed = "one axis" if one else "an axis"
        problem = f"needs {needed}, got {', '.join(names) or 'none'}"
        raise AxisError(message(function, problem, f"array has: {facts(a)}"))
    whole = must_gather_before(sizes)

    def transform(array: jax.Array) -> jax.Array:
        own = [wrap(a, array, a.names)]
        result = apply_batched(
            fn, own, [core], names, in_place=True, whole=whole, sizes=sizes, norm=norm
        )
        return result.array

    return wrap(a, transform_blocks(transform, a.array, a.names, names), a.names)


def _read_axes(
    function: str, a: Core, axis: FftAxis, of_half: bool
) -> tuple[tuple[AxisSelector, ...], Sizes]:
    """Parse an axis argument into axes and given lengths; with `of_half`, the last axis is a half of the result."""
    if axis is None:
        if len(a.names) != 1:
            problem = "without an axis, the array must have just one"
            hint = f'say which: {function}(x, "{a.names[-1]}")' if a.names else None
            raise AxisError(message(function, problem, f"array has: {facts(a)}", hint=hint))
        return a.names, (None,)
    sizes: list[int | None]
    if isinstance(axis, Mapping):
        core = tuple(axis)
        sizes = [_check_length(function, selector(key, function)[0], axis[key]) for key in core]
    else:
        pairs = selection(axis, function)
        core = names_in(pairs)
        sizes = [None] * len(pairs)
        for at, (name, size) in enumerate(pairs, start=1):
            # The size of an `Axis` is checked; only for a half it also decides between an even and an odd result.
            is_half = of_half and at == len(pairs)
            _check_axis_size(function, a, name, size, is_half)
            if is_half:
                sizes[-1] = size

    for chosen, size in zip(core, sizes, strict=True):
        if size is not None and size < 1:
            problem = f"the length along {axis_name(chosen)!r} must be positive, got {size}"
            raise ArgumentError(message(function, problem))
        is_half = of_half and chosen == core[-1]
        if size is None and axis_name(chosen) in a.names:
            _check_own_length(function, a, axis_name(chosen), is_half)
    return core, tuple(sizes)


def _check_axis_size(function: str, a: Core, name: str, size: int | None, is_half: bool) -> None:
    """Check the size of an `Axis`; it is not a length to crop or pad to."""
    if size is None or name not in a.names:
        return
    have = next(axis.size for axis in axes_of(function, a) if axis.name == name)
    half = size // 2 + 1
    if have == (half if is_half else size):
        return

    problem = write_size_conflict(name, size, f"has size {have}")
    if is_half:
        result = f"half of the result {name}={size} has {half}"
        problem = f"axis {name!r} has size {have}, but {result}"
    hint = f'to crop or pad to this length, write {{"{name}": {size}}}'
    raise AxisSizeError(message(function, problem, f"array has: {facts(a)}", hint=hint))


def _check_own_length(function: str, a: Core, name: str, is_half: bool) -> None:
    """Check that the usual length of a transform is not zero."""
    have = next(axis.size for axis in axes_of(function, a) if axis.name == name)
    length = have
    if is_half:
        length = 2 * (have - 1)
    if have == 0 or length == 0:
        problem = f"axis {name!r} has size {have}, so the result would have no elements"
        hint = f'give its length: {{"{name}": 8}}'
        raise AxisSizeError(message(function, problem, f"array has: {facts(a)}", hint=hint))


def _check_length(function: str, name: str, size: object) -> int | None:
    """Check a length in a mapping."""
    if size is None:
        return None
    if isinstance(size, int | np.integer):
        return int(size)
    if not isinstance(size, Axis):
        problem = f"a length must be an int, an Axis or None, not {type_text(size)}"
        raise OperandError(message(function, problem))
    if size.name != name:
        problem = f"the length along {name!r} is given as another axis: {size.name!r}"
        hint = f'rename the result: .rename({{"{name}": "{size.name}"}})'
        raise AxisError(message(function, problem, hint=hint))
    return size.size


def _find_lengths(
    array: jax.Array, sizes: Sizes, last: int | None = None
) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Return the lengths of a transform, or None if all are the usual ones, and its dimensions, the last ones."""
    at = tuple(range(-len(sizes), 0))
    usual = list(array.shape[-len(sizes) :])
    if last is not None:
        usual[-1] = last

    lengths = [there if size is None else size for there, size in zip(usual, sizes, strict=True)]
    # Given lengths, `jax.numpy` crops and pads even to the present ones.
    return None if lengths == usual else tuple(lengths), at


def _fft(array: jax.Array, *, sizes: Sizes, norm: Norm) -> jax.Array:
    return jnp.fft.fftn(array, *_find_lengths(array, sizes), norm=norm)


def _ifft(array: jax.Array, *, sizes: Sizes, norm: Norm) -> jax.Array:
    return jnp.fft.ifftn(array, *_find_lengths(array, sizes), norm=norm)


def _rfft(array: jax.Array, *, sizes: Sizes, norm: Norm) -> jax.Array:
    return jnp.fft.rfftn(array, *_find_lengths(array, sizes), norm=norm)


def _irfft(array: jax.Array, *, sizes: Sizes, norm: Norm) -> jax.Array:
    return jnp.fft.irfftn(array, *_find_lengths(array, sizes, 2 * (array.shape[-1] - 1)), norm=norm)


def _hfft(array: jax.Array, *, sizes: Sizes, norm: Norm) -> jax.Array:
    return jnp.fft.hfft(array, sizes[0], norm=norm)


def _ihfft(array: jax.Array, *, sizes: Sizes, norm: Norm) -> jax.Array:
    return jnp.fft.ihfft(array, sizes[0], norm=norm)


def _fftshift(array: jax.Array, axis: tuple[int, ...]) -> jax.Array:
    # As in `roll`, the compiler decides what devices send, on Explicit axes too.
    return auto.move_elements(partial(jnp.fft.fftshift, axes=axis), [array])


def _ifftshift(array: jax.Array, axis: tuple[int, ...]) -> jax.Array:
    return auto.move_elements(partial(jnp.fft.ifftshift, axes=axis), [array])


explain_calls(globals(), __all__)
