"""`Linear`, against einsum and Equinox."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, LostAxisError, OperandError
from tests.laws import count_equations
from tests.nn.layouts import apply, check_on, compiled, draw, fails, lies, made, same, same_trees, value_and_gradients

pytestmark = pytest.mark.sampled

B, S, E, M, H, D = axn.make_axes(batch=8, seq=3, embed=4, mlp=6, heads=2, head_dim=5)
KEY = jax.random.key(0)


def with_bias(layer: nn.Linear) -> nn.Linear:
    return eqx.tree_at(lambda layer: layer.bias, layer, draw(*layer.bias.axes, seed=9))


@pytest.mark.parametrize("out_first", [False, True])
@pytest.mark.parametrize(
    ("In", "Out", "equation"),
    [
        (E, M, "be,em->bm"),
        (E, (H, D), "be,ehd->bhd"),
        ((H, D), E, "bhd,hde->be"),
        ((D, H), (E, M), "bdh,dhem->bem"),
        ((), M, "b,m->bm"),
        (E, (), "be,e->b"),
        ((), (), "b,->b"),
        (E, E, "be,eo->bo"),
        ((E, M), (M, D), "bem,emod->bod"),
    ],
)
def test_against_einsum(In, Out, equation, out_first):
    empty = eqx.filter_eval_shape(nn.Linear.init, In, Out, key=KEY, out_first=out_first)
    layer = with_bias(eqx.tree_at(lambda layer: layer.weight, empty, draw(*empty.weight.axes, seed=8)))
    inputs = In if isinstance(In, tuple) else (In,)
    outputs = tuple(axis.name for axis in (Out if isinstance(Out, tuple) else (Out,)))
    stored = tuple(f"{name}.out" if name in [axis.name for axis in inputs] else name for name in outputs)
    names = tuple(axis.name for axis in inputs)
    assert layer.weight.names == ((*stored, *names) if out_first else (*names, *stored))
    assert layer.bias.names == outputs
    x = draw(B, *inputs)
    weight = np.asarray(layer.weight.array)
    if out_first:
        weight = np.moveaxis(weight, range(len(stored)), range(len(names), weight.ndim))
    same(compiled(layer, x), ("batch", *outputs), np.einsum(equation, x.array, weight) + np.asarray(layer.bias.array))


def test_axes_of_the_input_may_stand_anywhere_and_the_others_stay_in_order():
    layer = made(nn.Linear.init, (H, D), M)
    x = draw(B, S, H, D)
    expected = np.einsum("bshd,hdm->bsm", x.array, layer.weight.array) + layer.bias.array
    for order in [(B, S, H, D), (D, B, H, S), (H, D, B, S)]:
        same(layer(x.rearrange(order)), ("batch", "seq", "mlp"), expected)
    same(layer(x.rearrange((S, D, B, H))), ("seq", "batch", "mlp"), np.swapaxes(expected, 0, 1))
    same(layer(x.untag("batch", "seq")), ("mlp",), expected)
    same(layer(x["batch", 0, "seq", 0]), ("mlp",), expected[0, 0])


def test_equals_equinox_with_its_gradients():
    theirs = eqx.nn.Linear(4, 6, key=KEY)
    ours = nn.Linear.init(E, M, key=KEY, out_first=True)
    named = (axn.named(theirs.weight, ("mlp", "embed")), axn.named(theirs.bias, "mlp"))
    ours = eqx.tree_at(lambda layer: (layer.weight, layer.bias), ours, named)
    x = draw(B, E)
    out, (gradients, (dx,)) = value_and_gradients(apply)(ours, x)
    f = lambda layer, x: jnp.sin(jax.vmap(layer)(x)).sum()  # noqa: E731
    expected, dx_expected = eqx.filter_jit(jax.grad(f, argnums=(0, 1)))(theirs, x.array)
    same(out, ("batch", "mlp"), jax.vmap(theirs)(x.array))
    same(gradients.weight, ("mlp", "embed"), expected.weight)
    same(gradients.bias, ("mlp",), expected.bias)
    same(dx, ("batch", "embed"), dx_expected)


def test_gradients_where_a_name_is_on_both_sides():
    layer = made(nn.Linear.init, E, E)
    x = draw(B, E)
    _, (gradients, (dx,)) = value_and_gradients(apply)(layer, x)
    f = lambda w, b, x: jnp.sin(x @ w + b).sum()  # noqa: E731
    dw, db, dx_expected = jax.jit(jax.grad(f, argnums=(0, 1, 2)))(layer.weight.array, layer.bias.array, x.array)
    same(gradients.weight, ("embed", "embed.out"), dw)
    same(gradients.bias, ("embed",), db)
    same(dx, ("batch", "embed"), dx_expected)


def test_there_are_no_more_equations_than_by_hand():
    x = draw(B, E)
    for use_bias, by_hand in ((True, lambda w, b, x: x @ w + b), (False, lambda w, b, x: x @ w)):
        layer = made(nn.Linear.init, E, M, use_bias=use_bias)
        arrays = jnp.zeros((E.size, M.size)), jnp.zeros(M.size), x.array
        assert count_equations(lambda layer, x: layer(x), layer, x) <= count_equations(by_hand, *arrays)


def test_initial_values():
    Wide, Out = axn.make_axes(wide=400, out=300)
    layer = nn.Linear.init((Wide, H), Out, key=KEY)
    # The normal distribution that is cut off at three has a standard deviation of 0.9866.
    assert float(layer.weight.std()) == pytest.approx(0.9866 / math.sqrt(800), rel=0.01)
    assert abs(float(layer.weight.mean())) < 1e-3
    assert float(abs(layer.weight).max()) <= 3 / math.sqrt(800) * (1 + 1e-6)
    assert not layer.bias.array.any()
    scaled = nn.Linear.init((Wide, H), Out, key=KEY, init_scale=0.1)
    np.testing.assert_allclose(scaled.weight.array, layer.weight.array * 0.1, rtol=1e-6)
    other = nn.Linear.init((Wide, H), Out, key=jax.random.key(1))
    assert not np.allclose(other.weight.array, layer.weight.array)


def test_an_initializer_gets_the_key_and_the_axes_of_the_weight():
    seen = []

    def initializer(key, axes):
        seen.append((key, axes))
        return axn.full(axes, 2.0)

    layer = nn.Linear.init(E, (E, M), key=KEY, initializer=initializer, out_first=True)
    assert seen == [(KEY, (axn.Axis("embed.out", 4), M, E))]
    same(layer(axn.ones(E)), ("embed", "mlp"), np.full((4, 6), 8.0))
    assert nn.Linear.init(E, M, key=KEY, use_bias=False).bias is None


def test_dtypes_promote_as_in_jax():
    layer = made(nn.Linear.init, E, M)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer)
    assert half(axn.ones(E, jnp.bfloat16)).dtype == jnp.bfloat16
    assert layer(axn.ones(E, jnp.bfloat16)).dtype == jnp.float32


def test_a_layer_is_a_tree_whose_structure_tells_its_axes():
    layer = made(nn.Linear.init, E, M)
    assert [leaf.shape for leaf in jax.tree.leaves(layer)] == [(4, 6), (6,)]
    assert jax.tree.structure(layer) == jax.tree.structure(nn.Linear.init(E, M, key=jax.random.key(1)))
    assert jax.tree.structure(layer) != jax.tree.structure(nn.Linear.init(E, M, key=KEY, use_bias=False))
    same(jax.jit(lambda layer, x: layer(x, key=None))(layer, axn.ones(E)), ("mlp",), layer(axn.ones(E)).array)
    mapped = axn.vmap(layer, B)(draw(B, E))
    same(mapped, ("batch", "mlp"), layer(draw(B, E)).array)


def doubled(lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None):
    return 2 * jax.lax.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)


class Scaled(eqx.Module):
    factor: jax.Array

    def __call__(self, lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None):
        return self.factor * jax.lax.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)


def test_something_else_may_multiply():
    x = draw(B, S, E)
    for In, Out, out_first in [(E, (H, D), False), ((S, E), (E, M), True), ((), M, False), (E, (), True)]:
        empty = eqx.filter_eval_shape(nn.Linear.init, In, Out, key=KEY, out_first=out_first, use_bias=False)
        assert empty.dot_general is None
        layer = eqx.tree_at(lambda layer: layer.weight, empty, draw(*empty.weight.axes, seed=8))
        given = lambda key, axes, weight=layer.weight: weight  # noqa: E731
        other = nn.Linear.init(In, Out, key=KEY, use_bias=False, initializer=given, dot_general=doubled)
        assert [leaf.shape for leaf in jax.tree.leaves(other)] == [layer.weight.array.shape]
        same(other(x), layer(x).names, 2 * layer(x).array)


def test_what_multiplies_may_have_arrays_which_are_differentiated_and_stacked():
    layer, x = nn.Linear.init(E, E, key=KEY, dot_general=Scaled(jnp.float32(3))), draw(B, E)
    product = nn.Linear.init(E, E, key=KEY)(x).array
    gradient = jax.jit(jax.grad(lambda layer, x: layer(x).sum().scalar()))(layer, x)
    np.testing.assert_allclose(gradient.dot_general.factor, product.sum(), rtol=1e-5)
    stack = nn.Stacked.init(axn.Axis("layers", 3), nn.Linear)(E, E, key=KEY, dot_general=Scaled(jnp.arange(1.0, 4)))
    expected = x
    for i in range(3):
        alone = eqx.tree_at(lambda layer: layer.dot_general, stack.get_layer(i), None)
        expected = (i + 1) * alone(expected)
    same(stack.fold(x), ("batch", "embed"), expected.array, rtol=1e-4)


# layout
def in_turn(layers, x):
    return layers[1](layers[0](x))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind, auto_mesh, explicit_mesh):
    layer = made(nn.Linear.init, E, M)
    back = made(nn.Linear.init, M, E)
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    check_on(mesh, in_turn, (layer, back), draw(B, S, E))
    check_on(mesh, apply, layer, draw(B, S, E))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_mapping_of_a_name_on_both_sides_lays_out_one_side(kind, auto_mesh, explicit_mesh):
    layer, x = with_bias(nn.Linear.init(E, E, key=KEY)), draw(B, E)
    expected = layer(x).array
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    with axn.set_mesh(mesh):
        for mapping, block in [
            ({"embed": "data"}, (1, 4)),
            ({"embed.out": "model"}, (4, 2)),
            ({"embed": "data", "embed.out": "model"}, (1, 2)),
        ]:
            spread = axn.shard(layer, mapping)
            weights = axn.named_jit(lambda: nn.Linear.init(E, E, key=KEY).weight, mapping)()
            for weight in (spread.weight, weights):
                assert {shard.data.shape for shard in weight.array.addressable_shards} == {block}
            np.testing.assert_allclose(weights.array, layer.weight.array, rtol=1e-6)
            out = axn.named_jit(lambda layer, x: layer(x), {"batch": "model"})(spread, axn.shard(x, {}))
            assert lies(out, mesh, {"batch": "model"})
            same(out, ("batch", "embed"), expected)
        both = {"embed": "model", "batch": "data"}
        result = axn.named_jit(lambda layer, x: layer(x), both)(layer, x)
        assert lies(result, mesh, both)
        same(result, ("batch", "embed"), expected)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_an_input_that_was_made_outside_of_the_mesh(kind, auto_mesh, explicit_mesh):
    layer, x = made(nn.Linear.init, E, M), draw(B, E)
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    with axn.set_mesh(mesh):
        spread = axn.shard(layer, {"embed": "data"})
        for given in (x, axn.NamedArray(np.asarray(x.array), x.names)):
            out = axn.named_jit(lambda layer, x: layer(x), {"batch": "data"})(spread, given)
            assert lies(out, mesh, {"batch": "data"})
            same(out, ("batch", "mlp"), layer(x).array)


def test_draws_are_the_same_on_every_layout(explicit_mesh, auto_mesh):
    expected = nn.Linear.init(E, (M, H), key=KEY)
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            make = axn.named_jit(lambda: nn.Linear.init(E, (M, H), key=KEY), {"embed": "data", "mlp": "model"})
            same_trees(make(), expected, rtol=1e-6, atol=0)


# errors
def test_errors():
    layer = made(nn.Linear.init, (H, D), M)
    fails(
        AxisNotFoundError,
        "Linear: the input lacks axis 'head_dim'\n"
        "  input has: batch=8, heads=2, headdim=5\n"
        "  the layer works over: heads=2, head_dim=5\n"
        "  hint: did you mean 'headdim'?",
        lambda: layer(axn.ones((B, H, axn.Axis("headdim", 5)))),
    )
    fails(
        AxisClashError,
        "Linear: the input already has axis 'mlp', which the layer adds\n"
        "  input has: mlp=6, heads=2, head_dim=5\n"
        "  hint: rename it first: x.rename({'mlp': ...})",
        lambda: layer(axn.ones((M, H, D))),
    )
    fails(
        AxisSizeError,
        "Linear: axis 'heads' of the input has size 3, but the layer was made for 2\n"
        "  input has: batch=8, heads=3, head_dim=5",
        lambda: layer(axn.ones((B, H.resize(3), D))),
    )
    fails(
        OperandError,
        "Linear: expected a NamedArray, got a plain array\n"
        "  its shape: (8, 2, 5)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "heads", "head_dim"))',
        lambda: layer(jnp.ones((8, 2, 5))),
    )
    with pytest.raises(LostAxisError, match=r"^Linear: an array of shape"):
        jax.vmap(layer)(axn.ones((B, H, D)))
    fails(
        OperandError,
        "Linear.init: axis 'embed' needs a size here\n  hint: write Axis(\"embed\", size)",
        lambda: nn.Linear.init("embed", M, key=KEY),
    )


def test_an_axis_with_the_name_under_which_a_weight_keeps_an_output_is_not_matched_silently():
    layer = made(nn.Linear.init, E, E)
    fails(
        AxisClashError,
        "Linear: the input already has axis 'embed.out', which the layer adds\n"
        "  input has: embed.out=4, embed=4\n"
        "  hint: rename it first: x.rename({'embed.out': ...})",
        lambda: layer(axn.ones((axn.Axis("embed.out", 4), E))),
    )
    fails(
        AxisClashError,
        "Linear.init: the weight would store output 'embed' as 'embed.out', which it already has\n"
        "  In: embed=4, embed.out=3\n"
        "  Out: embed=4\n"
        "  hint: rename one of the two",
        lambda: nn.Linear.init((E, axn.Axis("embed.out", 3)), E, key=KEY),
    )
    with pytest.raises(AxisClashError, match="which it already has"):
        nn.Linear.init(E, (E, axn.Axis("embed.out", 3)), key=KEY)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_blocks_of_a_layer_compute_inside_of_a_shard_map(kind, auto_mesh, explicit_mesh):
    up, down = (nn.Linear.init(*ends, key=KEY, use_bias=False) for ends in ((E, M), (M, E)))
    x = draw(B, E)

    @axn.shard_map(mapping=axn.Mappings({"embed": None, "mlp": "model"}, {"batch": "data", "mlp": "model"}))
    def both(up, down, x):
        hidden = up(x)  # a block of the columns
        return axn.psum(down(hidden), "mlp")  # a block of the rows: a part of the sum

    expected = down(up(x))
    with axn.set_mesh({"auto": auto_mesh, "explicit": explicit_mesh}[kind]):
        same(both(up, down, x), expected.names, expected.array)
