"""Count, list and select the arrays of a whole model, by path and by axis.

A path is the way to an array in the tree: `blocks.stacked.mlp.layers.0.weight`. Trees may be abstract, such as results
of `eqx.filter_eval_shape`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

from .array import is_named_array
from .axis import AxisSelection, axis_name, names_in, selection
from .base.kinds import Payload, Tree, has_type, type_text
from .engine.core import payload_of, shape_of, sizes_of
from .engine.operands import own_names
from .errors import ArgumentError, OperandError, message
from .layout.assignment import Mappings, MeshLike, ResourceMapping, matches, path_text
from .names import plans
from .names.plans import Names
from .nn.settings import integer
from .nn.stack.stacked import Stacked
from .partitioning.trees import find_static_axes
from .report.show import ArrayLayout, arrays_of, show
from .report.table import Cell, Printed, Table, byte_text, grouped, total

__all__ = [
    "Parameter",
    "Summary",
    "count",
    "decay_mask",
    "labels",
    "nbytes",
    "select",
    "table",
    "walk",
]

Predicate: TypeAlias = str | Callable[[str, Any], bool]
"""A pattern of paths, as in `Mappings`, or a function of a path and an array."""
Rows: TypeAlias = tuple[tuple[str, ...], Sequence[tuple[str, *tuple[Cell, ...]]], tuple[Cell, ...]]
"""The header of a table, its rows, and the beginning of its last one."""


def count(tree: Tree) -> int:
    """Count the elements of all arrays of a tree.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> axn.parameters.count(axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(0)))
        144
    """
    return sum(math.prod(array.shape) for _, _, array in arrays_of(tree, "count"))


def nbytes(tree: Tree) -> int:
    """Count the bytes of all arrays of a tree, concrete or abstract.

    Examples:
        >>> axn.parameters.nbytes({"w": axn.zeros({"embed": 8, "mlp": 16}), "b": jnp.zeros(16)})
        576
    """
    arrays = arrays_of(tree, "nbytes")
    return sum(math.prod(array.shape) * array.dtype.itemsize for _, _, array in arrays)


@dataclasses.dataclass(frozen=True, repr=False)
class Summary(Printed):
    """The arrays of a tree and their sizes, which print as a table, also in notebooks; see `table`.

    Attributes:
        arrays: each array and its layout.
        depth: the number of path components that rows sum over, or None for a row for each array.

    Examples:
        >>> summary = axn.parameters.table({"w": axn.zeros({"embed": 8, "mlp": 16})})
        >>> summary.count, summary.nbytes, list(summary.groups)
        (128, 512, ['w'])
    """

    arrays: tuple[ArrayLayout, ...]
    depth: int | None = None

    @property
    def groups(self) -> Mapping[str, tuple[ArrayLayout, ...]]:
        """The arrays by the first `depth` components of their paths."""
        found: dict[str, list[ArrayLayout]] = {}
        for array in self.arrays:
            parts = array.path.split(".")
            found.setdefault(".".join(parts[: self.depth]), []).append(array)
        return {path: tuple(arrays) for path, arrays in found.items()}

    @property
    def count(self) -> int:
        """The number of elements of all arrays."""
        return sum(math.prod(array.shape) for array in self.arrays)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all arrays."""
        return sum(array.nbytes or 0 for array in self.arrays)

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        if not self.arrays:
            yield "no arrays"
            return
        numbers = ("parameters", "bytes", "per device")
        header, rows, last = self._list_arrays() if self.depth is None else self._list_groups()
        shown = grouped(rows)
        # A sum below a single row would only repeat it.
        sums = None if len(shown) == 1 else (*last, *_sums(self.arrays))
        yield Table((*header, *numbers), shown, sums, numbers)

    def _list_arrays(self) -> Rows:
        rows = [(*array.cells[:4], *_sums((array,))) for array in self.arrays]
        header = ("array", "axes", "dtype", "layout")
        return header, rows, ("all", f"{len(self.arrays)} arrays", "", "")

    def _list_groups(self) -> Rows:
        # The path is empty if depth is 0.
        rows = [(path or "all", str(len(own)), *_sums(own)) for path, own in self.groups.items()]
        return ("part", "arrays"), rows, ("all", str(len(self.arrays)))


def _sums(arrays: tuple[ArrayLayout, ...]) -> tuple[str, str, str]:
    """Write the elements, the bytes and the bytes per device of arrays."""
    own, held = Summary(arrays), total(array.nbytes_per_device for array in arrays)
    return f"{own.count:,}", byte_text(own.nbytes), byte_text(held)


