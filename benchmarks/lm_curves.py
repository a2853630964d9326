"""Train the model of examples/lm under every strategy, on the same text, and print the curves of their losses.

    python benchmarks/lm_curves.py                            200 steps each
    python benchmarks/lm_curves.py --steps 50
    python benchmarks/lm_curves.py --picture curves.svg       draw them, too

The text is the source of Python's standard library, in the order that the seed gives: strategies compute the same, up
to the order of sums.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

import jax

jax.config.update("jax_num_cpu_devices", 8)

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

from layouts import STRATEGIES, Strategy  # noqa: E402
from measure import table  # noqa: E402
from metrics import read  # noqa: E402
from options import Options  # noqa: E402
from train import main as train  # noqa: E402
from trainer import Recipe  # noqa: E402

SIZES = {"layers": 2, "embed": 64, "heads": 4, "positions": 64, "batch": 16, "sample": 0}
PRECISION = "params=float32,compute=float32,output=float32"


def curve(strategy: Strategy, steps: int, folder: Path) -> dict[int, float]:
    """Train, and return the loss after each number of steps; after the last one, that of held-out text."""
    recipe = Recipe(strategy=strategy, steps=steps, microbatches=2, precision=PRECISION)
    out = folder / strategy
    with contextlib.redirect_stdout(sys.stderr):
        train(Options(recipe, out=out, **SIZES))
    losses: dict[int, float] = {}
    for line in read(out / "metrics.jsonl"):
        if "held_out" in line:
            losses[steps] = line["held_out"]
        else:
            losses[line["step"]] = line["loss"]
    return losses


def rows(curves: dict[Strategy, dict[int, float]], steps: int) -> list[dict[str, str]]:
    """Return a row for some steps, with a column for each strategy."""
    shown = sorted({0, *range(steps // 8, steps, steps // 8 or 1), steps - 1, steps})
    named = {step: f"step {step + 1}" for step in shown} | {steps: "held-out text"}
    return [
        {"loss, nats per byte": named[step], **{name: f"{losses[step]:.4f}" for name, losses in curves.items()}}
        for step in shown
    ]


def draw(curves: dict[Strategy, dict[int, float]], steps: int, file: Path) -> None:
    """Draw the curves, each thinner than the one below it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for i, (name, losses) in enumerate(curves.items()):
        width = 1.5 * (len(curves) - i)
        axes.plot(range(1, steps + 1), [losses[step] for step in range(steps)], linewidth=width, label=name)
    axes.set(xlabel="step", ylabel="loss (nats per byte)")
    axes.legend()
    figure.savefig(file)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        curves = {strategy: curve(strategy, options.steps, Path(folder)) for strategy in STRATEGIES}
    sizes = ", ".join(f"{name}={size}" for name, size in SIZES.items())
    print(f"jax {jax.__version__}, {os.cpu_count()} cores, {sizes}\n")
    print(table(rows(curves, options.steps)))
    if options.picture is not None:
        draw(curves, options.steps, options.picture)


if __name__ == "__main__":
    main()
