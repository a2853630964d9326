"""Compile the GPT-2 example's training step with few layers and with many: the time must not grow with the depth.

    python benchmarks/depth.py            the table
    python benchmarks/depth.py --fast     fewer rounds

Each measurement traces and lowers a new function, and compiles it. Nothing is run, and arrays are abstract. Depths take
turns, so that ratios hold where times do not.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from gpt2 import Block, Gpt2, Gpt2Config, Mlp
from measure import interleaved, median_ratio, ratio_of_minima, table

from axonym import NamedArray, nn

FEW, MANY = 4, 48
BAR = 1.3


class Plain(eqx.Module):
    """A block without attention, as the second kind of layers."""

    norm: nn.LayerNorm
    mlp: Mlp

    @staticmethod
    def init(cfg: Gpt2Config, *, key: jax.Array) -> "Plain":
        return Plain(nn.LayerNorm.init(cfg.Embed), Mlp.init(cfg, key=key))

    def __call__(self, x: NamedArray, mask: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        return x + self.mlp(self.norm(x))


def model(layers: int, *, kinds: tuple[Any, ...] = (), unrolled: bool = False, checkpointing: Any = True) -> Gpt2:
    """Make the example's model, its blocks of several kinds that alternate if there are any."""
    cfg = Gpt2Config(layers, 64, 4, 32, 256, dropout=0.0, checkpointing=checkpointing, unrolled=unrolled)
    made = Gpt2.init(cfg, key=jax.random.key(0))
    if not kinds:
        return made
    init = nn.Interleaved.init(cfg.Layers, kinds, gradient_checkpointing=checkpointing)
    return dataclasses.replace(made, blocks=init(cfg, key=jax.random.key(0)))


def compiler(make: Callable[[], Gpt2]) -> Callable[[], float]:
    """Return a function that lowers and compiles the training step anew, and returns the bytes of the program."""
    optimizer = optax.adamw(1e-3)
    abstract = jax.eval_shape(make)
    tokens = NamedArray(jax.ShapeDtypeStruct((8, 33), jnp.int32), ("batch", "pos"))
    state = jax.eval_shape(optimizer.init, abstract)

    def compile_it() -> float:
        def step(model: Gpt2, state: Any, tokens: NamedArray) -> Any:
            loss, gradients = jax.value_and_grad(lambda model: model.loss(tokens).scalar())(model)
            updates, new = optimizer.update(gradients, state, model)
            return optax.apply_updates(model, updates), new, loss

        compiled = jax.jit(step).lower(abstract, state, tokens).compile()
        return float(compiled.memory_analysis().generated_code_size_in_bytes)

    return compile_it


STACKS: dict[str, dict[str, Any]] = {
    "Stacked": {},
    "Stacked, everything kept": {"checkpointing": False},
    "Stacked, nested": {"checkpointing": "nested"},
    "Interleaved, 1 of 2": {"kinds": (Block, Plain)},
    "Interleaved, 1 of 4": {"kinds": (Plain, Plain, Plain, Block)},
    "BlockSeq": {"unrolled": True},
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="how the rows to run begin; by default all")
    parser.add_argument("--fast", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    rows = []
    for name, how in STACKS.items():
        if options.names and not name.startswith(tuple(options.names)):
            continue
        calls = {depth: compiler(functools.partial(model, depth, **how)) for depth in (FEW, MANY)}
        rounds = 2 if name == "BlockSeq" else 3 if options.fast else 9
        timed = interleaved({str(depth): call for depth, call in calls.items()}, rounds=rounds, calls=1)
        few, many = timed[str(FEW)], timed[str(MANY)]
        rows.append(
            {
                "stack": name,
                f"{FEW} layers, s": f"{few.minimum:.2f}",
                f"{MANY} layers, s": f"{many.minimum:.2f}",
                "ratio of minima": f"{ratio_of_minima(many, few):.2f}",
                "median ratio": f"{median_ratio(many, few):.2f}",
            }
        )
    print(f"jax {jax.__version__} on {jax.default_backend()}; the bar is {BAR} but for BlockSeq\n")
    print(table(rows))


if __name__ == "__main__":
    main()
