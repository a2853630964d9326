"""The claim that layouts change no numbers."""

import jax
import optax
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from axonym.testing import ClaimError, assert_same_layouts
from tests.nn.layouts import draw, fails, made

B, E, M = axn.make_axes(batch=8, embed=8, mlp=16)
MAPPINGS = [{"batch": "data", "mlp": "model"}, axn.Mappings({"embed": "data", "mlp": "model"}, {"batch": "data"})]


def model():
    return made(lambda *, key: nn.MLP.init(E, E, M, 1, key=key))


def loss(model, x, key):
    return axn.square(nn.Dropout(0.5)(model(x), key=key)).mean()


def test_values_gradients_updates_and_draws_are_those_of_one_device(auto_mesh):
    assert_same_layouts(loss, MAPPINGS, auto_mesh, model(), draw(B, E), jax.random.key(2), optimizer=optax.adam(1e-2))


class Halved(nn.Linear):
    """A layer whose gradient is divided by the number of devices of an axis of the mesh."""

    def __call__(self, x, *, key=None):
        share = 1 / jax.sharding.get_abstract_mesh().shape["model"]
        weight = share * self.weight + (1 - share) * axn.stop_gradient(self.weight)
        return axn.dot(x, weight, axis=self.In) + self.bias


def test_a_gradient_that_is_too_small_names_the_mesh_axis_and_the_last_layer(auto_mesh):
    layers = [
        made(lambda *, key: Halved.init(E, M, key=key)),
        made(lambda *, key: Halved.init(M, E, key=key)),
    ]

    def loss(model, x):
        for layer in model:
            x = layer(x)
        return axn.square(x).mean()

    with pytest.raises(ClaimError) as error:
        assert_same_layouts(loss, MAPPINGS[0], auto_mesh, layers, draw(B, E), kinds=["Auto"])
    assert error.value.parameter == "0.1.weight"
    assert error.value.layer == "0.1"
    assert error.value.factor == pytest.approx(0.5)
    assert "factor: 0.5, one over the size of mesh axis model" in str(error.value)


def clipped(model, x):
    """Return the loss and the next model, where each device clips its own part of the gradient."""

    def local(model, x):
        value, own = jax.value_and_grad(lambda model: axn.square(model(x)).mean().scalar())(model)
        norm = optax.tree.norm(own)
        own = axn.pmean(jax.tree.map(lambda g: g / norm, own), "data")
        return {"loss": jax.lax.pmean(value, "data"), "next": jax.tree.map(lambda p, g: p - g, model, own)}

    return axn.shard_map(local, {"batch": "data"}, check=False)(model, x)


def test_a_function_that_returns_a_new_model_is_compared_by_parameters(auto_mesh):
    layer = made(lambda *, key: nn.Linear.init(E, M, key=key))
    with pytest.raises(ClaimError) as error:
        assert_same_layouts(clipped, {"batch": "data"}, auto_mesh, layer, draw(B, E))
    assert error.value.parameter == "0.weight"
    assert str(error.value).splitlines()[0] == (
        "assert_same_layouts: under {'batch': 'data'} on Auto axes, 0.weight is not that of one device"
    )


def test_an_error_of_the_function_says_on_which_mesh_it_was(auto_mesh):
    def send(x):
        ring = [(i, (i + 1) % 4) for i in range(4)]
        return axn.shard_map(
            lambda x: axn.NamedArray(jax.lax.ppermute(x.array, "data", ring), x.names), {"batch": "data"}
        )(x)

    with pytest.raises(ValueError, match="ppermute") as error:
        assert_same_layouts(send, {"batch": "data"}, auto_mesh, draw(B))
    assert error.value.__notes__[-1] == "assert_same_layouts: it was called on the mesh data=1, model=1"


def test_what_is_unknown_is_refused(auto_mesh):
    fails(
        ArgumentError,
        "assert_same_layouts: unknown kind of mesh axes 'Manual'\n  hint: kinds: Auto, Explicit",
        lambda: assert_same_layouts(lambda x: x, {}, auto_mesh, draw(B), kinds=["Manual"]),
    )
    fails(
        ArgumentError,
        "assert_same_layouts: there is no mapping\n  hint: kinds: Auto, Explicit",
        lambda: assert_same_layouts(lambda x: x, [], auto_mesh, draw(B)),
    )
