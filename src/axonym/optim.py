"""Optimisers that know the axes: transformations of Optax, matrix by matrix, and on meshes with Explicit axes.

Optax sees arrays, and some of its transformations work with their shapes. A layer axis, the order of axes, and heads
that are an axis of their own then change what they do. The functions here hand each parameter to Optax as what it
means, by the roles that `axonym.parameters.roles` lists. State and updates have the axes of the parameters, so they are
laid out, saved and resumed like these.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, use_abstract_mesh

from . import parameters
from .array import NamedArray, is_named_array
from .base.kinds import Payload, Tree, has_type, type_text
from .base.lazy import library
from .engine.core import payload_of, wrap
from .engine.operands import own_names
from .errors import ArgumentError, OperandError, describe, message
from .layout import explicit
from .layout.assignment import path_text
from .names.plans import Names
from .nn.roles import INPUTS, STACKS, Dimension, Overrides, Part
from .parameters import Parameter
from .transform.sources import Sources, find_sources

__all__ = ["muon", "on_auto_axes", "per_layer", "per_matrix"]

Transformation: TypeAlias = Any
"""An `optax.GradientTransformation`."""
Forms: TypeAlias = "dict[str, _Form]"
"""How a transformation sees each parameter, by its path."""
Groups: TypeAlias = dict[int, list[Any]]
"""The arrays of a tree that belong to each parameter, by its number."""


def per_matrix(
    tx: Transformation,
    *,
    per_head: bool = False,
    per_expert: bool = True,
    roles: Overrides | None = None,
) -> Transformation:
    """Hand each parameter to a transformation of Optax as the matrix that it means, for each layer and expert.

    The transformation sees a matrix from all inputs to all outputs, and of biases and norms a vector. So what it does
    does not depend on whether layers are stacked, on the order in which axes are stored, or on whether heads are an
    axis of their own. Step counters and hyperparameters stay scalars.

    Transformations that mix parameters, such as `optax.clip_by_global_norm`, stay outside: an error says so. Those that
    draw random numbers do, too, and those that call a function of the model, such as a line search.

    Args:
        tx: a transformation, or a chain of some. Masks and labels that are functions get the tree with matrices and
            vectors in it, of which `axonym.parameters` knows the roles.
        per_head: whether each head is a matrix of its own, too.
        per_expert: whether each expert is. If not, experts lie side by side along the outputs.
        roles: other roles; see `axonym.parameters.roles`.

    Raises:
        ArgumentError: in `init` and `update`: if a parameter has several axes that no module declares; if `tx` mixes
            parameters; or if `per_head`, and no parameter has heads.

    Examples:
        >>> import optax
        >>> Layers, Embed, Mlp = axn.make_axes(layers=3, embed=8, mlp=16)
        >>> module = lambda key: axn.nn.Linear.init(Embed, Mlp, key=key)
        >>> model = axn.nn.Stacked.init(Layers, module)(key=jax.random.key(0))
        >>> tx = axn.optim.per_matrix(optax.scale_by_trust_ratio())
        >>> updates, state = tx.update(model, tx.init(model), model)
        >>> updates.stacked.weight.shape
        {'layers': 3, 'embed': 8, 'mlp': 16}
    """
    cut = partial(_matrix_axes, "per_matrix", per_head=per_head, per_expert=per_expert)
    return _map_stacks("per_matrix", tx, partial(_as_matrix, cut=cut), roles, per_head)


def per_layer(tx: Transformation, *, roles: Overrides | None = None) -> Transformation:
    """Map a transformation of Optax over the layers, experts and other stacks of each parameter, as if unrolled.

    The transformation sees the arrays of one layer, with their other axes as they are stored. See `per_matrix` for what
    stays outside, and for the errors.

    Args:
        tx: a transformation, or a chain of some.
        roles: other roles; see `axonym.parameters.roles`.

    Examples:
        >>> import optax
        >>> norms = axn.nn.Stacked.init(axn.Axis("layers", 3), axn.nn.RmsNorm)(axn.Axis("embed", 4))
        >>> tx = axn.optim.per_layer(optax.adaptive_grad_clip(0.01))
        >>> updates, state = tx.update(norms, tx.init(norms), norms)
        >>> updates.stacked.weight["embed", 0].array
        Array([0.01, 0.01, 0.01], dtype=float32)
    """
    return _map_stacks("per_layer", tx, _as_stored, roles)


def muon(
    learning_rate: Any,
    *,
    per_head: bool = False,
    per_expert: bool = True,
    roles: Overrides | None = None,
    **options: Any,
) -> Transformation:
    """Orthogonalise the updates of matrices by Muon, and update everything else by AdamW, as `optax.contrib.muon`.

    Each layer and expert has its own matrices. Tables, those that score tokens included, and vectors are left to AdamW.

    Args:
        learning_rate: a number or a schedule; `adam_learning_rate` among the options is that of AdamW.
        per_head: whether to orthogonalise each head by itself.
        per_expert: see `per_matrix`.
        roles: other roles; see `axonym.parameters.roles`. `{"label": "table"}` leaves the output layer of a classifier
            to AdamW.
        options: see `optax.contrib.muon`, such as `weight_decay` and `consistent_rms`.

    Raises:
        ArgumentError: in `init` and `update`, as by `per_matrix`.

    Examples:
        >>> model = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
        >>> tx = axn.optim.muon(0.02, adam_learning_rate=1e-3)
        >>> updates, state = tx.update(model, tx.init(model), model)

    Reference:
        Jordan et al. (2024), Muon: an optimizer for hidden layers in neural networks.
    """
    contrib = library("muon", "optax.contrib")
    cut = partial(_matrix_axes, "muon", per_head=per_head, per_expert=per_expert)

    def number(own: Parameter) -> Any:
        """Say which dimensions are the rows and the columns of matrices; None leaves a parameter to AdamW."""
        _, rows, columns = cut(own)
        if own.kind != "matrix" or not rows or not columns:
            return None
        if isinstance(own_names(own.array), Part):
            return contrib.MuonDimensionNumbers(0, 1)
        at = _dimensions(own).index
        return contrib.MuonDimensionNumbers(tuple(map(at, rows)), tuple(map(at, columns)))

    def dimensions(model: Tree) -> Tree:
        numbers = {
            own.path: number(own) for own in _list_parameters("muon", model, roles, per_head)
        }
        return parameters.labels(model, lambda path, _: numbers[path])

    tx = contrib.muon(learning_rate, muon_weight_dimension_numbers=dimensions, **options)
    if options.get("adaptive"):  # Optax takes a norm over all layers of a stack
        return _map_stacks("muon", tx, partial(_as_matrix, cut=cut), roles, per_head)
    return on_auto_axes(tx)


def on_auto_axes(tx: Transformation) -> Transformation:
    """Run the updates of a transformation of Optax on Auto axes, where the mesh has Explicit ones.

    Some transformations multiply or reshape arrays in ways that have no type on Explicit axes, such as `optax.lbfgs`.
    Updates are laid out like the gradients, and the state as before. Functions among the arguments of `update`, such as
    `value_fn`, are called on Explicit axes.

    Args:
        tx: a transformation, or a chain of some.

    Examples:
        >>> import optax
        >>> tx = axn.optim.on_auto_axes(optax.scale_by_lbfgs())
        >>> x = axn.ones(axn.Axis("embed", 4))
        >>> updates, state = tx.update(x, tx.init(x), x)
    """
    optax = library("on_auto_axes", "optax")
    _check_transformation("on_auto_axes", tx)
    update = optax.with_extra_args_support(tx).update

    def run(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        args = (updates, state, params)
        results: tuple[Tree, Tree] = _run_on_auto(update, args, extra, (updates, state))
        return results

    return optax.GradientTransformationExtraArgs(tx.init, run)


def _check_transformation(function: str, tx: object) -> None:
    if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
        problem = f"expected a transformation of Optax, got {type_text(tx)}"
        raise OperandError(message(function, problem, hint="write optax.adam(1e-3)"))


def _run_on_auto(fn: Callable[..., Any], args: Any, extra: Mapping[str, Any], like: Tree) -> Any:
    """Call a function on Auto axes, if arrays have Explicit ones; results are laid out like other arrays.

    Args:
        fn: a function of trees.
        args: its arguments, parameters last.
        extra: further ones; functions of parameters are called on Explicit axes again.
        like: a tree with the structure of the results: arrays that are laid out as they should be, or None.
    """
    arrays = {name: value for name, value in extra.items() if not callable(value)}
    typed = next(filter(explicit.has_explicit_axes, jax.tree.leaves((args, arrays))), None)
    if typed is None:
        return fn(*args, **extra)
    mesh = explicit.mesh_of_type(typed)

    def sharding(x: Payload) -> NamedSharding:
        is_typed = x is not None and explicit.has_explicit_axes(x)
        return NamedSharding(mesh, jax.typeof(x).sharding.spec if is_typed else PartitionSpec())

    def on_explicit_axes(call: Callable[..., Any]) -> Callable[..., Any]:
        of_model = jax.tree.map(sharding, args[-1])
        typed_call: Callable[..., Any] = jax.sharding.explicit_axes(call, in_sharding=(of_model,))
        return typed_call

    functions = {name: on_explicit_axes(call) for name, call in extra.items() if callable(call)}

    def run(args: Any, arrays: dict[str, Any]) -> Any:
        return fn(*args, **arrays, **functions)

    out = jax.tree.map(sharding, like, is_leaf=lambda x: x is None)
    entered: AbstractContextManager[Any] = nullcontext()
    if jax.sharding.get_abstract_mesh().empty:  # a counter that is made there has to know its mesh
        is_traced = isinstance(typed, Tracer)
        entered = use_abstract_mesh(mesh) if is_traced else jax.set_mesh(typed.sharding.mesh)
    with entered:
        return explicit.make_auto(run, mesh, out)(args, arrays)


@dataclasses.dataclass(frozen=True)
class _Form:
    """How a transformation sees a parameter: an array for each position of its stacks.

    Attributes:
        part: the names of that array, with the parameter and its number.
        names: the names of the parameter, or None if it is a plain array.
        order: the dimensions of the parameter, those of stacks first.
        sizes: their sizes, in this order.
        stacks: those that are stacks.
        shape: the shape of the array.
    """

    part: Part
    names: Names | None
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    stacks: tuple[Dimension, ...]
    shape: tuple[int, ...]

    def split(self, array: jax.Array) -> jax.Array:
        """Return the parameter as [stacks..., the array of one]."""
        shape = (*self.sizes[: len(self.stacks)], *self.shape)
        return jnp.reshape(jnp.transpose(array, self.order), shape)

    def join(self, parted: jax.Array) -> jax.Array:
        """Undo `split`."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return jnp.transpose(jnp.reshape(parted, self.sizes), back)

    @property
    def trailing(self) -> Names:
        """The names of what a state keeps in another shape, with stacks last; none, if a stack has no name."""
        names = tuple(at for at in self.stacks if isinstance(at, str))
        return names if self.names is not None and len(names) == len(self.stacks) else ()

    def put_last(self, array: jax.Array, back: bool = False) -> jax.Array:
        """Bring stacks that have names from the front to the end, or back: names belong to the last dimensions."""
        count = len(self.trailing)
        ends = tuple(range(count)), tuple(range(-count, 0))
        return jnp.moveaxis(array, *(reversed(ends) if back else ends))

    def add_names(self, value: Payload, is_whole: bool) -> Payload:
        """Name what a state keeps of a parameter, if that has names."""
        if self.names is None:
            return value
        return _wrap_unchecked(self.names if is_whole else self.trailing, value)


