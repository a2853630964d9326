"""Normalising layers and functions, against `jax.nn` and equinox."""

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
from haliax.nn.normalization import LayerNormBase

Batch, Height, Width = hax.make_axes(batch=3, height=4, width=5)
VALUES = np.random.default_rng(0).normal(2, 3, size=(3, 4, 5)).astype(np.float32)
X = hax.named(VALUES, (Batch, Height, Width))
LAYERS = [hnn.LayerNorm, hnn.RmsNorm]


def normalized(layer, values, at, eps):
    values = np.asarray(values, np.float64)
    centred = values - values.mean(at, keepdims=True) if issubclass(layer, hnn.LayerNorm) else values
    return centred / np.sqrt((centred**2).mean(at, keepdims=True) + eps)


def logsumexp(x, at):
    return np.log(np.exp(x.astype(np.float64)).sum(at, keepdims=True))


REFERENCES = {
    "softmax": lambda x, axis: np.exp(x - logsumexp(x, axis)),
    "log_softmax": lambda x, axis: x - logsumexp(x, axis),
}


def standardized(x, at, epsilon=1e-5, **where):
    centred = x - x.mean(at, keepdims=True, **where)
    return centred / np.sqrt((centred**2).mean(at, keepdims=True, **where) + epsilon)


def check(out, expected, rtol=1e-5):
    assert type(out) is hax.NamedArray
    assert out.axes == X.axes
    np.testing.assert_allclose(out.array.astype(jnp.float32), expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("axis", "at"),
    [(Width, 2), ([Width, Height], (1, 2)), ({"height": 4, "width": 5}, (1, 2))],
    ids=str,
)
def test_over_axes(layer, axis, at):
    norm = layer.init(axis, eps=1e-3)
    assert norm.axis == axis
    assert (norm.eps, norm.dtype) == (1e-3, None)
    assert type(norm.weight) is type(norm.bias) is hax.NamedArray
    assert norm.weight.dtype == norm.bias.dtype == jnp.float32
    check(norm(X), normalized(layer, VALUES, at, 1e-3))
    check(norm(X, key=None), normalized(layer, VALUES, at, 1e-3))


def test_weight_and_bias():
    layer = hnn.LayerNorm
    weight, bias = (hax.named(np.arange(5.0, dtype=np.float32) + n, Width) for n in (1, 7))
    expected = normalized(layer, VALUES, 2, 1e-5)
    check(layer(Width, weight, bias)(X), expected * np.arange(1, 6) + np.arange(7, 12))
    check(layer(Width, weight, None)(X), expected * np.arange(1, 6))
    check(layer(axis=Width, weight=None, bias=bias)(X), expected + np.arange(7, 12))
    check(layer(Width, None, None, 0.5)(X), normalized(layer, VALUES, 2, 0.5))
    bare = layer.init(Width, use_weight=False, use_bias=False)
    assert (bare.weight, bare.bias, bare.eps) == (None, None, 1e-5)
    check(bare(X), expected)
    turned = layer(Width, weight, bias)(X.rearrange(("width", "batch", "height")))
    assert turned.axes == (Width, Batch, Height)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_weight_with_all_axes_gives_its_order(layer):
    x = hax.named(VALUES[0], (Height, Width))
    expected = normalized(layer, VALUES[0], (0, 1), 1e-5)
    for options, axes in (({}, (Width, Height)), ({"use_weight": False}, (Height, Width))):
        out = layer.init((Width, Height), **options)(x)
        assert type(out) is hax.NamedArray
        assert out.axes == axes
        np.testing.assert_allclose(out.array, expected.T if options == {} else expected, rtol=1e-5, atol=1e-5)
    assert layer.init((Width, Height))(X).axes == X.axes


@pytest.mark.parametrize("layer", LAYERS)
def test_the_older_constructor(layer):
    for norm in (layer(Width, eps=1e-3), layer(Width, 1e-3)):
        assert (norm.axis, norm.eps) == (Width, 1e-3)
        assert norm.weight.axes == norm.bias.axes == (Width,)
        np.testing.assert_array_equal(norm.weight.array, np.ones(5))
        np.testing.assert_array_equal(norm.bias.array, np.zeros(5))
        check(norm(X), normalized(layer, VALUES, 2, 1e-3))
    assert layer(Width, use_bias=False).bias is None
    assert layer(Width, 1e-3, use_weight=False).weight is None


@pytest.mark.parametrize("layer", LAYERS)
def test_half_precision_is_computed_in_single(layer):
    x = (X + 300).astype(jnp.bfloat16)
    out = layer.init(Width)(x)
    assert out.dtype == jnp.bfloat16
    check(out, normalized(layer, x.array, 2, 1e-5), rtol=1e-2)
    assert layer.init(Width, dtype=jnp.float32).dtype == jnp.float32


def test_agrees_with_equinox():
    ours, theirs = hnn.LayerNorm.init((Height, Width)), eqx.nn.LayerNorm((4, 5))
    check(ours(X), jax.vmap(theirs)(jnp.asarray(VALUES)))
    check(hnn.RmsNorm.init(Width)(X), jax.vmap(jax.vmap(eqx.nn.RMSNorm(5)))(jnp.asarray(VALUES)))


