"""Train a small GPT-2 on bytes of text, laid out by two dicts.

    python train.py                          the source of Python's standard library, FSDP and tensor parallelism
    python train.py --strategy dp            another layout of the same run
    python train.py --data my_texts/         your own text

Without an accelerator it simulates eight CPU devices.
"""

import dataclasses
import functools
import math
import sys
import time
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
import tyro
from data import batches, load_text, train_valid_split, unigram_entropy
from model import Gpt2, Gpt2Config
from tqdm import tqdm

import axonym as axn
from axonym import NamedArray

# For each strategy: how parameters and optimiser state are laid out, and how the computation is.
STRATEGIES: dict[str, tuple[axn.ResourceMapping, axn.ResourceMapping]] = {
    "single": ({}, {}),
    "dp": ({}, {"batch": ("data", "model")}),
    "fsdp": ({"embed": ("data", "model")}, {"batch": ("data", "model")}),
    "tp": ({"heads": "model", "mlp": "model"}, {"batch": "data", "heads": "model", "mlp": "model"}),
    "fsdp+tp": (
        {"embed": "data", "heads": "model", "mlp": "model"},
        {"batch": "data", "heads": "model", "mlp": "model"},
    ),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a training run.

    Attributes:
        strategy: which pair of mappings lays out the run.
        mesh: devices along the mesh axes data and model; by default 4 and 2, or 1 and 1 for a single device.
        axis_types: how JAX treats shardings: decided by the compiler, or part of types.
        data: a text file or a folder of them; by default the source of Python's standard library.
        layers: number of blocks.
        embed: width of the residual stream.
        heads: number of attention heads.
        positions: bytes per sequence.
        dropout: probability of dropping.
        batch: sequences per step.
        microbatches: parts in which a batch is computed, one after the other.
        steps: number of steps.
        learning_rate: its highest value, after warming up.
        warmup: steps of warming up.
        weight_decay: of AdamW, for matrices.
        clip: largest norm of the gradient.
        precision: dtypes of parameters, computation and outputs.
        seed: of parameters, data order and dropout.
        sample: bytes of text to generate at the end.
        out: where the curve of the loss goes.
    """

    strategy: Literal["single", "dp", "fsdp", "tp", "fsdp+tp"] = "fsdp+tp"
    mesh: tuple[int, int] | None = None
    axis_types: Literal["auto", "explicit"] = "auto"
    data: Path | None = None
    layers: int = 4
    embed: int = 128
    heads: int = 4
    positions: int = 128
    dropout: float = 0.05
    batch: int = 32
    microbatches: int = 2
    steps: int = 300
    learning_rate: float = 3e-3
    warmup: int = 30
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: str = "params=float32,compute=bfloat16,output=float32"
    seed: int = 0
    sample: int = 300
    out: Path = Path(__file__).parent / "loss.png"


# The least that each of these options can be.
LEAST = {
    **dict.fromkeys(("layers", "embed", "heads", "positions", "batch", "microbatches"), 1),
    **dict.fromkeys(("steps", "warmup", "seed", "sample"), 0),
}


class State(eqx.Module):
    """What a step changes."""

    model: Gpt2
    optimizer: optax.OptState


def make_mesh(options: Options) -> jax.sharding.Mesh:
    """Make the mesh of a run."""
    shape = options.mesh or ((1, 1) if options.strategy == "single" else (4, 2))
    have = len(jax.devices())
    if min(shape) < 1:
        raise ValueError(f"a mesh of {shape[0]} x {shape[1]} must have at least 1 device along each axis")
    if math.prod(shape) > have:
        raise ValueError(f"a mesh of {shape[0]} x {shape[1]} needs {math.prod(shape)} devices, this machine has {have}")
    kind = {"auto": jax.sharding.AxisType.Auto, "explicit": jax.sharding.AxisType.Explicit}[options.axis_types]
    devices = jax.devices()[: math.prod(shape)]
    return jax.make_mesh(shape, ("data", "model"), axis_types=(kind, kind), devices=devices)


def make_optimizer(options: Options) -> optax.GradientTransformation:
    """Make AdamW with warm-up, cosine decay and clipping."""
    peak, last = options.learning_rate, options.learning_rate / 10
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, peak, options.warmup, max(options.steps, options.warmup + 1), last
    )
    adamw = optax.adamw(schedule, b2=0.95, weight_decay=options.weight_decay, mask=axn.parameters.decay_mask)
    return optax.chain(optax.clip_by_global_norm(options.clip), adamw)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The compiled functions of a run, for the mesh that is current when they are called."""

    options: Options
    config: Gpt2Config

    @functools.cached_property
    def policy(self) -> jmp.Policy:
        return jmp.get_policy(self.options.precision)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self.options)

    @functools.cached_property
    def mappings(self) -> tuple[axn.ResourceMapping, axn.ResourceMapping]:
        return STRATEGIES[self.options.strategy]

    def loss(self, model: Gpt2, tokens: NamedArray, key: jax.Array | None) -> jax.Array:
        """Compute the loss in the compute layout and precision."""
        with axn.axis_mapping(self.mappings[1]):
            return self.policy.cast_to_compute(model).loss(tokens, key=key).scalar()

    @functools.cached_property
    def init(self) -> axn.NamedJit[[jax.Array], State]:
        """Make the state, each parameter where it will stay."""

        def init(key: jax.Array) -> State:
            model = self.policy.cast_to_param(Gpt2.init(self.config, key=key))
            return State(model, self.optimizer.init(model))

        return axn.named_jit(init, axis_resources=self.mappings[0])

    @functools.cached_property
    def step(self) -> axn.NamedJit[[State, NamedArray, jax.Array], tuple[State, jax.Array]]:
        """Take one optimiser step over the microbatches of a batch, whose axes are microbatch, batch and pos."""

        def accumulate(total: tuple[jax.Array, Gpt2], tokens: NamedArray, key: jax.Array, model: Gpt2) -> object:
            loss, grads = jax.value_and_grad(self.loss)(model, tokens, key)
            return jax.tree.map(jnp.add, total, (loss, axn.auto_sharded(grads)))

        def step(state: State, tokens: NamedArray, key: jax.Array) -> tuple[State, jax.Array]:
            count = tokens.axis_size("microbatch")
            zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.model)
            run = axn.fold(functools.partial(accumulate, model=state.model), "microbatch")
            loss, grads = jax.tree.map(lambda x: x / count, run(zero, tokens, jax.random.split(key, count)))
            updates, optimizer = self.optimizer.update(grads, state.optimizer, state.model)
            return State(optax.apply_updates(state.model, updates), optimizer), loss

        return axn.named_jit(step, axis_resources=self.mappings[0], donate_args=(True,))

    @functools.cached_property
    def evaluate(self) -> axn.NamedJit[[Gpt2, NamedArray], jax.Array]:
        """Compute the loss of tokens without dropout."""
        return axn.named_jit(lambda model, tokens: self.loss(model, tokens, None), axis_resources=self.mappings[0])

    @functools.cached_property
    def generate(self) -> axn.NamedJit[[Gpt2, NamedArray, jax.Array], NamedArray]:
        """Continue a window of tokens, one byte after the other."""

        def generate(model: Gpt2, window: NamedArray, keys: jax.Array) -> NamedArray:
            def extend(window: NamedArray, key: jax.Array) -> tuple[NamedArray, NamedArray]:
                logits = model(window)["pos", -1]
                token = axn.random.categorical(key, logits.astype(jnp.float32) / 0.8, "vocab").astype(jnp.int32)
                return axn.concatenate("pos", [window["pos", 1:], axn.stack("pos", [token])]), token

            with axn.axis_mapping({**self.mappings[1], "batch": None}):
                model = self.policy.cast_to_compute(model)
                return axn.scan(extend, axn.Axis("sample", keys.shape[0]))(window, keys)[1]

        return axn.named_jit(generate, axis_resources=self.mappings[0], strict=False)

    def place(self, tokens: np.ndarray) -> NamedArray:
        """Put a batch on the devices."""
        batch = NamedArray(tokens, ("microbatch", "batch", "pos"))
        return axn.shard(batch, {"batch": self.mappings[1].get("batch")})


