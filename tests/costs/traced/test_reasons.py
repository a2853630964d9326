"""Which named axis makes a move necessary."""

import dataclasses

import jax
import pytest

from axonym.costs.shared.names import NameTable
from axonym.costs.traced.moves import Move
from axonym.costs.traced.reasons import find_reasons, name_dimensions
from axonym.report.show import ArrayLayout

D, M = ("data",), ("model",)
NAMED = NameTable(
    (("data", 4), ("model", 2)),
    {"batch": D, "mlp": M, "heads": M},
    {"embed": D, "mlp": M, "heads": M},
    {"batch": frozenset({32}), "embed": frozenset({16}), "mlp": frozenset({64}), "heads": frozenset({8})},
    {},
)


@pytest.mark.parametrize(
    ("kind", "axes", "sizes", "expected"),
    [
        ("all-reduce", D, (32,), ("batch",)),
        ("all-reduce", M, (64,), ("mlp",)),
        ("all-reduce", M, (8,), ("heads",)),
        ("all-reduce", M, (24,), ("heads",)),
        ("all-reduce", M, (7,), ()),
        ("all-gather", D, (16,), ("embed",)),
        ("all-gather", D, (32,), ("batch",)),
        ("all-reduce", (*D, *M), (32, 64), ("batch", "mlp")),
    ],
)
def test_reasons(kind, axes, sizes, expected):
    assert find_reasons(Move(kind, axes, (4,), sizes), NAMED, "", is_update=False) == expected


def test_the_layer_tells_whatever_class_holds_it():
    down = ArrayLayout("model.blocks.down.weight", ("mlp", "embed"), (64, 16), "float32", jax.P())
    named = dataclasses.replace(NAMED, arguments={"weight": down})
    move = Move("all-reduce", M, (4,), ())
    assert find_reasons(move, named, "Stacked.down", is_update=False) == ("mlp",)
    assert find_reasons(move, named, "Stacked.up", is_update=False) == ()


def test_no_layer_sums_over_an_axis_that_parameters_of_others_have():
    computed = {"batch": D, "layers": D}
    up = ArrayLayout("model.blocks.up.weight", ("layers", "embed"), (4, 16), "float32", jax.P())
    named = dataclasses.replace(
        NAMED, computed=computed, arguments={"weight": up}, of_parameters=frozenset({"layers", "embed"})
    )
    move = Move("all-reduce", D, (4,), ())
    assert find_reasons(move, named, "embedding", is_update=False) == ("batch",)
    assert find_reasons(move, named, "", is_update=False) == ("batch",)


def test_names_by_size_and_layout():
    assert name_dimensions((32, 16, 5), (D, (), ()), NAMED) == ("batch", "embed", "?")
