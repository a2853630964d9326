"""Count what pipelines and attention over split positions send and keep, beside the same written by hand in JAX.

    python benchmarks/parallelism.py                  pipelines over 4 stages x 2 data, attention over 8 devices
    python benchmarks/parallelism.py --only pipeline

All numbers but the time to compile are those of the compiled programs, per device and for one value and gradient, on 8
simulated CPU devices; collectives count as often as their loops run. Losses are compared as well.
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from measure import KINDS, collectives, table, totals

import axonym as axn
import axonym.nn as nn

STAGES, WAYS, MICROBATCHES = 4, 2, 16
Batch, Pos, Embed, Mlp, Layers = axn.make_axes(batch=64, pos=32, embed=128, mlp=512, layers=16)
Seq, Heads, HeadSize = axn.make_axes(pos=4096, heads=8, head_size=32)

NOTES = """\
- By hand, gradients of layers are summed over `data` once, after the loop. The compiler sums where one arises, in each
  tick; in a `shard_map` over `data`, sums come last. On Explicit mesh axes, JAX has types for sums that wait,
  `reduced`, which its `vmap` does not take (jax 0.10 and 0.12).
- The pipeline by hand has the whole batch on every stage. Ours divides it among the stages, so that embedding and head
  are divided too, and sends it to the first stage by a second permute.
- 1F1B computes what is before and after the layers for each microbatch, and moves it to the first and from the last
  stage by sums.
- The ring by hand keeps the keys and values of all devices for the backward pass. Ours sends them around again, with
  their gradients: a device never has those of more than two devices.
"""


class Program(NamedTuple):
    """A compiled program and what it computed."""

    label: str
    compiled: Any
    seconds: float
    value: float


def compiled(label: str, fn: Any, *args: Any) -> Program:
    """Compile and run a function that returns a value and gradients."""
    lowered = fn.lower(*args)
    start = time.perf_counter()
    program = lowered.compile()
    seconds = time.perf_counter() - start
    value, _ = fn(*args)
    return Program(label, program, seconds, float(getattr(value, "array", value)))


def row(program: Program, **more: object) -> dict[str, object]:
    """Return what a program costs."""
    found = totals(collectives(program.compiled))
    cells: dict[str, object] = {"": program.label, **more}
    for kind in KINDS:
        total = found.get(kind)
        cells[f"{kind} MB"] = f"{total.count} x, {total.wire_megabytes:.3g}" if total else ""
    cells["temp MB"] = program.compiled.memory_analysis().temp_size_in_bytes / 1e6
    cells["compile s"] = program.seconds
    cells["value"] = f"{program.value:.6f}"
    return cells


# pipelines
class Block(eqx.Module):
    """A layer: a perceptron beside a way around it."""

    up: nn.Linear
    down: nn.Linear

    @staticmethod
    def init(*, key: jax.Array) -> "Block":
        """Draw the weights."""
        keys = jax.random.split(key)
        linear = functools.partial(nn.Linear.init, use_bias=False)
        return Block(linear(Embed, Mlp, key=keys[0]), linear(Mlp, Embed, key=keys[1]))

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        """Apply the layer."""
        return x + self.down(axn.tanh(self.up(x)))


def mean_square(stack: nn.Stacked[Block], x: axn.NamedArray) -> jax.Array:
    """Compute a loss."""
    x = stack.fold(x)
    return (x * x).mean().scalar()


streamed = axn.pipeline_value_and_grad(lambda stack: stack, lambda _, x: x, lambda _, out, x: (out * out).mean())


def summed_once(both: Callable[..., Any], stack: nn.Stacked[Block], x: axn.NamedArray) -> Any:
    """Compute the loss and the gradient inside of a `shard_map` over `data`, and sum them in the end."""
    return axn.pmean(both(axn.pcast(stack, "data"), x), "data")


def pipeline_by_hand(weights: Any, x: jax.Array) -> jax.Array:
    """Compute the loss by stages, in a `shard_map` over all mesh axes: GPipe, as one would write it."""

    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        up, down = weights
        return x + jnp.tanh(x @ up) @ down, None

    def run(weights: Any, x: jax.Array) -> jax.Array:
        # So that gradients are summed over `data` once, after the loop.
        weights = jax.tree.map(lambda w: lax.pcast(w, "data", to="varying"), weights)
        stage = lax.axis_index("stage")
        micro = lax.pcast(x.reshape(MICROBATCHES, -1, *x.shape[1:]), "stage", to="varying")

        def tick(carry: Any, now: jax.Array) -> Any:
            arriving, done = carry
            new = lax.dynamic_index_in_dim(micro, jnp.minimum(now, MICROBATCHES - 1), keepdims=False)
            moved, _ = lax.scan(jax.checkpoint(layer), jnp.where(stage == 0, new, arriving), weights)
            at = jnp.maximum(now - STAGES + 1, 0)
            done = lax.dynamic_update_index_in_dim(done, moved, at, 0)
            return (lax.ppermute(moved, "stage", [(i, (i + 1) % STAGES) for i in range(STAGES)]), done), None

        start = micro[0], jnp.zeros_like(micro)
        (_, done), _ = lax.scan(tick, start, jnp.arange(MICROBATCHES + STAGES - 1))
        last = jnp.where(stage == STAGES - 1, (done * done).mean(), 0.0)
        return lax.pmean(lax.psum(last, "stage"), "data")

    specs = (P("stage"), P("stage")), P("data")
    return jax.shard_map(run, in_specs=specs, out_specs=P())(weights, x)


def pipelines() -> Iterator[dict[str, object]]:
    """Yield a row for each program."""
    stack = nn.Stacked.init(Layers, Block, gradient_checkpointing=True)(key=jax.random.key(0))
    x = axn.random.normal(jax.random.key(1), (Batch, Pos, Embed))
    ticks = MICROBATCHES + STAGES - 1
    mappings = axn.Mappings({"layers": "stage"}, {"layers": "stage", "batch": ("data", "stage")})

    mesh = make_mesh((WAYS, STAGES), ("data", "stage"), AxisType.Auto)
    plain = stack.stacked.up.weight.array, stack.stacked.down.weight.array
    given = jax.device_put((plain, x.array), (NamedSharding(mesh, P("stage")), NamedSharding(mesh, P("data"))))
    with jax.set_mesh(mesh):
        yield row(compiled("by hand", jax.jit(jax.value_and_grad(pipeline_by_hand)), *given), ticks=f"2 x {ticks}")

    schedules = {"": jax.value_and_grad(mean_square), ", 1F1B": streamed}
    counts = {"": f"2 x {ticks}", ", 1F1B": str(ticks + STAGES - 1)}
    for kind in (AxisType.Auto, AxisType.Explicit):
        with axn.set_mesh(make_mesh((WAYS, STAGES), ("data", "stage"), kind)), axn.pipelined(Batch, MICROBATCHES):
            args = axn.shard((stack, x), mappings)
            for name, both in schedules.items():
                label = f"Axonym, {kind.name}{name}"
                yield row(compiled(label, axn.named_jit(both, mappings), *args), ticks=counts[name])
                if kind is AxisType.Auto:
                    inside = axn.shard_map(functools.partial(summed_once, both), mappings, manual_axes="data")
                    once = axn.named_jit(inside, mappings)
                    yield row(compiled(f"{label}, summed once", once, *args), ticks=counts[name])


# attention
def attention(q: axn.NamedArray, k: axn.NamedArray, v: axn.NamedArray, method: str | None) -> jax.Array:
    """Compute a loss of causal attention."""
    mask = nn.causal()
    out = nn.dot_product_attention("pos", "pos.key", "head_size", q, k, v, mask=mask, implementation=method)
    return (out * out).mean().scalar()


def ring_by_hand(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Compute the same loss by a ring, as one would write it: online softmax, recomputed in the backward pass."""

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        ways, here = lax.axis_size("context"), lax.axis_index("context")
        rows, scale = q.shape[0], q.shape[-1] ** -0.5
        queries = here * rows + jnp.arange(rows)

        @jax.checkpoint
        def add(state: Any, k: jax.Array, v: jax.Array, source: jax.Array) -> Any:
            largest, total, summed = state
            keys = source * rows + jnp.arange(rows)
            scores = jnp.einsum("qhd,khd->hqk", q, k) * scale
            scores = jnp.where(queries[:, None] >= keys, scores, -1e30)
            new = jnp.maximum(largest, scores.max(-1))
            weights = jnp.exp(scores - new[..., None])
            kept = jnp.exp(largest - new)
            summed = summed * kept[..., None] + jnp.einsum("hqk,khd->hqd", weights, v)
            return new, total * kept + weights.sum(-1), summed

        def turn(carry: Any, number: jax.Array) -> Any:
            k, v, state = carry
            state = add(state, k, v, (here - number) % ways)
            following = [(i, (i + 1) % ways) for i in range(ways)]
            return (lax.ppermute(k, "context", following), lax.ppermute(v, "context", following), state), None

        heads = q.shape[1]
        start = jnp.full((heads, rows), -1e30), jnp.zeros((heads, rows)), jnp.zeros((heads, rows, q.shape[-1]))
        start = jax.tree.map(lambda x: lax.pcast(x, "context", to="varying"), start)
        (_, _, (_, total, summed)), _ = lax.scan(turn, (k, v, start), jnp.arange(ways))
        return lax.pmean(jnp.square(summed / total[..., None]).mean(), "context")

    return jax.shard_map(run, in_specs=P("context"), out_specs=P())(q, k, v)