def _make_form(parameter: Parameter, number: int, groups: Sequence[Sequence[Dimension]]) -> _Form:
    """Make a form from the stacks, and the axes that become one dimension each."""
    names, every = own_names(parameter.array), _dimensions(parameter)
    sizes = dict(zip(every, payload_of(parameter.array).shape, strict=True))
    order = [at for group in groups for at in group]
    is_named = isinstance(parameter.array, NamedArray)
    merged = [" ".join(map(str, group)) or "1" for group in groups[1:]]
    return _Form(
        part=Part.of(tuple(merged) if is_named else (), parameter, number),
        names=names if is_named else None,
        order=tuple(map(every.index, order)),
        sizes=tuple(sizes[at] for at in order),
        stacks=tuple(groups[0]),
        shape=tuple(math.prod(sizes[at] for at in group) for group in groups[1:]),
    )


def _dimensions(parameter: Parameter) -> list[Dimension]:
    """Return the dimensions of a parameter in storage order."""
    names, ndim = own_names(parameter.array), len(payload_of(parameter.array).shape)
    return [*range(ndim - len(names)), *names]


def _matrix_axes(
    function: str, parameter: Parameter, *, per_head: bool, per_expert: bool
) -> tuple[list[Dimension], list[Dimension], list[Dimension]]:
    """Return the axes of a parameter that are stacks, rows and columns."""
    if parameter.kind == "unknown":
        raise _explain_undeclared(function, parameter)
    stacks = [*parameter.list_axes(*(STACKS if per_expert else ("stack",)))]
    if per_head:
        stacks += [at for at in parameter.heads if at not in stacks]
    rows = [at for at in parameter.list_axes(*INPUTS) if at not in stacks]
    return stacks, rows, [at for at in parameter.roles if at not in (*stacks, *rows)]


