"""Layers one after another, against Equinox's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym import nn
from axonym.errors import OperandError
from tests.nn.layouts import draw, fails

Batch, Embed, Mlp = axn.make_axes(batch=2, embed=4, mlp=8)
KEY = jax.random.key(0)


def linear(In: axn.Axis, Out: axn.Axis) -> nn.Linear:
    return nn.Linear.init(In, Out, key=KEY)


def test_modules_and_functions_equal_those_of_equinox() -> None:
    up, down = linear(Embed, Mlp), linear(Mlp, Embed)
    theirs = eqx.nn.Sequential(
        [
            eqx.nn.Lambda(lambda x: x @ up.weight.array),
            eqx.nn.Lambda(jnp.tanh),
            eqx.nn.Lambda(lambda x: x @ down.weight.array),
        ]
    )
    ours = nn.Sequential([up, axn.tanh, down])
    x = draw(Batch, Embed)
    np.testing.assert_allclose(ours(x).array, jax.vmap(theirs)(x.array), rtol=1e-5, atol=1e-6)
    assert len(ours) == 3
    assert ours[0] is up
    assert [type(layer) for layer in ours] == [nn.Linear, jax.tree_util.Partial, nn.Linear]


def test_functions_are_no_leaves() -> None:
    layers = nn.Sequential([linear(Embed, Mlp), nn.gelu])
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(layers))


def test_each_module_has_a_key_of_its_own() -> None:
    drops = nn.Sequential([nn.Dropout(0.5), nn.relu, nn.Dropout(0.5)])
    x = axn.ones(axn.Axis("embed", 400))
    k1, k2 = jax.random.split(KEY)
    expected = nn.Dropout(0.5)(nn.Dropout(0.5)(x, key=k1), key=k2)
    assert axn.array_equal(drops(x, key=KEY), expected)
    assert axn.array_equal(eqx.nn.inference_mode(drops)(x), x)


def test_none_at_all() -> None:
    x = draw(Batch, Embed)
    assert axn.array_equal(nn.Sequential([])(x, key=KEY), x)


def test_what_cannot_be_called() -> None:
    fails(
        OperandError,
        "Sequential: a layer must be a module or a function, not int",
        lambda: nn.Sequential([linear(Embed, Mlp), 3]),  # type: ignore[list-item]
    )
