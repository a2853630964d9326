"""`GroupNorm`, against Equinox and float64 numpy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError
from tests.nn.layouts import apply, check_on, draw, same, value_and_gradients

pytestmark = pytest.mark.sampled

B, H, W, C = axn.make_axes(batch=8, height=3, width=2, mlp=6)


def drawn(layer):
    parts = [None if p is None else draw(*p.axes, seed=5 + i) for i, p in enumerate((layer.weight, layer.bias))]
    return eqx.tree_at(lambda n: (n.weight, n.bias), layer, parts, is_leaf=lambda leaf: leaf is None)


def reference(layer, x):
    """Normalise in float64, without weight and bias."""
    names = ("batch", "mlp", "height", "width")
    array = np.asarray(x.rearrange(names).array, np.float64)
    at = tuple(2 + names[1:].index(name) for name in ("mlp", *layer.over))
    parts = array.reshape(8, layer.groups, -1, 3, 2)
    parts = parts - parts.mean(at, keepdims=True)
    out = (parts / np.sqrt((parts**2).mean(at, keepdims=True) + layer.eps)).reshape(array.shape)
    return axn.named(out.astype(np.float32), names).rearrange(x.names)


@pytest.mark.parametrize("order", [(B, H, W, C), (C, H, B, W)])
@pytest.mark.parametrize(("groups", "over"), [(2, ("height", W)), (3, "width"), (6, ()), (1, (H, W))])
def test_groups_and_axes(order, groups, over):
    x = draw(*order)
    plain = nn.GroupNorm.init(C, groups, over, use_weight=False, use_bias=False)
    if groups < 6:
        same(plain(x), x.names, reference(plain, x).array)
    else:  # one element at a time
        assert not plain(x).array.any()
    layer = drawn(nn.GroupNorm.init(C, groups, over, 0.1))
    same(layer(x, key=None), x.names, (reference(layer, x) * layer.weight + layer.bias).array)


def theirs(module, x):
    return axn.named(jax.vmap(module)(x.array), x.names)


def test_equals_equinox_with_its_gradients():
    ours, x = drawn(nn.GroupNorm.init(C, 3, (H, W))), draw(B, C, H, W)
    module = eqx.nn.GroupNorm(3, 6)
    module = eqx.tree_at(lambda n: (n.weight, n.bias), module, (ours.weight.array, ours.bias.array))
    out, (gradients, (dx,)) = value_and_gradients(apply)(ours, x)
    expected, (d_module, (dx_expected,)) = value_and_gradients(theirs)(module, x)
    same(out, x.names, expected.array)
    same(gradients.weight, ("mlp",), d_module.weight)
    same(gradients.bias, ("mlp",), d_module.bias)
    same(dx, x.names, dx_expected.array)


def test_dtypes_and_anonymous_dimensions():
    layer, x = nn.GroupNorm.init(C, 2, (H, W)), draw(B, H, C, W)
    out = layer((x + 100).astype(jnp.bfloat16))
    assert out.dtype == jnp.bfloat16
    same(out, x.names, reference(layer, (x + 100).astype(jnp.bfloat16).astype("float32")).array, rtol=0.01, atol=0.01)
    same(layer(x.untag("batch")), x.names[1:], layer(x).array)


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
def test_on_a_mesh(mode, request):
    check_on(request.getfixturevalue(mode), apply, drawn(nn.GroupNorm.init(C, 2, "width")), draw(B, W, C))


def test_errors():
    with pytest.raises(ArgumentError) as error:
        nn.GroupNorm.init(C, 4)
    assert str(error.value) == "GroupNorm.init: 4 groups do not divide mlp=6 evenly"
    with pytest.raises(AxisClashError, match=r"^GroupNorm.init: axis 'mlp' would appear twice$"):
        nn.GroupNorm.init(C, 2, C)
    layer = nn.GroupNorm.init(C, 2, "height")
    with pytest.raises(AxisNotFoundError) as error:
        layer(draw(B, C))
    assert str(error.value) == "GroupNorm: no axis named 'height'\n  array has: batch=8, mlp=6"
    with pytest.raises(AxisSizeError) as error:
        layer(draw(H, C.resize(4)))
    assert str(error.value) == (
        "GroupNorm: axis 'mlp' of the input has size 4, but the layer was made for 6\n  input has: height=3, mlp=4"
    )
    with pytest.raises(AxisSizeError) as error:
        nn.GroupNorm.init(C, 2, ("width", H))(draw(H.resize(4), W, C))
    assert str(error.value) == (
        "GroupNorm: axis 'height' of the input has size 4, but the layer was made for 3\n"
        "  input has: height=4, width=2, mlp=6"
    )
    with pytest.raises(ArgumentError) as error:
        nn.GroupNorm.init(C, 2.0)
    assert str(error.value) == "GroupNorm.init: groups must be an int, not 2.0"
