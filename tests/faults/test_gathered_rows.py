"""Rows of tables that are stored in another layout, against NumPy, and what their programs send."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as axn
from axonym import nn

Batch, Pos, Embed = axn.make_axes(batch=8, pos=16, embed=32)
COLLECTIVE = re.compile(r" = (\(?[^=]*?\)?) (all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter)[-(]")
ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
KINDS = {"auto": (AxisType.Auto,) * 3, "explicit": (AxisType.Explicit,) * 3}
KINDS["mixed"] = (AxisType.Auto, AxisType.Explicit, AxisType.Auto)
# How the table is stored, and how the model computes.
CASES = {
    "one": ({"embed": "data"}, {"batch": "data"}),
    "two": ({"embed": "data"}, {"batch": "data", "pos": "context"}),
    "the other of two": ({"embed": "context"}, {"batch": "data", "pos": "context"}),
    "both": ({"embed": ("data", "context")}, {"batch": "data", "pos": "context"}),
    "both, in another order": ({"embed": ("context", "data")}, {"batch": "data", "pos": "context"}),
    "both of one axis": ({"embed": ("data", "context")}, {"batch": ("context", "data")}),
    "one of one axis": ({"embed": "data"}, {"batch": ("data", "context")}),
    "columns stay split": ({"embed": ("model", "data")}, {"batch": "data", "embed": "model"}),
    "rows stay split": ({"vocab": "model", "embed": "data"}, {"batch": "data", "pos": "context", "vocab": "model"}),
}


def sent(program):
    """Yield the kind, the dtype and the shape of each array that devices send."""
    for arrays, kind in COLLECTIVE.findall(program):
        for dtype, shape in ARRAY.findall(re.sub(r"\{[^}]*\}", "", arrays)):
            yield kind, dtype, tuple(map(int, filter(None, shape.split(","))))


def by_layer(table, ids):
    return nn.Embedding(table, table.resolve_axis("vocab"), (Embed,)).embed(ids)


WAYS = {
    "layer": by_layer,
    "take": lambda table, ids: axn.take(table, "vocab", ids),
    "index": lambda t, i: t["vocab", i],
}


def compiled(way, vocab, stored, compute, kind):
    """Compile a loss and its gradient, run them, and compare both with NumPy; return what is sent."""
    rng = np.random.default_rng(0)
    table = axn.named(jnp.asarray(rng.normal(size=(vocab, 32)), jnp.float32), ("vocab", "embed"))
    ids = axn.named(jnp.asarray(rng.integers(0, vocab, (8, 16))), ("batch", "pos"))

    def loss(table, ids):
        rows = axn.auto_sharded(WAYS[way](table, ids))
        return (rows * rows).sum().array, rows

    def step(table, ids):
        return jax.value_and_grad(loss, has_aux=True)(table, ids)

    expected = np.asarray(table.array)[np.asarray(ids.array)]
    gradient = np.zeros((vocab, 32))
    np.add.at(gradient, np.asarray(ids.array), 2 * expected)
    with axn.set_mesh(jax.make_mesh((2, 2, 2), ("data", "context", "model"), axis_types=KINDS[kind])):
        program = axn.named_jit(step, axn.Mappings(stored, compute)).lower(table, ids).compile()
        (_, rows), by_table = program(table, ids)
    np.testing.assert_allclose(rows.array, expected, rtol=1e-6)
    np.testing.assert_allclose(by_table.array, gradient, rtol=1e-5, atol=1e-5)
    return set(sent(program.as_text()))


@pytest.mark.parametrize("case", CASES)
def test_few_ids_are_gathered_and_rows_exchanged(case, capfd):
    found = compiled("layer", 512, *CASES[case], "auto")
    assert {dtype for kind, dtype, _ in found if kind == "all-gather"} == {"s32"}
    # What is summed are the loss, and gradients of a part of the table; with split rows, parts of rows.
    assert all(
        shape in ((), (512, 16)) or case == "rows stay split" for kind, _, shape in found if kind == "all-reduce"
    )
    assert "Involuntary" not in capfd.readouterr().err


@pytest.mark.parametrize("case", CASES)
def test_a_small_table_is_gathered_and_its_gradient_summed(case, capfd):
    found = compiled("layer", 16, *CASES[case], "auto")
    gathered = {shape for kind, _, shape in found if kind == "all-gather"}
    rows, columns = (8 if case == "rows stay split" else 16), (16 if case == "columns stay split" else 32)
    assert gathered == {(rows, columns)}
    assert "Involuntary" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_functions_and_kinds_of_meshes(way, kind, capfd):
    found = compiled(way, 512, *CASES["both"], kind)
    assert {dtype for op, dtype, _ in found if op == "all-gather"} == {"s32"}
    assert "Involuntary" not in capfd.readouterr().err


def test_other_arrays_are_left_alone():
    """A part of each row, rows for each element of the batch, ids that no mesh divides, and no mapping."""
    mesh = jax.make_mesh((2, 2, 2), ("data", "context", "model"), axis_types=KINDS["auto"])
    table = axn.random.normal(jax.random.key(0), (Batch, axn.Axis("vocab", 64), Embed))
    ids = axn.random.randint(jax.random.key(1), (Batch, Pos), 0, 64)

    def read(table, ids):
        one = table["batch", 0]
        uneven = one.take("vocab", ids["batch", :7]).sum("batch")
        return table["vocab", ids], one["vocab", ids["pos", :3]], one["vocab", 3], uneven

    expected = jax.tree.map(np.asarray, eqx.filter_jit(read)(table, ids))
    with axn.set_mesh(mesh):
        results = axn.named_jit(read, axn.Mappings({"embed": "data"}, {"batch": "data"}), strict=False)(table, ids)
    for result, other in zip(results, expected, strict=True):
        assert result.names == other.names
        np.testing.assert_allclose(result.array, other.array, rtol=1e-6, atol=1e-6)
