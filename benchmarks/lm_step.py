"""Time a training step of examples/lm's decoder against plain JAX written by hand, with the same weights.

    python benchmarks/lm_step.py            15 rounds
    python benchmarks/lm_step.py --rounds 5

Loss, gradient and AdamW, of a GPT-2 and of a Llama. Plain JAX stores for the backward pass what autodiff wants; or the
same as layers of `axonym.nn`; or, on both sides, the inputs of blocks alone, which is the default of `DecoderConfig`.
Ratios are of seconds in interleaved runs, of the clock and of the processor, which counts no waiting for others: below
1, ours is faster. Losses of both are compared, and what XLA says that the compiled programs do, which does not depend
on what else the machine has to do (of a loop, it counts one turn).
"""

import argparse
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import jax.numpy as jnp
import lm_decode
import optax
import raw_decoder
import raw_gpt2
from measure import flops_bytes, interleaved, median_ratio, ratio_of_minima, table

from axonym import NamedArray
from axonym.models import Decoder, DecoderConfig

BATCH, POSITIONS = 8, 128
LLAMA = DecoderConfig(
    vocab=256, layers=4, embed=256, mlp=704, heads=8, kv_heads=4, head_dim=32, positions=POSITIONS, checkpointing=False
)
GPT2 = dataclasses.replace(LLAMA.as_gpt2(), mlp=1024, kv_heads=8)
RAW_GPT2 = raw_gpt2.GPT2Config(GPT2.vocab, GPT2.layers, GPT2.embed, GPT2.heads, GPT2.positions)
HEADS = ("query", "key", "value")
OPTIMIZER = optax.adamw(1e-3)
Loss = Callable[[Any, jax.Array], jax.Array]


def plain_gpt2(model: Decoder) -> raw_gpt2.Params:
    """Return the weights of a GPT-2 for the plain program."""
    (block,) = model.blocks.repeated.stacked

    def pair(layer: Any, *axes: str, kind: Callable[..., Any] = lambda weight: weight) -> raw_gpt2.Params:
        biases = [name for name in axes if name in layer.bias.names]
        return {
            "weight": kind(layer.weight).rearrange(("layers", *axes)).array,
            "bias": kind(layer.bias).rearrange(("layers", *biases)).array,
        }

    def of_heads(x: NamedArray) -> NamedArray:
        return x.take("group", 0) if "group" in x.names else x

    heads = ("kv_heads", "head_dim")
    read = {name: pair(getattr(block.attention, name), "embed", *heads, kind=of_heads) for name in HEADS}
    return {
        "wte": model.embedding.weight.rearrange(("vocab", "embed")).array,
        "wpe": model.positions.weight.rearrange(("pos", "embed")).array,
        "blocks": {
            "ln_1": pair(block.attention_norm, "embed"),
            **read,
            "proj": pair(block.attention.out, *heads, "embed", kind=of_heads),
            "ln_2": pair(block.mlp_norm, "embed"),
            "fc": pair(block.mlp.up, "embed", "mlp"),
            "out": pair(block.mlp.down, "mlp", "embed"),
        },
        "ln_f": {"weight": model.norm.weight.array, "bias": model.norm.bias.array},
    }


class Training:
    """A training step with its state, which each step replaces."""

    def __init__(self, loss: Loss, params: Any, tokens: Any) -> None:
        self._state = params, OPTIMIZER.init(params)
        self._tokens = tokens

        def step(state: Any, tokens: Any) -> tuple[Any, jax.Array]:
            params, moments = state
            value, grads = jax.value_and_grad(loss)(params, tokens)
            updates, moments = OPTIMIZER.update(grads, moments, params)
            return (optax.apply_updates(params, updates), moments), value

        self._step = jax.jit(step, donate_argnums=0)

    def compiled(self) -> jax.stages.Compiled:
        """Return the program."""
        return self._step.lower(self._state, self._tokens).compile()

    def __call__(self) -> jax.Array:
        self._state, loss = self._step(self._state, self._tokens)
        return loss


def pairs() -> dict[str, tuple[DecoderConfig, Callable[[Decoder], Any], Loss]]:
    """Return what is compared: our configuration, and the weights and the loss of the plain program."""

    def gpt2(**options: Any) -> Loss:
        policy = jax.checkpoint_policies.nothing_saveable if options.pop("remat", False) else None
        return functools.partial(raw_gpt2.loss, cfg=RAW_GPT2, remat=policy, **options)

    def llama(**options: Any) -> Loss:
        return functools.partial(raw_decoder.loss, **options)

    found = {}
    for name, config, weights, make in (
        ("GPT-2", GPT2, plain_gpt2, gpt2),
        ("Llama", LLAMA, lm_decode.plain, llama),
    ):
        found[f"{name}, plain JAX"] = config, weights, make()
        found[f"{name}, plain JAX that stores as little"] = config, weights, make(recompute=True)
        inputs = dataclasses.replace(config, checkpointing=True)
        found[f"{name}, both store the inputs of blocks"] = inputs, weights, make(remat=True)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    numbers = jax.random.randint(jax.random.key(1), (BATCH, POSITIONS + 1), 0, LLAMA.vocab)
    named = NamedArray(numbers, ("batch", "pos"))
    print(
        f"jax {jax.__version__}, batch {BATCH} x {POSITIONS}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    rows = []
    for name, (config, weights, loss) in pairs().items():
        model = jax.jit(functools.partial(Decoder.init, config))(key=jax.random.key(0))
        params = jax.tree.map(jnp.copy, weights(model))
        ours = Training(lambda model, tokens: model.loss(tokens).scalar(), model, named)
        plain = Training(loss, params, numbers)
        mine, theirs = ours.compiled(), plain.compiled()
        costs = flops_bytes(mine), flops_bytes(theirs)
        rooms = [program.memory_analysis().temp_size_in_bytes for program in (mine, theirs)]
        apart = max(abs(float(ours()) - float(plain())) for _ in range(4))
        both = {"ours": ours, "plain": plain}
        timed = interleaved(both, rounds=rounds, calls=1)
        spent = interleaved(both, rounds=rounds, calls=1, clock=time.process_time)
        rows.append(
            {
                "compared with": name,
                "ours ms (best)": f"{1e3 * timed['ours'].minimum:.1f}",
                "plain ms": f"{1e3 * timed['plain'].minimum:.1f}",
                "ratio of the best": f"{ratio_of_minima(timed['ours'], timed['plain']):.3f}",
                "median ratio": f"{median_ratio(timed['ours'], timed['plain']):.3f}",
                "processor, best": f"{ratio_of_minima(spent['ours'], spent['plain']):.3f}",
                "processor, median": f"{median_ratio(spent['ours'], spent['plain']):.3f}",
                "FLOPs": f"{costs[0].flops / costs[1].flops:.3f}",
                "bytes": f"{costs[0].bytes / costs[1].bytes:.3f}",
                "temporary memory": f"{rooms[0] / rooms[1]:.3f}",
                "losses differ by": f"{apart:.1e}",
            }
        )
    print(table(rows))


if __name__ == "__main__":
    main()
