"""What is kept for the backward pass: counted in the program and in compiled memory; values as those of `jax.nn`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym import nn
from tests.laws import count_equations
from tests.nn.layouts import draw, same

B, E = axn.make_axes(batch=8, embed=16)
ONE = B.size * E.size
ACTIVATIONS = [
    *("celu", "elu", "gelu", "hard_silu", "hard_tanh", "log_sigmoid", "mish", "quick_gelu", "relu", "relu6"),
    *(
        "relu_squared",
        "selu",
        "sigmoid",
        "silu",
        "soft_sign",
        "softplus",
        "sparse_plus",
        "sparse_sigmoid",
        "squareplus",
    ),
]


def kept(fn, *args):
    """Count what is kept for the backward pass, in elements of the largest input; masks weigh less than numbers."""

    def both(*args):
        return jax.tree.leaves(jax.vjp(fn, *args)[1])

    leaves = jax.eval_shape(both, *args)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / 4 / ONE


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_one_array(name):
    x, fn = draw(B, E), getattr(nn, name)
    assert kept(fn, x) <= 1.25  # of rectifiers their result and a mask
    with nn.keep_intermediates():
        most = kept(fn, x)
    assert most >= 1 if name in ("relu", "relu6", "sigmoid") else most > 1.25
    with nn.keep_intermediates(), nn.keep_intermediates(False):
        assert kept(fn, x) <= 1.25


def test_relu_keeps_its_result_alone():
    x = draw(B, E)
    assert kept(nn.relu, x) == 1
    with nn.keep_intermediates():
        assert kept(nn.relu, x) > 1


def test_glu_keeps_its_input():
    x = draw(B, E)
    assert kept(lambda x: nn.glu(x, "embed"), x) == 1
    with nn.keep_intermediates():
        assert kept(lambda x: nn.glu(x, "embed"), x) > 1


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RmsNorm])
def test_norms_keep_their_inputs(kind):
    layer, x = kind.init(E), draw(B, E).astype(jnp.bfloat16)
    # Two bytes a number, the weight, and a mean and a factor for each row; the derivative does not depend on the bias.
    rows = B.size * (2 if kind is nn.LayerNorm else 1)
    assert kept(lambda layer, x: layer(x), layer, x) == 1 / 2 + (E.size + rows) / ONE
    with nn.keep_intermediates():
        assert kept(lambda layer, x: layer(x), layer, x) > 2


def test_softmax_keeps_its_result_alone():
    x, mask = draw(B, E), draw(B, E, seed=1) > 0
    assert kept(lambda x: axn.softmax(x, "embed"), x) == 1
    assert kept(lambda x: axn.softmax(x, "embed", where=mask), x) == 1


def named(x):
    y = nn.silu(nn.LayerNorm.init(E)(nn.gelu(axn.NamedArray(x, ("embed",)))))
    return axn.softmax(y, "embed").array


def plain(x):
    y = jax.nn.gelu(x)
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return jax.nn.softmax(jax.nn.silu(y))


def derivatives(fn, x):
    def total(x):
        return jnp.sin(3 * fn(x)).sum()

    def each(x):
        along = jnp.cos(x)
        return jax.jvp(fn, (x,), (along,)), jax.jvp(jax.grad(total), (x,), (along,)), jax.vmap(jax.grad(total))(x)

    return jax.jit(each)(x)


def test_all_derivatives_are_those_of_plain_functions():
    x = draw(B, E).array
    expected = derivatives(plain, x)
    for keep in (False, True):
        with nn.keep_intermediates(keep):
            got = derivatives(named, x)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_wide_and_narrow_dtypes():
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(4, 16))
        slopes = [jax.jit(jax.grad(lambda x, fn=fn: (fn(x) ** 2).sum())) for fn in (named, plain)]
        got, expected = (slope(x) for slope in slopes)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    for dtype in (jnp.bfloat16, jnp.float16):
        narrow = x.astype(dtype)
        got = slopes[0](narrow)
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float32), expected, rtol=0.1, atol=0.01)


def test_an_explicit_layout_stays(explicit_mesh):
    def loss(x):
        return axn.softmax(nn.RmsNorm.init(E)(nn.gelu(x)), "embed").sum().scalar()

    with axn.set_mesh(explicit_mesh):
        x = axn.shard(draw(B, E), {"batch": "data", "embed": "model"})
        gradient = jax.eval_shape(jax.grad(loss), x)
        assert tuple(gradient.array.sharding.spec) == ("data", "model")


def test_any_function_of_arrays_can_keep_its_inputs():
    calls = []

    @nn.from_inputs
    def scaled(x, y, *, power):
        calls.append(power)
        return jnp.tanh(x) ** power * jnp.exp(y.array)

    x, y = draw(B, E).array, draw(B, E, seed=1)
    assert scaled.__name__ == "scaled"
    assert kept(lambda x, y: scaled(x, y, power=3), x, y) == 2
    with nn.keep_intermediates():
        assert kept(lambda x, y: scaled(x, y, power=3), x, y) > 2
    np.testing.assert_allclose(scaled(x, y, power=2), np.tanh(x) ** 2 * np.exp(y.array), rtol=1e-5)
    assert set(calls) == {2, 3}


def test_a_compiled_function_knows_what_to_keep():
    # The context is part of the key under which JAX keeps what it has traced and compiled.
    x, traced = draw(B, E), []

    @jax.jit
    def gradient(x):
        traced.append(1)
        return jax.grad(lambda x: nn.mish(x).sum().scalar())(x)

    first = gradient(x)
    with nn.keep_intermediates():
        same(gradient(x), ("batch", "embed"), first.array)
    gradient(x)
    assert len(traced) == 2


class Block(eqx.Module):
    """Two widths, and functions that keep much between them."""

    norm: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear

    @staticmethod
    def init(*, key):
        Wide = E.alias("wide").resize(64)
        one, other = jax.random.split(key)
        return Block(nn.LayerNorm.init(E), nn.Linear.init(E, Wide, key=one), nn.Linear.init(Wide, E, key=other))

    def __call__(self, x):
        return x + self.down(nn.gelu(self.up(self.norm(x))))


@pytest.mark.parametrize(("stack", "bar"), [(nn.Stacked, 0.5), (nn.BlockSeq, 0.8)])
def test_compiled_programs_need_less_memory(stack, bar):
    Many, Layers = axn.make_axes(batch=512, layers=8)
    x = draw(Many, E)
    model = stack.init(Layers, Block)(key=jax.random.key(0))

    def temporary(keep):
        with nn.keep_intermediates(keep):
            loss = lambda model: (model.fold(x) ** 2).mean().scalar()  # noqa: E731
            compiled = jax.jit(jax.grad(loss)).lower(model).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(False) < bar * temporary(True)


def plain_norm(x, weight, bias):
    y = x - x.mean(-1, keepdims=True)
    return y * lax.rsqrt((y**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def test_closed_forms_have_fewer_equations_than_what_is_computed_again():
    x, weight, bias = draw(B, E).array, draw(E).array, draw(E, seed=1).array

    def norm(x, weight, bias):
        parts = [axn.NamedArray(part, ("embed",)) for part in (weight, bias)]
        return nn.LayerNorm((E,), *parts)(axn.NamedArray(x, ("batch", "embed"))).array

    def gelu(x):
        return nn.gelu(axn.NamedArray(x, ("batch", "embed"))).array

    for ours, theirs, args in ((norm, plain_norm, (x, weight, bias)), (gelu, jax.nn.gelu, (x,))):
        each = tuple(range(len(args)))
        counts = [
            count_equations(jax.grad(lambda *args, fn=fn: jnp.sin(fn(*args)).sum(), each), *args)
            for fn in (ours, nn.from_inputs(theirs))
        ]
        assert counts[0] < counts[1]


@pytest.mark.parametrize("argument", [0, 1, 2], ids=["input", "weight", "bias"])
def test_a_norm_has_the_derivative_of_each_of_its_arguments(argument):
    args = draw(B, E).array, draw(E).array, draw(E, seed=1).array

    def norm(x, weight, bias):
        parts = [axn.NamedArray(part, ("embed",)) for part in (weight, bias)]
        return nn.LayerNorm((E,), *parts)(axn.NamedArray(x, ("batch", "embed"))).array

    def hessian_product(fn, args):
        total = lambda *args: jnp.sin(3 * fn(*args)).sum()  # noqa: E731
        slope = jax.grad(total, argument)
        along = [jnp.cos(arg) for arg in args]
        forward = jax.jvp(
            lambda own: fn(*args[:argument], own, *args[argument + 1 :]), [args[argument]], [along[argument]]
        )
        return slope(*args), forward, jax.jvp(slope, args, tuple(along))

    got, expected = (jax.jit(hessian_product, static_argnums=0)(fn, args) for fn in (norm, plain_norm))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
