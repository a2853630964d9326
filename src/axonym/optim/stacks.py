"""Internal. Map a transformation over the stacks of each parameter, and over nothing else."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from ..array import NamedArray, is_named_array
from ..base.kinds import Payload, Tree, has_type
from ..base.lazy import library
from ..engine.core import payload_of
from ..errors import ArgumentError, message
from ..layout.assignment import path_text
from ..nn.roles import Overrides, Part
from ..parameters import Parameter
from ..transform.sources import Sources, find_sources
from .auto_axes import Transformation, check_transformation, run_on_auto
from .forms import Form, list_parameters, wrap_unchecked

Forms: TypeAlias = dict[str, Form]
"""How a transformation sees each parameter, by its path."""
Groups: TypeAlias = dict[int, list[Any]]
"""The arrays of a tree that belong to each parameter, by its number."""


def map_stacks(
    function: str,
    tx: Transformation,
    make: Callable[[Parameter, int], Form],
    roles: Overrides | None,
    needs_heads: bool = False,
) -> Transformation:
    """Make a transformation that sees a separate array for each position of the stacks of a parameter."""
    optax = library(function, "optax")
    check_transformation(function, tx)
    own_update = optax.with_extra_args_support(tx).update

    def find_forms(tree: Tree) -> Forms:
        found = list_parameters(function, tree, roles, needs_heads)
        return {own.path: make(own, at) for at, own in enumerate(found)}

    def find_state(forms: Forms, tree: Tree) -> Tree:
        """Return the types of the state for one position of all stacks."""
        state = jax.eval_shape(tx.init, _type_each(forms, tree))
        if any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(state)):
            raise _explain_outside(
                function, "draws random numbers, which would be the same in all layers"
            )
        return state

    def init(params: Tree) -> Tree:
        forms = find_forms(params)

        def run(params: Tree) -> Tree:
            return _join_all(forms, _map_call(function, forms, tx.init, _split_all(forms, params)))

        layouts = {path_text(keys): payload_of(x) for keys, x in _list_leaves(params)}
        abstract = find_state(forms, params)
        return run_on_auto(run, (params,), {}, _find_layouts(forms, abstract, layouts))

    def update(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        forms = find_forms(updates)
        structure: object = jax.tree.structure(updates)
        abstract = find_state(forms, updates)

        def call(updates: Tree, state: Tree, params: Tree, extra: dict[str, Any]) -> Any:
            return own_update(updates, state, params, **extra)

        # A line search asks for values and gradients of the whole model, which no layer alone can give.
        def split_value(name: str, value: Any) -> Any:
            if callable(value):
                return partial(_refuse, function, name)
            return _split_all(forms, value) if jax.tree.structure(value) == structure else value

        def run(updates: Tree, state: Tree, params: Tree, **extra: Any) -> tuple[Tree, Tree]:
            more = {name: split_value(name, value) for name, value in extra.items()}
            own = _split_state(forms, abstract, state)
            given = _split_all(forms, updates), own, _split_all(forms, params), more
            results = _map_call(function, forms, call, *given)
            return _join_all(forms, results[0]), _join_all(forms, results[1])

        results: tuple[Tree, Tree] = run_on_auto(
            run, (updates, state, params), extra, (updates, state)
        )
        return results

    return optax.GradientTransformationExtraArgs(init, update)


def _explain_outside(function: str, what: str) -> ArgumentError:
    """Build the error for a transformation of the whole model."""
    hint = (
        "leave out what works on the whole model, as the norm of all gradients does: "
        f"optax.chain(optax.clip_by_global_norm(1.0), axn.optim.{function}(...))"
    )
    return ArgumentError(message(function, f"the transformation {what}", hint=hint))


def _refuse(function: str, name: str, *args: Any, **options: Any) -> None:
    """Take the place of a function of the whole model, which cannot take a single matrix."""
    raise _explain_outside(function, f"calls {name!r}, a function of the whole model")


def _map_call(function: str, forms: Forms, fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function of trees of parts, mapped over the stacks of parameters, and over nothing else.

    Parameters whose stacks have the same sizes share a `vmap`. Before that, `find_sources` checks that results for a
    parameter depend on no other parameter: the `vmap` would only combine equal positions of their stacks.
    """
    groups, rest, rebuild = _group_arrays(forms, args)
    rebuilds: list[Callable[[Groups, list[Any]], Any]] = []
    sizes = {own.part.number: own.sizes[: len(own.stacks)] for own in forms.values()}

    def flat(groups: Groups, rest: list[Any]) -> tuple[Groups, list[Any]]:
        found, others, back = _group_arrays(forms, fn(*rebuild(groups, rest)))
        rebuilds.append(back)
        return found, others

    def one(number: int, x: Payload) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(jnp.shape(x)[len(sizes[number]) :], jnp.result_type(x))

    single = {number: [one(number, x) for x in group] for number, group in groups.items()}
    program, results = jax.make_jaxpr(flat, return_shape=True)(single, rest)
    given, allowed = (
        [frozenset({number}) for number in tree for _ in tree[number]]
        for tree in (single, results[0])
    )
    none: Sources = frozenset()
    found = find_sources(program.jaxpr, [*given, *[none] * len(rest)])
    if any(
        own - kept for own, kept in zip(found, [*allowed, *[none] * len(results[1])], strict=True)
    ):
        raise _explain_outside(function, "mixes parameters, or the layers of one")

    mapped = flat
    for stacks in set(sizes.values()):
        axes = ({number: 0 if own == stacks else None for number, own in sizes.items()}, None)
        for _ in stacks:
            mapped = jax.vmap(mapped, in_axes=axes, out_axes=axes)
    made, others = mapped(groups, rest)
    return rebuilds[-1](made, others)