def _as_matrix(
    parameter: Parameter,
    number: int,
    cut: Callable[[Parameter], tuple[list[Dimension], list[Dimension], list[Dimension]]],
) -> _Form:
    """Hand over a matrix or a vector."""
    stacks, rows, columns = cut(parameter)
    is_vector = parameter.kind in ("scale", "shift")
    return _make_form(
        parameter, number, (stacks, columns) if is_vector else (stacks, rows, columns)
    )


def _as_stored(parameter: Parameter, number: int) -> _Form:
    """Hand over an array without its stacks."""
    every = _dimensions(parameter)
    stacks = [at for at in every if parameter.roles[at] in STACKS]
    return _make_form(parameter, number, (stacks, *([at] for at in every if at not in stacks)))


def _explain_undeclared(function: str, parameter: Parameter) -> ArgumentError:
    """Build the error for a parameter that may or may not be a matrix."""
    sizes = parameter.sizes
    problem = f"cannot tell which axes of {parameter.path!r} are inputs, and which are outputs"
    facts = f"array has: {describe(tuple(sizes), tuple(sizes.values()))}"
    given = "{" + ", ".join(f'"{name}": "output"' for name in sizes) + "}"
    if not sizes:
        facts = f"array has: {payload_of(parameter.array).shape}"
        given = '("output", ...)'
    hint = f'give a role for each, such as roles={{"{parameter.path}": {given}}}'
    return ArgumentError(message(function, problem, facts, hint=hint))


