"""Tune a model on conversations: thin matrices beside its weights (LoRA) learn, the weights stay.

    python finetune.py --model ~/Llama-3.2-1B --data chats.jsonl --out tuned

The data are conversations, one on each line, see `axonym.models.conversations`; the template of the model writes them,
if it has one, and only what the assistant says counts. The folder has the thin matrices alone, in
`adapters.safetensors`, and in `merged` a model with the sum of both, for `generate.py` and for Hugging Face.
"""

import dataclasses
import functools
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jmp
import numpy as np
import optax
import tyro
from adapters import write_adapter
from folder import copy_files, settings_of
from layouts import STRATEGIES, Strategy, make_mesh
from metrics import Metrics, TrackerName, open_tracker
from tqdm import tqdm
from trainer import OptimizerName, scale_by

import axonym as axn
import axonym.nn as nn
from axonym import NamedArray, state_dict as sd
from axonym.models import Decoder, conversations, load, read_template, read_tokenizer, save
from axonym.models.tokenizer import check_tokens


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a tuning.

    Attributes:
        model: the folder of the model to start from.
        data: conversations, a `.jsonl` file.
        out: the folder of the result.
        rank: of the thin matrices.
        alpha: their product is multiplied by this, and divided by the rank.
        layers: the linear layers that get some, by the ends of their paths.
        peft: write the thin matrices in PEFT's format, too, into the folder `adapter`.
        length: tokens of a conversation; longer ones are cut.
        batch: conversations per step.
        steps: number of steps.
        optimizer: of the thin matrices, see `Recipe` in `trainer.py`.
        learning_rate: its highest value, at the start; it falls to zero.
        strategy: which pair of mappings lays out the run.
        mesh: devices along the mesh axes data and model.
        precision: dtypes of the thin matrices, computation and outputs.
        seed: of the thin matrices and the order of the data.
        log: send the losses to W&B or trackio, beside `metrics.jsonl`.
        project: of the run there.
    """

    model: Path
    data: Path
    out: Path
    rank: int = 8
    alpha: float = 16.0
    layers: tuple[str, ...] = ("attention.query", "attention.value")
    peft: bool = False
    length: int = 256
    batch: int = 8
    steps: int = 100
    optimizer: OptimizerName = "adamw"
    learning_rate: float = 1e-3
    strategy: Strategy = "single"
    mesh: tuple[int, int] = (1, 1)
    precision: str = "params=float32,compute=bfloat16,output=float32"
    seed: int = 0
    log: TrackerName | None = None
    project: str = "axonym"


@dataclasses.dataclass(frozen=True)
class Tuner:
    """The compiled functions of a tuning, for the mesh that is current when they are called."""

    options: Options

    @functools.cached_property
    def policy(self) -> jmp.Policy:
        return jmp.get_policy(self.options.precision)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        rate = optax.linear_schedule(self.options.learning_rate, 0.0, self.options.steps)
        scale = scale_by(self.options.optimizer, b2=0.999)
        return optax.chain(optax.clip_by_global_norm(1.0), scale, optax.scale_by_learning_rate(rate))

    def adapt(self, model: Decoder) -> Decoder:
        """Give the chosen layers thin matrices."""
        options, key = self.options, jax.random.key(self.options.seed)

        def chosen(path: str) -> bool:
            return path.endswith(options.layers)

        parameters, _ = STRATEGIES[options.strategy]
        make = functools.partial(nn.add_lora, Rank=options.rank, key=key, where=chosen, alpha=options.alpha)
        return axn.named_jit(make, parameters, strict=False)(model)

    @functools.cached_property
    def step(self) -> axn.NamedJit[..., tuple[Decoder, Any, jax.Array]]:
        """Take one step: of the thin matrices alone."""
        parameters, compute = STRATEGIES[self.options.strategy]

        def loss_of(thin: Decoder, frozen: Decoder, tokens: NamedArray, counted: NamedArray) -> jax.Array:
            with axn.axis_mapping(compute):
                model = self.policy.cast_to_compute(eqx.combine(thin, frozen))
                return model.loss(tokens, where=counted["pos", 1:]).scalar()

        def step(
            thin: Decoder, moments: Any, frozen: Decoder, tokens: NamedArray, counted: NamedArray
        ) -> tuple[Decoder, Any, jax.Array]:
            loss, gradients = jax.value_and_grad(loss_of)(thin, frozen, tokens, counted)
            updates, moments = self.optimizer.update(gradients, moments, thin)
            return eqx.apply_updates(thin, updates), moments, loss

        return axn.named_jit(step, axis_resources=parameters, donate_args=(True, True), strict=False)


def tune(
    options: Options, model: Decoder, tokens: np.ndarray, counted: np.ndarray, metrics: Metrics
) -> tuple[Decoder, list[float]]:
    """Return the model with thin matrices that have learnt, and the losses on the way."""
    tuner, losses = Tuner(options), []
    layout = {"batch": STRATEGIES[options.strategy][1].get("batch")}
    adapted = tuner.adapt(model)
    thin, frozen = eqx.partition(adapted, nn.lora_filter(adapted))
    thin = tuner.policy.cast_to_param(thin)
    moments = tuner.optimizer.init(thin)
    for i in (bar := tqdm(range(options.steps), unit="step")):
        rows = np.random.default_rng((options.seed, i)).integers(len(tokens), size=options.batch)
        drawn = [NamedArray(x[rows], ("batch", "pos")) for x in (tokens, counted)]
        (own, counts), real = axn.pad_batch(drawn, "batch", layout)
        placed = axn.shard((own, counts & real), layout)
        thin, moments, loss = tuner.step(thin, moments, frozen, *placed)
        losses.append(float(loss))
        if not np.isfinite(losses[-1]):
            raise FloatingPointError(f"loss={losses[-1]} in step {i}: lower --learning-rate, or look at the data")
        metrics.add(i, loss=losses[-1])
        bar.set_postfix(loss=f"{losses[-1]:.3f}")
    return eqx.combine(thin, frozen), losses


def write(adapted: Decoder, options: Options) -> None:
    """Write the thin matrices, and the model with the sum of both."""
    thin = eqx.filter(adapted, nn.lora_filter(adapted))
    told = {"rank": str(options.rank), "alpha": str(options.alpha), "model": str(options.model)}
    sd.save_state_dict(sd.to_state_dict(thin), options.out / "adapters.safetensors", metadata=told)
    if options.peft:
        family = settings_of(options.model)["family"]
        write_adapter(adapted, options.out / "adapter", family=family, base=str(options.model))
    save(nn.merge_lora(adapted), options.out / "merged", **settings_of(options.model))
    copy_files(options.model, options.out / "merged")


def read(model: Decoder, options: Options) -> Decoder:
    """Return a model with the thin matrices of a folder."""
    adapted = Tuner(options).adapt(model)
    thin, frozen = eqx.partition(adapted, nn.lora_filter(adapted))
    return eqx.combine(sd.from_state_dict(thin, sd.load_state_dict(options.out / "adapters.safetensors")), frozen)


def main(options: Options) -> list[float]:
    """Tune, write the result, and return the losses."""
    for name in ("length", "batch", "steps"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name}={getattr(options, name)} must be at least 1")
    tokenizer = read_tokenizer(options.model)
    template = read_template(options.model)
    tokens, counted = conversations(options.data, tokenizer, options.length, template)
    options.out.mkdir(exist_ok=True)
    mesh = make_mesh(options.mesh)
    with axn.set_mesh(mesh):
        model = load(options.model, mapping=STRATEGIES[options.strategy][0], mesh=mesh)
        check_tokens(tokens, model.config.vocab, str(options.data))
        tracker = open_tracker(options.log, options.project, options.out, options) if options.log else None
        with closing(Metrics(options.out / "metrics.jsonl", tracker=tracker)) as metrics:
            adapted, losses = tune(options, model, tokens, counted, metrics)
        write(adapted, options)
    print(f"loss from {losses[0]:.3f} to {losses[-1]:.3f} nats per token: {options.out}")
    return losses


if __name__ == "__main__":
    chosen = tyro.cli(Options, description=__doc__)
    try:
        main(chosen)
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"error: {error}")