def _group_arrays(
    forms: Forms, tree: Tree
) -> tuple[Groups, list[Any], Callable[[Groups, list[Any]], Any]]:
    """Return the arrays of a tree by parameter, all other arrays, and a function that rebuilds the tree."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_part)
    groups: Groups = {form.part.number: [] for form in forms.values()}
    rest: list[Any] = []
    for leaf in leaves:
        if _is_part(leaf):
            groups[leaf.names.number] += jax.tree.leaves(leaf.array)
        elif has_type(leaf):
            rest.append(leaf)

    def rebuild(groups: Groups, rest: list[Any]) -> Any:
        own, others = {number: iter(group) for number, group in groups.items()}, iter(rest)

        def fill(leaf: Payload) -> Payload:
            if _is_part(leaf):
                return jax.tree.map(lambda _: next(own[leaf.names.number]), leaf)
            return next(others) if has_type(leaf) else leaf

        return jax.tree.unflatten(structure, map(fill, leaves))

    return groups, rest, rebuild


def _is_part(leaf: object) -> bool:
    return isinstance(leaf, NamedArray) and isinstance(leaf.names, Part)


def _list_leaves(tree: Tree) -> list[tuple[Any, Payload]]:
    return jax.tree.leaves_with_path(tree, is_leaf=is_named_array)


def _split_all(forms: Forms, tree: Tree) -> Tree:
    """Replace the parameters of a tree by the arrays that a transformation sees, with all stacks in front."""
    return _replace_all(forms, tree, lambda form, array: form.split(array))


def _type_each(forms: Forms, tree: Tree) -> Tree:
    """Replace the parameters of a tree by the types of the arrays that a transformation sees."""
    return _replace_all(
        forms, tree, lambda form, array: jax.ShapeDtypeStruct(form.shape, array.dtype)
    )


def _replace_all(forms: Forms, tree: Tree, change: Callable[[Form, Any], Any]) -> Tree:
    def one(path: Any, leaf: Payload) -> Payload:
        form, array = forms.get(path_text(path)), payload_of(leaf)
        if form is None or not has_type(array):
            return leaf
        return wrap_unchecked(form.part, change(form, array))

    return jax.tree.map_with_path(one, tree, is_leaf=is_named_array)


def _join_all(forms: Forms, tree: Tree) -> Tree:
    """Convert results of a transformation to arrays with the axes of the parameters."""
    by_number = {form.part.number: form for form in forms.values()}

    def one(leaf: Payload) -> Payload:
        if not _is_part(leaf):
            return leaf
        form = by_number[leaf.names.number]

        def back(x: jax.Array) -> Payload:
            # A factored moment has a part of the dimensions, and is no matrix that can be joined again.
            is_whole = x.shape[len(form.stacks) :] == form.shape
            return form.add_names(form.join(x) if is_whole else form.put_last(x), is_whole)

        return jax.tree.map(back, leaf.array)

    return jax.tree.map(one, tree, is_leaf=_is_part)


def _split_state(forms: Forms, abstract: Tree, state: Tree) -> Tree:
    """Undo `_join_all` for a state, given its types for one position of all stacks."""
    by_number = {form.part.number: form for form in forms.values()}
    leaves = jax.tree.leaves(abstract, is_leaf=_is_part)
    structure: Any = jax.tree.structure(abstract, is_leaf=_is_part)

    def one(leaf: Payload, stored: Payload) -> Payload:
        if not _is_part(leaf):
            return stored
        form = by_number[leaf.names.number]

        def split_value(own: Payload, x: Payload) -> jax.Array:
            array = payload_of(x)
            return form.split(array) if own.shape == form.shape else form.put_last(array, back=True)

        return wrap_unchecked(leaf.names, jax.tree.map(split_value, leaf.array, stored))

    return jax.tree.unflatten(structure, map(one, leaves, structure.flatten_up_to(state)))


def _find_layouts(forms: Forms, abstract: Tree, arrays: Mapping[str, Payload]) -> Tree:
    """Return a tree like a stored state, with the parameter whose layout each array shares, or None."""
    by_number = {form.part.number: (arrays[path], form) for path, form in forms.items()}

    def one(leaf: Payload) -> Payload:
        if not _is_part(leaf):
            return None
        like, form = by_number[leaf.names.number]

        def of(own: Payload) -> Payload:
            is_whole = own.shape == form.shape
            return form.add_names(like if is_whole else None, is_whole)

        return jax.tree.map(of, leaf.array)

    return jax.tree.map(one, abstract, is_leaf=_is_part)
