"""Count, list and select the arrays of a whole model, by path and by axis.

A path is the way to an array in the tree: `blocks.stacked.mlp.layers.0.weight`. Trees may be abstract, such as results
of `eqx.filter_eval_shape`.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import jax
import jax.numpy as jnp

from .array import is_named_array
from .axis import AxisSelection, names_in, selection
from .base.kinds import Payload, Tree, has_type, type_text
from .engine.core import payload_of, shape_of, sizes_of
from .engine.operands import own_names
from .errors import ArgumentError, OperandError, message, suggestion
from .layout.assignment import Mappings, MeshLike, ResourceMapping, matches, path_text
from .names.plans import Names
from .nn.roles import (
    INPUTS,
    STACKS,
    Dimension,
    Kind,
    Overrides,
    Part,
    Role,
    kind_of,
    state_roles,
)
from .nn.settings import check_int
from .nn.stack.stacked import Stacked
from .partitioning.padding import PaddedArray
from .report.show import ArrayLayout, arrays_of, show
from .report.table import Cell, Printed, Table, byte_text, group_rows, total

__all__ = [
    "Parameter",
    "RoleTable",
    "Summary",
    "count",
    "decay_mask",
    "kinds",
    "labels",
    "nbytes",
    "roles",
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
        depth: the number of path components that arrays in a row share, or None for a row for each array.

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
        # A dict keeps the order in which parts occur in the model.
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
        shown = group_rows(rows)
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
        depth: sum up arrays whose paths have the same first `depth` components.
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
    if depth is not None and check_int("table", "depth", depth) < 0:
        raise ArgumentError(message("table", f"depth must not be negative, got {depth}"))
    return Summary(show(tree, mapping, mesh, strict=strict).arrays, depth)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A floating array of a model, and the roles of its axes by the modules around it.

    Attributes:
        path: its path.
        array: the array, named or plain; of a padded one, what is stored.
        sizes: the sizes of its named axes, without padding.
        layers: its axes along which the layers of a `Stacked` are stored.
        roles: what each axis is for, by its name, or by its number if it has none, inputs before outputs in the order
            in which the module declares them: "stack" for layers, and for whatever a `vmap` of `init` added; "expert";
            "input", or "window" of a convolution, or "table" if positions are looked up; "output"; None if the module
            does not declare it.
        heads: those of its axes that count heads.
        kind: "matrix" if it has inputs; "table" if its inputs are looked up, or its outputs score the entries of a
            table; "shift" for a bias, and "scale" for other arrays without inputs; "unknown" if it has several axes
            that no module declares.

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
    roles: Mapping[Dimension, Role | None]
    heads: Names
    kind: Kind

    @property
    def inputs(self) -> Names | None:
        """The named axes that the module sums over or looks up; None if the module does not declare them."""
        if None in self.roles.values() or not self.roles:
            return None
        return tuple(name for name in self.sizes if self.roles[name] in INPUTS)

    @property
    def looked_up(self) -> bool:
        """Whether `inputs` are looked up by index."""
        return "table" in self.roles.values()

    def list_axes(self, *roles: Role) -> tuple[Dimension, ...]:
        """Return the axes with one of the given roles, in the order in which the module declares them.

        Examples:
            >>> layer = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
            >>> weight, bias = axn.parameters.walk(layer)
            >>> weight.list_axes("input"), bias.list_axes("input", "output")
            (('embed',), ('mlp',))
        """
        return tuple(at for at, role in self.roles.items() if role in roles)


def walk(tree: Tree, overrides: Overrides | None = None) -> Iterator[Parameter]:
    """Yield the floating arrays of a tree, with the roles of their axes.

    A module declares them by static fields: `In` and `Out`, as in `Linear`; `Vocab` and `Embed`, or `Pos` and `Embed`;
    `Experts`; or `axis`, if there are no inputs, as in norms. A bias has the axes of `Out`, which a weight may call
    `<name>.out`. Further axes of a layer are stacks. If fields are not enough, a module can have an attribute
    `axis_roles`, in the form of the `overrides` of `roles`; it also applies to the modules inside.

    Args:
        tree: a model, or a part of one, concrete, traced or abstract.
        overrides: other roles; see `roles`.

    Yields:
        A `Parameter` for each floating array, in the order of the leaves.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> layer = axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
        >>> [(p.path, p.inputs) for p in axn.parameters.walk(layer)]
        [('weight', ('embed',)), ('bias', ())]
    """
    found = jax.tree.leaves_with_path(tree, is_leaf=is_named_array)
    stated = [_read_roles(tree, keys, leaf, overrides or {}) for keys, leaf in found]
    tables: set[Dimension] = set()  # axes of some table, whose scores other arrays may be
    for own, marks in stated:
        every = {**own, **marks}
        tables.update(at for at, role in every.items() if role == "table" and isinstance(at, str))
    for (keys, leaf), (own, marks) in zip(found, stated, strict=True):
        names, array = own_names(leaf), payload_of(leaf)
        if not _is_floating(array):
            continue
        if isinstance(names, Part):
            yield dataclasses.replace(names.whole, array=leaf)
            continue
        nodes = list(_along(tree, keys))
        stored = {axis.name for node in nodes if isinstance(node, Stacked) for axis in node.storage}
        path, sizes = path_text(keys), sizes_of(names, shape_of("walk", array, names))
        if nodes and isinstance(nodes[-1], PaddedArray):
            # An optimiser may have a placeholder in the place of the parameter.
            padding = nodes[-1].padding
            sizes |= {pad.name: pad.size for pad in padding if sizes.get(pad.name) == pad.stored}
        yield Parameter(
            path=path,
            array=leaf,
            sizes=sizes,
            layers=tuple(name for name in names if name in stored),
            roles=own,
            heads=tuple(at for at in names if marks.get(at) == "head"),
            kind=kind_of(own, tables, path.rpartition(".")[2]),
        )


def _read_roles(
    tree: Tree, keys: tuple[Any, ...], leaf: Payload, overrides: Overrides
) -> tuple[dict[Dimension, Role | None], dict[Dimension, Role]]:
    """Return the roles that modules and the user declare for axes of an array or its place in a mask, and marks."""
    names, array = own_names(leaf), payload_of(leaf)
    ndim = len(array.shape) if has_type(array) else len(names)
    if isinstance(names, Part) or ndim < len(names):
        return {}, {}
    return state_roles(list(_along(tree, keys)), names, ndim, path_text(keys), overrides)


def _is_floating(array: Payload) -> bool:
    """Return whether this is a floating array, concrete, traced or abstract."""
    return has_type(array) and bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _along(tree: Tree, keys: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the nodes on the path to a leaf, as far as its keys can be followed."""
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


