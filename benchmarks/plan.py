"""Compare what `axn.plan` finds with strategies that are written by hand, for steps of a GPT-2 and a Llama.

    python benchmarks/plan.py                   GPT-2 124M on 8 devices, Llama 7B on 64 and 256
    python benchmarks/plan.py --cases 7b-64     one of them
    python benchmarks/plan.py --limit 200       count more mappings

All is traced, for meshes of TPUs that need not exist. The strategies are those of examples/lm/layouts.py: fully sharded
as in Rajbhandari et al. (2020), ZeRO, stage 3; tensor parallel as in Shoeybi et al. (2019), Megatron-LM; and both.
"""

import argparse
import dataclasses
import time
from typing import Any, NamedTuple

from cost import LARGE, SMALL, arguments, step  # which also finds examples/lm
from measure import table

import axonym as axn

from config import DecoderConfig  # isort: skip
from layouts import STRATEGIES, Strategy  # isort: skip

GPT2 = dataclasses.replace(
    SMALL.as_gpt2(),
    vocab=50304,
    layers=12,
    embed=768,
    mlp=3072,
    heads=12,
    kv_heads=12,
    head_dim=64,
    positions=1024,
)
BY_HAND: tuple[Strategy, ...] = ("dp", "fsdp", "tp", "fsdp+tp")


class Case(NamedTuple):
    """A step on a mesh.

    Attributes:
        config: the model.
        mesh: the sizes of the mesh axes.
        batch: the number of sequences.
        target: the device.
    """

    config: DecoderConfig
    mesh: dict[str, int]
    batch: int
    target: str


CASES = {
    "gpt2-8": Case(GPT2, {"data": 4, "model": 2}, 64, "v5e"),
    "7b-64": Case(LARGE, {"data": 16, "model": 4}, 64, "v5p"),
    "7b-256": Case(LARGE, {"data": 64, "model": 4}, 256, "v5p"),
}


def row(case: str, what: str, cost: Any) -> dict[str, str]:
    """Return a row of the table."""
    return {
        "case": case,
        "mappings": what,
        "ms": f"{1e3 * cost.time.seconds:.0f}",
        "GB sent": f"{cost.totals['bytes sent'] / 1e9:.2f}",
        "GB at the peak": f"{cost.memory.peak / 1e9:.1f}",
        "fits": "no" if cost.problems else "yes",
    }


def main() -> None:
    """Print the plans, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--limit", type=int, default=100)
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    for name in options.cases:
        case = CASES[name]
        given = arguments(case.config, case.batch)
        donating = axn.named_jit(step, {}, donate_args=(True, True))
        start = time.perf_counter()
        found = axn.plan(donating, case.mesh, *given, target=case.target, limit=options.limit)
        print(f"{name}, {time.perf_counter() - start:.0f} s\n{found}\n", flush=True)
        rows.append(row(name, "planned", found.best.cost))
        for strategy in BY_HAND:
            mappings = axn.Mappings(*STRATEGIES[strategy])
            cost = axn.cost(donating, mappings, case.mesh, *given, target=case.target, depth="traced")
            rows.append(row(name, strategy, cost))
    print(table(rows))


if __name__ == "__main__":
    main()
