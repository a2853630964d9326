"""Transformations of Optax that see each parameter as a matrix, in any order of axes, on any mesh."""

from functools import partial
from typing import Any

import jax

from .. import parameters
from ..base.kinds import Tree
from ..base.lazy import library
from ..engine.operands import own_names
from ..nn.roles import Overrides, Part
from ..parameters import Parameter
from ..partitioning.padding import is_padded
from .auto_axes import Transformation, check_transformation, run_on_auto
from .forms import as_matrix, as_stored, find_matrix_axes, list_dimensions, list_parameters
from .stacks import map_stacks

__all__ = ["muon", "on_auto_axes", "per_layer", "per_matrix"]


def per_matrix(
    tx: Transformation,
    *,
    per_head: bool = False,
    per_expert: bool = True,
    roles: Overrides | None = None,
) -> Transformation:
    """Pass each parameter to a transformation of Optax as a matrix, one for each layer and expert.

    The transformation sees a matrix from all inputs to all outputs, and a vector for biases and norms. So its updates
    do not depend on whether layers are stacked, on the order in which axes are stored, or on whether heads are an axis
    of their own. Step counters and hyperparameters stay scalars.

    Transformations that mix parameters, such as `optax.clip_by_global_norm`, stay outside: an error says so.
    Transformations that draw random numbers or call a function of the model, such as a line search, stay outside too.

    Args:
        tx: a transformation, or a chain of some. Functions for masks and labels get a tree of matrices and vectors, and
            `axonym.parameters` knows their roles.
        per_head: whether each head is a matrix of its own, too.
        per_expert: whether each expert is a matrix of its own. If not, experts are joined along the outputs.
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
    cut = partial(find_matrix_axes, "per_matrix", per_head=per_head, per_expert=per_expert)
    return map_stacks("per_matrix", tx, partial(as_matrix, cut=cut), roles, per_head)


def per_layer(tx: Transformation, *, roles: Overrides | None = None) -> Transformation:
    """Map a transformation of Optax over the layers, experts and other stacks of each parameter, as if unrolled.

    The transformation sees the arrays of one layer, with their other axes as they are stored. See `per_matrix` for
    transformations that must stay outside, and for the errors.

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
    return map_stacks("per_layer", tx, as_stored, roles)


