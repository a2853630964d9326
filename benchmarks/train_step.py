"""Compare Axonym's GPT-2 with one in plain JAX that holds the same weights: what it computes, costs and sends.

    python benchmarks/train_step.py            all sections
    python benchmarks/train_step.py --fast     fewer rounds

Times are ratios of interleaved runs: of the minima, and the median of the ratios round by round. FLOPs, bytes and
collectives are those of the compiled programs, per device.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import raw_gpt2 as raw
from gpt2 import STRATEGIES, Gpt2, Gpt2Config
from measure import (
    collectives,
    flops_bytes,
    interleaved,
    median_ratio,
    ratio_of_minima,
    table,
    totals,
    wire_bytes,
)

import axonym as axn
from axonym import NamedArray

SIZES = raw.GPT2Config(vocab=256, layers=4, embed=256, heads=8, positions=128)
BATCH = 8


def config(sizes: raw.GPT2Config, **options: Any) -> Gpt2Config:
    """Return Axonym's configuration for the sizes of the plain one, without dropout."""
    fixed = {"dropout": 0.0, "checkpointing": False, **options}
    return Gpt2Config(sizes.layers, sizes.embed, sizes.heads, sizes.positions, sizes.vocab, **fixed)


def same_weights(params: raw.Params, model: Gpt2) -> Gpt2:
    """Put the weights of the plain model into Axonym's."""
    blocks = params["blocks"]
    per_layer = [blocks] if isinstance(blocks, dict) else blocks
    flat = [jax.tree.leaves(params["wte"]), jax.tree.leaves(params["wpe"])]
    for layer in per_layer:
        order = ("ln_1", "qkv", "proj", "ln_2", "fc", "out")
        flat += [[layer[name]["weight"], layer[name]["bias"]] for name in order]
    flat.append([params["ln_f"]["weight"], params["ln_f"]["bias"]])
    leaves = [leaf for group in flat for leaf in group]
    old, tree = jax.tree.flatten(model)
    assert [x.shape for x in old] == [x.shape for x in leaves]
    return jax.tree.unflatten(tree, leaves)


@dataclasses.dataclass
class Pair:
    """The same training step twice, each as a jitted function with its state and batch."""

    axonym: Any
    axonym_args: tuple[Any, ...]
    raw: Any
    raw_args: tuple[Any, ...]

    def compiled(self) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
        return self.axonym.lower(*self.axonym_args).compile(), self.raw.lower(*self.raw_args).compile()

    def step_axonym(self) -> jax.Array:
        """Take a step; the state is donated, and the new one put in its place."""
        state, loss = self.axonym(*self.axonym_args)
        self.axonym_args = (state, self.axonym_args[1])
        return loss

    def step_raw(self) -> jax.Array:
        """Take a step; the state is donated, and the new one put in its place."""
        params, opt_state, loss = self.raw(*self.raw_args)
        self.raw_args = (params, opt_state, self.raw_args[2])
        return loss

    def losses(self, steps: int) -> tuple[list[float], list[float]]:
        """Train both for some steps."""
        return [float(self.step_axonym()) for _ in range(steps)], [float(self.step_raw()) for _ in range(steps)]


class State(eqx.Module):
    """Parameters and optimiser state of Axonym's step."""

    model: Gpt2
    optimizer: Any


