"""Compare the bound of `axn.cost` with the closed formulas of a book, for perceptrons of a 70B on many chips.

    python benchmarks/book.py                all cases
    python benchmarks/book.py --chips 4096   those of some numbers of chips

Austin et al. (2025), "How to Scale Your Model", part 5 (jax-ml/scaling-book, training.md). The book takes a layer as
two products, D x F and F x D, with bfloat16 weights, on a mesh of x chips for data and y for tensor parallelism. A chip
computes C operations per second, and sends W bytes per second along each axis of the torus that a mesh axis takes. All
is traced: no chip needs to exist.
"""

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from measure import table

import axonym as axn
import axonym.nn as nn
from axonym import NamedArray

LAYERS, D, F = 80, 8192, 28672
V5P = axn.partitioning.TARGETS["v5p"]
C, W = V5P.flops_of("bfloat16"), V5P.link.bandwidth

Embed, Mlp, Layers = axn.make_axes(embed=D, mlp=F, layers=LAYERS)
BOTH = {"mlp": "y"}
MAPPINGS = {
    "data parallelism": axn.Mappings({}, {"batch": "x"}),
    "FSDP": axn.Mappings({"embed": "x"}, {"batch": "x"}),
    # Positions are split where the book splits features: the same bytes.
    "tensor parallelism": axn.Mappings(BOTH, {"sequence": "y", **BOTH}),
    "FSDP + tensor parallelism": axn.Mappings({"embed": "x", **BOTH}, {"batch": "x", "sequence": "y", **BOTH}),
}


class Perceptron(eqx.Module):
    """Two products with a gelu between them, beside a residual connection."""

    mlp: nn.MLP

    @staticmethod
    def init(*, key: jax.Array) -> "Perceptron":
        return Perceptron(nn.MLP.init(Embed, Embed, Mlp, 1, nn.gelu, key=key, use_bias=False, use_final_bias=False))

    def __call__(self, x: NamedArray) -> NamedArray:
        return x + self.mlp(x)


@dataclasses.dataclass(frozen=True)
class Case:
    """A step on a slice of v5p.

    Attributes:
        strategy: a name of `MAPPINGS`.
        x: the chips for data.
        y: the chips for tensor parallelism.
        axes: the axes of the torus that each takes.
        tokens: the tokens of each chip: one sequence for each.
    """

    strategy: str
    x: int
    y: int
    axes: tuple[int, int]
    tokens: int

    @property
    def chips(self) -> int:
        return self.x * self.y

    @property
    def is_tiled(self) -> bool:
        """Whether the part of a matrix is whole tiles, of 8 rows. Compilers for TPU do not scatter other gradients."""
        return D // self.x >= 8

    @property
    def seconds(self) -> float:
        """The time of a step by the formulas: in both passes, the longer one of computing and of sending."""
        tokens = self.chips * self.tokens
        activations = weights = 0.0
        if "tensor" in self.strategy:
            # The activations of all chips of a group, two bytes for each element, gathered or scattered once.
            activations = 2 * tokens * D / self.x / (W * self.axes[1])
        if self.x > 1:
            # Both matrices, or their gradients, gathered or scattered once.
            weights = 2 * 2 * D * F / self.y / (W * self.axes[0])
        # The first product takes gathered activations, and the result of the second one is scattered.
        forward = 2 * activations + (weights if "FSDP" in self.strategy else 0.0)
        # So are their gradients, and the input is gathered again. A sum of gradients is a scatter and a gather; FSDP
        # scatters gradients, and gathers weights.
        backward = 3 * activations + 2 * weights
        computing = 4 * tokens * D * F / (self.chips * C)
        return LAYERS * (max(computing, forward) + max(2 * computing, backward))

    def count(self) -> Any:
        """Return the traced cost."""

        def init(key: jax.Array) -> nn.Stacked[Perceptron]:
            stack = nn.Stacked.init(Layers, Perceptron)(key=key)
            return jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), stack)

        def loss(stack: nn.Stacked[Perceptron], x: NamedArray) -> jax.Array:
            return stack.fold(x).astype(jnp.float32).mean().scalar()

        Input = axn.make_axes(**{"batch": self.chips, "sequence.pos": self.tokens, "embed": D})
        x = NamedArray(jax.ShapeDtypeStruct([axis.size for axis in Input], jnp.bfloat16), Input)
        stack = jax.eval_shape(init, jax.random.key(0))
        mesh = {"x": self.x, "y": self.y}
        return axn.cost(jax.grad(loss), MAPPINGS[self.strategy], mesh, stack, x, target=V5P, depth="traced")


# Numbers of chips, those for tensor parallelism beside FSDP, and the axes of the torus that both take.
SLICES = ((64, 16, (1, 2)), (256, 8, (2, 1)), (1024, 8, (2, 1)), (4096, 16, (2, 1)), (8192, 16, (2, 1)))


def list_cases() -> Iterator[Case]:
    """Yield the cases, each with few tokens for each chip and with many."""
    for tokens in (512, 4096):
        # More chips than that would send more than they compute, by far.
        yield Case("tensor parallelism", 1, 64, (0, 3), tokens)
        for chips, width, axes in SLICES:
            yield Case("data parallelism", chips, 1, (3, 0), tokens)
            yield Case("FSDP", chips, 1, (3, 0), tokens)
            yield Case("FSDP + tensor parallelism", chips // width, width, axes, tokens)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="+", type=int)
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    for case in sorted(list_cases(), key=lambda case: (case.chips, case.strategy)):
        if options.chips and case.chips not in options.chips:
            continue
        bound = case.count().time.seconds
        rows.append(
            {
                "chips": str(case.chips),
                "strategy": case.strategy,
                "x, y": f"{case.x}, {case.y}",
                "tokens of a chip": str(case.tokens),
                "formula, s": f"{case.seconds:.3f}",
                "bound, s": f"{bound:.3f}",
                "error": f"{bound / case.seconds - 1:+.1%}",
            }
        )
    print(table(rows))


if __name__ == "__main__":
    main()
