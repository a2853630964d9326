"""Modules whose leaves are remembered: only those that cannot change, and only as long as they live."""

import collections
import functools
import gc
import operator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import NamedArray
from axonym.partitioning.flattened import Flattened, containers_of, modules_in


class Layer(eqx.Module):
    weight: Any
    rest: Any = None


class Moments(NamedTuple):
    first: Any
    second: Any


def array(value: float = 1.0) -> NamedArray:
    return axn.full(axn.Axis("x", 2), value)


class Own(tuple):
    """A tuple that JAX flattens by a function of its own."""


jax.tree_util.register_pytree_node(Own, lambda own: (tuple(own), None), lambda _, parts: Own(parts))
CHANGING = Layer([array(), Layer({"w": array(), "b": [array()]})], (None, Layer(Moments([], array()))))


@pytest.mark.parametrize(
    ("tree", "count"),
    [
        (Layer(array()), 0),
        (Layer((array(), None, Moments(jnp.ones(2), Layer(array())))), 0),
        (Layer([array()]), 1),
        (Layer({"w": array()}), 1),
        (CHANGING, 4),
        (Layer(jax.tree_util.Partial(jnp.sin, jnp.ones(2))), None),
        (Layer(collections.OrderedDict(w=array())), None),
        (Layer([Own([array()])]), None),
    ],
)
def test_lists_and_dicts_are_found_and_other_nodes_may_change(tree: Any, count: int | None) -> None:
    found = containers_of(tree, jax.tree.structure(tree))
    assert count == (None if found is None else len(found))


def test_lists_and_dicts_are_found_from_the_outside() -> None:
    found = []
    for path in containers_of(CHANGING, jax.tree.structure(CHANGING)) or ():
        found.append(functools.reduce(lambda part, step: step(part), path, CHANGING))
    inner = CHANGING.weight[1].weight
    right = (CHANGING.weight, inner, inner["b"], CHANGING.rest[1].weight.first)
    assert all(map(operator.is_, found, right))


def change_the_order(weights: dict[str, Any]) -> None:
    """Exchange the keys of two entries: the values are the same ones, in their order."""
    first, second = weights.pop("w"), weights.pop("b")
    weights.update(b=first, w=second)


CHANGES = {
    "an entry": lambda layer: layer.weight.__setitem__(0, array(5.0)),
    "a longer list": lambda layer: layer.weight.append(array(5.0)),
    "a shorter list": lambda layer: layer.weight.pop(0),
    "an entry far inside": lambda layer: layer.weight[1].weight["b"].__setitem__(0, array(5.0)),
    "an entry of a dict": lambda layer: layer.rest["b"].__setitem__("w", array(5.0)),
    "another key": lambda layer: layer.rest["b"].__setitem__("v", layer.rest["b"].pop("w")),
    "exchanged keys": lambda layer: change_the_order(layer.rest["a"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_list_or_a_dict_is_seen(change: str) -> None:
    known = Flattened()
    layer = Layer([array(), Layer({"b": [array()]})], {"a": {"w": array(2.0), "b": array(3.0)}, "b": {"w": array()}})
    leaves, tree = jax.tree.flatten(layer)
    known.remember(layer, leaves, known.structure(tree))
    assert known.get(layer) == (leaves, known.structure(tree))
    CHANGES[change](layer)
    assert known.get(layer) is None


def test_modules_are_found_with_their_ranges() -> None:
    layer = Layer(array(), array())
    for result in (layer, (jnp.ones(2), layer, (layer,)), [layer], (Layer([array()]), layer)):
        leaves, tree = jax.tree.flatten(result)
        for at, start, stop, structure in modules_in(result, tree):
            found = result if at is None else result[at]
            assert jax.tree.structure(found) == structure
            assert all(a is b for a, b in zip(jax.tree.leaves(found), leaves[start:stop], strict=True))
    places = [[found[0] for found in modules_in(r, jax.tree.structure(r))] for r in (layer, (1, layer), [layer])]
    assert places == [[None], [1], []]


def test_what_is_known_of_a_module_goes_with_it() -> None:
    known, layer = Flattened(), Layer(array())
    leaves, tree = jax.tree.flatten(layer)
    structure = known.structure(tree)
    assert known.structure(jax.tree.structure(Layer(array(2.0)))) is structure
    assert known.structure(jax.tree.structure(Layer((array(),)))) is not structure
    known.remember(layer, leaves, structure)
    assert known.get(layer) == (leaves, structure)
    assert known.get(Layer(array())) is None
    del layer
    gc.collect()
    assert not known._known


def test_a_list_in_a_module_that_changes_between_calls_is_seen() -> None:
    total = axn.named_jit(lambda layer: sum(x.sum().scalar() for x in layer.rest))
    layer = Layer(array(), [array(1.0)])
    assert float(total(layer)) == 2.0
    layer.rest[0] = array(5.0)
    assert float(total(layer)) == 10.0
    layer.rest.append(array(1.0))
    assert float(total(layer)) == 12.0


def test_a_numpy_array_in_a_module_that_changes_in_place_is_seen() -> None:
    layer = Layer(np.ones(2, np.float32))
    total = axn.named_jit(lambda layer: layer.weight.sum())
    assert float(total(layer)) == 2.0
    layer.weight[:] = 3.0
    assert float(total(layer)) == 6.0


def test_steps_over_remembered_modules_equal_plain_ones() -> None:
    def step(layer: Layer, rate: NamedArray) -> tuple[Layer, NamedArray]:
        return jax.tree.map(lambda x: x * 0.5, layer), rate + 1

    plain, ours = jax.jit(step), axn.named_jit(step, donate_args=(True,))
    state = mine = Layer(array(3.0), Moments(array(4.0), Layer(array(5.0))))
    mine = jax.tree.map(jnp.copy, mine)
    rate = own = array(0.0)
    for _ in range(4):
        state, rate = plain(state, rate)
        mine, own = ours(mine, own)
    for a, b in zip(jax.tree.leaves((state, rate)), jax.tree.leaves((mine, own)), strict=True):
        np.testing.assert_array_equal(a, b)
