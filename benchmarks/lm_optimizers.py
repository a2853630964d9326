"""Compare optimisers in the README's run of examples/lm: tuned alike, then with three seeds each.

    python benchmarks/lm_optimizers.py            tune, train, and print the tables
    python benchmarks/lm_optimizers.py --time     how long a step takes, as a ratio to AdamW

The README's run is laid out over eight simulated devices; here it has one, which computes the same up to the order of
sums, and sooner. A shorter run with one seed tries each learning rate. `lm_optimizers.jsonl` keeps the losses of all
runs, and those in it are not repeated: remove the file to begin anew.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import jax

jax.config.update("jax_num_cpu_devices", 8)

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import metrics  # noqa: E402
from layouts import Strategy  # noqa: E402
from measure import interleaved, median_ratio, ratio_of_minima, table  # noqa: E402
from options import Options  # noqa: E402
from run import prepare  # noqa: E402
from train import main as train  # noqa: E402
from trainer import OptimizerName, Recipe  # noqa: E402

import axonym as axn  # noqa: E402

NAMES: tuple[OptimizerName, ...] = get_args(OptimizerName)
# As many for each, so that the best one is not at an end.
RATES: dict[OptimizerName, tuple[float, ...]] = {
    "adamw": (3e-3, 4.2e-3, 6e-3, 1.2e-2),
    "muon": (6e-3, 1.2e-2, 2.4e-2, 4.8e-2),
}
SHORT, SEEDS = 100, range(3)
EVERY = 100  # steps between looks at the held-out text
FILE = Path(__file__).with_suffix(".jsonl")
Found = dict[str, Any]
"""A run: its options, its losses by step, and those of held-out text."""


def read() -> list[Found]:
    """Return all runs that are done."""
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


def run(name: OptimizerName, rate: float, seed: int, steps: int) -> Found:
    """Train, or return the run if it is done."""
    about: Found = {"optimizer": name, "rate": rate, "seed": seed, "steps": steps}
    for found in read():
        if about.items() <= found.items():
            return found
    # Warming up takes a tenth of the run, as in that of the README.
    recipe = Recipe(strategy="single", optimizer=name, learning_rate=rate, steps=steps, warmup=steps // 10)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        out = Path(folder) / "run"
        train(Options(recipe, seed=seed, evaluate_every=EVERY, sample=0, out=out))
        lines = metrics.read(out / "metrics.jsonl")
    about["losses"] = [round(line["loss"], 4) for line in lines if "loss" in line]
    about["held_out"] = {
        min(line["step"] + 1, steps): round(line["held_out"], 4) for line in lines if "held_out" in line
    }
    with FILE.open("a") as file:
        file.write(json.dumps(about) + "\n")
    return about


def last(found: Found) -> float:
    """Return the held-out loss at the end."""
    return list(found["held_out"].values())[-1]


def compare() -> None:
    """Tune, train, and print both tables."""
    steps = Recipe().steps
    tuned = {name: {rate: last(run(name, rate, 0, SHORT)) for rate in RATES[name]} for name in NAMES}
    best = {name: min(losses, key=losses.__getitem__) for name, losses in tuned.items()}
    rows = [
        {"optimizer": name, "learning rate": f"{rate:g}", "held-out loss": f"{loss:.4f}"}
        for name, losses in tuned.items()
        for rate, loss in losses.items()
    ]
    print(f"after {SHORT} steps\n\n{table(rows)}\n")
    ends: dict[str, list[float]] = {name: [] for name in NAMES}
    for seed in SEEDS:
        for name in NAMES:
            ends[name].append(last(run(name, best[name], seed, steps)))
    rows = [
        {
            "optimizer": name,
            "learning rate": f"{best[name]:g}",
            **{f"seed {seed}": f"{loss:.4f}" for seed, loss in zip(SEEDS, losses, strict=True)},
            "mean": f"{statistics.mean(losses):.4f}",
            "spread": f"{max(losses) - min(losses):.4f}",
        }
        for name, losses in ends.items()
    ]
    print(f"held-out loss after {steps} steps\n\n{table(rows)}")


class Step:
    """A step of the README's run, whose state each call replaces."""

    def __init__(self, name: OptimizerName, strategy: Strategy, folder: Path) -> None:
        run = prepare(Options(Recipe(strategy=strategy, optimizer=name), out=folder / f"{name}-{strategy}"))
        self._mesh, self._step = run.mesh, run.trainer.step
        with axn.set_mesh(self._mesh):
            self._state, _ = run.begin()
            self._batch = run.train_batch(0)

    def __call__(self) -> jax.Array:
        with axn.set_mesh(self._mesh):
            self._state, told = self._step(self._state, self._batch, jax.random.key(1))
        return told.loss


def measure(rounds: int) -> None:
    """Time steps of all optimisers in turns, and print their ratios to AdamW."""
    rows = []
    for strategy in ("single", "fsdp+tp"):
        with tempfile.TemporaryDirectory() as folder:
            steps = {name: Step(name, strategy, Path(folder)) for name in NAMES}
        clock = interleaved(steps, rounds=rounds, calls=1)
        spent = interleaved(steps, rounds=rounds, calls=1, clock=time.process_time)
        for name in NAMES[1:]:
            both, own = (clock[name], clock["adamw"]), (spent[name], spent["adamw"])
            rows.append(
                {
                    "layout": strategy,
                    "optimizer": name,
                    "AdamW, s (best)": both[1].minimum,
                    "ratio of the best": f"{ratio_of_minima(*both):.2f}",
                    "median ratio": f"{median_ratio(*both):.2f}",
                    "AdamW, processor, s": own[1].minimum,
                    "processor, best": f"{ratio_of_minima(*own):.2f}",
                    "processor, median": f"{median_ratio(*own):.2f}",
                }
            )
    print(f"jax {jax.__version__}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n\n{table(rows)}")


def main() -> None:
    """Print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.time:
        measure(options.rounds)
    else:
        compare()


if __name__ == "__main__":
    main()
