"""Time generation by examples/lm's decoder against plain JAX written by hand, with the same weights.

    python benchmarks/lm_decode.py            15 rounds
    python benchmarks/lm_decode.py --rounds 5

Both read the prompts and add tokens in one program, greedily; the tokens are compared. Ratios are of tokens per second
in interleaved runs: above 1, ours is faster.
"""

import argparse
import dataclasses
import functools
import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import numpy as np
import raw_decoder as raw
from config import DecoderConfig
from decoder import Decoder
from measure import interleaved, median_ratio, ratio_of_minima, table

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

SIZES = DecoderConfig(vocab=512, layers=4, embed=256, mlp=704, heads=8, kv_heads=4, head_dim=32, positions=512)
PROMPT, NEW = 32, 128
AXES = {
    "query": ("layers", "embed", "kv_heads", "group", "head_dim"),
    "key": ("layers", "embed", "kv_heads", "head_dim"),
    "value": ("layers", "embed", "kv_heads", "head_dim"),
    "out": ("layers", "kv_heads", "group", "head_dim", "embed"),
}


def plain(model: Decoder) -> raw.Params:
    """Return the weights of a model for the plain program."""
    (block,) = model.blocks.repeated.stacked
    blocks = {name: getattr(block.attention, name).weight.rearrange(axes).array for name, axes in AXES.items()}
    for name in ("gate", "up"):
        blocks[name] = getattr(block.mlp, name).weight.rearrange(("layers", "embed", "mlp")).array
    blocks["down"] = block.mlp.down.weight.rearrange(("layers", "mlp", "embed")).array
    for name in ("attention_norm", "mlp_norm"):
        blocks[name] = getattr(block, name).weight.rearrange(("layers", "embed")).array
    table = lambda embedding: embedding.weight.rearrange(("vocab", "embed")).array  # noqa: E731
    return {
        "blocks": blocks,
        "embedding": table(model.embedding),
        "unembedding": table(model.unembedding),
        "norm": model.norm.weight.array,
    }


@functools.partial(jax.jit, static_argnames="lengths")
def named(model: Decoder, prompt: NamedArray, lengths: bool) -> jax.Array:
    """Continue prompts; with lengths, each may have one of its own, as those of `generate.py`."""
    Batch = prompt.resolve_axis("batch")
    cache = model.cache(PROMPT + NEW, Batch)
    if not lengths:
        cache = dataclasses.replace(cache, length=axn.zeros(SIZES.Layers, dtype=int))
    count = axn.full(Batch, PROMPT) if lengths else None
    out = nn.generate(model.extend, cache, prompt, Axis("new", NEW), count=count)
    return out.tokens.rearrange(("new", "batch")).array


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    model = jax.jit(functools.partial(Decoder.init, SIZES))(key=jax.random.key(0))
    model = jax.tree.map(lambda leaf: 5 * leaf, model)  # with scores as far apart as those of a model that has learnt
    params = plain(model)
    by_hand = jax.jit(raw.generate, static_argnums=(2, 3))
    rows = []
    for batch in (1, 8):
        prompt = jax.random.randint(jax.random.key(1), (batch, PROMPT), 0, SIZES.vocab)
        own = NamedArray(prompt, ("batch", "pos"))
        candidates = {
            "one length": functools.partial(named, model, own, False),
            "a length for each prompt": functools.partial(named, model, own, True),
            "by hand": functools.partial(by_hand, params, prompt, NEW, PROMPT + NEW),
        }
        timed = interleaved(candidates, rounds=rounds, calls=1)
        expected = np.asarray(candidates["by hand"]())
        for name in list(candidates)[:2]:
            same = (np.asarray(candidates[name]()) == expected).mean()
            rows.append(
                {
                    "batch": str(batch),
                    "ours": name,
                    "tokens/s (best)": f"{batch * NEW / timed[name].minimum:,.0f}",
                    "by hand": f"{batch * NEW / timed['by hand'].minimum:,.0f}",
                    "ratio of the best": f"{ratio_of_minima(timed['by hand'], timed[name]):.3f}",
                    "median ratio": f"{median_ratio(timed['by hand'], timed[name]):.3f}",
                    "equal tokens": f"{same:.1%}",
                }
            )
    print(f"jax {jax.__version__}, {SIZES.layers} layers of {SIZES.embed}, {PROMPT} + {NEW} tokens\n")
    print(table(rows))


if __name__ == "__main__":
    main()
