"""On Explicit mesh axes, a compiled program sends at most what it sends on Auto ones, where the compiler decides all.

Rows are those of the tables of `tests/ops` and of the layers. Each axis that divides is split over `data`, one at a
time: what an operation works along, and what it does not. A usual run looks at one row of each table; `--all-rows`
looks at all, and `python tests/test_traffic.py` prints what each sends.
"""

import dataclasses
import functools
import importlib
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
from measure import collectives, wire_bytes

import axonym as axn
from tests.laws import SIZES, Row, operands, placed
from tests.sample import SEED

pytestmark = pytest.mark.sampled

TABLES = sorted(path.stem for path in (Path(__file__).parent / "ops").glob("test_*.py"))
# Parts of axes have several elements, so that a border is less than a part; rows that index need their own sizes.
LARGE = {"a": 16, "b": 16, "c": 8, "i": 32, "m": 8, "n": 8}

UNEVEN = "the new size does not divide: the result is whole along the axis, and otherwise as the array"
EXCEPTIONS = {
    ("diag", "b"): "both axes of the result are new, and whole",
    ("diff-ends", "i"): UNEVEN,
    ("insert-scalar, slice", "a"): UNEVEN,
    ("insert-several at one position", "i"): UNEVEN,
    ("lstsq", "i"): "matrices are gathered first, and not some of what is computed from them",
    ("lstsq-rcond", "i"): "matrices are gathered first, and not some of what is computed from them",
}

Meshes = Sequence[jax.sharding.Mesh]


@functools.cache
def rows_of(table: str) -> tuple[Row, ...]:
    found: dict[str, Row] = {}
    for value in vars(importlib.import_module(f"tests.ops.{table}")).values():
        if isinstance(value, list) and value and all(isinstance(each, Row) for each in value):
            found.update({str(row): row for row in value})
    return tuple(found.values())


def sent(call: Callable[..., Any], mesh: jax.sharding.Mesh, mapping: dict[str, str], *args: Any) -> float:
    """Count the bytes that a device sends in one run of a program."""
    with axn.set_mesh(mesh), axn.axis_mapping(mapping):
        compiled = jax.jit(call).lower(*args).compile()
    return sum(map(wire_bytes, collectives(compiled, unknown_trip_count=1)))


def on_both(row: Row, axis: str, sizes: dict[str, int], meshes: Meshes) -> list[float]:
    orders = [tuple(axes) for axes in row.operands]
    named = operands(row, row.draw(4, **sizes), orders)
    counts = []
    for mesh in meshes:
        with axn.set_mesh(mesh):
            given = [placed(x, mesh, {axis: "data"}) for x in named]
        counts.append(sent(row.call, mesh, {axis: "data"}, *given))
    return counts


def each_axis(row: Row, meshes: Meshes) -> Iterator[tuple[str, float, float]]:
    """Yield each axis that can be split, and what is sent on an Auto and on an Explicit mesh."""
    for axis in sorted(set("".join(row.operands))):
        for sizes in (LARGE, {}):
            if (SIZES | sizes)[axis] % 4:
                continue
            try:
                yield axis, *on_both(row, axis, sizes, meshes)
            except ValueError:
                if not sizes:
                    raise
            else:
                break


@pytest.mark.parametrize("table", TABLES)
def test_an_operation_on_explicit_axes_sends_no_more_than_on_auto_ones(
    table: str, auto_mesh: jax.sharding.Mesh, explicit_mesh: jax.sharding.Mesh, request: pytest.FixtureRequest
) -> None:
    rows = sorted(rows_of(table), key=lambda row: zlib.crc32(f"{SEED} {row}".encode()))
    if not request.config.getoption("--all-rows"):
        rows = rows[:1]
    more = {}
    for row in rows:
        for axis, auto, explicit in each_axis(row, (auto_mesh, explicit_mesh)):
            if explicit > auto and (str(row), axis) not in EXCEPTIONS:
                more[str(row), axis] = auto, explicit
    assert not more


LAYER_EXCEPTIONS: dict[tuple[str, str], str] = {}


def layer_on_both(row: Any, axis: str, meshes: Meshes) -> list[float]:
    """Count for a layer whose parameters are split as its input is; positions are as many as divide."""
    Time = axn.Axis("time", 8)
    axes = [own for own in row.axes if own.name != Time.name]
    if row.by_element:
        axes = [Time, *axes]
    x = dataclasses.replace(row, axes=tuple(axes)).input(*axn.make_axes(batch=8, seq=2))
    counts = []
    for mesh in meshes:
        with axn.set_mesh(mesh):
            layer, given = axn.shard((row.layer(), x), {axis: "data"}, strict=False)
        counts.append(sent(row.call, mesh, {axis: "data"}, layer, given))
    return counts


@pytest.mark.parametrize("axis", ["batch", "time", "embed"])
def test_a_layer_on_explicit_axes_sends_no_more_than_on_auto_ones(
    axis: str, auto_mesh: jax.sharding.Mesh, explicit_mesh: jax.sharding.Mesh, request: pytest.FixtureRequest
) -> None:
    table = importlib.import_module("tests.nn.test_every_layer").ROWS
    names = sorted(table, key=lambda name: zlib.crc32(f"{SEED} {name}".encode()))
    if not request.config.getoption("--all-rows"):
        names = names[:2]
    more = {}
    for name in names:
        # the angles of a rotary table are made for three positions, and not all layers have an input with positions
        if name == "RotaryTable" or (axis == "time" and not table[name].by_element):
            continue
        auto, explicit = layer_on_both(table[name], axis, (auto_mesh, explicit_mesh))
        if explicit > auto and (name, axis) not in LAYER_EXCEPTIONS:
            more[name] = auto, explicit
    assert not more


def main(tables: Sequence[str]) -> None:
    """Print for rows of tables what a device sends; `+` marks more on Explicit axes."""
    kinds = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit
    meshes = [jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2) for kind in kinds]
    for table in tables:
        for row in rows_of(table):
            for axis, auto, explicit in each_axis(row, meshes):
                print(f"{'+' if explicit > auto else ' '} {row}, {axis}: {auto:.0f} {explicit:.0f}")


if __name__ == "__main__":
    main(sys.argv[1:] or TABLES)
