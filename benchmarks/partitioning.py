"""Compare partitioned training steps of Axonym with hand-written JAX: what each device computes, keeps and sends.

    python benchmarks/partitioning.py                          GPT-2 and an MLP on 8 simulated CPU devices
    python benchmarks/partitioning.py --target tpu             compiled for a TPU v5e 2x4, larger; needs libtpu, no TPU
    python benchmarks/partitioning.py --model mlp --strategy fsdp tp

All numbers are those of the compiled programs, per device and training step, with the trip counts of loops; FLOPs alone
count the body of a loop once. Ratios are to the smallest number among the hand-written programs, which may come from
different ones. On the CPU the losses of steps 1 and 3 are compared as well.
"""

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Read when JAX and libtpu start. Nothing here runs on a TPU, and the names of one keep libtpu from asking a server.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ |= {"TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import raw_partitioned as raw
from gpt2 import Gpt2
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec as P,
)
from measure import collectives, flops_bytes, table, totals, wire_bytes
from train_step import config, same_weights

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

MESHES = {"dp": (8, 1), "fsdp": (8, 1), "tp": (1, 8), "fsdp+tp": (4, 2)}
TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
FORMS = ("auto", "auto, fsdp", "auto, fsdp, manual", "explicit", "explicit, reduced", "manual")
OPTIMIZER = optax.adam(1e-3)
# No operation moves an array of more bytes than this, other than weights to the layout in which they are used.
MOVED = 2**10
COLUMNS = ("collectives", "wire MB", "GFLOP", "temp MB", "args MB")

# Why a hand-written program may need less than any that the compiler partitions by itself.
NOTES = {
    "cpu": """\
- XLA's compiler for CPUs has no pass that makes a reduce-scatter of an all-reduce whose result is only sliced. Where
  gradients or activations are to be scattered, only the manual forms, which ask for that, send and keep less.
- The gradient of the table of GPT-2 has two parts, from the look-up and from the logits. The manual forms add them
  before they reduce; the compiler reduces each, and those of layers in the loop and not after it.
- Under FSDP, "auto" sends rows of the table in place of the table, which here is small: fewer bytes, more collectives.
  "auto, whole" and "explicit" gather it, as Axonym does in all forms.
- All-reduces are combined into few, reduce-scatters are not: the manual forms have more collectives, with fewer bytes.
  Theirs over a mesh axis of one device send nothing.
- In "auto, fsdp, manual", products gather and scatter their weights by hand. Vectors, rows of the table and the
  collectives of tensor parallelism are left to the compiler.
- FLOPs count the sums of an all-reduce, and none of a reduce-scatter.
- Under DP of GPT-2, both manual forms keep the same values for the backward pass. How XLA packs the others into memory
  differs by 2 kB.
""",
    "tpu": """\
- The loops in which "auto" multiplies by one shard of a weight after the other count as one pass in the FLOPs.
- The compiler reduces the small gradients of a layer in the loop, the manual forms those of all layers after it.
- The product that is the gradient of a weight (in, out) has the order (out, in). In "explicit", JAX sums it over
  devices before it transposes it. XLA's assignment of layouts carries that order on to Adam, and copies the weight and
  both moments, each in float32, to it and back: 0.8 GB at once under DP of the MLP, with weights of 0.27 GB. Under
  FSDP+TP, rows that were scattered in this order also change places, by collective-permutes.
  In "explicit, reduced", the type of a weight lets the sum wait until its gradient has been transposed.
- Under FSDP+TP of the MLP, XLA moves an activation's gathered gradient, 34 MB, from the memory on the chip to that of
  the device in "auto, whole" and "explicit, reduced". In the manual forms it stays, as a product beside it hides the
  gather.
""",
}