def table(
    tree: Tree,
    depth: int | None = None,
    *,
    mapping: ResourceMapping | Mappings | None = None,
    mesh: MeshLike | None = None,
    strict: bool = True,
) -> Summary:
    """List the arrays of a tree: path, axes, dtype, layout, elements, bytes and bytes per device.

    Args:
        tree: any tree.
        depth: sum up arrays that have this many first components of their paths in common.
        mapping: show the layout by this mapping, not the actual one; see `partitioning.show`.
        mesh: the mesh for that; by default the one of `set_mesh`.
        strict: raise for keys of a given mapping that no array of the tree has.

    Returns:
        An object that prints as a table, also in notebooks, and has the numbers as attributes. Arrays that differ only
        in numbers in their paths share a row, with the numbers of one of them.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> model = jax.eval_shape(lambda: axn.nn.MLP.init(Embed, Embed, Mlp, 1, key=jax.random.key(0)))
        >>> axn.parameters.table(model)
        array            axes             dtype    layout     parameters    bytes  per device
        layers.0.weight  embed=8, mlp=16  float32  not known         128    512 B
        layers.0.bias    mlp=16           float32  not known          16     64 B
        layers.1.weight  mlp=16, embed=8  float32  not known         128    512 B
        layers.1.bias    embed=8          float32  not known           8     32 B
        all              4 arrays                                    280  1.1 KiB
    """
    if depth is not None and integer("table", "depth", depth) < 0:
        raise ArgumentError(message("table", f"depth must not be negative, got {depth}"))
    return Summary(show(tree, mapping, mesh, strict=strict).arrays, depth)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A floating array of a model, and the roles of its axes by the modules around it.

    Attributes:
        path: its path.
        array: the array, named or plain.
        sizes: the sizes of its named axes.
        layers: its axes along which the layers of a `Stacked` are stored.
        inputs: its axes that its module sums over or looks up, or None if the module does not declare them.
        looked_up: whether `inputs` are looked up by index.

    Examples:
        >>> Vocab, Embed = axn.make_axes(vocab=10, embed=4)
        >>> table = axn.nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
        >>> [(p.path, p.sizes, p.inputs, p.looked_up) for p in axn.parameters.walk(table)]
        [('weight', {'vocab': 10, 'embed': 4}, ('vocab',), True)]
    """

    path: str
    array: Payload
    sizes: Mapping[str, int]
    layers: Names
    inputs: Names | None
    looked_up: bool


def walk(tree: Tree) -> Iterator[Parameter]:
    """Yield the floating arrays of a tree, with the roles of their axes.

    A module declares them by static fields: `In` and `Out`, as in `Linear`; `Vocab` and `Embed`, or `Pos` and `Embed`;
    or `axis`, if there are no inputs, as in norms. The axes of `Out` (also as `<name>.out`) are outputs, axes of other
    static fields, such as `Experts`, are neither, and all others are inputs; a bias has none.

    Args:
        tree: a model, or a part of one, concrete, traced or abstract.

    Yields:
        A `Parameter` for each floating array, in the order of the leaves.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> layer = axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
        >>> [(p.path, p.inputs) for p in axn.parameters.walk(layer)]
        [('weight', ('embed',)), ('bias', ())]
    """
    for keys, leaf in jax.tree.leaves_with_path(tree, is_leaf=is_named_array):
        names, array = own_names(leaf), payload_of(leaf)
        if not _is_floating(array):
            continue
        shape = shape_of("walk", array, names)
        layers: list[str] = []
        owner: eqx.Module | None = None
        # The innermost module declares the roles; any `Stacked` around it adds an axis that has none.
        for node in _along(tree, keys):
            if isinstance(node, Stacked):
                layers += [axis.name for axis in node.storage if axis.name in names]
            if isinstance(node, eqx.Module):
                owner = node
        own = plans.without(names, tuple(layers))
        inputs = None if owner is None else _inputs(owner, own)
        yield Parameter(
            path=path_text(keys),
            array=leaf,
            sizes=sizes_of(names, shape),
            layers=tuple(layers),
            inputs=inputs,
            looked_up=bool(inputs) and owner is not None and "In" not in find_static_axes(owner),
        )


def _is_floating(array: Payload) -> bool:
    """Return whether this is a floating array, concrete, traced or abstract."""
    return has_type(array) and bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _along(tree: Tree, keys: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the nodes on the way to a leaf, as far as its keys lead."""
    for key in keys:
        yield tree
        if isinstance(key, jax.tree_util.GetAttrKey):
            tree = getattr(tree, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            tree = tree[key.idx]
        elif isinstance(key, jax.tree_util.DictKey):
            tree = tree[key.key]
        else:
            return


def _inputs(owner: eqx.Module, names: Names) -> Names | None:
    """Return the axes of an array that its module sums over, or None if it does not declare them."""
    declared = {field: axis_name(axes) for field, axes in find_static_axes(owner).items()}
    # The scale and the bias of a norm have no inputs, although they have its axes.
    if "axis" in declared and set(names) <= set(declared["axis"]):
        return ()
    for In, Out in (("In", "Out"), ("Vocab", "Embed"), ("Pos", "Embed")):
        if In in declared and Out in declared:
            outputs = declared.pop(Out)
            # Where an axis is both input and output, the weight has it twice, and "<name>.out" is the output.
            derived = {f"{name}.out" for name in outputs}.intersection(names)
            outputs = (*derived, *(name for name in outputs if f"{name}.out" not in derived))
            apart = set().union(*declared.values()) - {*outputs, *declared.pop(In)}
            return plans.without(names, (*outputs, *apart))
    return None


def labels(tree: Tree, label: Callable[[str, Any], Any]) -> Tree:
    """Label the floating arrays of a tree by their paths and axes, for `optax.multi_transform`.

    Optax calls what is callable, as most models are, and so are their labels. So give it a function that makes the
    labels: `lambda model: axn.parameters.labels(model, label)`.

    Args:
        tree: any tree.
        label: a function of a path and an array, such as `lambda path, x: "table" if "vocab" in x.names else "rest"`.

    Returns:
        The tree with a label in place of each floating array, named or plain, and None for other leaves.

    Raises:
        OperandError: if `label` is not callable.

    Examples:
        >>> import optax
        >>> Vocab, Embed = axn.make_axes(vocab=10, embed=4)
        >>> model = axn.nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
        >>> label = lambda path, x: "table" if "vocab" in x.names else "rest"
        >>> axn.parameters.labels(model, label).weight
        'table'
        >>> each = {"table": optax.sgd(0.1), "rest": optax.adam(1e-3)}
        >>> optimizer = optax.multi_transform(each, lambda model: axn.parameters.labels(model, label))
        >>> state = optimizer.init(model)
    """
    if not callable(label):
        problem = f"expected a function of a path and an array, got {type_text(label)}"
        raise OperandError(
            message(
                "labels",
                problem,
                hint='write lambda path, x: "table" if "vocab" in x.names else None',
            )
        )
    return _replace(tree, label, None)


def _replace(tree: Tree, label: Callable[[str, Any], Any], other: Any) -> Any:
    """Replace each floating array by its label, and other leaves by `other`."""
    # `walk` and `map` visit the leaves in one order, so that each leaf gets its own label.
    own = iter([label(parameter.path, parameter.array) for parameter in walk(tree)])

    def replace(leaf: Payload) -> Any:
        return next(own) if _is_floating(payload_of(leaf)) else other

    return jax.tree.map(replace, tree, is_leaf=is_named_array)


def select(tree: Tree, predicate: Predicate) -> Tree:
    """Select floating arrays of a tree, as `optax.masked` and `eqx.partition` take it.

    Args:
        tree: any tree.
        predicate: a function of a path and an array, or a pattern of paths as in `Mappings`: a run of components with
            dots between them, also with wildcards, such as `embedding` or `mlp.*.weight`.

    Returns:
        The tree with True or False in place of each leaf; a named array is one leaf.

    Raises:
        ArgumentError: if no path matches the pattern.
        OperandError: if it is neither a pattern nor a function.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> model = axn.nn.MLP.init(Embed, Embed, Mlp, 1, key=jax.random.key(0))
        >>> axn.parameters.select(model, "layers.1").layers[1].weight
        True
        >>> axn.parameters.select(model, lambda path, x: len(x.names) > 1).layers[1].bias
        False
    """
    if not isinstance(predicate, str):
        if not callable(predicate):
            problem = f"expected a pattern of paths, or a function of a path and an array, got {type_text(predicate)}"
            raise OperandError(
                message(
                    "select", problem, hint='write "mlp.*.weight", or a function to join several'
                )
            )
        return _replace(tree, lambda path, x: bool(predicate(path, x)), False)
    paths = [parameter.path for parameter in walk(tree)]
    if not any(matches(predicate, path) for path in paths):
        shown = ", ".join(paths[:5]) or "none"
        if len(paths) > 5:
            shown += ", ..."
        raise ArgumentError(message("select", f"no path matches {predicate!r}", f"paths: {shown}"))
    return _replace(tree, lambda path, _: matches(predicate, path), False)


def decay_mask(tree: Tree, *, apart: AxisSelection = ()) -> Tree:
    """Select the arrays to apply weight decay to, as the `mask` of `optax.adamw`.

    These are floating arrays with two or more axes, at least one of which is an input, if their module declares it: see
    `walk`. The layer axes of `Stacked` do not count, and plain arrays have no axes. So the bias of a layer with several
    output axes is not decayed, and neither is the weight of a norm over several axes.

    Args:
        tree: a model.
        apart: names of further axes that do not count, such as "experts" in a module of your own.

    Returns:
        The tree with True or False in place of each leaf; a named array is one leaf.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> mask = axn.parameters.decay_mask(axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(0)))
        >>> mask.weight, mask.bias
        (True, False)
    """
    ignored = names_in(selection(apart, "decay_mask"))
    # `!= ()` is also true of None: arrays decay whose modules do not declare their inputs.
    decayed = {
        parameter.path
        for parameter in walk(tree)
        if len(set(parameter.sizes) - {*parameter.layers, *ignored}) > 1 and parameter.inputs != ()
    }
    return select(tree, lambda path, _: path in decayed)
