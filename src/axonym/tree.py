"""The functions of `jax.tree`, with named arrays as leaves, and changes of whole models.

A named array whose array `eqx.partition` or `eqx.filter_grad` has removed has no leaf, like None.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import equinox as eqx
import jax

from . import random
from .array import NamedArray, is_named_array
from .axis import Axis, AxisSelector, selector
from .base.kinds import Payload, Tree
from .base.phrases import write_size_conflict
from .errors import AxisNotFoundError, AxisSizeError, message, suggestion
from .layout.assignment import add_bases
from .nn.stack.rounds import map_over_axes
from .nn.stack.stacked import Stacked
from .ops.index import index
from .ops.join import concatenate
from .ops.shape import broadcast_axis
from .partitioning.shard import auto_sharded
from .transform.leaves import is_hole

__all__ = ["flatten", "leaves", "map", "resize_axis", "scan_aware_map", "structure", "unflatten"]

T = TypeVar("T")
IsLeaf: TypeAlias = Callable[[Any], bool] | None


def _is_leaf(is_leaf: IsLeaf) -> Callable[[object], bool]:
    """Make a function that says whether a node is a leaf: a named array, or a leaf by the caller's `is_leaf`."""
    return _is_filled if is_leaf is None else lambda x: _is_filled(x) or is_leaf(x)


def _is_filled(x: object) -> bool:
    """Return whether this is a named array that holds a leaf: an array, or the value that a mask has in its place."""
    if not isinstance(x, NamedArray):
        return False
    # Nearly all hold an array, for which `hasattr` is much faster than `jax.tree.leaves`.
    return hasattr(x.array, "shape") or bool(jax.tree.leaves(x.array))


def map(fn: Callable[..., Any], tree: Tree, *rest: Tree, is_leaf: IsLeaf = None) -> Tree:
    """Apply a function to each leaf; a named array is one leaf, while `jax.tree.map` would pass its plain array.

    Args:
        fn: a function of a leaf of each tree.
        tree: any tree.
        rest: further trees, which have the structure of the first.
        is_leaf: a predicate for further nodes that are leaves.

    Returns:
        A tree of the results.

    Examples:
        >>> axn.tree.map(lambda x: x.sum("embed"), {"weight": axn.ones(axn.Axis("embed", 3))})["weight"].item()
        3.0
    """
    return jax.tree.map(fn, tree, *rest, is_leaf=_is_leaf(is_leaf))


def leaves(tree: Tree, *, is_leaf: IsLeaf = None) -> list[Payload]:
    """List the leaves of a tree; a named array is one leaf.

    Examples:
        >>> axn.tree.leaves({"loss": 0.5, "x": axn.named([1, 2], "pos")})
        [0.5, NamedArray(int32[pos=2])
        [1 2]]
    """
    return jax.tree.leaves(tree, is_leaf=_is_leaf(is_leaf))


def flatten(tree: Tree, *, is_leaf: IsLeaf = None) -> tuple[list[Payload], Any]:
    """Return the leaves and the structure of a tree; a named array is one leaf.

    Examples:
        >>> leaves, structure = axn.tree.flatten({"x": axn.named([1, 2], "pos"), "y": axn.named(3, ())})
        >>> [leaf.names for leaf in leaves], structure
        ([('pos',), ()], PyTreeDef({'x': *, 'y': *}))
    """
    return jax.tree.flatten(tree, is_leaf=_is_leaf(is_leaf))


def structure(tree: Tree, *, is_leaf: IsLeaf = None) -> Any:
    """Return the structure of a tree; a named array is one leaf, so that names do not matter.

    Examples:
        >>> axn.tree.structure({"x": axn.named([1, 2], "pos")}) == axn.tree.structure({"x": 0})
        True
    """
    return jax.tree.structure(tree, is_leaf=_is_leaf(is_leaf))


def unflatten(structure: Any, leaves: Iterable[Payload]) -> Tree:
    """Rebuild a tree from its structure and leaves, as `flatten` returns them.

    Examples:
        >>> leaves, structure = axn.tree.flatten({"x": axn.named([1, 2], "pos")})
        >>> axn.tree.unflatten(structure, [2 * leaf for leaf in leaves])["x"].tolist()
        [2, 4]
    """
    return jax.tree.unflatten(structure, leaves)


def scan_aware_map(fn: Callable[..., Any], tree: Tree, *rest: Tree, is_leaf: IsLeaf = None) -> Tree:
    """Apply a function to each leaf; inside a `Stacked`, to the leaves of each layer.

    All layers are computed at once by `vmap`; `fn` gets arrays without the layer axis, as it would from `map` over a
    `BlockSeq`.

    Args:
        fn, tree, rest, is_leaf: as in `map`.

    Returns:
        A tree of the results; those of a `Stacked` have its layer axis.

    Examples:
        >>> Layers, Embed = axn.make_axes(layers=2, embed=3)
        >>> norms = axn.nn.Stacked.init(Layers, axn.nn.LayerNorm)(Embed)
        >>> sums = axn.tree.scan_aware_map(lambda x: x.sum(), norms)
        >>> sums.stacked.weight
        NamedArray(float32[layers=2])
        [3. 3.]
    """

    def apply(node: Tree, *others: Payload) -> Tree:
        if not isinstance(node, Stacked):
            return fn(node, *others)

        # A `Stacked` may be inside of another one.
        def layer(*layers: Tree) -> Tree:
            return scan_aware_map(fn, *layers, is_leaf=is_leaf)

        stacked = map_over_axes(layer, node.storage)(
            node.stacked, *(other.stacked for other in others)
        )
        return dataclasses.replace(node, stacked=stacked)

    def stops(x: object) -> bool:
        return isinstance(x, Stacked) or (is_leaf is not None and is_leaf(x))

    return map(apply, tree, *rest, is_leaf=stops)


