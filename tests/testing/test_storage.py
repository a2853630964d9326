"""The claim that storage does not matter."""

import jax
import jax.numpy as jnp
import optax
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from axonym.testing import ClaimError, assert_same_storage
from tests.nn.layouts import draw, fails, made

B, E, M, L = axn.make_axes(batch=3, embed=4, mlp=6, layers=2)


def stack():
    return made(lambda *, key: nn.Stacked.init(L, lambda *, key: nn.MLP.init(E, E, M, 1, key=key))(key=key))


def test_stacks_and_orders_of_axes_give_the_same():
    loss = lambda layers, x: axn.square(layers.fold(x)).mean()  # noqa: E731
    assert_same_storage(loss, stack(), draw(B, E), optimizer=optax.adam(1e-2))


def test_an_axis_that_is_addressed_by_its_place_is_found():
    with pytest.raises(ClaimError) as error:
        assert_same_storage(lambda x: axn.named(jnp.cumsum(x.array, -1), x.axes), draw(B, E))
    assert (
        str(error.value).splitlines()[0] == "assert_same_storage: with all axes in reverse order, the result is another"
    )


def test_an_optimiser_that_mixes_layers_names_the_parameter_and_the_stack():
    mixes = optax.stateless(lambda updates, _: jax.tree.map(lambda g: g / jnp.linalg.norm(g), updates))
    with pytest.raises(ClaimError) as error:
        assert_same_storage(lambda m, x: axn.square(m.fold(x)).mean(), stack(), draw(B, E), optimizer=mixes)
    assert (error.value.axis, error.value.layer) == ("layers", "0")
    assert error.value.parameter is not None


def test_something_must_be_stored():
    fails(
        ArgumentError,
        "assert_same_storage: no argument has two named axes, and no module has stacked layers",
        lambda: assert_same_storage(lambda x: x, draw(B)),
    )