def axonym_step(optimizer: optax.GradientTransformation, strategy: str = "single") -> Any:
    """Return Axonym's training step."""
    parameters, compute = STRATEGIES[strategy]

    def loss_of(model: Gpt2, tokens: NamedArray) -> jax.Array:
        with axn.axis_mapping(compute):
            return model.loss(tokens).scalar()

    def step(state: State, tokens: NamedArray) -> tuple[State, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(state.model, tokens)
        updates, moments = optimizer.update(axn.auto_sharded(grads), state.optimizer, state.model)
        return State(optax.apply_updates(state.model, updates), moments), loss

    return axn.named_jit(step, axis_resources=parameters or None, donate_args=(True,))


# What the programs are called, and how `pair` makes them. Only the second compares equal amounts of recomputation.
PROGRAMS: dict[str, dict[str, bool]] = {
    "scan": {},
    "scan, raw recomputes the same": {"recompute": True},
    "scan, remat": {"remat": True},
    "unrolled": {"unrolled": True},
    "unrolled, raw recomputes the same": {"unrolled": True, "recompute": True},
}


def pair(
    sizes: raw.GPT2Config = SIZES, *, unrolled: bool = False, remat: bool = False, recompute: bool = False
) -> Pair:
    """Make both steps on one device; `recompute` makes the plain one keep as little as Axonym's always does."""
    optimizer = optax.adamw(1e-3)
    params = raw.init(jax.random.key(0), sizes)
    params = raw.unstack(params, sizes) if unrolled else params
    policy = jax.checkpoint_policies.nothing_saveable if remat else None
    step = raw.train_step(sizes, optimizer, unrolled=unrolled, remat=policy, recompute=recompute)
    plain = jax.jit(step, donate_argnums=(0, 1))
    cfg = config(sizes, unrolled=unrolled, checkpointing=remat)
    model = same_weights(jax.tree.map(jnp.copy, params), Gpt2.init(cfg, key=jax.random.key(1)))
    tokens = jax.random.randint(jax.random.key(2), (BATCH, sizes.positions + 1), 0, sizes.vocab)
    state = State(model, optimizer.init(model))
    named = (state, NamedArray(tokens, ("batch", "pos")))
    return Pair(axonym_step(optimizer), named, plain, (params, optimizer.init(params), tokens))


def sharded_pair(strategy: str, sizes: raw.GPT2Config, mesh: jax.sharding.Mesh) -> Pair:
    """Make both steps on a mesh; the plain one with PartitionSpecs written by hand."""
    optimizer = optax.adamw(1e-3)
    params, opt_state = raw.sharded_init(jax.random.key(0), sizes, optimizer, mesh, strategy)
    tokens = jax.random.randint(jax.random.key(2), (BATCH, sizes.positions + 1), 0, sizes.vocab)
    parameters, compute = STRATEGIES[strategy]
    template = jax.eval_shape(lambda key: Gpt2.init(config(sizes), key=key), jax.random.key(1))
    model = axn.shard(same_weights(jax.tree.map(jnp.copy, params), template), parameters, strict=False)
    start = axn.named_jit(lambda m: State(m, optimizer.init(m)), axis_resources=parameters, strict=False)(model)
    batch = axn.shard(NamedArray(tokens, ("batch", "pos")), {"batch": compute["batch"]})
    plain = raw.sharded_train_step(sizes, optimizer, mesh, strategy)
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return Pair(
        axonym_step(optimizer, strategy), (start, batch), plain, (params, opt_state, jax.device_put(tokens, spec))
    )


def ratio(mine: float, theirs: float) -> str:
    return f"{mine / theirs:.3f}"


def losses_and_costs() -> None:
    """Print the losses of both, and the FLOPs, bytes and memory of the compiled steps."""
    rows = []
    for name, options in PROGRAMS.items():
        both = pair(**options)
        mine, theirs = both.compiled()
        a, b = flops_bytes(mine), flops_bytes(theirs)
        temp = [c.memory_analysis().temp_size_in_bytes for c in (mine, theirs)]
        first, second = both.losses(4)
        rows.append(
            {
                "program": name,
                "largest difference of 4 losses": f"{np.abs(np.subtract(first, second)).max():.1e}",
                "GFLOP": f"{a.flops / 1e9:.2f}",
                "ratio": ratio(a.flops, b.flops),
                "MB accessed": f"{a.bytes / 1e6:.0f}",
                "ratio ": ratio(a.bytes, b.bytes),
                "MB temporary": f"{temp[0] / 1e6:.1f}",
                "ratio  ": ratio(temp[0], temp[1]),
            }
        )
    print(table(rows))
    print("XLA counts the body of a scan once.\n")


def step_times(rounds: int) -> None:
    """Print the time of a step against the plain one's."""
    rows = []
    for name, options in PROGRAMS.items():
        both = pair(**options)
        timed = interleaved({"axonym": both.step_axonym, "raw": both.step_raw}, rounds=rounds, calls=1)
        rows.append(timing_row(name, timed, 1e3, "ms"))
    print(table(rows), "\n")


def timing_row(name: str, timed: Any, scale: float, unit: str) -> dict[str, str]:
    return {
        "program": name,
        f"axonym {unit} (min)": f"{timed['axonym'].minimum * scale:.2f}",
        f"raw {unit} (min)": f"{timed['raw'].minimum * scale:.2f}",
        "ratio of minima": f"{ratio_of_minima(timed['axonym'], timed['raw']):.3f}",
        "median ratio": f"{median_ratio(timed['axonym'], timed['raw']):.3f}",
    }


def tracing(rounds: int) -> None:
    """Print the time to trace and lower the step of 12 layers, and to trace it after JAX has forgotten all traces.

    It is the processor's time: one thread traces, and does not wait for anything but other programs.
    """
    sizes = raw.GPT2Config(vocab=64, layers=12, embed=32, heads=4, positions=16)
    optimizer = optax.adamw(1e-3)
    rows = []
    for name, unrolled in (("scan", False), ("unrolled", True)):
        both = pair(sizes, unrolled=unrolled)

        def mine(both: Pair = both) -> Any:
            return axonym_step(optimizer).trace(*both.axonym_args)

        def theirs(both: Pair = both, unrolled: bool = unrolled) -> Any:
            step = raw.train_step(sizes, optimizer, unrolled=unrolled)
            return jax.jit(step, donate_argnums=(0, 1)).trace(*both.raw_args)

        spelled = {"axonym": mine, "raw": theirs}
        lowered = {label: lambda trace=trace: trace().lower() for label, trace in spelled.items()}
        timed = interleaved(lowered, rounds=rounds, calls=1, clock=time.process_time)
        rows.append(timing_row(name, timed, 1e3, "ms"))
        cold = {label: partial(_forgetting, trace) for label, trace in spelled.items()}
        timed = interleaved(cold, rounds=rounds, calls=1, clock=time.process_time)
        rows.append(timing_row(f"{name}, cold trace", timed, 1e3, "ms"))
    print(table(rows), "\n")


def _forgetting(trace: Callable[[], object]) -> object:
    jax.clear_caches()
    return trace()


def communication() -> None:
    """Print the collectives of one step on eight devices, and the largest difference of losses."""
    rows = []
    for strategy, shape in {"dp": (8, 1), "fsdp": (8, 1), "tp": (1, 8), "fsdp+tp": (4, 2)}.items():
        mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        with axn.set_mesh(mesh):
            both = sharded_pair(strategy, SIZES, mesh)
            compiled = both.compiled()
            first, second = both.losses(3)
        for label, program in zip(("axonym", "raw"), compiled, strict=True):
            found = collectives(program)
            rows.append(
                {
                    "strategy, mesh": f"{strategy}, {shape[0]} x {shape[1]}",
                    "program": label,
                    "collectives": sum(c.count for c in found),
                    "operand MB": f"{sum(c.count * c.bytes for c in found) / 1e6:.3f}",
                    "wire MB": f"{sum(map(wire_bytes, found)) / 1e6:.3f}",
                    "by kind": ", ".join(f"{k} x{t.count} {t.megabytes:.3f} MB" for k, t in totals(found).items()),
                    "losses differ by": f"{np.abs(np.subtract(first, second)).max():.1e}",
                }
            )
    print(table(rows), "\n")


def main() -> None:
    """Run all sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="fewer rounds")
    fast = parser.parse_args().fast
    jax.config.update("jax_num_cpu_devices", 8)
    print(f"jax {jax.__version__}, {SIZES}, batch {BATCH}\n")
    losses_and_costs()
    communication()
    tracing(3 if fast else 21)
    step_times(5 if fast else 21)


if __name__ == "__main__":
    main()