@dataclasses.dataclass(frozen=True, repr=False)
class RoleTable(Printed):
    """The parameters of a model with the roles of their axes, which print as a table, also in notebooks.

    Attributes:
        parameters: the parameters.

    Examples:
        >>> layer = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
        >>> [own.kind for own in axn.parameters.roles(layer).parameters]
        ['matrix', 'shift']
    """

    parameters: tuple[Parameter, ...]

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        header = ("parameter", "kind", "stacks", "inputs", "outputs", "heads", "not declared")
        rows: list[tuple[str, *tuple[Cell, ...]]] = []
        for own in self.parameters:
            stacks, inputs = _format_axes(own, STACKS), _format_axes(own, INPUTS)
            outputs, rest = _format_axes(own, ("output",)), _format_axes(own, (None,))
            rows.append((own.path, own.kind, stacks, inputs, outputs, own.heads, rest))
        kept = [at for at in range(len(header)) if at < 5 or any(row[at] for row in rows)]
        shown = tuple(tuple(row[at] for at in kept) for row in group_rows(rows))
        yield Table(tuple(header[at] for at in kept), shown, None, ())


def _format_axes(own: Parameter, roles: Collection[object]) -> tuple[str, ...]:
    """Format the axes with the given roles; an axis without a name is shown by its number."""
    sizes: dict[Dimension, int] = dict(enumerate(payload_of(own.array).shape))
    sizes.update(own.sizes)
    return tuple(f"{at}={sizes[at]}" for at, role in own.roles.items() if role in roles)