def _list_parameters(
    function: str, tree: Tree, roles: Overrides | None, needs_heads: bool
) -> list[Parameter]:
    """Return the parameters of a tree, and check that some have heads, if that is asked for."""
    found = list(parameters.walk(tree, roles))
    if needs_heads and found and not any(own.heads for own in found):
        hint = 'say which axes count them: roles={"heads": "head"}'
        raise ArgumentError(message(function, "no parameter has heads", hint=hint))
    return found


def _map_stacks(
    function: str,
    tx: Transformation,
    make: Callable[[Parameter, int], _Form],
    roles: Overrides | None,
    needs_heads: bool = False,
) -> Transformation:
    """Make a transformation that hands over an array for each position of the stacks of a parameter."""
    optax = library(function, "optax")
    _check_transformation(function, tx)
    own_update = optax.with_extra_args_support(tx).update

    def find_forms(tree: Tree) -> Forms:
        found = _list_parameters(function, tree, roles, needs_heads)
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
        return _run_on_auto(run, (params,), {}, _find_layouts(forms, abstract, layouts))

    def update(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        forms = find_forms(updates)
        structure: object = jax.tree.structure(updates)
        abstract = find_state(forms, updates)

        def call(updates: Tree, state: Tree, params: Tree, extra: dict[str, Any]) -> Any:
            return own_update(updates, state, params, **extra)

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

        results: tuple[Tree, Tree] = _run_on_auto(
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
    """Take the place of a function of the whole model, which a matrix of it is no argument of."""
    raise _explain_outside(function, f"calls {name!r}, a function of the whole model")


def _map_call(function: str, forms: Forms, fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function of trees of parts, mapped over the stacks of parameters, and over nothing else.

    Parameters whose stacks have the same sizes share a `vmap`. Before, `find_sources` makes sure that what belongs to a
    parameter depends on no other one, since the `vmap` would mix only equal positions of their stacks.
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
    """Return the arrays of a tree by parameter, all others, and what makes the tree of such."""
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


def _wrap_unchecked(names: Names, payload: Payload) -> NamedArray:
    """Name an array, or what else a state has in its place, unchecked."""
    hollow: NamedArray = object.__new__(NamedArray)
    return wrap(hollow, payload, names)


def _split_all(forms: Forms, tree: Tree) -> Tree:
    """Replace the parameters of a tree by what a transformation sees, with all stacks in front."""
    return _replace_all(forms, tree, lambda form, array: form.split(array))


def _type_each(forms: Forms, tree: Tree) -> Tree:
    """Replace the parameters of a tree by the types of what a transformation sees."""
    return _replace_all(
        forms, tree, lambda form, array: jax.ShapeDtypeStruct(form.shape, array.dtype)
    )


def _replace_all(forms: Forms, tree: Tree, change: Callable[[_Form, Any], Any]) -> Tree:
    def one(path: Any, leaf: Payload) -> Payload:
        form, array = forms.get(path_text(path)), payload_of(leaf)
        if form is None or not has_type(array):
            return leaf
        return _wrap_unchecked(form.part, change(form, array))

    return jax.tree.map_with_path(one, tree, is_leaf=is_named_array)


def _join_all(forms: Forms, tree: Tree) -> Tree:
    """Replace what a transformation returns by arrays with the axes of the parameters."""
    by_number = {form.part.number: form for form in forms.values()}

    def one(leaf: Payload) -> Payload:
        if not _is_part(leaf):
            return leaf
        form = by_number[leaf.names.number]

        def back(x: jax.Array) -> Payload:
            is_whole = x.shape[len(form.stacks) :] == form.shape
            return form.add_names(form.join(x) if is_whole else form.put_last(x), is_whole)

        return jax.tree.map(back, leaf.array)

    return jax.tree.map(one, tree, is_leaf=_is_part)


def _split_state(forms: Forms, abstract: Tree, state: Tree) -> Tree:
    """Undo `_join_all`, for a state of which the types for one position of all stacks are known."""
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

        return _wrap_unchecked(leaf.names, jax.tree.map(split_value, leaf.array, stored))

    return jax.tree.unflatten(structure, map(one, leaves, structure.flatten_up_to(state)))


def _find_layouts(forms: Forms, abstract: Tree, arrays: Mapping[str, Payload]) -> Tree:
    """Return a tree like a stored state with the parameter that each array is laid out like, or None."""
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
