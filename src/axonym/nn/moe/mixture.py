"""Mixtures of experts: layers with one set of weights per expert, and a router that sends each token to a few.

The layer scores experts, chooses some for each token, and sends tokens to the devices of their experts. How experts are
computed depends on the capacity and on the mesh; the result does not depend on the mesh.
"""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ...array import NamedArray, is_named_array
from ...axis import Axis, AxisSelection, names_in, selection, sized
from ...base.dtypes import at_least_float32
from ...create import zeros
from ...engine import checks
from ...engine.core import Core, facts
from ...errors import ArgumentError, OperandError, message
from ...layout.context import get_taken_axes, unmap_names
from ...names import plans
from ...ops.where import where as select
from ...partitioning.addresses import find_mesh_axes, is_checked
from ...partitioning.collectives import all_gather, psum
from ...partitioning.padding import PaddedArray, is_padded
from ...partitioning.shard import auto_sharded
from ...partitioning.shard_map import shard_map
from ..activation import silu
from ..initializer import Initializer
from ..inputs import check_input, list_sized_axes
from ..layer import Layer
from ..linear import Linear
from ..mlp import MLP, GatedMLP
from ..rings import is_pointwise
from ..settings import as_axis, check_activation, check_int
from ..weights import apply_gathered, keep_padding, make_if, widen_layer
from .choice import WEIGHINGS, choose_experts, normalize_weights, report_routing
from .device import apply_on_device, is_costly
from .layout import CHOICE, TOKEN, find_token_layout
from .linear import MoELinear
from .nested import apply_in_two_maps
from .routing import Routing

__all__ = ["MixtureOfExperts"]


