"""Sizes of what layers return, and of trees, against NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import debug, nn
from tests.nn.layouts import draw

B, E, M, L = axn.make_axes(batch=4, embed=8, mlp=12, layers=3)
X = draw(B, E)


class Model(eqx.Module):
    blocks: nn.Stacked
    norm: nn.LayerNorm

    def __call__(self, x):
        return self.norm(self.blocks.fold(x))


MODEL = Model(
    nn.Stacked.init(L, nn.MLP)(E, E, M, 1, activation=axn.tanh, key=jax.random.split(jax.random.key(1), 3)),
    nn.LayerNorm.init(E),
)


def sizes(x, *axes):
    """Return root of the mean square, largest, share of zeros, by NumPy."""
    x = np.asarray(x)
    return np.sqrt((x**2).mean(axes)), np.abs(x).max(axes), (x == 0).mean(axes)


def check(row, x, *axes):
    for own, expected in zip((row.rms, row.largest, row.zeros), sizes(x, *axes), strict=True):
        np.testing.assert_allclose(own.array, expected, rtol=1e-5)


def loss(model, x):
    return axn.square(model(x)).mean().scalar()


OPTIMIZER = optax.sgd(0.1)


def step(model, x):
    gradients = eqx.filter_grad(loss)(model, x)
    updates, _ = OPTIMIZER.update(gradients, OPTIMIZER.init(model))
    return optax.apply_updates(model, updates), debug.statistics(updates, by="layers", of=model)


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_step_returns_what_its_layers_return(is_sharded):
    before = dict(vars(Model))
    watched = debug.watch(step, by="batch")
    if is_sharded:
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        with axn.set_mesh(mesh):
            (new, updates), seen = axn.named_jit(watched, {"batch": "data", "mlp": "model"}, strict=False)(MODEL, X)
    else:
        (new, updates), seen = jax.jit(watched)(MODEL, X)
    assert dict(vars(Model)) == before
    x, blocks = X.array, MODEL.blocks.unstacked()
    for i, block in enumerate(blocks):
        hidden = np.tanh(x @ block.layers[0].weight.array + block.layers[0].bias.array)
        x = hidden @ block.layers[1].weight.array + block.layers[1].bias.array
        for own, expected in zip(("rms", "largest", "zeros"), sizes(x, 1), strict=True):
            np.testing.assert_allclose(getattr(seen.rows["blocks"], own).array[i], expected, rtol=1e-4)
        np.testing.assert_allclose(seen.rows["blocks"].saturated.array[i], (np.abs(hidden) > 0.98).mean(), atol=1e-6)
    assert seen.rows["blocks"].rms.names == ("layers", "batch")
    check(seen.rows["norm"], MODEL.norm(axn.named(x, (B, E))).array, 1)
    # Nothing but the numbers is added to the step.
    expected = step(MODEL, X)[0]
    for own, other in zip(jax.tree.leaves(new), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)
    weight = MODEL.blocks.stacked.layers[0].weight.array
    moved = expected.blocks.stacked.layers[0].weight.array - weight
    ratio = np.sqrt((np.asarray(moved) ** 2).sum((1, 2)) / (np.asarray(weight) ** 2).sum((1, 2)))
    np.testing.assert_allclose(updates.rows["blocks.stacked.layers.0.weight"].ratio.array, ratio, rtol=1e-2)


def test_a_table_and_metrics():
    x = axn.named([[0.0, 3.0], [4.0, 0.0]], ("batch", "embed"))
    found = debug.statistics(
        {"x": x, "ids": axn.arange(B), "half": jnp.array([2, 2], jnp.float16)}, by=("batch", "pos")
    )
    assert str(found).splitlines() == [
        "what       rms   largest  zeros",
        "half       2     2        0",
        "x batch=0  2.12  3        0.5",
        "x batch=1  2.83  4        0.5",
    ]
    metrics = found.metrics()
    assert set(metrics) == {f"x/{name} batch={i}" for name in ("rms", "largest", "zeros") for i in range(2)} | {
        "half/rms",
        "half/largest",
        "half/zeros",
    }
    assert float(metrics["x/largest batch=1"]) == 4
    texts = []
    jax.jit(lambda x: texts.append(str(debug.statistics(x))))(x)
    assert texts == ["statistics of 1 arrays, inside of a transformation"]
    assert str(debug.statistics({"none": axn.zeros({"none": 0})})).splitlines()[1].split() == [
        "none",
        "nan",
        "0",
        "nan",
    ]


def test_calls_of_one_layer_results_that_are_no_arrays_and_options():
    norm = nn.LayerNorm.init(E)

    def f(x, *, times, flag="a"):
        for _ in range(times):
            x = norm(x)
        return {"x": x, "text": flag}

    result, seen = debug.watch(f)(X, times=2)
    assert result["text"] == "a"
    assert [*seen.rows] == ["model", "model call 1"]
    np.testing.assert_allclose(result["x"].array, norm(norm(X)).array, rtol=1e-6)
