"""The compiled functions of a training run: initialise, take a step, evaluate."""

import contextlib
import dataclasses
import functools
from typing import Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import optax
from layouts import DEFAULT, STRATEGIES, Layout, Strategy
from rows import Batch

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray
from axonym.models import Decoder, DecoderConfig

OptimizerName: TypeAlias = Literal["adamw", "muon"]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        strategy: which pair of mappings lays out the run, on a mesh of two numbers; by default fsdp+tp. A mesh by names
            says it itself.
        fsdp: on a mesh by names, divide parameters and optimiser state by the axes data and context, too.
        steps: number of steps.
        microbatches: parts in which a batch is computed, one after the other, or in a pipeline; by default 2, or twice
            as many as stages.
        optimizer: of the matrices of layers; AdamW updates everything else. Updates of Muon are scaled to the size of
            those of AdamW, so that learning rate and weight decay mean the same.
        learning_rate: its highest value, after warming up.
        schedule: how it falls afterwards: to a tenth by a cosine, to zero in the last fifth, or not at all.
        warmup: steps of warming up.
        weight_decay: of matrices and tables.
        clip: largest norm of the gradient.
        z_loss: keeps logits from drifting, see `axn.nn.cross_entropy_loss`.
        balance: keeps the load of experts even, see `Decoder.loss`.
        ema: the weight of the past in a moving average of the parameters; 0 for none.
        mup: the width at which the rates of AdamW were tuned: those of wider models, and their initial values, are
            scaled from it, see `axn.mup`. None scales nothing.
        precision: dtypes of parameters, computation and outputs.
    """

    strategy: Strategy | None = None
    fsdp: bool = False
    steps: int = 300
    microbatches: int | None = None
    optimizer: OptimizerName = "adamw"
    learning_rate: float = 3e-3
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: int = 30
    weight_decay: float = 0.1
    clip: float = 1.0
    z_loss: float = 0.0
    balance: float = 0.01
    ema: float = 0.0
    mup: int | None = None
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


@dataclasses.dataclass(frozen=True)
class Widths:
    """The maximal update parametrisation of a decoder, whose width grows by heads of one size.

    The norm in front of the scores is scaled in place of what scores, which may be the table of the tokens: the scores
    are the same, and files of the model need no factor.

    Attributes:
        config: of the model.
        base: the width at which the rates were tuned.
    """

    config: DecoderConfig
    base: int

    def __post_init__(self) -> None:
        grown = {"kv_heads": self.config.kv_heads, "mlp": self.config.mlp}
        flawed = [f"{name}={size}" for name, size in grown.items() if size * self.base % self.config.embed]
        if self.base < 1 or flawed:
            ratio = f"{self.base}/{self.config.embed}"
            raise ValueError(f"mup={self.base}: a model of that width would have {ratio} of {' and '.join(flawed)}")

    @property
    def factors(self) -> axn.mup.Mup:
        sizes = {"embed": self.config.embed, "kv_heads": self.config.kv_heads, "mlp": self.config.mlp}
        return axn.mup.Mup({name: size * self.base // self.config.embed for name, size in sizes.items()})

    def last_norm(self, model: Decoder) -> Decoder:
        """Scale the norm in front of the scores."""
        norm = jax.tree.map(lambda x: x * (self.base / self.config.embed), model.norm)
        return eqx.tree_at(lambda model: model.norm, model, norm)

    def initial(self, model: Decoder) -> Decoder:
        """Scale the initial values of a model, which have a fixed standard deviation at any width."""
        return self.last_norm(self.factors.initial(model, "constant"))

    def updates(self, updates: Decoder, _: object) -> Decoder:
        """Scale the updates of Adam."""
        return self.last_norm(self.factors.scaled_updates(updates))


def scale_by(name: OptimizerName, b2: float) -> optax.GradientTransformation:
    """Make an optimiser without learning rate and weight decay.

    Args:
        name: of the optimiser.
        b2: how slowly Adam forgets the squares of gradients.

    Raises:
        ValueError: if there is none of this name.
    """
    if name == "adamw":
        return optax.scale_by_adam(b2=b2)
    if name == "muon":
        # The learning rate follows, for all parameters, and turns the sign: a rate of -1 leaves it as it is.
        return axn.optim.muon(-1.0, adam_b2=b2, consistent_rms=0.2)
    raise ValueError(f"optimizer={name} is none of {', '.join(get_args(OptimizerName))}")


def make_optimizer(recipe: Recipe, widths: Widths | None = None) -> optax.GradientTransformation:
    """Make the optimiser with a schedule, weight decay and clipping.

    Raises:
        ValueError: if there is none of this name, or if it has no factors for widths.
    """
    if widths is not None and recipe.optimizer != "adamw":
        raise ValueError(
            f"mup={recipe.mup} scales the rates of adamw, and optimizer={recipe.optimizer}: pass one of them"
        )
    return optax.chain(
        optax.clip_by_global_norm(recipe.clip),
        scale_by(recipe.optimizer, b2=0.95),
        optax.identity() if widths is None else optax.stateless(widths.updates),
        optax.add_decayed_weights(recipe.weight_decay, mask=axn.parameters.decay_mask),
        optax.scale_by_learning_rate(make_schedule(recipe)),
    )


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The compiled functions of a run, for the mesh that is current when they are called.

    Attributes:
        recipe: how the model is trained.
        config: its sizes and forms.
        given: how the run is laid out; by default as the strategy of the recipe says.
    """

    recipe: Recipe
    config: DecoderConfig
    given: Layout | None = None

    @functools.cached_property
    def policy(self) -> jmp.Policy:
        return jmp.get_policy(self.recipe.precision)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.recipe, self.widths)

    @functools.cached_property
    def widths(self) -> Widths | None:
        return None if self.recipe.mup is None else Widths(self.config, self.recipe.mup)

    @functools.cached_property
    def layout(self) -> Layout:
        if self.given is not None:
            return self.given
        return Layout(*STRATEGIES[self.recipe.strategy or DEFAULT])

    @property
    def mappings(self) -> tuple[axn.ResourceMapping, axn.ResourceMapping]:
        """How parameters are laid out, and the computation."""
        return self.layout.parameters, self.layout.compute

    def piped(self) -> contextlib.AbstractContextManager[None]:
        """Say how a pipeline cuts its work, where there is one."""
        if self.layout.pipelined is None:
            return contextlib.nullcontext()
        return axn.pipelined("batch", self.layout.pipelined)

    def loss(self, model: Decoder, batch: Batch, key: jax.Array | None) -> jax.Array:
        """Compute the loss in the compute layout and precision; without a key, the cross entropy alone."""
        options: dict[str, float] = {}
        if key is not None:
            options = {"z_loss": self.recipe.z_loss, "balance": self.recipe.balance}
        mask = None
        if batch.documents is not None:
            mask = nn.segments(batch.documents)
        with axn.axis_mapping(self.mappings[1]), self.piped():
            computing = self.policy.cast_to_compute(model)
            batch = axn.shard(batch, {"batch": self.mappings[1].get("batch")}, strict=False)
            return computing.loss(batch.tokens, mask, where=batch.counted, key=key, **options).scalar()

    def state(self, model: Decoder) -> State:
        """Return the state before the first step."""
        model = self.policy.cast_to_param(model)
        average = jax.tree.map(jnp.copy, model) if self.recipe.ema else None
        return State(model, self.optimizer.init(model), average)

    @functools.cached_property
    def init(self) -> axn.NamedJit[[jax.Array], State]:
        """Make the state, each parameter where it will stay."""
        return axn.named_jit(self.fresh, axis_resources=self.mappings[0])

    def fresh(self, key: jax.Array) -> State:
        """Return the state of a new model."""
        model = Decoder.init(self.config, key=key)
        return self.state(model if self.widths is None else self.widths.initial(model))

    @functools.cached_property
    def step(self) -> axn.NamedJit[[State, Batch, jax.Array], tuple[State, Told]]:
        """Take one step over the microbatches of a batch.

        Where the loss or the gradient is not finite, the state stays as it is.
        """

        def accumulate(total: object, part: Batch, share: NamedArray, key: jax.Array, model: Decoder) -> object:
            loss, grads = jax.value_and_grad(self.loss)(model, part, key)
            weight = share.scalar()
            return jax.tree.map(lambda x, new: x + weight * new, total, (loss, axn.auto_sharded(grads)))

        def step(state: State, batch: Batch, key: jax.Array) -> tuple[State, Told]:
            count = batch.tokens.axis_size("microbatch")
            zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.model)
            run = axn.fold(functools.partial(accumulate, model=state.model), "microbatch")
            total = run(zero, batch, batch.shares(), jax.random.split(key, count))
            loss, grads = jax.tree.map(lambda x: x / count, total)
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
    def evaluate(self) -> axn.NamedJit[[Decoder, Batch], jax.Array]:
        """Compute the loss of a batch of one part without dropout."""
        return axn.named_jit(lambda model, batch: self.loss(model, batch, None), axis_resources=self.mappings[0])

    @functools.cached_property
    def gradients(self) -> axn.NamedJit[[Decoder, Batch, jax.Array], Decoder]:
        """Compute the gradients of one microbatch, to look for one that is not finite."""
        return axn.named_jit(jax.grad(self.loss), axis_resources=self.mappings[0])

    def count_rows(self, batch: int, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> int:
        """Return the rows of a microbatch with those that pad it: as many as devices, and a pipeline, divide."""
        cut = self.layout.pipelined or 1
        return cut * axn.round_axis_for_partitioning(Axis("batch", -(-batch // cut)), self.rows, mesh).size

    def own_rows(self, batch: int, mesh: jax.sharding.Mesh) -> slice:
        """Return which rows of a microbatch the devices of this process have."""
        return axn.local_slices(Axis("batch", batch), self.rows, mesh, strict=False)["batch"]

    def place(self, batch: Batch, mesh: jax.sharding.Mesh | None = None) -> Batch:
        """Put the rows of this process on its devices."""
        return axn.from_local(batch, self.rows, mesh, strict=False)

    @property
    def rows(self) -> axn.ResourceMapping:
        """How the rows of a batch arrive."""
        return self.layout.rows

    def shardings(self, state: State, mesh: jax.sharding.Mesh) -> State:
        """Return where each array of a state goes."""
        specs = axn.pspec_for(state, self.mappings[0], mesh)
        return jax.tree.map(lambda spec: jax.sharding.NamedSharding(mesh, spec), specs, is_leaf=is_spec)


def norm_of(tree: object) -> jax.Array:
    """Return the norm of all numbers of a tree together."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def is_spec(node: object) -> bool:
    return isinstance(node, jax.P)
