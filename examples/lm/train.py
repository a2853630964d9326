"""Train a small language model, laid out by two dicts.

    python train.py                             the source of Python's standard library, FSDP and tensor parallelism
    python train.py --strategy dp               another layout of the same run
    python train.py --data my_texts/            your own text
    python train.py --start ~/Llama-3.2-1B      go on from a checkpoint of Hugging Face, on your own text
    python train.py --save-every 100            keep checkpoints; the same command again goes on with the last one

Without an accelerator it simulates eight CPU devices. The folder of the run has the model as Hugging Face stores it,
for `generate.py`; a line of numbers for each step, in `metrics.jsonl`; and the curve of the loss.
"""

import dataclasses
import functools
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro
from config import DecoderConfig
from data import Tokens, batches, load_tokens, train_valid_split, unigram_entropy
from generate import Generator, Options as Sampling, read_tokenizer
from huggingface import load, save
from layouts import make_mesh
from metrics import Metrics, read
from tokenizer import Bytes, Tokenizer, Vocabulary
from tqdm import tqdm
from trainer import Recipe, State, Trainer

import axonym as axn
from axonym import NamedArray

STOPPED = 128 + signal.SIGTERM  # the status of a program that SIGTERM ends


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a training run.

    Attributes:
        recipe: how the model is trained.
        mesh: devices along the mesh axes data and model; by default 4 and 2, or 1 and 1 for a single device.
        axis_types: how JAX treats shardings: decided by the compiler, or part of types.
        data: a text file or a folder of them, or a file of tokens; by default the source of Python's standard library.
        tokenizer: a `tokenizer.json`; by default tokens are bytes.
        start: the folder of a model to start from; the options of sizes do not count then.
        family: the form of the model.
        layers: number of blocks.
        embed: width of the residual stream.
        heads: number of attention heads.
        kv_heads: number of heads of keys and values; by default as many.
        positions: tokens per sequence.
        dropout: probability of dropping.
        batch: sequences per step.
        seed: of parameters, data order and dropout.
        evaluate_every: steps between looks at the held-out text; 0 looks at the end only.
        save_every: steps between checkpoints; 0 keeps none.
        keep: how many of the last checkpoints are kept.
        keep_every: checkpoints of every so many steps are kept, too.
        sample: tokens to generate at the end.
        out: the folder of the run.
    """

    recipe: tyro.conf.OmitArgPrefixes[Recipe] = Recipe()  # noqa: RUF009  # it is frozen
    mesh: tuple[int, int] | None = None
    axis_types: Literal["auto", "explicit"] = "auto"
    data: Path | None = None
    tokenizer: Path | None = None
    start: Path | None = None
    family: Literal["llama", "gpt2"] = "llama"
    layers: int = 4
    embed: int = 128
    heads: int = 4
    kv_heads: int | None = None
    positions: int = 128
    dropout: float = 0.05
    batch: int = 32
    seed: int = 0
    evaluate_every: int = 0
    save_every: int = 0
    keep: int = 2
    keep_every: int | None = None
    sample: int = 96
    out: Path = Path(__file__).parent / "run"


# The least that each of these options can be.
LEAST = {
    **dict.fromkeys(("layers", "embed", "heads", "positions", "batch", "keep", "recipe.microbatches"), 1),
    **dict.fromkeys(("recipe.steps", "recipe.warmup", "seed", "sample", "evaluate_every", "save_every"), 0),
}
# Where a run goes, and how often it looks up: these may differ when it goes on.
MAY_CHANGE = {
    *("recipe.strategy", "mesh", "axis_types", "out"),
    *("evaluate_every", "save_every", "keep", "keep_every", "sample"),
}


def make_config(options: Options, vocab: int) -> DecoderConfig:
    """Return the sizes and forms of a new model."""
    if options.embed % options.heads:
        sizes = f"embed={options.embed} is not a multiple of heads={options.heads}"
        raise ValueError(f"heads must divide embed: {sizes}")
    config = DecoderConfig(
        vocab=vocab,
        layers=options.layers,
        embed=options.embed,
        # A gate makes three matrices of two: so wide, they have as many numbers.
        mlp=32 * round(8 * options.embed / 3 / 32) or 32,
        heads=options.heads,
        kv_heads=options.kv_heads or options.heads,
        head_dim=options.embed // options.heads,
        positions=options.positions,
        dropout=options.dropout,
    )
    if options.family == "llama":
        return config
    return dataclasses.replace(
        config,
        mlp=4 * options.embed,
        norm="layer",
        biases=frozenset({"qkv", "out", "mlp"}),
        activation="gelu_tanh",
        gated=False,
        rope=None,
        tied=True,
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """A run: what it reads, where it is, and where it goes."""

    options: Options
    tokenizer: Tokenizer
    train: Tokens
    valid: Tokens
    config: DecoderConfig
    mesh: jax.sharding.Mesh

    @functools.cached_property
    def trainer(self) -> Trainer:
        return Trainer(self.options.recipe, self.config)

    @functools.cached_property
    def checkpoints(self) -> Any:
        """The checkpoints of the run; None where none are kept."""
        if not self.options.save_every:
            return None
        from checkpoint import Checkpoints

        return Checkpoints(self.options.out / "checkpoints", self.options.keep, self.options.keep_every)

    def batch(self, tokens: Tokens, step: int, microbatches: int) -> NamedArray:
        """Draw the batch of a step: from the text, the seed and the step alone, so that a run can go on anywhere."""
        options = self.options
        sizes = {"microbatches": microbatches, "batch": options.batch, "length": options.positions}
        return self.trainer.place(batches(tokens, **sizes, seed=options.seed, step=step))

    def held_out(self, state: State) -> float:
        """Return the loss of the held-out text, under the average of the parameters where there is one."""
        model = state.model if state.average is None else state.average
        return float(np.mean([self.trainer.evaluate(model, self.batch(self.valid, i, 1)) for i in range(8)]))

    def begin(self) -> tuple[State, int]:
        """Return the state to go on with, and the number of steps that were taken."""
        if self.checkpoints is not None and (step := self.checkpoints.latest()) is not None:
            self.check_same(self.checkpoints.about(step)["options"], step)
            print(f"going on after {step} steps", file=sys.stderr)
            template = jax.eval_shape(self.trainer.init, jax.random.key(0))
            return self.checkpoints.restore(step, template, self.trainer.shardings(template, self.mesh)), step
        if self.options.start is None:
            return self.trainer.init(jax.random.fold_in(jax.random.key(self.options.seed), 0)), 0
        model = load(self.options.start, mapping=self.trainer.mappings[0], mesh=self.mesh)
        model = dataclasses.replace(model, config=self.config)
        return axn.named_jit(self.trainer.state, axis_resources=self.trainer.mappings[0])(model), 0

    def check_same(self, saved: dict[str, Any], step: int) -> None:
        """Refuse to go on with another run."""
        own = spelled(self.options)
        differ = [f"{key}={own[key]!r}, but it was {saved.get(key)!r}" for key in own if own[key] != saved.get(key)]
        if differ:
            where = f"{self.options.out} has a run of {step} steps with other options"
            raise ValueError(f"{where}: {'; '.join(differ)}; pass another --out")

    def save(self, state: State, step: int, *, wait: bool = False) -> None:
        """Keep a checkpoint, if any are kept."""
        if self.checkpoints is not None:
            self.checkpoints.save(step, state, {"options": spelled(self.options)}, wait=wait)


def spelled(options: Options) -> dict[str, str]:
    """Return the options that make a run what it is, as text."""
    own = {**vars(options), **{f"recipe.{key}": value for key, value in vars(options.recipe).items()}}
    return {key: str(value) for key, value in own.items() if key not in {"recipe", *MAY_CHANGE}}


def check(run: Run) -> None:
    """Refuse what cannot work, before anything is compiled."""
    options, config = run.options, run.config
    if options.positions > config.positions:
        raise ValueError(f"positions={options.positions}, but the model knows {config.positions}")
    if run.valid.size <= options.positions:
        need = f"{options.positions + 1} tokens for one sequence"
        raise ValueError(f"the held-out text has {run.valid.size} tokens and must have {need}: give more text")
    microbatches = options.recipe.microbatches
    if options.batch % microbatches:
        raise ValueError(f"batch={options.batch} is not a multiple of microbatches={microbatches}")
    rows = {"batch": options.batch // microbatches, "pos": options.positions + 1}
    tokens = NamedArray(np.zeros(tuple(rows.values()), np.int32), tuple(rows))
    parameters, compute = run.trainer.mappings
    with axn.set_mesh(run.mesh):
        state = jax.eval_shape(run.trainer.init, jax.random.key(0))
    axn.pspec_for(state, parameters, run.mesh)
    axn.pspec_for(tokens, compute, run.mesh, strict=False)


def check_options(options: Options) -> None:
    """Refuse values that make no sense, before anything is read."""
    for name, least in LEAST.items():
        value = functools.reduce(getattr, name.split("."), options)
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    if not options.out.parent.is_dir():
        raise FileNotFoundError(f"no folder {options.out.parent.absolute()} for out={options.out}")


def prepare(options: Options) -> Run:
    """Read what a run needs."""
    check_options(options)
    if options.start is not None:
        tokenizer = read_tokenizer(options.start)
    else:
        tokenizer = Vocabulary(options.tokenizer) if options.tokenizer else Bytes()
    end = tokenizer.ends[0] if tokenizer.ends else None
    train, valid = train_valid_split(load_tokens(options.data, tokenizer), end=end)
    if options.start is not None:
        from families import read_file

        config = dataclasses.replace(read_file(options.start), dropout=options.dropout)
    else:
        config = make_config(options, tokenizer.vocab)
    usual = (1, 1) if options.recipe.strategy == "single" else (4, 2)
    run = Run(options, tokenizer, train, valid, config, make_mesh(options.mesh or usual, options.axis_types))
    check(run)
    return run


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """Collect signals to stop, instead of stopping in the middle of a step."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


