"""A stack of perceptrons whose positions are split between their products, with collectives or with rings.

What tensor parallelism sends for a perceptron, it sends right before the first product and right after the second one.
`ringed` sends it in blocks, each while another one is multiplied. No block has to know its place: what is between the
products is computed for each position alone, so that blocks stay in the order in which they came, and the sums of a
block go on to where it came from.
"""

import dataclasses
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

POSITIONS = "sequence.pos"
PARAMETERS = {"mlp": "model"}
COMPUTE = {"batch": "data", "mlp": "model"}
# How the layers are computed, and what else the mapping splits for that.
FORMS: dict[str, dict[str, str]] = {"": {}, "sequence": {"sequence": "model"}, "rings": {"sequence": "model"}}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a stack, and the mesh that it is for."""

    layers: int = 4
    embed: int = 1024
    mlp: int = 4096
    positions: int = 1024
    rows: int = 64
    mesh: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"data": 4, "model": 2})

    Layers = property(lambda self: Axis("layers", self.layers))
    Embed = property(lambda self: Axis("embed", self.embed))
    Mlp = property(lambda self: Axis("mlp", self.mlp))
    Input = property(lambda self: axn.make_axes(**{"batch": self.rows, POSITIONS: self.positions, "embed": self.embed}))


SIZES = {
    "perceptron": Sizes(),
    "wide perceptron": Sizes(embed=4096, mlp=16384, positions=2048, rows=8, mesh={"data": 2, "model": 4}),
}


def ringed(x: NamedArray, up: NamedArray, down: NamedArray, bias: NamedArray | None = None) -> NamedArray:
    """Apply two products to the positions of all devices of a ring, in a `shard_map`.

    Args:
        x: the device's own positions, axes {embed, sequence.pos, ...}.
        up: its part of the first weight, axes {embed, mlp}.
        down: its part of the second weight, axes {mlp, embed}.
        bias: what is added between the products, axes {mlp}.

    Returns:
        Its own positions, axes {embed, sequence.pos, ...}.
    """
    count = axn.collectives.axis_size(POSITIONS)
    # The gradient of a weight is then summed over the batch once, and not for each block.
    up, down, bias = axn.pcast((up, down, bias), "batch")
    hidden = [axn.dot(x, up, axis="embed")]
    for _ in range(1, count):
        x = axn.ppermute(x, POSITIONS)
        hidden.append(axn.dot(x, up, axis="embed"))
    if bias is not None:
        hidden = [part + bias for part in hidden]
    # Both products with the own block in one operation would wait for both of its neighbours.
    hidden[0] = lax.optimization_barrier(hidden[0])

    # The own block comes last. Until then, sums move on with those of the blocks behind it.
    total = axn.dot(nn.gelu(hidden[1 % count]), down, axis="mlp")
    for step in range(2, count + 1):
        here = axn.dot(nn.gelu(hidden[step % count]), down, axis="mlp")
        total = axn.ppermute(total, POSITIONS) + here
    return total


class Perceptron(eqx.Module):
    """Two products with a gelu between them, behind a norm and beside a residual connection."""

    norm: nn.RmsNorm
    up: nn.Linear
    down: nn.Linear
    form: str = eqx.field(static=True)

    @staticmethod
    def init(sizes: Sizes, form: str, *, key: jax.Array) -> "Perceptron":
        k_up, k_down = jax.random.split(key)
        up = nn.Linear.init(sizes.Embed, sizes.Mlp, key=k_up, use_bias=False)
        down = nn.Linear.init(sizes.Mlp, sizes.Embed, key=k_down, use_bias=False)
        return Perceptron(nn.RmsNorm.init(sizes.Embed, use_bias=False), up, down, form)

    def __call__(self, x: NamedArray) -> NamedArray:
        h = self.norm(x)
        if self.form == "rings":
            return x + axn.shard_map(ringed)(h, axn.auto_sharded(self.up.weight), axn.auto_sharded(self.down.weight))
        return x + self.down(nn.gelu(self.up(h)))


def init(sizes: Sizes, form: str, dtype: jnp.dtype, *, key: jax.Array) -> nn.Stacked[Perceptron]:
    """Make a stack, whose layers are computed again in the backward pass."""
    made = nn.Stacked.init(sizes.Layers, Perceptron, gradient_checkpointing=True)(sizes, form, key=key)
    return jax.tree.map(lambda weight: weight.astype(dtype), made)


def loss(stack: nn.Stacked[Perceptron], x: NamedArray) -> jax.Array:
    """Return the mean square of the result."""
    return axn.square(stack.fold(x).astype(jnp.float32)).mean().scalar()


def step(stack: nn.Stacked[Perceptron], x: NamedArray) -> tuple[nn.Stacked[Perceptron], jax.Array]:
    """Take a step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(stack, x)
    return jax.tree.map(lambda weight, change: weight - (1e-3 * change).astype(weight.dtype), stack, gradients), value
