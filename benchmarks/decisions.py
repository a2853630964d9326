"""Plan training steps of Llama 3.1 70B with all decisions together, and compare with rules that are published.

    python benchmarks/decisions.py                      all cases
    python benchmarks/decisions.py --cases v5p-256      one of them
    python benchmarks/decisions.py --limit 100          count fewer mappings

A plan decides on the mesh, the mappings of parameters, computation and optimiser, pipelines and their microbatches, the
number of parts whose gradients are added up, and what each layer keeps for the backward pass. Each rule has the
mappings, the mesh and the policy of its source, and the best number of parts. All is traced: no device needs to exist.
"""

import argparse
import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from llama import make_arguments, make_step
from measure import table
from plan import rank
from published import DOTS, FSDP, FULL, LLAMA_70B, SELECTIVE, TENSOR

import axonym as axn

PARTS = (1, 2, 4)
POLICIES = axn.partitioning.EachLayer([FULL, DOTS, False], LLAMA_70B.layers)


class Case(NamedTuple):
    """A step on some devices.

    Attributes:
        target: the device.
        devices: their number.
        rows: the number of sequences.
        positions: the tokens of each.
        widths: the numbers of devices along the mesh axis `model` that rules of tensor parallelism have.
        source: where batch and rules are from.
    """

    target: str
    devices: int
    rows: int
    positions: int
    widths: tuple[int, ...]
    source: str


CASES = {
    # MaxText/configs/v5p/llama2_70b.sh has four sequences for each device.
    "v5p-256": Case("v5p", 256, 1024, 4096, (4, 8), "MaxText"),
    # torchtitan, pull request 1299: 32 x 8, 16 sequences for each group of tensor parallelism.
    "h100-256": Case("h100-96gb", 256, 512, 8192, (8,), "torchtitan"),
    # Austin et al. (2025), How to scale your model, "Training Llama 3": 1024 x 4096 tokens, TP over 8 or 16.
    "v5p-8192": Case("v5p", 8192, 1024, 4096, (8, 16), "the scaling book"),
}


@functools.cache
def make_built_step(parts: int) -> Any:
    """Return a step, the same object each time, so that its traces are kept."""
    return make_step(is_whole=False, parts=parts)


def build(case: Case, *, checkpointing: Any, parts: int) -> tuple[Any, ...]:
    """Return the step of some choices, and its arguments."""
    policy = axn.ScanCheckpointPolicy.make(checkpointing)
    return make_built_step(parts), *make_arguments(LLAMA_70B, policy, case.rows, case.positions)


def list_rules(case: Case) -> Iterator[tuple[str, axn.Mappings, Mapping[str, int], Any]]:
    """Yield published mappings with their meshes, and what their layers keep."""
    for title, policy in (("all recomputed", FULL), ("products kept", DOTS), ("selective", SELECTIVE)):
        yield f"FSDP, {title}", FSDP, {"data": case.devices}, policy
        for width in case.widths:
            mesh = {"data": case.devices // width, "model": width}
            yield f"FSDP + TP {width}, {title}", TENSOR, mesh, policy


def count_rules(case: Case) -> Iterator[tuple[str, Any]]:
    """Yield the rules with their costs, with the best number of parts of the batch."""
    for title, mappings, mesh, policy in list_rules(case):
        costs = []
        for parts in PARTS:
            fn, *given = build(case, checkpointing=policy, parts=parts)
            try:
                costs.append(axn.cost(fn, mappings, mesh, *given, target=case.target, depth="traced"))
            except (axn.errors.AxonymError, ValueError):
                # The mesh does not divide the rows.
                continue
        if costs:
            yield title, min(costs, key=rank)


def write(name: str, what: str, cost: Any) -> dict[str, str]:
    """Return a row of the table."""
    return {
        "case": name,
        "by": what,
        "mesh": " x ".join(str(size) for _, size in cost.mesh),
        "s, expected": f"{cost.time.compared:.3f}",
        "GB at the peak": f"{cost.memory.peak / 1e9:.1f}",
        "fits": "no" if cost.problems else "yes",
    }


def compare(name: str, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Plan a step, print the plan, and yield its row and those of rules."""
    case = CASES[name]
    start, computed = time.perf_counter(), time.process_time()
    found = axn.plan(
        functools.partial(build, case),
        case.devices,
        target=case.target,
        limit=options.limit,
        verify=0,
        pipelined=("layers", "batch") if options.pipelines else None,
        choices={"checkpointing": POLICIES, "parts": PARTS},
    )
    seconds, computed = time.perf_counter() - start, time.process_time() - computed
    print(f"{name}, {seconds:.0f} s, {computed:.0f} s of the processor, gap {found.gap:.1%}\n{found}\n", flush=True)
    yield {**write(name, "planned", found.best.cost), "processor": f"{computed:.0f} s"}
    for title, cost in count_rules(case):
        yield write(name, title, cost)


def main() -> None:
    """Print the plans, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--pipelines", action="store_true", help="try pipelines, too")
    options = parser.parse_args()
    print(table([row for name in options.cases for row in compare(name, options)]))


if __name__ == "__main__":
    main()
