"""Products in 8-bit floating point, against numpy in float64 that rounds by ml_dtypes."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import axonym as axn
from axonym import nn, quant
from axonym.errors import ArgumentError
from tests.nn.layouts import apply, check_on, draw, same_trees, value_and_gradients

pytestmark = pytest.mark.sampled

B, S, E, M = axn.make_axes(batch=8, seq=3, embed=16, mlp=32)
Layers = axn.Axis("layers", 3)
KEY = jax.random.key(0)
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
PRODUCTS = [
    ("bk,kn->bn", (((1,), (0,)), ((), ()))),
    ("kb,nk->bn", (((0,), (1,)), ((), ()))),
    ("gbk,kgn->gbn", (((2,), (0,)), ((0,), (1,)))),
]
SIZES = {"b": 6, "k": 16, "n": 5, "g": 2}


def rounded(x, dtype, history=None):
    """Divide, clip, round and multiply, in float64 but for the rounding."""
    limit = float(ml_dtypes.finfo(dtype).max)
    magnitude = np.abs(x).max() if history is None else history.max()
    scale = np.float32(magnitude) / np.float32(limit) if magnitude else np.float32(1)
    divided = np.clip(np.asarray(x, np.float32) / scale, -limit, limit)
    return divided.astype(dtype).astype(np.float64) * np.float64(scale)


def emulated(equation, left, right, gradient, histories=(None, None, None)):
    """Return a product and the gradients of its operands."""
    (a, b), out = equation.split("->")[0].split(","), equation.split("->")[1]
    left, right = rounded(left, E4M3, histories[0]), rounded(right, E4M3, histories[1])
    gradient = rounded(gradient, E5M2, histories[2])
    return (
        np.einsum(equation, left, right),
        np.einsum(f"{out},{b}->{a}", gradient, right),
        np.einsum(f"{out},{a}->{b}", gradient, left),
    )


@functools.partial(jax.jit, static_argnums=4)
def product_and_gradients(dot_general, left, right, gradient, numbers):
    product, pull = jax.vjp(lambda *args: args[0](*args[1:], numbers), dot_general, left, right)
    state, *gradients = pull(gradient)
    return (product, *gradients), state


def operands(equation, seed=0):
    """Draw arrays whose scales are powers of two: a last bit of a scale would decide between two neighbours."""
    rng = np.random.default_rng(seed)
    shapes = [[SIZES[letter] for letter in part] for part in equation.replace("->", ",").split(",")]
    drawn = [rng.uniform(-1, 1, shape).astype(np.float32) * 1.75 for shape in shapes]
    for x in drawn:
        x.flat[7] = -1.75
    return [x * np.float32(2.0**size) for x, size in zip(drawn, (2, -6, -17), strict=True)]


@pytest.mark.parametrize(("equation", "numbers"), PRODUCTS)
def test_current_scaling(equation, numbers):
    left, right, gradient = operands(equation)
    found, state = product_and_gradients(quant.Fp8CurrentDotGeneral(), left, right, gradient, numbers)
    for one, other in zip(found, emulated(equation, left, right, gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6 * np.abs(other).max())
    assert jax.tree.leaves(state) == []
    exact = np.einsum(equation, left, right)
    assert np.abs(found[0] - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize(("equation", "numbers"), PRODUCTS)
def test_delayed_scaling_over_steps(equation, numbers):
    dot_general = quant.Fp8DotGeneral.init(amax_history_length=3)
    histories = [np.zeros(3, np.float32) for _ in range(3)]
    for step in range(5):
        # The magnitudes go up and down: later steps are clipped, or divided by what has been long ago.
        arrays = [x * [1, 4, 0.5, 0.25, 8][step] for x in operands(equation, step)]
        found, dot_general = product_and_gradients(dot_general, *arrays, numbers)
        for one, other in zip(found, emulated(equation, *arrays, histories), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6 * np.abs(other).max())
        histories = [np.append(np.abs(x).max(), old[:-1]) for x, old in zip(arrays, histories, strict=True)]
        assert isinstance(dot_general, quant.Fp8DotGeneral)
        for one, other in zip(jax.tree.leaves(dot_general), histories, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_is_too_large_is_clipped_and_what_is_not_finite_is_not_remembered():
    left, right, gradient = operands(PRODUCTS[0][0])
    seen = quant.Fp8DotGeneral(*(jnp.full(2, np.abs(x).max()) for x in (left, right, gradient)))
    left[0, 0] = np.inf
    gradient[1, 1] = 1e30
    found, after = product_and_gradients(seen, left, right, gradient, PRODUCTS[0][1])
    assert all(np.isfinite(x).all() for x in found)
    np.testing.assert_array_equal(after.input_amax_history, [0, seen.input_amax_history[0]])
    np.testing.assert_array_equal(after.output_grad_amax_history, [np.float32(1e30), seen.output_grad_amax_history[0]])
    left[0, 0] = np.nan
    found, after = product_and_gradients(seen, left, right, gradient, PRODUCTS[0][1])
    assert np.isnan(found[0][0]).all()
    assert np.isfinite(found[0][1:]).all()
    assert after.input_amax_history[0] == 0


def test_a_history_of_a_narrow_dtype_does_not_remember_what_it_cannot_hold():
    left, right, gradient = operands(PRODUCTS[0][0])
    narrow = jax.tree.map(lambda x: x.astype(jnp.float16), quant.Fp8DotGeneral.init(2))
    _, after = product_and_gradients(narrow, left * np.float32(1e5), right, gradient, PRODUCTS[0][1])
    assert after.input_amax_history.tolist() == [0, 0]
    found, _ = product_and_gradients(after, left, right, gradient, PRODUCTS[0][1])
    assert np.isfinite(found[0]).all()


def test_init_of_a_subclass_makes_the_subclass():
    class Own(quant.Fp8DotGeneral): ...

    assert type(Own.init(2)) is Own


def test_arrays_of_zeros():
    zeros = [np.zeros_like(x) for x in operands(PRODUCTS[0][0])]
    for dot_general in (quant.Fp8CurrentDotGeneral(), quant.Fp8DotGeneral.init(2)):
        found, _ = product_and_gradients(dot_general, *zeros, PRODUCTS[0][1])
        assert all((x == 0).all() for x in found)


def test_the_products_are_of_8_bits_in_both_directions():
    left, right, gradient = operands(PRODUCTS[0][0])
    for dot_general in (quant.Fp8CurrentDotGeneral(), quant.Fp8DotGeneral.init(2)):
        text = product_and_gradients.lower(dot_general, left, right, gradient, PRODUCTS[0][1]).as_text()
        dtypes = re.findall(r"dot_general.*x(\w+)>, tensor<.*x(\w+)>\) -> tensor<.*x(\w+)>", text)
        assert dtypes == [("f8E4M3FN", "f8E4M3FN", "f32"), *[("f8E5M2", "f8E4M3FN", "f32")] * 2]


def test_dtypes():
    left, right, gradient = (jnp.asarray(x, jnp.bfloat16) for x in operands(PRODUCTS[0][0]))
    for dot_general in (
        quant.Fp8CurrentDotGeneral(),
        jax.tree.map(lambda x: x.astype(jnp.bfloat16), quant.Fp8DotGeneral.init(2)),
    ):
        found, state = product_and_gradients(dot_general, left, right, gradient, PRODUCTS[0][1])
        assert [x.dtype for x in found] == [jnp.bfloat16] * 3
        assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(state))
    expected = emulated(PRODUCTS[0][0], *(np.asarray(x, np.float64) for x in (left, right, gradient)))
    found, _ = product_and_gradients(quant.Fp8CurrentDotGeneral(), left, right, gradient, PRODUCTS[0][1])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), other, rtol=2**-7, atol=1e-6 * np.abs(other).max())
    wide = quant.Fp8CurrentDotGeneral()(left, right, PRODUCTS[0][1], preferred_element_type=jnp.float32)
    assert wide.dtype == jnp.float32


# inside of models
def quantised(model, length=3):
    config = quant.QuantizationConfig(functools.partial(quant.Fp8DotGeneral.init, amax_history_length=length))
    return quant.quantize_linear_layers(model, config)


def warm(layer, seed):
    """Give a state a past, different in each layer of a stack."""
    state = jax.tree.map(
        lambda x: jnp.asarray(np.random.default_rng(seed).uniform(0.01, 2, x.shape), x.dtype), layer.dot_general
    )
    return eqx.tree_at(lambda layer: layer.dot_general, layer, state)


class Block(nn.MLP):
    """What gives back the axes that it takes, so that it can be stacked."""

    @staticmethod
    def init(*, key):
        mlp = quantised(nn.MLP.init(E, E, M, 1, key=key))
        return nn.MLP(tuple(warm(layer, i) for i, layer in enumerate(mlp.layers)), mlp.activation)


def fold(model, x):
    return model.fold(x)


def test_layers_in_a_loop_equal_layers_one_by_one_with_and_without_recomputation():
    x = draw(B, E)
    out, (unrolled, (dx,)) = value_and_gradients(fold)(nn.BlockSeq.init(Layers, Block)(key=KEY), x)
    for checkpointing in (False, True):
        model = nn.Stacked.init(Layers, Block, gradient_checkpointing=checkpointing)(key=KEY)
        assert model.stacked.layers[0].dot_general.input_amax_history.shape == (3, 3)
        other, (stacked, (dx_other,)) = value_and_gradients(fold)(model, x)
        same_trees((other, dx_other), (out, dx), atol=1e-4)
        for one, expected in zip(stacked.unstacked(), unrolled.blocks, strict=True):
            same_trees(one, expected, atol=1e-4)
    # The histories went on by one: each layer has seen its own input.
    first = unrolled.blocks[0].layers[0].dot_general
    np.testing.assert_allclose(first.input_amax_history[0], np.abs(x.array).max(), rtol=1e-6)
    before = Block.init(key=KEY).layers[0].dot_general
    np.testing.assert_array_equal(first.input_amax_history[1:], before.input_amax_history[:-1])


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    check_on(mesh, fold, nn.Stacked.init(Layers, Block)(key=KEY), draw(B, E))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_steps_with_a_state_that_was_made_on_a_mesh(transform, explicit_mesh):
    def make(key):
        return warm(quantised(nn.Linear.init(E, M, key=key)), 5)

    def step(layer, x):
        gradients = jax.grad(lambda layer: axn.sin(layer(x)).mean().scalar())(layer)
        overwrites, gradients = quant.partition_for_grad_overwrite(gradients)
        return quant.apply_updates(layer, jax.tree.map(lambda g: -g, gradients), overwrites)

    x = draw(B, E)
    expected = make(KEY)
    for _ in range(3):
        expected = jax.jit(step)(expected, x)
    with axn.set_mesh(explicit_mesh), axn.axis_mapping({"batch": "data", "mlp": "model"}):
        layer, given = axn.named_jit(make, {"mlp": "model"})(KEY), axn.shard(x, {"batch": "data"})
        types = jax.tree.map(jax.typeof, layer)
        for _ in range(3):
            layer = transform(step)(layer, given)
        assert jax.tree.map(jax.typeof, layer) == types
    same_trees(layer, expected)


def test_blocks_of_a_shard_map_share_the_largest_magnitude(auto_mesh):
    layer = quantised(nn.Linear.init(E, M, key=KEY, use_bias=False))
    x = draw(B, E)

    def loss(layer, x):
        return axn.square(layer(x)).sum().scalar()

    @axn.shard_map(mapping=axn.Mappings({}, {"batch": "data"}))
    def state_of_blocks(layer, x):
        return jax.grad(loss)(layer, x).dot_general

    expected = jax.grad(loss)(layer, x).dot_general
    with axn.set_mesh(auto_mesh):
        found = state_of_blocks(layer, x)
    same_trees(found, expected, rtol=1e-6)


def per_example(layer, x):
    return jax.vmap(layer)(x.untag("batch")).tag("batch")


def test_the_elements_of_a_batch_count_as_one_array():
    layer = warm(quantised(nn.Linear.init(E, M, key=KEY)), 5)
    x = draw(B, E)
    expected = value_and_gradients(apply)(layer, x)
    same_trees(value_and_gradients(per_example)(layer, x), expected)
    same_trees(value_and_gradients(lambda layer, x: axn.vmap(layer, "batch")(x))(layer, x), expected)


def test_layers_that_are_mapped_over_have_states_of_their_own():
    model = nn.Stacked.init(Layers, Block)(key=KEY)
    x = draw(B, E)
    _, (mapped, _) = value_and_gradients(lambda model, x: model.vmap(x))(model, x)
    for i, layer in enumerate(model.unstacked()):
        _, (alone, _) = value_and_gradients(apply)(layer, x)
        same_trees(mapped.get_layer(i), alone, atol=1e-4)


def test_errors():
    with pytest.raises(ArgumentError) as caught:
        quant.Fp8DotGeneral.init(0)
    assert str(caught.value) == "Fp8DotGeneral.init: amax_history_length must be at least 1 step, not 0"