def check_options(options: Options) -> None:
    """Refuse values that make no sense, before anything is read."""
    from matplotlib.backend_bases import FigureCanvasBase

    for name, least in LEAST.items():
        if getattr(options, name) < least:
            raise ValueError(f"{name}={getattr(options, name)} must be at least {least}")
    if not options.out.parent.is_dir():
        raise FileNotFoundError(f"no folder {options.out.parent.absolute()} for out={options.out}")
    kinds = FigureCanvasBase.get_supported_filetypes()
    if options.out.suffix and options.out.suffix[1:].lower() not in kinds:
        raise ValueError(f"out={options.out} has an unsupported image format; use .png, .pdf or .svg")


def check(options: Options, config: Gpt2Config, mesh: jax.sharding.Mesh, train: np.ndarray, valid: np.ndarray) -> None:
    """Refuse what cannot work, before anything is compiled."""
    if valid.size <= options.positions:
        need = f"{options.positions + 1} bytes for one sequence"
        raise ValueError(f"the held-out text has {valid.size} bytes and must have {need}: give more text")
    if options.batch % options.microbatches:
        raise ValueError(f"batch={options.batch} is not a multiple of microbatches={options.microbatches}")
    sizes = {"microbatches": options.microbatches, "batch": options.batch, "length": options.positions}
    tokens = NamedArray(batches(train, **sizes, seed=0, step=0), ("microbatch", "batch", "pos"))
    parameters, compute = STRATEGIES[options.strategy]
    model = jax.eval_shape(lambda key: Gpt2.init(config, key=key), jax.random.key(0))
    axn.pspec_for(model, parameters, mesh)
    axn.pspec_for(tokens, compute, mesh, strict=False)


