"""Trees whose leaves are named arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.nn as hnn
import haliax.tree_util as htu

Layers, Embed, Vocab = hax.make_axes(layers=2, embed=3, vocab=4)


def _tree():
    return {"x": hax.arange(Embed), "rest": [jnp.ones(2), None]}


def test_named_arrays_are_leaves():
    tree = _tree()
    leaves, structure = htu.tree_flatten(tree)
    assert [type(leaf) for leaf in leaves] == [type(jnp.ones(2)), hax.NamedArray]
    assert htu.tree_structure(tree) == structure
    assert len(htu.tree_leaves(tree)) == 2
    again = htu.tree_unflatten(structure, leaves)
    assert again["x"] is tree["x"]


def test_is_leaf():
    tree = _tree()

    def is_list(node):
        return isinstance(node, list)

    assert htu.tree_leaves(tree, is_leaf=is_list)[0] is tree["rest"]
    assert len(htu.tree_flatten(tree, is_list)[0]) == 2
    assert htu.tree_structure(tree, is_list) == jax.tree.structure({"x": 0, "rest": 0})


def test_tree_map():
    tree = _tree()
    doubled = htu.tree_map(lambda a, b: a + b, tree, tree)
    assert type(doubled["x"]) is hax.NamedArray
    assert doubled["x"].tolist() == [0, 2, 4]
    counted = htu.tree_map(lambda x: 0 if isinstance(x, list) else 1, tree, is_leaf=lambda x: isinstance(x, list))
    assert counted == {"x": 1, "rest": 0}


class Block(eqx.Module):
    linear: hnn.Linear
    raw: jax.Array
    inference: bool = False

    @staticmethod
    def init(axis, *, key):
        return Block(hnn.Linear.init(axis, axis.alias("out"), key=key), jnp.ones(3))


def _stacked():
    return hnn.Stacked.init(Layers, Block)(Embed, key=jax.random.split(jax.random.key(0), 2))


def test_scan_aware_tree_map_sees_one_layer():
    stacked = _stacked()
    seen = []

    def change(x):
        seen.append(x.axes if isinstance(x, hax.NamedArray) else getattr(x, "shape", x))
        return x * 2 if isinstance(x, hax.NamedArray) else x

    changed = htu.scan_aware_tree_map(change, {"blocks": stacked})["blocks"]
    assert type(changed) is hnn.Stacked
    assert set(map(str, seen)) == set(map(str, [(Embed.alias("out"), Embed), (Embed.alias("out"),), (3,), False]))
    np.testing.assert_allclose(changed.stacked.linear.weight.array, 2 * stacked.stacked.linear.weight.array)
    assert type(changed.stacked.linear.weight) is hax.NamedArray
    assert changed.stacked.linear.weight.axes[0] == Layers


def test_scan_aware_tree_map_replaces_modules():
    def transposed(node):
        return node.weight.rearrange((Embed, ...)) if isinstance(node, hnn.Linear) else node

    changed = htu.scan_aware_tree_map(transposed, _stacked(), is_leaf=lambda node: isinstance(node, hnn.Linear))
    assert changed.stacked.linear.axes == (Layers, Embed, Embed.alias("out"))


def test_resize_axis():
    table = hnn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
    smaller = htu.resize_axis(table, "vocab", 2)
    assert smaller.weight.axes == (Vocab.resize(2), Embed)
    np.testing.assert_array_equal(smaller.weight.array, table.weight.array[:2])
    larger = htu.resize_axis(table, Vocab, 6)
    assert type(larger.weight) is hax.NamedArray
    np.testing.assert_array_equal(larger.weight.array[:4], table.weight.array)
    mean = np.asarray(table.weight.array).mean(0)
    np.testing.assert_allclose(larger.weight.array[4:], np.stack([mean, mean]), rtol=1e-6)
    drawn = htu.resize_axis(table, Vocab, 500, jax.random.key(1)).weight.array[4:]
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.05)


def test_resize_axis_that_is_not_there():
    tree = _tree()
    assert htu.resize_axis(tree, "vocab", 2) is tree
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="given with size 9, but has size 3"):
            htu.resize_axis(tree, Embed.resize(9), 2)


def test_hashable_partition():
    tree = {"x": jnp.ones(2), "f": "text", "n": 3}
    dynamic, static = htu.hashable_partition(tree, eqx.is_array)
    assert dynamic["f"] is None
    assert isinstance(hash(static), int)
    assert htu.hashable_combine(dynamic, static) == tree
