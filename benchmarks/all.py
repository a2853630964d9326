"""Run what is compared with plain JAX, each row with its bar.

    python benchmarks/all.py            everything: the exact rows, then the scripts that time
    python benchmarks/all.py --exact    the exact rows alone, which are the same on any machine; fails if one misses

Exact rows are counts and sizes of programs. Times are ratios of interleaved runs, in the tables of the scripts that
measure them, which have bars of their own.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import raw_gpt2 as raw
from lm_cache import SPLIT, TINY, Programs, copies, mesh_of, sent
from measure import equations, flops_bytes, table
from partitioning import MODELS, Program, with_names, written_by_hand
from train_step import pair

import axonym as axn

# What may be sent beyond a shard_map by hand: there, vectors and a table of few rows are gathered once in a step.
BY_FSDP = {"fsdp": 1.02, "fsdp+tp": 1.05}
TIMED = ("start.py", "eager.py", "dispatch.py", "trace.py", "train_step.py", "layers.py", "lm_step.py", "lm_decode.py")
DEEP = raw.GPT2Config(vocab=64, layers=12, embed=32, heads=4, positions=16)
FORMS = {"scanned": False, "unrolled": True}


class Row(NamedTuple):
    """What was measured, and the largest number that is as good as asked for."""

    name: str
    value: float
    bar: float

    @property
    def is_met(self) -> bool:
        # Bars have two digits.
        return round(self.value, 3) <= self.bar


def of_equations() -> Iterator[Row]:
    """Count the equations of a training step of 12 layers, as a ratio to plain JAX."""
    for name, unrolled in FORMS.items():
        both = pair(DEEP, unrolled=unrolled)
        traced = both.axonym.trace(*both.axonym_args), both.raw.trace(*both.raw_args)
        mine, theirs = (len(list(equations(each.jaxpr.jaxpr))) for each in traced)
        yield Row(f"equations of a GPT-2 step, {name}", mine / theirs, 1.0)


def of_steps() -> Iterator[Row]:
    """Compare the compiled training step of 4 layers with plain JAX."""
    for name, unrolled in FORMS.items():
        mine, theirs = pair(unrolled=unrolled).compiled()
        memory = [each.memory_analysis().temp_size_in_bytes for each in (mine, theirs)]
        ours, usual = flops_bytes(mine), flops_bytes(theirs)
        yield Row(f"temporary memory of a GPT-2 step, {name}", memory[0] / memory[1], 0.65)
        yield Row(f"bytes accessed by a GPT-2 step, {name}", ours.bytes / usual.bytes, 0.85)
        yield Row(f"FLOPs of a GPT-2 step, {name}", ours.flops / usual.flops, 1.01)


def of_new_names() -> Iterator[Row]:
    """Count what is compiled by operations on known shapes under names that are new."""
    operations: dict[str, Callable[[axn.NamedArray, str], Any]] = {
        "add": lambda x, _: x + 1.0,
        "sum": lambda x, name: x.sum(name),
        "softmax": lambda x, name: axn.softmax(x, name),
        "dot": lambda x, name: axn.dot(x, x, axis=name),
        "index": lambda x, name: x[name, 1],
        "rearrange": lambda x, _: axn.rearrange(x, "i j -> j i"),
    }
    compiled: list[str] = []

    def listen(event: str, *_: float, **__: object) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    values = jnp.ones((2, 3))
    for operation in operations.values():
        operation(axn.named(values, ("a", "b")), "a")
    jax.monitoring.register_event_duration_secs_listener(listen)
    for number in range(10):
        for operation in operations.values():
            operation(axn.named(values, (f"a{number}", f"b{number}")), f"a{number}")
    jax.monitoring.unregister_event_duration_listener(listen)
    yield Row("programs compiled for ten new names", len(compiled), 0)


def of_layouts() -> Iterator[Row]:
    """Compare what a device sends with JAX by hand: where the compiler partitions programs, and in a shard_map."""
    for model in ("gpt2", "mlp"):
        case = MODELS[model](False)
        for strategy in ("dp", "fsdp", "tp", "fsdp+tp"):
            mine = _least_sent(with_names(case, strategy), ("Axonym, auto", "Axonym, auto, fsdp"))
            theirs = _least_sent(written_by_hand(case, strategy, ("auto", "auto, whole")))
            yield Row(f"bytes sent by {model} under {strategy}", mine / theirs, 1.0)
        for strategy, bar in BY_FSDP.items():
            theirs = _least_sent(written_by_hand(case, strategy, ("manual",)))
            mine = _least_sent(with_names(case, strategy), ("Axonym, manual",))
            yield Row(f"bytes sent by {model} under {strategy}, in a shard_map", mine / theirs, 1.0)
            mine = _least_sent(with_names(case, strategy), ("Axonym, auto, fsdp, manual",))
            yield Row(f"bytes sent by {model} under {strategy}, fsdp(manual=True)", mine / theirs, bar)


def _least_sent(programs: Iterator[Program], among: tuple[str, ...] = ()) -> float:
    """Return the megabytes of the program that sends least; of all, or of those with these labels."""
    sent: list[float] = []
    for program in programs:
        if not among or program.label in among:
            sent.append(program.costs()["wire MB"])
    return min(sent)


def of_caches() -> Iterator[Row]:
    """Count the copies of all keys or values of all layers, while tokens are added to a cache."""
    programs = Programs(TINY, batch=2, places=320)
    whole = programs.elements * TINY.layers
    for name, lengths in {"one length": False, "a length for each": True}.items():
        yield Row(f"copies of the cache in a step of decoding, {name}", copies(programs.step(lengths), whole), 0)
        in_loops = copies(programs.loop(lengths), whole, of_loops=True)
        yield Row(f"copies of the cache while text is generated, {name}", in_loops, 0)
    programs = Programs(TINY, batch=4, places=320)
    part = programs.elements // 8
    for name, mapping in SPLIT.items():
        text = programs.split_step(True, mapping, mesh_of(jax.devices()))
        found = copies(text, part * TINY.layers) + sent(text, part)
        yield Row(f"copies and collectives of the cache in a step of decoding, split {name}", found, 0)


def exact() -> list[Row]:
    """Measure all exact rows."""
    found: list[Row] = []
    for rows in (of_equations, of_steps, of_new_names, of_caches, of_layouts):
        found += rows()
    return found


def main() -> None:
    """Print the tables; exit with 1 if an exact row misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact", action="store_true", help="only what is the same on any machine")
    is_exact = parser.parse_args().exact
    jax.config.update("jax_num_cpu_devices", 8)
    rows = exact()
    lines: list[dict[str, str]] = []
    for row in rows:
        met = "" if row.is_met else "missed"
        lines.append({"row": row.name, "ratio or count": f"{row.value:.3f}", "bar": f"{row.bar:g}", "": met})
    print(table(lines), flush=True)
    if not is_exact:
        for script in TIMED:
            print(f"\n## {script}\n", flush=True)
            subprocess.run([sys.executable, str(Path(__file__).parent / script)], check=True)
    sys.exit(not all(row.is_met for row in rows))


if __name__ == "__main__":
    main()
