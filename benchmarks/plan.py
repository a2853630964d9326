"""Compare what `axn.plan` finds with the rules that code bases of experts publish for such models.

    python benchmarks/plan.py                     GPT-2 124M, Llama 7B and 70B, Mixtral 8x7B on 8, 64 and 256 devices
    python benchmarks/plan.py --cases llama-7b-64 one of them
    python benchmarks/plan.py --limit 60          count fewer mappings
    python benchmarks/plan.py --cases gpt2-8 --verify 2   compile the best two for TPUs, and each rule; needs libtpu
    python benchmarks/plan.py --others            other models and machines, with 200 mappings; or some of them by name

Else, all is traced, for meshes of TPUs that need not exist. The plan is given the number of devices alone, and chooses
the mesh, too. Each rule is counted on all meshes that it is written for, and its best one is shown. The column
`processor` is the time of the processor that the plan took.
"""

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from book import Token
from cost import arguments, step  # which also finds examples/lm
from llama import make_arguments, make_step
from measure import table
from published import FULL, LLAMA_8B, LLAMA_405B, MIXTRAL
from vision import make_bert, make_unet, make_vit

import axonym as axn

from shapes import SHAPES  # isort: skip
from axonym.models import DecoderConfig, ExpertsConfig  # isort: skip

# A title, the mappings, and the mesh of a rule.
Ruled: TypeAlias = tuple[str, axn.Mappings, Mapping[str, int]]
HEADS = {"mlp": "model", "kv_heads": "model"}
WIDE = {"vocab": "model", **HEADS}
ALL = ("data", "model")
LLAMA_1B = dataclasses.replace(LLAMA_8B, layers=16, embed=2048, mlp=8192, head_dim=64)


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


class Other(NamedTuple):
    """A step with rules of its own.

    Attributes:
        build: makes the step and its arguments.
        target: the device.
        devices: their number.
        rules: yields the rules for so many devices, each with its mappings and its mesh.
        slices: the number of slices.
    """

    build: Callable[[], tuple[Any, ...]]
    target: str
    devices: int
    rules: Callable[[int], Iterator[Ruled]]
    slices: int = 1