Mappings = dict[str, tuple[axn.ResourceMapping, axn.ResourceMapping]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, twice: in plain JAX, and with names; and one batch of its data.

    Attributes:
        raw: the model in plain JAX.
        named: gives the model with names the parameters of the plain one.
        loss: of the model with names, whose parameters have the dtype of the computation.
        dtype: of the computation.
        loop: whether layers run in a compiled loop, in which each is to gather its own weights.
        mappings: for each strategy, that of parameters and that of the computation.
        batch: what both are trained on.
        names: the axes of the batch.
    """

    raw: raw.Model
    named: Callable[[Any], Any]
    loss: Callable[[Any, NamedArray], jax.Array]
    dtype: jnp.dtype
    loop: bool
    mappings: Mappings
    batch: jax.ShapeDtypeStruct
    names: tuple[str, ...]

    def draw(self) -> np.ndarray:
        """Draw a batch."""
        rng = np.random.default_rng(0)
        integers = jnp.issubdtype(self.batch.dtype, jnp.integer)
        drawn = rng.integers(0, 256, self.batch.shape) if integers else rng.standard_normal(self.batch.shape)
        return drawn.astype(self.batch.dtype)


def gpt2(wide: bool, embed: int = 2048, wide_dtype: jnp.dtype = jnp.bfloat16) -> Case:
    """Make the example's GPT-2; the wide one computes in bfloat16."""
    small = raw.GPT2Config(vocab=256, layers=4, embed=128, heads=8, positions=64)
    sizes = raw.GPT2Config(vocab=32768, layers=4, embed=embed, heads=16, positions=1024) if wide else small
    dtype = wide_dtype if wide else jnp.float32
    template = jax.eval_shape(lambda key: Gpt2.init(config(sizes), key=key), jax.random.key(0))

    def loss(model: Gpt2, tokens: NamedArray) -> jax.Array:
        return model.loss(tokens).scalar()

    batch = jax.ShapeDtypeStruct((8, sizes.positions + 1), jnp.int32)
    tensor = {"heads": "model", "mlp": "model"}
    mappings: Mappings = {
        "dp": ({}, {"batch": "data"}),
        "fsdp": ({"embed": "data"}, {"batch": "data"}),
        "tp": (tensor, {"batch": "data", **tensor}),
        "fsdp+tp": ({"embed": "data", **tensor}, {"batch": "data", **tensor}),
    }
    named = lambda params: same_weights(params, template)  # noqa: E731
    return Case(raw.gpt2(sizes, dtype), named, loss, dtype, True, mappings, batch, ("batch", "pos"))


def mlp(wide: bool) -> Case:
    """Make an MLP of three hidden layers."""
    sizes = raw.MLPConfig(2048, 8192, 2048) if wide else raw.MLPConfig()
    dtype = jnp.bfloat16 if wide else jnp.float32
    features, classes = Axis("features", sizes.features), Axis("classes", sizes.classes)
    make = lambda key: nn.MLP.init(features, classes, sizes.width, sizes.depth, nn.relu, key=key)  # noqa: E731
    template = jax.eval_shape(make, jax.random.key(0))
    # The name under which the weight between two hidden layers keeps its output.
    (out,) = set(template.layers[1].weight.names) - {"mlp"}

    def loss(model: nn.MLP, batch: NamedArray) -> jax.Array:
        x = batch["both", : sizes.features].rename({"both": "features"}).astype(dtype)
        targets = batch["both", sizes.features :].rename({"both": "classes"})
        return axn.square(model(x).astype(jnp.float32) - targets).mean().scalar()

    def named(params: Any) -> nn.MLP:
        leaves = [layer[name] for layer in params for name in ("weight", "bias")]
        return jax.tree.unflatten(jax.tree.structure(template), leaves)

    batch = jax.ShapeDtypeStruct((8192 if wide else 256, sizes.features + sizes.classes), jnp.float32)
    mappings: Mappings = {
        "dp": ({}, {"batch": "data"}),
        "fsdp": ({"mlp": "data", out: None}, {"batch": "data"}),
        "tp": ({"mlp": "model", out: None}, {"batch": "data", "mlp": "model", out: None}),
        "fsdp+tp": (
            {"features": "data", "mlp": "model", out: "data", "classes": "data"},
            {"batch": "data", "mlp": "model", out: None},
        ),
    }
    return Case(raw.mlp(sizes, dtype), named, loss, dtype, False, mappings, batch, ("batch", "both"))


def gpt2_in_float32(wide: bool) -> Case:
    """Make a GPT-2 that computes in float32, half as wide."""
    return gpt2(wide, 1024, jnp.float32)


MODELS = {"gpt2": gpt2, "gpt2-float32": gpt2_in_float32, "mlp": mlp}


class LocalLinear(eqx.Module):
    """A linear layer inside of a shard_map, where a device may have a block of the inputs or outputs.

    Attributes:
        weight: the device's block of it; gathered over "data" unless `late`.
        bias: gathered over "data".
        inputs: the axes to sum over.
        outputs: the axes of the result.
        late: gather the weight where it is used, and again in the backward pass.
    """

    weight: NamedArray
    bias: NamedArray
    inputs: tuple[str, ...] = eqx.field(static=True)
    outputs: tuple[str, ...] = eqx.field(static=True)
    late: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Multiply, and add up what devices have that hold blocks of the inputs."""

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def product(x: NamedArray, weight: NamedArray) -> NamedArray:
            return axn.dot(x, axn.all_gather(weight, "data") if self.late else weight, axis=self.inputs)

        y = product(x, self.weight)
        split = [name for name in self.inputs if (axn.current_mapping() or {}).get(name)]
        kept = {f"{name}.out": name for name in self.outputs if name in self.inputs}
        if split:
            # A result with the axis of the inputs is split as they are.
            y = axn.psum_scatter(y, tuple(kept), over=split) if kept else axn.psum(y, split)
        return y.rename(kept) + self.bias


def local(model: Any, late: bool) -> Any:
    """Make a model for the inside of a shard_map.

    Everything is gathered over "data", but for late weights of linear layers. Only these layers know of other devices.
    """

    def one(part: Any) -> Any:
        if not isinstance(part, nn.Linear):
            return axn.all_gather(part, "data")
        weight = part.weight if late else axn.all_gather(part.weight, "data")
        inputs, outputs = (tuple(axis.name for axis in axes) for axes in (part.In, part.Out))
        return LocalLinear(weight, axn.all_gather(part.bias, "data"), inputs, outputs, late)

    # Varying in type only: the gradients of all layers are then summed after the backward pass, at once.
    model = axn.pcast(model, "data")
    return jax.tree.map(one, model, is_leaf=lambda part: isinstance(part, nn.Linear | NamedArray))


def reduced(model: Any, mapping: axn.ResourceMapping) -> Any:
    """Gather weights, and let their types say that their gradients may wait, unreduced over "data"."""

    def one(weight: NamedArray) -> NamedArray:
        if weight.ndim < 2:  # only products take an operand whose type says so
            return weight
        spec = P(*axn.pspec_for(weight, mapping, strict=False), reduced={"data"})
        return NamedArray(jax.reshard(weight.array, spec), weight.names)

    return jax.tree.map(one, model, is_leaf=lambda part: isinstance(part, NamedArray))


@dataclasses.dataclass
class Program:
    """A training step (model, moments, batch) -> (model, moments, loss), on a mesh.

    The arguments are abstract; `values` makes them, in their layout.
    """

    label: str
    ours: bool
    mesh: Mesh
    step: Any
    arguments: tuple[Any, Any, Any]
    values: Callable[[], tuple[Any, Any, Any]]

    def costs(self) -> dict[str, Any]:
        """Compile, and count."""
        with axn.set_mesh(self.mesh), axn.partitioning.limit_reshards(MOVED):
            compiled = self.step.lower(*self.arguments).compile()
        found = collectives(compiled)
        memory = compiled.memory_analysis()
        return {
            "collectives": sum(c.count for c in found),
            "by kind": ", ".join(f"{k} x{t.count} {t.megabytes:.3g} MB" for k, t in totals(found).items()),
            "wire MB": sum(map(wire_bytes, found)) / 1e6,
            "GFLOP": flops_bytes(compiled).flops / 1e9,
            "temp MB": memory.temp_size_in_bytes / 1e6,
            "args MB": memory.argument_size_in_bytes / 1e6,
        }

    def losses(self) -> list[float]:
        """Take three steps."""
        with axn.set_mesh(self.mesh), axn.partitioning.limit_reshards(MOVED):
            model, moments, batch = self.values()
            losses = []
            for _ in range(3):
                model, moments, loss = self.step(model, moments, batch)
                losses.append(float(loss))
        return losses


def abstract(tree: Any, specs: Any, mesh: Mesh) -> Any:
    """Describe the arrays of a tree, each laid out by its spec; a spec serves all arrays below it."""

    def one(spec: P, below: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), below)

    return jax.tree.map(one, specs, tree, is_leaf=raw.is_spec)


def placed(values: Any, like: Any) -> Any:
    """Put values where the abstract ones say; copies, because steps donate them."""
    return jax.tree.map(lambda value, leaf: jax.device_put(np.asarray(value), leaf.sharding), values, like)


def written_by_hand(case: Case, strategy: str, forms: Sequence[str] = raw.FORMS) -> Iterator[Program]:
    """Make the hand-written programs."""
    for form in forms:
        mesh = make_mesh(strategy, form)

        def start() -> Any:
            params = case.raw.init(jax.random.key(0))
            return params, OPTIMIZER.init(params)

        state = abstract(jax.eval_shape(start), raw.state_specs(case.raw, OPTIMIZER, strategy), mesh)
        arguments = (*state, abstract(case.batch, P("data"), mesh))
        yield Program(
            f"JAX, {form}",
            False,
            mesh,
            raw.train_step(case.raw, OPTIMIZER, mesh, strategy, form),
            arguments,
            lambda arguments=arguments: placed((*jax.jit(start)(), case.draw()), arguments),
        )


def with_names(case: Case, strategy: str) -> Iterator[Program]:
    """Make Axonym's programs."""
    parameters, compute = case.mappings[strategy]

    def start() -> Any:
        model = case.named(case.raw.init(jax.random.key(0)))
        return model, OPTIMIZER.init(model)

    def loss(model: Any, batch: NamedArray, form: str) -> jax.Array:
        model = jax.tree.map(lambda p: p.astype(case.dtype), model)
        if form == "manual":
            return axn.pmean(case.loss(local(model, late=case.loop), batch), "batch")
        if form == "explicit, reduced":
            model = reduced(model, compute)
        if form.startswith("auto, fsdp"):
            return case.loss(model, batch)
        with axn.axis_mapping(compute):
            return case.loss(model, batch)

    def step(model: Any, moments: Any, batch: NamedArray, form: str) -> Any:
        value, grads = jax.value_and_grad(loss)(model, batch, form)
        if not form.startswith("auto, fsdp"):  # which lays gradients out by itself
            grads = axn.auto_sharded(grads)
        updates, moments = OPTIMIZER.update(grads, moments, model)
        return optax.apply_updates(model, updates), moments, value

    for form in FORMS:
        if case.loop and form == "explicit, reduced":  # would gather the weights of all layers before the loop
            continue
        mesh, run, laid_out = make_mesh(strategy, form), functools.partial(step, form=form), parameters
        if form == "manual":
            run, laid_out = axn.shard_map(run, axn.Mappings(parameters, compute)), None
        compiled = axn.named_jit(run, laid_out, donate_args=(True, True), strict=False)
        if form.startswith("auto, fsdp"):
            by_hand = form.endswith("manual")
            compiled = axn.fsdp(run, parameters, compute, manual=by_hand, donate_args=(True, True), strict=False)
        shapes = (*jax.eval_shape(start), NamedArray(case.batch, case.names))
        arguments = tuple(
            abstract(tree, axn.pspec_for(tree, mapping, mesh, strict=False), mesh)
            for tree, mapping in zip(shapes, (parameters, parameters, compute), strict=True)
        )
        yield Program(
            f"Axonym, {form}",
            True,
            mesh,
            compiled,
            arguments,
            lambda arguments=arguments: placed((*jax.jit(start)(), NamedArray(case.draw(), case.names)), arguments),
        )


DEVICES: list[Any] = []


def make_mesh(strategy: str, form: str) -> Mesh:
    """Make the mesh of a strategy, of CPU devices or of those of the TPU."""
    devices = np.array(DEVICES or jax.devices()).reshape(MESHES[strategy])
    return Mesh(devices, ("data", "model"), axis_types=(TYPES.get(form.split(",")[0], AxisType.Auto),) * 2)


def compare(case: Case, strategy: str, forms: Sequence[str], run: bool) -> None:
    """Print all programs of one strategy side by side."""
    rows, best, reference = [], {}, None
    programs = [*written_by_hand(case, strategy, forms), *with_names(case, strategy)]
    costs = [program.costs() for program in programs]
    for column in COLUMNS:
        best[column] = min(cost[column] for program, cost in zip(programs, costs, strict=True) if not program.ours)
    for program, cost in zip(programs, costs, strict=True):
        row: dict[str, object] = {"program": program.label}
        for column in COLUMNS:
            value, least = cost[column], best[column]
            row[column] = value if isinstance(value, int) else f"{value:.4g}"
            row["ratio" + " " * len(row)] = f"{value / least:.3f}" if least else ("1.000" if not value else "inf")
        row["by kind"] = cost["by kind"]
        if run:
            losses = program.losses()
            reference = reference or losses
            row |= {"loss 1": f"{losses[0]:.6f}", "loss 3": f"{losses[2]:.6f}"}
            if not np.allclose(losses, reference, rtol=1e-4):
                sys.exit(f"error: {program.label} under {strategy} has the losses {losses}, not {reference}")
        rows.append(row)
    print(table(rows), flush=True)


def tpu_devices() -> list[Any]:
    """Describe the chips of a TPU v5e 2x4, in an order that keeps neighbours together."""
    from jax.experimental import topologies

    return list(topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=["cpu", "tpu"], default="cpu")
    parser.add_argument("--model", choices=list(MODELS), nargs="+", default=list(MODELS))
    parser.add_argument("--strategy", choices=raw.STRATEGIES, nargs="+", default=list(raw.STRATEGIES))
    parser.add_argument(
        "--form", choices=raw.FORMS, nargs="+", default=list(raw.FORMS), help="of the hand-written ones"
    )
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    tpu = options.target == "tpu"
    if tpu:
        DEVICES[:] = tpu_devices()
    print(f"jax {jax.__version__}, compiled for {(DEVICES or jax.devices())[0].device_kind}\n")
    for model in options.model:
        for strategy in options.strategy:
            data, tensor = MESHES[strategy]
            print(f"### {model}, {strategy}, mesh data={data} model={tensor}\n")
            compare(MODELS[model](tpu), strategy, options.form, run=not tpu)
            print()
    print(NOTES[options.target])


if __name__ == "__main__":
    main()
