"""Measure what checkpoints cost the training loop of examples/lm, in time of the clock and of the processor.

    python benchmarks/lm_saving.py               9 rounds
    python benchmarks/lm_saving.py --rounds 3

Blocks of steps with one save, which ends within the block, and without take turns; the difference is the cost of a
save, all that runs beside the steps included. The bar is for the save every 100 steps of the README.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import numpy as np
from checkpoint import Checkpoints
from layouts import make_mesh
from options import Options, make_config
from rows import Windows, batch_of
from trainer import Recipe, Trainer

import axonym as axn

EVERY, BLOCK = 100, 10


def main() -> None:
    """Print the cost of a save, and its share of the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    options = Options(Recipe(strategy="single"))
    trainer = Trainer(options.recipe, make_config(options, 256))
    text = np.random.default_rng(0).integers(1, 256, 100_000).astype(np.uint8)
    seconds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder, axn.set_mesh(make_mesh((1, 1))):
        checkpoints = Checkpoints(Path(folder))
        state = trainer.init(jax.random.key(0))
        source = Windows(text, options.positions, 0)
        batch = trainer.place(batch_of(source, 0, options.batch, options.recipe.microbatches))
        state, _ = trainer.step(state, batch, jax.random.key(0))
        checkpoints.save(0, state, {}, wait=True)
        for i in range(1, 2 * rounds + 1):
            saves = i % 2 == (i // 2) % 2
            began, spent = time.perf_counter(), time.process_time()
            if saves:
                checkpoints.save(i, state, {})
            for _ in range(BLOCK):
                state, told = trainer.step(state, batch, jax.random.key(i))
                float(told.loss)
            checkpoints.wait()
            seconds[saves].append((time.perf_counter() - began, time.process_time() - spent))
        checkpoints.close()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    print(f"jax {jax.__version__}; a state of {size / 1e6:.1f} MB, {rounds} rounds of {BLOCK} steps")
    for at, clock in enumerate(("clock", "processor")):
        for kind, choose in (("least", min), ("median", statistics.median)):
            without, with_save = (choose([pair[at] for pair in seconds[saves]]) for saves in (False, True))
            step, save = without / BLOCK, with_save - without
            share = save / (EVERY * step)
            told = f"a step {step * 1e3:.1f} ms, a save {save * 1e3:.1f} ms more"
            print(f"{clock} ({kind}): {told}: {share:.1%} of {EVERY} steps")


if __name__ == "__main__":
    main()
