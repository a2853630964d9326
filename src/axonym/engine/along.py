"""Internal. Functions along one axis: softmax, cumulative sums, sorting, finding a maximum.

`ops` calls it with a function of `jax.numpy` that takes `axis`. The axis may stay (`along`) or go (`search`).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from ..axis import AxisSelection, AxisSelector, names_in, selector
from ..errors import AxisError
from ..layout import explicit
from ..names import plans
from ..names.plans import Names
from .auto import move_elements, whole
from .checks import Function, check_given, make_axis_key, no_names, resolve_axis, run_plan, title
from .core import Core, shape_of, wrap
from .kernels import Kernel, Options, keywords_of, line_up, new, static
from .nonempty import check_nonempty, explain_empty
from .prefixes import find_parts, scan_parts
from .renaming import share_by_renaming

if TYPE_CHECKING:
    from ..array import NamedArray

# The usual case: by function, and then by names and axis.
_along_one: dict[Function, dict[tuple[Names, Any], Any]] = {}


@share_by_renaming("names", "axis", "to")
def _make_along(
    fn: Function,
    names: Names,
    axis: object,
    removes: bool,
    to: tuple[str, int | None] | None,
    options: Options,
    gathers: bool = False,
    after: Function | None = None,
) -> Kernel:
    """Make the kernel of a function along one whole axis, or along several, flattened."""
    function, keywords = title(fn), keywords_of(options)
    given = resolve_axis(axis, function, names)
    chosen = names_in(given)
    at = plans.positions(names, chosen)
    rest = plans.without(names, chosen)
    if len(at) != 1 and not removes:
        # A result that keeps the axis could not show positions of several axes.
        hint = "flatten the axes first: x.flatten_axes(...)"
        raise AxisError(f"needs one axis, got {len(at)}", hint)
    # The names of the result follow from names alone, before any array is looked at.
    target = rest if removes else names
    if to is not None:
        target = plans.rename(names, ((chosen[0], to[0]),))

    def body(array: jax.Array) -> jax.Array:
        shape = shape_of(function, array, names)
        check_given(function, given, names, shape)
        check_nonempty(function, names, shape, at, keywords)
        with explain_empty(function, [(names, shape, chosen)]):
            return apply(array)

    def apply(array: jax.Array) -> jax.Array:
        if len(at) == 1:
            call: Function = partial(fn, axis=at[0], **keywords)
            if removes:
                found: jax.Array = call(array)
                return found
            if gathers:
                array = whole(array, at, names)
            if after is not None:
                call = _scan_in_parts(call, after, array, names, chosen[0], keywords)
            result = move_elements(call, [array])
            if to is not None:
                # The size of the new axis is known only now.
                check_given(function, (to,), target, result.shape)
            return result
        array = line_up(array, names, (*rest, *chosen))
        kept = array.ndim - len(chosen)

        # One function, so that `move_elements` runs the reshape too: JAX merges no dimensions that are split.
        def apply_flat(array: jax.Array) -> jax.Array:
            flat = lax.reshape(array, (*array.shape[:kept], math.prod(array.shape[kept:])))
            found: jax.Array = fn(flat, axis=-1, **keywords)
            return found

        return move_elements(apply_flat, [array], explicit.get_layout(array)[:kept])

    return Kernel(target, body)


def _scan_in_parts(
    call: Function, after: Function, array: jax.Array, names: Names, name: str, keywords: Any
) -> Function:
    """Let a scan along a split axis work on one part of it on each device."""
    at = array.ndim - len(names) + names.index(name)
    _, parts = find_parts(array, at, name)
    # One part needs no second pass: `jnp` and the compiler do the same.
    if parts == 1:
        return call

    def scan(arrays: Sequence[jax.Array], at: int) -> list[jax.Array]:
        return [call(arrays[0], axis=at)]

    def join(before: Sequence[jax.Array], own: Sequence[jax.Array]) -> list[jax.Array]:
        return [after(before[0], own[0])]

    def scan_by_parts(array: jax.Array) -> jax.Array:
        # Parts are combined in the direction in which each of them was scanned.
        reverse = keywords.get("reverse", False)
        return scan_parts(scan, join, [array], at, parts, reverse=reverse)[0]

    return scan_by_parts


def along(
    fn: Function, x: Core, axis: AxisSelection | None, after: Function | None = None
) -> "NamedArray":
    """Apply a function along one axis; the result has this axis too, perhaps with another size.

    Args:
        fn: the function, which gets `axis`.
        x: the array.
        axis: the axis.
        after: for a scan, the function that combines the result of earlier parts with that of a part.
    """
    # The usual case is written out: a cached kernel by function, names and axis, and no further call.
    if type(axis) is not str:
        return along_with(fn, x, axis, after=after)
    if not isinstance(x, Core):
        raise no_names(title(fn), x)
    (array,), names = x.node
    try:
        call = _along_one[fn][names, axis]
    except KeyError:
        kernel = run_plan(fn, (x,), _make_along, fn, names, axis, False, None, (), False, after)
        call = plans.keep(_along_one.setdefault(fn, {}), (names, axis), kernel.call)
    made: NamedArray = new(type(x))  # `wrap`, inlined to save a call
    made.node = ((call(array),), names)
    return made


def along_with(
    fn: Function,
    x: Core,
    axis: AxisSelection | None,
    *,
    to: AxisSelector | None = None,
    gathers: bool = False,
    after: Function | None = None,
    **options: object,
) -> "NamedArray":
    """Apply a function with options along one axis, which the result may rename to `to`.

    On Explicit mesh axes, the result is split along the axis as `x` is, or not at all if the function `gathers` it. A
    scan passes `after`, as in `along`.
    """
    return _apply_along(fn, x, axis, False, to, options, gathers, after)


def search(fn: Function, x: Core, axis: AxisSelection | None, **options: object) -> "NamedArray":
    """Apply a function that finds a position along an axis, or along several, flattened."""
    return _apply_along(fn, x, axis, True, None, options)


def _apply_along(
    fn: Function,
    x: Core,
    axis: AxisSelection | None,
    removes: bool,
    to: AxisSelector | None,
    options: dict[str, object],
    gathers: bool = False,
    after: Function | None = None,
) -> "NamedArray":
    if not isinstance(x, Core):
        raise no_names(title(fn), x)
    (array,), names = x.node
    key = make_axis_key(axis, fn)
    target = None if to is None else selector(to, title(fn))
    settings = static(fn, options)
    kernel = run_plan(
        fn, (x,), _make_along, fn, names, key, removes, target, settings, gathers, after
    )
    return wrap(x, kernel.call(array), kernel.names)
