"""`MLP`, against Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError
from tests.laws import count_equations
from tests.nn.layouts import apply, check_on, draw, same, value_and_gradients

pytestmark = pytest.mark.sampled

B, S, E, H, O = axn.make_axes(batch=8, seq=3, embed=4, heads=2, out=3)  # noqa: E741
KEY = jax.random.key(0)


def like(theirs: eqx.nn.MLP, **options) -> nn.MLP:
    ours = nn.MLP.init(E, O, 6, theirs.depth, key=KEY, out_first=True, **options)

    def copy(layer, other):
        pair = (axn.named(other.weight, layer.weight.names), axn.named(other.bias, layer.bias.names))
        return eqx.tree_at(lambda n: (n.weight, n.bias), layer, pair)

    return nn.MLP(tuple(map(copy, ours.layers, theirs.layers)), ours.activation)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_equals_equinox_with_its_gradients(depth):
    theirs = eqx.nn.MLP(4, 3, 6, depth, key=KEY)
    ours, x = like(theirs), draw(S, B, E)
    out, (gradients, (dx,)) = value_and_gradients(apply)(ours, x)

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def reference(both):
        y = jax.vmap(jax.vmap(both[0]))(both[1])
        return jnp.sin(y).sum(), y

    (_, y), (expected, dx_expected) = reference((theirs, x.array))
    same(out, ("seq", "batch", "out"), y)
    same(dx, ("seq", "batch", "embed"), dx_expected, atol=1e-4)
    for mine, other in zip(gradients.layers, expected.layers, strict=True):
        same(mine.weight, mine.weight.names, other.weight, atol=1e-4)
        same(mine.bias, mine.bias.names, other.bias, atol=1e-4)


def test_axes():
    mlp = nn.MLP.init((E, H), O, axn.Axis("hidden", 5), 2, key=KEY)
    assert [layer.weight.names for layer in mlp.layers] == [
        ("embed", "heads", "hidden"),
        ("hidden", "hidden.out"),
        ("hidden", "out"),
    ]
    assert (mlp.In, mlp.Out) == ((E, H), (O,))
    assert mlp(axn.ones((H, B, E))).names == ("batch", "out")
    assert nn.MLP.init(E, (), 5, 1, key=KEY)(axn.ones((B, E))).names == ("batch",)
    back = nn.MLP.init(E, E, 5, 1, key=KEY)
    assert back.layers[0].Out == (axn.Axis("mlp", 5),)
    assert back(axn.ones((B, E))).names == ("batch", "embed")


def test_every_weight_may_have_one_and_the_same_axis():
    mlp, x = nn.MLP.init(E, E, E, 2, key=KEY), draw(B, E)
    expected = x.array
    for i, layer in enumerate(mlp.layers):
        expected = expected @ layer.weight.array + layer.bias.array
        expected = jnp.maximum(expected, 0) if i < 2 else expected
    same(mlp(x, key=None), ("batch", "embed"), expected)


def test_options():
    mlp = nn.MLP.init(E, O, 6, 1, nn.gelu, key=KEY, use_bias=False)
    assert mlp.layers[0].bias is None
    assert mlp.layers[1].bias is not None
    final = nn.MLP.init(E, O, 6, 1, key=KEY, use_final_bias=False)
    assert final.layers[0].bias is not None
    assert final.layers[1].bias is None
    x = draw(B, E)
    hidden = jax.nn.gelu(x.array @ mlp.layers[0].weight.array)
    same(mlp(x), ("batch", "out"), hidden @ mlp.layers[1].weight.array)
    scaled = nn.MLP.init(E, O, 6, 1, key=KEY, init_scale=0.5)
    same(scaled.layers[0].weight, ("embed", "mlp"), mlp.layers[0].weight.array / 2)
    given = nn.MLP.init(E, O, 6, 1, key=KEY, initializer=lambda key, axes: axn.ones(axes))
    assert all(layer.weight.array.min() == 1 for layer in given.layers)
    values = [layer.weight.array.ravel()[:8] for layer in nn.MLP.init(E, E, 4, 2, key=KEY).layers]
    assert not np.allclose(values[0], values[1])


def test_it_goes_through_raw_jit():
    mlp, x = nn.MLP.init(E, O, 6, 1, key=KEY), draw(B, E)
    same(jax.jit(lambda m, x: m(x))(mlp, x), ("batch", "out"), mlp(x).array)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    check_on(mesh, apply, nn.MLP.init(E, E, 6, 2, key=KEY), draw(B, S, E))


def test_errors():
    with pytest.raises(ArgumentError) as error:
        nn.MLP.init(E, O, 6, -1, key=KEY)
    assert str(error.value) == "MLP.init: depth must not be negative, got -1"
    with pytest.raises(ArgumentError) as error:
        nn.MLP.init(E, O, 6, 2.0, key=KEY)
    assert str(error.value) == "MLP.init: depth must be an int, not 2.0"
    mlp = nn.MLP.init(E, O, 6, 2, key=KEY)
    with pytest.raises(AxisNotFoundError, match=r"^Linear: the input lacks axis 'embed'"):
        mlp(axn.ones(B))
    for name in ("mlp", "mlp.out"):
        with pytest.raises(
            AxisClashError, match=rf"^Linear: the input already has axis {name!r}, which the layer adds"
        ):
            mlp(axn.ones((axn.Axis(name, 6), E)))


# gated
@pytest.mark.parametrize("use_bias", [False, True])
def test_a_gated_mlp_and_its_gradients(use_bias):
    mlp, x = nn.GatedMLP.init((E, H), O, 6, nn.gelu, key=KEY, use_bias=use_bias), draw(S, H, B, E)
    filled = [draw(*leaf.axes, seed=i) for i, leaf in enumerate(jax.tree.leaves(mlp, is_leaf=axn.is_named_array))]
    mlp = jax.tree.unflatten(jax.tree.structure(mlp), [leaf.array for leaf in filled])
    out, (gradients, (dx,)) = value_and_gradients(apply)(mlp, x)

    @jax.jit
    @jax.value_and_grad
    def reference(both):
        (gate, up, down), x = both
        one = lambda layer, spelt, x: jnp.einsum(spelt, x, layer[0]) + (layer[1] if use_bias else 0)  # noqa: E731
        inner = jax.nn.gelu(one(gate, "shbe,ehm->sbm", x)) * one(up, "shbe,ehm->sbm", x)
        return jnp.sin(one(down, "sbm,mo->sbo", inner)).sum()

    arrays = [(layer.weight.array, layer.bias.array if use_bias else None) for layer in (mlp.gate, mlp.up, mlp.down)]
    value, (expected, dx_expected) = reference((arrays, x.array))
    assert float(axn.sin(out).sum()) == pytest.approx(float(value), rel=1e-3)
    assert out.names == ("seq", "batch", "out")
    same(dx, x.names, dx_expected, rtol=1e-3, atol=1e-3)
    for mine, theirs in zip((gradients.gate, gradients.up, gradients.down), expected, strict=True):
        same(mine.weight, mine.weight.names, theirs[0], rtol=1e-3, atol=1e-3)
        if use_bias:
            same(mine.bias, mine.bias.names, theirs[1], rtol=1e-3, atol=1e-3)


def test_axes_and_options_of_a_gated_mlp():
    mlp = nn.GatedMLP.init(E, E, axn.Axis("hidden", 5), key=KEY)
    assert (mlp.In, mlp.Out) == ((E,), (E,))
    assert [layer.weight.names for layer in (mlp.gate, mlp.up, mlp.down)] == [
        ("embed", "hidden"),
        ("embed", "hidden"),
        ("hidden", "embed"),
    ]
    assert mlp.gate.bias is mlp.down.bias is None
    assert mlp.activation is nn.silu
    assert not np.allclose(mlp.gate.weight.array, mlp.up.weight.array)
    assert mlp(axn.ones((B, E), jnp.bfloat16)).axes == (B, E)
    first = nn.GatedMLP.init(E, E, 5, key=KEY, out_first=True, init_scale=0.5)
    assert first.up.weight.names == ("mlp", "embed")
    same(first.up.weight.rearrange((E, "mlp")), ("embed", "mlp"), first.up.weight.array.T)
    x, plain = draw(B, E), nn.GatedMLP.init(E, E, 5, axn.tanh, key=KEY)
    by_hand = lambda gate, up, down, x: (jnp.tanh(x @ gate) * (x @ up)) @ down  # noqa: E731
    weights = [layer.weight.array for layer in (plain.gate, plain.up, plain.down)]
    assert count_equations(lambda mlp, x: mlp(x), plain, x) <= count_equations(by_hand, *weights, x.array)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_gated_mlp_on_a_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    check_on(mesh, apply, nn.GatedMLP.init(E, E, 6, key=KEY, use_bias=True), draw(B, S, E))


def test_layers_that_need_a_key_have_their_own():
    Wide = axn.Axis("embed", 64)
    for mlp in (nn.MLP.init(Wide, Wide, 64, 2, lambda x: x, key=KEY), nn.GatedMLP.init(Wide, Wide, 64, key=KEY)):
        adapted = nn.add_lora(mlp, 2, key=KEY, dropout=0.5)
        uppers = [layer for layer in jax.tree.leaves(adapted, is_leaf=is_lora) if is_lora(layer)]
        assert len(uppers) == 3
        x = axn.ones(Wide)
        masks = []
        for i, own in enumerate(jax.random.split(KEY, 3)):
            masks.append(np.asarray(uppers[i].dropout(x, key=own).array))
        assert len({mask.tobytes() for mask in masks}) == 3
        assert adapted(x, key=KEY).axes == (Wide,)


def is_lora(each) -> bool:
    return isinstance(each, nn.LoraLinear)
