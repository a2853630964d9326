"""Train the GPT-2 example for five steps under every strategy, and print the losses and collectives side by side.

python benchmarks/strategies.py
"""

import dataclasses
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import jax

jax.config.update("jax_num_cpu_devices", 8)

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "gpt2"))

import numpy as np  # noqa: E402
from data import batches  # noqa: E402
from measure import collectives, table, totals  # noqa: E402
from model import Gpt2Config  # noqa: E402
from train import STRATEGIES, Options, Trainer, make_mesh  # noqa: E402

import axonym as axn  # noqa: E402

SMALL = Options(layers=2, embed=32, heads=4, positions=16, batch=16, microbatches=2, warmup=2, dropout=0.1)
FLOAT32 = "params=float32,compute=float32,output=float32"
TEXT = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)


def row(options: Options) -> dict[str, object]:
    """Take five steps, and describe them."""
    config = Gpt2Config(options.layers, options.embed, options.heads, options.positions, 256, options.dropout)
    trainer, losses, kinds = Trainer(options, config), [], ""
    with axn.set_mesh(make_mesh(options)):
        state = trainer.init(jax.random.key(0))
        for step in range(5):
            drawn = batches(TEXT, microbatches=2, batch=options.batch, length=options.positions, seed=0, step=step)
            arguments = trainer.place(drawn), jax.random.key(step)
            if step == 0:
                found = totals(collectives(trainer.step.lower(state, *arguments).compile()))
                kinds = ", ".join(f"{kind} x{total.count}" for kind, total in found.items())
            state, loss = trainer.step(state, *arguments)
            losses.append(float(loss))
    steps = {f"step {i + 1}": f"{loss:.6f}" for i, loss in enumerate(losses)}
    return {"mesh axes": options.axis_types, "strategy": options.strategy, **steps, "collectives": kinds}


def main() -> None:
    """Print the table."""
    fixed = dataclasses.replace(SMALL, precision=FLOAT32)
    modes = get_args(get_type_hints(Options)["axis_types"])
    rows = [row(dataclasses.replace(fixed, strategy=s, axis_types=mode)) for mode in modes for s in STRATEGIES]
    print(table(rows))


if __name__ == "__main__":
    main()