def list_rules(
    devices: int, heads: str = "kv_heads", scores: str = "vocab", *, of_experts: bool = False
) -> Iterator[Ruled]:
    """Yield the rules above for other axes; as in Megatron-LM, tensor parallelism shards positions between layers."""
    names = {"kv_heads": heads, "vocab": scores}
    for title, rule in RULES.items():
        if rule.of_experts and not of_experts:
            continue
        stored, computed = (
            {names.get(name, name): entry for name, entry in mapping.items()}
            for mapping in (rule.parameters, rule.compute)
        )
        if "mlp" in computed:
            computed["pos"] = axn.partitioning.if_free("model")
        for width in WIDTHS if rule.is_wide else (1,):
            yield title, axn.Mappings(stored, computed), {"data": devices // width, "model": width}


def list_groups(devices: int) -> Iterator[Ruled]:
    """Yield the rules above, and HSDP of torchtitan, `data_parallel_shard_degree`, whose groups are several nodes."""
    yield from list_rules(devices)
    for size in (16, 32, 64, 128):
        mappings = axn.Mappings({"embed": "model"}, {"batch": ALL})
        yield "HSDP", mappings, {"data": devices // size, "model": size}


def list_hybrid(devices: int, slices: int) -> Iterator[Ruled]:
    """Yield rules of several slices: parameters are sharded in each, or over all."""
    both = "slice", "data"
    along = {**HEADS, "vocab": "model"}
    for width in (1, *WIDTHS):
        mesh = {"slice": slices, "data": devices // slices // width, "model": width}
        own = along if width > 1 else {}
        spread = {"pos": axn.partitioning.if_free("model")} if width > 1 else {}
        for title, stored in (("HSDP", "data"), ("FSDP over slices", both)):
            mappings = axn.Mappings({"embed": stored, **own}, {"batch": both, **spread, **own})
            yield title + " + TP" * (width > 1), mappings, mesh


def list_images(devices: int) -> Iterator[Ruled]:
    """Yield rules of convolutions: rows of pixels are on several devices, each with all or a part of the weights."""
    yield "data parallel", axn.Mappings({}, {"batch": "data"}), {"data": devices}
    yield "FSDP", axn.Mappings({"channels": "data"}, {"batch": "data"}), {"data": devices}
    for width in WIDTHS:
        mesh = {"data": devices // width, "model": width}
        yield "spatial", axn.Mappings({}, {"batch": "data", "height": "model"}), mesh
        yield "FSDP + spatial", axn.Mappings({"channels": "data"}, {"batch": "data", "height": "model"}), mesh


def list_serving(devices: int) -> Iterator[Ruled]:
    """Yield rules of inference, Pope et al. (2022): weights along one or two mesh axes, and caches along either."""
    along = {**HEADS, "vocab": "model"}
    wide = {"kv_heads": "model", "mlp": ALL, "vocab": ALL}
    for width in WIDTHS:
        mesh = {"data": devices // width, "model": width}
        yield "TP, replicas", axn.Mappings(along, {"batch": "data", **along}), mesh
        yield "1D, groups of heads", axn.Mappings({**wide, "group": "data"}), mesh
        yield "1D, places of the cache", axn.Mappings(wide, {**wide, "pos.key": "data"}), mesh
        rows = {"embed": "data", "batch": axn.partitioning.if_free("data")}
        yield "2D, sequences of the cache", axn.Mappings({"embed": "data", **along}, {**rows, **along}), mesh


def make_llama_step(sizes: Any, rows: int, positions: int) -> tuple[Any, ...]:
    """Return a step that recomputes all layers, with its arguments."""
    return make_step(is_whole=False), *make_arguments(sizes, FULL, rows, positions)


def serve(rows: int, places: int, new: int) -> tuple[Any, ...]:
    """Return a step of a Llama 3 70B that reads some tokens of each sequence."""
    return Token("v5p", 1, rows, places).make_step(new)


EXPERTS = functools.partial(list_rules, of_experts=True)
ENCODERS = functools.partial(list_rules, heads="heads")
IMAGES = functools.partial(list_rules, heads="heads", scores="classes")
OTHERS = {
    "llama-3-8b, 64 v5p": Other(lambda: make_llama_step(LLAMA_8B, 64, 8192), "v5p", 64, list_rules),
    "llama-3-405b, 2048 h100": Other(lambda: make_llama_step(LLAMA_405B, 1024, 8192), "h100", 2048, list_rules),
    "llama-3-8b, 512 h100": Other(lambda: make_llama_step(LLAMA_8B, 512, 2048), "h100", 512, list_groups),
    "llama-3-1b, 512 b200": Other(lambda: make_llama_step(LLAMA_1B, 256, 4096), "b200", 512, list_groups),
    "llama-3-8b, 4 x 64 v6e": Other(
        lambda: make_llama_step(LLAMA_8B, 256, 2048), "v6e", 256, functools.partial(list_hybrid, slices=4), 4
    ),
    "mixtral, 64 h100": Other(lambda: make_llama_step(MIXTRAL, 64, 4096), "h100", 64, EXPERTS),
    "bert-large, 64 v5e": Other(lambda: make_bert(2048, 512), "v5e", 64, ENCODERS),
    "vit-l, 32 v6e": Other(lambda: make_vit(24, 1024, 4096, 256), "v6e", 32, IMAGES),
    "vit-h, 256 v6e": Other(lambda: make_vit(32, 1280, 512, 1024), "v6e", 256, IMAGES),
    "u-net, 32 v5e": Other(lambda: make_unet(256, 256, 64), "v5e", 32, list_images),
    "u-net, 64 v5e, 16 images": Other(lambda: make_unet(128, 16, 256), "v5e", 64, list_images),
    "prefill, 8 h100": Other(lambda: serve(8, 4096, 2048), "h100", 8, list_serving),
    "decode, 8 h100": Other(lambda: serve(32, 8192, 1), "h100", 8, list_serving),
    "decode one, 8 h100": Other(lambda: serve(1, 8192, 1), "h100", 8, list_serving),
    "decode, 16 v5e": Other(lambda: serve(16, 4096, 1), "v5e", 16, list_serving),
}


def compare_other(name: str, limit: int) -> Iterator[dict[str, str]]:
    """Yield the row of a plan, of the fastest rule that fits, and of the one with least memory within 1 % of it."""
    case = OTHERS[name]
    fn, *given = case.build()
    computed = time.process_time()
    options: dict[str, Any] = {"target": case.target, "limit": limit, "verify": 0, "slices": case.slices}
    found = axn.plan(fn, case.devices, *given, **options)
    computed = time.process_time() - computed
    print(f"{name}, {computed:.0f} s of the processor\n{found}\n", flush=True)
    yield {**row(name, "planned", found.best.cost), "processor": f"{computed:.0f} s"}
    target = axn.partitioning.TARGETS[case.target]
    if case.slices > 1:
        target = target.resize_domains(case.devices // case.slices)
    costs: dict[str, Any] = {}
    for title, mappings, mesh in case.rules(case.devices):
        width = mesh.get("model", 1)
        try:
            cost = axn.cost(fn, mappings, mesh, *given, target=target, depth="traced")
        except (axn.errors.AxonymError, ValueError):
            # An axis that the step lacks, or that the mesh does not divide.
            continue
        if not cost.problems:
            costs[title + f" {width}" * (width > 1)] = cost
    if costs:
        fastest = min(cost.time.compared for cost in costs.values())
        near = {title: cost for title, cost in costs.items() if cost.time.compared <= 1.01 * fastest}
        least = min(near.items(), key=lambda one: one[1].memory.peak)
        for title, cost in dict((min(near.items(), key=lambda one: one[1].time.compared), least)).items():
            yield row(name, title, cost)


def main() -> None:
    """Print the plans, and a table."""
    cases = {f"{name}-{devices}": (name, devices) for name in MODELS for devices in DEVICES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=cases, default=list(cases))
    parser.add_argument("--others", nargs="*", choices=OTHERS, help="other models and machines")
    parser.add_argument("--limit", type=int, help="default: 100, and 200 for others")
    parser.add_argument("--verify", type=int, default=0, help="how many mappings of a plan to compile")
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    if options.others is not None:
        for name in options.others or OTHERS:
            rows += compare_other(name, options.limit or 200)
        print(table(rows))
        return
    options.limit = options.limit or 100
    for name in options.cases:
        model, devices = cases[name]
        rows += rows_of(name, MODELS[model], devices, options)
    print(table(rows))


if __name__ == "__main__":
    main()