def steps(run: Run, state: State, start: int, metrics: Metrics) -> State:
    """Take the steps of a run.

    Raises:
        FloatingPointError: where a loss or a gradient is not finite.
        SystemExit: after SIGTERM, once the state is saved.
    """
    options, trainer = run.options, run.trainer
    key = jax.random.fold_in(jax.random.key(options.seed), 1)
    bar = tqdm(range(start, options.recipe.steps), initial=start, total=options.recipe.steps, unit="step")
    with asked_to_stop() as asked:
        for i in bar:
            began, own = time.perf_counter(), jax.random.fold_in(key, i)
            tokens = run.batch(run.train, i, options.recipe.microbatches)
            state, told = trainer.step(state, tokens, own)
            loss, gradient = float(told.loss), float(told.gradient)
            if not np.isfinite([loss, gradient]).all():
                raise FloatingPointError(explained(run, state, i, tokens, own, loss))
            rate = options.batch * options.positions / (time.perf_counter() - began)
            metrics.add(i, loss=loss, gradient=gradient, tokens_per_s=round(rate))
            bar.set_postfix(loss=f"{loss:.3f}", tokens_per_s=f"{rate:,.0f}")
            is_last, done = i + 1 == options.recipe.steps, i + 1
            if options.evaluate_every and done % options.evaluate_every == 0:
                metrics.add(i, held_out=run.held_out(state))
            if options.save_every and (done % options.save_every == 0 or is_last or asked):
                run.save(state, done, wait=bool(asked))
            if asked:
                print(f"\nstopped after {done} steps", file=sys.stderr)
                sys.exit(STOPPED)
    return state


