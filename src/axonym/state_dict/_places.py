"""Where a state dict has each array of a tree, and in which form."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax import lax
from jax.experimental import multihost_utils

from .. import plans
from ..array import NamedArray, is_named_array
from ..axis import selection
from ..core import shape_of
from ..errors import AxisError, AxisNotFoundError, describe, message, suggestion
from ..layout import path_text
from ..nn.interleaved import Interleaved
from ..nn.stacked import BlockSeq, Stacked
from ..ops import _lift
from .layouts import Layout, Stored

__all__ = ["Form", "Index", "Numbers", "Place", "form", "on_host", "places", "spec_of"]

Index: TypeAlias = tuple[int, ...]
Names: TypeAlias = tuple[str, ...]


class Numbers(NamedTuple):
    """Number the layers that are stored along one axis."""

    first: int
    step: int


Parts: TypeAlias = tuple[str | Numbers, ...]


@dataclasses.dataclass(frozen=True)
class Form:
    """The stored form of an array, by position.

    Attributes:
        array: the shape of the array.
        split: its shape with axes split.
        order: the order of those dimensions in the stored form.
        steps: an index that reverses some of them, in that order; what it gives is an array, also without dimensions.
        shape: the stored shape.
        text: the stored shape with names, for errors.
    """

    array: Index
    split: Index
    order: Index
    steps: tuple[Any, ...]
    shape: Index
    text: str

    def store(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Bring an array into its stored form, contiguous: others write its buffer, or refuse negative strides."""
        ordered: np.ndarray[Any, Any] = array.reshape(self.split).transpose(self.order)[self.steps]
        return np.asarray(ordered.reshape(self.shape), order="C")

    def restore(self, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Bring an array back; without split axes it is a view, of which only what is looked at is read."""
        apart: np.ndarray[Any, Any] = stored.reshape([self.split[at] for at in self.order])[self.steps]
        return apart.transpose(np.argsort(self.order)).reshape(self.array)


def form(path: str, names: Names, shape: Index, stored: Stored | None) -> Form:
    """Work out the stored form of the array at a path, whose dimensions all have names."""
    groups = (
        [(name,) for name in names]
        if stored is None
        else [tuple(name for name, _ in selection(dim)) for dim in stored.dims]
    )
    split, flipped = (stored.split, stored.flipped) if stored is not None else ({}, ())
    parts = [name for whole in names for name in ([split[whole][0], whole] if whole in split else [whole])]
    sizes = dict(zip(names, shape, strict=True))
    for whole, (part, count) in split.items():
        sizes |= {part: count, whole: sizes[whole] // count}
    listed = [name for group in groups for name in group]
    plans.distinct(tuple(listed), f"layout of {path}: ")
    for name in listed:
        if name not in parts:
            facts, hint = f"the array has: {describe(names, shape)}", suggestion(name, names)
            raise AxisNotFoundError(message(f"layout of {path}", f"there is no axis {name!r}", facts, hint=hint))
    groups = [*((name,) for name in parts if name not in listed), *groups]
    order = [name for group in groups for name in group]
    return Form(
        array=shape,
        split=tuple(sizes[name] for name in parts),
        order=tuple(parts.index(name) for name in order),
        steps=(*(slice(None, None, -1 if name in flipped and sizes[name] > 1 else None) for name in order), ...),
        shape=tuple(math.prod(sizes[name] for name in group) for group in groups),
        text=", ".join(" * ".join(f"{name}={sizes[name]}" for name in group) or "1" for group in groups) or "no axes",
    )


@dataclasses.dataclass(frozen=True)
class Place:
    """An array of a tree, and where a state dict has it.

    Attributes:
        path: the path of the array in the tree.
        leaf: the array, named or plain.
        names: a name for each dimension; those that have none are counted.
        shape: its shape.
        parts: the components of its key; `Numbers` stand for those of layers.
        layers: the names of the dimensions that layers are stored along, outermost first.
        form: the stored form, of each layer if there are any.
    """

    path: str
    leaf: Any
    names: Names
    shape: Index
    parts: Parts
    layers: Names
    form: Form

    @property
    def array(self) -> Any:
        """The array without its names."""
        return self.leaf.array if isinstance(self.leaf, NamedArray) else self.leaf

    def entries(self) -> Iterator[tuple[str, Index]]:
        """Yield the key of each stored array, and the layers that it belongs to."""
        for index in itertools.product(*(range(self.shape[self.names.index(name)]) for name in self.layers)):
            at = iter(index)
            yield ".".join(p if isinstance(p, str) else str(p.first + p.step * next(at)) for p in self.parts), index

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        """Bring what belongs to given layers to the host, in its stored form."""
        array, names = self.array, list(self.names)
        for name, at in zip(self.layers, index, strict=True):
            dim = names.index(name)
            names.remove(name)
            if isinstance(array, jax.Array):
                array = lax.dynamic_index_in_dim(_lift.whole(array, (dim,)), at, dim, keepdims=False)
            else:
                array = array.take(at, dim)
        return self.form.store(on_host(array))

    def block(self, at: Sequence[slice], stored: Mapping[Index, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Put a block of the array together from stored ones, by the layers that they belong to."""
        bounds = [range(*part.indices(size)) for part, size in zip(at, self.shape, strict=True)]
        rest: Any = tuple(part for part, name in zip(at, self.names, strict=True) if name not in self.layers)
        rest += (...,)  # what comes out is an array, also without dimensions
        if not self.layers:
            whole: np.ndarray[Any, Any] = self.form.restore(stored[()])[rest]
            return whole
        result = np.empty([len(bound) for bound in bounds], self.array.dtype)
        dims = [self.names.index(name) for name in self.layers]
        for index in itertools.product(*(bounds[dim] for dim in dims)):
            where: list[Any] = [slice(None)] * len(bounds)
            for dim, number in zip(dims, index, strict=True):
                where[dim] = number - bounds[dim].start
            result[tuple(where)] = self.form.restore(stored[index])[rest]
        return result


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """Bring an array to the host, from all processes that have a part of it."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def spec_of(state: Mapping[str, Any], key: str) -> Any:
    """Return an array of a state dict, or what has its shape and dtype."""
    spec = getattr(state, "spec", None)
    value = state[key] if spec is None else spec(key)
    return value if isinstance(value, np.ndarray | jax.Array | jax.ShapeDtypeStruct) else np.asarray(value)


def places(tree: Any, layouts: Mapping[type, Layout]) -> Iterator[Place | None]:
    """Yield the place of each leaf of a tree, in order, where a named array is one; None for what is no array."""
    yield from _walk(tree, (), (), (), None, layouts)


def _walk(
    node: Any, path: Names, parts: Parts, blocks: Names, stored: Stored | None, layouts: Mapping[type, Layout]
) -> Iterator[Place | None]:
    children = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda each: each is not node)[0]
    if is_named_array(node) or (children and not children[0][0]):
        yield _place(node, path, parts, blocks, stored)
        return
    if isinstance(node, Stacked | BlockSeq | Interleaved):
        for where, part, further, layer in _layers(node):
            yield from _walk(layer, (*path, *where), (*parts, part), (*blocks, *further), None, layouts)
        return
    layout = next((layouts[kind] for kind in type(node).__mro__ if kind in layouts), None)
    forms = {} if layout is None else layout(node)
    for keys, child in children:
        name = path_text(keys)
        yield from _walk(child, (*path, name), (*parts, name), blocks, forms.get(name), layouts)


def _layers(node: Any) -> Iterator[tuple[Names, str | Numbers, Names, Any]]:
    """Yield the layers of a module that has several: path, number in keys, axis that they are stored along, and module.

    Numbers are those of `node.unstacked()`: all modules with the same layers have the same keys.
    """
    if isinstance(node, Stacked):
        yield ("stacked",), Numbers(0, 1), (node.Block.name,), node.stacked
    elif isinstance(node, BlockSeq):
        for i, layer in enumerate(node.blocks):
            yield ("blocks", str(i)), str(i), (), layer
    else:
        kinds, Block = node.repeated.stacked, node.repeated.Block
        for i, layer in enumerate(kinds):
            yield ("repeated", "stacked", str(i)), Numbers(i, len(kinds)), (Block.name,), layer
        for i, layer in enumerate(node.rest):
            yield ("rest", str(i)), str(Block.size * len(kinds) + i), (), layer


def _place(leaf: Any, path: Names, parts: Parts, blocks: Names, stored: Stored | None) -> Place | None:
    array = leaf.array if isinstance(leaf, NamedArray) else leaf
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        return None
    spelled = ".".join(path)
    names = leaf.names if isinstance(leaf, NamedArray) else ()
    shape = shape_of(spelled, array, names)
    unnamed = len(shape) - len(names)
    first = () if isinstance(leaf, NamedArray) else blocks[:unnamed]  # plain arrays have layers in front
    names = (*first, *(f"dimension {at}" for at in range(len(first), unnamed)), *names)
    for name in blocks:
        if name not in names:
            problem = f"{spelled} is in a Stacked over {name!r}, but has no such axis"
            raise AxisError(message("state dict", problem, f"it has: {describe(names, shape)}"))
    left = tuple(name for name in names if name not in blocks)
    sizes = tuple(size for name, size in zip(names, shape, strict=True) if name not in blocks)
    return Place(spelled, leaf, names, shape, parts, blocks, form(spelled, left, sizes, stored))