def muon(
    learning_rate: Any,
    *,
    weight_decay: Any = None,
    weight_decay_mask: Any = None,
    adam_learning_rate: Any = None,
    adam_weight_decay: Any = None,
    adam_b1: Any = None,
    adam_b2: Any = None,
    adam_eps_root: Any = None,
    beta: Any = None,
    eps: Any = None,
    nesterov: bool | None = None,
    consistent_rms: Any = None,
    adaptive: bool | None = None,
    ns_coeffs: Any = None,
    ns_steps: Any = None,
    preconditioning: str | None = None,
    mu_dtype: Any = None,
    per_head: bool = False,
    per_expert: bool = True,
    roles: Overrides | None = None,
) -> Transformation:
    """Orthogonalise the updates of matrices by Muon, and update all else by AdamW, as `optax.contrib.muon` does.

    Each layer and expert has its own matrices. AdamW updates vectors and tables, also the tables that score tokens.
    All arguments but the last three are those of Optax; None is the default of Optax. So
    `optax.inject_hyperparams` takes this function: each number that you give is then part of the state.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: the rate for matrices.
        weight_decay_mask: which matrices decay, as a tree or a function of the model.
        adam_learning_rate: the rate of AdamW, by default the same.
        adam_weight_decay: the rate for what AdamW updates.
        adam_b1: the decay of the first moment of AdamW.
        adam_b2: the decay of its second moment.
        adam_eps_root: what AdamW adds within the root.
        beta: the decay of the momentum of Muon.
        eps: what both add to denominators.
        nesterov: whether both look ahead.
        consistent_rms: the root mean square of the update of a matrix of any shape; AdamW has about 0.2.
        adaptive: whether updates of matrices grow with the gradients.
        ns_coeffs: the coefficients of the Newton-Schulz iteration.
        ns_steps: the number of its steps.
        preconditioning: how it begins.
        mu_dtype: the dtype of the momentum.
        per_head: whether to orthogonalise each head by itself.
        per_expert: see `per_matrix`.
        roles: other roles; see `axonym.parameters.roles`. `{"label": "table"}` leaves the output layer of a classifier
            to AdamW.

    Raises:
        ArgumentError: in `init` and `update`, as by `per_matrix`.

    Examples:
        >>> import optax
        >>> model = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
        >>> tx = axn.optim.muon(0.02, adam_learning_rate=1e-3)
        >>> updates, state = tx.update(model, tx.init(model), model)
        >>> tx = optax.inject_hyperparams(axn.optim.muon)(optax.linear_schedule(0.02, 0.0, 100), weight_decay=0.1)
        >>> sorted(tx.init(model).hyperparams)
        ['learning_rate', 'weight_decay']

    Reference:
        Jordan et al. (2024), Muon: an optimizer for hidden layers in neural networks.
    """
    # One by one and not as `**options`, since `inject_hyperparams` takes a function for the names of its arguments.
    given = dict(locals())
    options = {
        name: value
        for name, value in given.items()
        if value is not None and name not in ("per_head", "per_expert", "roles")
    }
    optax, contrib = library("muon", "optax"), library("muon", "optax.contrib")
    cut = partial(find_matrix_axes, "muon", per_head=per_head, per_expert=per_expert)

    def number(own: Parameter) -> Any:
        """Return the dimensions that are rows and columns of each matrix; None leaves a parameter to AdamW."""
        _, rows, columns = cut(own)
        if own.kind != "matrix" or not rows or not columns:
            return None
        if isinstance(own_names(own.array), Part):
            return contrib.MuonDimensionNumbers(0, 1)
        at = list_dimensions(own).index
        return contrib.MuonDimensionNumbers(tuple(map(at, rows)), tuple(map(at, columns)))

    def dimensions(model: Tree) -> Tree:
        numbers = {own.path: number(own) for own in list_parameters("muon", model, roles, per_head)}
        return parameters.labels(model, lambda path, _: numbers[path])

    # Numbers that `inject_hyperparams` has traced on Explicit axes are arguments of what runs on Auto ones.
    traced = {name: value for name, value in options.items() if isinstance(value, jax.Array)}

    def make(numbers: dict[str, Any]) -> Transformation:
        given = {**options, **numbers}
        return contrib.muon(muon_weight_dimension_numbers=dimensions, **given)

    def update(updates: Tree, state: Tree, params: Tree, *, numbers: Any, **extra: Any) -> Any:
        return make(numbers).update(updates, state, params, **extra)

    tx = optax.GradientTransformationExtraArgs(make(traced).init, update)
    apart = map_stacks("muon", tx, partial(as_matrix, cut=cut), roles, per_head)
    together = on_auto_axes(tx)

    def choose(tree: Tree) -> Transformation:
        # Where it is adaptive, Optax takes a norm over all layers of a stack. It scales an update by the shape of the
        # matrix, padding included. It merges several stacks, which the compiler gathers if each is split.
        found = list_parameters("muon", tree, roles, per_head)
        has_several = any(own.kind == "matrix" and len(cut(own)[0]) > 1 for own in found)
        has_padding = any(map(is_padded, jax.tree.leaves(tree, is_leaf=is_padded)))
        return apart if adaptive or has_several or has_padding else together

    def run(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> Any:
        return choose(updates).update(updates, state, params, numbers=traced, **extra)

    return optax.GradientTransformationExtraArgs(lambda params: choose(params).init(params), run)


def on_auto_axes(tx: Transformation) -> Transformation:
    """Run the updates of a transformation of Optax on Auto axes if the mesh has Explicit ones.

    Some transformations, such as `optax.lbfgs`, multiply or reshape arrays in ways that JAX refuses on Explicit axes.
    Updates have the layouts of the gradients, and the state keeps its own. Functions among the arguments of
    `update`, such as `value_fn`, are called on Explicit axes.

    Args:
        tx: a transformation, or a chain of some.

    Examples:
        >>> import optax
        >>> tx = axn.optim.on_auto_axes(optax.scale_by_lbfgs())
        >>> x = axn.ones(axn.Axis("embed", 4))
        >>> updates, state = tx.update(x, tx.init(x), x)
    """
    optax = library("on_auto_axes", "optax")
    check_transformation("on_auto_axes", tx)
    update = optax.with_extra_args_support(tx).update

    def run(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        args = (updates, state, params)
        results: tuple[Tree, Tree] = run_on_auto(update, args, extra, (updates, state))
        return results

    return optax.GradientTransformationExtraArgs(tx.init, run)
