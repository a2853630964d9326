"""Count what pipelines and attention over split positions send and keep, beside the same written by hand in JAX.

    python benchmarks/parallelism.py                  pipelines over 4 stages x 2 data, attention over 8 devices
    python benchmarks/parallelism.py --only pipeline
    python benchmarks/parallelism.py --target tpu     compiled for a TPU v5e 2x4, larger; needs libtpu, no TPU

All numbers but the time to compile are those of the compiled programs, per device and for one value and gradient, on 8
simulated CPU devices; collectives count as often as their loops run. Losses are compared as well, but on a TPU nothing
runs. The table of depths compiles pipelines of few layers and of many, in turns.
"""

import argparse
import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from measure import KINDS, collectives, interleaved, median_ratio, ratio_of_minima, table, totals

import axonym as axn
import axonym.nn as nn

STAGES, WAYS, MICROBATCHES, ROUNDS = 4, 2, 16, 2
FEW, MANY, BAR = 8, 48, 1.3


class Sizes(NamedTuple):
    """The axes of what is compiled; `Seq` is the one of attention."""

    Batch: axn.Axis
    Pos: axn.Axis
    Embed: axn.Axis
    Mlp: axn.Axis
    Layers: axn.Axis
    Seq: axn.Axis
    Heads: axn.Axis
    HeadSize: axn.Axis


def make_sizes(seq: int, **sizes: int) -> Sizes:
    """Make the axes."""
    Batch, Pos, Embed, Mlp, Layers, Heads, HeadSize = axn.make_axes(**sizes)
    return Sizes(Batch, Pos, Embed, Mlp, Layers, Pos.resize(seq), Heads, HeadSize)


