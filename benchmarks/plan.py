"""Compare what `axn.plan` finds with the rules that code bases of experts publish for such models.

    python benchmarks/plan.py                     GPT-2 124M, Llama 7B and 70B, Mixtral 8x7B on 8, 64 and 256 devices
    python benchmarks/plan.py --cases llama-7b-64 one of them
    python benchmarks/plan.py --limit 60          count fewer mappings
    python benchmarks/plan.py --cases gpt2-8 --verify 2   compile the best two for TPUs, and each rule; needs libtpu

Else, all is traced, for meshes of TPUs that need not exist. The plan is given the number of devices alone, and chooses
the mesh, too. Each rule is counted on all meshes that it is written for, and its best one is shown. The column
`processor` is the time of the processor that the plan took.
"""

import argparse
import dataclasses
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from cost import arguments, step  # which also finds examples/lm
from measure import table

import axonym as axn

from shapes import SHAPES  # isort: skip
from axonym.models import DecoderConfig, ExpertsConfig  # isort: skip

HEADS = {"mlp": "model", "kv_heads": "model"}
WIDE = {"vocab": "model", **HEADS}
ALL = ("data", "model")


class Rule(NamedTuple):
    """A mapping that an expert has written down, in the names of examples/lm.

    Attributes:
        source: where.
        parameters: the mapping of what is stored.
        compute: the mapping of the computation.
        is_wide: whether the mesh axis `model` may have several devices.
        of_experts: whether it is for mixtures of experts.
    """

    source: str
    parameters: dict[str, Any]
    compute: dict[str, Any]
    is_wide: bool = True
    of_experts: bool = False


RULES = {
    # Parameters on every device, as in nanoGPT, karpathy/nanoGPT, train.py: DistributedDataParallel.
    "data parallel": Rule("nanoGPT", {}, {"batch": "data"}, is_wide=False),
    # stanford-crfm/levanter, config/gpt2_small.yaml and src/levanter/trainer.py: batch_axis "batch", fsdp_axis "embed",
    # model_axis_size 1. The same as MaxText's default, AI-Hypercomputer/maxtext, MaxText/configs/base.yml:
    # ici_fsdp_parallelism -1, with "embed" on "fsdp" and "activation_batch" on it. Rajbhandari et al. (2020), ZeRO.
    "FSDP": Rule("Levanter, MaxText", {"embed": "data"}, {"batch": "data"}, is_wide=False),
    # The same file of MaxText with ici_fsdp_parallelism of a few devices and data parallelism between such groups.
    "FSDP in groups": Rule("MaxText", {"embed": "model"}, {"batch": ALL}),
    # levanter/config/*/llama*.yaml: tensor_parallel_axes ["mlp", "heads"], beside fsdp_axis "embed".
    "FSDP + TP, 2 axes": Rule("Levanter", {"embed": "data", **HEADS}, {"batch": "data", **HEADS}),
    # google-research/t5x, t5x/partitioning.py: standard_logical_axis_rules(parameter_partitioning_dims=2); and
    # young-geng/EasyLM, EasyLM/models/llama/llama_model.py: get_partition_rules; and MaxText's rules with several
    # devices along "fsdp" and "tensor", but for "activation_embed", which is an axis of weights, too, here.
    "FSDP + TP": Rule("t5x, EasyLM, MaxText", {"embed": "data", **WIDE}, {"batch": "data", **WIDE}),
    # Shoeybi et al. (2019), Megatron-LM; t5x: standard_logical_axis_rules(parameter_partitioning_dims=1).
    "TP": Rule("Megatron-LM, t5x", WIDE, {"batch": "data", **WIDE}),
    # Lepikhin et al. (2021), GShard, section 3.2; t5x/contrib/moe/partitioning.py: batch on ("data", "expert").
    "experts": Rule("GShard, t5x", {"experts": "model"}, {"batch": ALL, "experts": "model"}, of_experts=True),
    # MaxText/configs/base.yml: "exp" on "expert", "embed" on "fsdp", "activation_batch" on both.
    "FSDP + experts": Rule(
        "MaxText", {"embed": "data", "experts": "model"}, {"batch": ALL, "experts": "model"}, of_experts=True
    ),
}


class Case(NamedTuple):
    """A step on some devices.

    Attributes:
        config: the model.
        rows: the number of sequences for each device.
        target: the device.
    """

    config: DecoderConfig
    rows: int
    target: str


