"""The claim that storage does not matter: the order of axes, and whether layers are stacked."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from ..array import is_named_array
from ..base.kinds import Tree, has_type
from ..errors import ArgumentError, message
from ..layout.assignment import path_text
from ..nn.stack.block_seq import BlockSeq
from ..nn.stack.interleaved import Interleaved
from ..nn.stack.stacked import Stacked
from .differences import differences
from .explain import fail, find_factor
from .program import add_losses, is_float, is_key, is_loss, update

__all__ = ["assert_same_storage"]


class _Form(NamedTuple):
    """Another way to store the same.

    Attributes:
        what: the way, for errors.
        axis: the axis that it is about, or None.
        path: of what is stored in another way.
        change: changes a model, its arguments, or its gradient.
    """

    what: str
    axis: str | None
    path: str
    change: Callable[[Tree], Tree]


def assert_same_storage(f: Callable[..., Any], *args: Tree, optimizer: Any = None) -> None:
    """Check that values, gradients and updates are the same however arrays are stored.

    All axes are stored in reverse order, and stacked layers one by one. Random numbers are drawn in the order of axes:
    a function that takes a key is checked for stacked layers alone. Gradients and updates are those of all results
    without axes, such as losses.

    Args:
        f: any function of named arrays, a module or its method.
        args: its arguments.
        optimizer: a transformation of Optax, whose first updates are compared: of the arrays of the function, or
            else of the first argument.

    Raises:
        ClaimError: with the way of storage, the result or the parameter that differs, and its layer.
        ArgumentError: if there is nothing to store in another way.

    Examples:
        >>> Layers, Embed, Batch = axn.make_axes(layers=3, embed=4, batch=2)
        >>> norms = axn.nn.Stacked.init(Layers, axn.nn.LayerNorm)(Embed)
        >>> x = axn.random.normal(jax.random.key(0), (Batch, Embed))
        >>> axn.testing.assert_same_storage(lambda norms, x: axn.square(norms.fold(x)).mean(), norms, x)
    """
    forms = list(_list_forms(f, args))
    if not forms:
        problem = "no argument has two named axes, and no module has stacked layers"
        raise ArgumentError(message("assert_same_storage", problem))
    wanted = _measure(f, args, optimizer)
    for form in forms:
        changed_f, changed_args = form.change((f, args))
        found = _measure(changed_f, changed_args, optimizer)
        for what, result in wanted.items():
            # A gradient has the form of what it is a gradient of.
            changed = result if what == "values" else form.change(result)
            pairs = list(zip(_list(changed), _list(found[what]), strict=True))
            for (path, x), (_, y) in pairs:
                other = y.rearrange(x.names).array if is_named_array(y) else y
                change = differences(getattr(x, "array", x), other, is_same_program=False)
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
        yield _Form("with all axes in reverse order", None, "", _reverse)


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
    return jax.tree.map(
        lambda x: x.rearrange(x.names[::-1]) if is_named_array(x) and has_type(x.array) else x,
        tree,
        is_leaf=is_named_array,
    )


def _measure(f: Any, args: Any, optimizer: Any) -> dict[str, Tree]:
    """Return the values, the gradient and the updates, compiled."""
    floating, rest = eqx.partition((f, args), lambda leaf: has_type(leaf) and is_float(leaf))

    def call(floating: Tree) -> Any:
        f, args = eqx.combine(floating, rest)
        return f(*args)

    def loss(floating: Tree) -> Any:
        return add_losses(call(floating))

    @jax.jit
    def run(floating: Tree) -> dict[str, Tree]:
        found = {"values": eqx.filter(call(floating), has_type)}
        if any(map(is_loss, jax.tree.leaves(found["values"]))):
            found["gradients"] = jax.grad(loss)(floating)
            if optimizer is not None:
                found["updates"] = update(optimizer, found["gradients"], floating)
        return found

    measured: dict[str, Tree] = run(floating)
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
    layer = form.path if form.axis is not None else own.rpartition(".")[0]
    return fail(
        "same_storage",
        f"{form.what}, {kind}{own or 'the result'} is another",
        *(() if factor is None else (f"factor: {factor:g}",)),
        axis=form.axis,
        causes="storage",
        target=target,
        effect=float(change.max()),
        place=None if what == "values" and form.axis is None else (layer, "", ""),
        parameter=None if what == "values" else own,
        factor=factor,
    )