def explained(run: Run, state: State, step: int, tokens: NamedArray, key: jax.Array, loss: float) -> str:
    """Say where numbers stopped being finite; the state is the one before the step."""
    bad = run.trainer.culprits(state.model, tokens, key)
    first = f"; not finite first in: {', '.join(bad[:3])}" if bad else ""
    last = None if run.checkpoints is None else run.checkpoints.latest()
    kept = "there is no checkpoint" if last is None else f"the last checkpoint is of {last} steps"
    return f"the loss of step {step} is {loss}{first}; {kept}"


def main(options: Options) -> float:
    """Train, and return the held-out loss."""
    run = prepare(options)
    options.out.mkdir(exist_ok=True)
    with axn.set_mesh(run.mesh):
        state, start = run.begin()
        metrics = Metrics(options.out / "metrics.jsonl", start)
        try:
            state = steps(run, state, start, metrics)
            held_out = run.held_out(state)
            metrics.add(options.recipe.steps, held_out=held_out)
        finally:
            metrics.close()
            if run.checkpoints is not None:
                run.checkpoints.close()
        model = state.model if state.average is None else state.average
        ends = {"eos_token_id": list(run.tokenizer.ends)}
        save(model, options.out, **ends)
        if isinstance(run.tokenizer, Vocabulary):
            run.tokenizer.save(options.out / "tokenizer.json")
        show_sample(run, model)
    report(options, held_out, unigram_entropy(run.valid))
    return held_out


def show_sample(run: Run, model: Any) -> None:
    """Continue the beginning of the held-out text."""
    room = run.options.positions - run.options.sample
    if not run.options.sample or room < 1:
        return
    prompt = run.valid[: min(32, room)].tolist()
    options = Sampling(run.options.out, new=run.options.sample)
    cast, layout = run.trainer.policy.cast_to_compute(model), {**run.trainer.mappings[1], "batch": None}
    parts = Generator(cast, run.tokenizer, options, layout).stream([prompt])
    tokens = [token for part in parts for token in part[0]]
    print(f"\n--- {len(tokens)} tokens after the held-out text ...{run.tokenizer.decode(prompt)!r}:")
    print(run.tokenizer.decode(tokens))


def report(options: Options, held_out: float, entropy: float) -> None:
    """Show what came out of a run."""
    from matplotlib.figure import Figure

    # First of all: whatever happens to the file, these are not lost.
    print(f"---\nunigram entropy of the held-out text: {entropy:.3f} nats per token")
    print(f"held-out loss:                        {held_out:.3f} nats per token")
    lines = [line for line in read(options.out / "metrics.jsonl") if "loss" in line]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([line["step"] for line in lines], [line["loss"] for line in lines], linewidth=1, label="training")
    axes.axhline(held_out, color="tab:orange", label=f"held out: {held_out:.3f}")
    axes.axhline(entropy, color="gray", linestyle=":", label=f"unigram entropy: {entropy:.3f}")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=f"{options.family}, {options.recipe.strategy}")
    axes.legend()
    figure.savefig(options.out / "loss.png", dpi=120)
    print(f"the model, its numbers and the curve of its loss: {options.out}")


if __name__ == "__main__":
    chosen = tyro.cli(Options, description=__doc__)
    jax.config.update("jax_num_cpu_devices", 8)
    try:
        main(chosen)
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"error: {error}")
