"""Train the model of examples/lm on products of mesh axes, and compare the losses with those of one device.

    python benchmarks/lm_products.py                          20 steps each, on both kinds of mesh axes
    python benchmarks/lm_products.py --steps 5 --only pp+cp+tp

The devices are eight simulated ones. For each product: the mappings' mesh, whether parameters are fully sharded, and
the largest difference of a loss.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Literal

import jax

jax.config.update("jax_num_cpu_devices", 8)

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import dataclasses  # noqa: E402

import numpy as np  # noqa: E402
from layouts import Layout, layout_of, make_mesh, read_mesh  # noqa: E402
from measure import table  # noqa: E402
from rows import Windows, batch_of  # noqa: E402
from trainer import Recipe, Trainer  # noqa: E402

import axonym as axn  # noqa: E402
from axonym.models import DecoderConfig, ExpertsConfig  # noqa: E402

# The mesh, and whether parameters are fully sharded.
PRODUCTS: dict[str, tuple[str, bool]] = {
    "dp": ("data=8", False),
    "fsdp": ("data=8", True),
    "tp": ("model=4", False),
    "pp": ("stage=4", False),
    "cp": ("context=8", False),
    "ep": ("expert=4", False),
    "fsdp+tp": ("data=4,model=2", True),
    "pp+tp": ("stage=4,model=2", False),
    "pp+fsdp": ("data=4,stage=2", True),
    "cp+fsdp": ("data=2,context=4", True),
    "ep+fsdp": ("data=2,expert=4", True),
    "ep+tp": ("expert=4,model=2", False),
    "ep+cp": ("expert=4,context=2", False),
    "pp+ep": ("data=2,stage=2,expert=2", False),
    "pp+cp+tp": ("stage=2,context=2,model=2", False),
    "pp+fsdp+tp": ("data=2,stage=2,model=2", True),
}
DENSE = DecoderConfig(vocab=256, layers=4, embed=32, mlp=64, heads=4, kv_heads=4, head_dim=8, positions=32)
MIXTURE = dataclasses.replace(DENSE, experts=ExpertsConfig(count=8, chosen=2, mlp=32))
BATCH = 32
MODES = ("auto", "explicit")
TEXT = np.random.default_rng(0).integers(0, 64, 20000).astype(np.uint8)


def losses(config: DecoderConfig, layout: Layout, mesh: jax.sharding.Mesh, steps: int) -> np.ndarray:
    """Train, and return the loss of each step."""
    recipe = Recipe(steps=steps, warmup=2, precision="params=float32,compute=float32,output=float32")
    trainer, source, told = Trainer(recipe, config, layout), Windows(TEXT, config.positions, seed=0), []
    with axn.set_mesh(mesh):
        state = trainer.init(jax.random.key(0))
        for step in range(steps):
            # A pipeline cuts the batch itself.
            parts = 1 if layout.pipelined else 2
            batch = trainer.place(batch_of(source, step, BATCH, parts))
            state, of_step = trainer.step(state, batch, jax.random.key(step))
            told.append(float(of_step.loss))
    return np.array(told)


def difference(name: str, mode: Literal["auto", "explicit"], alone: np.ndarray) -> str:
    """Return the largest difference of a loss from those of one device."""
    text, fsdp = PRODUCTS[name]
    sizes = read_mesh(text)
    found = losses(config_of(name), layout_of(sizes, fsdp=fsdp), make_mesh(sizes, mode), len(alone))
    return f"{np.abs(found - alone).max():.1e}"


def config_of(name: str) -> DecoderConfig:
    return MIXTURE if "ep" in name.split("+") else DENSE


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", choices=PRODUCTS, nargs="+", default=list(PRODUCTS))
    options = parser.parse_args()
    alone = {
        id(config): losses(config, Layout({}, {}), make_mesh((1, 1)), options.steps) for config in (DENSE, MIXTURE)
    }
    rows = []
    for name in options.only:
        own = alone[id(config_of(name))]
        text, fsdp = PRODUCTS[name]
        mesh = f"--mesh {text}{' --fsdp' if fsdp else ''}"
        row = {"product": name, "options": mesh, **{mode: difference(name, mode, own) for mode in MODES}}
        print(*row.values(), file=sys.stderr)
        rows.append(row)
    first = [f"{curve[0]:.3f} to {curve[-1]:.3f}" for curve in alone.values()]
    print(f"jax {jax.__version__}, {os.cpu_count()} cores, {options.steps} steps, losses {' and '.join(first)}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
