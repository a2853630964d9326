"""A decode step whose devices do not divide the key heads, compiled for TPU v5e 2x4: needs the package libtpu.

    python benchmarks/lm_key_heads.py

Two key heads and 16 heads of queries on eight devices. `fit_mapping` splits the key heads two ways and their groups
four ways, so a device has the cache of one key head.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

from layouts import HEADS
from measure import table

import axonym as axn
from axonym import nn
from axonym.models import Decoder, DecoderConfig

CONFIG = DecoderConfig(
    vocab=1024, layers=4, embed=1024, mlp=1024, heads=16, kv_heads=2, head_dim=128, positions=8192, tied=True
)
Batch = axn.Axis("batch", 8)


def decode(model: Decoder, cache: nn.KVCache, token: axn.NamedArray) -> tuple[nn.KVCache, axn.NamedArray]:
    """Add one token to each sequence."""
    return model.extend(cache, token)


def main() -> None:
    """Fit, compile, and print what a device holds, reads and sends."""

    def make() -> tuple[Decoder, nn.KVCache, axn.NamedArray]:
        model = Decoder.init(CONFIG, key=jax.random.key(0))
        cast = axn.tree.map(lambda x: x.astype(jnp.bfloat16), model)
        cache = cast.cache(CONFIG.positions, Batch, dtype=jnp.dtype(jnp.bfloat16))
        return cast, cache, axn.zeros(Batch, dtype=jnp.int32)

    given = jax.eval_shape(make)
    both = dict.fromkeys(HEADS, ("data", "model"))
    fitted = axn.partitioning.fit_mapping(decode, both, {"data": 2, "model": 4}, *given)
    run = axn.named_jit(decode, fitted.mapping, donate_args=(False, True, False))
    cost = axn.cost(run, fitted.mapping, dict(fitted.mesh.shape), *given, target="v5e")
    cache = sum(leaf.size * leaf.dtype.itemsize for leaf in (given[1].key.array, given[1].value.array))
    rows = [
        {"": "cache of one key head, MB", "v5e 2x4": f"{cache / CONFIG.kv_heads / 1e6:.1f}"},
        {"": "arguments of a device, MB", "v5e 2x4": f"{cost.memory.arguments / 1e6:.1f}"},
        {"": "temporaries, MB", "v5e 2x4": f"{cost.memory.temporary / 1e6:.2f}"},
        {"": "sent", "v5e 2x4": ", ".join(sorted({one.kind for one in cost.communication}))},
    ]
    print(f"{fitted.mapping} on {dict(fitted.mesh.shape)}")
    print(table(rows))


if __name__ == "__main__":
    main()
