"""The functions of `jax.tree` that keep named arrays whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn

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
