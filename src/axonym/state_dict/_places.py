"""The keys and stored forms of the arrays of a tree in a state dict."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.experimental import multihost_utils

from .. import plans
from ..array import NamedArray, is_named_array
from ..axis import selection
from ..core import facts, shape_of
from ..errors import (
    ArgumentError,
    AxisError,
    AxisNotFoundError,
    AxisSizeError,
    OperandError,
    describe,
    message,
    suggestion,
)
from ..layout import path_text
from ..nn.interleaved import Interleaved
from ..nn.stacked import BlockSeq, Stacked
from ..ops import _lift
from ..partitioning.shard import is_optimiser_state
from ..plans import Names
from ._record import axes_text
from .axes import StoredArray, StoredAxes, StoredAxis
from .layouts import Layout, Stored

__all__ = [
    "Form",
    "Index",
    "Numbers",
    "Place",
    "axes_of",
    "form",
    "on_host",
    "places",
    "require_state",
    "require_values",
    "spec_of",
]

Index: TypeAlias = tuple[int, ...]


class Numbers(NamedTuple):
    """Number the layers that are stored along one axis."""

    first: int
    step: int


Parts: TypeAlias = tuple[str | Numbers, ...]


@dataclasses.dataclass(frozen=True)
class Form:
    """The stored form of an array.

    Attributes:
        array: the shape of the array.
        parts: the names of its dimensions, with axes split.
        split: its shape with axes split.
        groups: the parts of each stored dimension.
        flipped: the parts that are stored in reverse.
    """

    array: Index
    parts: Names
    split: Index
    groups: tuple[Names, ...]
    flipped: frozenset[str] = frozenset()

    @functools.cached_property
    def order(self) -> Index:
        """The order of the parts in the stored form."""
        return tuple(self.parts.index(name) for group in self.groups for name in group)

    @functools.cached_property
    def steps(self) -> tuple[Any, ...]:
        """An index that reverses some of them, in that order; its result is an array, also without dimensions."""
        flipped = [self.parts[at] in self.flipped and self.split[at] > 1 for at in self.order]
        return (*(slice(None, None, -1 if each else None) for each in flipped), ...)

    @functools.cached_property
    def shape(self) -> Index:
        """The stored shape."""
        return tuple(math.prod(axis.size for axis in group) for group in self.axes)

    @functools.cached_property
    def axes(self) -> tuple[tuple[StoredAxis, ...], ...]:
        """The parts of each stored dimension with their sizes."""
        sizes = dict(zip(self.parts, self.split, strict=True))
        return tuple(
            tuple(StoredAxis(name, sizes[name], name in self.flipped and sizes[name] > 1) for name in group)
            for group in self.groups
        )

    @property
    def text(self) -> str:
        """The stored shape with names, for errors."""
        return axes_text(self.axes, self.shape)

    def store(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Bring an array into its stored form, contiguous: other libraries write its buffer, or need such strides."""
        ordered: np.ndarray[Any, Any] = array.reshape(self.split).transpose(self.order)[self.steps]
        return np.asarray(ordered.reshape(self.shape), order="C")

    def restore(self, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Bring an array back; without split axes, it is a view, of which only the used part is read."""
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
    listed = [name for group in groups for name in group]
    plans.distinct(tuple(parts), f"layout of {path}: ")
    plans.distinct(tuple(listed), f"layout of {path}: ")
    for name, known in [*((whole, names) for whole in split), *((name, parts) for name in (*listed, *flipped))]:
        if name not in known:
            there, hint = f"the array has: {describe(names, shape)}", suggestion(name, known)
            raise AxisNotFoundError(message(f"layout of {path}", f"there is no axis {name!r}", there, hint=hint))
    sizes = dict(zip(names, shape, strict=True))
    for whole, (part, count) in split.items():
        if count < 1 or sizes[whole] % count:
            problem = f"{whole}={sizes[whole]} cannot be split evenly in {part}={count}"
            raise AxisSizeError(message(f"layout of {path}", problem, f"the array has: {describe(names, shape)}"))
        sizes |= {part: count, whole: sizes[whole] // count}
    groups = [*((name,) for name in parts if name not in listed), *groups]
    split_shape = tuple(sizes[name] for name in parts)
    return Form(shape, tuple(parts), split_shape, tuple(map(tuple, groups)), frozenset(flipped))


@dataclasses.dataclass(frozen=True)
class Place:
    """An array of a tree, and its place in a state dict.

    Attributes:
        path: the path of the array in the tree.
        leaf: the array, named or plain.
        names: a name for each dimension; anonymous ones are counted.
        shape: its shape.
        parts: the components of its key; `Numbers` stand for those of layers.
        layers: the names of the dimensions along which layers are stored, outermost first.
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

    @functools.cached_property
    def axes(self) -> StoredAxes:
        """The axes of the stored form, of each layer; None for dimensions without a name."""
        own = self.leaf.names if isinstance(self.leaf, NamedArray) else ()
        unnamed = {name for name in self.names if name not in own and name not in self.layers}
        return tuple(None if any(axis.name in unnamed for axis in group) else group for group in self.form.axes)

    def form_of(self, axes: StoredAxes | None, called: Callable[[str], str]) -> Form | None:
        """Return the form of an array that was saved with given axes, in any order; None if the axes are others.

        Args:
            axes: those of each dimension; None if they are not known, which makes it the form of the model.
            called: the name that a name of the model has there.
        """
        if axes is None:
            return self.form
        own = tuple(
            None if dim is None else tuple(axis._replace(name=called(axis.name)) for axis in dim) for dim in self.axes
        )
        if None in own or None in axes:  # dimensions without a name have a place
            pairs = itertools.zip_longest(own, axes)
            return self.form if all(None in pair or pair[0] == pair[1] for pair in pairs) else None
        listed = [axis for dim in axes if dim is not None for axis in dim]
        left = tuple(name for name in self.names if name not in self.layers)
        for parts, split in ((self.form.parts, self.form.split), (left, self.form.array)):
            names = {called(name): name for name in parts}
            if len(names) == len(parts) and sorted(names) == sorted(axis.name for axis in listed):
                groups = tuple(tuple(names[axis.name] for axis in dim) for dim in axes if dim is not None)
                flipped = frozenset(names[axis.name] for axis in listed if axis.flipped)
                return Form(self.form.array, parts, split, groups, flipped)
        return None

    def entries(self) -> Iterator[tuple[str, Index]]:
        """Yield the key of each stored array, and the indices of its layers."""
        for index in itertools.product(*(range(self.shape[self.names.index(name)]) for name in self.layers)):
            at = iter(index)
            yield ".".join(p if isinstance(p, str) else str(p.first + p.step * next(at)) for p in self.parts), index

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        """Bring the part of given layers to the host."""
        array, names = self.array, list(self.names)
        for name, at in zip(self.layers, index, strict=True):
            dim = names.index(name)
            names.remove(name)
            if isinstance(array, jax.Array):
                array = lax.dynamic_index_in_dim(_lift.whole(array, (dim,)), at, dim, keepdims=False)
            else:
                array = array.take(at, dim)
        return on_host(array)

    def block(self, at: Sequence[slice], layers: Mapping[Index, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Assemble a block of the array from those of its layers, which `Form.restore` returns."""
        bounds = [range(*part.indices(size)) for part, size in zip(at, self.shape, strict=True)]
        rest: Any = tuple(part for part, name in zip(at, self.names, strict=True) if name not in self.layers)
        rest += (...,)  # the result is an array, also without dimensions
        if not self.layers:
            whole: np.ndarray[Any, Any] = layers[()][rest]
            return whole
        result = np.empty([len(bound) for bound in bounds], self.array.dtype)
        dims = [self.names.index(name) for name in self.layers]
        for index in itertools.product(*(bounds[dim] for dim in dims)):
            where: list[Any] = [slice(None)] * len(bounds)
            for dim, number in zip(dims, index, strict=True):
                where[dim] = number - bounds[dim].start
            result[tuple(where)] = layers[index][rest]
        return result


def on_host(array: Any) -> np.ndarray[Any, Any]:
    """Bring an array to the host, from all processes that have a part of it."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def require_state(function: str, state: Any, hint: str) -> None:
    """Raise unless `state` is a mapping with strings as keys; the hint shows the call."""
    if not isinstance(state, Mapping):
        problem = f"a state dict must be a mapping from keys to arrays, not {type(state).__name__}"
        raise OperandError(message(function, problem, hint=hint))
    for key in state:
        if not isinstance(key, str):
            problem = f"keys of a state dict must be strings, not {key!r}"
            raise ArgumentError(message(function, problem, hint=f"write {str(key)!r}"))


def require_values(function: str, key: str, array: Any) -> None:
    """Raise ArgumentError for an array without values that can be stored."""
    if isinstance(array, Tracer):
        problem = f"{key!r} is traced: it has no values before the function runs"
        raise ArgumentError(message(function, problem, hint="call it outside of jit, grad, vmap and scan"))
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        problem = f"{key!r} is a key of jax.random, not an array of numbers"
        hint = "leave it out of the model: eqx.partition; or keep its numbers: jax.random.key_data(key)"
        raise ArgumentError(message(function, problem, hint=hint))
    if isinstance(array, jax.ShapeDtypeStruct):
        problem = f"{key!r} is abstract: it has a shape and a dtype, but no values"
        raise ArgumentError(message(function, problem, hint="initialise the model, or load it with from_state_dict"))


def spec_of(function: str, state: Mapping[str, Any], key: str) -> Any:
    """Return an array of a state dict, or an object with its shape and dtype.

    Raises:
        ArgumentError: if it is abstract.
        OperandError: if it has names, or numpy cannot read it.
    """
    spec = getattr(state, "spec", None)
    if spec is not None:
        return spec(key)
    value = state[key]
    require_values(function, key, value)
    if isinstance(value, np.ndarray | jax.Array):
        return value
    if isinstance(value, NamedArray):
        problem = f"{key!r} is a NamedArray; values of a state dict must be plain arrays, in the layout of the file"
        hint = "pass its `.array`, with the axes in the order of the file: x.rearrange((...)).array"
        raise OperandError(message(function, problem, f"its axes: {facts(value)}", hint=hint))
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        problem, told = f"numpy cannot read {key!r}, a {type(value).__name__}", str(error).partition("\n")[0]
        hint = "pass tensor.detach(), and .float() of bfloat16; or save to a safetensors file, and use load_state_dict"
        of_torch = type(value).__module__.partition(".")[0] == "torch"
        raise OperandError(message(function, problem, told, hint=hint if of_torch else None)) from error


def axes_of(state: Mapping[str, Any], key: str, spec: Any) -> StoredAxes | None:
    """Return the axes that an array of a state dict was saved with, or None; `spec` is what `spec_of` returns."""
    axes = getattr(state, "axes", None)
    if axes is not None:
        found: StoredAxes = axes(key)
        return found
    return spec.axes if isinstance(spec, StoredArray) else None


def places(tree: Any, layouts: Mapping[type, Layout]) -> Iterator[Place | None]:
    """Yield the place of each leaf of a tree in order, named arrays as leaves; None for leaves that are not arrays."""
    yield from _walk(tree, (), (), (), None, layouts)


def _walk(
    node: Any,
    path: Names,
    parts: Parts,
    blocks: Names,
    stored: Stored | None,
    layouts: Mapping[type, Layout],
    optimised: bool = False,
) -> Iterator[Place | None]:
    optimised = optimised or is_optimiser_state(node)
    children = jax.tree.leaves_with_path(node, is_leaf=lambda each: each is not node)
    if is_named_array(node) or (children and not children[0][0]):
        yield (_kept(node, path) if optimised else None) or _place(node, path, parts, blocks, stored)
        return
    if isinstance(node, Stacked | BlockSeq | Interleaved):
        for where, part, further, layer in _layers(node):
            yield from _walk(layer, (*path, *where), (*parts, part), (*blocks, *further), None, layouts, optimised)
        return
    layout = next((layouts[kind] for kind in type(node).__mro__ if kind in layouts), None)
    forms = {} if layout is None else _forms(node, path, layout, [path_text(keys) for keys, _ in children])
    for keys, child in children:
        name = path_text(keys)
        yield from _walk(child, (*path, name), (*parts, name), blocks, forms.get(name), layouts, optimised)


def _forms(node: Any, path: Names, layout: Layout, known: Sequence[str]) -> Mapping[str, Stored]:
    """Get the forms of the fields of a module from a layout, and check them."""
    forms: Any = layout(node)
    if not isinstance(forms, Mapping):
        problem = f"a layout must return a dict from fields to Stored, not {type(forms).__name__}"
        raise OperandError(message(f"layout of {type(node).__name__}", problem, hint='write {"weight": Stored(...)}'))
    for field, stored in forms.items():
        where = f"layout of {'.'.join((*path, str(field)))}"
        if field not in known and not hasattr(node, str(field)):  # a bias that is None is not in the tree
            problem, there = f"{type(node).__name__} has no such field", f"it has: {', '.join(known) or 'none'}"
            raise ArgumentError(message(where, problem, there, hint=suggestion(field, known)))
        if not isinstance(stored, Stored):
            problem = f"the form of a field must be a Stored, not {type(stored).__name__}"
            raise OperandError(message(where, problem, hint='write Stored(("mlp", "embed"))'))
    return forms


def _layers(node: Any) -> Iterator[tuple[Names, str | Numbers, Names, Any]]:
    """Yield the layers of a module that has several: path, number in keys, axis of storage, and module.

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


def _kept(leaf: Any, path: Names) -> Place | None:
    """Return the place of an optimiser's array with fewer dimensions than names: whole, by its path."""
    shape = getattr(leaf.array, "shape", None) if isinstance(leaf, NamedArray) else None
    if shape is None or len(shape) >= len(leaf.names):
        return None
    names = tuple(f"dimension {at}" for at in range(len(shape)))
    return Place(".".join(path), leaf, names, shape, path, (), form(".".join(path), names, shape, None))


def _place(leaf: Any, path: Names, parts: Parts, blocks: Names, stored: Stored | None) -> Place | None:
    array = leaf.array if isinstance(leaf, NamedArray) else leaf
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        return None
    spelled = ".".join(path)
    names = leaf.names if isinstance(leaf, NamedArray) else ()
    shape = shape_of(spelled, array, names)
    unnamed = len(shape) - len(names)
    first = () if isinstance(leaf, NamedArray) else blocks[:unnamed]  # plain arrays have layers first
    names = (*first, *(f"dimension {at}" for at in range(len(first), unnamed)), *names)
    for name in blocks:
        if name not in names:
            problem = f"{spelled} is in a Stacked over {name!r}, but has no such axis"
            raise AxisError(message("state dict", problem, f"it has: {describe(names, shape)}"))
    left = tuple(name for name in names if name not in blocks)
    sizes = tuple(size for name, size in zip(names, shape, strict=True) if name not in blocks)
    return Place(spelled, leaf, names, shape, parts, blocks, form(spelled, left, sizes, stored))
