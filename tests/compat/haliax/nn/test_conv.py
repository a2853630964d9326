"""Convolutions against equinox: parameters, values, order of axes."""

import axonym.compat.haliax  # noqa: F401  # makes `haliax` resolve

# isort: split

import dataclasses

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

Batch, Height, Width, In, Out = hax.make_axes(batch=2, height=7, width=6, cin=4, cout=6)
KEY = jax.random.PRNGKey(0)
RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.normal(size=(2, 7, 4, 6)).astype(np.float32)  # channels in the middle
X = hax.named(IMAGE, (Batch, Height, In, Width))

SETTINGS = [
    {"stride": (1, 2), "padding": (2, 1), "dilation": (2, 1)},
    {"padding": ((0, 1), (2, 0)), "use_bias": False},
    {"groups": 2, "dilation": 2},
]
TRANSPOSED = [{"stride": (2, 3), "padding": (1, 0), "output_padding": (0, 2)}]


def filled(make, *args, **settings):
    """Make a layer, with parameters that need no compiled program."""
    shapes = eqx.filter_eval_shape(make, *args, key=KEY, **settings)
    return jax.tree.map(lambda leaf: jnp.asarray(RANDOM.normal(size=leaf.shape), leaf.dtype), shapes)


def check(ours, theirs):
    """Compare two layers, where that of equinox takes (channels, height, width)."""
    theirs = eqx.tree_at(lambda layer: layer.weight, theirs, ours.weight.array)
    if ours.bias is not None:
        theirs = eqx.tree_at(lambda layer: layer.bias, theirs, ours.bias.array[:, None, None])
    expected = np.moveaxis(jax.vmap(theirs)(jnp.moveaxis(IMAGE, 2, 1)), 1, 2)
    out = ours(X)
    assert type(out) is hax.NamedArray
    assert out.axes == (Batch, Height.resize(expected.shape[1]), Out, Width.resize(expected.shape[3]))
    np.testing.assert_allclose(out.array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_conv(settings):
    ours = filled(hnn.Conv.init, (Height, "width"), In, Out, kernel_size=(3, 2), **settings)
    check(ours, filled(eqx.nn.Conv2d, 4, 6, (3, 2), **settings))
    inner = In.resize(4 // settings.get("groups", 1))
    assert ours.weight.axes == (Out, inner, Height.resize(3), Width.resize(2))


@pytest.mark.parametrize("settings", TRANSPOSED + SETTINGS[-1:], ids=str)
def test_conv_transpose(settings):
    ours = filled(hnn.ConvTranspose.init, ("height", Width), In, Out, kernel_size=(3, 2), **settings)
    check(ours, filled(eqx.nn.ConvTranspose2d, 4, 6, (3, 2), **settings))


@pytest.mark.parametrize("layer", [hnn.Conv, hnn.ConvTranspose])
def test_parameters(layer):
    made = layer.init((Height, Width), In, Out, 3, groups=2, key=KEY)
    weight_key, bias_key = jax.random.split(KEY, 2)
    limit = 1 / np.sqrt(3 * 3 * 2)
    assert type(made.weight) is type(made.bias) is hax.NamedArray
    assert made.bias.axes == (Out,)
    weight = jax.random.uniform(weight_key, (6, 2, 3, 3), minval=-limit, maxval=limit)
    np.testing.assert_allclose(made.weight.array, weight, rtol=1e-6)
    np.testing.assert_allclose(made.bias.array, jax.random.uniform(bias_key, (6,), minval=-limit, maxval=limit), 1e-6)
    expected = {"Spatial": (Height, Width), "In": In, "Out": Out, "kernel_size": (3, 3), "stride": (1, 1)}
    expected |= {"padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 2}
    assert {name: getattr(made, name) for name in expected} == expected
    assert len(jax.tree.leaves(made)) == 2
    assert hash(dataclasses.replace(made, weight=None, bias=None))


def test_fields_by_position():
    made = filled(hnn.Conv.init, "width", In, Out, 3)
    assert made.Spatial == ("width",)
    again = hnn.Conv(("width",), In, Out, made.weight, None, (3,), (1,), ((1, 1),), (1,), 1)
    assert again(X).axes == (Batch, Height, Out, Width)
    up = hnn.ConvTranspose(("width",), In, Out, made.weight, None, (3,), (2,), ((1, 1),), (1,), (1,), 1)
    assert up(X, key=None).axes == (Batch, Height, Out, Width.resize(12))


def test_inputs_of_any_size_and_any_batch():
    conv = filled(hnn.Conv.init, (Height, Width), In, Out, 3, padding=1)
    smaller = X["width", 0:4]
    assert conv(smaller).axes == (Batch, Height, Out, Width.resize(4))
    single = conv(X["batch", 0])
    assert single.axes == (Height, Out, Width)
    np.testing.assert_allclose(single.array, conv(X).array[0], rtol=1e-5, atol=1e-6)
    assert conv(X.unflatten_axis("batch", hax.make_axes(a=1, b=2))).axes == (
        *hax.make_axes(a=1, b=2),
        Height,
        Out,
        Width,
    )
    turned = eqx.tree_at(lambda layer: layer.weight, conv, conv.weight.rearrange(("width", "cin", "cout", "height")))
    np.testing.assert_allclose(turned(X).array, conv(X).array, rtol=1e-5, atol=1e-6)


def test_errors():
    conv = filled(hnn.Conv.init, (Height, Width), In, Out, 3)
    with pytest.raises(ValueError, match="the input lacks axis 'cin'"):
        conv(X.rename({"cin": "other"}))
    with pytest.raises(ValueError, match="'width'"):
        conv(X["width", 0])
    with pytest.raises(ValueError, match="the input already has axis 'cout'"):
        conv(X.broadcast_axis(Out))
    with pytest.raises(ValueError, match="3 groups do not divide"):
        hnn.Conv.init((Height, Width), In, Out, 3, groups=3, key=KEY)
    with pytest.raises(ValueError, match="kernel_size has 3 entries, but there are 2 axes"):
        hnn.Conv.init((Height, Width), In, Out, (3, 3, 3), key=KEY)


def test_a_step_of_training():
    conv = filled(hnn.Conv.init, (Height, Width), In, Out, 3)

    def loss(conv):
        return hax.mean(hax.square(conv(X))).scalar()

    run = eqx.filter_jit(eqx.filter_value_and_grad(loss))
    before, gradient = run(conv)
    stepped = jax.tree.map(lambda p, g: p - 0.1 * g, conv, gradient)
    assert gradient.weight.axes == conv.weight.axes
    assert run(stepped)[0] < before
