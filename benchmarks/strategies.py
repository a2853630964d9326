"""Train the model of examples/lm for five steps under every strategy, and print losses and collectives side by side.

python benchmarks/strategies.py
"""

import dataclasses
import sys
from pathlib import Path
from typing import Literal

import jax

jax.config.update("jax_num_cpu_devices", 8)

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import numpy as np  # noqa: E402
from layouts import STRATEGIES, Strategy, make_mesh  # noqa: E402
from measure import collectives, table, totals  # noqa: E402
from rows import Windows, batch_of  # noqa: E402
from trainer import Recipe, Trainer  # noqa: E402

import axonym as axn  # noqa: E402
from axonym.models import DecoderConfig  # noqa: E402

SIZES = DecoderConfig(vocab=256, layers=2, embed=32, mlp=64, heads=4, kv_heads=4, head_dim=8, dropout=0.1)
RECIPE = Recipe(microbatches=2, warmup=2, precision="params=float32,compute=float32,output=float32")
MODES = ("auto", "explicit")
TEXT = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)


def row(strategy: Strategy, mode: Literal["auto", "explicit"]) -> dict[str, object]:
    """Take five steps, and describe them."""
    trainer, losses, kinds = Trainer(dataclasses.replace(RECIPE, strategy=strategy), SIZES), [], ""
    with axn.set_mesh(make_mesh((1, 1) if strategy == "single" else (4, 2), mode)):
        state = trainer.init(jax.random.key(0))
        for step in range(5):
            drawn = batch_of(Windows(TEXT, length=16, seed=0), step, batch=16, microbatches=2)
            arguments = trainer.place(drawn), jax.random.key(step)
            if step == 0:
                found = totals(collectives(trainer.step.lower(state, *arguments).compile()))
                kinds = ", ".join(f"{kind} x{total.count}" for kind, total in found.items())
            state, told = trainer.step(state, *arguments)
            losses.append(float(told.loss))
    steps = {f"step {i + 1}": f"{loss:.6f}" for i, loss in enumerate(losses)}
    return {"mesh axes": mode, "strategy": strategy, **steps, "collectives": kinds}


def main() -> None:
    """Print the table."""
    print(table([row(strategy, mode) for mode in MODES for strategy in STRATEGIES]))


if __name__ == "__main__":
    main()
