"""Sizes of what layers return, also in loops, in branches and on devices, against NumPy."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import debug, nn
from tests.nn.layouts import compiled, draw, made

B, E, M, L = axn.make_axes(batch=4, embed=8, mlp=12, layers=3)
X = draw(B, E)


class Model(eqx.Module):
    """Layers of which a program decides which run, and how often."""

    first: nn.Linear
    second: nn.Linear


MODEL = made(lambda *, key: Model(nn.Linear.init(E, E, key=key), nn.Linear.init(E, E, key=key)))


def apply(layer, x):
    """Apply a linear layer by NumPy."""
    return np.asarray(x) @ np.asarray(layer.weight.array) + np.asarray(layer.bias.array)


def pick(row, axis, i):
    """Return the numbers of a row at one position."""
    return jax.tree.map(lambda x: x[axis, i], row, is_leaf=axn.is_named_array)


def check(row, *results, axes=None):
    """Compare a row with the results of all calls of a layer, along some dimensions."""
    x = np.stack(results)
    expected = np.sqrt((x**2).mean(axes)), np.abs(x).max(axes), (x == 0).mean(axes)
    for own, other in zip((row.rms, row.largest, row.zeros), expected, strict=True):
        np.testing.assert_allclose(own.array, other, rtol=1e-5)


class Deep(eqx.Module):
    blocks: nn.Stacked
    norm: nn.LayerNorm

    def __call__(self, x):
        return self.norm(self.blocks.fold(x))


DEEP = Deep(
    nn.Stacked.init(L, nn.MLP)(E, E, M, 1, activation=axn.tanh, key=jax.random.split(jax.random.key(1), 3)),
    nn.LayerNorm.init(E),
)


def loss(model, x):
    return axn.square(model(x)).mean().scalar()


OPTIMIZER = optax.sgd(0.1)


def step(model, x):
    gradients = eqx.filter_grad(loss)(model, x)
    updates, _ = OPTIMIZER.update(gradients, OPTIMIZER.init(model))
    return optax.apply_updates(model, updates), debug.statistics(updates, by="layers", of=model)


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_step_returns_what_its_layers_return(is_sharded):
    before = dict(vars(Deep))
    watched = debug.watch(step, by="batch")
    if is_sharded:
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        with axn.set_mesh(mesh):
            (new, updates), seen = axn.named_jit(watched, {"batch": "data", "mlp": "model"}, strict=False)(DEEP, X)
    else:
        (new, updates), seen = jax.jit(watched)(DEEP, X)
    assert dict(vars(Deep)) == before
    x, blocks = X.array, DEEP.blocks.unstacked()
    for i, block in enumerate(blocks):
        hidden = np.tanh(x @ block.layers[0].weight.array + block.layers[0].bias.array)
        x = hidden @ block.layers[1].weight.array + block.layers[1].bias.array
        check(pick(seen.rows["blocks"], "layers", i), x, axes=(0, 2))
        np.testing.assert_allclose(seen.rows["blocks"].saturated.array[i], (np.abs(hidden) > 0.98).mean(), atol=1e-6)
    assert seen.rows["blocks"].rms.names == ("layers", "batch")
    check(seen.rows["norm"], DEEP.norm(axn.named(x, (B, E))).array, axes=(0, 2))
    # Nothing but the numbers is added to the step.
    expected = compiled(step, DEEP, X)[0]
    for own, other in zip(jax.tree.leaves(new), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)
    weight = DEEP.blocks.stacked.layers[0].weight.array
    moved = expected.blocks.stacked.layers[0].weight.array - weight
    ratio = np.sqrt((np.asarray(moved) ** 2).sum((1, 2)) / (np.asarray(weight) ** 2).sum((1, 2)))
    np.testing.assert_allclose(updates.rows["blocks.stacked.layers.0.weight"].ratio.array, ratio, rtol=1e-2)


def test_layers_of_branches_have_rows_and_those_that_ran_a_count():
    def choose(model, x, at):
        x = nn.relu(model.first(x))
        # The last one returns another shape, and has a row of its own.
        branches = [
            lambda x: x,
            lambda x: model.second(x),
            lambda x: model.first(model.second(x)),
            lambda x: model.second(x["batch", 0]).broadcast_axis(B),
        ]
        return jax.lax.switch(at, branches, x)

    first = apply(MODEL.first, X)
    hidden = np.maximum(first, 0)
    second = apply(MODEL.second, hidden)
    wanted = [{}, {"second": second}, {"second": second, "first call 1": apply(MODEL.first, second)}]
    wanted.append({"second branch 3": second[0]})
    run = jax.jit(debug.watch(choose, by="batch"))
    for at, ran in enumerate(wanted):
        y, seen = run(MODEL, X, at)
        assert [*seen.rows] == ["first", "second", "first call 1", "second branch 3"]
        assert seen.rows["first"].count is None
        check(seen.rows["first"], first, axes=(0, 2))
        for path in [*seen.rows][1:]:
            row = seen.rows[path]
            assert row.count.item() == (path in ran)
            if path in ran:
                check(row, ran[path], axes=(0, -1))
            else:
                assert all(np.isnan(x.array).all() for x in (row.rms, row.largest, row.zeros))
        np.testing.assert_allclose(y.array, [hidden, *ran.values()][-1] + 0 * hidden, rtol=1e-4)
    assert str(seen).splitlines()[0].split() == ["what", "rms", "largest", "zeros", "count"]
    assert str(seen).splitlines()[5].split() == ["second", "batch=0", "nan", "nan", "nan", "0"]


def test_all_iterations_of_a_loop_have_one_row():
    def power(model, x, times):
        def twice(x):
            return jax.lax.fori_loop(0, 2, lambda _, x: axn.tanh(model.first(x)), x)

        def body(state):
            i, x = state
            # Every second time, and twice in its own loop.
            x = jax.lax.cond(i % 2 == 0, twice, lambda x: x, x)
            return i + 1, model.second(x)

        return jax.lax.while_loop(lambda state: state[0] < times, body, (0, x))[1]

    run = jax.jit(debug.watch(power))
    x, first, second = np.asarray(X.array), [], []
    for i in range(3):
        for _ in range(2 * (i % 2 == 0)):
            first.append(apply(MODEL.first, x))
            x = np.tanh(first[-1])
        second.append(x := apply(MODEL.second, x))
    y, seen = run(MODEL, X, 3)
    np.testing.assert_allclose(y.array, x, rtol=1e-3, atol=1e-4)
    check(seen.rows["second"], *second)
    assert seen.rows["second"].count.item() == 3
    assert seen.rows["first"].rms.names == ("iteration",)
    for i in range(2):
        check(pick(seen.rows["first"], "iteration", i), *first[i::2])
    assert seen.rows["first"].count.tolist() == [2, 2]
    _, seen = run(MODEL, X, 0)
    assert seen.rows["second"].count.item() == 0
    assert np.isnan(seen.rows["second"].rms.item())


@pytest.mark.parametrize(("kind", "is_checked"), [("Auto", False), ("Explicit", True)])
def test_devices_are_together_or_apart(kind, is_checked):
    types = (jax.sharding.AxisType[kind],) * 2
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4], axis_types=types)

    def local(model, x):
        x = model.first(x)
        # On the devices of half of the batch only.
        x = jax.lax.cond(jax.lax.axis_index("data") == 0, lambda x: model.second(x), lambda x: x, x)
        _, x = jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, nn.sigmoid(model.first(s[1]))), (0, x))
        return x

    def run(model, x):
        return axn.shard_map(local, {"batch": "data"}, check=is_checked)(model, x)

    with axn.set_mesh(mesh):
        x = axn.shard(X, {"batch": "data"})
        found = {by: jax.jit(debug.watch(run, by=by))(MODEL, x)[1] for by in ((), "data", "batch")}
    first = apply(MODEL.first, X)
    second = apply(MODEL.second, first[:2])
    state, called = np.concatenate([second, first[2:]]), []
    for _ in range(2):
        called.append(apply(MODEL.first, state))
        state = 1 / (1 + np.exp(-called[-1]))
    for seen in found.values():
        assert [*seen.rows] == ["first", "second", "first call 1"]
    rows = found[()].rows
    check(rows["first"], first)
    check(rows["second"], second)
    check(rows["first call 1"], *called)
    assert [rows["second"].count.item(), rows["first call 1"].count.item()] == [1, 2]
    rows = found["data"].rows
    assert rows["second"].count.tolist() == [1, 0]
    assert rows["first"].rms.names == ("data",)
    check(rows["first"], first.reshape(2, 2, 8), axes=(0, 2, 3))
    rows = found["batch"].rows
    assert rows["first"].rms.names == ("data", "model", "batch")
    check(rows["first"], np.stack([first.reshape(2, 2, 8)] * 2, 1), axes=(0, 4))


def test_what_cannot_be_watched_is_listed():
    def solve(model, x):
        x = jax.lax.custom_linear_solve(lambda x: x + 0 * model.first(x), x, lambda _, b: b)
        return jax.lax.while_loop(lambda x: axn.square(model.second(x)).sum().scalar() < 0, lambda x: x + 1, x)

    _, seen = jax.jit(debug.watch(solve))(MODEL, X)
    assert seen.unwatched == ("first, inside of custom_linear_solve", "second, inside of the condition of a while")
    assert str(seen).endswith(f"not watched: {'; '.join(seen.unwatched)}")


def test_dimensions_that_vmap_adds_are_known_by_their_size():
    def run(layer, x):
        return jax.vmap(lambda x: layer(axn.named(x, ("batch", "embed"))).array, 1, 1)(x)

    norm, x = nn.RmsNorm.init(E), draw(B, axn.Axis("copy", 3), E).array
    y, seen = debug.watch(run, by="batch")(norm, x)
    assert seen.rows["model"].rms.names == ("batch",)
    check(seen.rows["model"], np.asarray(y), axes=(0, 2, 3))
    # Of two dimensions of one size, it is not known which has the name.
    _, seen = jax.eval_shape(debug.watch(run, by="batch"), norm, draw(B, axn.Axis("copy", 4), E).array)
    assert seen.rows["model"].rms.names == ()


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
