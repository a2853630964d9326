"""Time generation by examples/lm's decoder against plain JAX written by hand, with the same weights.

    python benchmarks/lm_decode.py                   15 rounds
    python benchmarks/lm_decode.py --rounds 5
    python benchmarks/lm_decode.py --places 4096     with a cache for more tokens than there are
    python benchmarks/lm_decode.py --transformers    beside them the Llama of Hugging Face, if `torch` is installed

Both read the prompts and add tokens in one program, greedily; the tokens are compared. Ratios are of tokens per second
in interleaved runs: above 1, ours is faster. That of Hugging Face is `generate` as its guide has it: eager, in
float32, without gradients, with a cache that grows; with as many threads as there are processors, and with one.
"""

import argparse
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import numpy as np
import raw_decoder as raw
from measure import interleaved, median_ratio, ratio_of_minima, table

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray
from axonym.models import Decoder, DecoderConfig, save

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


@functools.partial(jax.jit, static_argnames=("lengths", "places"))
def named(model: Decoder, prompt: NamedArray, lengths: bool, places: int) -> jax.Array:
    """Continue prompts; with lengths, each may have one of its own, as those of `generate.py`."""
    Batch = prompt.resolve_axis("batch")
    cache = model.cache(places, Batch)
    if not lengths:
        cache = dataclasses.replace(cache, length=axn.zeros(SIZES.Layers, dtype=int))
    count = axn.full(Batch, PROMPT) if lengths else None
    out = nn.generate(model.extend, cache, prompt, Axis("new", NEW), count=count)
    return out.tokens.rearrange(("new", "batch")).array


def of_hugging_face(model: Decoder) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return a function of prompts and a number of threads that continues them with the same weights."""
    # Threads that spin while they wait would be slow beside others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder), eos_token_id=None)
        theirs: Any = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs.eval()
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}

    def run(prompt: np.ndarray, threads: int) -> np.ndarray:
        torch.set_num_threads(threads)
        tokens = torch.tensor(prompt, dtype=torch.long)
        with torch.inference_mode():
            out = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        found: np.ndarray = out[:, PROMPT:].numpy().T
        return found

    return run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--places", type=int, default=PROMPT + NEW, help="positions in the cache")
    parser.add_argument("--transformers", action="store_true", help="measure Hugging Face's Llama, too")
    options = parser.parse_args()
    places: int = options.places
    model = jax.jit(functools.partial(Decoder.init, SIZES))(key=jax.random.key(0))
    model = jax.tree.map(lambda leaf: 5 * leaf, model)  # with scores as far apart as those of a model that has learnt
    params = plain(model)
    by_hand = jax.jit(raw.generate, static_argnums=(2, 3))
    theirs = of_hugging_face(model) if options.transformers else None
    rows: list[dict[str, str]] = []
    for batch in (1, 8):
        prompt = jax.random.randint(jax.random.key(1), (batch, PROMPT), 0, SIZES.vocab)
        own = NamedArray(prompt, ("batch", "pos"))
        ours: dict[str, Callable[[], Any]] = {
            "one length": functools.partial(named, model, own, False, places),
            "a length for each prompt": functools.partial(named, model, own, True, places),
        }
        others: dict[str, Callable[[], Any]] = {
            "plain JAX by hand": functools.partial(by_hand, params, prompt, NEW, places)
        }
        if theirs is not None:
            for threads in sorted({1, os.cpu_count() or 1}):
                others[f"transformers, threads: {threads}"] = functools.partial(theirs, np.asarray(prompt), threads)
        timed = interleaved({**ours, **others}, rounds=options.rounds, calls=1)
        found = {name: np.asarray(call()) for name, call in {**ours, **others}.items()}
        for name in ours:
            for other in others:
                rows.append(
                    {
                        "batch": str(batch),
                        "ours": name,
                        "tokens/s (best)": f"{batch * NEW / timed[name].minimum:,.0f}",
                        "compared with": other,
                        "its tokens/s": f"{batch * NEW / timed[other].minimum:,.0f}",
                        "ratio of the best": f"{ratio_of_minima(timed[other], timed[name]):.3f}",
                        "median ratio": f"{median_ratio(timed[other], timed[name]):.3f}",
                        "equal tokens": f"{(found[other] == found[name]).mean():.1%}",
                    }
                )
    print(f"jax {jax.__version__}, {SIZES.layers} layers of {SIZES.embed}, {PROMPT} + {NEW} tokens, {places} places\n")
    print(table(rows))


if __name__ == "__main__":
    main()
