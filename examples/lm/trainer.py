"""The compiled functions of a training run: initialise, take a step, evaluate."""

import dataclasses
import functools
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
from config import DecoderConfig
from decoder import Decoder
from layouts import STRATEGIES, Strategy

import axonym as axn
from axonym import NamedArray


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        strategy: which pair of mappings lays out the run.
        steps: number of steps.
        microbatches: parts in which a batch is computed, one after the other.
        learning_rate: its highest value, after warming up.
        schedule: how it falls afterwards: to a tenth by a cosine, to zero in the last fifth, or not at all.
        warmup: steps of warming up.
        weight_decay: of AdamW, for matrices.
        clip: largest norm of the gradient.
        z_loss: keeps logits from drifting, see `axn.nn.cross_entropy_loss`.
        balance: keeps the load of experts even, see `Decoder.loss`.
        ema: the weight of the past in a moving average of the parameters; 0 for none.
        precision: dtypes of parameters, computation and outputs.
    """

    strategy: Strategy = "fsdp+tp"
    steps: int = 300
    microbatches: int = 2
    learning_rate: float = 3e-3
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: int = 30
    weight_decay: float = 0.1
    clip: float = 1.0
    z_loss: float = 0.0
    balance: float = 0.01
    ema: float = 0.0
    precision: str = "params=float32,compute=bfloat16,output=float32"


class State(eqx.Module):
    """What a step changes."""

    model: Decoder
    optimizer: optax.OptState
    average: Decoder | None


class Told(eqx.Module):
    """What a step tells."""

    loss: jax.Array
    gradient: jax.Array  # its norm, before it is clipped


def make_schedule(recipe: Recipe) -> optax.Schedule:
    """Make the learning rate as a function of the number of steps taken."""
    peak, end = recipe.learning_rate, max(recipe.steps, recipe.warmup + 1)
    rise = optax.linear_schedule(0.0, peak, recipe.warmup)
    if recipe.schedule == "cosine":
        return optax.warmup_cosine_decay_schedule(0.0, peak, recipe.warmup, end, peak / 10)
    if recipe.schedule == "constant":
        return optax.join_schedules([rise, optax.constant_schedule(peak)], [recipe.warmup])
    fall = max(recipe.warmup, round(0.8 * end))
    parts = [rise, optax.constant_schedule(peak), optax.linear_schedule(peak, 0.0, end - fall)]
    return optax.join_schedules(parts, [recipe.warmup, fall])


def make_optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """Make AdamW with a schedule and clipping."""
    decay = {"weight_decay": recipe.weight_decay, "mask": axn.parameters.decay_mask}
    adamw = optax.adamw(make_schedule(recipe), b2=0.95, **decay)
    return optax.chain(optax.clip_by_global_norm(recipe.clip), adamw)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The compiled functions of a run, for the mesh that is current when they are called."""

    recipe: Recipe
    config: DecoderConfig

    @functools.cached_property
    def policy(self) -> jmp.Policy:
        return jmp.get_policy(self.recipe.precision)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.recipe)

    @functools.cached_property
    def mappings(self) -> tuple[axn.ResourceMapping, axn.ResourceMapping]:
        return STRATEGIES[self.recipe.strategy]

    def loss(self, model: Decoder, tokens: NamedArray, key: jax.Array | None) -> jax.Array:
        """Compute the loss in the compute layout and precision; without a key, the cross entropy alone."""
        added = {} if key is None else {"z_loss": self.recipe.z_loss, "balance": self.recipe.balance}
        with axn.axis_mapping(self.mappings[1]):
            return self.policy.cast_to_compute(model).loss(tokens, key=key, **added).scalar()

    def state(self, model: Decoder) -> State:
        """Return the state before the first step."""
        model = self.policy.cast_to_param(model)
        average = jax.tree.map(jnp.copy, model) if self.recipe.ema else None
        return State(model, self.optimizer.init(model), average)

    @functools.cached_property
    def init(self) -> axn.NamedJit[[jax.Array], State]:
        """Make the state, each parameter where it will stay."""
        make = lambda key: self.state(Decoder.init(self.config, key=key))  # noqa: E731
        return axn.named_jit(make, axis_resources=self.mappings[0])

    @functools.cached_property
    def step(self) -> axn.NamedJit[[State, NamedArray, jax.Array], tuple[State, Told]]:
        """Take one step over the microbatches of a batch, whose axes are microbatch, batch and pos.

        Where the loss or the gradient is not finite, the state stays as it is.
        """

        def accumulate(total: tuple[jax.Array, Decoder], tokens: NamedArray, key: jax.Array, model: Decoder) -> object:
            loss, grads = jax.value_and_grad(self.loss)(model, tokens, key)
            return jax.tree.map(jnp.add, total, (loss, axn.auto_sharded(grads)))

        def step(state: State, tokens: NamedArray, key: jax.Array) -> tuple[State, Told]:
            count = tokens.axis_size("microbatch")
            zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.model)
            run = axn.fold(functools.partial(accumulate, model=state.model), "microbatch")
            loss, grads = jax.tree.map(lambda x: x / count, run(zero, tokens, jax.random.split(key, count)))
            told = Told(loss, norm_of(grads))
            updates, optimizer = self.optimizer.update(grads, state.optimizer, state.model)
            model = optax.apply_updates(state.model, updates)
            new = State(model, optimizer, self.averaged(state.average, model))
            finite = jnp.isfinite(told.loss) & jnp.isfinite(told.gradient)
            return jax.tree.map(lambda x, old: jnp.where(finite, x, old), new, state), told

        return axn.named_jit(step, axis_resources=self.mappings[0], donate_args=(True,))

    def averaged(self, average: Decoder | None, model: Decoder) -> Decoder | None:
        """Move the average of the parameters."""
        if average is None:
            return None
        past = self.recipe.ema
        return jax.tree.map(lambda old, new: past * old + (1 - past) * new, average, model)

    @functools.cached_property
    def evaluate(self) -> axn.NamedJit[[Decoder, NamedArray], jax.Array]:
        """Compute the loss of tokens without dropout."""
        return axn.named_jit(lambda model, tokens: self.loss(model, tokens, None), axis_resources=self.mappings[0])

    @functools.cached_property
    def gradients(self) -> axn.NamedJit[[Decoder, NamedArray, jax.Array], Decoder]:
        """Compute the gradients of one microbatch, to look for the one that is not finite."""
        return axn.named_jit(jax.grad(self.loss), axis_resources=self.mappings[0])

    def place(self, tokens: np.ndarray) -> NamedArray:
        """Put a batch on the devices."""
        batch = NamedArray(tokens, ("microbatch", "batch", "pos"))
        return axn.shard(batch, {"batch": self.mappings[1].get("batch")})

    def shardings(self, state: State, mesh: jax.sharding.Mesh) -> State:
        """Return where each array of a state goes."""
        specs = axn.pspec_for(state, self.mappings[0], mesh)
        return jax.tree.map(lambda spec: jax.sharding.NamedSharding(mesh, spec), specs, is_leaf=is_spec)

    def culprits(self, model: Decoder, tokens: NamedArray, key: jax.Array) -> list[str]:
        """Return the parameters whose values, or else whose gradients, are not finite; in order of depth."""
        bad = not_finite(model)
        count = tokens.axis_size("microbatch")
        for i, part_key in enumerate(jax.random.split(key, count)):
            bad = bad or not_finite(self.gradients(model, tokens["microbatch", i], part_key))
        return bad


def norm_of(tree: object) -> jax.Array:
    """Return the norm of all numbers of a tree together."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def is_spec(node: object) -> bool:
    return isinstance(node, jax.P)


def not_finite(model: Decoder) -> list[str]:
    """Return the paths of arrays with numbers that are not finite."""
    return [found.path for found in axn.parameters.walk(model) if not bool(jnp.isfinite(found.array.array).all())]