def resize_axis(tree: T, axis: AxisSelector, new_size: int, key: jax.Array | None = None) -> T:
    """Resize an axis in all named arrays of a tree, and in the static fields of its modules.

    Axes derived from it, such as `embed.out` from `embed`, are resized too. A shorter axis keeps the first positions.
    New positions get the mean over the old ones; with a key, they are drawn from a normal distribution with the mean
    and standard deviation of the old ones, truncated at two standard deviations.

    Args:
        tree: any tree, such as a model whose vocabulary grows; arrays may be `jax.ShapeDtypeStruct`.
        axis: the axis; arrays must have the size of an `Axis`.
        new_size: its size in the result.
        key: a key for the new positions.

    Returns:
        The tree with other arrays; those without the axis are the same.

    Raises:
        AxisNotFoundError: if no array has the axis.
        AxisSizeError: if an array has the axis with another size than was given.

    Examples:
        >>> Vocab, Embed = axn.make_axes(vocab=10, embed=4)
        >>> table = axn.nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
        >>> larger = axn.tree.resize_axis(table, "vocab", 16)
        >>> larger.weight.axes, larger.Vocab
        ((Axis(name='vocab', size=16), Axis(name='embed', size=4)), Axis(name='vocab', size=16))
    """
    (name, size), new = selector(axis, "resize_axis"), Axis("new", new_size).size
    known: set[Axis] = set().union(*map(_find_axes, leaves(tree)))
    affected = {own for own in known if name in add_bases((own.name,))}
    if not affected:
        names = sorted({own.name for own in known})
        facts, hint = f"arrays have: {', '.join(names) or 'no axes'}", suggestion(name, names)
        raise AxisNotFoundError(
            message("resize_axis", f"no array has axis {name!r}", facts, hint=hint)
        )
    # All arrays are checked before the first one changes.
    for own in affected:
        if size is not None and own.size != size:
            problem = write_size_conflict(own.name, size, f"has size {own.size}")
            raise AxisSizeError(message("resize_axis", problem))
    # One key a leaf, also where a leaf needs none: whether one array has the axis does not change the values of others.
    keys: Iterator[jax.Array | None] = (
        itertools.repeat(None) if key is None else iter(jax.random.split(key, len(leaves(tree))))
    )

    def resize(leaf: Payload) -> Payload:
        own_key = next(keys)
        for own in _find_axes(leaf):
            # A matrix may have the axis twice, as `embed` and `embed.out`. An abstract array stays abstract.
            if own in affected and isinstance(leaf.array, jax.ShapeDtypeStruct):
                leaf = eqx.filter_eval_shape(_resize, leaf, own, new, own_key)
            elif own in affected:
                leaf = _resize(leaf, own, new, own_key)
        return leaf

    def resize_declared(own: Axis) -> Axis:
        return own.resize(new) if name in add_bases((own.name,)) else own

    result: T = _rebuild(map(resize, tree), resize_declared)
    return result


def _find_axes(leaf: Payload) -> tuple[Axis, ...]:
    """Return the axes of a leaf; no axes if it is no named array, or if a filter has replaced its array."""
    return leaf.axes if isinstance(leaf, NamedArray) and not is_hole(leaf) else ()


def _resize(x: NamedArray, axis: Axis, size: int, key: jax.Array | None) -> NamedArray:
    """Resize one axis of one array."""
    if size <= axis.size:
        return auto_sharded(index(x, {axis: slice(size)}))
    New = axis.resize(size - axis.size)
    mean = x.mean(axis)
    if key is None:
        added = broadcast_axis(mean, New)
    else:
        added = mean + random.truncated_normal(key, (New, *mean.axes), -2.0, 2.0) * x.std(axis)
    # Computing the mean may have widened the dtype, and put the new axis first.
    return auto_sharded(concatenate(axis.name, [x, added.astype(x.dtype).rearrange(x.names)]))


def _rebuild(tree: Tree, change: Callable[[Axis], Axis]) -> Tree:
    """Change the axes in static fields of modules."""
    if is_named_array(tree):
        return tree
    # One level at a time, since JAX rebuilds a tree from its leaves without looking at inner nodes.
    children, structure = jax.tree.flatten(tree, is_leaf=lambda x: x is not tree)
    if len(children) == 1 and children[0] is tree:
        return tree
    made = jax.tree.unflatten(structure, [_rebuild(child, change) for child in children])
    if isinstance(made, eqx.Module):
        for field in dataclasses.fields(made):
            if field.metadata.get("static"):
                # A module is frozen, but this one is new and has no other references.
                object.__setattr__(
                    made, field.name, _change_axes(getattr(made, field.name), change)
                )
    return made


def _change_axes(value: object, change: Callable[[Axis], Axis]) -> object:
    if isinstance(value, Axis):
        return change(value)
    if type(value) is tuple:
        return tuple(_change_axes(part, change) for part in value)
    return value
