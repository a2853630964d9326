"""Mixtures of experts: layers with one set of weights per expert, and a router that sends each token to a few."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ...array import NamedArray
from ...axis import Axis, AxisSelection, names_in, selection, sized
from ...core import Core, facts
from ...create import one_hot, zeros
from ...dtypes import at_least_float32
from ...engine import checks
from ...errors import ArgumentError, OperandError, message
from ...faults.split_sorts import gathers_top_k
from ...layout.context import taken_axes, unmapped
from ...names import plans
from ...ops.contract import dot
from ...ops.elementwise import maximum
from ...ops.reduce import logsumexp
from ...ops.softmax import softmax
from ...ops.sorting import argsort, top_k
from ...ops.where import where as select
from ...partitioning.addresses import is_checked, mesh_axes_of
from ...partitioning.collectives import all_gather
from ...partitioning.shard import auto_sharded
from ...partitioning.shard_map import shard_map
from ..activation import silu
from ..initializer import Initializer
from ..inputs import check_input, with_sizes
from ..layer import Layer
from ..linear import Linear
from ..settings import as_axis, check_activation, integer
from ..weights import gathered, widened_layer
from .device import is_costly, on_device
from .layout import CHOICE, TOKEN, laid_out
from .linear import MoELinear
from .nested import in_two_maps

__all__ = ["MixtureOfExperts", "Routing"]


class Routing(NamedTuple):
    """Auxiliary losses of a router, to add to the training loss, and statistics to monitor.

    Attributes:
        load_balance: the number of experts times the sum over experts of share of choices times mean probability; one
            if all experts have the same load.
        router_z: the mean square of the log-sum-exp of the router's logits.
        load: the share of choices that fell on each expert, axes {Experts}.
        dropped: the share of choices that were dropped for lack of capacity.

    Reference:
        Fedus, Zoph, Shazeer (2021), Switch transformers, eq. 4; Zoph et al. (2022), ST-MoE, eq. 5.
    """

    load_balance: NamedArray
    router_z: NamedArray
    load: NamedArray
    dropped: NamedArray


class MixtureOfExperts(Layer):
    """Send each token to the `top_k` experts that a router chooses for it, and add up their weighted results.

    An expert is an MLP with one hidden axis, gated or not. Without `capacity_factor`, no choice is dropped: tokens are
    sorted by expert, which JAX cannot map by `vmap`: keep the axes of tokens named. With a capacity, each expert takes
    a block of tokens, and drops the choices beyond it. If the axis of experts is mapped, tokens are sent to the devices
    of their experts, and results back; the hidden axis may be mapped to further mesh axes.

    Attributes:
        router: from `Embed` to the axis `<experts>.router`, without bias.
        gate: the experts' layer before the activation; None if experts are not gated.
        up: the experts' layer to the hidden axis.
        down: the experts' layer back.
        activation: the function of the hidden axis.
        top_k: the number of experts of each token.
        capacity_factor: the capacity of an expert, in even shares of the choices; None for no limit.
        tokens: the axes of tokens that compete for capacity; None for all.
        normalize: whether the weights of a token's experts sum to one.
        fixed: those of `tokens` that were given as `Axis`, whose sizes inputs must have.

    Reference:
        Shazeer et al. (2017), Outrageously large neural networks; Lepikhin et al. (2020), GShard, for the capacity;
        Gale et al. (2022), MegaBlocks, for the sorted form.
    """

    router: Linear
    gate: MoELinear | None
    up: MoELinear
    down: MoELinear
    activation: Callable[[NamedArray], NamedArray] = eqx.field(static=True)
    top_k: int = eqx.field(static=True)
    capacity_factor: float | None = eqx.field(static=True)
    tokens: tuple[str, ...] | None = eqx.field(static=True)
    normalize: bool = eqx.field(static=True)
    fixed: tuple[Axis, ...] = eqx.field(static=True, default=())

    @classmethod
    def init(
        cls,
        Embed: Axis,
        Experts: Axis,
        width: int | Axis,
        top_k: int,
        activation: Callable[[NamedArray], NamedArray] = silu,
        *,
        key: jax.Array,
        gated: bool = True,
        capacity_factor: float | None = None,
        tokens: AxisSelection | None = None,
        normalize: bool = True,
        use_bias: bool = False,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a layer.

        Args:
            Embed: the axis of input and result.
            Experts: the axis of experts.
            width: the hidden axis of an expert, or its size; it is then called "mlp".
            top_k: the number of experts of each token.
            activation: the function of the hidden axis, or of its gate.
            key: for the weights.
            gated: whether experts are gated, as `GatedMLP`, or have one layer up and one down.
            capacity_factor: the capacity of an expert, in even shares of the choices, such as 1.25; None for no limit.
            tokens: the axes of tokens that compete for capacity, such as "position"; each element of the other axes
                has its own. By default all.
            normalize: whether the weights of a token's experts sum to one.
            use_bias: whether the layers of experts have a bias.
            init_scale: see `Linear.init`.
            initializer: see `Linear.init`.

        Raises:
            ArgumentError: if `top_k` is not an int from 1 to the number of experts, or `capacity_factor` not positive.
            OperandError: if `activation` is not callable.
        """
        function = "MixtureOfExperts.init"
        hidden = sized(as_axis("mlp", width), function)
        Embed, Experts = sized(Embed, function), sized(Experts, function)
        check_activation(function, activation)
        top_k = _checked_top_k(top_k, Experts)
        if capacity_factor is not None:
            capacity_factor = _checked_capacity(capacity_factor)

        make: Any = {"init_scale": init_scale, "initializer": initializer}

        def layer(In: Axis, Out: Axis, key: jax.Array) -> MoELinear:
            return MoELinear.init(Experts, In, Out, key=key, use_bias=use_bias, **make)

        keys = tuple(jax.random.split(key, 4))
        # The scores have an axis of another name, since tokens may be split over the mesh axes of the experts.
        router = Linear.init(Embed, Experts.derive("router"), key=keys[0], use_bias=False, **make)
        gate = None
        if gated:
            gate = layer(Embed, hidden, keys[1])
        up = layer(Embed, hidden, keys[2])
        down = layer(hidden, Embed, keys[3])

        competing: tuple[str, ...] | None = None
        sizes: tuple[Axis, ...] = ()
        if tokens is not None:
            given = selection(tokens, function)
            competing, sizes = names_in(given), with_sizes(given)
        return cls(
            router,
            gate,
            up,
            down,
            activation,
            top_k,
            capacity_factor,
            competing,
            normalize,
            sizes,
        )

    @property
    def Experts(self) -> Axis:
        """The axis of experts."""
        return self.up.Experts

    def __call__(
        self, x: NamedArray, *, where: NamedArray | None = None, key: jax.Array | None = None
    ) -> tuple[NamedArray, Routing]:
        """Apply the layer; the router computes in float32 or wider.

        Args:
            x: axes {Embed, ...}; all but `Embed` are axes of tokens.
            where: booleans, axes among those of tokens: which tokens there are. The others, such as padding, take no
                expert and no capacity, have no part in losses and statistics, and have zeros as result. What they hold,
                even NaN, changes nothing else, and no gradient. The capacity itself goes by the number of all
                positions, since it is a size of arrays.
            key: not used; every layer takes one.

        Returns:
            A result with the axes and the dtype of `x`, and the losses and statistics of the router.

        Raises:
            AxisNotFoundError: if `x` lacks `Embed`, or one of `tokens`.
            AxisClashError: if `x` has the axis of experts or the hidden one.
            OperandError: if `where` is no array of booleans, or has an axis that tokens lack.
            ShardingError: if tokens and the hidden axis are mapped to one mesh axis.

        Examples:
            >>> Pos, Embed, Experts = axn.make_axes(pos=3, embed=2, experts=4)
            >>> moe = axn.nn.MixtureOfExperts.init(Embed, Experts, 8, top_k=2, key=jax.random.key(0))
            >>> y, routing = moe(axn.ones((Pos, Embed)), where=axn.named([True, True, False], Pos))
            >>> y["pos", 2].tolist()
            [0.0, 0.0]
        """
        self._check(x, where)
        anonymous = [f"anonymous {i}" for i in range(_count_anonymous(x))]
        if anonymous:
            if where is not None:
                where = where.tag(*anonymous[len(anonymous) - _count_anonymous(where) :])
            y, routing = self(x.tag(*anonymous), where=where)
            return y.untag(*anonymous), routing
        if len(x.names) == 1:
            y, routing = self(x.broadcast_axis(Axis(TOKEN, 1)), where=where)
            return y.squeeze(TOKEN), routing

        if where is not None:
            # A gradient multiplies what is there by zero, which would not remove NaN.
            x = select(where, x, 0)
        Router = self.router.Out[0]
        wide = at_least_float32(x.dtype)
        router = widened_layer(self._whole_router(), wide)
        # Each device has all scores of its tokens, which it sorts.
        with unmapped((Router.name,)):
            scores = router(x.astype(wide))
            probabilities = softmax(scores, Router.name)
            gates, chosen = self._chosen(probabilities)
            if where is not None:
                chosen = select(where, chosen, Router.size)  # beyond the last expert
            # Counts of choices give the number of tokens, too, which needs no collective of its own.
            counts = one_hot(chosen, Router).sum(chosen.names)
            choices = maximum(counts.sum(), 1)
            count = choices / self.top_k
            over = plans.without(scores.names, (Router.name,))
            mean = probabilities.sum(over, where=where) / count
            load = counts / choices
            balance = dot(load, mean, axis=Router.name)
            z = logsumexp(scores, Router.name)

        if self.normalize:
            gates = gates / gates.sum(CHOICE)
        y, dropped = self._dispatched(x, gates.astype(x.dtype), chosen)

        routing = Routing(
            load_balance=balance * Router.size,
            router_z=(z * z).sum(where=where) / count,
            load=auto_sharded(load.rename({Router.name: self.Experts.name})),
            dropped=dropped / choices,
        )
        return auto_sharded(y.rearrange(x.names)).astype(x.dtype), routing

    def _check(self, x: NamedArray, where: NamedArray | None) -> None:
        function = "MixtureOfExperts"
        added = (self.Experts, *self.router.Out, self.up.Out)
        check_input(function, x, (self.up.In, *self.fixed), added)
        checks.require(function, x, self.tokens or (), "input", role=" of tokens")
        if where is None:
            return
        if not isinstance(where, Core):
            raise checks.unnamed(function, where)
        held = f"where has: {facts(where)}", f"input has: {facts(x)}"
        if where.dtype != jnp.bool_:
            problem = f"where must be booleans, not {where.dtype}"
            raise OperandError(message(function, problem, *held))
        for name in plans.without(where.names, plans.without(x.names, (self.up.In.name,))):
            problem = f"where has axis {name!r}, which is no axis of tokens"
            raise OperandError(message(function, problem, *held))
        if _count_anonymous(where) > _count_anonymous(x):
            problem = "where has more anonymous dimensions than the input"
            raise OperandError(message(function, problem, *held, hint="name them: where.tag(...)"))

    def _whole_router(self) -> Linear:
        """Return the router, gathered inside of a `shard_map` where it is split like the experts."""
        (Router,) = self.router.Out
        weight = self.router.weight
        if weight.axis_size(Router.name) == Router.size:
            return self.router
        to: Any = "varying"
        Block = weight.resolve_axis(Router.name)
        if is_checked(mesh_axes_of("MixtureOfExperts", Block, weight.names)):
            to = "invarying"
        return dataclasses.replace(self.router, weight=all_gather(weight, Block, to=to))

    def _chosen(self, probabilities: NamedArray) -> tuple[NamedArray, NamedArray]:
        """Choose experts for each token; return their probabilities and indices."""
        Router = self.router.Out[0]
        if not gathers_top_k():
            return top_k(probabilities, Router.name, self.top_k, CHOICE)
        order = argsort(-probabilities, Router.name)
        chosen = order[Router.name, : self.top_k].rename({Router.name: CHOICE})
        return select(one_hot(chosen, Router, dtype=bool), probabilities, 0).sum(
            Router.name
        ), chosen

    def _dispatched(
        self, x: NamedArray, gates: NamedArray, chosen: NamedArray
    ) -> tuple[NamedArray, NamedArray]:
        """Apply the chosen experts to each token; return how many choices were dropped, too."""
        capacity = None
        if self.capacity_factor is not None:
            capacity = self._capacity
        layout = laid_out(x, self.up, self.tokens, capacity)
        run: Callable[..., tuple[NamedArray, NamedArray | None]] = partial(
            on_device, layout, self.activation
        )
        if layout.is_nested:
            run = partial(in_two_maps, layout, self.activation)
        elif layout.is_spread:
            # Under a `vmap` over mesh axes, types fit no check.
            run = shard_map(run, dict(layout.entries), check=not taken_axes(), strict=False)

        experts = (self.gate, self.up, self.down)
        y, dropped = gathered(run, (x, gates, chosen), experts, keep=is_costly)
        if dropped is None:
            return y, zeros(())
        return y, dropped.sum()

    def _capacity(self, count: int) -> int:
        """Return how many of so many competing tokens an expert takes."""
        # The factor as it is written: 1.1 is 11/10, which its float is not, and a symbolic count takes no float.
        share = Fraction(str(self.capacity_factor)) * self.top_k / self.Experts.size
        if share >= 1:
            return count
        return -(-count * share.numerator // share.denominator)


def _count_anonymous(x: NamedArray) -> int:
    return x.array.ndim - len(x.names)


def _checked_top_k(top_k: int, Experts: Axis) -> int:
    function = "MixtureOfExperts.init"
    top_k = integer(function, "top_k", top_k)
    if not 0 < top_k <= Experts.size:
        problem = f"top_k is {top_k}, but there are {Experts.size} experts"
        raise ArgumentError(message(function, problem))
    return top_k


def _checked_capacity(factor: float) -> float:
    if not factor > 0:
        problem = f"capacity_factor must be positive, not {factor}"
        raise ArgumentError(message("MixtureOfExperts.init", problem))
    return float(factor)
