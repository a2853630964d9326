"""The claim that storage does not matter: the order of axes, stacked layers, and merged axes such as heads."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from ..array import NamedArray, is_named_array
from ..axis import Axis, AxisSelector, axis_name
from ..base.kinds import Tree, has_type
from ..errors import ArgumentError, describe, message
from ..layout.assignment import path_text
from ..nn.stack.block_seq import BlockSeq
from ..nn.stack.interleaved import Interleaved
from ..nn.stack.stacked import Stacked
from .differences import differences, find_largest
from .explain import fail, find_factor
from .program import add_losses, is_float, is_key, is_loss, update

__all__ = ["assert_same_storage"]


class _Form(NamedTuple):
    """Another way to store the same model.

    Attributes:
        what: the way, for errors.
        axis: the axis that is stored in another way, or None.
        path: the path of the stacked layers that are stored in another way; None if arrays are.
        change: changes a model, its arguments, or its gradient.
        read: makes the function and arguments to run from a model and arguments that are stored in this way.
    """

    what: str
    axis: str | None
    path: str | None
    change: Callable[[Tree], Tree]
    read: Callable[[Tree], Tree] = lambda tree: tree


def assert_same_storage(
    f: Callable[..., Any],
    *args: Tree,
    optimizer: Any = None,
    merged: Mapping[str, Sequence[AxisSelector]] | None = None,
    like: Callable[..., Any] | None = None,
) -> None:
    """Check that values, gradients and updates are the same however arrays are stored.

    All axes are stored in reverse order, stacked layers one by one, and, with `merged`, some axes as one. Random
    numbers are drawn in the order of axes, so a function that takes a key is not checked with axes in reverse order.
    Gradients and updates come from all results without axes, such as losses.

    Args:
        f: any function of named arrays, a module or its method.
        args: its arguments.
        optimizer: a transformation of Optax, whose first updates are compared: for the arrays of the function, or, if
            it has none, of the first argument.
        merged: axes to merge, from the slowest to the fastest, by the name of the merged axis, such as {"features":
            ("heads", "head_dim")}. They are merged in all arrays that have them.
        like: a function or module that reads arrays with merged axes, such as the same model written for them. The
            arrays of a module are replaced by those of `f` at the same paths. By default, `f` runs with the axes split
            again, so only the optimiser sees them merged. An optimiser that asks layers for the roles of axes, as those
            of `axn.optim` do, needs the module.

    Raises:
        ClaimError: with the way of storage, the result or the parameter that differs, and its layer.
        ArgumentError: if there is nothing to store in another way, no array has the axes to merge, or `like` has
            other arrays than `f`.

    Examples:
        >>> Layers, Embed, Batch = axn.make_axes(layers=3, embed=4, batch=2)
        >>> norms = axn.nn.Stacked.init(Layers, axn.nn.LayerNorm)(Embed)
        >>> x = axn.random.normal(jax.random.key(0), (Batch, Embed))
        >>> axn.testing.assert_same_storage(lambda norms, x: axn.square(norms.fold(x)).mean(), norms, x)
    """
    forms = list(_list_forms(f, args))
    for name, axes in (merged or {}).items():
        forms.append(_make_merged((f, args), name, [axis_name(axis) for axis in axes], like))
    if not forms:
        problem = "no argument has two named axes, and no module has stacked layers"
        raise ArgumentError(message("assert_same_storage", problem))
    wanted = _measure((f, args), optimizer)
    for form in forms:
        # If a gradient is zero up to rounding, Adam turns the rounding into a large update, so it gets the same
        # gradient.
        given = form.change(wanted["gradients"]) if "gradients" in wanted else None
        found = _measure(form.change((f, args)), optimizer, form.read, given)
        for what in ("values", *sorted(wanted.keys() - {"values"})):
            result = wanted[what]
            # A gradient is stored in the same form as its array.
            changed = result if what == "values" else form.change(result)
            others = dict(_list(found[what]))
            gradients = [getattr(x, "array", x) for _, x in _list(changed) if what == "gradients"]
            among = find_largest(gradients)
            for path, x in _list(changed):
                y = others[path]
                other = y.rearrange(x.names).array if is_named_array(y) else y
                change = differences(
                    getattr(x, "array", x), other, is_same_program=False, among=among
                )
                if change.any():
                    raise _explain(form, what, path, x, other, change)


def _list_forms(f: Any, args: Any) -> Iterator[_Form]:
    stacks = [
        (path_text(path[1:]), node)
        for path, node in jax.tree.leaves_with_path((f, args), is_leaf=_is_stack)
        if _is_stack(node)
    ]
    for path, stack in stacks:
        text = f"with the layers of {path or 'the function'} one by one"
        yield _Form(text, stack.Block.name, path, _unroll)
    leaves = [
        x
        for x in jax.tree.leaves((f, args), is_leaf=is_named_array)
        if has_type(getattr(x, "array", x))
    ]
    has_key = any(is_key(getattr(x, "array", x)) for x in leaves)
    if not has_key and any(is_named_array(x) and len(x.names) > 1 for x in leaves):
        yield _Form("with all axes in reverse order", None, None, _reverse)


def _is_stack(node: object) -> bool:
    return isinstance(node, Stacked | Interleaved)


def _unroll(tree: Tree) -> Tree:
    """Store the layers of all stacks one by one."""
    return jax.tree.map(
        lambda node: (
            BlockSeq(node.unstacked(), node.Block, node.gradient_checkpointing)
            if _is_stack(node)
            else node
        ),
        tree,
        is_leaf=_is_stack,
    )


def _reverse(tree: Tree) -> Tree:
    """Store all axes in reverse order."""
    return _map_named(lambda x: x.rearrange(x.names[::-1]), tree)


def _make_merged(
    tree: Any, name: str, parts: Sequence[str], like: Callable[..., Any] | None
) -> _Form:
    """Return the way to store several axes as one."""
    arrays = [x for x in jax.tree.leaves(tree, is_leaf=is_named_array) if is_named_array(x)]
    sizes = {axis.name: axis.size for x in arrays for axis in x.axes}
    if name in sizes or not any({*parts} <= {*x.names} for x in arrays):
        problem = f"cannot merge {', '.join(map(repr, parts))} into {name!r}"
        is_known = f"arrays have axis {name!r} already" if name in sizes else ""
        facts = (
            is_known
            or f"no array has all of them; axes: {describe(tuple(sizes), tuple(sizes.values()))}"
        )
        raise ArgumentError(message("assert_same_storage", problem, facts))
    axes = [Axis(part, sizes[part]) for part in parts]

    def merge(x: NamedArray) -> NamedArray:
        return x.flatten_axes(parts, name) if {*parts} <= {*x.names} else x

    def split(x: NamedArray) -> NamedArray:
        return x.unflatten_axis(name, axes) if name in x.names else x

    text = f"with {', '.join(parts)} merged into {name}"
    if like is None:
        return _Form(
            text,
            name,
            None,
            functools.partial(_map_named, merge),
            functools.partial(_map_named, split),
        )
    own, given = ({path for path, _ in _list(one)} for one in (like, tree[0]))
    if own and own != given:
        problem = "like must hold arrays at the same paths as the function"
        pairs = ("missing", given - own), ("unknown", own - given)
        lines = [f"{what}: {', '.join(sorted(paths))}" for what, paths in pairs if paths]
        raise ArgumentError(message("assert_same_storage", problem, *lines))

    def change(tree: Tree) -> Tree:
        f, args = _map_named(merge, tree)
        return _fill(like, f), args

    return _Form(text, name, None, change)


def _map_named(change: Callable[[NamedArray], NamedArray], tree: Tree) -> Tree:
    return jax.tree.map(
        lambda x: change(x) if is_named_array(x) and has_type(x.array) else x,
        tree,
        is_leaf=is_named_array,
    )


def _fill(like: Callable[..., Any], f: Tree) -> Any:
    """Copy the arrays of a function, or their gradients, into another function, by path."""
    given = dict(_list(f))
    return jax.tree.map_with_path(
        lambda path, x: given.get(path_text(path)) if has_type(getattr(x, "array", x)) else x,
        like,
        is_leaf=is_named_array,
    )


def _measure(
    tree: Tree,
    optimizer: Any,
    read: Callable[[Tree], Tree] = lambda tree: tree,
    gradient: Tree = None,
) -> dict[str, Tree]:
    """Compute values, gradients and updates in one program; updates use a given gradient, or else the computed one."""
    floating, rest = eqx.partition(tree, lambda leaf: has_type(leaf) and is_float(leaf))

    def call(floating: Tree) -> Any:
        f, args = read(eqx.combine(floating, rest))
        return f(*args)

    def loss(floating: Tree) -> Any:
        return add_losses(call(floating))

    @jax.jit
    def run(floating: Tree, given: Tree) -> dict[str, Tree]:
        found = {"values": eqx.filter(call(floating), has_type)}
        if any(map(is_loss, jax.tree.leaves(found["values"]))):
            found["gradients"] = jax.grad(loss)(floating)
            if optimizer is not None:
                own = found["gradients"] if given is None else given
                found["updates"] = update(optimizer, own, floating)
        return found

    measured: dict[str, Tree] = run(floating, gradient)
    return measured


def _list(tree: Tree) -> list[tuple[str, Any]]:
    return [
        (path_text(path), leaf)
        for path, leaf in jax.tree.leaves_with_path(tree, is_leaf=is_named_array)
        if has_type(getattr(leaf, "array", leaf))
    ]


def _explain(form: _Form, what: str, path: str, x: Any, y: Any, change: Any) -> Exception:
    names: tuple[str, ...] = x.names if is_named_array(x) else ()
    array = getattr(x, "array", x)
    # The gradient is one of the function and its arguments, by number.
    own = path if what == "values" else path.partition(".")[2]
    factor = find_factor(array, y)
    first = np.argwhere(change)[0]
    target: dict[str, int] = {
        name: int(i) for name, i in zip(names, first[len(first) - len(names) :], strict=True)
    }
    kind = {"values": "", "gradients": "the gradient of ", "updates": "the update of "}[what]
    layer = own.rpartition(".")[0] if form.path is None else form.path
    return fail(
        "same_storage",
        f"{form.what}, {kind}{own or 'the result'} is another",
        *(() if factor is None else (f"factor: {factor:g}",)),
        axis=form.axis,
        causes="storage",
        target=target,
        effect=float(change.max()),
        place=None if what == "values" and form.path is None else (layer, "", ""),
        parameter=None if what == "values" else own,
        factor=factor,
    )
