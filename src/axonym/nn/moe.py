"""Mixtures of experts: layers with one set of weights per expert, and a router that sends each token to a few."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSelection, axis_name, names_in, selection, sized, without_axes
from ..core import Core, facts
from ..create import arange, one_hot, zeros
from ..dtypes import at_least_float32
from ..engine import checks
from ..errors import ArgumentError, OperandError, message
from ..kinds import type_text
from ..mesh import constraints
from ..mesh.assignment import Entry
from ..mesh.context import context_mesh, current_mapping, current_scope
from ..mesh.partition import entries_from_mapping
from ..names import plans
from ..ops.contract import dot
from ..ops.cumulative import cumsum
from ..ops.histogram import bincount
from ..ops.index import take
from ..ops.logical import greater_equal
from ..ops.reduce import logsumexp
from ..ops.segment import ragged_dot
from ..ops.softmax import softmax
from ..ops.sorting import argsort, top_k
from ..ops.where import where
from ..partitioning.collectives import psum
from ..partitioning.shard import auto_sharded
from ..partitioning.shard_map import shard_map
from .activation import silu
from .initializer import Initializer, fan_in
from .inputs import check_input, with_sizes
from .layer import Layer
from .linear import Linear
from .settings import activated, as_axis, check_activation, drawn, integer
from .weights import add_bias, gathered, in_order, made_if, multiply, stored_outputs, widened_layer

__all__ = ["MixtureOfExperts", "MoELinear", "Routing"]

# Internal axes, under names that no input has.
_TOKEN, _CHOICE, _SLOT, _CAPACITY = (
    "routed token",
    "routed choice",
    "routed slot",
    "routed capacity",
)


class MoELinear(Layer):
    """Apply a linear map from `In` to `Out` for each expert.

    Attributes:
        weight: axes {Experts, In, Out}; an `Out` of the same name as `In` is called `<name>.out`.
        bias: axes {Experts, Out}, or None.
        Experts: the axis of experts.
        In: the axis to sum over.
        Out: the axis that replaces it.
    """

    weight: NamedArray
    bias: NamedArray | None
    Experts: Axis = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        Experts: Axis,
        In: Axis,
        Out: Axis,
        *,
        key: jax.Array,
        use_bias: bool = True,
        out_first: bool = False,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make the layers of all experts.

        Args:
            Experts: the axis of experts.
            In: the axis to sum over.
            Out: the axis of the result.
            key: for the weight; biases start at zero.
            use_bias: whether each expert has one.
            out_first: store the weight as {Experts, Out, In}.
            init_scale: a factor for the default initializer.
            initializer: makes the weight; by default `fan_in` of the size of `In`.
        """
        Experts, In, Out = (sized(axis, "MoELinear.init") for axis in (Experts, In, Out))
        (stored,) = stored_outputs((In,), (Out,))
        if initializer is None:
            initializer = fan_in(In.size, init_scale)
        axes = (Experts, *in_order((In,), (stored,), out_first))
        weight = drawn("MoELinear.init", initializer, key, axes)
        bias = made_if(use_bias, zeros, (Experts, Out))
        return cls(weight, bias, Experts, In, Out)

    def __call__(
        self, x: NamedArray, group_sizes: NamedArray | None = None, *, key: jax.Array | None = None
    ) -> NamedArray:
        """Apply each expert to its own elements.

        Args:
            x: axes {Experts, In, ...}, the elements of each expert; or, with `group_sizes`, {In, ...} and one more
                axis, along which elements are sorted by expert.
            group_sizes: integers, axes {Experts, ...}: how many elements along that axis belong to each expert. They
                should sum to its size. Further axes are axes of `x` with separate groups.
            key: not used; every layer takes one.

        Returns:
            The axes of `x` without `In`, then `Out`.

        Raises:
            AxisNotFoundError: if `x` lacks `In`, or `Experts` and there are no sizes.
            AxisClashError: if `x` already has `Out`.
            OperandError: if it is ambiguous along which axis `x` is sorted.
        """
        (stored,) = stored_outputs((self.In,), (self.Out,))
        if group_sizes is None:
            check_input("MoELinear", x, (self.Experts, self.In), (self.Out, stored), blocks=True)
            y, bias = multiply(x, self.weight, (self.In,)), self.bias
        else:
            check_input("MoELinear", x, (self.In,), (self.Out, stored), blocks=True)
            y, bias = self._by_group(x, group_sizes)

        if stored != self.Out:
            y = auto_sharded(y.rename({stored.name: self.Out.name}))
        return add_bias(y, bias)

    def _by_group(
        self, x: NamedArray, group_sizes: NamedArray
    ) -> tuple[NamedArray, NamedArray | None]:
        """Multiply sorted elements by the weights of their experts; return the bias of each element too."""
        ragged = self._ragged(x, group_sizes)

        def product(x: NamedArray, weight: NamedArray) -> NamedArray:
            return ragged_dot(
                x, weight, group_sizes, axis=self.In.name, ragged=ragged, groups=self.Experts
            )

        y = gathered(product, x, self.weight)
        if self.bias is None:
            return y, None

        ends = cumsum(group_sizes, self.Experts)
        rows = arange(x.resolve_axis(ragged)).broadcast_axis(ends.axes)
        expert = greater_equal(rows, ends).sum(self.Experts)
        return y, take(self.bias, self.Experts, expert, mode="clip")

    def _ragged(self, x: NamedArray, group_sizes: NamedArray) -> str:
        """Find the axis along which elements are sorted."""
        if not isinstance(group_sizes, Core):
            problem = f"group_sizes must be a NamedArray, not {type_text(group_sizes)}"
            hint = f'axn.named(sizes, "{self.Experts.name}")'
            raise OperandError(message("MoELinear", problem, hint=hint))

        names = plans.without(x.names, (self.In.name, *group_sizes.names))
        if len(names) != 1:
            candidates = ", ".join(names) or "none"
            problem = (
                f"elements must be sorted along one axis, but the candidates are: {candidates}"
            )
            lines = f"input has: {facts(x)}", f"group_sizes has: {facts(group_sizes)}"
            hint = 'flatten the axes first: x.flatten_axes((...), "token")'
            raise OperandError(message("MoELinear", problem, *lines, hint=hint))
        return names[0]


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
    sorted by expert. On a mesh, each device sorts its own tokens, with the weights of all experts; the hidden axis may
    be mapped to further mesh axes. With a capacity, each expert drops the choices beyond it: arrays then have an axis
    of experts, which may be mapped like any other, so that tokens are sent to the devices of their experts.

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
                has its own. The memory of the dispatch grows with the square of their size. By default all.
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
        self, x: NamedArray, *, key: jax.Array | None = None
    ) -> tuple[NamedArray, Routing]:
        """Apply the layer; the router computes in float32 or wider.

        Args:
            x: axes {Embed, ...}; all but `Embed` are axes of tokens.
            key: not used; every layer takes one.

        Returns:
            A result with the axes and the dtype of `x`, and the losses and statistics of the router.

        Raises:
            AxisNotFoundError: if `x` lacks `Embed`, or one of `tokens`.
            AxisClashError: if `x` has the axis of experts or the hidden one.
            ShardingError: if tokens and the hidden axis are mapped to one mesh axis.
        """
        self._check(x)
        anonymous = [f"anonymous {i}" for i in range(x.array.ndim - len(x.names))]
        if anonymous:
            y, routing = self(x.tag(*anonymous))
            return y.untag(*anonymous), routing
        if len(x.names) == 1:
            y, routing = self(x.broadcast_axis(Axis(_TOKEN, 1)))
            return y.squeeze(_TOKEN), routing

        Router = self.router.Out[0]
        wide = at_least_float32(x.dtype)
        scores = widened_layer(self.router, wide)(x.astype(wide))
        probabilities = softmax(scores, Router.name)
        gates, chosen = self._chosen(probabilities)

        load = one_hot(chosen, Router).mean(chosen.names)
        mean = probabilities.mean(plans.without(scores.names, (Router.name,)))
        balance = dot(load, mean, axis=Router.name)
        z = logsumexp(scores, Router.name)

        if self.normalize:
            gates = gates / gates.sum(_CHOICE)
        apply = self._taken
        if self.capacity_factor is None:
            apply = self._sorted
        y, dropped = apply(x, gates.astype(x.dtype), chosen)

        routing = Routing(
            load_balance=balance * Router.size,
            router_z=(z * z).mean(),
            load=load.rename({Router.name: self.Experts.name}),
            dropped=dropped,
        )
        return auto_sharded(y.rearrange(x.names)).astype(x.dtype), routing

    def _check(self, x: NamedArray) -> None:
        added = (self.Experts, *self.router.Out, self.up.Out)
        check_input("MixtureOfExperts", x, (self.up.In, *self.fixed), added)
        checks.require("MixtureOfExperts", x, self.tokens or (), "input", role=" of tokens")

    def _chosen(self, probabilities: NamedArray) -> tuple[NamedArray, NamedArray]:
        """Choose experts for each token; return their probabilities and indices."""
        Router = self.router.Out[0]
        if current_mapping() is None or context_mesh() is None:
            return top_k(probabilities, Router.name, self.top_k, _CHOICE)
        # XLA gathers the whole operand of `lax.top_k` on each device, but sorts each shard where it is.
        order = argsort(-probabilities, Router.name)
        chosen = order[Router.name, : self.top_k].rename({Router.name: _CHOICE})
        return where(one_hot(chosen, Router, dtype=bool), probabilities, 0).sum(Router.name), chosen

    def _sorted(
        self, x: NamedArray, gates: NamedArray, chosen: NamedArray
    ) -> tuple[NamedArray, NamedArray]:
        """Sort all choices by expert, and multiply each group by its expert's weights."""
        experts = (self.gate, self.up, dataclasses.replace(self.down, bias=None))
        split = self._split(x)
        run: Callable[..., NamedArray] = partial(
            _by_stretches, self.activation, self.up.Out.name in (split or ())
        )
        if split is not None and current_scope() is None:
            run = shard_map(run, split, strict=False)
        y = gathered(run, (x, gates, chosen), experts, keep=_is_costly)
        if self.down.bias is not None:
            biases = take(auto_sharded(self.down.bias), self.Experts, chosen)
            y = y + dot(biases, gates, axis=_CHOICE).rearrange(y.names)
        return y, zeros(())

    def _split(self, x: NamedArray) -> dict[str, Entry] | None:
        """Return how tokens and the hidden axis are split, as in one array: a sum over parts must not mix tokens."""
        mapping, mesh = current_mapping(), context_mesh()
        if mapping is None or mesh is None:
            return None
        sizes = {**dict(x.shape.items()), self.up.Out.name: self.up.Out.size}
        del sizes[self.up.In.name]
        if current_scope() is not None:
            # Nothing is laid out on Manual mesh axes, so nothing else would check them.
            entries_from_mapping(tuple(sizes), tuple(sizes.values()), mapping, mesh)
        return constraints.decided(tuple(sizes), sizes)

    def _taken(
        self, x: NamedArray, gates: NamedArray, chosen: NamedArray
    ) -> tuple[NamedArray, NamedArray]:
        """Give each expert a block of tokens; first choices precede second ones, and earlier tokens later ones."""
        embed, Router = self.up.In.name, self.router.Out[0]
        tokens = self.tokens
        if tokens is None:
            tokens = plans.without(x.names, (embed,))
        flat, gates, chosen = (each.flatten_axes(tokens, _TOKEN) for each in (x, gates, chosen))

        count = flat.axis_size(_TOKEN)
        even = self.top_k * count / Router.size
        Capacity = Axis(_CAPACITY, min(count, math.ceil(even * (self.capacity_factor or 1))))

        # The place of each choice in the queue of its expert.
        taken = one_hot(chosen, Router, dtype=int).rearrange((_CHOICE, _TOKEN, ...))
        queue = cumsum(taken.flatten_axes((_CHOICE, _TOKEN), _SLOT), _SLOT) - 1
        queue = queue.unflatten_axis(_SLOT, (Axis(_CHOICE, self.top_k), Axis(_TOKEN, count)))
        place = (queue * taken).sum(Router.name)

        slots, taken = one_hot(place, Capacity, dtype=x.dtype), taken.astype(x.dtype)
        dispatch = dot(taken, slots, axis=_CHOICE)
        combine = dot(taken, slots * gates, axis=_CHOICE)

        # With the experts on their devices, groups of tokens lie on other mesh axes than outside.
        inside = {Router.name: self.Experts.name}
        for name in plans.without(x.names, (*tokens, embed)):
            inside[name] = f"{name}.group"
        outside = {new: old for old, new in inside.items()}

        given = dot(dispatch, flat, axis=_TOKEN, out_axes=(Router.name, ...)).rename(inside)
        result = self.down(_hidden(self.activation, self.gate, self.up, auto_sharded(given)))
        back = auto_sharded(result.rename(outside))
        y = dot(combine, back, axis=(Router.name, _CAPACITY))
        y = y.unflatten_axis(_TOKEN, [x.resolve_axis(name) for name in tokens])
        return y, greater_equal(place, Capacity.size).mean()