MODELS = {
    # A vocabulary that many devices divide, as nanoGPT and Levanter round it.
    "gpt2": Case(dataclasses.replace(SHAPES["gpt2"], vocab=50304), 8, "v5e"),
    "llama-7b": Case(SHAPES["llama-7b"], 1, "v5p"),
    "llama-70b": Case(SHAPES["llama-70b"], 1, "v5p"),
    # Jiang et al. (2024), Mixtral of experts.
    "mixtral": Case(dataclasses.replace(SHAPES["llama-7b"], kv_heads=8, experts=ExpertsConfig(8, 2, 14336)), 1, "v5p"),
}
DEVICES = (8, 64, 256)
# Along `model`: the devices of a host, and half of them.
WIDTHS = (2, 4, 8)


def cost_of(rule: Rule, case: Case, devices: int, given: Any) -> Any:
    """Return the cost of a rule on the mesh that is best for it; None if it is for no mesh."""
    best = None
    for width in WIDTHS if rule.is_wide else (1,):
        mesh = {"data": devices // width, "model": width}
        try:
            cost = counted(axn.Mappings(rule.parameters, rule.compute), mesh, case, given)
        except (axn.errors.AxonymError, ValueError):
            # An axis that the mesh does not divide.
            continue
        if best is None or rank(cost) < rank(best):
            best = cost
    return best


def counted(mappings: axn.Mappings, mesh: dict[str, int], case: Case, given: Any) -> Any:
    """Count a step."""
    return axn.cost(donating(), mappings, mesh, *given, target=case.target, depth="traced")


def donating() -> Any:
    """Return the step, which donates what it replaces."""
    return axn.named_jit(step, {}, donate_args=(True, True))


def rank(cost: Any) -> tuple[float, ...]:
    """Return what decides: bytes that do not fit, then seconds."""
    return max(0, cost.memory.peak - cost.target.memory), cost.time.compared


def row(case: str, what: str, cost: Any) -> dict[str, str]:
    """Return a row of the table."""
    return {
        "case": case,
        "mappings": what,
        "mesh": " x ".join(str(size) for _, size in cost.mesh),
        "ms": f"{1e3 * cost.time.compared:.0f}",
        "GB sent": f"{cost.totals['bytes sent'] / 1e9:.2f}",
        "GB at the peak": f"{cost.memory.peak / 1e9:.1f}",
        "fits": "no" if cost.problems else "yes",
    }


def compiled_row(cost: Any) -> dict[str, str]:
    """Return what a row has more, where the step was compiled."""
    return {
        "ms, compiled": f"{1e3 * cost.time.scheduled:.0f}",
        "GB sent, compiled": f"{cost.totals['bytes sent'] / 1e9:.2f}",
        "GB at the peak, compiled": f"{cost.memory.peak / 1e9:.1f}",
    }


def compiled(rule: Rule, traced: Any, case: Case, given: Any) -> dict[str, str]:
    """Compile a step by a rule, on the mesh of its traced cost."""
    mappings = axn.Mappings(rule.parameters, rule.compute)
    try:
        cost = axn.cost(donating(), mappings, dict(traced.mesh), *given, target=case.target)
    except axn.errors.AxonymError as error:
        return {"ms, compiled": error.problem}
    return compiled_row(cost)


def rows_of(name: str, case: Case, devices: int, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Plan a step, print the plan, and yield its row and those of the rules."""
    given = arguments(case.config, case.rows * devices)
    start, computed = time.perf_counter(), time.process_time()
    found = axn.plan(donating(), devices, *given, target=case.target, limit=options.limit, verify=options.verify)
    seconds, computed = time.perf_counter() - start, time.process_time() - computed
    print(f"{name}, {seconds:.0f} s, {computed:.0f} s of the processor\n{found}\n", flush=True)
    more: dict[str, str] = {}
    if found.best.compiled is not None:
        more = compiled_row(found.best.compiled)
    yield {**row(name, "planned", found.best.cost), "processor": f"{computed:.0f} s", **more}
    for title, rule in RULES.items():
        if rule.of_experts and case.config.experts is None:
            continue
        cost = cost_of(rule, case, devices, given)
        if cost is None:
            continue
        more = {}
        if found.is_verified:
            more = compiled(rule, cost, case, given)
        yield {**row(name, f"{title}: {rule.source}", cost), **more}


def main() -> None:
    """Print the plans, and a table."""
    cases = {f"{name}-{devices}": (name, devices) for name in MODELS for devices in DEVICES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=cases, default=list(cases))
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--verify", type=int, default=0, help="how many mappings of a plan to compile")
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    for name in options.cases:
        model, devices = cases[name]
        rows += rows_of(name, MODELS[model], devices, options)
    print(table(rows))


if __name__ == "__main__":
    main()