@pytest.mark.parametrize("layer", LAYERS)
def test_as_a_module(layer):
    norm = layer.init(Width, eps=1e-3, use_bias=False)
    assert [leaf.shape for leaf in jax.tree.leaves(norm)] == [(5,)]
    assert [field.name for field in dataclasses.fields(norm)] == ["axis", "weight", "bias", "eps", "dtype"]
    replaced = dataclasses.replace(norm, eps=0.5)
    assert (replaced.eps, replaced.bias) == (0.5, None)
    doubled = eqx.tree_at(lambda n: n.weight, norm, norm.weight * 2)
    check(doubled(X), normalized(layer, VALUES, 2, 1e-3) * 2)
    Layers = hax.Axis("layers", 2)
    stacked = hax.vmap(layer.init, Layers)(Width)
    assert stacked.axis == Width
    assert {axis.name for axis in stacked.weight.axes} >= {"width"}
    gradient = eqx.filter_jit(eqx.filter_grad(lambda n: n(X).sum().scalar()))(norm)
    np.testing.assert_allclose(gradient.weight.array, normalized(layer, VALUES, 2, 1e-3).sum((0, 1)), rtol=1e-4)


def test_a_subclass_of_a_client():
    class ShiftedNorm(LayerNormBase):
        shift: float = eqx.field(static=True, default=1.0)

        def __call__(self, x):
            scale = hax.rsqrt(hax.mean(hax.square(x), self.axis) + self.eps)
            return x * scale * (self.shift + self.weight)

    norm = ShiftedNorm.init(Width, eps=0.5, use_bias=False)
    check(norm(X), 2 * normalized(hnn.RmsNorm, VALUES, 2, 0.5))
    assert isinstance(norm, LayerNormBase)
    with pytest.raises(TypeError, match="abstract"):
        LayerNormBase(Width, None, None)


def test_export():
    layer = hnn.RmsNorm
    weight = hax.named(VALUES[0], (Height, Width))
    norm = layer((Height, Width), weight, None)
    flat = norm.flatten_for_export()
    assert flat.axis == hax.Axis("__OUT", 20)
    assert flat.weight.axes == (hax.Axis("__OUT", 20),)
    np.testing.assert_array_equal(flat.weight.array, weight.array.reshape(-1))
    again = flat.unflatten_from_export(norm)
    assert (again.axis, again.weight.axes) == (norm.axis, norm.weight.axes)
    np.testing.assert_array_equal(again.weight.array, weight.array)
    single = layer.init(Width)
    assert single.flatten_for_export().weight.axes == (Width,)
    assert single.flatten_for_export().unflatten_from_export(single).axis == Width


def test_state_dict():
    norm = hnn.LayerNorm.init((Height, Width))
    state = norm.to_state_dict("ln")
    assert {key: value.shape for key, value in state.items()} == {"ln.weight": (4, 5), "ln.bias": (4, 5)}
    loaded = norm.from_state_dict({key: np.full((4, 5), 3, np.float32) for key in state}, "ln")
    assert type(loaded) is hnn.LayerNorm
    np.testing.assert_array_equal(loaded.bias.array, np.full((4, 5), 3))
    torch = hax.state_dict.to_torch_compatible_state_dict(norm)
    assert {key: value.shape for key, value in torch.items()} == {"weight": (20,), "bias": (20,)}
    assert list(hnn.RmsNorm.init(Width, use_bias=False).to_state_dict()) == ["weight"]


def test_errors_of_layers():
    with pytest.raises(ValueError, match="LayerNorm: the input lacks axis 'embed'"):
        hnn.LayerNorm.init(hax.Axis("embed", 5))(X)
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="axis 'width' of the input has size 5, but the layer was made for 6"):
            hnn.RmsNorm.init(Width.resize(6))(X)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("axis", "at"), [("width", 2), (("batch", Width), (0, 2)), ([Width], 2)], ids=str)
def test_softmax(name, axis, at):
    check(getattr(hnn, name)(X, axis), REFERENCES[name](VALUES, at))
    check(getattr(hnn, name)(X, axis=axis), REFERENCES[name](VALUES, at))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_that_gives_a_plain_array(name):
    reference = REFERENCES[name]
    for out, expected in (
        (getattr(hnn, name)(X), reference(VALUES, axis=None)),
        (getattr(hnn, name)(jnp.asarray(VALUES), -1), reference(VALUES, axis=-1)),
    ):
        assert isinstance(out, jax.Array)
        np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_softmax_over_an_axis_that_is_not_there():
    with pytest.raises(ValueError, match="axis 'embed' not found"):
        hnn.softmax(X, "embed")


@pytest.mark.parametrize(
    ("axis", "axes", "at"), [("width", (Batch, Height), 2), ((Batch, Width), (Height,), (0, 2)), (None, (), None)]
)
def test_logsumexp(axis, axes, at):
    out = hnn.logsumexp(X, axis)
    assert type(out) is hax.NamedArray
    assert out.axes == axes
    np.testing.assert_allclose(out.array, logsumexp(VALUES, at).reshape(out.array.shape), rtol=1e-5)
    both = hnn.logsumexp({"a": X, "b": X * 2}, axis)
    assert both["b"].axes == axes


def test_standardize():
    check(hnn.standardize(X, (Height, "width"), epsilon=0.1), standardized(VALUES, (1, 2), epsilon=0.1), 1e-4)
    mask = hax.arange(Width) < 3
    expected = standardized(VALUES, 2, where=np.arange(5) < 3)
    check(hnn.standardize(X, Width, where=mask), expected, 1e-4)
    mean, variance = hax.mean(X, Width), hax.var(X, Width)
    check(hnn.standardize(X, Width, mean=mean, variance=variance), standardized(VALUES, 2), 1e-4)
