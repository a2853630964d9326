"""LoRA, against numpy, on plain layers and on those of a `Stacked`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError
from tests.nn.layouts import apply, check_on, compiled, draw, fails, made, same, same_trees, value_and_gradients
from tests.nn.test_every_layer import ROWS

B, E, M, H, L, R = axn.make_axes(batch=8, embed=4, mlp=6, heads=2, layers=3, rank=2)
KEY = jax.random.key(0)


def adapted(In, Out, **options):
    """Wrap a layer whose bias and upper matrix are not zero."""
    return made(lambda *, key: nn.LoraLinear.init(nn.Linear.init(In, Out, key=key), R, key=key, **options))


@pytest.mark.parametrize(("In", "Out", "equation"), [(E, (H, M), "be,er,rhm->bhm"), (E, E, "be,er,ro->bo")])
def test_value_and_gradients_are_those_of_the_sum_and_merging_is_exact(In, Out, equation):
    layer, x = adapted(In, Out, alpha=6.0), draw(B, E)
    down, up = (np.asarray(each.weight.array, np.float64) for each in (layer.down, layer.up))
    base, bias = (np.asarray(each.array, np.float64) for each in (layer.base.weight, layer.base.bias))
    assert layer.In == (E,)
    assert layer.Rank == R

    def reference(x, base, bias, down, up, module=jnp):
        plain = module.einsum(equation.replace(",er,r", ",e"), x, base) + bias
        return plain + 6.0 / 2 * module.einsum(equation, x, down, up)

    out, (gradients, (dx,)) = value_and_gradients(apply)(layer, x)
    given = (x.array, base, bias, down, up)
    same(out, ("batch", *(axis.name for axis in layer.Out)), reference(*given, module=np))
    loss = jax.jit(jax.grad(lambda *arrays: jnp.sin(reference(*arrays)).sum(), argnums=range(5)))
    found = (dx, gradients.base.weight, gradients.base.bias, gradients.down.weight, gradients.up.weight)
    for mine, theirs in zip(found, loss(*(np.asarray(each, np.float32) for each in given)), strict=True):
        same(mine, mine.names, theirs, atol=1e-4)

    merged = layer.merge()
    assert type(merged) is nn.Linear
    assert jax.tree.structure(merged) == jax.tree.structure(layer.base)
    contracted = np.tensordot(down, up, 1)
    np.testing.assert_allclose(merged.weight.array, base + 3 * contracted, rtol=1e-6, atol=1e-6)
    same(merged(x), out.names, out.array)


def test_it_starts_as_the_layer_that_it_wraps():
    base, x = nn.Linear.init(E, M, key=KEY), draw(B, E)
    layer = nn.LoraLinear.init(base, 3, key=KEY)
    assert layer.Rank == axn.Axis("lora", 3)
    assert layer.alpha == 3.0
    assert layer.down.weight.array.all()
    np.testing.assert_array_equal(layer(x).array, base(x).array)
    np.testing.assert_array_equal(layer.merge().weight.array, base.weight.array)


def test_a_layer_in_half_precision_keeps_its_dtype():
    layer = adapted(E, M)
    half = eqx.tree_at(lambda layer: layer.base, layer, jax.tree.map(lambda a: a.astype(jnp.bfloat16), layer.base))
    assert half(draw(B, E).astype(jnp.bfloat16)).dtype == jnp.bfloat16
    merged = half.merge().weight
    assert merged.dtype == jnp.bfloat16
    expected = half.base.weight.array.astype(np.float32) + layer.down.weight.array @ layer.up.weight.array
    np.testing.assert_array_equal(merged.array, expected.astype(jnp.bfloat16))


def test_dropout_needs_a_key_and_leaves_the_base_alone():
    layer, x = adapted(E, M, dropout=0.5), draw(B, E)
    same(layer(x), ("batch", "mlp"), adapted(E, M)(x).array)
    key = jax.random.key(3)
    thinned = nn.Dropout(0.5)(x, key=key)
    same(layer(x, key=key), ("batch", "mlp"), (layer.base(x) + layer.up(layer.down(thinned))).array)
    same(eqx.nn.inference_mode(layer)(x, key=key), ("batch", "mlp"), layer(x).array)


class Block(eqx.Module):
    mlp: nn.MLP
    out: nn.Linear

    @staticmethod
    def init(*, key):
        return Block(nn.MLP.init(E, E, M, 1, key=key), nn.Linear.init(E, E, key=key))

    def __call__(self, x, *, key=None):
        return x + self.out(self.mlp(x, key=key), key=key)


def test_layers_of_a_stack_are_wrapped_as_if_each_stood_alone():
    @jax.jit
    def make():
        model = {"blocks": nn.Stacked.init(L, Block)(key=KEY), "head": nn.Linear.init(E, M, key=KEY)}
        return model, nn.add_lora(model, R, key=KEY, where=lambda path: path.endswith(("layers.0", "out")))

    model, wrapped = make()
    stacked = wrapped["blocks"].stacked
    assert type(wrapped["head"]) is type(stacked.mlp.layers[1]) is nn.Linear
    for layer, Out in ((stacked.mlp.layers[0], M), (stacked.out, E)):
        assert layer.down.weight.axes == (L, E, R)
        assert layer.up.weight.axes == (L, R, Out)
        keys = jax.random.split(jax.random.split(KEY, 2)[0 if Out == M else 1], 3)
        for i in range(3):
            alone = nn.Linear.init(E, R, key=keys[i], use_bias=False)
            np.testing.assert_allclose(layer.down.weight.array[i], alone.weight.array, rtol=1e-6)
    upper = lambda tree: [layer.up.weight for layer in (tree.mlp.layers[0], tree.out)]  # noqa: E731
    blocks = eqx.tree_at(lambda b: upper(b.stacked), wrapped["blocks"], [draw(L, R, M), draw(L, R, E)])

    @jax.jit
    def three_ways(blocks, x):
        expected = x
        for block in blocks.unstacked():
            assert block.out.up.weight.axes == (R, E)
            expected = block(expected)
        merged = nn.merge_lora(blocks)
        assert jax.tree.structure(merged) == jax.tree.structure(model["blocks"])
        return blocks.fold(x), merged.fold(x), expected

    looped, merged, expected = three_ways(blocks, draw(B, E))
    same(looped, ("batch", "embed"), expected.array)
    same(merged, ("batch", "embed"), expected.array)
    again = eqx.filter_eval_shape(nn.add_lora, wrapped, R, key=KEY)
    assert type(again["head"]) is nn.LoraLinear
    assert type(again["blocks"].stacked.out.base) is nn.Linear


def test_the_filter_chooses_the_thin_matrices_alone():
    make = lambda key: nn.add_lora(nn.Stacked.init(L, Block)(key=key), R, key=key)  # noqa: E731
    model = eqx.filter_eval_shape(make, KEY)
    chosen = nn.lora_filter(model)
    assert jax.tree.structure(chosen) == jax.tree.structure(model)
    trained, frozen = eqx.partition(model, chosen)
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(trained))
    assert shapes == sorted([(3, 4, 2), (3, 2, 6), (3, 6, 2), (3, 2, 4), (3, 4, 2), (3, 2, 4)])
    assert len(jax.tree.leaves(frozen)) == 6
    assert jax.tree.leaves(eqx.combine(trained, frozen)) == jax.tree.leaves(model)
    plain = eqx.filter_eval_shape(nn.merge_lora, model)
    with pytest.warns(UserWarning, match="nothing is selected"):
        assert jax.tree.leaves(nn.lora_filter(plain)) == [False] * 6


def test_thin_matrices_have_the_anonymous_dimensions_of_a_layer():
    """An ensemble that raw vmap made, also of stacks."""
    keys = jax.random.split(KEY, 5)
    for make, axes in ((nn.Linear.init, ()), (nn.Stacked.init(L, nn.Linear), (3,))):
        each = eqx.filter_eval_shape(jax.vmap(lambda key, make=make: make(E, E, key=key)), keys)
        layer = jax.eval_shape(lambda each=each: nn.add_lora(each, R, key=KEY))
        layer = layer.stacked if axes else layer
        assert layer.down.weight.array.shape == (5, *axes, 4, 2)
        assert layer.up.weight.array.shape == (5, *axes, 2, 4)
        assert jax.tree.map(jnp.shape, jax.eval_shape(nn.merge_lora, layer)) == jax.tree.map(jnp.shape, layer.base)
    each = nn.LoraLinear.init(jax.vmap(lambda key: nn.Linear.init(E, M, key=key))(keys), R, key=KEY)
    assert len(np.unique(each.down.weight.array[:, 0, 0])) == 5
    x = np.asarray(draw(B, E).array)
    y = jax.vmap(lambda layer: layer(axn.named(x, (B, E))).array)(each)
    np.testing.assert_allclose(y, x @ np.asarray(each.base.weight.array), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    layer = adapted(E, M)
    check_on(mesh, apply, layer, draw(B, E))
    with axn.set_mesh(mesh):
        mapping = {"embed": "data", "mlp": "model"}
        merged = axn.named_jit(lambda layer: layer.merge(), mapping)(axn.shard(layer, mapping))
    same_trees(merged, layer.merge())


def test_errors():
    model = (made(nn.Linear.init, E, M), [made(nn.Linear.init, E, M)])
    fails(
        ArgumentError,
        "add_lora: `where` chose no linear layer\n  linear layers: 0, 1.0",
        lambda: nn.add_lora(model, 2, key=KEY, where=lambda path: False),
    )
    fails(
        ArgumentError,
        "add_lora: `where` chose no linear layer\n  linear layers: the model itself",
        lambda: nn.add_lora(model[0], 2, key=KEY, where=lambda path: path == "query"),
    )
    fails(
        ArgumentError,
        "add_lora: there is no linear layer to wrap\n  linear layers: none",
        lambda: nn.add_lora(nn.LayerNorm.init(E), 2, key=KEY),
    )
    problem = "LoraLinear.init: the rank must be at least 1, got"
    fails(ArgumentError, f"{problem} lora=0", lambda: nn.add_lora(model, 0, key=KEY))
    fails(ArgumentError, f"{problem} rank=0", lambda: nn.add_lora(model, R.resize(0), key=KEY))
    layer = adapted(E, M)
    stack = jax.eval_shape(lambda: nn.Stacked.init(L, nn.Linear)(E, M, key=KEY))
    for linear, name, weight in (
        (model[0], "embed", "embed=4, mlp=6"),
        (model[0], "mlp", "embed=4, mlp=6"),
        (stack, "layers", "layers=3, embed=4, mlp=6"),
    ):
        fails(
            AxisClashError,
            f"LoraLinear.init: the layer already has an axis {name!r}, which cannot also be the rank\n"
            f'  weight: {weight}\n  Out: mlp=6\n  hint: give the rank another name: Axis("rank", 2)',
            lambda linear=linear, name=name: nn.add_lora(linear, axn.Axis(name, 2), key=KEY),
        )
    with pytest.raises(AxisNotFoundError, match=r"^Linear: the input lacks axis 'embed'"):
        layer(axn.ones(B))
    with pytest.raises(AxisClashError, match=r"^Linear: the input already has axis 'rank', which the layer adds"):
        layer(axn.ones((R, E)))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name",
    ["Attention", "DiagonalSSM", "GatedDeltaNet", "LatentAttention", "Mamba2", "MixtureOfExperts", "Recurrent"],
)
def test_layers_of_linear_layers_take_thin_matrices(name):
    """Thin matrices begin at zero, so the layer is the same."""
    row = ROWS[name]
    layer, x = row.layer(), row.input(axn.Axis("batch", 2), axn.Axis("seq", 3))
    thin = jax.jit(lambda layer: nn.add_lora(layer, 2, key=jax.random.key(0)))(layer)
    assert len(jax.tree.leaves(thin)) > len(jax.tree.leaves(layer))
    both = compiled(lambda x, *layers: [row.call(each, x) for each in layers], x, thin, layer)
    found, wanted = map(jax.tree.leaves, both)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