def attentions() -> Iterator[dict[str, object]]:
    """Yield a row for each program."""
    Key = Seq.alias("pos.key")
    keys = jax.random.split(jax.random.key(0), 3)
    q = axn.random.normal(keys[0], (Seq, Heads, HeadSize))
    k, v = (axn.random.normal(key, (Key, Heads, HeadSize)) for key in keys[1:])
    mapping = {"pos": "context"}

    mesh = make_mesh((8,), ("context",), AxisType.Auto)
    given = jax.device_put([x.array for x in (q, k, v)], NamedSharding(mesh, P("context")))
    with jax.set_mesh(mesh):
        yield row(compiled("ring by hand", jax.jit(jax.value_and_grad(ring_by_hand, argnums=(0, 1, 2))), *given))

    for kind in (AxisType.Auto, AxisType.Explicit):
        with axn.set_mesh(make_mesh((8,), ("context",), kind)):
            args = axn.shard((q, k, v), mapping)
            for method in ("ring", "all-to-all", "all-gather"):
                loss = functools.partial(attention, method=method)
                run = axn.named_jit(jax.value_and_grad(loss, argnums=(0, 1, 2)), mapping)
                yield row(compiled(f"Axonym, {kind.name}, {method}", run, *args))


def make_mesh(sizes: tuple[int, ...], names: tuple[str, ...], kind: AxisType) -> jax.sharding.Mesh:
    """Make a mesh whose axes have one type."""
    return jax.make_mesh(sizes, names, axis_types=(kind,) * len(names))


TABLES: dict[str, Callable[[], Iterator[dict[str, object]]]] = {"pipeline": pipelines, "attention": attentions}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TABLES), nargs="+", default=list(TABLES))
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    print(f"jax {jax.__version__}\n")
    for name in options.only:
        print(f"### {name}\n")
        print(table(list(TABLES[name]())), flush=True)
        print()
    print(NOTES)


if __name__ == "__main__":
    main()
