"""Modules whose leaves are remembered: only those that cannot change, and only as long as they live."""

import gc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import NamedArray
from axonym.partitioning.flattened import Flattened, made_of_immutables, modules_in


class Layer(eqx.Module):
    weight: Any
    rest: Any = None


class Moments(NamedTuple):
    first: Any
    second: Any


def array(value: float = 1.0) -> NamedArray:
    return axn.full(axn.Axis("x", 2), value)


@pytest.mark.parametrize(
    ("tree", "immutable"),
    [
        (Layer(array()), True),
        (Layer((array(), None, Moments(jnp.ones(2), Layer(array())))), True),
        (Layer([array()]), False),
        (Layer({"w": array()}), False),
        (Layer(array(), (Layer([array()]),)), False),
        (Layer(jax.tree_util.Partial(jnp.sin, jnp.ones(2))), False),
    ],
)
def test_lists_dicts_and_unknown_nodes_may_change(tree: Any, immutable: bool) -> None:
    assert made_of_immutables(jax.tree.structure(tree)) is immutable


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
