"""Compare what `axn.cost` counts for published training runs with the times and memory that their authors measured.

    python benchmarks/published.py                    all rows
    python benchmarks/published.py --rows v6e h100    those whose name begins so
    python benchmarks/published.py --fit              the share of the peak in products that fitted rows lead to

Each row has the mapping, the batch, what is kept for the backward pass and the dtype of weights of its source. The
shares of peaks in `axn.partitioning.TARGETS` are fitted on rows marked `is_fitted`; all others only test them. The
choice was made before anything was fitted. All is traced: neither devices nor models need to exist.
"""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llama import Sizes, make_arguments, make_step
from measure import table

import axonym as axn

LLAMA_8B = Sizes(layers=32, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=128256)
LLAMA_70B = Sizes(layers=80, embed=8192, mlp=28672, heads=64, kv_heads=8, vocab=128256)
LLAMA_405B = Sizes(layers=126, embed=16384, mlp=53248, heads=128, kv_heads=8, vocab=128256)
LLAMA2_70B = dataclasses.replace(LLAMA_70B, vocab=32000)
MISTRAL_7B = dataclasses.replace(LLAMA_8B, vocab=32000)
# MaxText's `dropped` experts, with the capacity of the recipe; those without one compute as many rows as are chosen.
MIXTRAL = dataclasses.replace(MISTRAL_7B, experts=8, capacity=1.25)
MIXTRAL_ALL = dataclasses.replace(MIXTRAL, capacity=1.0)


def scaled(layers: int, embed: int, heads: int) -> Sizes:
    """Return a model of MaxText's `global_parameter_scale`: its base has 2048, 16 heads and a perceptron of 7168."""
    return Sizes(layers, embed, 448 * heads, heads, heads, vocab=32000)


# get_individual_scales of MaxText/pyconfig.py: heads and perceptron double first, then the width, then the layers.
SCALED = {
    16: scaled(32, 4096, 64),
    32: scaled(32, 8192, 64),
    64: scaled(64, 8192, 64),
    128: scaled(64, 8192, 128),
    256: scaled(64, 16384, 128),
    512: scaled(128, 16384, 128),
}

Policy = axn.ScanCheckpointPolicy
FULL = Policy()
QKV = ("query", "key", "value")
# Custom policies of MaxText: `decoder_layer_input` is the carry.
OFFLOADED_QKV = Policy(save_carries="offload", offload_block_internals=QKV)
OFFLOADED_QKVO = Policy(save_carries="offload", offload_block_internals=(*QKV, "out"))
# `minimal` of MaxText keeps the results of all products of weights.
DOTS = Policy(save_block_internals=[*QKV, "out", "gate", "up", "down"])
# torchtitan's selective checkpointing of operations: attention, and every second product of weights.
SELECTIVE = Policy(save_block_internals=["query", "value", "context", "gate", "down"])

FSDP = axn.Mappings({"embed": "data"}, {"batch": "data"})
OVER_SLICES = axn.Mappings({"embed": ("slice", "data")}, {"batch": ("slice", "data")})
IN_SLICES = axn.Mappings({"embed": "data"}, {"batch": ("slice", "data")})
HEADS = {"kv_heads": "model", "mlp": "model", "vocab": "model"}
# Positions are split between the products, as torchtitan does with `SequenceParallel`. MaxText divides the features of
# the residual stream instead, which sends the same bytes.
BETWEEN = {"pos": axn.partitioning.if_free("model")}
TENSOR = axn.Mappings({"embed": "data", **HEADS}, {"batch": "data", **BETWEEN, **HEADS})


