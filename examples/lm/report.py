"""The end of a run shows text of the model, its losses, and their curve."""

from typing import Any

import jax
from costs import peak_bytes
from metrics import read
from options import Options
from run import Run

from axonym.models import Sampling, TextGenerator


def show_sample(run: Run, model: Any) -> None:
    """Continue the beginning of the held-out text."""
    room = run.options.positions - run.options.sample
    # Of many processes, each has only parts of what is generated.
    if not run.options.sample or room < 1 or jax.process_count() > 1:
        return
    prompt = run.valid[0][: min(32, room)].tolist()
    options = Sampling(new=run.options.sample)
    # One sequence, token by token: there is nothing to cut but the model.
    layout = {**run.trainer.mappings[1], **dict.fromkeys(("batch", "pos", "layers"))}
    cast = run.trainer.policy.cast_to_compute(model)
    parts = TextGenerator(cast, run.tokenizer, options, layout).stream([prompt])
    tokens = [token for part in parts for token in part[0]]
    print(f"\n--- {len(tokens)} tokens after the held-out text ...{run.tokenizer.decode(prompt)!r}:")
    print(run.tokenizer.decode(tokens))


def report(options: Options, held_out: float, entropy: float) -> None:
    """Show what came out of a run."""
    from matplotlib.figure import Figure

    # First of all: whatever happens to the file, these are not lost.
    print(f"---\nunigram entropy of the held-out text: {entropy:.3f} nats per token")
    print(f"held-out loss:                        {held_out:.3f} nats per token")
    most = peak_bytes(jax.local_devices())
    if most is not None:
        print(f"the most memory of a device:          {most / 2**30:.2f} GiB")
    lines = [line for line in read(options.out / "metrics.jsonl") if "loss" in line]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([line["step"] for line in lines], [line["loss"] for line in lines], linewidth=1, label="training")
    axes.axhline(held_out, color="tab:orange", label=f"held out: {held_out:.3f}")
    axes.axhline(entropy, color="gray", linestyle=":", label=f"unigram entropy: {entropy:.3f}")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=f"{options.family}, {options.layout_name}")
    axes.legend()
    figure.savefig(options.out / "loss.png", dpi=120)
    print(f"the model, its numbers and the curve of its loss: {options.out}")