class MixtureOfExperts(Layer):
    """Send each token to the `top_k` experts that a router chooses for it, and add up their weighted results.

    An expert is an MLP with one hidden axis, gated or not. Without `capacity_factor`, no choice is dropped: tokens are
    sorted by expert, which JAX cannot map by `vmap`: keep the axes of tokens named. With a capacity, each expert takes
    a block of tokens, and drops the choices beyond it. If the axis of experts is mapped, tokens are sent to the devices
    of their experts, and results back; the hidden axis may be mapped to further mesh axes.

    Attributes:
        router: from `Embed` to the axis `<experts>.router`.
        gate: the experts' layer before the activation; None if experts are not gated.
        up: the experts' layer to the hidden axis.
        down: the experts' layer back.
        activation: the function of the hidden axis.
        top_k: the number of experts of each token.
        capacity_factor: the capacity of an expert, in even shares of the choices; None for no limit.
        tokens: the axes of tokens that compete for capacity; None for all.
        normalize: whether the weights of a token's experts sum to one.
        fixed: those of `tokens` that were given as `Axis`, whose sizes inputs must have.
        weighing: how scores become weights.
        scale: a factor of the weights.
        groups: the number of groups of experts, and from how many of them a token chooses; None for no groups.
        choice_bias: added to weights for the choice alone, axes {Experts}, or None.
        shared: the layer that all tokens go through, or None.
        up_activation: the function of what the gate multiplies, or None.

    Reference:
        Shazeer et al. (2017), Outrageously large neural networks; Lepikhin et al. (2020), GShard, for the capacity;
        Gale et al. (2022), MegaBlocks, for the sorted form; DeepSeek-AI (2024), DeepSeek-V3 technical report, section
        2.1.2, for sigmoids, groups, the bias and shared experts.

    Examples:
        >>> Batch, Embed, Experts = axn.make_axes(batch=2, embed=4, experts=3)
        >>> moe = axn.nn.MixtureOfExperts.init(Embed, Experts, 8, top_k=2, key=jax.random.key(0))
        >>> y, routing = moe(axn.ones((Batch, Embed)))
        >>> y.names, routing.load.names
        (('batch', 'embed'), ('experts',))
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
    weighing: str = eqx.field(static=True, default="softmax")
    scale: float = eqx.field(static=True, default=1.0)
    groups: tuple[int, int] | None = eqx.field(static=True, default=None)
    choice_bias: NamedArray | None = None
    shared: MLP | GatedMLP | None = None
    up_activation: Callable[[NamedArray], NamedArray] | None = eqx.field(static=True, default=None)

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
        weighing: str = "softmax",
        scale: float = 1.0,
        groups: tuple[int, int] | None = None,
        use_choice_bias: bool = False,
        shared: int | Axis | None = None,
        use_bias: bool = False,
        use_router_bias: bool = False,
        up_activation: Callable[[NamedArray], NamedArray] | None = None,
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
            weighing: how scores become the weights of experts: by a "softmax" over all, or a "sigmoid" of each.
            scale: a factor of the weights, after they are normalised.
            groups: such as (8, 4): experts are in 8 groups, and a token chooses from 4 of them, those with the largest
                sum of their two best experts. None for a choice from all.
            use_choice_bias: whether each expert has a bias that is added to its weight for the choice alone. It starts
                at zero and has no gradient: `update_choice_bias` balances the load by it.
            shared: the hidden axis of an expert that all tokens go to, or its size: several shared experts are one
                with the sum of their sizes. It has no bias.
            use_bias: whether the layers of experts have a bias.
            use_router_bias: whether the router has one, which is a part of the scores.
            up_activation: a function of what the gate multiplies, as in gpt-oss; by default, it stays as it is. The
                shared expert has none.
            init_scale: see `Linear.init`.
            initializer: see `Linear.init`.

        Raises:
            ArgumentError: if `top_k` is not an int from 1 to the number of experts, `capacity_factor` not positive,
                `weighing` unknown, if `groups` do not divide the experts or have fewer than `top_k`, or if there is an
                `up_activation` and experts are not gated, or one of them is shared.
            OperandError: if `activation` or `up_activation` is not callable.

        Examples:
            >>> Embed, Experts = axn.make_axes(embed=4, experts=8)
            >>> options = {"weighing": "sigmoid", "groups": (4, 2), "shared": 8}
            >>> moe = axn.nn.MixtureOfExperts.init(Embed, Experts, 8, 2, key=jax.random.key(0), **options)
            >>> moe.shared.up.weight.names
            ('embed', 'mlp')
        """
        function = "MixtureOfExperts.init"
        hidden = sized(as_axis("mlp", width), function)
        Embed, Experts = sized(Embed, function), sized(Experts, function)
        check_activation(function, activation)
        _check_up_activation(up_activation, gated, shared)
        top_k = _check_top_k(top_k, Experts)
        _check_routing(weighing, groups, top_k, Experts)

        make: Any = {"init_scale": init_scale, "initializer": initializer}

        layer: Any = partial(MoELinear.init, Experts, use_bias=use_bias, **make)
        keys = tuple(jax.random.split(key, 4))
        # The scores have an axis of another name, since tokens may be split over the mesh axes of the experts.
        Router = Experts.derive("router")
        router = Linear.init(Embed, Router, key=keys[0], use_bias=use_router_bias, **make)
        gate = layer(Embed, hidden, key=keys[1]) if gated else None
        up, down = layer(Embed, hidden, key=keys[2]), layer(hidden, Embed, key=keys[3])

        # A key of its own leaves the other weights as they are without a shared expert.
        make |= {"key": jax.random.fold_in(key, 4), "activation": activation}
        Shared = None if shared is None else as_axis(hidden.name, shared)
        chosen = () if tokens is None else selection(tokens, function)
        competing = None if tokens is None else names_in(chosen)
        return cls(
            router,
            gate,
            up,
            down,
            activation,
            top_k,
            _check_capacity(capacity_factor),
            competing,
            normalize,
            list_sized_axes(chosen),
            weighing,
            float(scale),
            groups,
            make_if(use_choice_bias, zeros, (Experts,)),
            None if Shared is None else _make_shared(Embed, Shared, gated, make),
            up_activation,
        )

    @property
    def Experts(self) -> Axis:
        """The axis of experts."""
        return self.up.Experts

    @property
    def Router(self) -> Axis:
        """The axis of scores, which has another name than that of experts."""
        return self.Experts.derive("router")

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
        Router = self.Router
        wide = at_least_float32(x.dtype)
        router, bias = widen_layer(self._whole_router(), wide), self._whole_bias()
        # Each device has all scores of its tokens, which it sorts.
        with unmap_names((Router.name,)):
            scores = router(x.astype(wide))
            weights = WEIGHINGS[self.weighing](scores, Router.name)
            bias = auto_sharded(bias)
            gates, chosen = choose_experts(weights, Router, self.top_k, bias, self.groups)
            if where is not None:
                chosen = select(where, chosen, Router.size)  # beyond the last expert
            routing, choices = report_routing(scores, weights, chosen, where)

        if self.normalize:
            gates = normalize_weights(gates, CHOICE)
        if self.scale != 1:
            gates = gates * self.scale
        y, dropped = self._dispatch(x, gates.astype(x.dtype), chosen)
        if self.shared is not None:
            own = self._apply_shared(x)
            y = y + (own if where is None else select(where, own, 0))
        routing = routing._replace(
            load=auto_sharded(routing.load.rename({Router.name: self.Experts.name})),
            dropped=dropped / choices.astype(dropped.dtype),
        )
        return auto_sharded(y.rearrange(x.names)).astype(x.dtype), routing

    def _check(self, x: NamedArray, where: NamedArray | None) -> None:
        function = "MixtureOfExperts"
        added = (self.Experts, self.Router, self.up.Out)
        check_input(function, x, (self.up.In, *self.fixed), added)
        checks.require(function, x, self.tokens or (), "input", role=" of tokens")
        if where is None:
            return
        if not isinstance(where, Core):
            raise checks.no_names(function, where)
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
        """Return the router for all experts; `add_lora` may have put matrices beside its weight."""

        def gather(leaf: Any) -> Any:
            leaf = leaf.cut() if is_padded(leaf) else leaf
            has_axis = is_named_array(leaf) and self.Router.name in leaf.names
            return _gather_block(leaf, self.Router) if has_axis else leaf

        router: Linear = jax.tree.map(
            gather, self.router, is_leaf=lambda leaf: is_named_array(leaf) or is_padded(leaf)
        )
        return router

    def _whole_bias(self) -> NamedArray | None:
        """Return the bias of all experts, over the axis of scores."""
        if self.choice_bias is None:
            return None
        whole = _gather_block(self.choice_bias, self.Experts)
        return whole.rename({self.Experts.name: self.Router.name})

    def _apply_shared(self, x: NamedArray) -> NamedArray:
        """Apply the shared expert, of which a device in a `shard_map` may have a part of the hidden axis."""
        assert self.shared is not None
        down = self.shared.down if isinstance(self.shared, GatedMLP) else self.shared.layers[-1]
        (Hidden,) = down.In
        y = self.shared(x)
        weight = down.weight
        if not is_padded(weight) and weight.axis_size(Hidden.name) != Hidden.size:
            y = psum(y, down.weight.resolve_axis(Hidden.name))
        return y

    def _dispatch(
        self, x: NamedArray, gates: NamedArray, chosen: NamedArray
    ) -> tuple[NamedArray, NamedArray]:
        """Apply the chosen experts to each token; return how many choices were dropped, too."""
        capacity = None
        if self.capacity_factor is not None:
            capacity = self._capacity
        padded = [self.Experts.name]
        activations = self.activation, self.up_activation
        # Another function of the hidden axis may count padding.
        if all(fn is None or is_pointwise(fn) for fn in activations):
            padded.append(self.up.Out.name)
        up, down = keep_padding(self.up, *padded), keep_padding(self.down, *padded)
        experts = (None if self.gate is None else keep_padding(self.gate, *padded), up, down)
        if up.Experts != self.Experts:
            # A choice of no expert is none of an expert that is padding.
            chosen = select(chosen < self.Experts.size, chosen, up.Experts.size)
        layout = find_token_layout(x, up, self.tokens, capacity)
        if up.Out != self.up.Out:
            layout = dataclasses.replace(layout, hidden_size=self.up.Out.size)
        run: Callable[..., tuple[NamedArray, NamedArray | None]] = partial(
            apply_on_device, layout, activations
        )
        if layout.is_nested:
            run = partial(apply_in_two_maps, layout, activations)
        elif layout.is_spread:
            # Under a `vmap` over mesh axes, types fit no check.
            run = shard_map(run, dict(layout.entries), check=not get_taken_axes(), strict=False)

        y, dropped = apply_gathered(run, (x, gates, chosen), experts, keep=is_costly)
        if dropped is None:
            return y, zeros(())
        return y, dropped.sum()

    def _capacity(self, count: int) -> int:
        """Return how many of the competing tokens an expert takes."""
        # The factor as it is written: 1.1 is 11/10, which its float is not, and a symbolic count takes no float.
        share = Fraction(str(self.capacity_factor)) * self.top_k / self.Experts.size
        if share >= 1:
            return count
        return -(-count * share.numerator // share.denominator)


def _make_shared(Embed: Axis, Hidden: Axis, gated: bool, options: Any) -> MLP | GatedMLP:
    """Make the expert that all tokens go to, without bias: in a `shard_map`, parts of its result are added up."""
    if gated:
        return GatedMLP.init(Embed, Embed, Hidden, **options)
    return MLP.init(Embed, Embed, Hidden, 1, use_bias=False, use_final_bias=False, **options)


def _gather_block(parameter: NamedArray | PaddedArray, axis: Axis) -> NamedArray:
    """Gather a parameter inside of a `shard_map` where it is split like the experts."""
    if isinstance(parameter, PaddedArray):
        parameter = parameter.cut()
    Block = parameter.resolve_axis(axis.name)
    if Block == axis:
        return parameter
    to: Any = "varying"
    if is_checked(find_mesh_axes("MixtureOfExperts", Block, parameter.names)):
        to = "invarying"
    return all_gather(parameter, Block, to=to)


def _count_anonymous(x: NamedArray) -> int:
    return x.array.ndim - len(x.names)


def _check_top_k(top_k: int, Experts: Axis) -> int:
    function = "MixtureOfExperts.init"
    top_k = check_int(function, "top_k", top_k)
    if not 0 < top_k <= Experts.size:
        problem = f"top_k is {top_k}, but there are {Experts.size} experts"
        raise ArgumentError(message(function, problem))
    return top_k


def _check_capacity(factor: float | None) -> float | None:
    if factor is None:
        return None
    if not factor > 0:
        problem = f"capacity_factor must be positive, not {factor}"
        raise ArgumentError(message("MixtureOfExperts.init", problem))
    return float(factor)


def _check_up_activation(
    up_activation: Callable[[NamedArray], NamedArray] | None, gated: bool, shared: int | Axis | None
) -> None:
    if up_activation is None:
        return
    function = "MixtureOfExperts.init"
    check_activation(function, up_activation)
    if shared is not None or not gated:
        problem = "up_activation is of gated experts, none of which is shared"
        raise ArgumentError(message(function, problem, f"gated={gated}, shared={shared}"))


def _check_routing(
    weighing: str, groups: tuple[int, int] | None, top_k: int, Experts: Axis
) -> None:
    function = "MixtureOfExperts.init"
    if weighing not in WEIGHINGS:
        problem = f"weighing must be one of {', '.join(WEIGHINGS)}, not {weighing!r}"
        raise ArgumentError(message(function, problem))
    if groups is None:
        return
    try:
        count, kept = groups
    except (TypeError, ValueError):
        problem = f"groups must be two ints, the number of groups and of those to choose from, not {groups!r}"
        raise ArgumentError(message(function, problem)) from None
    count = check_int(function, "the number of groups", count, least=1)
    kept = check_int(function, "the number of groups to choose from", kept, least=1)
    if Experts.size % count:
        problem = f"{Experts.size} experts do not divide into {count} groups of equal size"
        raise ArgumentError(message(function, problem))
    size = Experts.size // count
    if kept > count or kept * size < top_k:
        problem = (
            f"a token cannot choose {top_k} experts from {kept} of {count} groups of {size} experts"
        )
        raise ArgumentError(message(function, problem))
