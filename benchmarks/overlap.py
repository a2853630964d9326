"""Say how much of its sending a TPU hides behind computing, by the schedule of a training step's program.

    python benchmarks/overlap.py                    a GPT-2 of 4 layers on a v5e 2x4; needs libtpu, no TPU
    python benchmarks/overlap.py --rows 64          another batch
    python benchmarks/overlap.py --forms "fsdp"     some forms: names of strategies, "fsdp, ahead", "tp, sequence"
    python benchmarks/overlap.py --forms "perceptron" "perceptron, sequence" "perceptron, rings"

The form `ahead` is a loop by hand, in which a layer's weights are gathered while the layer before it computes, forward
and backward. How fast that is, is up to the compiler: it decides what it sends while it computes.

In the form `sequence`, positions have a derived name, so that they are split over the mesh axis of the layers wherever
these leave it free: between the products.

`perceptron` and `wide perceptron` are stacks of perceptrons in bfloat16, tensor-parallel, of sizes of their own. In the
form `rings`, what the products need and make goes around in a ring, a block at a time, while others are multiplied. In
that of the GPT-2, the products of its perceptrons do, and positions are split as in the form `sequence`.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import perceptron
from gpt2 import STRATEGIES, Block, Gpt2, Gpt2Config
from jax import lax
from measure import table

import axonym as axn
import axonym.nn as nn
from axonym import NamedArray

MESH = {"data": 4, "model": 2}
SIZES = Gpt2Config(layers=4, embed=1024, heads=16, positions=1024, vocab=4096, dropout=0.0)
FORMS = ("fsdp", "fsdp, ahead", "tp", "tp, sequence", "tp, rings", "fsdp+tp", "fsdp+tp, sequence")
RINGS = tuple(f"{subject}{how}" for subject in perceptron.SIZES for how in ("", ", sequence", ", rings"))
SEQUENCE = "sequence.pos"
MILLI = 1e3


def is_named(leaf: object) -> bool:
    return isinstance(leaf, NamedArray)


class Ahead(nn.Stacked[Block]):
    """Layers whose weights are gathered one layer ahead; the backward pass computes each layer again."""

    parameters: axn.ResourceMapping = eqx.field(static=True, default=None)

    def fold(self, init: NamedArray, *args: Any, **kwargs: Any) -> NamedArray:
        """Apply the layers; further arguments have no gradient, and are the same for all layers."""
        weights, rest = eqx.partition(self.stacked, is_named, is_leaf=is_named)
        Layers, last = self.Block, self.Block.size - 1

        def gathered(weights: Any, at: jax.Array) -> Any:
            return axn.auto_sharded(jax.tree.map(lambda leaf: leaf[Layers.name, at], weights, is_leaf=is_named))

        def apply(layer: Any, x: NamedArray) -> NamedArray:
            whole = eqx.combine(layer, rest, is_leaf=lambda leaf: leaf is None or is_named(leaf))
            return whole(x, *args, **kwargs)

        def forward(weights: Any, x: NamedArray) -> Any:
            def step(carry: Any, at: jax.Array) -> Any:
                x, layer = carry
                following = gathered(weights, jnp.minimum(at + 1, last))
                return (apply(layer, x), following), x

            start = x, gathered(weights, np.int32(0))
            (result, _), inputs = lax.scan(step, start, jnp.arange(Layers.size))
            return result, (weights, inputs)

        def backward(kept: Any, change: NamedArray) -> Any:
            weights, inputs = kept

            def step(carry: Any, given: Any) -> Any:
                change, layer = carry
                at, x = given
                before = gathered(weights, jnp.maximum(at - 1, 0))
                gradient, change = jax.vjp(apply, layer, x)[1](change)
                with axn.axis_mapping(self.parameters):
                    gradient = axn.auto_sharded(gradient)
                return (change, before), gradient

            start = change, gathered(weights, np.int32(last))
            (change, _), gradients = lax.scan(step, start, (jnp.arange(Layers.size), inputs), reverse=True)

            def stacked(gradient: NamedArray, weight: NamedArray) -> NamedArray:
                return NamedArray(gradient.array, (Layers.name, *gradient.names)).rearrange(weight.names)

            return jax.tree.map(stacked, gradients, weights, is_leaf=is_named), change

        run = jax.custom_vjp(lambda weights, x: forward(weights, x)[0])
        run.defvjp(forward, backward)
        return run(weights, init)


def ahead(model: Gpt2, parameters: axn.ResourceMapping) -> Gpt2:
    """Gather the layers of a model ahead, stored by a mapping."""
    return dataclasses.replace(model, blocks=Ahead(**vars(model.blocks), parameters=parameters))


def split(sizes: Gpt2Config, compute: axn.ResourceMapping) -> tuple[Gpt2Config, axn.ResourceMapping]:
    """Split positions between the products of layers, too."""
    base = SEQUENCE.partition(".")[0]
    return dataclasses.replace(sizes, pos=SEQUENCE), {**compute, base: "model"}


def with_library(model: Gpt2) -> Gpt2:
    """Make the perceptrons `nn.MLP`s, which can go around rings."""
    old = model.blocks.stacked.mlp
    mlp = nn.MLP((old.fc, old.out), nn.gelu)
    return eqx.tree_at(lambda model: model.blocks.stacked.mlp, model, mlp)


def step(model: Gpt2, tokens: NamedArray) -> tuple[Gpt2, jax.Array]:
    """Take a step of gradient descent."""
    loss, gradients = jax.value_and_grad(lambda model: model.loss(tokens).scalar())(model)
    return jax.tree.map(lambda weight, gradient: weight - 1e-3 * gradient, model, gradients), loss


def transformer(form: str, rows: int, options: Mapping[str, str]) -> axn.partitioning.Cost:
    """Compile a form of the GPT-2, and say what it costs."""
    strategy, _, how = form.partition(", ")
    if strategy not in STRATEGIES or how not in ("", "ahead", "sequence", "rings"):
        known = f"{', '.join(STRATEGIES)}, with ', ahead', ', sequence' or ', rings'; {'; '.join(RINGS)}"
        raise SystemExit(f"there is no form {form!r}; there are {known}")
    parameters, compute = STRATEGIES[strategy]
    sizes = SIZES
    if how in ("sequence", "rings"):
        sizes, compute = split(sizes, compute)
    model = with_library(jax.eval_shape(lambda key: Gpt2.init(sizes, key=key), jax.random.key(0)))
    if how == "ahead":
        model = ahead(model, parameters)
    tokens = NamedArray(jax.ShapeDtypeStruct((rows, SIZES.positions + 1), jnp.int32), ("batch", "pos"))
    mappings = axn.Mappings(parameters, compute)
    rings, donated = how == "rings", (True,)
    compiled = axn.named_jit(step, mappings, donate_args=donated, rings=rings, compiler_options=dict(options))
    return axn.cost(compiled, mappings, MESH, model, tokens, target="v5e")


def perceptrons(form: str, options: Mapping[str, str]) -> axn.partitioning.Cost:
    """Compile a form of a stack of perceptrons, and say what it costs."""
    subject, _, how = form.partition(", ")
    sizes = perceptron.SIZES[subject]
    if how not in perceptron.FORMS:
        raise SystemExit(f"there is no form {form!r}; there are {'; '.join(RINGS)}")
    mappings = axn.Mappings(perceptron.PARAMETERS, {**perceptron.COMPUTE, **perceptron.FORMS[how]})
    dtype = jnp.dtype(jnp.bfloat16)
    model = jax.eval_shape(lambda key: perceptron.init(sizes, dtype, key=key), jax.random.key(0))
    shape = tuple(axis.size for axis in sizes.Input)
    x = NamedArray(jax.ShapeDtypeStruct(shape, dtype), tuple(axis.name for axis in sizes.Input))
    rings, donated = how == "rings", (True,)
    compiled = axn.named_jit(
        perceptron.step, mappings, donate_args=donated, rings=rings, compiler_options=dict(options)
    )
    return axn.cost(compiled, mappings, dict(sizes.mesh), model, x, target="v5e")


def line(form: str, rows: int, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Compile a form, with options for the compiler, and tell what its program sends, and when."""
    own = perceptron.SIZES.get(form.partition(", ")[0])
    if own is None:
        report = transformer(form, rows, options or {})
    else:
        rows = own.rows
        report = perceptrons(form, options or {})
    if not report.is_scheduled:
        raise SystemExit(f"without libtpu, the program is one for {report.compiler}: pip install libtpu")
    hidden = sum(one.hidden for one in report.communication)
    looped = [one for one in report.communication if one.count >= SIZES.layers]
    return {
        "form": form,
        "mesh": " x ".join(str(size) for _, size in report.mesh),
        "rows": str(rows),
        "sent, MB": f"{report.totals['bytes sent'] / 1e6:.0f}",
        "sending, ms": f"{report.time.sending * MILLI:.2f}",
        "of it hidden": f"{hidden / report.time.sending:.0%}",
        "not hidden in loops, ms": f"{sum(one.seconds - one.hidden for one in looped) * MILLI:.2f}",
        "moving memory, ms": f"{report.time.moving * MILLI:.2f}",
        "step as scheduled, ms": f"{report.time.scheduled * MILLI:.2f}",
        "temporary, MB": f"{report.memory.temporary / 1e6:.0f}",
    }


def asked(form: str, rows: Sequence[int]) -> Sequence[int]:
    """Return the numbers of rows to compile a form for; stacks of perceptrons have their own."""
    if form.partition(", ")[0] in perceptron.SIZES:
        return (0,)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=(16, 64))
    parser.add_argument("--forms", nargs="*", default=(*FORMS, *RINGS))
    parser.add_argument("--options", nargs="*", default=(), metavar="NAME=VALUE", help="of the compiler")
    options = parser.parse_args()
    given = dict(option.partition("=")[::2] for option in options.options)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    found: list[dict[str, str]] = []
    for form in options.forms:
        for rows in asked(form, options.rows):
            found.append(line(form, rows, given))
    print(f"jax {jax.__version__}, v5e, mesh (data, model)\n\n{table(found)}")


if __name__ == "__main__":
    main()
