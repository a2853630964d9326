"""Show layouts, and check a module for common mistakes."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, Sharding

import axonym as axn
from axonym import Axis

from .core import NamedArray

__all__ = [
    "ModuleProblems",
    "describe_array",
    "diagnose_common_issues",
    "visualize_named_sharding",
    "visualize_shardings",
]

ArrayLike: TypeAlias = jax.Array | NamedArray


class ModuleProblems(Exception):  # noqa: N818
    """The problems of a module; true if there are any.

    Attributes:
        reused_arrays: arrays that occur in several places, each with their paths, such as `.blocks[0].weight`.
        static_arrays: the paths of static fields that hold arrays.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reused_arrays: list[tuple[ArrayLike, list[str]]] = []
        self.static_arrays: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.reused_arrays or self.static_arrays)

    def __str__(self) -> str:
        reused = [
            f"{describe_array(x)} is held by: {', '.join(paths)}" for x, paths in self.reused_arrays
        ]
        static = [f"{path} is a static field and holds arrays" for path in self.static_arrays]
        return "\n".join(["the module has problems:", *reused, *static])


def describe_array(arr: Any) -> str:
    """Format the dtype and the axes of an array in one line, as in `float32[batch=8, embed=4]`."""
    if isinstance(arr, axn.NamedArray):
        array: Any = arr.array
        return f"{getattr(array, 'dtype', type(array).__name__)}[{axn.errors.describe(arr.names, _shape(array))}]"
    return f"{getattr(arr, 'dtype', type(arr).__name__)}[{', '.join(map(str, _shape(arr) or ()))}]"


def _shape(array: Any) -> tuple[int, ...] | None:
    return getattr(array, "shape", None)


def diagnose_common_issues(module: eqx.Module) -> None:
    """Raise `ModuleProblems` if an array occurs in several places of a module, or static fields hold arrays."""
    problems = ModuleProblems()
    places: dict[int, tuple[Any, list[str]]] = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(module, is_leaf=axn.is_named_array)[0]:
        array = leaf.array if isinstance(leaf, axn.NamedArray) else leaf
        if _is_array(array):
            places.setdefault(id(array), (leaf, []))[1].append(jax.tree_util.keystr(keys))
    problems.reused_arrays = [place for place in places.values() if len(place[1]) > 1]
    problems.static_arrays = list(_static_arrays(module, ""))
    if problems:
        raise problems


def _static_arrays(tree: Any, path: str) -> Iterator[str]:
    """Return the paths of static fields that hold arrays."""
    if isinstance(tree, eqx.Module):
        for field in dataclasses.fields(tree):
            if field.metadata.get("static") and any(
                map(_is_array, jax.tree.leaves(getattr(tree, field.name, None)))
            ):
                yield f"{path}.{field.name}"
    for keys, child in jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[
        0
    ]:
        if keys and not isinstance(child, axn.NamedArray):
            yield from _static_arrays(child, path + jax.tree_util.keystr(keys))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def visualize_shardings(tree: Any) -> None:
    """Print the layout of each array of a tree, by name; inside jit, when it is compiled."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=axn.is_named_array)[0]:
        axes, array = (leaf.axes, leaf.array) if isinstance(leaf, axn.NamedArray) else (None, leaf)
        if not _is_array(array):
            continue
        path = jax.tree_util.keystr(keys, simple=True, separator=".")
        title = ": ".join(filter(None, (path, describe_array(leaf))))

        def show(sharding: Any, title: str = title, axes: Any = axes) -> None:
            print(f"{title}: {_text(axes, sharding)}")

        if isinstance(array, Tracer):
            jax.debug.inspect_array_sharding(array, callback=show)
        else:
            show(getattr(array, "sharding", "on the host"))


def visualize_named_sharding(axes: Sequence[Axis], sharding: Sharding) -> None:
    """Print the mesh axes of each axis in a sharding."""
    print(_text(axes, sharding))


def _text(axes: Sequence[Axis] | None, sharding: Any) -> str:
    """Format a sharding by name, as in `batch->data, embed`; one that is not a NamedSharding is printed as it is."""
    if not isinstance(sharding, NamedSharding):
        return str(sharding)
    if axes is None:
        return str(sharding.spec)
    entries = [*sharding.spec, *[None] * len(axes)]
    pairs = zip((axis.name for axis in axes), entries, strict=False)
    return ", ".join(_axis_text(name, entry) for name, entry in pairs) or "replicated"


def _axis_text(name: str, entry: str | tuple[str, ...] | None) -> str:
    if not entry:
        return name
    return f"{name}->{entry if isinstance(entry, str) else '+'.join(entry)}"
