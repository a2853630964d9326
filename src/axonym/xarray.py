"""Arrays of xarray by name, and back. The library is imported when one of these functions is called."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import jax
import numpy as np

from .array import NamedArray, is_named_array, named
from .base.kinds import Payload, Tree, is_array, type_text
from .engine.core import facts
from .errors import OperandError, message

__all__ = ["from_xarray", "to_xarray"]


def from_xarray(data: Any) -> Any:
    """Make arrays with the names that xarray gives them; coordinates and attributes are dropped.

    Args:
        data: a DataArray or a Dataset.

    Returns:
        A NamedArray of a DataArray; a dict of them of a Dataset, by the names of its variables.

    Raises:
        ImportError: if xarray is not installed.
        OperandError: if `data` is something else, a dimension has a name that is no string, or JAX has no such dtype.

    With `data = xr.DataArray([1, 2], dims="pos")`, the result is `axn.named([1, 2], "pos")`; the page on xarray shows a
    computation from a file to a plot.
    """
    xr = _library("from_xarray")
    if isinstance(data, xr.Dataset):
        return {name: _convert(name, variable) for name, variable in data.data_vars.items()}
    if not isinstance(data, xr.DataArray):
        problem = f"expected a DataArray or a Dataset, got {type_text(data)}"
        raise OperandError(message("from_xarray", problem))
    return _convert(data.name, data)


def to_xarray(tree: Tree, coords: Mapping[Any, Any] | None = None) -> Any:
    """Make a DataArray of a named array, or a Dataset of a tree of them.

    Args:
        tree: a NamedArray; or a dict, a model or any other tree, whose arrays become variables by their path, such as
            `layers.0.weight`. Other leaves are numbers.
        coords: coordinates by name, as `data.coords` of xarray has them. Those along axes that an array lacks are left
            out.

    Raises:
        ImportError: if xarray is not installed.
        OperandError: if an array has dimensions without names.
        ValueError: of xarray, if an axis has two sizes, in arrays or coordinates.

    With `data = axn.to_xarray(axn.named([1, 2], "pos"), {"pos": [10, 20]})`, `data.sel(pos=20).item()` is 2.
    """
    xr = _library("to_xarray")
    # A Dataset checks the coordinates and finds their dimensions, also if none of the arrays has them.
    given = xr.Dataset(coords=coords).coords
    if is_named_array(tree):
        return _with_coords(xr, "", tree, given)
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_named_array)
    variables = {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in leaves
        if not is_named_array(x) or hasattr(x.array, "shape")  # a filter leaves None
    }
    return xr.Dataset({name: _with_coords(xr, name, x, given) for name, x in variables.items()})


def _library(function: str) -> Any:
    try:
        return import_module("xarray")
    except ModuleNotFoundError as error:
        if error.name != "xarray":  # xarray is there, and lacks something itself
            raise
        text = message(function, "the package xarray is missing", hint="pip install xarray")
        raise ImportError(text, name="xarray") from None


def _convert(name: object, data: Any) -> NamedArray:
    """Make a NamedArray of a DataArray or a variable, with its names."""
    who = "the array" if name is None else repr(name)
    for dim in data.dims:
        if not isinstance(dim, str):
            problem = f"{who} has the dimension {dim!r}, but names are strings"
            raise OperandError(message("from_xarray", problem, hint='data.rename({...: "name"})'))
    try:
        return named(data.values, data.dims)
    except TypeError:  # of JAX: strings, dates and objects
        problem = f"{who} has elements of {data.dtype}, which JAX has no arrays of"
        hint = "convert them, as data.astype(float) does, or leave them out"
        raise OperandError(message("from_xarray", problem, hint=hint)) from None


def _with_coords(xr: Any, name: str, x: Payload, coords: Mapping[Any, Any]) -> Any:
    """Make a DataArray with those coordinates that lie along its axes."""
    who = repr(name) if name else "the array"
    # A number without dimensions needs no names.
    if not is_named_array(x):
        if not (is_array(x) or isinstance(x, int | float | complex)):
            problem = f"{who} is no array, but of type {type_text(x)}"
            hint = "leave out what is none: eqx.filter(model, eqx.is_array)"
            raise OperandError(message("to_xarray", problem, hint=hint))
        if np.ndim(x):
            hint = 'name its dimensions first: axn.named(array, ("batch", "embed"))'
            raise OperandError(message("to_xarray", f"{who} has no names", hint=hint))
        x = named(x, ())
    if x.ndim != len(x.names):
        hint = 'name them: x.tag("batch")'
        lines = f"array has: {facts(x)}"
        raise OperandError(
            message("to_xarray", f"{who} has anonymous dimensions", lines, hint=hint)
        )
    # xarray refuses coordinates along dimensions that an array lacks.
    own = {key: coord for key, coord in coords.items() if set(coord.dims) <= set(x.names)}
    return xr.DataArray(np.asarray(x), own, x.names)
