"""Match arguments with the parameters of a function, for donation and for names in errors."""

import inspect
import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .. import _constraints
from ..array import NamedArray, is_named_array
from ..layout import MeshLike

__all__ = ["by_parameter", "check_mesh", "described", "enclosed", "flags", "is_traced", "labels", "named_in"]


def is_traced(kind: type) -> bool:
    """Return whether values of a type are traced, not static."""
    return issubclass(kind, jax.Array | Tracer | np.ndarray | np.generic | jax.ShapeDtypeStruct | jax.Ref)


def _positional(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """List the parameters that are filled by position."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in parameters if parameter.kind not in by_keyword]


def labels(fn: Callable[..., Any], args: Any, kwargs: Any, is_leaf: Any = None) -> list[tuple[str, Any]]:
    """Name the leaves of arguments after the parameters, such as `model.layers[0].weight.array`."""
    parameters = _positional(fn)
    names = [one.name for one in parameters]
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        rest = names.pop()
        names += [f"{rest}[{i}]" for i in range(len(args) - len(names))]
    names += [f"args[{i}]" for i in range(len(names), len(args))]
    given = [*zip(names, args, strict=False), *sorted(kwargs.items())]
    return [
        (name + jax.tree_util.keystr(path), leaf)
        for name, part in given
        for path, leaf in jax.tree.leaves_with_path(part, is_leaf=is_leaf)
    ]


def by_parameter(fn: Callable[..., Any], path: str) -> str:
    """Let the path of a positional argument begin with the name of its parameter, not its position."""
    first, dot, rest = path.partition(".")
    names = [one.name for one in _positional(fn) if one.kind is not inspect.Parameter.VAR_POSITIONAL]
    known = names[int(first)] if int(first) < len(names) else f"args[{first}]"
    return f"{known}{dot}{rest}"


def check_mesh(function: str, fn: Callable[..., Any], mesh: MeshLike | None, args: Any, kwargs: Any) -> None:
    """Check, while a function is traced, that its arguments lie on a mesh.

    Raises:
        ShardingError: if one lies on another.
    """
    if mesh is None:
        return
    for path, leaf in labels(fn, args, kwargs, is_named_array):
        array, names = (leaf.array, leaf.names) if isinstance(leaf, NamedArray) else (leaf, ())
        if isinstance(array, Tracer) and _constraints.is_elsewhere(array, mesh):
            raise _constraints.elsewhere(function, f"argument {path}", array, names, mesh)


def enclosed(fn: Callable[..., Any]) -> list[Any]:
    """Return the values of the variables that a function closes over."""
    cells = getattr(inspect.unwrap(fn), "__closure__", None) or ()
    values = []
    for cell in cells:
        with suppress(ValueError):  # a variable that has no value yet
            values.append(cell.cell_contents)
    return values


def described(fn: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, str]:
    """Describe, for each argument or leaf of one, what other calls must pass."""

    def one(leaf: Any) -> str:
        if isinstance(leaf, NamedArray):
            return f"an array with the axes {', '.join(leaf.names)}" if leaf.names else "an array without axes"
        return "an array" if is_traced(type(leaf)) else repr(leaf)

    return {name: one(leaf) for name, leaf in labels(fn, args, kwargs, is_named_array)}


def named_in(error: Exception, names: dict[str, str]) -> None:
    """Replace names in the message of an error."""
    text = error.args[0] if error.args else None
    if isinstance(text, str):
        place = re.compile(r"\b\w+\[\d+\]")
        error.args = (place.sub(lambda found: names.get(found[0], found[0]), text), *error.args[1:])


def flags(fn: Callable[..., Any], args: Any, kwargs: Any, donate_args: Any, donate_kwargs: Any) -> list[bool]:
    """Spread which arguments are donated over all leaves; this applies to a parameter however it is passed."""
    some = () if donate_args is None else donate_args
    more = {} if donate_kwargs is None else donate_kwargs
    listed = () if isinstance(some, bool) else (*some,)
    known = {} if isinstance(more, bool) else more
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [one.name if one.kind is both else None for one in _positional(fn)] if listed or known else []
    padded = (*listed, *(known.get(name, False) for name in names[len(listed) :]), *[False] * len(args))
    by_name = {**dict(zip(names, listed, strict=False)), **known}
    given = (some,) * len(args) if isinstance(some, bool) else padded[: len(args)]
    named = {key: more if isinstance(more, bool) else by_name.get(key, False) for key in kwargs}
    repeat = lambda flag, below: itertools.repeat(bool(flag), len(jax.tree.leaves(below)))  # noqa: E731
    return [*itertools.chain(*jax.tree.leaves(jax.tree.map(repeat, (given, named), (args, kwargs))))]
