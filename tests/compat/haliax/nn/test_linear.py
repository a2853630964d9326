"""`Linear` and `MoELinear`, against jax.random and numpy's einsum."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.nn as hnn
from haliax.nn.linear import gmm_sharded
from haliax.nn.mup import HiddenLinearMup, InputLinearMup, LinearStandardParam, OutputLinearMup, ReparamEnabled
from haliax.quantization import DefaultDotGeneralOp
from haliax.state_dict import (
    from_state_dict,
    from_torch_compatible_state_dict,
    to_state_dict,
    to_torch_compatible_state_dict,
)

from tests.compat.haliax.nn.arrays import draw, same, same_trees, zeros_like

Batch, Embed, Mlp, Heads, Head, Expert = hax.make_axes(batch=3, embed=4, mlp=6, heads=2, head=5, expert=6)
KEY = jax.random.PRNGKey(0)


def names(x):
    return tuple(axis.name for axis in x.axes)


def several(axes):
    return axes if isinstance(axes, tuple) else (axes,)


def make(In=Embed, Out=Mlp, *, out_first=True, reparam=LinearStandardParam):
    inputs, outputs = several(In), several(Out)
    weight = draw(*outputs, *inputs) if out_first else draw(*inputs, *outputs)
    return hnn.Linear(weight, draw(*outputs, seed=2), In, Out, _reparam_cls=reparam)


@pytest.mark.parametrize(
    ("In", "Out", "equation", "out_first"),
    [
        (Embed, Mlp, "be,em->bm", True),
        (Mlp, Embed, "be,em->bm", False),
        (Embed, (Heads, Head), "be,ehd->bhd", True),
        ((Heads, Head), Embed, "bhd,hde->be", False),
        ((), Mlp, "b,m->bm", True),
        (Mlp, (), "be,e->b", True),
    ],
)
def test_values_of_weight_and_result(In, Out, equation, out_first):
    layer = hnn.Linear.init(In, Out, key=KEY, out_first=out_first, init_scale=0.5)
    inputs, outputs = several(In), several(Out)
    axes = outputs + inputs if out_first else inputs + outputs
    fan_in = math.prod(axis.size for axis in inputs)
    drawn = jax.random.truncated_normal(KEY, -3, 3, [axis.size for axis in axes])
    same(layer.weight, axes, np.asarray(drawn) * (0.5 / math.sqrt(fan_in)))
    same(layer.bias, outputs, np.zeros([axis.size for axis in outputs]))
    assert (layer.In, layer.Out) == (In, Out)
    layer = dataclasses.replace(layer, bias=draw(*outputs, seed=2))
    x = draw(Batch, *inputs)
    weight = np.asarray(layer.weight.rearrange((*inputs, *outputs)).array)
    same(layer(x, key=KEY), (Batch, *outputs), np.einsum(equation, x.array, weight) + np.asarray(layer.bias.array))


def test_axes_of_the_input_keep_their_order():
    layer = make()
    assert names(layer(draw(Heads, Embed, Batch))) == ("heads", "batch", "mlp")
    assert layer(draw(Embed)).axes == (Mlp,)


def test_axes_are_kept_as_given():
    layer = hnn.Linear.init(Embed, (Heads, Head), key=KEY)
    assert layer.In is Embed
    assert layer.In.name == "embed"
    assert layer.Out == (Heads, Head)
    from_dict = hnn.Linear.init({"embed": 4}, [Mlp], key=KEY)
    assert jax.jit(lambda layer, x: layer(x))(from_dict, draw(Batch, Embed)).axes == (Batch, Mlp)


@pytest.mark.parametrize(
    ("x", "weight", "result"),
    [
        (jnp.bfloat16, jnp.float32, jnp.float32),
        (jnp.bfloat16, jnp.bfloat16, jnp.bfloat16),
        (jnp.float32, jnp.bfloat16, jnp.float32),
    ],
)
def test_dtypes_are_promoted(x, weight, result):
    layer = jax.tree.map(lambda leaf: leaf.astype(weight), make())
    assert layer(draw(Batch, Embed, dtype=x)).dtype == result


def test_older_spelling_of_the_constructor():
    new = hnn.Linear.init(Embed, (Heads, Head), key=KEY)
    for old in (
        hnn.Linear(Embed, (Heads, Head), key=KEY),
        hnn.Linear(In=Embed, Out=(Heads, Head), key=KEY),
        hnn.Linear(Out=(Heads, Head), In=Embed, key=KEY),
        hnn.Linear(Embed, Out=(Heads, Head), key=KEY),
    ):
        same_trees(old, new)
    assert hnn.Linear(Embed, Mlp, key=KEY, use_bias=False).bias is None


def test_constructor_from_fields():
    made = make()
    assert [field.name for field in dataclasses.fields(made)] == [
        "weight",
        "bias",
        "In",
        "Out",
        "dot_general",
        "_reparam_cls",
    ]
    layer = hnn.Linear(made.weight, None, Embed, Mlp)
    assert layer.bias is None
    assert isinstance(layer.dot_general, DefaultDotGeneralOp)
    assert layer._reparam_cls is LinearStandardParam
    same_trees(hnn.Linear(made.weight, made.bias, In=Embed, Out=Mlp), made)
    with pytest.raises(TypeError):
        hnn.Linear(made.weight, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        layer.bias = made.bias


def test_a_subclass_has_its_own_constructor():
    class Scaled(hnn.Linear):
        factor: float = 2.0

        def __call__(self, inputs, *, key=None):
            return super().__call__(inputs) * self.factor

    class Keyed(eqx.Module):
        inner: hnn.Linear

        def __init__(self, In, Out, *, key):
            self.inner = hnn.Linear(In=In, Out=Out, key=key)

    made, x = hnn.Linear.init(Embed, Mlp, key=KEY), draw(Batch, Embed)
    scaled = Scaled(made.weight, made.bias, made.In, made.Out, factor=3.0)
    same(scaled(x), (Batch, Mlp), 3 * np.asarray(made(x).array))
    same_trees(Keyed(Embed, Mlp, key=KEY).inner, made)


def test_tree_operations():
    layer = make()
    doubled = jax.tree.map(lambda leaf: np.asarray(leaf) * 2, layer)
    same(doubled.weight, (Mlp, Embed), 2 * np.asarray(layer.weight.array))
    swapped = eqx.tree_at(lambda each: each.weight, layer, doubled.weight)
    same_trees(eqx.combine(*eqx.partition(swapped, eqx.is_array)), dataclasses.replace(doubled, bias=layer.bias))
    grads = eqx.filter_grad(lambda layer, x: layer(x).sum().scalar())(layer, draw(Batch, Embed))
    assert type(grads.weight) is hax.NamedArray
    same(grads.bias, (Mlp,), np.full(6, 3.0))


def test_layers_along_an_axis_by_vmap():
    Layers = hax.Axis("layers", 2)
    keys = jax.random.split(KEY, 2)
    layers = hax.vmap(hnn.Linear.init, Layers)(Embed, Mlp, key=keys)
    assert layers.weight.axes == (Layers, Mlp, Embed)
    assert layers.In == Embed
    x = draw(Layers, Batch, Embed)
    result = hax.vmap(lambda layer, x: layer(x), Layers)(layers, x)
    expected = [hnn.Linear.init(Embed, Mlp, key=key)(x["layers", i]).array for i, key in enumerate(keys)]
    same(result, (Layers, Batch, Mlp), np.stack(expected))


def test_reparam():
    assert (hnn.Linear.input_reparam(), hnn.Linear.hidden_reparam(), hnn.Linear.output_reparam()) == (
        InputLinearMup,
        HiddenLinearMup,
        OutputLinearMup,
    )
    for choose in (hnn.Linear.input_reparam, hnn.Linear.hidden_reparam, hnn.Linear.output_reparam):
        assert choose(use_mup=False) is LinearStandardParam
    layer = hnn.Linear.init(Embed, Mlp, key=KEY, reparam_cls=hnn.Linear.output_reparam(True))
    assert isinstance(layer, ReparamEnabled)
    assert (layer.reparam.In, layer.reparam.Out, layer.reparam.active_scale) == (Embed, Mlp, 0.25)
    same(layer.weight, (Mlp, Embed), jax.random.truncated_normal(KEY, -3, 3, (6, 4)))
    x = draw(Batch, Embed)
    same(layer(x), (Batch, Mlp), np.asarray(x.array) @ np.asarray(layer.weight.array).T / 4)


def test_any_function_multiplies():
    calls = []

    def multiply(lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None):
        calls.append(dimension_numbers)
        return jax.lax.dot_general(lhs, rhs, dimension_numbers) * 2

    layer, x = hnn.Linear.init(Embed, Mlp, key=KEY, dot_general=multiply), draw(Batch, Embed)
    same(layer(x), (Batch, Mlp), 2 * np.asarray(x.array) @ np.asarray(layer.weight.array).T)
    assert len(calls) == 1
    jax.jit(lambda layer: layer)(layer)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: hnn.Linear.init(Embed, (Embed, Mlp), key=KEY), ValueError, "'embed' is in both In and Out"),
        (lambda: make()(draw(Batch)), ValueError, "lacks axis 'embed'"),
        (lambda: make()(draw(Embed, Mlp)), ValueError, "already has axis 'mlp'"),
        (lambda: make()(draw(Embed.resize(5))), ValueError, "has size 5"),
        (lambda: make()(draw(Embed.resize(5))), RuntimeError, "made for 4"),
        (lambda: make()(np.ones(4)), TypeError, "Linear"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("reparam", [LinearStandardParam, OutputLinearMup])
def test_state_dict(reparam):
    layer = make(Embed, (Heads, Head), reparam=reparam)
    state = to_state_dict(layer, "proj")
    assert sorted(state) == ["proj.bias", "proj.weight"]
    scale = 0.25 if reparam is OutputLinearMup else 1
    np.testing.assert_allclose(state["proj.weight"], np.asarray(layer.weight.array) * scale)
    assert state["proj.weight"].shape == (2, 5, 4)
    same_trees(from_state_dict(zeros_like(layer), state, "proj"), layer)
    assert list(to_state_dict(dataclasses.replace(layer, bias=None))) == ["weight"]


@pytest.mark.parametrize("out_first", [True, False])
@pytest.mark.parametrize(
    ("In", "Out"), [(Embed, Mlp), (Embed, (Heads, Head)), ((Heads, Head), Embed), ((), Mlp), (Embed, ())]
)
def test_export(In, Out, out_first):
    layer = make(In, Out, out_first=out_first, reparam=OutputLinearMup)
    inputs, outputs = (math.prod(axis.size for axis in several(axes)) for axes in (In, Out))
    flat = layer.flatten_for_export()
    assert (flat.In, flat.Out) == (hax.Axis("__IN__", inputs), hax.Axis("__OUT__", outputs))
    if In != () and Out != ():
        assert names(flat.weight) == (("__OUT__", "__IN__") if out_first else ("__IN__", "__OUT__"))
        assert flat.weight.size == inputs * outputs
        np.testing.assert_array_equal(np.ravel(np.asarray(flat.weight.array)), np.ravel(np.asarray(layer.weight.array)))
    assert flat.bias.axes == (flat.Out,)
    same_trees(flat.unflatten_from_export(layer), layer)
    state = to_torch_compatible_state_dict(layer, prefix="p")
    assert all(isinstance(value, np.ndarray) for value in state.values())
    np.testing.assert_allclose(state["p.weight"], np.asarray(flat.weight.array) / inputs, rtol=1e-6)
    abstract = eqx.filter_eval_shape(lambda: layer)
    loaded = from_torch_compatible_state_dict(abstract, state, prefix="p")
    same(loaded.weight, layer.weight.axes, layer.weight.array)
    same(loaded.bias, layer.bias.axes, layer.bias.array)


@pytest.mark.parametrize("out_first", [False, True])
def test_experts(out_first):
    Token = hax.Axis("token", 7)
    layer = hnn.MoELinear.init(Expert, Embed, Mlp, key=KEY, out_first=out_first, use_gmm=out_first, init_scale=2.0)
    axes = (Expert, Mlp, Embed) if out_first else (Expert, Embed, Mlp)
    drawn = jax.random.truncated_normal(KEY, -3, 3, [axis.size for axis in axes])
    same(layer.weight, axes, drawn)
    assert (layer.out_first, layer.use_gmm) == (out_first, out_first)
    same(layer.bias, (Mlp,), np.zeros(6))
    layer = dataclasses.replace(layer, bias=draw(Mlp, seed=3))
    x, group_sizes = draw(Token, Embed), hax.named(jnp.array([2, 0, 4, 0, 0, 1]), Expert)
    weight = np.asarray(layer.weight.rearrange((Expert, Embed, Mlp)).array)
    expected = np.einsum("te,tem->tm", x.array, weight[np.array([0, 0, 2, 2, 2, 2, 5])]) + np.asarray(layer.bias.array)
    if out_first:
        same(layer(x.rearrange((Embed, Token)), group_sizes, key=KEY), (Mlp, Token), expected.T)
        return
    same(layer(x, group_sizes), (Token, Mlp), expected)
    assert jax.eval_shape(layer, x.astype(jnp.bfloat16), group_sizes).dtype == jnp.float32
    raw = gmm_sharded(x.array, layer.weight.array, group_sizes.array, ar=True)
    np.testing.assert_allclose(raw, expected - np.asarray(layer.bias.array), rtol=1e-5, atol=1e-6)
    grads = eqx.filter_jit(eqx.filter_grad(lambda layer: layer(x, group_sizes).sum().scalar()))(layer)
    same(grads.bias, (Mlp,), np.full(6, 7.0))


def test_experts_of_two_axes_and_errors():
    Token, Group, Member = hax.make_axes(token=7, group=2, member=3)
    layer = hnn.MoELinear(draw(Group, Member, Embed, Mlp), None, (Group, Member), Embed, Mlp, False)
    sizes = hax.named(jnp.array([[1, 0, 2], [0, 4, 0]]), (Group, Member))
    x = draw(Token, Embed)
    weight = np.asarray(layer.weight.array).reshape(6, 4, 6)[np.array([0, 2, 2, 4, 4, 4, 4])]
    same(layer(x, sizes), (Token, Mlp), np.einsum("te,tem->tm", x.array, weight))
    made = hnn.MoELinear((Group, Member), Embed, Mlp, key=KEY, use_bias=False)
    assert (made.weight.axes, made.bias) == ((Group, Member, Embed, Mlp), None)
    with pytest.raises(ValueError, match="lacks axis 'embed'"):
        layer(draw(Token), sizes)
