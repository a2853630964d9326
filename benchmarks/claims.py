"""Time proofs and trials of what axes mean: an abstract decoder of 70 billion parameters, and `check` of a small one.

    python benchmarks/claims.py

Seconds are those of the processor, compilation included; other programs on the machine count little.
"""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from measure import table

import axonym as axn
from axonym.models import Decoder, DecoderConfig

LARGE = DecoderConfig(vocab=32000, layers=80, embed=8192, mlp=28672, heads=64, kv_heads=8, head_dim=128, positions=4096)
SMALL = DecoderConfig(vocab=64, layers=4, embed=32, mlp=96, heads=4, kv_heads=2, head_dim=8, positions=16)


def score(model: Decoder, tokens: axn.NamedArray) -> axn.NamedArray:
    """Return the scores of all tokens."""
    return model(tokens)


def measure(run: Callable[[], Any]) -> str:
    """Return the processor time of a run, in seconds."""
    start = time.process_time()
    run()
    return f"{time.process_time() - start:.1f}"


def main() -> None:
    """Print the table."""
    model = eqx.filter_eval_shape(lambda: Decoder.init(LARGE, key=jax.random.key(0)))
    tokens = axn.NamedArray(jax.ShapeDtypeStruct((1024, 4096), jnp.int32), ("batch", "pos"))
    print(f"{axn.parameters.count(model) / 1e9:.1f} billion parameters")
    small = jax.jit(lambda: Decoder.init(SMALL, key=jax.random.key(0)))()
    few = axn.random.randint(jax.random.key(1), {"batch": 3, "pos": 8}, 0, SMALL.vocab)
    runs: dict[str, Callable[[], Any]] = {
        "abstract: independent": lambda: axn.testing.check(score, model, tokens, independent="batch"),
        "4 layers: independent and causal": lambda: axn.testing.check(
            score, small, few, independent="batch", causal="pos"
        ),
    }
    reports: list[Any] = []
    rows = [{"check": name, "seconds": measure(lambda run=run: reports.append(run()))} for name, run in runs.items()]
    print(table(rows))
    for report in reports:
        print(report)


if __name__ == "__main__":
    main()
