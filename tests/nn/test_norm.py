"""`LayerNorm` and `RmsNorm`, against Equinox and float64 numpy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import apply, check_on, draw, same, value_and_gradients

pytestmark = pytest.mark.sampled

B, S, E, H = axn.make_axes(batch=8, seq=3, embed=4, heads=2)
KINDS = [nn.LayerNorm, nn.RmsNorm]


def reference(kind, x, at, eps=1e-5):
    x = np.asarray(x, np.float64)
    if kind is nn.LayerNorm:
        x = x - x.mean(at, keepdims=True)
    return x / np.sqrt((x**2).mean(at, keepdims=True) + eps)


def drawn(layer):
    """Give a layer parameters that differ from each other."""
    parts = [None if p is None else draw(*p.axes, seed=5 + i) for i, p in enumerate((layer.weight, layer.bias))]
    return eqx.tree_at(lambda n: (n.weight, n.bias), layer, parts, is_leaf=lambda leaf: leaf is None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [(B, H, E), (E, B, H), (H, E, B)], ids=str)
def test_several_axes_anywhere(kind, order):
    layer, x = drawn(kind.init((E, H))), draw(*order)
    names = tuple(axis.name for axis in order)
    at = tuple(names.index(name) for name in ("embed", "heads"))
    out = axn.named(reference(kind, x.array, at).astype(np.float32), names)
    same(layer(x), names, (out * layer.weight + layer.bias).rearrange(names).array)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_optional_and_start_at_one_and_zero(kind):
    x = draw(B, E)
    expected = reference(kind, x.array, -1)
    for use_weight in (False, True):
        for use_bias in (False, True):
            layer = kind.init(E, use_weight=use_weight, use_bias=use_bias)
            assert (layer.weight is None, layer.bias is None) == (not use_weight, not use_bias)
            same(layer(x), ("batch", "embed"), expected)
            layer = drawn(layer)
            moved = expected * (layer.weight.array if use_weight else 1) + (layer.bias.array if use_bias else 0)
            same(layer(x, key=None), ("batch", "embed"), moved)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.5])
def test_eps(kind, eps):
    x = draw(B, E) * 0.1
    same(kind.init(E, eps)(x), ("batch", "embed"), reference(kind, x.array, -1, eps))
    same(kind.init(E, eps=eps)(x), ("batch", "embed"), reference(kind, x.array, -1, eps))


@pytest.mark.parametrize("kind", KINDS)
def test_constant_inputs_are_finite_with_finite_gradients(kind):
    out, (_, (dx,)) = value_and_gradients(apply)(kind.init(E), axn.zeros((B, E)))
    assert not out.array.any()
    assert jnp.isfinite(dx.array).all()


@pytest.mark.parametrize("kind", KINDS)
def test_equals_equinox_with_its_gradients(kind):
    theirs = {nn.LayerNorm: eqx.nn.LayerNorm, nn.RmsNorm: eqx.nn.RMSNorm}[kind](4, eps=1e-4)
    ours, x = drawn(kind.init(E, 1e-4)), draw(B, E)
    theirs = eqx.tree_at(lambda n: (n.weight, n.bias), theirs, (ours.weight.array, ours.bias.array))
    out, (gradients, (dx,)) = value_and_gradients(apply)(ours, x)
    same(out, ("batch", "embed"), jax.vmap(theirs)(x.array))
    f = lambda n, x: jnp.sin(jax.vmap(n)(x)).sum()  # noqa: E731
    expected, dx_expected = eqx.filter_jit(jax.grad(f, argnums=(0, 1)))(theirs, x.array)
    same(gradients.weight, ("embed",), expected.weight)
    same(gradients.bias, ("embed",), expected.bias)
    same(dx, ("batch", "embed"), dx_expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_inputs_have_float32_statistics(kind, dtype):
    wide = axn.Axis("embed", 4096)
    x = (draw(wide) * 3 + 100).astype(dtype)
    layer = kind.init(wide)
    out = layer(x)
    assert out.dtype == dtype
    expected = reference(kind, x.array.astype(jnp.float32), -1)
    tolerance = float(jnp.finfo(dtype).eps)
    same(out, ("embed",), expected, rtol=tolerance, atol=tolerance)
    # With half-precision parameters as under mixed precision, too.
    same(jax.tree.map(lambda p: p.astype(dtype), layer)(x), ("embed",), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_the_dtype_to_compute_in(kind):
    x = draw(B, E).astype(jnp.bfloat16)
    narrow = kind.init(E, dtype=jnp.bfloat16)

    def kept(n):
        """Tell which dtypes the intermediate results have that the backward pass needs; sums are float32 anyway."""
        with nn.keep_intermediates():
            backward = jax.eval_shape(lambda x: jax.vjp(n, x)[1], x)
        return {str(leaf.dtype) for leaf in jax.tree.leaves(backward) if leaf.size == x.size}

    assert kept(narrow) == {"bfloat16"}
    assert "float32" in kept(kind.init(E))
    assert narrow(x).dtype == jnp.bfloat16
    assert kind.init(E, dtype="bfloat16").dtype == jnp.dtype(jnp.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
def test_float64_is_computed_in_float64(kind):
    with jax.enable_x64(True):
        x = axn.named(np.random.default_rng(0).normal(size=(8, 4)), ("batch", "embed"))
        assert x.dtype == jnp.float64
        out = kind.init(E)(x)
        assert out.dtype == jnp.float64
        same(out, ("batch", "embed"), reference(kind, x.array, -1), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_anonymous_dimensions(kind):
    layer, x = drawn(kind.init(E)), draw(B, S, E)
    same(layer(x.untag("batch")), ("seq", "embed"), layer(x).array)
    same(axn.vmap(layer, B)(x), ("batch", "seq", "embed"), layer(x).array)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_on_a_mesh(kind, mode, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[mode]
    check_on(mesh, apply, drawn(kind.init(E)), draw(B, S, E))
    # The normalised axis itself may be sharded.
    M = axn.Axis("mlp", 6)
    check_on(mesh, apply, drawn(kind.init((M, E))), draw(B, E, M))


@pytest.mark.parametrize("kind", KINDS)
def test_errors(kind):
    layer = kind.init((E, H))
    with pytest.raises(AxisNotFoundError) as error:
        layer(axn.ones((B, axn.Axis("Embed", 4), H)))
    assert str(error.value) == (
        f"{kind.__name__}: the input lacks axis 'embed'\n"
        "  input has: batch=8, Embed=4, heads=2\n"
        "  the layer works over: embed=4, heads=2\n"
        "  hint: did you mean 'Embed'?"
    )
    for layer in (kind.init(E), kind.init(E, use_weight=False, use_bias=False)):
        with pytest.raises(AxisSizeError) as error:
            layer(axn.ones((B, E.resize(6))))
        assert str(error.value) == (
            f"{kind.__name__}: axis 'embed' of the input has size 6, but the layer was made for 4\n"
            "  input has: batch=8, embed=6"
        )
    with pytest.raises(OperandError) as error:
        layer(jnp.ones(4))
    assert str(error.value).startswith(f"{kind.__name__}: expected a NamedArray, got a plain array\n  its shape: (4,)")
    with pytest.raises(OperandError, match=rf"^{kind.__name__}.init: axis 'embed' needs a size here"):
        kind.init("embed")
