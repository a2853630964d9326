"""A cost that was written by hand, and a compiled text."""

import dataclasses

from jax.sharding import PartitionSpec

from axonym.costs.report import Cost
from axonym.costs.shared.roofline import Sums, make_work
from axonym.costs.shared.rows import Collective, Kept, Memory
from axonym.partitioning import Link, Target
from axonym.report.show import ArrayLayout

TARGET = Target("t1", {"float32": 1e12}, memory=2**20, memory_bandwidth=1e9, link=Link(1e9))
GATHER = Collective("all-gather", ("data",), ("embed",), "blocks.up", "forward", 6, 4, 2**10, (16, 16), "f32", 2e-5)
SUM = Collective("all-reduce", ("data",), ("batch",), "blocks.up", "backward", 6, 4, 2**12, (64, 16), "f32", 4e-5)
LOST = dataclasses.replace(SUM, axes=(), layer="", phase="other", count=1, nbytes=4, shape=(), seconds=0.0)
WEIGHT = ArrayLayout(
    "model.blocks.up.weight",
    ("layers", "embed", "mlp"),
    (3, 64, 256),
    "float32",
    PartitionSpec(None, "data"),
    196608,
    49152,
    mesh=(("data", 4),),
)
MEMORY = Memory(49152, 98304, 1024, 50000, 49152, 20000)


def made(**changes: object) -> Cost:
    """Return the cost of a training step on four devices."""
    counted = {("blocks.up", "forward"): Sums(1e6, 1e-6, 1e3), ("blocks.up", "backward"): Sums(2e6, 2e-6, 2e5)}
    sent = changes.get("communication", (GATHER, SUM, LOST))
    cost = Cost(
        "step",
        "compiled",
        "cpu",
        TARGET,
        (("data", 4),),
        {"parameters": (WEIGHT,), "optimizer": (), "data": ()},
        sent,
        MEMORY,
        make_work(counted, sent, TARGET),
    )
    return dataclasses.replace(cost, **changes)


KEPT = Kept("blocks.up", ("batch", "mlp"), (16, 256), "bfloat16", 3, 3 * 16 * 256 * 2)