def roles(model: Tree, overrides: Overrides | None = None) -> RoleTable:
    """List the roles of the axes of each parameter, as optimisers need them.

    Layers of Axonym declare these roles, so a module made of such layers need not; see `walk` for other modules.

    Args:
        model: a model, which may be abstract.
        overrides: other roles, by a pattern of paths as in `Mappings`, `{"kernel": {"embed": "input"}}`, where an array
            without names takes a tuple with a role for each dimension; or by the name of an axis,
            `{"ensemble": "stack"}`. "head" marks an axis as one of heads, and "table" as a vocabulary. By its name
            alone, an axis that its module declares as an input or output remains so.

    Raises:
        ArgumentError: if an override matches nothing, or its role is unknown.

    Examples:
        >>> Vocab, Embed, Heads, HeadDim = axn.make_axes(vocab=10, embed=8, heads=2, head_dim=4)
        >>> k_table, k_mix = jax.random.split(jax.random.key(0))
        >>> table = axn.nn.Embedding.init(Vocab, Embed, key=k_table)
        >>> axn.parameters.roles([table, axn.nn.Linear.init(Embed, (Heads, HeadDim), key=k_mix)])
        parameter  kind    stacks  inputs    outputs
        0.weight   table           vocab=10  embed=8
        1.weight   matrix          embed=8   heads=2, head_dim=4
        1.bias     shift                     heads=2, head_dim=4
    """
    found = tuple(walk(model, overrides))
    for given, own in (overrides or {}).items():
        known = {own.path for own in found}
        is_known = any(matches(given, path) for path in known)
        if isinstance(own, str):
            known = {name for own in found for name in own.sizes}
            is_known = given in known
        if not is_known:
            what = "parameter has axis" if isinstance(own, str) else "path matches"
            facts = f"known: {', '.join(sorted(known)) or 'none'}"
            raise ArgumentError(
                message("roles", f"no {what} {given!r}", facts, hint=suggestion(given, known))
            )
        each = (own,) if isinstance(own, str) else own.values() if isinstance(own, Mapping) else own
        for role in each:
            if role not in get_args(Role):
                facts = f"known: {', '.join(map(repr, get_args(Role)))}"
                near = suggestion(str(role), get_args(Role))
                raise ArgumentError(message("roles", f"unknown role {role!r}", facts, hint=near))
    return RoleTable(found)


def kinds(tree: Tree, overrides: Overrides | None = None) -> Tree:
    """Label each floating array by its kind: "matrix", "table", "scale", "shift" or "unknown"; see `Parameter`.

    `optax.multi_transform` takes the function itself as its labels.

    Args:
        tree: a model.
        overrides: other roles; see `roles`.

    Returns:
        The tree with a label in place of each floating array, named or plain, and None for other leaves.

    Examples:
        >>> import optax
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> model = axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
        >>> axn.parameters.kinds(model).weight
        'matrix'
        >>> each = {"matrix": optax.adamw(1e-3), "shift": optax.sgd(1e-2)}
        >>> state = optax.multi_transform(each, axn.parameters.kinds).init(model)
    """
    known = {own.path: own.kind for own in walk(tree, overrides)}
    return labels(tree, lambda path, _: known[path])


def labels(tree: Tree, label: Callable[[str, Any], Any]) -> Tree:
    """Label the floating arrays of a tree by their paths and axes, for `optax.multi_transform`.

    Optax calls a callable tree, and most models are callable. So give Optax a function that makes the labels:
    `lambda model: axn.parameters.labels(model, label)`.

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
    # A function may select nothing on purpose; a pattern that does is misspelt.
    paths = [parameter.path for parameter in walk(tree)]
    if not any(matches(predicate, path) for path in paths):
        shown = ", ".join(paths[:5]) or "none"
        if len(paths) > 5:
            shown += ", ..."
        raise ArgumentError(message("select", f"no path matches {predicate!r}", f"paths: {shown}"))
    return _replace(tree, lambda path, _: matches(predicate, path), False)


def decay_mask(tree: Tree, *, apart: AxisSelection = ()) -> Tree:
    """Select the arrays to apply weight decay to, as the `mask` of `optax.adamw`.

    These are floating arrays with two or more axes; if their module declares inputs, at least one axis must be an
    input: see `walk`. Stacks, such as the layer axes of `Stacked`, do not count as axes; dimensions of plain arrays
    count only in modules of `equinox.nn`. So the bias of a layer with several output axes is not decayed, and neither
    is the weight of a norm over several axes.

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
    # An array whose module declares nothing decays if it has names; others have no axes.
    decayed: set[str] = set()
    for own in walk(tree):
        axes = [at for at, role in own.roles.items() if role not in STACKS and at not in ignored]
        has_names = bool(own.sizes) and own.kind == "unknown"
        if len(axes) > 1 and (has_names or own.kind in ("matrix", "table")):
            decayed.add(own.path)
    return select(tree, lambda path, _: path in decayed)
