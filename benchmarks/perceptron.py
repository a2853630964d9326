"""A stack of perceptrons whose positions are split between their products, with collectives or with rings.

What tensor parallelism sends for a perceptron, it sends right before the first product and right after the second one;
`axn.named_jit(..., rings=True)` sends it in blocks, each while another one is multiplied.
"""

import dataclasses
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

POSITIONS = "sequence.pos"
PARAMETERS = {"mlp": "model"}
COMPUTE = {"batch": "data", "mlp": "model"}
# What else the mapping splits, for each form.
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


class Perceptron(eqx.Module):
    """Two products with a gelu between them, behind a norm and beside a residual connection."""

    norm: nn.RmsNorm
    mlp: nn.MLP

    @staticmethod
    def init(sizes: Sizes, *, key: jax.Array) -> "Perceptron":
        mlp = nn.MLP.init(
            sizes.Embed, sizes.Embed, sizes.Mlp, 1, nn.gelu, key=key, use_bias=False, use_final_bias=False
        )
        return Perceptron(nn.RmsNorm.init(sizes.Embed, use_bias=False), mlp)

    def __call__(self, x: NamedArray) -> NamedArray:
        return x + self.mlp(self.norm(x))


def init(sizes: Sizes, dtype: jnp.dtype, *, key: jax.Array) -> nn.Stacked[Perceptron]:
    """Make a stack, whose layers are computed again in the backward pass."""
    made = nn.Stacked.init(sizes.Layers, Perceptron, gradient_checkpointing=True)(sizes, key=key)
    return jax.tree.map(lambda weight: weight.astype(dtype), made)


def loss(stack: nn.Stacked[Perceptron], x: NamedArray) -> jax.Array:
    """Return the mean square of the result."""
    return axn.square(stack.fold(x).astype(jnp.float32)).mean().scalar()


def step(stack: nn.Stacked[Perceptron], x: NamedArray) -> tuple[nn.Stacked[Perceptron], jax.Array]:
    """Take a step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(stack, x)
    return jax.tree.map(lambda weight, change: weight - (1e-3 * change).astype(weight.dtype), stack, gradients), value
