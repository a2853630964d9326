"""`haliax.tree`: the functions of `haliax.tree_util` by their short names."""

import jax

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.nn as hnn

Embed = hax.Axis("embed", 3)


def test_all():
    tree = {"x": hax.arange(Embed), "y": [1]}
    leaves, structure = hax.tree.flatten(tree)
    assert leaves[0] is tree["x"]
    assert hax.tree.leaves(tree)[0] is tree["x"]
    assert hax.tree.structure(tree) == structure
    assert hax.tree.unflatten(structure, leaves)["y"] == [1]
    assert hax.tree.map(lambda x, y: x + y, tree, tree)["x"].tolist() == [0, 2, 4]


def test_is_leaf():
    tree = {"x": hax.arange(Embed), "y": [1, 2]}

    def is_list(node):
        return isinstance(node, list)

    assert hax.tree.leaves(tree, is_leaf=is_list)[1] == [1, 2]
    assert len(hax.tree.flatten(tree, is_leaf=is_list)[0]) == 2
    assert hax.tree.structure(tree, is_leaf=is_list).num_leaves == 2
    assert hax.tree.map(type, tree, is_leaf=is_list)["y"] is list


def test_scan_aware_map():
    Layers = hax.Axis("layers", 2)
    keys = jax.random.split(jax.random.key(0), 2)
    stacked = hnn.Stacked.init(Layers, hnn.Linear)(Embed, Embed.alias("out"), key=keys)
    sums = hax.tree.scan_aware_map(lambda x: x.sum(), stacked).stacked
    assert sums.weight.axes == (Layers,)
    assert type(sums.weight) is hax.NamedArray
