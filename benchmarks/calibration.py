"""Compare what a calibrated target expects of mappings with what this machine takes for them.

    python benchmarks/calibration.py               8 simulated devices, 5 repetitions
    python benchmarks/calibration.py --rounds 1    one repetition

Each repetition calibrates anew, and measures a training step of a stack of perceptrons under 12 mappings. It prints the
rank correlation of expected and measured times, and at the end the median over the repetitions.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp  # noqa: E402
import perceptron  # noqa: E402
from measure import table  # noqa: E402

import axonym as axn  # noqa: E402
from axonym.costs.compiled.running import measure_run  # noqa: E402

MESH = {"data": 4, "model": 2}
BOTH = ("data", "model")
SPLIT = {"mlp": "model"}
MAPPINGS = {
    "nothing": axn.Mappings({}, {}),
    "rows on model": axn.Mappings({}, {"batch": "model"}),
    "rows on data": axn.Mappings({}, {"batch": "data"}),
    "rows on both": axn.Mappings({}, {"batch": BOTH}),
    "FSDP on data": axn.Mappings({"embed": "data"}, {"batch": "data"}),
    "FSDP on both": axn.Mappings({"embed": BOTH}, {"batch": BOTH}),
    "FSDP in groups": axn.Mappings({"embed": "model"}, {"batch": BOTH}),
    "layers on model": axn.Mappings(SPLIT, SPLIT),
    "layers on both": axn.Mappings({"mlp": BOTH}, {"mlp": BOTH}),
    "rows and layers": axn.Mappings(SPLIT, {"batch": "data", **SPLIT}),
    "FSDP and layers": axn.Mappings({"embed": "data", **SPLIT}, {"batch": "data", **SPLIT}),
    "rows, positions and layers": axn.Mappings(SPLIT, {"batch": "data", "sequence": "model", **SPLIT}),
}
SIZES = perceptron.Sizes(layers=2, embed=256, mlp=1024, positions=32, rows=16)


def make_arguments() -> tuple[Any, Any]:
    """Return a stack of perceptrons and its input, none of which exists."""
    stack = jax.eval_shape(lambda key: perceptron.init(SIZES, jnp.dtype("float32"), key=key), jax.random.key(0))
    shape = tuple(axis.size for axis in SIZES.Input)
    return stack, axn.NamedArray(jax.ShapeDtypeStruct(shape, jnp.float32), SIZES.Input)


def correlate(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the rank correlation of Spearman (1904), for numbers that all differ."""
    ranks = [[sorted(numbers).index(number) for number in numbers] for numbers in (one, other)]
    n = len(one)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(*ranks, strict=True)) / (n * (n * n - 1))


def repeat(given: Any) -> tuple[list[float], list[float]]:
    """Return the expected and the measured seconds of all mappings."""
    target = axn.partitioning.calibrate(MESH)
    print(target, flush=True)
    expected: list[float] = []
    measured: list[float] = []
    for mappings in MAPPINGS.values():
        step = axn.named_jit(perceptron.step, {})
        cost = axn.cost(step, mappings, MESH, *given, target=target, depth="traced")
        expected.append(cost.time.compared)
        measured.append(measure_run(step, mappings, MESH, given, {}))
    return expected, measured


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    given = make_arguments()
    found: list[float] = []
    for _ in range(options.rounds):
        expected, measured = repeat(given)
        rows = zip(MAPPINGS, expected, measured, strict=True)
        print(table([{"mapping": name, "expected, s": e, "measured, s": m} for name, e, m in rows]))
        found.append(correlate(expected, measured))
        print(f"rank correlation {found[-1]:.2f}\n", flush=True)
    print(f"median of {len(found)}: {statistics.median(found):.2f}")


if __name__ == "__main__":
    main()
