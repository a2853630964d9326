"""`BatchNorm`, against float64 numpy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisClashError, AxisError, AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import check_on, draw, same, same_trees, value_and_gradients

pytestmark = pytest.mark.sampled

B, H, C = axn.make_axes(batch=8, height=3, mlp=4)


def drawn(layer):
    parts = [None if p is None else draw(*p.axes, seed=5 + i) for i, p in enumerate((layer.weight, layer.bias))]
    return eqx.tree_at(lambda n: (n.weight, n.bias), layer, parts, is_leaf=lambda leaf: leaf is None)


def train(layer, x):
    return layer(x, layer.initial_state())[0]


def by_hand(parameters, x):
    """Normalise over all but the last dimension, with one pass of jnp."""
    weight, bias = parameters
    at = tuple(range(x.ndim - 1))
    return axn.named((x.array - x.array.mean(at)) / jnp.sqrt(x.array.var(at) + 1e-5) * weight + bias, x.names)


def test_a_batch_and_its_gradients():
    layer, x = drawn(nn.BatchNorm.init(C, ("batch", H))), draw(B, H, C) * 3 + 5
    out, (gradients, (dx,)) = value_and_gradients(train)(layer, x)
    array = np.asarray(x.array, np.float64)
    expected = (array - array.mean((0, 1))) / np.sqrt(array.var((0, 1)) + 1e-5)
    same(out, x.names, expected * np.asarray(layer.weight.array) + np.asarray(layer.bias.array))
    _, (others, (dx_expected,)) = value_and_gradients(by_hand)((layer.weight.array, layer.bias.array), x)
    same(gradients.weight, ("mlp",), others[0])
    same(gradients.bias, ("mlp",), others[1])
    same(dx, x.names, dx_expected.array)
    moved = x.rearrange(("mlp", "batch", "height"))
    same(train(layer, moved), moved.names, out.rearrange(moved.names).array)


def test_running_statistics():
    layer = nn.BatchNorm.init(C, "batch", 0.1, 0.25, use_weight=False, use_bias=False)
    state = layer.initial_state()
    mean, var = np.zeros(4), np.ones(4)
    for seed in range(3):
        x = draw(B, C, seed=seed) * 2 + 1
        _, state = layer(x, state)
        array = np.asarray(x.array, np.float64)
        mean, var = 0.75 * mean + 0.25 * array.mean(0), 0.75 * var + 0.25 * array.var(0, ddof=1)
    same(state.mean, ("mlp",), mean)
    same(state.var, ("mlp",), var)
    y, kept = layer(x, state, inference=True)
    assert kept is state
    same(y, x.names, (array - mean) / np.sqrt(var + 0.1))
    fixed = nn.BatchNorm.init(C, "batch", inference=True)
    assert fixed(x, state)[1] is state
    assert fixed(x, state, inference=False)[1] is not state


def test_no_gradient_goes_through_the_state():
    layer = nn.BatchNorm.init(C, "batch")
    total = lambda x: layer(x, layer.initial_state())[1].var.sum().scalar()  # noqa: E731
    assert not jax.grad(total)(draw(B, C)).array.any()


def test_several_kept_axes_and_dtypes():
    layer, x = nn.BatchNorm.init((H, C), "batch"), (draw(B, C, H) + 100).astype(jnp.bfloat16)
    y, state = layer(x, layer.initial_state())
    assert (y.dtype, state.mean.dtype) == (jnp.bfloat16, jnp.float32)
    array = np.asarray(x.array, np.float64)
    same(y, x.names, (array - array.mean(0)) / np.sqrt(array.var(0) + 1e-5), rtol=0.01, atol=0.01)
    same(state.mean, ("height", "mlp"), 0.1 * array.mean(0).T, rtol=1e-4)


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
def test_on_a_mesh(mode, request):
    mesh, layer, x = request.getfixturevalue(mode), drawn(nn.BatchNorm.init(C, ("batch", "height"))), draw(B, H, C)
    check_on(mesh, train, layer, x)
    mapping = {"batch": "data", "mlp": "model"}
    with axn.set_mesh(mesh):
        run = axn.named_jit(lambda x: layer(x, layer.initial_state()), mapping)
        _, state = run(axn.shard(x, mapping))
    same_trees(state, layer(x, layer.initial_state())[1])


def test_in_a_shard_map_the_batch_is_whole(auto_mesh):
    layer, x = drawn(nn.BatchNorm.init(C, (B, "height"))), draw(B, H, C)
    run = axn.shard_map(lambda x: layer(x, layer.initial_state()), {"batch": "data"}, auto_mesh)
    for one, other in zip(run(x), layer(x, layer.initial_state()), strict=True):
        same_trees(one, other)


def test_errors():
    layer = nn.BatchNorm.init(C, ("batch", "height"))
    state = layer.initial_state()
    with pytest.raises(AxisNotFoundError) as error:
        layer(draw(B, C), state)
    assert str(error.value) == "BatchNorm: no axis named 'height'\n  array has: batch=8, mlp=4"
    with pytest.raises(AxisError) as error:
        layer(draw(B, H, C, axn.Axis("width", 2)), state)
    rest = "which the layer neither keeps statistics of nor normalises over\n  input has: "
    lines = "\n  keeps: mlp=4\n  normalises over: batch, height"
    assert str(error.value) == (
        f"BatchNorm: the input has axis 'width', {rest}batch=8, height=3, mlp=4, width=2{lines}"
    )
    with pytest.raises(AxisError) as error:
        layer(draw(axn.Axis("width", 2), B, H, C).untag("width"), state)
    assert str(error.value) == (
        f"BatchNorm: the input has a dimension without name, {rest}anonymous (2,), batch=8, height=3, mlp=4{lines}"
    )
    with pytest.raises(AxisSizeError) as error:
        layer(draw(B.resize(1), H.resize(1), C), state)
    assert str(error.value) == (
        "BatchNorm: a variance needs more than 1 element\n  input has: batch=1, height=1, mlp=4\n"
        "  hint: pass inference=True to use the running statistics"
    )
    for inference in (False, True):
        with pytest.raises(AxisSizeError) as error:
            nn.BatchNorm.init(C, ("batch", H))(draw(B, H.resize(2), C), state, inference=inference)
        assert str(error.value) == (
            "BatchNorm: axis 'height' of the input has size 2, but the layer was made for 3\n"
            "  input has: batch=8, height=2, mlp=4"
        )
    with pytest.raises(AxisClashError) as error:
        nn.BatchNorm.init(C, ("batch", "mlp"))
    assert str(error.value) == "BatchNorm.init: axis 'mlp' is both kept and normalised over"
    with pytest.raises(OperandError) as error:
        nn.BatchNorm.init(C, ())
    assert str(error.value) == "BatchNorm.init: there is no axis to normalise over"