SIZES = {
    "cpu": make_sizes(4096, batch=64, pos=32, embed=128, mlp=512, layers=16, heads=8, head_size=32),
    "tpu": make_sizes(32768, batch=64, pos=512, embed=1024, mlp=4096, layers=16, heads=8, head_size=128),
}
NOTES = """\
- By hand, gradients of layers are summed over `data` once, after the loop. The compiler sums where one arises, in each
  tick; in a `shard_map` over `data`, sums come last. On Explicit mesh axes, JAX has types for sums that wait,
  `reduced`, which its `vmap` does not take (jax 0.10 and 0.12).
- The pipeline by hand has the whole batch on every stage. Ours divides it among the stages, so that embedding and head
  are divided too, and sends it to the first stage by a second permute.
- With rounds, both choose the weights of a round in each tick, forward and backward.
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
    value: float | None


# Devices to compile for that are not there.
DEVICES: list[Any] = []


def compiled(label: str, fn: Any, *args: Any) -> Program:
    """Compile and run a function that returns a value and gradients."""
    lowered = fn.lower(*args)
    start = time.perf_counter()
    program = lowered.compile()
    seconds = time.perf_counter() - start
    if DEVICES:
        return Program(label, program, seconds, None)
    value, _ = fn(*args)
    return Program(label, program, seconds, float(getattr(value, "array", value)))


def made(make: Callable[[], Any]) -> Any:
    """Make a model or data; only describe what is not to be run."""
    if DEVICES:
        return jax.eval_shape(make)
    return make()


def placed(tree: Any, specs: Any, mesh: Mesh) -> Any:
    """Lay arrays out by specs, each of which serves all arrays below it; only describe those that are not there."""

    def place(spec: P, below: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        if not DEVICES:
            return jax.device_put(below, sharding)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), below)

    return jax.tree.map(place, specs, tree, is_leaf=lambda node: isinstance(node, P))


def placed_by(tree: Any, mapping: axn.ResourceMapping, mesh: Mesh) -> Any:
    """Lay named arrays out by a mapping."""
    return placed(tree, axn.pspec_for(tree, mapping, mesh, strict=False), mesh)


def row(program: Program, **more: object) -> dict[str, object]:
    """Return what a program costs."""
    found = totals(collectives(program.compiled))
    cells: dict[str, object] = {"": program.label, **more}
    for kind in KINDS:
        total = found.get(kind)
        cells[f"{kind} MB"] = f"{total.count} x, {total.wire_megabytes:.3g}" if total else ""
    cells["temp MB"] = program.compiled.memory_analysis().temp_size_in_bytes / 1e6
    cells["compile s"] = program.seconds
    cells["value"] = "" if program.value is None else f"{program.value:.6f}"
    return cells


# pipelines
class Block(eqx.Module):
    """A layer: a perceptron beside a way around it."""

    up: nn.Linear
    down: nn.Linear

    @staticmethod
    def init(Embed: axn.Axis, Mlp: axn.Axis, *, key: jax.Array) -> "Block":
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


def circular_by_hand(weights: Any, x: jax.Array) -> jax.Array:
    """Compute the same loss in rounds; weights have an axis of rounds before that of the layers."""

    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        up, down = weights
        x = checkpoint_name(x, "carry")
        return x + jnp.tanh(x @ up) @ down, None

    keep = jax.checkpoint_policies.save_only_these_names("carry")

    @functools.partial(jax.checkpoint, policy=keep)
    def visit(weights: Any, turn: jax.Array, x: jax.Array) -> jax.Array:
        own = jax.tree.map(lambda w: lax.dynamic_index_in_dim(w, turn, keepdims=False), weights)
        return lax.scan(jax.checkpoint(layer, policy=keep), x, own)[0]

    def run(weights: Any, x: jax.Array) -> jax.Array:
        weights = jax.tree.map(lambda w: lax.pcast(w, "data", to="varying"), weights)
        stage = lax.axis_index("stage")
        micro = lax.pcast(x.reshape(MICROBATCHES, -1, *x.shape[1:]), "stage", to="varying")

        def tick(carry: Any, now: jax.Array) -> Any:
            arriving, done = carry
            step = jnp.clip(now - stage, 0, ROUNDS * MICROBATCHES - 1)
            turn = step % (ROUNDS * STAGES) // STAGES
            at = step // (ROUNDS * STAGES) * STAGES + step % STAGES
            new = lax.dynamic_index_in_dim(micro, at, keepdims=False)
            moved = visit(weights, turn, jnp.where((stage == 0) & (turn == 0), new, arriving))
            done = lax.dynamic_update_index_in_dim(done, moved, at, 0)  # the last round comes last
            return (lax.ppermute(moved, "stage", [(i, (i + 1) % STAGES) for i in range(STAGES)]), done), None

        start = micro[0], jnp.zeros_like(micro)
        (_, done), _ = lax.scan(tick, start, jnp.arange(ROUNDS * MICROBATCHES + STAGES - 1))
        last = jnp.where(stage == STAGES - 1, (done * done).mean(), 0.0)
        return lax.pmean(lax.psum(last, "stage"), "data")

    by_round = P(None, "stage")
    return jax.shard_map(run, in_specs=((by_round, by_round), P("data")), out_specs=P())(weights, x)


MAPPINGS = axn.Mappings({"layers": "stage"}, {"layers": "stage", "batch": ("data", "stage")})


def make_stack(sizes: Sizes, rounds: int = 1) -> nn.Stacked[Block]:
    """Make the layers of a pipeline."""
    init = nn.Stacked.init(sizes.Layers, Block, gradient_checkpointing=True, rounds=rounds)
    return init(sizes.Embed, sizes.Mlp, key=jax.random.key(0))


def make_batch(sizes: Sizes) -> axn.NamedArray:
    """Draw a batch."""
    return axn.random.normal(jax.random.key(1), (sizes.Batch, sizes.Pos, sizes.Embed))


def arguments(stack: nn.Stacked[Block], x: axn.NamedArray, mesh: Mesh) -> Any:
    """Lay out the layers and a batch."""
    return placed_by(stack, MAPPINGS.parameters, mesh), placed_by(x, MAPPINGS.compute, mesh)


def pipelines(sizes: Sizes) -> Iterator[dict[str, object]]:
    """Yield a row for each program."""
    gradient, x = jax.value_and_grad(mean_square), made(lambda: make_batch(sizes))
    stack, circular = (made(functools.partial(make_stack, sizes, rounds)) for rounds in (1, ROUNDS))
    ticks = f"2 x {MICROBATCHES + STAGES - 1}"
    of_rounds, rounds = f"2 x {ROUNDS * MICROBATCHES + STAGES - 1}", f"{ROUNDS} rounds"

    mesh = make_mesh((WAYS, STAGES), ("data", "stage"), AxisType.Auto)
    written = {
        "by hand": (pipeline_by_hand, stack, P("stage"), ticks),
        f"by hand, {rounds}": (circular_by_hand, circular, P(None, "stage"), of_rounds),
    }
    for label, (by_hand, layers, spec, count) in written.items():
        plain = layers.stacked.up.weight.array, layers.stacked.down.weight.array
        given = placed((plain, x.array), (spec, P("data")), mesh)
        with jax.set_mesh(mesh):
            yield row(compiled(label, jax.jit(jax.value_and_grad(by_hand)), *given), ticks=count)

    schedules = {
        "": (gradient, stack, ticks),
        f", {rounds}": (gradient, circular, of_rounds),
        ", 1F1B": (streamed, stack, str(MICROBATCHES + 2 * (STAGES - 1))),
    }
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = make_mesh((WAYS, STAGES), ("data", "stage"), kind)
        with axn.set_mesh(mesh), axn.pipelined(sizes.Batch, MICROBATCHES):
            for name, (both, layers, count) in schedules.items():
                label, args = f"Axonym, {kind.name}{name}", arguments(layers, x, mesh)
                yield row(compiled(label, axn.named_jit(both, MAPPINGS), *args), ticks=count)
                if kind is AxisType.Auto:
                    inside = axn.shard_map(functools.partial(summed_once, both), MAPPINGS, manual_axes="data")
                    once = axn.named_jit(inside, MAPPINGS)
                    yield row(compiled(f"{label}, summed once", once, *args), ticks=count)


def compiler(mesh: Mesh, sizes: Sizes, rounds: int) -> Callable[[], int]:
    """Return a function that compiles a pipeline anew, and returns the length of the program."""
    args = arguments(made(lambda: make_stack(sizes, rounds)), made(lambda: make_batch(sizes)), mesh)

    def compile_it() -> int:
        run = axn.named_jit(lambda stack, x: jax.value_and_grad(mean_square)(stack, x), MAPPINGS)
        return len(run.lower(*args).compile().as_text())

    return compile_it


def depths(sizes: Sizes) -> Iterator[dict[str, object]]:
    """Yield the time to trace and compile few layers and many, at its shortest."""
    mesh = make_mesh((WAYS, STAGES), ("data", "stage"), AxisType.Auto)
    for rounds in (1, ROUNDS):
        calls: dict[str, Callable[[], int]] = {}
        for layers in (FEW, MANY):
            deep = sizes._replace(Layers=sizes.Layers.resize(layers))
            calls[str(layers)] = compiler(mesh, deep, rounds)
        with axn.set_mesh(mesh), axn.pipelined(sizes.Batch, MICROBATCHES):
            timed = interleaved(calls, rounds=7, calls=1)
        few, many = timed[str(FEW)], timed[str(MANY)]
        yield {
            "rounds": rounds,
            f"{FEW} layers, s": f"{few.minimum:.2f}",
            f"{MANY} layers, s": f"{many.minimum:.2f}",
            f"ratio of minima, at most {BAR}": f"{ratio_of_minima(many, few):.2f}",
            "median ratio": f"{median_ratio(many, few):.2f}",
        }


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


def make_operands(sizes: Sizes) -> tuple[axn.NamedArray, axn.NamedArray, axn.NamedArray]:
    """Draw queries, keys and values."""
    axes, keys = (sizes.Heads, sizes.HeadSize), jax.random.split(jax.random.key(0), 3)
    q = axn.random.normal(keys[0], (sizes.Seq, *axes))
    k, v = (axn.random.normal(key, (sizes.Seq.alias("pos.key"), *axes)) for key in keys[1:])
    return q, k, v


def attentions(sizes: Sizes) -> Iterator[dict[str, object]]:
    """Yield a row for each program."""
    q, k, v = made(lambda: make_operands(sizes))
    mapping = {"pos": "context"}

    mesh = make_mesh((8,), ("context",), AxisType.Auto)
    given = placed((q.array, k.array, v.array), (P("context"),) * 3, mesh)
    with jax.set_mesh(mesh):
        yield row(compiled("ring by hand", jax.jit(jax.value_and_grad(ring_by_hand, argnums=(0, 1, 2))), *given))

    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = make_mesh((8,), ("context",), kind)
        with axn.set_mesh(mesh):
            args = placed_by((q, k, v), mapping, mesh)
            for method in ("ring", "all-to-all", "all-gather"):
                loss = functools.partial(attention, method=method)
                run = axn.named_jit(jax.value_and_grad(loss, argnums=(0, 1, 2)), mapping)
                yield row(compiled(f"Axonym, {kind.name}, {method}", run, *args))


def make_mesh(sizes: tuple[int, ...], names: tuple[str, ...], kind: AxisType) -> Mesh:
    """Make a mesh whose axes have one type."""
    return Mesh(np.array(DEVICES or jax.devices()).reshape(sizes), names, axis_types=(kind,) * len(names))


def tpu_devices() -> list[Any]:
    """Describe the chips of a TPU v5e 2x4."""
    if importlib.util.find_spec("libtpu") is None:
        sys.exit("error: --target tpu needs libtpu, the compiler for TPUs: pip install 'jax[tpu]'")
    # Read when libtpu starts; the names of a TPU keep it from asking a server.
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    os.environ |= {"TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices)


TABLES: dict[str, Callable[[Sizes], Iterator[dict[str, object]]]] = {
    "pipeline": pipelines,
    "attention": attentions,
    "depth": depths,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TABLES), nargs="+", default=list(TABLES))
    parser.add_argument("--target", choices=["cpu", "tpu"], default="cpu")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    if options.target == "tpu":
        DEVICES[:] = tpu_devices()
    print(f"jax {jax.__version__}, compiled for {(DEVICES or jax.devices())[0].device_kind}\n")
    for name in options.only:
        print(f"### {name}\n")
        print(table(list(TABLES[name](SIZES[options.target]))), flush=True)
        print()
    print(NOTES)


if __name__ == "__main__":
    main()