@dataclasses.dataclass(frozen=True)
class Row:
    """A published run.

    Attributes:
        name: the target, the model and the number of devices.
        sizes: the model.
        mesh: the sizes of mesh axes.
        mappings: how parameters and computation are divided.
        batch: the number of sequences for each device.
        positions: the tokens of each sequence.
        kept: what is kept for the backward pass, or offloaded.
        source: where it was published.
        seconds: the published time of a step.
        teraflops: the published rate of a device, where no time is: of MaxText's count of operations, which counts all
            pairs of attention.
        memory: the published peak, in GiB.
        is_fitted: whether constants may be fitted on it.
        weights: the dtype of weights and of the state of the optimiser.
        is_whole: whether the loss has all scores in memory.
    """

    name: str
    sizes: Sizes
    mesh: Mapping[str, int]
    mappings: axn.Mappings
    batch: float
    positions: int
    kept: axn.ScanCheckpointPolicy
    source: str
    seconds: float = 0.0
    teraflops: float = 0.0
    memory: float | None = None
    is_fitted: bool = False
    weights: str = "float32"
    is_whole: bool = False

    @property
    def target(self) -> str:
        """The name of the target; torchtitan measures on H100s with 96 GB."""
        kind = self.name.partition(" ")[0]
        return "h100-96gb" if kind == "h100" else kind

    @property
    def devices(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def measured(self) -> float:
        """The published seconds of a step, also of a row that has a rate."""
        if self.seconds:
            return self.seconds
        one = self.sizes
        pairs = 2 * self.positions * one.heads * one.head_dim * one.layers
        return 6 * (one.products + pairs) * self.batch * self.positions / (1e12 * self.teraflops)

    def count(self, target: axn.partitioning.Target | None = None) -> Any:
        """Return the traced cost, for a target with other constants or for the known one."""
        known = target or axn.partitioning.TARGETS[self.target]
        if "slice" in self.mesh:
            known = known.resize_domains(self.mesh["data"])
        rows = round(self.batch * self.devices)
        given = make_arguments(self.sizes, self.kept, rows, self.positions, self.weights)
        step = make_step(is_whole=self.is_whole)
        return axn.cost(step, self.mappings, dict(self.mesh), *given, target=known, depth="traced")


def of_tokens(batch: float, positions: int, rate: float) -> float:
    """Return the seconds of a step from the published tokens per second and device."""
    return batch * positions / rate


def list_rows() -> Iterable[Row]:
    """Yield the published runs."""
    yield from list_v6e_rows()
    yield from list_other_rows()


def list_v6e_rows() -> Iterable[Row]:
    """Yield the published runs on v6e."""
    # AI-Hypercomputer/tpu-recipes, training/trillium/*/README.md: the time in the log, and the configuration.
    recipes = "tpu-recipes, trillium/"
    for chips, batch, seconds in (
        (8, 3, 3.443), (16, 3, 3.393), (32, 3, 3.495), (64, 5, 5.652), (128, 4, 4.602), (256, 4, 4.546),
    ):  # fmt: skip
        yield Row(
            f"v6e Llama 3.1 8B, {chips}", LLAMA_8B, {"data": chips}, FSDP, batch, 8192, OFFLOADED_QKVO,
            f"{recipes}Llama3.1-8B-MaxText/v6e-{chips}", seconds, is_fitted=chips == 16,
        )  # fmt: skip
    for chips, batch, seconds, weights in (
        (32, 2, 17.790, "bfloat16"), (64, 2, 18.688, "float32"), (128, 4, 34.786, "float32"),
        (256, 5, 42.656, "float32"),
    ):  # fmt: skip
        yield Row(
            f"v6e Llama 3.1 70B, {chips}", LLAMA_70B, {"data": chips}, FSDP, batch, 8192, OFFLOADED_QKV,
            f"{recipes}Llama3.1-70B-MaxText/v6e-{chips}", seconds, weights=weights, is_fitted=chips == 128,
        )  # fmt: skip
    # The configuration says a batch of 3, and the weights of its log are those of 2.
    yield Row(
        "v6e Llama 2 70B, 256", LLAMA2_70B, {"data": 256}, FSDP, 2, 4096,
        Policy(offload_block_internals=QKV), f"{recipes}Llama2-70B-MaxText", 9.052,
    )  # fmt: skip
    yield Row(
        "v6e Llama 3.1 405B, 2 x 256", LLAMA_405B, {"slice": 2, "data": 256}, OVER_SLICES, 1, 8192,
        Policy(save_carries="offload"), f"{recipes}Llama3.1-405B-MaxText", 54.803,
    )  # fmt: skip
    yield Row(
        "v6e Mistral 7B, 8", MISTRAL_7B, {"data": 8}, FSDP, 6, 8192, OFFLOADED_QKVO,
        f"{recipes}Mistral-7B-MaxText", 6.320,
    )  # fmt: skip
    yield Row(
        "v6e Mixtral 8x7B, 256", MIXTRAL, {"data": 256}, FSDP, 12, 4096, OFFLOADED_QKVO,
        f"{recipes}Mixtral-8x7B-MaxText", 13.484,
    )  # fmt: skip


def list_other_rows() -> Iterable[Row]:
    """Yield the published runs on v5p, v5e and H100."""
    # AI-Hypercomputer/maxtext, MaxText/configs/v5p: README.md and the scripts beside it. v5p-128 has 64 chips.
    for scale, chips, batch, tensor, kept, rate in (
        (32, 64, 6, 4, DOTS, 328), (64, 64, 3, 4, DOTS, 323), (128, 128, 1, 8, DOTS, 315), (128, 256, 1, 8, DOTS, 316),
        (256, 512, 1, 8, DOTS, 308), (512, 512, 2, 8, FULL, 294),
    ):  # fmt: skip
        yield Row(
            f"v5p {scale}B, {chips}", SCALED[scale], {"data": chips // tensor, "model": tensor}, TENSOR, batch, 2048,
            kept, f"maxtext, configs/v5p/{scale}b.sh", teraflops=rate, is_fitted=(scale, chips) == (32, 64),
        )  # fmt: skip
    # docs/reference/models/tiering.md; the script says v5p-512, which has 256 chips.
    yield Row(
        "v5p Llama 2 70B, 256", LLAMA2_70B, {"data": 256}, FSDP, 4, 4096,
        Policy(save_block_internals=[*QKV, "out", "down"]), "maxtext, tiering.md, configs/v5p/llama2_70b.sh",
        of_tokens(4, 4096, 692), is_fitted=True,
    )  # fmt: skip
    yield Row(
        "v5p Llama 3.1 405B, 512", LLAMA_405B, {"data": 512}, FSDP, 2, 8192,
        Policy(offload_block_internals=["context", "down"]), "tpu-recipes, v5p/Llama3.1-405B-MaxText", 131.474,
    )  # fmt: skip
    yield Row(
        "v5p Mixtral 8x7B, 128", MIXTRAL_ALL, {"data": 128}, FSDP, 36, 4096, FULL,
        "maxtext, tiering.md; tpu-recipes, v5p/Mixtral-8X7B-Maxtext", of_tokens(36, 4096, 2909), weights="bfloat16",
    )  # fmt: skip
    # MaxText/configs/v5e: README.md and the scripts beside it; slices have copies of the parameters.
    for scale, slices, batch, rate in (
        (16, 1, 6, 120),
        (32, 1, 4, 132),
        (32, 2, 4, 128),
        (32, 8, 4, 125),
        (64, 1, 2, 118),
    ):
        mesh = {"data": 256} if slices == 1 else {"slice": slices, "data": 256}
        yield Row(
            f"v5e {scale}B, {slices} x 256", SCALED[scale], mesh, FSDP if slices == 1 else IN_SLICES, batch, 2048,
            FULL, f"maxtext, configs/v5e/{scale}b.sh", teraflops=rate, is_fitted=(scale, slices) == (32, 1),
        )  # fmt: skip
    # pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3, compiled.
    for gpus, rate, memory in ((8, 6667, 77.0), (128, 6514, 62.0)):
        yield Row(
            f"h100 Llama 3.1 8B, {gpus}", LLAMA_8B, {"data": gpus}, FSDP, 2, 8192, SELECTIVE,
            "torchtitan, llama3_h100_202412", of_tokens(2, 8192, rate), memory=memory, is_whole=True,
            is_fitted=gpus == 8,
        )  # fmt: skip
    # The batch of a group of tensor parallelism is 16. torchtitan's async tensor parallelism is faster, 652.4.
    yield Row(
        "h100 Llama 3.1 70B, 32 x 8", LLAMA_70B, {"data": 32, "model": 8}, TENSOR, 2, 8192, FULL,
        "torchtitan, pull request 1299", of_tokens(2, 8192, 597.3), is_whole=True,
    )  # fmt: skip


def find_error(row: Row, cost: Any) -> float:
    """Return how much longer a run is expected to take than its authors measured, as a share."""
    return (cost.time.expected or math.inf) / row.measured - 1


def fit(rows: Sequence[Row]) -> float:
    """Return the share of products, in hundredths, with the least squares of the logarithms of errors."""
    costs = [(row, row.count()) for row in rows]

    def loss(share: float) -> float:
        total = 0.0
        for row, cost in costs:
            known = cost.target.efficiency
            # The H100 has a source for attention; on TPUs, it has the share of products.
            attention = share if known.attention == known.products else known.attention
            efficiency = dataclasses.replace(known, products=share, attention=attention)
            other = dataclasses.replace(cost, target=dataclasses.replace(cost.target, efficiency=efficiency))
            total += math.log1p(find_error(row, other)) ** 2
        return total

    return min((percent / 100 for percent in range(20, 101)), key=loss)


def write(row: Row, cost: Any) -> dict[str, str]:
    """Return a line of the table."""
    published = "" if row.memory is None else f"{row.memory * 2**30 / 1e9:.1f}"
    return {
        "run": row.name,
        "": "fitted" if row.is_fitted else "",
        "published, s": f"{row.measured:.3g}",
        "bound, s": f"{cost.time.seconds:.3g}",
        "expected, s": f"{cost.time.expected:.3g}",
        "error": f"{find_error(row, cost):+.0%}",
        "peak, GB": f"{cost.memory.peak / 1e9:.1f}",
        "published, GB": published,
        "fits": "no" if cost.problems else "yes",
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[""], help="how their names begin")
    parser.add_argument("--fit", action="store_true", help="print the share of products that the fitted rows lead to")
    options = parser.parse_args()
    rows = [row for row in list_rows() if row.name.startswith(tuple(options.rows))]
    if options.fit:
        for target in dict.fromkeys(row.target for row in rows):
            print(target, fit([row for row in rows if row.target == target and row.is_fitted]))
        return
    costs = [row.count() for row in rows]
    print(table([write(row, cost) for row, cost in zip(rows, costs, strict=True)]))
    errors = [abs(find_error(row, cost)) for row, cost in zip(rows, costs, strict=True) if not row.is_fitted]
    if errors:
        print(f"tested: {len(errors)}, median error {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
