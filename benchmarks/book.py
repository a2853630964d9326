"""Compare the bound of `axn.cost` with the closed formulas of a book, for perceptrons on many chips.

    python benchmarks/book.py                a 70B on v5p, and other models and machines
    python benchmarks/book.py --chips 4096   those of some numbers of chips
    python benchmarks/book.py --others       exchanges of experts, and tokens of a 70B that is served
    python benchmarks/book.py --compiled     what tokens read and write, traced and compiled; needs libtpu, no TPU

Austin et al. (2025), "How to Scale Your Model", parts 5, 7 and 12 (jax-ml/scaling-book, training.md, inference.md and
gpus.md). The book takes a layer as two products, D x F and F x D, with bfloat16 weights, on a mesh of x chips for data
and y for tensor parallelism. A chip computes C operations per second, and sends W bytes per second along each axis of
the torus that a mesh axis takes. All is traced: no chip needs to exist.
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
from axonym.models import Decoder, DecoderConfig

LAYERS = 80
# Llama 3 70B.
LLAMA = DecoderConfig(
    vocab=128256, layers=80, embed=8192, mlp=28672, heads=64, kv_heads=8, head_dim=128, positions=8192
)
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


class Mixture(eqx.Module):
    """Experts beside a residual connection."""

    experts: nn.MixtureOfExperts

    @staticmethod
    def init(Embed: Axis, Experts: Axis, Mlp: Axis, *, key: jax.Array) -> "Mixture":
        options: Any = {"capacity_factor": 1.0, "tokens": "pos", "key": key}
        return Mixture(nn.MixtureOfExperts.init(Embed, Experts, Mlp, 2, **options))

    def __call__(self, x: NamedArray) -> NamedArray:
        return x + self.experts(x)[0]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The all-to-alls of a step of Mixtral's experts, which chips along `y` share: each token has two of 8 or more.

    Attributes:
        target: the kind of chip.
        x: the chips for FSDP.
        y: the chips that share experts.
        axes: the axes of the torus that these take.
        is_ring: whether each of these is a ring.
        tokens: the tokens of each chip.
    """

    target: str
    x: int
    y: int
    axes: int = 1
    is_ring: bool = True
    tokens: int = 4096

    @property
    def seconds(self) -> float:
        """In both passes, rows go to the experts and back: parts 5 and 12."""
        layers, wide = 32, 4096
        target = axn.partitioning.TARGETS[self.target]
        # What a chip has for others, once, and all chips together.
        own = 2 * 2 * self.tokens * wide
        seconds = own * (self.y - 1) / self.y / target.link.bandwidth
        if target.torus is not None:
            # A quarter of the time of a gather; without the connection of both ends, half of the bandwidth.
            seconds = own * self.y / (4 if self.is_ring else 2) / (target.link.bandwidth * self.axes)
        return 4 * layers * seconds

    def count(self) -> float:
        """Return the traced seconds."""
        Embed, Mlp, Layers, Experts = axn.make_axes(embed=4096, mlp=14336, layers=32, experts=max(8, self.y))

        def init(key: jax.Array) -> nn.Stacked[Mixture]:
            stack = nn.Stacked.init(Layers, Mixture)(Embed, Experts, Mlp, key=key)
            return jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), stack)

        def loss(stack: nn.Stacked[Mixture], x: NamedArray) -> jax.Array:
            return stack.fold(x).astype(jnp.float32).mean().scalar()

        shape = self.x * self.y, self.tokens, 4096
        x = NamedArray(jax.ShapeDtypeStruct(shape, jnp.bfloat16), ("batch", "pos", "embed"))
        mappings = axn.Mappings({"embed": "x", "experts": "y"}, {"batch": ("x", "y"), "experts": "y"})
        given = {"x": self.x, "y": self.y}, jax.eval_shape(init, jax.random.key(0)), x
        cost = axn.cost(jax.grad(loss), mappings, *given, target=self.target, depth="traced")
        return sum(row.seconds for row in cost.communication if row.kind == "all-to-all")


# Key heads and their groups divide the weights of attention, and the cache as far as they can.
ALONG = {"kv_heads": "x", "group": "y", "mlp": ("x", "y"), "vocab": ("x", "y")}
# A sum of an array over 8 chips: its latency, and the seconds of each byte. On a 2 x 2 x 2 torus, a hop of 1 us along
# each axis, there and back, and one link along each (part 3). On 8 H100, what NCCL expects of its rings in the protocol
# for small arrays (NVIDIA/nccl, src/graph/tuning.cc): 14 steps, and 8 / 14 of 87.7 GB/s.
SUMS = {
    "v5p": (2 * 3 * 1e-6, 2 * 7 / 8 / (3 * 100e9)),
    "h100": (6.6e-6 + 14 * 0.6e-6, 14 / 8 / 87.7e9),
}


