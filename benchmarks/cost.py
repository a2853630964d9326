"""Compare what `axn.cost` counts in a traced function with the program of a compiler, for decoders of examples/lm.

    python benchmarks/cost.py            GPT-2 and Llama of 4 layers on 8 simulated CPU devices, by strategies
    python benchmarks/cost.py --meshes   the step of a run: pipelines, split positions, experts
    python benchmarks/cost.py --target tpu   GPT-2 124M and that Llama on a v5e 2x4; needs libtpu, no TPU
    python benchmarks/cost.py --target tpu --meshes expert=4,data=2   the step of a run there
    python benchmarks/cost.py --large    the step of a Llama of 7 billion parameters on 256 devices, traced alone

Both depths count for the same target; that of CPU makes no reduce-scatter of an all-reduce. The compiled program is one
for Auto mesh axes. The program of GPT-2 124M for TPU takes minutes to compile.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "lm"))

import numpy as np
import optax
from costs import step_cost
from layouts import STRATEGIES, Strategy, abstract_mesh, layout_of, make_mesh, read_mesh
from measure import table
from rows import Windows, batch_of
from shapes import SHAPES
from trainer import Recipe, Trainer

import axonym as axn
from axonym.models import Decoder, DecoderConfig, ExpertsConfig

MESH = {"data": 4, "model": 2}
SMALL = DecoderConfig(vocab=512, layers=4, embed=128, mlp=384, heads=8, kv_heads=4, head_dim=16, positions=64)
MODELS = {"GPT-2": dataclasses.replace(SMALL.as_gpt2(), mlp=512, kv_heads=8), "Llama": SMALL}
TPU_MODELS = {"GPT-2 124M": dataclasses.replace(SHAPES["gpt2"], vocab=50304), "Llama": SMALL}
ROWS = {"GPT-2 124M": 64}
LARGE = DecoderConfig(
    vocab=32000, layers=32, embed=4096, mlp=11008, heads=32, kv_heads=32, head_dim=128, positions=4096
)
COMPARED: tuple[Strategy, ...] = ("dp", "fsdp", "tp", "fsdp+tp")
MIXTURE = dataclasses.replace(SMALL, experts=ExpertsConfig(8, 2, 192))
MESHES = (
    "data=8",
    "stage=4",
    "stage=4,data=2",
    "stage=2,data=2,model=2",
    "context=8",
    "context=4,data=2",
    "context=2,data=2,model=2",
    "stage=2,context=2,data=2",
    "expert=8",
    "expert=4,data=2",
    "expert=2,data=2,model=2",
    "stage=2,expert=4",
)
RECIPE = Recipe(warmup=1, microbatches=1, precision="params=float32,compute=float32,output=float32")
OPTIMIZER = optax.adamw(1e-3)


def step(model: Any, state: Any, tokens: Any) -> Any:
    """Take one step of AdamW."""
    value, grads = jax.value_and_grad(lambda model: model.loss(tokens).scalar())(model)
    updates, state = OPTIMIZER.update(grads, state, model)
    return optax.apply_updates(model, updates), state, value


def arguments(config: DecoderConfig, batch: int) -> tuple[Any, Any, Any]:
    """Return a model, the state of its optimiser and tokens, none of which exists."""
    model = jax.eval_shape(lambda key: Decoder.init(config, key=key), jax.random.key(0))
    state = jax.eval_shape(OPTIMIZER.init, model)
    tokens = jax.ShapeDtypeStruct((batch, config.positions + 1), np.int32)
    return model, state, axn.NamedArray(tokens, ("batch", "pos"))


def counted(config: DecoderConfig, strategy: Strategy, mesh: Any, batch: int, **options: Any) -> tuple[Any, float]:
    """Return the cost of a step, and the seconds that counting took."""
    mappings = axn.Mappings(*STRATEGIES[strategy])
    donating = axn.named_jit(step, mappings, donate_args=(True, True))
    given = arguments(config, batch)
    start = time.perf_counter()
    report = axn.cost(donating, mappings, mesh, *given, **options)
    return report, time.perf_counter() - start


def of_run(config: DecoderConfig, mesh: str, target: str, *, fsdp: bool, depth: Any) -> tuple[Any, float]:
    """Return the cost of a step of a run on a mesh by names, and the seconds that counting took."""
    sizes = read_mesh(mesh)
    # A target that is not here compiles for devices that need not exist.
    devices: Any = abstract_mesh(sizes)
    if target == "cpu":
        devices = make_mesh(sizes)
    trainer = Trainer(RECIPE, config, layout_of(sizes, fsdp=fsdp))
    text = Windows(np.zeros(5000, np.uint8), length=config.positions, seed=0)
    start = time.perf_counter()
    report = step_cost(trainer, devices, batch_of(text, 0, 16, 1), target, depth=depth)
    return report, time.perf_counter() - start


def in_short(name: str, traced: Any, compiled: Any, seconds: tuple[float, float]) -> dict[str, str]:
    """Return the row of one mesh: ratios of what is traced to what is compiled."""
    row = {"of": name}
    for what in ("flops", "bytes sent"):
        row[what] = f"{traced.totals[what] / max(1, compiled.totals[what]):.3f}"
    for what in ("temporary", "peak"):
        theirs = getattr(compiled.memory, what)
        # A small program for TPU is in its fast memory as a whole.
        row[what] = f"{getattr(traced.memory, what) / theirs:.2f}" if theirs else ""
    for which, report, own in zip(("traced", "compiled"), (traced, compiled), seconds, strict=True):
        row[f"unattributed, {which}"] = f"{report.unattributed:.2%}"
        row[f"seconds, {which}"] = f"{own:.1f}"
    return row


def runs(meshes: Iterable[str], target: str) -> Iterable[dict[str, str]]:
    """Yield the rows of meshes by names, without and with parameters that are divided by data, too."""
    for mesh in meshes:
        config = MIXTURE if "expert" in mesh else SMALL
        for fsdp in (False, True):
            if fsdp and "data" not in mesh:
                continue
            traced, own = of_run(config, mesh, target, fsdp=fsdp, depth="traced")
            compiled, theirs = of_run(config, mesh, target, fsdp=fsdp, depth="compiled")
            yield in_short(mesh + ", fsdp" * fsdp, traced, compiled, (own, theirs))


def sums(report: Any) -> dict[tuple[str, str], int]:
    """Return what a device sends by collective and mesh axes."""
    found: dict[tuple[str, str], int] = {}
    for one in report.communication:
        key = one.kind, ", ".join(one.mesh_axes)
        found[key] = found.get(key, 0) + one.sent
    return found


def rows_of(name: str, traced: Any, compiled: Any, seconds: tuple[float, float]) -> Iterable[dict[str, str]]:
    """Yield the rows of one strategy."""

    def row(what: str, ours: float, theirs: float) -> dict[str, str]:
        ratio = f"{ours / theirs:.3f}" if theirs else ""
        numbers = {"traced": f"{ours:,.6g}", "compiled": f"{theirs:,.6g}", "ratio": ratio}
        return {"of": name, "what": what, **numbers}

    for what in ("flops", "bytes sent", "bytes accessed"):
        yield row(what, traced.totals[what], compiled.totals[what])
    ours, theirs = sums(traced), sums(compiled)
    for kind, axes in sorted({*ours, *theirs}):
        yield row(f"{kind} over {axes}", ours.get((kind, axes), 0), theirs.get((kind, axes), 0))
    for what in ("seconds", "scheduled"):
        yield row(what, getattr(traced.time, what), getattr(compiled.time, what))
    hidden = [sum(one.hidden for one in report.communication) for report in (traced, compiled)]
    yield row("seconds of sending", traced.time.sending, compiled.time.sending)
    yield row("seconds hidden", *hidden)
    for what in ("arguments", "results", "donated", "temporary", "peak"):
        yield row(f"memory: {what}", getattr(traced.memory, what), getattr(compiled.memory, what))
    yield row("unattributed", traced.unattributed, compiled.unattributed)
    yield row("seconds to count", *seconds)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--meshes", nargs="*", help="these, or several of which some have more than one axis")
    parser.add_argument("--target", choices=["cpu", "tpu"], default="cpu")
    parser.add_argument("--models", help="names of models, with commas between them (default: all)")
    parser.add_argument("--strategies", default=",".join(COMPARED))
    parser.add_argument("--report", action="store_true", help="print the reports, too")
    options = parser.parse_args()
    if options.large:
        report, seconds = counted(LARGE, "fsdp+tp", {"data": 64, "model": 4}, 256, target="v5p", depth="traced")
        print(report)
        print(f"traced in {seconds:.1f} s")
        return
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    models, target = MODELS, "cpu"
    if options.target == "tpu":
        models, target = TPU_MODELS, "v5e"
    if options.meshes is not None:
        print(f"jax {jax.__version__}, traced to compiled")
        print(table(list(runs(options.meshes or MESHES, target))))
        return
    names = models
    if options.models:
        names = options.models.split(",")
    rows: list[dict[str, str]] = []
    for name in names:
        for strategy in options.strategies.split(","):
            given = models[name], strategy, MESH, ROWS.get(name, 16)
            traced, own = counted(*given, target=target, depth="traced")
            compiled, theirs = counted(*given, target=target)
            if options.target == "tpu" and not compiled.is_scheduled:
                sys.exit(f"without libtpu, the program is one for {compiled.compiler}: pip install libtpu")
            if options.report:
                print(traced, compiled, sep="\n\n")
            rows += rows_of(f"{name}, {strategy}", traced, compiled, (own, theirs))
    print(f"jax {jax.__version__}, mesh {MESH}")
    print(table(rows))


if __name__ == "__main__":
    main()
