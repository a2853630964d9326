"""The functions of `jax.tree` that keep named arrays whole, and changes of whole models."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisNotFoundError, AxisSizeError
from tests.nn.layouts import lies

B, E = axn.make_axes(batch=2, embed=3)
X, Y = axn.ones((B, E)), axn.zeros(E)


def tree():
    return {"x": X, "list": [Y, jnp.ones(4), 2.5], "none": None, "text": "t", "act": jnp.tanh}


def test_leaves_are_named_arrays_and_whatever_else_is_a_leaf():
    leaves = axn.tree.leaves(tree())
    assert len(leaves) == 6
    assert any(leaf is X for leaf in leaves)
    assert any(leaf is Y for leaf in leaves)
    assert len(jax.tree.leaves(tree())) == 6
    assert not any(isinstance(leaf, axn.NamedArray) for leaf in jax.tree.leaves(tree()))
    assert axn.tree.leaves(X)[0] is X
    assert axn.tree.leaves(None) == []


def test_round_trip():
    leaves, structure = axn.tree.flatten(tree())
    assert structure == axn.tree.structure(tree())
    assert structure.num_leaves == 6
    back = axn.tree.unflatten(structure, leaves)
    assert back["x"] is X
    assert back["list"][0] is Y
    assert (back["none"], back["text"], back["act"]) == (None, "t", jnp.tanh)
    numbers = axn.tree.unflatten(structure, range(6))
    assert sorted(axn.tree.leaves(numbers)) == list(range(6))


def test_the_structure_does_not_speak_of_axes():
    assert axn.tree.structure({"a": X}) == axn.tree.structure({"a": Y}) == jax.tree.structure({"a": 0})
    assert jax.tree.structure({"a": X}) != jax.tree.structure({"a": Y})


def test_map_sees_names():
    names = axn.tree.map(lambda leaf: leaf.names if isinstance(leaf, axn.NamedArray) else type(leaf).__name__, tree())
    assert names["x"] == ("batch", "embed")
    assert names["list"][0] == ("embed",)
    assert names["list"][2] == "float"
    assert names["none"] is None


def test_map_may_change_axes_and_takes_several_trees():
    summed = axn.tree.map(lambda x: x.sum("embed"), {"x": X, "y": Y})
    assert (summed["x"].names, summed["y"].names) == (("batch",), ())
    out = axn.tree.map(lambda x, y, z: x + y * z, {"a": X}, {"a": Y + 2}, {"a": 3})
    assert out["a"].names == ("batch", "embed")
    np.testing.assert_array_equal(out["a"].array, np.full((2, 3), 7.0))
    # Other trees may have other axes at the same place.
    pair = axn.tree.map(lambda x, y: (x, y), {"a": X}, {"a": Y})
    assert pair["a"][1] is Y
    with pytest.raises(ValueError, match="'b'"):
        axn.tree.map(lambda x, y: x, {"a": X}, {"b": Y})


def test_is_leaf_adds_to_named_arrays():
    pairs = lambda node: isinstance(node, tuple)  # noqa: E731
    given = [(X, 1), Y]
    assert len(axn.tree.leaves(given, is_leaf=pairs)) == 2
    assert axn.tree.leaves(given, is_leaf=pairs)[0] is given[0]
    assert axn.tree.structure(given, is_leaf=pairs) == jax.tree.structure([0, 0])
    assert axn.tree.map(type, given, is_leaf=pairs) == [tuple, axn.NamedArray]
    leaves, structure = axn.tree.flatten(given, is_leaf=pairs)
    assert axn.tree.unflatten(structure, leaves)[0] is given[0]
    nothing = axn.tree.leaves([None, X], is_leaf=lambda node: node is None)
    assert nothing[0] is None
    assert nothing[1] is X


def test_under_jit():
    doubled = jax.jit(lambda t: axn.tree.map(lambda x: x * 2, t))({"x": X, "raw": jnp.ones(2)})
    assert doubled["x"].names == ("batch", "embed")
    np.testing.assert_array_equal(doubled["raw"], [2, 2])


L, M, V = axn.make_axes(layers=3, mlp=4, vocab=10)
KEY = jax.random.key(0)


def unit(x):
    return x / axn.sqrt((x * x).sum())


def test_scan_aware_map_sees_the_layers_of_a_stack():
    make = axn.nn.Stacked.init(L, axn.nn.Linear), axn.nn.BlockSeq.init(L, axn.nn.Linear)
    stacked, written_out = (init(E, M, key=KEY) for init in make)
    mapped = axn.tree.scan_aware_map(unit, {"blocks": stacked, "x": X})
    expected = axn.tree.map(unit, written_out)
    assert mapped["blocks"].stacked.weight.axes == (L, E, M)
    assert mapped["blocks"].Block == L
    for layer, other in zip(mapped["blocks"].unstacked(), expected.blocks, strict=True):
        for one, two in zip(jax.tree.leaves(layer), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5)
    np.testing.assert_allclose(mapped["x"].array, np.full((2, 3), 6**-0.5), rtol=1e-6)


def test_scan_aware_map_of_stacks_in_stacks_and_of_several_trees():
    class Inner(eqx.Module):
        w: axn.NamedArray
        f: object

        @staticmethod
        def init():
            return Inner(axn.ones(E), jnp.tanh)

    class Outer:
        @staticmethod
        def init():
            return axn.nn.Stacked.init(L, Inner)()

    nest = axn.nn.Stacked.init(B, Outer)()
    seen = []

    def add(x, y):
        seen.append(x)
        return x + y.sum() if axn.is_named_array(x) else x

    out = axn.tree.scan_aware_map(add, nest, nest)
    assert out.stacked.stacked.w.axes == (B, L, E)
    np.testing.assert_array_equal(out.stacked.stacked.w.array, np.full((2, 3, 3), 4.0))
    assert out.stacked.stacked.f is jnp.tanh
    assert [x.names for x in seen if axn.is_named_array(x)] == [("embed",)]


def test_resize_axis_cuts_and_grows_arrays_and_static_axes():
    table = axn.nn.Embedding.init(V, E, key=KEY)
    old = np.asarray(table.weight.array)
    smaller = axn.tree.resize_axis(table, V, 4)
    np.testing.assert_array_equal(smaller.weight.array, old[:4])
    assert smaller.Vocab == V.resize(4)
    assert table.Vocab == V

    larger = axn.tree.resize_axis({"t": table, "n": None, "f": jnp.tanh}, "vocab", 12)
    assert (larger["n"], larger["f"]) == (None, jnp.tanh)
    np.testing.assert_allclose(larger["t"].weight.array, np.concatenate([old, np.tile(old.mean(0), (2, 1))]), rtol=1e-6)
    assert larger["t"](axn.named([11], "pos")).axes == (axn.Axis("pos", 1), E)


def test_resize_axis_draws_new_positions_of_the_old_statistics():
    wide, Cols = axn.Axis("rows", 500), axn.Axis("cols", 2)
    x = axn.random.normal(KEY, (Cols, wide)) * 3 + axn.named([5.0, -5.0], "cols")
    grown = axn.tree.resize_axis({"x": x.astype(jnp.bfloat16), "y": X}, "rows", 2000, key=KEY)
    assert grown["x"].axes == (Cols, wide.resize(2000))
    assert grown["x"].dtype == jnp.bfloat16
    assert grown["y"] is X
    added = np.asarray(grown["x"].array, np.float64)[:, 500:]
    np.testing.assert_allclose(added.mean(1), [5, -5], atol=0.3)
    np.testing.assert_allclose(added.std(1), 0.88 * 3, rtol=0.1)
    again = axn.tree.resize_axis([X, X], "embed", 5, key=KEY)
    assert again[0].axes == (B, E.resize(5))


def test_resize_axis_takes_derived_names_along_also_in_a_stack():
    blocks = axn.nn.Stacked.init(L, axn.nn.Linear)(E, E, key=KEY)
    resized = axn.tree.resize_axis(blocks, "embed", 5)
    assert resized.stacked.weight.axes == (L, E.resize(5), E.resize(5).alias("embed.out"))
    assert (resized.stacked.In, resized.stacked.Out) == ((E.resize(5),), (E.resize(5),))
    assert resized.fold(axn.ones(E.resize(5))).axes == (E.resize(5),)
    fewer = axn.tree.resize_axis(blocks, L, 2)
    assert fewer.Block == L.resize(2)
    assert len(fewer.unstacked()) == 2


def test_resize_axis_passes_what_a_filter_left_empty():
    blocks = eqx.tree_at(lambda s: s.stacked.bias.array, axn.nn.Stacked.init(L, axn.nn.LayerNorm)(E), None)
    resized = axn.tree.resize_axis(blocks, "embed", 5)
    assert resized.stacked.weight.axes == (L, E.resize(5))
    assert (resized.stacked.bias.array, resized.stacked.bias.names) == (None, ("layers", "embed"))


@pytest.mark.parametrize("key", [None, KEY], ids=["mean", "drawn"])
def test_resize_axis_of_an_abstract_model(key):
    made = {"table": axn.nn.Embedding.init(V, E, key=KEY), "scale": axn.ones(V, dtype=jnp.bfloat16)}
    abstract = eqx.filter_eval_shape(lambda: made)
    for size in (4, 12):
        expected = eqx.filter_eval_shape(lambda: axn.tree.resize_axis(made, "vocab", size, key))  # noqa: B023
        assert eqx.tree_equal(axn.tree.resize_axis(abstract, "vocab", size, key), expected)


def test_resize_axis_keeps_the_layout(auto_mesh):
    mapping = {"vocab": "data"}
    with axn.set_mesh(auto_mesh), axn.axis_mapping(mapping):
        x = axn.shard(axn.arange((V.resize(8), E), dtype=float))
        for size in (4, 12):
            assert lies(axn.tree.resize_axis(x, "vocab", size), auto_mesh, mapping)


def test_resize_axis_errors():
    with pytest.raises(AxisNotFoundError) as error:
        axn.tree.resize_axis({"x": X}, "embd", 4)
    assert str(error.value) == (
        "resize_axis: no array has axis 'embd'\n  arrays have: batch, embed\n  hint: did you mean 'embed'?"
    )
    with pytest.raises(AxisSizeError) as error:
        axn.tree.resize_axis({"x": X}, axn.Axis("embed", 4), 5)
    assert str(error.value) == "resize_axis: axis 'embed' was given with size 4, but has size 3"
