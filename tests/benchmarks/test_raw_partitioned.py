from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from benchmarks import measure, raw_gpt2, raw_partitioned as raw

GPT2 = raw.GPT2Config(vocab=32, layers=2, embed=16, heads=2, positions=8)
MLP = raw.MLPConfig(features=8, width=16, classes=4, depth=2)
OPTIMIZER = optax.sgd(1.0)  # a step of this size subtracts the gradient


def plain_mlp(params: Any, batch: jax.Array) -> jax.Array:
    x, targets = batch[:, :8], batch[:, 8:]
    for layer in params[:-1]:
        x = jnp.maximum(x @ layer["weight"] + layer["bias"], 0)
    return ((x @ params[-1]["weight"] + params[-1]["bias"] - targets) ** 2).mean()


def drawn(init: Callable[[jax.Array], Any]) -> Any:
    """Draw parameters without zeros and ones, so that none of them can be forgotten."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(init, jax.random.key(0))
    return jax.tree.map(lambda x: 0.2 * rng.standard_normal(x.shape, np.float32), shapes)


def step_from(
    model: raw.Model, params: Any, batch: np.ndarray, mesh: jax.sharding.Mesh, strategy: str, form: str
) -> tuple[Any, Any, jax.stages.Compiled]:
    """Take a step; return the loss, the gradients and the program."""
    specs = raw.state_specs(model, OPTIMIZER, strategy)
    state = jax.tree.map(
        lambda spec, x: jax.device_put(x, NamedSharding(mesh, spec)),
        specs,
        (params, OPTIMIZER.init(params)),
        is_leaf=raw.is_spec,
    )
    with jax.set_mesh(mesh):
        arguments = (*state, jax.device_put(batch, NamedSharding(mesh, P("data"))))
        step = raw.train_step(model, OPTIMIZER, mesh, strategy, form).lower(*arguments).compile()
        new, _, loss = step(*arguments)
    for x, spec in zip(jax.tree.leaves(new), jax.tree.leaves(specs[0], is_leaf=raw.is_spec), strict=True):
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), x.ndim)
    return loss, jax.tree.map(lambda old, new: old - np.asarray(new), params, new), step


def assert_same(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found[1], expected[1])


@pytest.mark.parametrize(
    ("form", "strategy"),
    [("explicit, reduced", "fsdp+tp"), ("manual", "fsdp+tp"), ("manual", "dp")],
)
def test_gpt2_is_that_of_one_device(
    auto_mesh: jax.sharding.Mesh, explicit_mesh: jax.sharding.Mesh, form: str, strategy: str
) -> None:
    model = raw.gpt2(GPT2)
    params, tokens = drawn(model.init), np.random.default_rng(0).integers(0, 32, (8, 9)).astype(np.int32)
    expected = jax.jit(jax.value_and_grad(lambda p: raw_gpt2.loss(p, tokens, GPT2)))(params)
    mesh = explicit_mesh if form.startswith("explicit") else auto_mesh
    loss, grads, step = step_from(model, params, tokens, mesh, strategy, form)
    assert_same((loss, grads), expected)
    counts = {kind: total.count for kind, total in measure.totals(measure.collectives(step)).items()}
    if strategy == "dp":
        assert counts == {"all-reduce": 1}
        return
    # Four weights per layer, forward and backward; once, two embeddings, two vectors of ln_f, six of blocks.
    assert counts["all-gather"] == 2 * 4 * GPT2.layers + 10
    scattered = 4 * GPT2.layers + 10 if form == "manual" else 0
    assert counts.get("reduce-scatter", 0) == scattered
    assert counts.keys() <= {"all-gather", "all-reduce", "reduce-scatter"}


@pytest.mark.parametrize(
    ("form", "strategy"),
    [("auto, whole", "fsdp"), ("explicit", "fsdp+tp"), ("manual", "tp")],
)
def test_mlp_is_that_of_one_device(
    auto_mesh: jax.sharding.Mesh, explicit_mesh: jax.sharding.Mesh, form: str, strategy: str
) -> None:
    model = raw.mlp(MLP)
    params, batch = drawn(model.init), np.random.default_rng(0).standard_normal((8, 12), np.float32)
    mesh = explicit_mesh if form.startswith("explicit") else auto_mesh
    loss, grads, _ = step_from(model, params, batch, mesh, strategy, form)
    assert_same((loss, grads), jax.value_and_grad(plain_mlp)(params, batch))
