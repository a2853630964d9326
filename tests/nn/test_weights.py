from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
import axonym.nn as nn
from axonym import Axis
from benchmarks.measure import collectives, totals
from tests.laws import count_equations

pytestmark = pytest.mark.sampled

LAYERS, BATCH, EMBED, MLP = 3, 8, 16, 32
Embed, Mlp = Axis("embed", EMBED), Axis("mlp", MLP)


class Pair(nn.MLP):
    """Two layers that give back what they take, so that they can be stacked."""

    @staticmethod
    def init(*, key: jax.Array) -> Any:
        return nn.MLP.init(Embed, Embed, Mlp, 1, key=key, use_bias=False, use_final_bias=False)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_a_loop_gathers_weights_once_in_each_direction(kind: str, request: pytest.FixtureRequest) -> None:
    mesh = request.getfixturevalue(kind)
    model = nn.Stacked.init(Axis("layers", LAYERS), Pair)(key=jax.random.key(0))
    x = axn.NamedArray(np.random.default_rng(0).standard_normal((BATCH, EMBED), np.float32), ("batch", "embed"))

    def loss(model: Any, x: axn.NamedArray) -> jax.Array:
        with axn.axis_mapping({"batch": "data", "mlp": "model"}):
            return axn.square(model.fold(axn.auto_sharded(x))).mean().scalar()

    def plain(weights: Any, x: Any) -> jax.Array:
        for i in range(LAYERS):
            x = jnp.maximum(x @ weights[0][i], 0) @ weights[1][i]
        return (x**2).mean()

    weights = [layer.weight.array for layer in model.stacked.layers]
    expected = jax.jit(jax.grad(plain))(weights, x.array)
    with axn.set_mesh(mesh):
        stored = axn.shard(model, {"embed": "data", "mlp": "model"})
        gradient = axn.named_jit(jax.grad(loss), {"embed": "data", "mlp": "model"})
        found = [layer.weight for layer in gradient(stored, axn.shard(x, {"batch": "data"})).stacked.layers]
        compiled = gradient.lower(stored, axn.shard(x, {"batch": "data"})).compile()
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.array, theirs, atol=1e-6)
    # Two weights per layer, forward and backward: neither kept for all layers, nor exchanged for activations.
    counts = {kind: total.count for kind, total in totals(collectives(compiled)).items()}
    assert counts.keys() == {"all-gather", "all-reduce"}
    assert counts["all-gather"] == 2 * 2 * LAYERS


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_outside_of_jit_a_weight_and_an_input_of_one_device_are_moved(
    kind: str, request: pytest.FixtureRequest
) -> None:
    layer = nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    x = axn.NamedArray(np.random.default_rng(0).standard_normal((BATCH, EMBED), np.float32), ("batch", "embed"))
    expected = np.asarray(x.array) @ np.asarray(layer.weight.array)
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping({"batch": "data", "mlp": "model"}):
        found = layer(axn.NamedArray(jnp.asarray(x.array), x.names))
    assert found.sharding.spec == jax.P("data", "model")
    np.testing.assert_allclose(found.array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_gradients_outside_of_jit_go_through_layers_of_one_device(kind: str, request: pytest.FixtureRequest) -> None:
    model = nn.MLP.init(Embed, Embed, Mlp, 1, nn.gelu, key=jax.random.key(0), use_bias=False, use_final_bias=False)
    x = axn.NamedArray(np.random.default_rng(0).standard_normal((BATCH, EMBED), np.float32), ("batch", "embed"))

    def plain(weights: Any, x: Any) -> jax.Array:
        return ((jax.nn.gelu(x @ weights[0]) @ weights[1]) ** 2).mean()

    def loss(model: Any, x: axn.NamedArray) -> jax.Array:
        return axn.square(model(x)).mean().scalar()

    weights = [layer.weight.array for layer in model.layers]
    expected = jax.jit(jax.value_and_grad(plain, argnums=(0, 1)))(weights, x.array)
    assert all(len(weight.devices()) == 1 for weight in weights)
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping({"batch": "data", "mlp": "model"}):
        found = jax.value_and_grad(loss, argnums=(0, 1))(model, axn.NamedArray(jnp.asarray(x.array), x.names))
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_without_a_mesh_a_product_is_one_operation() -> None:
    layer = nn.Linear.init(Embed, Mlp, key=jax.random.key(0), use_bias=False)
    with axn.axis_mapping({"embed": "data"}):
        assert count_equations(lambda layer, x: layer(x), layer, axn.ones((Axis("batch", 2), Embed))) == 1


def test_gathered_experts_are_not_kept_for_the_backward_pass_and_their_products_are(explicit_mesh: Any) -> None:
    Experts = Axis("experts", 2)
    stack = nn.Stacked.init(Axis("layers", LAYERS), nn.MixtureOfExperts)
    model = jax.eval_shape(lambda: stack(Embed, Experts, Mlp, 1, key=jax.random.key(0)))

    def loss(model: Any) -> jax.Array:
        stored = axn.shard(model, {"embed": "data", "mlp": "model"})
        x = axn.ones((Axis("batch", BATCH), Embed))
        with axn.axis_mapping({"batch": "data", "mlp": "model"}):
            layers = stored.fold_via(lambda layer, x: layer(x)[0])
            return axn.square(layers(axn.auto_sharded(x))).mean().scalar()

    with axn.set_mesh(explicit_mesh):
        backward = jax.eval_shape(lambda model: jax.vjp(loss, model)[1], model)
    kept = jax.tree.leaves(backward)
    weights = {(LAYERS, Experts.size, *sizes) for sizes in ((EMBED, MLP), (MLP, EMBED))}
    taken = [leaf for leaf in kept if leaf.shape in weights]
    assert len(taken) == 3
    assert all({"data", "model"} <= set(leaf.sharding.spec) for leaf in taken)
    # The rows for the experts, and what three products gave: of 2 tokens and half of the hidden axis on each device.
    assert [leaf.shape for leaf in kept].count((LAYERS, 8 * 2, MLP // 2)) == 4
