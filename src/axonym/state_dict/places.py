"""Internal. The keys and stored forms of the arrays of a tree in a state dict.

A `Place` is an array of the tree and its key, a `Form` says how its dimensions are permuted, split and flattened. They
know nothing of files. `convert` and `fit` use them.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from ..array import NamedArray, is_named_array
from ..axis import names_in, selection
from ..base.kinds import Payload, Tree, Typed, type_text
from ..engine import auto
from ..engine.core import facts, shape_of, sizes_of
from ..engine.operands import own_names
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
from ..layout.assignment import path_text
from ..names import plans
from ..names.plans import Names
from ..nn.stack.block_seq import BlockSeq
from ..nn.stack.interleaved import Interleaved
from ..nn.stack.stacked import Stacked
from ..partitioning.buffers import fill, make_buffer
from ..partitioning.padding import PaddedArray, is_padded
from ..partitioning.trees import is_optimiser_state
from .axes import StoredArray, StoredAxes, StoredAxis
from .layouts import Layout, Stored
from .record import axes_text

Index: TypeAlias = tuple[int, ...]


class Numbers(NamedTuple):
    """The numbers of layers that are stored along axes: the first one, and a step for each axis.

    From number `end` on, there are no layers, only unused places of unequal stages.
    """

    first: int
    steps: Index
    end: int


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
        return tuple(map(self.parts.index, itertools.chain.from_iterable(self.groups)))

    @functools.cached_property
    def reversed_parts(self) -> frozenset[str]:
        """The parts that are stored in reverse, and have more than one element."""
        sizes = zip(self.parts, self.split, strict=True)
        return frozenset(name for name, size in sizes if name in self.flipped and size > 1)

    @functools.cached_property
    def steps(self) -> tuple[slice | EllipsisType, ...]:
        """An index that reverses these parts of the ordered array; the result is an array even without dimensions."""
        names = (self.parts[at] for at in self.order)
        steps = (slice(None, None, -1 if name in self.reversed_parts else None) for name in names)
        return (*steps, ...)

    @functools.cached_property
    def shape(self) -> Index:
        """The stored shape."""
        return tuple(math.prod(axis.size for axis in group) for group in self.axes)

    @functools.cached_property
    def axes(self) -> tuple[tuple[StoredAxis, ...], ...]:
        """The parts of each stored dimension with their sizes."""
        sizes = dict(zip(self.parts, self.split, strict=True))

        def make_axis(name: str) -> StoredAxis:
            return StoredAxis(name, sizes[name], name in self.reversed_parts)

        return tuple(tuple(map(make_axis, group)) for group in self.groups)

    @property
    def text(self) -> str:
        """The stored shape with names, for errors."""
        return axes_text(self.axes, self.shape)

    def store(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Bring an array into its stored form; it is contiguous, since some libraries write its buffer as it is."""
        ordered: NDArray[np.generic] = array.reshape(self.split).transpose(self.order)[self.steps]
        return np.asarray(ordered.reshape(self.shape), order="C")

    def restore(self, stored: NDArray[np.generic]) -> NDArray[np.generic]:
        """Bring an array back from its stored form; without split axes, this is a view, so only used parts are read."""
        apart: NDArray[np.generic] = stored.reshape([self.split[at] for at in self.order])[
            self.steps
        ]
        return apart.transpose(np.argsort(self.order)).reshape(self.array)


