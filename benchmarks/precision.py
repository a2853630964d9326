"""Train a small GPT-2 in several precisions from the same seed, and print how far the losses drift apart.

    python benchmarks/precision.py                200 steps
    python benchmarks/precision.py --steps 50     fewer

A CPU has no units for 8-bit formats: it emulates their rounding, so that losses tell and times do not.
"""

import argparse
import functools
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import jax
import jmp
import numpy as np
import optax
from data import train_valid_split
from gpt2 import Gpt2, Gpt2Config
from measure import table
from rows import Windows, batch_of
from texts import load_text

import axonym as axn
from axonym import quant

CONFIG = Gpt2Config(layers=2, embed=64, heads=4, positions=64, vocab=256, dropout=0.0)
BATCH, HELD_OUT = 16, 8

# The dtype of the computation, and what multiplies in the linear layers.
RUNS: dict[str, tuple[str, Any]] = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "fp8, delayed scaling": ("bfloat16", quant.Fp8DotGeneral.init),
    "fp8, delayed by 16 steps at most": ("bfloat16", functools.partial(quant.Fp8DotGeneral.init, 16)),
    "fp8, current scaling": ("bfloat16", quant.Fp8CurrentDotGeneral),
    "int8": ("bfloat16", quant.Int8DotGeneral),
    "float32 + fp8, delayed scaling": ("float32", quant.Fp8DotGeneral.init),
    "float32 + int8": ("float32", quant.Int8DotGeneral),
}


def train(dtype: str, dot_general: Any, text: tuple[np.ndarray, np.ndarray], steps: int) -> tuple[list[float], float]:
    """Return the losses of all steps and the held-out loss."""
    policy = jmp.get_policy(f"params=float32,compute={dtype},output=float32")
    model = Gpt2.init(CONFIG, key=jax.random.key(0))
    if dot_general is not None:
        model = quant.quantize_linear_layers(model, quant.QuantizationConfig(dot_general))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, steps // 10, steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95))
    state = optimizer.init(quant.partition_for_grad_overwrite(model)[1])

    def loss(model: Gpt2, tokens: axn.NamedArray) -> jax.Array:
        return policy.cast_to_compute(model).loss(tokens).scalar()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(model: Gpt2, state: Any, tokens: axn.NamedArray) -> tuple[Gpt2, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(model, tokens)
        overwrites, gradients = quant.partition_for_grad_overwrite(gradients)
        updates, state = optimizer.update(gradients, state, quant.partition_for_grad_overwrite(model)[1])
        return quant.apply_updates(model, updates, overwrites), state, value

    def draw(tokens: np.ndarray, i: int) -> axn.NamedArray:
        return batch_of(Windows(tokens, CONFIG.positions, seed=0), i, BATCH).part(0).tokens

    losses = []
    for i in range(steps):
        model, state, value = step(model, state, draw(text[0], i))
        losses.append(float(value))
    evaluate = jax.jit(loss)
    return losses, float(np.mean([float(evaluate(model, draw(text[1], i))) for i in range(HELD_OUT)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    text = train_valid_split(load_text())
    base: tuple[np.ndarray, float] | None = None
    rows = []
    for name, (dtype, dot_general) in RUNS.items():
        start = time.perf_counter()
        losses, held_out = train(dtype, dot_general, text, steps)
        seconds = time.perf_counter() - start
        base = base or (np.asarray(losses), held_out)
        last = slice(-steps // 10, None)
        gap = np.asarray(losses) - base[0]
        row = {
            "run": name,
            f"last {steps // 10} steps": np.mean(losses[last]),
            "gap": gap[last].mean(),
            "largest gap": np.abs(gap).max(),
            "held out": held_out,
            "gap held out": held_out - base[1],
        }
        rows.append({key: x if isinstance(x, str) else f"{x:.4f}" for key, x in row.items()} | {"s": round(seconds)})
    print(f"{steps} steps on {jax.devices()[0].device_kind}; losses in nats per byte, gaps to float32")
    print(table(rows))


if __name__ == "__main__":
    main()
