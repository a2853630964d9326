"""The claim that storage does not matter."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from axonym.testing import ClaimError, assert_same_storage
from tests.nn.layouts import draw, fails, made

B, E, M, L, H, D = axn.make_axes(batch=3, embed=4, mlp=6, layers=2, heads=2, head_dim=3)
F = axn.Axis("features", H.size * D.size)
MERGED = {"features": (H, "head_dim")}


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


class Gates(eqx.Module):
    """A softmax over the features of each head."""

    proj: nn.Linear

    def __call__(self, x):
        y = self.proj(x)
        return axn.square(axn.softmax(y, "head_dim") * y).mean()


class FlatGates(eqx.Module):
    """The same, with heads merged in a weight."""

    proj: nn.Linear
    axes: tuple[axn.Axis, ...] = eqx.field(static=True, default=(H, D))

    def __call__(self, x):
        y = self.proj(x).unflatten_axis("features", self.axes)
        return axn.square(axn.softmax(y, "head_dim") * y).mean()


def linear(out, **options):
    return made(lambda *, key: nn.Linear.init(E, out, key=key, **options))


def test_heads_are_the_same_split_or_merged():
    layer, flat, x = Gates(linear((H, D))), linear(F), draw(B, E)
    assert_same_storage(layer, x, merged=MERGED, optimizer=optax.adam(1e-2))
    assert_same_storage(layer, x, merged=MERGED, like=FlatGates(flat), optimizer=axn.optim.muon(0.1))
    with pytest.raises(ClaimError) as error:
        assert_same_storage(layer, x, merged=MERGED, like=FlatGates(flat, (D, H)))
    assert (error.value.axis, error.value.parameter) == ("features", None)


def test_an_optimiser_that_takes_merged_heads_for_a_matrix_is_found():
    layer = linear((H, D), use_bias=False)
    loss = lambda layer, x: axn.square(layer(x)).mean()  # noqa: E731
    with pytest.raises(ClaimError) as error:
        assert_same_storage(loss, layer, draw(B, E), merged=MERGED, optimizer=optax.contrib.muon(0.1))
    assert str(error.value).splitlines()[0] == (
        "assert_same_storage: with heads, head_dim merged into features, the update of 0.weight is another"
    )
    assert (error.value.axis, error.value.layer) == ("features", "0")


def test_axes_that_cannot_be_merged_are_errors():
    layer, x = Gates(linear((H, D))), draw(B, E)
    fails(
        ArgumentError,
        "assert_same_storage: cannot merge 'heads', 'dim' into 'features'\n"
        "  no array has all of them; axes: embed=4, heads=2, head_dim=3, batch=3",
        lambda: assert_same_storage(layer, x, merged={"features": ("heads", "dim")}),
    )
    fails(
        ArgumentError,
        "assert_same_storage: cannot merge 'heads', 'head_dim' into 'embed'\n  arrays have axis 'embed' already",
        lambda: assert_same_storage(layer, x, merged={"embed": ("heads", "head_dim")}),
    )
    fails(
        ArgumentError,
        "assert_same_storage: like must hold arrays at the same paths as the function\n"
        "  missing: proj.bias, proj.weight\n  unknown: bias, weight",
        lambda: assert_same_storage(layer, x, merged=MERGED, like=linear(F)),
    )


def test_something_must_be_stored():
    fails(
        ArgumentError,
        "assert_same_storage: no argument has two named axes, and no module has stacked layers",
        lambda: assert_same_storage(lambda x: x, draw(B)),
    )