@dataclasses.dataclass(frozen=True)
class Token:
    """A token of a Llama 3 70B for each sequence of a batch, by tensor parallelism: part 7.

    Attributes:
        target: the kind of chip.
        x: the chips that divide key heads.
        batch: the number of sequences.
        places: the tokens of each that are in the cache.
        layers: the number of layers.
    """

    target: str
    x: int
    batch: int
    places: int = 2048
    layers: int = LLAMA.layers

    @property
    def _config(self) -> DecoderConfig:
        return dataclasses.replace(LLAMA, layers=self.layers)

    @property
    def seconds(self) -> float:
        """A token reads weights and cache once; two sums of activations in each layer take less, except their hops."""
        one = self._config
        attention = 2 * one.embed * one.head_dim * (one.heads + one.kv_heads)
        weights = one.layers * (attention + 3 * one.embed * one.mlp) + one.embed * one.vocab
        cache = 2 * one.layers * one.kv_heads * one.head_dim * self.batch * self.places
        target = axn.partitioning.TARGETS[self.target]
        return 2 * (weights + cache) / (self.x * target.memory_bandwidth)

    @property
    def serial(self) -> float:
        """The time with scores, which no kernel keeps near the units, and two sums in each layer, after products."""
        one = self._config
        # Programs of libtpu write float32 scores once and read them twice: they find the maxima while they write.
        scores = 3 * 4 * one.layers * one.heads * self.batch * self.places
        latency, rate = SUMS[self.target]
        sums = 2 * one.layers * (latency + rate * 2 * self.batch * one.embed)
        return self.seconds + scores / (self.x * axn.partitioning.TARGETS[self.target].memory_bandwidth) + sums

    def make_step(self, new: int = 1) -> tuple[Any, ...]:
        """Return a step that reads some tokens of each sequence, with its arguments."""

        def init(key: jax.Array) -> Decoder:
            return jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), Decoder.init(self._config, key=key))

        model = jax.eval_shape(init, jax.random.key(0))
        cache = jax.eval_shape(lambda: model.cache(self.places, Axis("batch", self.batch)))
        tokens = NamedArray(jax.ShapeDtypeStruct((self.batch, new), jnp.int32), ("batch", "pos"))
        return axn.named_jit(extend, {}, donate_args=(False, True, False)), model, cache, tokens

    def count(self, depth: Any = "traced") -> Any:
        """Return the cost."""
        run, *given = self.make_step()
        mesh = {"x": self.x, "y": 1}
        return axn.cost(run, axn.Mappings(ALONG), mesh, *given, target=self.target, depth=depth)


def extend(model: Decoder, cache: Any, tokens: NamedArray) -> Any:
    """Read a token of each sequence."""
    return model.extend(cache, tokens)


def list_exchanges() -> Iterator[Exchange]:
    """Yield exchanges of experts along one axis of a torus, along two, on lines, and in a node."""
    yield Exchange("v5e", 16, 16)
    yield Exchange("v6e", 16, 16)
    yield Exchange("v5e", 8, 8, is_ring=False)
    yield Exchange("v5p", 8, 8, axes=2)
    yield Exchange("h100", 8, 8)
    yield Exchange("b200", 32, 8, tokens=8192)


def list_tokens() -> Iterator[Token]:
    """Yield tokens of small batches, for which the weights decide."""
    yield Token("v5p", 8, 1)
    yield Token("v5p", 8, 8)
    yield Token("v5p", 8, 16)
    yield Token("v6e", 8, 4)
    yield Token("v7x", 8, 8)


def list_far_tokens() -> Iterator[Token]:
    """Yield tokens of which scores of attention, or the latency of sums, take a part."""
    yield Token("v5p", 8, 64, 8192)
    yield Token("h100", 8, 8)


def print_others() -> None:
    """Print the table of exchanges and tokens."""
    rows: list[dict[str, str]] = []

    def add(what: str, size: int, formula: float, found: float) -> None:
        rows.append(
            {
                "of": what,
                "tokens of a chip, or sequences": str(size),
                "formula, ms": f"{1000 * formula:.2f}",
                "traced, ms": f"{1000 * found:.2f}",
                "error": f"{found / formula - 1:+.1%}",
            }
        )

    for case in list_exchanges():
        add(f"experts, {case.x} x {case.y} {case.target}", case.tokens, case.seconds, case.count())
    for case in list_tokens():
        add(f"token, {case.x} {case.target}", case.batch, case.seconds, case.count().time.seconds)
    for case in list_far_tokens():
        what, time = f"token, {case.x} {case.target}, {case.places} places", case.count().time
        add(what, case.batch, case.seconds, time.seconds)
        add(f"{what}, with scores and sums", case.batch, case.serial, time.serial)
    print(table(rows))


def print_compiled() -> None:
    """Print what tokens of four layers read and write. The program for 64 sequences keeps a part in fast memory."""
    rows: list[dict[str, str]] = []
    for batch in (64, 512):
        case = Token("v5p", 8, batch, 8192, layers=4)
        traced, compiled = (case.count(depth).totals["bytes accessed"] for depth in ("traced", "compiled"))
        found = {"traced, GB": f"{traced / 1e9:.2f}", "compiled, GB": f"{compiled / 1e9:.2f}"}
        rows.append({"sequences": str(batch), **found, "ratio": f"{traced / compiled:.2f}"})
    print(table(rows))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="+", type=int)
    parser.add_argument("--others", action="store_true", help="exchanges of experts, and tokens")
    parser.add_argument("--compiled", action="store_true", help="the accesses of tokens, against those of programs")
    options = parser.parse_args()
    if options.others or options.compiled:
        (print_others if options.others else print_compiled)()
        return
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
