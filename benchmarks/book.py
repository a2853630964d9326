"""Compare the bound of `axn.cost` with the closed formulas of a book, for perceptrons on many chips.

    python benchmarks/book.py                a 70B on v5p, and other models and machines
    python benchmarks/book.py --chips 4096   those of some numbers of chips

Austin et al. (2025), "How to Scale Your Model", parts 5 and 12 (jax-ml/scaling-book, training.md and gpus.md). The book
takes a layer as two products, D x F and F x D, with bfloat16 weights, on a mesh of x chips for data and y for tensor
parallelism. A chip computes C operations per second, and sends W bytes per second along each axis of the torus that a
mesh axis takes. All is traced: no chip needs to exist.
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
from axonym import Axis, NamedArray

LAYERS = 80
# D and F of a 70B.
LARGE = (8192, 28672)

BOTH = {"mlp": "y"}
MAPPINGS = {
    "data parallelism": axn.Mappings({}, {"batch": "x"}),
    "FSDP": axn.Mappings({"embed": "x"}, {"batch": "x"}),
    # Each group of chips has all weights, and groups sum gradients.
    "FSDP in groups": axn.Mappings({"embed": "x"}, {"batch": ("y", "x")}),
    "FSDP in slices": axn.Mappings({"embed": "x"}, {"batch": ("dcn", "x")}),
    # Positions are split where the book splits features: the same bytes.
    "tensor parallelism": axn.Mappings(BOTH, {"sequence": "y", **BOTH}),
    "FSDP + tensor parallelism": axn.Mappings({"embed": "x", **BOTH}, {"batch": "x", "sequence": "y", **BOTH}),
}


class Perceptron(eqx.Module):
    """Two products with a gelu between them, beside a residual connection."""

    mlp: nn.MLP

    @staticmethod
    def init(Embed: Axis, Mlp: Axis, *, key: jax.Array) -> "Perceptron":
        return Perceptron(nn.MLP.init(Embed, Embed, Mlp, 1, nn.gelu, key=key, use_bias=False, use_final_bias=False))

    def __call__(self, x: NamedArray) -> NamedArray:
        return x + self.mlp(x)


@dataclasses.dataclass(frozen=True)
class Case:
    """A step on some chips.

    Attributes:
        strategy: a name of `MAPPINGS`.
        x: the chips for data.
        y: the chips for tensor parallelism, or the number of groups.
        axes: the axes of the torus that each takes; of GPUs, 1 for the network between nodes.
        tokens: the tokens of each chip: one sequence for each.
        target: the kind of chip.
        sizes: D and F.
        slices: the number of slices.
    """

    strategy: str
    x: int
    y: int
    axes: tuple[int, int]
    tokens: int
    target: str = "v5p"
    sizes: tuple[int, int] = LARGE
    slices: int = 1

    @property
    def chips(self) -> int:
        return self.x * self.y * self.slices

    @property
    def is_tiled(self) -> bool:
        """Whether a part of a matrix is whole tiles, of 8 rows. Compilers for TPU do not scatter other gradients."""
        return self.sizes[0] // self.x % 8 == 0

    @property
    def bandwidth(self) -> float:
        """The bytes that a chip sends along one axis of a torus; of GPUs, what a node sends to others."""
        target = axn.partitioning.TARGETS[self.target]
        if target.torus is not None:
            return target.link.bandwidth
        node = target.domains[0]
        nodes = self.chips // node.devices
        return node.devices * node.link.bandwidth * nodes / (nodes - 1)

    @property
    def seconds(self) -> float:
        """The time of a step by the formulas: in both passes, the longer one of computing and of sending."""
        (wide, deep), rate = self.sizes, self.bandwidth
        target = axn.partitioning.TARGETS[self.target]
        groups = self.y if "groups" in self.strategy else 1
        # The bytes of both matrices, and of what is left of them where FSDP sums gradients of others.
        matrices = 2 * 2 * wide * deep * groups / self.y
        part = matrices / self.x
        activations = weights = others = 0.0
        if "tensor" in self.strategy:
            # The activations of all chips of a group, two bytes for each element, gathered or scattered once.
            activations = 2 * self.tokens * self.y * wide / (rate * self.axes[1])
        if self.x > 1:
            # Both matrices, or their gradients, gathered or scattered once.
            weights = matrices / (rate * self.axes[0])
        if groups > 1:
            others = 2 * part / (rate * self.axes[1])
        if self.slices > 1:
            others = 2 * part / target.domains[0].link.bandwidth * (self.slices - 1) / self.slices
        # The first product takes gathered activations, and the result of the second one is scattered.
        forward = 2 * activations + (weights if "FSDP" in self.strategy else 0.0)
        # So are their gradients, and the input is gathered again. A sum of gradients is a scatter and a gather; FSDP
        # scatters gradients, and gathers weights.
        backward = 3 * activations + 2 * weights + others
        computing = 4 * self.tokens * wide * deep / target.flops_of("bfloat16")
        return LAYERS * (max(computing, forward) + max(2 * computing, backward))

    def count(self) -> Any:
        """Return the traced cost."""
        wide, deep = self.sizes
        Embed, Mlp, Layers = axn.make_axes(embed=wide, mlp=deep, layers=LAYERS)

        def init(key: jax.Array) -> nn.Stacked[Perceptron]:
            stack = nn.Stacked.init(Layers, Perceptron)(Embed, Mlp, key=key)
            return jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), stack)

        def loss(stack: nn.Stacked[Perceptron], x: NamedArray) -> jax.Array:
            return stack.fold(x).astype(jnp.float32).mean().scalar()

        Input = axn.make_axes(**{"batch": self.chips, "sequence.pos": self.tokens, "embed": wide})
        x = NamedArray(jax.ShapeDtypeStruct([axis.size for axis in Input], jnp.bfloat16), Input)
        stack = jax.eval_shape(init, jax.random.key(0))
        mesh = {"dcn": self.slices, "x": self.x, "y": self.y}
        target = axn.partitioning.TARGETS[self.target]
        if self.slices > 1:
            target = target.resize_domains(self.x * self.y)
        return axn.cost(jax.grad(loss), MAPPINGS[self.strategy], mesh, stack, x, target=target, depth="traced")


# Numbers of chips, those for tensor parallelism beside FSDP, and the axes of the torus that both take.
SLICES = ((64, 16, (1, 2)), (256, 8, (2, 1)), (1024, 8, (2, 1)), (4096, 16, (2, 1)), (8192, 16, (2, 1)))


def list_cases() -> Iterator[Case]:
    """Yield the cases of a 70B on v5p, each with few tokens for each chip and with many."""
    for tokens in (512, 4096):
        # More chips than that would send more than they compute, by far.
        yield Case("tensor parallelism", 1, 64, (0, 3), tokens)
        for chips, width, axes in SLICES:
            yield Case("data parallelism", chips, 1, (3, 0), tokens)
            yield Case("FSDP", chips, 1, (3, 0), tokens)
            yield Case("FSDP + tensor parallelism", chips // width, width, axes, tokens)
            if chips >= 4096:
                # Parts of whole tiles, as FSDP over all chips has none.
                yield Case("FSDP in groups", chips // 16, 16, (2, 1), tokens)


def list_others() -> Iterator[Case]:
    """Yield cases of other models and machines, with few and many tokens, and those between."""
    # Both products of an 8B, of a 175B, and of a 405B.
    small, old, huge = (4096, 14336), (12288, 49152), (16384, 53248)
    for tokens in (1024, 2048):
        yield Case("FSDP", 64, 1, (3, 0), tokens)
        yield Case("FSDP", 1024, 1, (3, 0), tokens)
        yield Case("FSDP", 256, 1, (2, 0), tokens, "v6e")
        yield Case("FSDP + tensor parallelism", 16, 16, (1, 1), tokens, "v6e")
    yield Case("FSDP", 512, 1, (3, 0), 1024, "v7x")
    for tokens in (512, 4096):
        yield Case("FSDP", 256, 1, (2, 0), tokens, "v5e", small)
        yield Case("data parallelism", 256, 1, (2, 0), tokens, "v5e", small)
        yield Case("FSDP + tensor parallelism", 16, 16, (1, 1), tokens, "v5e", small)
        yield Case("FSDP", 512, 1, (3, 0), tokens, "v4", old)
        yield Case("FSDP + tensor parallelism", 64, 8, (2, 1), tokens, "v4", old)
        yield Case("FSDP", 2048, 1, (3, 0), tokens, "v5p", huge)
        yield Case("FSDP + tensor parallelism", 256, 8, (2, 1), tokens, "v5p", huge)
        yield Case("FSDP", 64, 1, (1, 0), tokens, "h100")
        yield Case("FSDP", 1024, 1, (1, 0), tokens, "h100")
        yield Case("data parallelism", 256, 1, (1, 0), tokens, "h100")
        yield Case("FSDP", 256, 1, (1, 0), tokens, "b200", huge)
        yield Case("FSDP in slices", 256, 1, (3, 0), tokens, slices=4)
        yield Case("FSDP in slices", 256, 1, (2, 0), tokens, "v5e", small, slices=8)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="+", type=int)
    options = parser.parse_args()
    for cases in (list_cases(), list_others()):
        rows: list[dict[str, str]] = []
        for case in sorted(cases, key=lambda case: (case.target, case.chips, case.sizes, case.strategy)):
            if options.chips and case.chips not in options.chips:
                continue
            bound = case.count().time.seconds
            rows.append(
                {
                    "chips": f"{case.chips} {case.target}",
                    "D, F": "{}, {}".format(*case.sizes),
                    "strategy": case.strategy,
                    "mesh": f"{case.x} x {case.y}" + f", {case.slices} slices" * (case.slices > 1),
                    "tokens of a chip": str(case.tokens),
                    "formula, ms": f"{1000 * case.seconds:.0f}",
                    "bound, ms": f"{1000 * bound:.0f}",
                    "error": f"{bound / case.seconds - 1:+.1%}",
                }
            )
        print(table(rows), end="\n\n")


if __name__ == "__main__":
    main()
