"""Internal. Apply collectives to the arrays of a tree, and leave all else: numbers, texts, and holes of filters.

`collectives` calls this; `addresses` knows what a name stands for.
"""

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..array import NamedArray, is_named_array
from ..axis import AxisSelection, selection
from ..engine.core import shape_of
from ..errors import OperandError, message
from ..names.plans import Names
from ..transform.leaves import is_hole
from .addresses import (
    Meaning,
    find_dimension,
    find_mesh_axes,
    find_split_axes,
    find_targets,
    require_size,
)

T = TypeVar("T")


def read_axes(
    function: str, axis: AxisSelection | None, over: AxisSelection | None
) -> tuple[dict[str, int | None], Meaning]:
    """Return the axes to communicate over, and whether their names must be mesh axes."""
    if over is not None:
        return dict(selection(over, function)), "mesh"
    if axis is None:
        hint = 'name one, such as "batch", or a mesh axis with over="data"'
        raise OperandError(message(function, "no axis is given", hint=hint))
    return dict(selection(axis, function)), "either"


def map_arrays(function: str, one: Callable[..., Any], x: T, numbers: bool = False) -> T:
    """Apply `one(array, names)` to each named or plain array of a tree."""

    def leaf(value: object) -> Any:
        # The gradient of an integer array has the dtype float0: no device holds anything to send.
        if is_hole(value) or getattr(value, "dtype", None) == jax.dtypes.float0:
            return value
        if isinstance(value, NamedArray):
            shape_of(function, value.array, value.names)
            return NamedArray(one(jnp.asarray(value.array), value.names), value.names)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return one(jnp.asarray(value), ())
        if numbers and isinstance(value, bool | int | float | complex):
            return one(value, ())
        return value

    mapped: T = jax.tree.map(leaf, x, is_leaf=is_named_array)
    return mapped


def map_along(
    function: str,
    one: Callable[..., Any],
    x: T,
    axis: AxisSelection | None,
    over: AxisSelection | None,
    rest: Callable[..., Any] | None = None,
) -> T:
    """Apply `one` to each array along each of the given axes that it has, and `rest` to arrays without them."""
    devices, meaning = read_axes(function, axis, over)
    asked = devices
    # If both are given, `axis` names the dimensions and `over` the devices.
    if axis is not None and over is not None:
        asked = dict(selection(axis, function))
    leaves = [leaf for leaf in jax.tree.leaves(x, is_leaf=is_named_array) if not is_hole(leaf)]
    named = [leaf for leaf in leaves if isinstance(leaf, NamedArray)]
    # An axis need not be in each array of a tree, but one must have it, or its name is wrong.
    present = set(itertools.chain.from_iterable(leaf.names for leaf in named))
    if rest is None and not present and any(getattr(leaf, "shape", ()) for leaf in leaves):
        problem = "there is no NamedArray, and plain arrays do not name the dimension to gather"
        hint = "name their axes with axn.named, or use jax.lax.all_gather"
        raise OperandError(message(function, problem, hint=hint))

    def apply(array: jax.Array, names: Names) -> jax.Array:
        has_axis = False
        # Each step works on the result of the one before, since an array may have several of the axes.
        steps = asked
        if axis is None:
            steps = dict.fromkeys(find_mesh_axes(function, devices, names, array, meaning=meaning))
        for name, size in steps.items():
            if axis is None:
                found = find_split_axes(function, name, names, array)
            else:
                given = None if over is None else devices
                found = find_targets(function, (name, size), given, names, present, array)
            for own, axes in found.items():
                has_axis = True
                require_size(function, (own, size), names, array, axes)
                if axes:
                    array = one(array, names, own, find_dimension(array, names, own), axes)
        if has_axis or rest is None:
            return array
        axes = find_mesh_axes(function, devices, names, array, meaning=meaning)
        if not axes:
            return array
        result: jax.Array = rest(array, names, axes)
        return result

    return map_arrays(function, apply, x)