def _by_stretches(
    activation: Callable[[NamedArray], NamedArray],
    is_part: bool,
    tokens_and_choices: tuple[NamedArray, NamedArray, NamedArray],
    experts: tuple[MoELinear | None, MoELinear, MoELinear],
) -> NamedArray:
    """Apply experts to the tokens of one device; `is_part` says that it has a part of the hidden axis."""
    x, gates, chosen = tokens_and_choices
    gate, up, down = experts
    tokens = without_axes(x.axes, up.In)
    names = axis_name(tokens)
    x, gates = x.flatten_axes(names, _TOKEN), gates.flatten_axes(names, _TOKEN)

    ids = chosen.rearrange((*names, _CHOICE)).flatten_axes((*names, _CHOICE), _SLOT)
    order = argsort(ids, _SLOT)
    sizes = bincount(ids, up.Experts)
    rows = x.at[_TOKEN, order // gates.axis_size(_CHOICE)].get(mode="promise_in_bounds")
    results = down(_hidden(activation, gate, up, rows, sizes), sizes)

    back = results.at[_SLOT, argsort(order, _SLOT)]
    unsorted = back.get(mode="promise_in_bounds", unique_indices=True)
    choices = (gates.resolve_axis(_TOKEN), gates.resolve_axis(_CHOICE))
    y = dot(unsorted.unflatten_axis(_SLOT, choices), gates, axis=_CHOICE)
    if is_part:
        y = psum(y, up.Out.name)
    return y.unflatten_axis(_TOKEN, tokens)


def _is_costly(primitive: Any, *_: object, **__: object) -> bool:
    """Return whether the backward pass keeps a result: all but cheap ones and gathered weights."""
    return primitive.name in ("ragged_dot_general", "sort")


def _hidden(
    activation: Callable[[NamedArray], NamedArray],
    gate: MoELinear | None,
    up: MoELinear,
    x: NamedArray,
    sizes: NamedArray | None = None,
) -> NamedArray:
    apply = partial(activated, "MixtureOfExperts", activation)
    if gate is None:
        return apply(up(x, sizes))
    return apply(gate(x, sizes)) * up(x, sizes)


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