def main(options: Options) -> float:
    """Train, and return the held-out loss."""
    check_options(options)
    train, valid = train_valid_split(load_text(options.data))
    config = Gpt2Config(options.layers, options.embed, options.heads, options.positions, 256, options.dropout)
    mesh = make_mesh(options)
    check(options, config, mesh, train, valid)
    trainer = Trainer(options, config)
    draw = functools.partial(batches, batch=options.batch, length=options.positions, seed=options.seed)
    k_init, k_step, k_sample = jax.random.split(jax.random.key(options.seed), 3)
    losses: list[float] = []
    with axn.set_mesh(mesh):
        state = trainer.init(k_init)
        bar = tqdm(range(options.steps), unit="step", mininterval=1.0)
        for i in bar:
            start = time.perf_counter()
            tokens = trainer.place(draw(train, microbatches=options.microbatches, step=i))
            state, loss = trainer.step(state, tokens, jax.random.fold_in(k_step, i))
            losses.append(float(loss))
            rate = options.batch * options.positions / (time.perf_counter() - start)
            bar.set_postfix(loss=f"{losses[-1]:.3f}", tokens_per_s=f"{rate:,.0f}")
        held_out = [
            float(trainer.evaluate(state.model, trainer.place(draw(valid, microbatches=1, step=i)))) for i in range(8)
        ]
        prompt = np.asarray(valid[: options.positions], np.int32)
        keys = jax.random.split(k_sample, options.sample)
        text = trainer.generate(state.model, NamedArray(jnp.asarray(prompt), ("pos",)), keys)
    report(options, losses, float(np.mean(held_out)), unigram_entropy(valid), bytes(prompt.tolist()), text)
    return float(np.mean(held_out))


def report(
    options: Options, losses: list[float], held_out: float, entropy: float, prompt: bytes, text: NamedArray
) -> None:
    """Show what came out of a run."""
    from matplotlib.figure import Figure

    # First of all: whatever happens to the file, these are not lost.
    print(f"\n--- {options.sample} bytes after the held-out text ...{prompt[-40:].decode('utf-8', 'replace')!r}:")
    print(bytes(text.tolist()).decode("utf-8", "replace"))
    print(f"---\nunigram entropy of the held-out text: {entropy:.3f} nats per byte")
    print(f"held-out loss:                        {held_out:.3f} nats per byte")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, linewidth=1, label="training")
    axes.axhline(held_out, color="tab:orange", label=f"held out: {held_out:.3f}")
    axes.axhline(entropy, color="gray", linestyle=":", label=f"unigram entropy: {entropy:.3f}")
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title=f"GPT-2, {options.strategy}")
    axes.legend()
    figure.savefig(options.out, dpi=120)
    print(f"curve of the loss: {options.out}")


if __name__ == "__main__":
    chosen = tyro.cli(Options, description=__doc__)
    jax.config.update("jax_num_cpu_devices", 8)
    try:
        main(chosen)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
