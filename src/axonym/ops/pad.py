"""Padding."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from ..axis import Axis, AxisKey, AxisSelector, Pairs, names_in, selection, shown, sized
from ..base.calls import explain_calls
from ..base.kinds import type_text
from ..engine import auto, checks, kernels
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand, facts, shape_of, wrap
from ..engine.operands import payload, static_count
from ..engine.renaming import share_by_renaming
from ..errors import ArgumentError, AxisSizeError, OperandError, describe, message
from ..faults.shared_paddings import separate_padding
from ..names import plans
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["pad", "pad_left"]


_MODES = (
    *("constant", "edge", "empty", "linear_ramp", "maximum", "mean"),
    *("median", "minimum", "reflect", "symmetric", "wrap"),
)


def pad(
    x: "NamedArray",
    pad_width: Mapping[AxisKey, tuple[int, int] | int],
    *,
    mode: str = "constant",
    constant_values: Operand = 0,
    end_values: float = 0,
    stat_length: int | None = None,
    reflect_type: str = "even",
) -> "NamedArray":
    """Pad an array along axes, which keep their names.

    Args:
        x: axes {those of `pad_width`, ...}.
        pad_width: a mapping from axes to (before, after), the numbers of elements to add, or to one number for both.
        mode: as in `jax.numpy.pad`: "constant", "edge", "empty", "linear_ramp", "maximum", "mean", "median",
            "minimum", "reflect", "symmetric" or "wrap".
        constant_values: a scalar, for "constant"; it may be traced.
        end_values: the number at which a "linear_ramp" ends.
        stat_length: how many elements at each end "maximum", "mean", "median" and "minimum" are taken over; None
            means all.
        reflect_type: "odd" or "even", for "reflect" and "symmetric".

    Returns:
        The axes of `x`, longer by `before + after`.

    Raises:
        AxisNotFoundError: if an axis is missing.
        AxisSizeError: if an axis has no elements, and the mode needs some.
        ArgumentError: if the mode is unknown, or a number is negative.

    Examples:
        >>> axn.pad(axn.named([1, 2], "x"), {"x": (1, 2)}).tolist()
        [0, 1, 2, 0, 0]
    """
    if not isinstance(x, Core):
        raise checks.no_names("pad", x)
    (array,), names = x.node
    if not isinstance(pad_width, Mapping):
        wanted = "a dict from axes to (before, after)"
        problem = f"pad_width must be {wanted}, not {type_text(pad_width)}"
        hint = 'write {"pos": (0, 1)}'
        raise OperandError(message("pad", problem, f"array has: {facts(x)}", hint=hint))
    if mode not in _MODES:
        raise ArgumentError(message("pad", f"unknown mode {mode!r}", f"modes: {', '.join(_MODES)}"))

    given = selection(tuple(pad_width), "pad")
    widths = tuple(_read_width(axis, width) for axis, width in pad_width.items())
    options: dict[str, object] = {}
    if mode in ("maximum", "mean", "median", "minimum"):
        options["stat_length"] = stat_length
    elif mode in ("reflect", "symmetric"):
        if reflect_type not in ("even", "odd"):
            problem = f"unknown reflect_type {reflect_type!r}"
            raise ArgumentError(message("pad", problem, "types: even, odd"))
        options["reflect_type"] = reflect_type
    elif mode == "linear_ramp":
        options["end_values"] = end_values

    # Only the options of the mode are part of the key of the kernel, so that others do not compile it again.
    fixed = kernels.static(pad, options)
    kernel = checks.run_plan("pad", (x,), _make_padding, names, given, widths, mode, fixed)
    # An operand, not an option: a loop over values compiles once. Zero, the default, need not be sent to the device.
    is_zero = isinstance(constant_values, int) and not constant_values
    values = () if is_zero else (_check_scalar("pad", constant_values),)
    return wrap(x, kernel.call(array, *values), names)


def _read_width(axis: AxisSelector, width: tuple[int, int] | int) -> tuple[int, int]:
    before = after = width
    if isinstance(width, tuple | list) and len(width) == 2:
        before, after = width
    return static_count("pad", before, axis), static_count("pad", after, axis)


def _check_scalar(function: str, value: Operand) -> Any:
    """Return the array of an operand without axes, checked."""
    scalar = payload(function, value)
    if jnp.ndim(scalar):
        has = f"shape {jnp.shape(scalar)}"
        if isinstance(value, Core):
            has = f"axes {', '.join(value.names)}"
        raise OperandError(message(function, f"the fill value must be a scalar, but has {has}"))
    return scalar


@share_by_renaming("names", "given")
def _make_padding(
    names: Names,
    given: Pairs,
    widths: tuple[tuple[int, int], ...],
    mode: str,
    options: kernels.Options,
) -> kernels.Kernel:
    at = plans.positions(names, names_in(given))

    # Sizes are read when the kernel is traced, so that one serves arrays of any shape.
    def body(array: jax.Array, *values: jax.Array) -> jax.Array:
        shape = shape_of("pad", array, names)
        checks.check_given("pad", given, names, shape)
        every = [(0, 0)] * len(shape)  # anonymous dimensions stay
        for (name, _), position, width in zip(given, at, widths, strict=True):
            every[position] = width
            if any(width) and not shape[position] and mode not in ("constant", "empty"):
                problem = f"axis {name!r} is empty, and mode {mode!r} extends existing elements"
                raise AxisSizeError(message("pad", problem, f"array has: {describe(names, shape)}"))

        def pad_array(array: jax.Array, value: jax.Array | int = 0) -> jax.Array:
            array = separate_padding(array)
            if mode == "constant" or not array.size:  # JAX reads elements that are not there
                return jnp.pad(array, every, constant_values=value)
            return jnp.pad(array, every, mode, **kernels.keywords_of(options))

        return auto.move_elements(pad_array, [array, *values])

    return kernels.Kernel(names, body)


def pad_left(
    x: "NamedArray", axis: AxisSelector, new_axis: Axis, value: Operand = 0
) -> "NamedArray":
    """Pad an axis at the start with a value, up to the size of `new_axis`, which replaces it.

    Args:
        x: axes {axis, ...}.
        axis: the axis.
        new_axis: the axis with its new size and, perhaps, a new name.
        value: a scalar, or an array whose axes are among the other axes of `x`.

    Returns:
        The axes of `x`, with `new_axis` instead of `axis`.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if `new_axis` is shorter than `axis`.

    Examples:
        >>> axn.pad_left(axn.named([1, 2], "pos"), "pos", axn.Axis("padded", 4), -1)
        NamedArray(int32[padded=4])
        [-1 -1  1  2]
    """
    new = sized(new_axis, "pad_left")
    return apply_batched(
        _pad_left, (x, value), (axis, ()), (new.name,), in_place=True, new_axis=new
    )


def _pad_left(array: jax.Array, value: jax.Array, *, new_axis: Axis) -> jax.Array:
    extra = new_axis.size - array.shape[-1]
    if extra < 0:
        problem = f"cannot pad {array.shape[-1]} elements to {shown(new_axis)}"
        raise AxisSizeError(message("pad_left", problem, hint="cut them with x.slice(...)"))
    array, value = separate_padding(array), value.astype(array.dtype)
    widths = [*[(0, 0, 0)] * (array.ndim - 1), (extra, 0, 0)]
    if not value.ndim:
        return lax.pad(array, value, widths)
    # `lax.pad` takes a scalar only.
    zeros_first = lax.pad(array, jnp.zeros((), array.dtype), widths)
    return jnp.where(jnp.arange(new_axis.size) < extra, value[..., None], zeros_first)


explain_calls(globals(), __all__)
