"""Initialisers: shapes, names and the statistics that they promise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError
from axonym.nn import initializer as init
from tests.nn.layouts import lies

pytestmark = pytest.mark.sampled

In, Out = axn.make_axes(embed=64, mlp=512)
Experts, Heads, HeadDim = axn.make_axes(experts=3, heads=4, head_dim=8)
KEY = jax.random.key(0)


def test_fan_in_scales_by_the_root_of_the_number_of_inputs():
    weight = nn.fan_in(64, 2.0)(jax.random.key(0), (In, Out))
    assert weight.axes == (In, Out)
    # A normal distribution cut off at three has a standard deviation of 0.9866.
    np.testing.assert_allclose(np.std(weight.array), 0.9866 * 2 / 8, rtol=0.01)
    assert np.abs(weight.array).max() <= 3 * 2 / 8


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (init.zeros(), jax.nn.initializers.zeros),
        (init.ones(), jax.nn.initializers.ones),
        (init.constant(2.5), jax.nn.initializers.constant(2.5)),
        (init.normal(0.02), jax.nn.initializers.normal(0.02)),
        (init.truncated_normal(0.02), jax.nn.initializers.truncated_normal(0.02)),
        (init.uniform(0, 0.1), jax.nn.initializers.uniform(0.1)),
        (init.lecun_normal(In="embed"), jax.nn.initializers.lecun_normal()),
        (init.lecun_uniform(Out=Out), jax.nn.initializers.lecun_uniform()),
        (init.glorot_normal(In="embed"), jax.nn.initializers.glorot_normal()),
        (init.glorot_uniform(In="embed", Out="mlp"), jax.nn.initializers.glorot_uniform()),
        (init.he_normal(In=In), jax.nn.initializers.he_normal()),
        (init.he_uniform(Out="mlp"), jax.nn.initializers.he_uniform()),
        (
            init.variance_scaling(3.0, "fan_out", "normal", In="embed"),
            jax.nn.initializers.variance_scaling(3.0, "fan_out", "normal"),
        ),
    ],
)
def test_draws_what_jax_draws(ours, theirs):
    weight = ours(KEY, (In, Out))
    assert weight.axes == (In, Out)
    assert weight.dtype == jnp.float32
    np.testing.assert_allclose(weight.array, theirs(KEY, (64, 512)), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "theirs"),
    [
        (functools.partial(init.constant, 2.5), jax.nn.initializers.constant(2.5)),
        (functools.partial(init.he_normal, In="embed"), jax.nn.initializers.he_normal()),
        (functools.partial(init.he_uniform, In="embed"), jax.nn.initializers.he_uniform()),
    ],
)
def test_dtype(make, theirs):
    weight = make(dtype=jnp.bfloat16)(KEY, (In, Out))
    assert weight.dtype == jnp.bfloat16
    expected = theirs(KEY, (64, 512), jnp.bfloat16)
    np.testing.assert_allclose(weight.array.astype(float), expected.astype(float), rtol=0.01)


@pytest.mark.parametrize("make", [init.normal, init.truncated_normal])
def test_a_scale_of_numpy_leaves_the_dtype(make):
    weight, expected = (make(scale, dtype=jnp.bfloat16)(KEY, (In, Out)) for scale in (np.float64(0.5), 0.5))
    assert weight.dtype == jnp.bfloat16
    np.testing.assert_array_equal(weight.array, expected.array)


def test_axes_that_are_neither_are_not_counted():
    axes = (Experts, Out, In)
    std = float(init.lecun_normal(In="embed", Out="mlp")(KEY, axes).std().array)
    np.testing.assert_allclose(std, 64**-0.5, rtol=0.02)
    # With one side given, the rest is the other.
    std = float(init.variance_scaling(mode="fan_out", In="embed")(KEY, axes).std().array)
    np.testing.assert_allclose(std, (3 * 512) ** -0.5, rtol=0.02)
    several = init.he_normal(In=("heads", "head_dim"), Out="mlp")(KEY, (Heads, Out, HeadDim))
    np.testing.assert_allclose(float(several.std().array), (2 / 32) ** 0.5, rtol=0.02)


def test_a_name_on_both_sides():
    Kept = In.derive("out")
    given = init.glorot_normal(In="embed", Out="embed")(KEY, (In, Kept))
    np.testing.assert_array_equal(given.array, init.glorot_normal(In="embed")(KEY, (In, Kept)).array)
    np.testing.assert_allclose(float(given.std().array), 64**-0.5, rtol=0.05)


def test_layers_tell_their_sides():
    for layer, std in [
        (nn.Linear.init((Heads, HeadDim), Out, key=KEY, initializer=init.he_normal()), (2 / 32) ** 0.5),
        (nn.Linear.init(In, In, key=KEY, out_first=True, initializer=init.lecun_uniform()), 1 / 8),
        (nn.MLP.init(In, Out, 16, 1, key=KEY, initializer=init.he_uniform()).layers[1], (2 / 16) ** 0.5),
        (nn.Linear.init(Out, In, key=KEY, initializer=init.lecun_normal(Out="mlp")), 1 / 8),  # told otherwise
    ]:
        np.testing.assert_allclose(float(layer.weight.std().array), std, rtol=0.05)
    plain = init.normal(0.02)
    assert init.between(plain, In, Out) is plain


def test_each_layer_of_a_stack_has_draws_of_its_own():
    stacked = nn.Stacked.init(Experts, nn.Linear)(In, HeadDim, key=KEY, initializer=init.lecun_normal())
    first, second, _ = (layer.weight.array for layer in stacked.unstacked())
    np.testing.assert_allclose(np.std(first), 1 / 8, rtol=0.1)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.2


def test_orthogonal():
    weight = init.orthogonal(2.0, In=("heads", "head_dim"), Out="embed")(KEY, (Experts, Heads, In, HeadDim))
    assert weight.axes == (Experts, Heads, In, HeadDim)
    matrices = np.asarray(weight.rearrange((Experts, Heads, HeadDim, In)).array).reshape(3, 32, 64)
    np.testing.assert_allclose(
        matrices @ matrices.swapaxes(1, 2), np.broadcast_to(4 * np.eye(32), (3, 32, 32)), atol=1e-5
    )
    assert abs(matrices[0] - matrices[1]).max() > 0.1
    layer = nn.Linear.init(HeadDim, HeadDim, key=KEY, initializer=init.orthogonal())
    np.testing.assert_allclose(layer.weight.array.T @ layer.weight.array, np.eye(8), atol=1e-5)
    narrow = nn.Linear.init(HeadDim, HeadDim, key=KEY, initializer=init.orthogonal(np.float32(1), dtype=jnp.bfloat16))
    np.testing.assert_array_equal(narrow.weight.array, layer.weight.array.astype(jnp.bfloat16))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    mapping = {"embed": "data", "mlp": "model"}
    for make in (init.he_normal(In="embed"), init.orthogonal(In="embed")):
        expected = make(KEY, (In, Out))
        with axn.set_mesh(mesh), axn.axis_mapping(mapping):
            weight = make(KEY, (In, Out))
        assert lies(weight, mesh, mapping)
        np.testing.assert_allclose(weight.array, expected.array, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            init.he_normal(),
            ArgumentError,
            "variance_scaling: cannot tell which axes are inputs: embed=64, mlp=512\n"
            "  hint: give In=..., Out=... or both",
        ),
        (
            init.he_normal(In="embd"),
            AxisNotFoundError,
            "variance_scaling: the parameter lacks axis 'embd'\n  axes: embed=64, mlp=512\n"
            "  hint: did you mean 'embed'?",
        ),
        (
            init.orthogonal(Out={"mlp": 4}),
            AxisSizeError,
            "orthogonal: axis 'mlp' was given with size 4, but the parameter has size 512\n  axes: embed=64, mlp=512",
        ),
        (
            init.orthogonal(In="mlp", Out=("embed", "mlp")),
            AxisClashError,
            "orthogonal: axis 'mlp' is both input and output\n  axes: embed=64, mlp=512",
        ),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error) as caught:
        make(KEY, (In, Out))
    assert str(caught.value) == text


def test_errors_of_words():
    with pytest.raises(ArgumentError) as caught:
        init.variance_scaling(mode="fan_inn")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "variance_scaling: unknown mode 'fan_inn'\n"
        "  there are: fan_in, fan_out, fan_avg\n  hint: did you mean 'fan_in'?"
    )
    with pytest.raises(ArgumentError) as caught:
        init.variance_scaling(distribution="cauchy")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "variance_scaling: unknown distribution 'cauchy'\n  there are: truncated_normal, normal, uniform"
    )
