"""Choose experts for tokens, and report how even the choice is.

A router scores all experts for each token. Each token goes to those with the largest scores, which may be limited to a
few groups of experts, and balanced by a bias of each expert.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ...array import NamedArray
from ...axis import Axis, AxisSelector
from ...create import one_hot, zeros
from ...names import plans
from ...ops.contract import dot
from ...ops.elementwise import maximum, sign, stop_gradient
from ...ops.reduce import logsumexp
from ...ops.softmax import softmax
from ...ops.sorting import top_k
from ...ops.where import where as select
from ..activation import sigmoid
from .layout import CHOICE, GROUP, PLACE

__all__ = ["Routing", "update_choice_bias"]

# They make weights of experts of the scores of a token, before those of chosen experts are normalised.
WEIGHINGS: dict[str, Callable[[NamedArray, str], NamedArray]] = {
    "softmax": lambda scores, axis: softmax(scores, axis),
    "sigmoid": lambda scores, axis: sigmoid(scores),
}

# Added to sums of weights, which sigmoids of very small scores round to zero; as in DeepSeek-V3.
_TINY = 1e-20


class Routing(NamedTuple):
    """Auxiliary losses of a router, to add to the training loss, and statistics to monitor; of tokens that `where` has.

    Attributes:
        load_balance: the number of experts times the sum over experts of share of choices times mean weight, where the
            weights of all experts for a token sum to one; one if all experts have the same load.
        router_z: the mean square of the log-sum-exp of the router's scores.
        load: the share of choices that fell on each expert, axes {Experts}.
        dropped: the share of choices that were dropped for lack of capacity.

    Reference:
        Fedus, Zoph, Shazeer (2021), Switch transformers, eq. 4; Zoph et al. (2022), ST-MoE, eq. 5.

    Examples:
        >>> Token, Embed, Experts = axn.make_axes(token=3, embed=2, experts=4)
        >>> moe = axn.nn.MixtureOfExperts.init(Embed, Experts, 8, top_k=1, key=jax.random.key(0))
        >>> moe(axn.ones((Token, Embed)))[1].load.sum().item()
        1.0
    """

    load_balance: NamedArray
    router_z: NamedArray
    load: NamedArray
    dropped: NamedArray


def update_choice_bias(
    bias: NamedArray,
    load: NamedArray,
    Experts: AxisSelector,
    rate: float | jax.Array | NamedArray = 0.001,
) -> NamedArray:
    """Move the bias of each expert towards an equal load: up by `rate` where its load is below the mean, down above.

    Call it after each step, with the load of all tokens of the step. It needs no loss for balance.

    Args:
        bias: the `choice_bias` of a layer, axes {Experts, ...}, such as a layer axis.
        load: the share or the number of choices that fell on each expert, as in `Routing`; the same axes.
        Experts: the axis of experts.
        rate: the size of a step; the weights of experts are from zero to one.

    Returns:
        The new bias, with the axes and the dtype of `bias`.

    Reference:
        Wang et al. (2024), Auxiliary-loss-free load balancing strategy for mixture-of-experts, algorithm 1.

    Examples:
        >>> bias, load = axn.named([0.0, 0.0], "experts"), axn.named([0.75, 0.25], "experts")
        >>> axn.nn.update_choice_bias(bias, load, "experts", 0.5).tolist()
        [-0.5, 0.5]
    """
    mean = load.mean(Experts)
    missing = mean - load
    # An expert with just the mean load stays where it is, however the mean is rounded.
    step = select(abs(missing) > 1e-6 * mean, sign(missing) * rate, 0)
    return (bias + step).rearrange(bias.names).astype(bias.dtype)


def choose_experts(
    weights: NamedArray,
    Router: Axis,
    count: int,
    bias: NamedArray | None,
    groups: tuple[int, int] | None,
) -> tuple[NamedArray, NamedArray]:
    """Choose the experts of each token.

    Args:
        weights: those of all experts, axes {Router, ...}.
        Router: the axis of experts.
        count: how many to choose.
        bias: added to the weights for the choice alone, axes {Router}.
        groups: in how many groups experts are, and from how many of them a token may choose.

    Returns:
        The weights and the numbers of those that were chosen, axes {..., CHOICE}.
    """
    ranks = stop_gradient(weights if bias is None else weights + bias)
    if groups is not None:
        ranks = _rule_out_groups(ranks, Router, *groups)
    _, chosen = top_k(ranks, Router.name, count, CHOICE)
    # A comparison with all experts stays on the device of a token, forwards and backwards; an index may not.
    return select(one_hot(chosen, Router, dtype=bool), weights, 0).sum(Router.name), chosen


def _rule_out_groups(ranks: NamedArray, Router: Axis, groups: int, kept: int) -> NamedArray:
    """Rank experts last that are outside of the best groups: those with the largest sum of their two best experts.

    The same as DeepSeek-V3 (2024), section 2.1.2, does to limit the number of machines that a token is sent to.
    """
    Group, Member = Axis(GROUP, groups), Axis(PLACE, Router.size // groups)
    grouped = ranks.unflatten_axis(Router.name, (Group, Member))
    best, _ = top_k(grouped, PLACE, min(2, Member.size))
    _, chosen = top_k(best.sum(PLACE), GROUP, kept, CHOICE)
    is_chosen = one_hot(chosen, Group, dtype=bool).any(CHOICE)
    return select(is_chosen, grouped, -jnp.inf).flatten_axes((GROUP, PLACE), Router.name)


def normalize_weights(weights: NamedArray, axis: str) -> NamedArray:
    """Divide weights by their sum."""
    return weights / (weights.sum(axis) + _TINY)


def report_routing(
    scores: NamedArray, weights: NamedArray, chosen: NamedArray, where: NamedArray | None
) -> tuple[Routing, NamedArray]:
    """Compute losses and statistics, but for choices that were dropped; return how many choices there are, too.

    Args:
        scores: those of all experts, the last axis.
        weights: the weights of all experts, with the same axes.
        chosen: the numbers of experts that were chosen; beyond the last one where a token is masked.
        where: which tokens there are.
    """
    Router = scores.axes[-1]
    counts = one_hot(chosen, Router).sum(chosen.names)
    # This tells the number of tokens, too: to sum `where` would be one more collective.
    choices = maximum(counts.sum(), 1)
    tokens = choices / chosen.axis_size(CHOICE)
    shares = normalize_weights(weights, Router.name)
    mean = shares.sum(plans.without(shares.names, (Router.name,)), where=where) / tokens
    z, load = logsumexp(scores, Router.name), counts / choices
    routing = Routing(
        load_balance=dot(load, mean, axis=Router.name) * Router.size,
        router_z=(z * z).sum(where=where) / tokens,
        load=load,
        dropped=zeros(()),
    )
    return routing, choices
