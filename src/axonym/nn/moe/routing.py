"""How even the load of experts is, and how biases make it even.

A mixture of experts returns a `Routing`. Its losses, added to the loss of a model, or a bias of each expert, updated
after each step, keep the router from sending most tokens to few experts.
"""

from typing import NamedTuple

import jax

from ...array import NamedArray
from ...axis import AxisSelector
from ...ops.elementwise import sign
from ...ops.where import where

__all__ = ["Routing", "update_choice_bias"]


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
    step = where(abs(missing) > 1e-6 * mean, sign(missing) * rate, 0)
    return (bias + step).rearrange(bias.names).astype(bias.dtype)
