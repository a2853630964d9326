"""A transformer layer over a mesh of three axes: either activations are gathered where the weights are, or weights.

    python examples/parallel/weight_gathered_2d.py

The block of PaLM: attention and a gated perceptron side by side behind one norm. Its weights are split over all axes
of the mesh, embed over x and heads over y and z. A layout of the activations is two dicts: one between blocks, and
what is different inside of a block. Layouts and their names are those of Pope et al. (2022), "Efficiently scaling
transformer inference", section 3.2.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray
from axonym.partitioning import show

Batch, Time, Embed, Heads = axn.make_axes(batch=8, time=16, embed=64, heads=8)
Key, Value, Mlp = axn.make_axes(key=8, value=8, mlp=32)  # for each head
Into, Out = Axis("into", Key.size + 2 * Mlp.size), Axis("out", Value.size + Mlp.size)
KeyValue = Axis("key_value", Key.size + Value.size)

WEIGHTS = {"embed": "x", "heads": ("y", "z")}


class Layout(NamedTuple):
    residual: axn.ResourceMapping  # between blocks, and for the result
    inside: axn.ResourceMapping  # what is different inside of a block


STATIONARY_2D = Layout(
    residual={"batch": "z", "embed": ("x", "y"), "heads": ("y", "z", "x")},
    inside={"batch": None, "embed": "x"},
)
X_GATHERED = Layout(
    residual={"batch": "x", "embed": ("y", "z"), "heads": ("y", "z")},
    inside={"embed": None},
)


class Layer(eqx.Module):
    norm: nn.RmsNorm
    into: NamedArray  # embed, heads, into: for each head the query, and the perceptron's gate and value
    key_value: NamedArray  # embed, key_value: all heads share them
    out: NamedArray  # heads, out, embed

    @staticmethod
    def init(key: jax.Array) -> "Layer":
        keys = jax.random.split(key, 3)
        into = axn.random.normal(keys[0], (Embed, Heads, Into)) / math.sqrt(Embed.size)
        key_value = axn.random.normal(keys[1], (Embed, KeyValue)) / math.sqrt(Embed.size)
        out = axn.random.normal(keys[2], (Heads, Out, Embed)) / math.sqrt(Heads.size * Out.size)
        return Layer(nn.RmsNorm.init(Embed, use_bias=False), into, key_value, out)

    def __call__(self, x: NamedArray, layout: Layout = STATIONARY_2D, *, manual: bool = False) -> NamedArray:
        """Add attention and perceptron to `x`: axes batch, time, embed.

        Args:
            x: the residual stream.
            layout: where activations are.
            manual: write down the communication of the two products with weights; for `STATIONARY_2D`.
        """
        with axn.axis_mapping(layout.residual):
            x = axn.auto_sharded(x)
            with axn.axis_mapping(layout.inside, merge=True):
                normed = axn.auto_sharded(self.norm(x))
                multiply = manual_into if manual else multiply_into
                y = attend_and_gate(multiply(normed, self.into), axn.dot(normed, self.key_value, axis="embed"))
                with axn.axis_mapping({"heads": WEIGHTS["heads"]}, merge=True):
                    y = axn.auto_sharded(y)
            return x + (manual_out if manual else multiply_out)(y, self.out)


def attend_and_gate(into: NamedArray, key_value: NamedArray) -> NamedArray:
    """Compute what the heads do, each on its own: from batch, time, heads, into to batch, time, heads, out."""
    query, gate, linear = into.split("into", (Key, Mlp, Mlp))
    key, value = key_value.rename({"time": "time.key"}).split("key_value", (Key, Value))
    attended = nn.dot_product_attention("time", "time.key", "key", query, key, value, mask=nn.causal())
    return axn.concatenate("out", [attended.rename({"value": "out"}), (nn.silu(gate) * linear).rename({"mlp": "out"})])


def multiply_into(normed: NamedArray, weight: NamedArray) -> NamedArray:
    return axn.dot(normed, weight, axis="embed")


def multiply_out(y: NamedArray, weight: NamedArray) -> NamedArray:
    return axn.dot(y, weight, axis=("heads", "out"))


@axn.shard_map(mapping=WEIGHTS, out_mapping={"heads": ("y", "z", "x")})
def manual_into(normed: NamedArray, weight: NamedArray) -> NamedArray:
    """Multiply blocks of embed; the sum over x is cut into heads."""
    return axn.psum_scatter(multiply_into(normed, weight), "heads", over="x")


@axn.shard_map(mapping=WEIGHTS, out_mapping={"batch": "z", "embed": ("x", "y")})
def manual_out(y: NamedArray, weight: NamedArray) -> NamedArray:
    """Multiply blocks of heads; the sum over y is cut into embed, that over z into batch."""
    return axn.psum_scatter(axn.psum_scatter(multiply_out(y, weight), "embed", over="y"), "batch", over="z")


def main() -> list[NamedArray]:
    """Compute the layer in its three forms, and return the results."""
    kind = jax.sharding.AxisType.Auto
    with axn.set_mesh(jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(kind,) * 3)):
        layer = axn.named_jit(Layer.init, WEIGHTS)(jax.random.key(0))
        x = axn.random.normal(jax.random.key(1), (Batch, Time, Embed))
        print(show(layer))
        run = axn.named_jit(lambda layer, x, layout, manual: layer(x, layout, manual=manual))
        forms = [(STATIONARY_2D, False), (STATIONARY_2D, True), (X_GATHERED, False)]
        results = [run(layer, x, layout, manual) for layout, manual in forms]
    print(show(dict(zip(("stationary", "stationary, manual", "gathered"), results, strict=True))))
    return results


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