def form(path: str, names: Names, shape: Index, stored: Stored | None) -> Form:
    """Work out the stored form of the array at a path, whose dimensions all have names."""
    stored = Stored(names) if stored is None else stored
    where, has = f"layout of {path}", f"the array has: {describe(names, shape)}"
    groups = [names_in(selection(dim)) for dim in stored.dims]
    listed = tuple(itertools.chain.from_iterable(groups))
    parts = list(
        itertools.chain.from_iterable(
            (stored.split[whole][0], whole) if whole in stored.split else (whole,)
            for whole in names
        )
    )
    plans.distinct(tuple(parts), f"{where}: ")
    plans.distinct(listed, f"{where}: ")
    _require_known(where, stored.split, names, has)
    _require_known(where, (*listed, *stored.flipped), parts, has)

    # A split axis keeps its name for the inner part, which varies faster.
    sizes = sizes_of(names, shape)
    for whole, (part, count) in stored.split.items():
        if count < 1 or sizes[whole] % count:
            problem = f"{whole}={sizes[whole]} cannot be split evenly in {part}={count}"
            raise AxisSizeError(message(where, problem, has))
        sizes |= {part: count, whole: sizes[whole] // count}
    # Axes that a layout does not list, such as those of stacked layers, are dimensions of their own in front.
    first = [(name,) for name in parts if name not in listed]
    split = tuple(sizes[name] for name in parts)
    return Form(shape, tuple(parts), split, (*first, *groups), frozenset(stored.flipped))


def _require_known(where: str, names: Iterable[str], known: Sequence[str], has: str) -> None:
    for name in names:
        if name not in known:
            hint = suggestion(name, known)
            problem = f"there is no axis {name!r}"
            raise AxisNotFoundError(message(where, problem, has, hint=hint))


@dataclasses.dataclass(frozen=True)
class Place:
    """An array of a tree, and its place in a state dict.

    Attributes:
        path: the path of the array in the tree.
        leaf: the array, named or plain; of a padded one, what is stored.
        names: a name for each dimension; anonymous ones are counted.
        shape: its shape, with padding.
        parts: the components of its key; `Numbers` stand for the numbers of layers.
        layers: the names of the dimensions along which layers are stored, outermost first.
        form: the stored form, of each layer if there are any, without padding.
    """

    path: str
    leaf: Payload
    names: Names
    shape: Index
    parts: Parts
    layers: Names
    form: Form

    @property
    def array(self) -> Payload:
        """The array without its names."""
        return self.leaf.array if isinstance(self.leaf, NamedArray) else self.leaf

    @functools.cached_property
    def axes(self) -> StoredAxes:
        """The axes of the stored form of one layer; None for dimensions without a name."""
        unnamed = set(self.names).difference(own_names(self.leaf), self.layers)

        def hide_unnamed(group: tuple[StoredAxis, ...]) -> tuple[StoredAxis, ...] | None:
            return group if unnamed.isdisjoint(axis.name for axis in group) else None

        return tuple(map(hide_unnamed, self.form.axes))

    def form_of(self, axes: StoredAxes | None, name_there: Callable[[str], str]) -> Form | None:
        """Return the form of an array that was saved with given axes, in any order; None for axes of another array.

        Args:
            axes: those of each dimension; None if they are not known, which makes it the form of the model.
            name_there: a function from a name in the model to the name in the state dict.
        """
        if axes is None:
            return self.form
        own = self.axes
        if None in own or None in axes:  # dimensions without a name have a place
            pairs = itertools.zip_longest(_rename_axes(own, name_there), axes)
            fits = all(None in pair or pair[0] == pair[1] for pair in pairs)
            return self.form if fits else None
        # The file may have the axes split as the layout of the model does, or unsplit.
        dims = [dim for dim in axes if dim is not None]
        listed = list(itertools.chain.from_iterable(dims))
        left = plans.without(self.names, self.layers)
        for parts, split in ((self.form.parts, self.form.split), (left, self.form.array)):
            names = {name_there(name): name for name in parts}
            if len(names) == len(parts) and sorted(names) == sorted(axis.name for axis in listed):
                groups = tuple(tuple(names[axis.name] for axis in dim) for dim in dims)
                flipped = frozenset(names[axis.name] for axis in listed if axis.flipped)
                return Form(self.form.array, parts, split, groups, flipped)
        return None

    def entries(self) -> Iterator[tuple[str, Index]]:
        """Yield the key of each stored array and the indices of its layer; skip places that have no layer."""
        layers = [range(self.shape[self.names.index(name)]) for name in self.layers]
        for index in itertools.product(*layers):
            at = iter(index)
            key: list[str] = []
            is_stored = True
            for part in self.parts:
                if isinstance(part, Numbers):
                    number = part.first + sum(step * next(at) for step in part.steps)
                    is_stored &= number < part.end
                    part = str(number)
                key.append(part)
            if is_stored:
                yield ".".join(key), index

    def read(self, index: Index) -> NDArray[np.generic]:
        """Bring the part of given layers to the host."""
        array, names = self.array, list(self.names)
        for name, at in zip(self.layers, index, strict=True):
            dim = names.index(name)
            names.remove(name)
            # Only the layer is fetched from devices; `auto.whole` gathers the axis of layers where it is split.
            if isinstance(array, jax.Array):
                array = lax.dynamic_index_in_dim(auto.whole(array, (dim,)), at, dim, keepdims=False)
            else:
                array = array.take(at, dim)
        real: Payload = (*map(slice, self.form.array), ...)
        return on_host(array)[real]

    def block(
        self, at: Sequence[slice], layers: Mapping[Index, NDArray[np.generic]]
    ) -> NDArray[np.generic]:
        """Assemble a block of the array in a new buffer, from the layers that `Form.restore` returns."""
        bounds = [range(*part.indices(size)) for part, size in zip(at, self.shape, strict=True)]
        rest: Tree = tuple(
            part for part, name in zip(at, self.names, strict=True) if name not in self.layers
        )
        # The dots make the result of an index an array, also without dimensions.
        rest += (...,)
        result = make_buffer(tuple(map(len, bounds)), self.array.dtype)
        dims = list(map(self.names.index, self.layers))
        for index in itertools.product(*(bounds[dim] for dim in dims)):
            where: list[Payload] = [slice(None)] * len(bounds)
            for dim, number in zip(dims, index, strict=True):
                where[dim] = number - bounds[dim].start
            own = result[(*where, ...)]
            if index not in layers:  # a place without a layer
                own[...] = 0
                continue
            part = layers[index][rest]
            if part.shape != own.shape:  # the end of the block is padding
                own[...] = 0
                real: Payload = (*map(slice, part.shape), ...)
                own = own[real]
            fill(own, part)
        return result


def _rename_axes(axes: StoredAxes, name_there: Callable[[str], str]) -> StoredAxes:
    """Give axes the names that they have in a state dict."""
    return tuple(
        None if dim is None else tuple(axis._replace(name=name_there(axis.name)) for axis in dim)
        for dim in axes
    )


def on_host(array: Payload) -> NDArray[np.generic]:
    """Gather an array to the host, from all processes that have a part of it."""
    if isinstance(array, jax.Array) and not (
        array.is_fully_addressable or array.is_fully_replicated
    ):
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def require_state(function: str, state: object, hint: str) -> None:
    """Raise unless `state` is a mapping with strings as keys; the hint shows the call."""
    if not isinstance(state, Mapping):
        problem = f"a state dict must be a mapping from keys to arrays, not {type_text(state)}"
        raise OperandError(message(function, problem, hint=hint))
    for key in state:
        if not isinstance(key, str):
            problem = f"keys of a state dict must be strings, not {key!r}"
            raise ArgumentError(message(function, problem, hint=f"write {str(key)!r}"))


def require_values(function: str, key: str, array: Payload) -> None:
    """Raise ArgumentError for an array without values that can be stored."""
    # A tracer first: it may be that of a key or of anything else.
    if isinstance(array, Tracer):
        problem = f"{key!r} is traced: it has no values before the function runs"
        raise ArgumentError(
            message(function, problem, hint="call it outside of jit, grad, vmap and scan")
        )
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        problem = f"{key!r} is a key of jax.random, not an array of numbers"
        hint = "leave it out of the model: eqx.partition; or keep its numbers: jax.random.key_data(key)"
        raise ArgumentError(message(function, problem, hint=hint))
    if isinstance(array, jax.ShapeDtypeStruct):
        problem = f"{key!r} is abstract: it has a shape and a dtype, but no values"
        raise ArgumentError(
            message(function, problem, hint="initialise the model, or load it with from_state_dict")
        )


def spec_of(function: str, state: Mapping[str, Payload], key: str) -> Typed:
    """Return an array of a state dict, or an object with its shape and dtype.

    Raises:
        ArgumentError: if it is abstract.
        OperandError: if it has names, or numpy cannot read it.
    """
    # `StateDict` knows shapes without fetching arrays.
    spec: Callable[[str], Typed] | None = getattr(state, "spec", None)
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
        problem = f"numpy cannot read {key!r}, a {type(value).__name__}"
        cause = str(error).partition("\n")[0]
        hint = "pass tensor.detach(), and .float() of bfloat16; or save to a safetensors file, and use load_state_dict"
        of_torch = type(value).__module__.partition(".")[0] == "torch"
        raise OperandError(
            message(function, problem, cause, hint=hint if of_torch else None)
        ) from error


def axes_of(state: Mapping[str, Payload], key: str, spec: Typed) -> StoredAxes | None:
    """Return the axes that an array of a state dict was saved with, or None; `spec` is the result of `spec_of`."""
    axes = getattr(state, "axes", None)
    if axes is not None:
        found: StoredAxes = axes(key)
        return found
    if isinstance(spec, StoredArray):
        return spec.axes
    return None


def places(tree: Tree, layouts: Mapping[type, Layout]) -> Iterator[Place | None]:
    """Yield the place of each leaf of a tree in order, named arrays as leaves; None for leaves that are not arrays."""
    yield from _walk(tree, (), (), (), None, layouts)


def _walk(
    node: Tree,
    path: Names,
    parts: Parts,
    blocks: Names,
    stored: Stored | None,
    layouts: Mapping[type, Layout],
    optimised: bool = False,
) -> Iterator[Place | None]:
    optimised = optimised or is_optimiser_state(node)
    children = jax.tree.leaves_with_path(node, is_leaf=lambda each: each is not node)
    # A leaf of a tree is its own only child, with no keys.
    if is_named_array(node) or is_padded(node) or (children and not children[0][0]):
        stored_array = node.stored if isinstance(node, PaddedArray) else node
        kept = _place_reduced_state(stored_array, path) if optimised else None
        yield kept or _place_leaf(node, path, parts, blocks, stored)
        return
    if isinstance(node, Stacked | BlockSeq | Interleaved):
        for where, part, further, layer in _walk_layers(node):
            inner = (*path, *where), (*parts, part), (*blocks, *further)
            yield from _walk(layer, *inner, None, layouts, optimised)
        return
    layout = _find_layout(node, layouts)
    forms: Mapping[str, Stored] = {}
    if layout is not None:
        forms = _check_forms(node, path, layout, [path_text(keys) for keys, _ in children])
    for keys, child in children:
        name = path_text(keys)
        own = (*path, name), (*parts, name), blocks, forms.get(name)
        yield from _walk(child, *own, layouts, optimised)


def _find_layout(node: object, layouts: Mapping[type, Layout]) -> Layout | None:
    # A subclass is stored as its base.
    return next((layouts[kind] for kind in type(node).__mro__ if kind in layouts), None)


def _check_forms(
    node: Tree, path: Names, layout: Layout, known: Sequence[str]
) -> Mapping[str, Stored]:
    """Get the forms of the fields of a module from a layout, and check them."""
    forms: Any = layout(node)
    if not isinstance(forms, Mapping):
        problem = f"a layout must return a dict from fields to Stored, not {type_text(forms)}"
        raise OperandError(
            message(
                f"layout of {type(node).__name__}", problem, hint='write {"weight": Stored(...)}'
            )
        )
    for field, stored in forms.items():
        where = f"layout of {'.'.join((*path, str(field)))}"
        # A bias that is None is not in the tree.
        if field not in known and not hasattr(node, str(field)):
            problem = f"{type(node).__name__} has no such field"
            there = f"it has: {', '.join(known) or 'none'}"
            raise ArgumentError(message(where, problem, there, hint=suggestion(field, known)))
        if not isinstance(stored, Stored):
            problem = f"the form of a field must be a Stored, not {type_text(stored)}"
            raise OperandError(message(where, problem, hint='write Stored(("mlp", "embed"))'))
    return forms


def _walk_layers(node: Tree) -> Iterator[tuple[Names, str | Numbers, Names, Tree]]:
    """Yield the layers of a module that has several: path, number in keys, axis of storage, and module.

    Numbers are those of `node.unstacked()`: all modules with the same layers have the same keys.
    """
    if isinstance(node, Stacked):
        yield ("stacked",), *_number_layers(node, 0, 1, node.Block.size), node.stacked
    elif isinstance(node, BlockSeq):
        for i, layer in enumerate(node.blocks):
            yield ("blocks", str(i)), str(i), (), layer
    else:
        # Kinds of layers alternate: layer `i` of a block is number `i`, then `i + len(kinds)`, and so on.
        kinds, Block = node.repeated.stacked, node.repeated.Block
        for i, layer in enumerate(kinds):
            where = ("repeated", "stacked", str(i))
            yield where, *_number_layers(node.repeated, i, len(kinds), node.Block.size), layer
        for i, layer in enumerate(node.rest):
            yield ("rest", str(i)), str(Block.size * len(kinds) + i), (), layer


def _number_layers(node: Stacked[Any], first: int, period: int, end: int) -> tuple[Numbers, Names]:
    """Return the numbers of layers in keys, and the axes along which they are stored."""
    *outer, Stored = node.storage
    steps = (*(Stored.size * period for _ in outer), period)
    return Numbers(first, steps, end), tuple(axis.name for axis in node.storage)


def _place_reduced_state(leaf: Payload, path: Names) -> Place | None:
    """Return the place of an optimiser's array with fewer dimensions than names, unchanged under its path."""
    if not isinstance(leaf, NamedArray) or not hasattr(leaf.array, "shape"):
        return None
    shape = leaf.array.shape
    if len(shape) >= len(leaf.names):
        return None
    names = _number_dimensions(range(len(shape)))
    where = ".".join(path)
    return Place(where, leaf, names, shape, path, (), form(where, names, shape, None))


def _number_dimensions(dims: Iterable[int]) -> Names:
    """Name dimensions that have no names."""
    return tuple(f"dimension {at}" for at in dims)


def _place_leaf(
    leaf: Payload, path: Names, parts: Parts, blocks: Names, stored: Stored | None
) -> Place | None:
    padding = leaf.padding if isinstance(leaf, PaddedArray) else ()
    leaf = leaf.stored if isinstance(leaf, PaddedArray) else leaf
    array = leaf.array if isinstance(leaf, NamedArray) else leaf
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        return None
    spelled = ".".join(path)
    names = own_names(leaf)
    shape = shape_of(spelled, array, names)
    unnamed = len(shape) - len(names)
    # Plain arrays have layers first.
    first: Names = () if isinstance(leaf, NamedArray) else blocks[:unnamed]
    names = (*first, *_number_dimensions(range(len(first), unnamed)), *names)
    # A layer of a `Stacked` that ignores its axis would be stored once for all layers.
    for name in blocks:
        if name not in names:
            problem = f"{spelled} is in a Stacked over {name!r}, but has no such axis"
            raise AxisError(message("state dict", problem, f"it has: {describe(names, shape)}"))
    left = sizes_of(names, shape)
    # An optimiser may have a placeholder in the place of the parameter.
    left |= {own.name: own.size for own in padding if left.get(own.name) == own.stored}
    for name in blocks:
        left.pop(name, None)
    own = form(spelled, tuple(left), tuple(left.values()), stored)
    return Place(spelled, leaf, names, shape, parts, blocks, own)
