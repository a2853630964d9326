"""Linear layers of experts, against one product for each row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import apply, draw, fails, same, value_and_gradients
from tests.nn.routed import KEY, B, E, M, S, T, X, made

pytestmark = pytest.mark.sampled

SIZES = axn.named([3, 0, 2, 2], "experts")
OF_ROW = np.repeat(np.arange(4), [3, 0, 2, 2])


@pytest.mark.parametrize("out_first", [False, True])
@pytest.mark.parametrize("Out", [M, E], ids=["other", "same"])
def test_moe_linear_is_one_linear_map_per_expert(Out, out_first):
    layer = made(nn.MoELinear.init, X, E, Out, out_first=out_first)
    stored = "embed.out" if Out == E else "mlp"
    assert layer.weight.names == (("experts", stored, "embed") if out_first else ("experts", "embed", stored))
    assert layer.bias.names == ("experts", Out.name)
    weight, bias = layer.weight.rearrange((X, E, stored)).array, layer.bias.array
    x = draw(T, E)

    @jax.jit
    def reference(weight, bias, x):
        def loss(weight, bias, x):
            y = jnp.stack([row @ weight[e] + bias[e] for row, e in zip(x, OF_ROW, strict=True)])
            return jnp.sin(y).sum(), y

        (_, y), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(weight, bias, x)
        return y, gradients

    y, (dw, db, dx_expected) = reference(weight, bias, x.array)
    out, (gradients, (dx, _)) = value_and_gradients(apply)(layer, x, SIZES)
    same(out, ("token", Out.name), y)
    same(gradients.weight.rearrange((X, E, stored)), ("experts", "embed", stored), dw)
    same(gradients.bias, layer.bias.names, db)
    same(dx, ("token", "embed"), dx_expected)
    same(layer(x.rearrange((E, T)), SIZES, key=KEY), ("token", Out.name), y)
    each = draw(B, X, S, E)
    expected = np.einsum("bxse,xem->bxsm", each.array, weight) + bias[:, None]
    same(layer(each), ("batch", "experts", "seq", Out.name), expected)


def test_moe_linear_with_stretches_of_its_own_for_each_row_of_a_batch():
    layer = made(nn.MoELinear.init, X, E, M)
    x = draw(axn.Axis("batch", 2), T, E)
    sizes = axn.named([[3, 0, 2, 2], [0, 5, 1, 1]], ("batch", "experts"))
    out = layer(x, sizes)
    for i in range(2):
        same(out["batch", i], ("token", "mlp"), layer(x["batch", i], sizes["batch", i]).array)


def test_moe_linear_initial_values_and_dtypes():
    layer = nn.MoELinear.init(X, axn.Axis("embed", 100), axn.Axis("mlp", 50), key=KEY, init_scale=2.0)
    assert float(layer.weight.std()) == pytest.approx(2 * 0.9866 / 10, rel=0.02)
    assert not layer.bias.array.any()
    given = nn.MoELinear.init(X, E, M, key=KEY, use_bias=False, initializer=lambda key, axes: axn.ones(axes))
    assert given.bias is None
    counted = nn.MoELinear.init(X, M, M, key=KEY, initializer=nn.initializer.orthogonal(2.0)).weight.array
    np.testing.assert_allclose(counted @ counted.mT, np.broadcast_to(4 * np.eye(6), (4, 6, 6)), atol=1e-5)
    assert given(axn.ones((T, E), jnp.bfloat16), SIZES).dtype == jnp.float32
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), made(nn.MoELinear.init, X, E, M))
    out = half(draw(T, E).astype(jnp.bfloat16), SIZES)
    assert out.dtype == jnp.bfloat16
    full = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), half)(draw(T, E).astype(jnp.bfloat16), SIZES)
    np.testing.assert_allclose(np.asarray(out.array, float), full.array, rtol=0.03, atol=0.03)


def test_errors_of_moe_linear():
    layer = made(nn.MoELinear.init, X, E, M)
    fails(
        AxisNotFoundError,
        "MoELinear: the input lacks axis 'experts'\n"
        "  input has: token=7, embed=4\n"
        "  the layer works over: experts=4, embed=4",
        lambda: layer(draw(T, E)),
    )
    fails(
        OperandError,
        "MoELinear: elements must be sorted along one axis, but the candidates are: batch, seq\n"
        "  input has: batch=8, seq=3, embed=4\n"
        "  group_sizes has: experts=4\n"
        '  hint: flatten the axes first: x.flatten_axes((...), "token")',
        lambda: layer(draw(B, S, E), SIZES),
    )
    fails(
        OperandError,
        'MoELinear: group_sizes must be a NamedArray, not list\n  hint: axn.named(sizes, "experts")',
        lambda: layer(draw(T, E), [3, 0, 2, 2]),
    )
    with pytest.raises(AxisClashError, match=r"^MoELinear: the input already has axis 'mlp'"):
        layer(draw(T, E, M), SIZES)
    with pytest.raises(AxisSizeError, match="experts"):
        layer(draw(T, E), axn.named([3, 4], "experts"))
