"""`associative_scan` over a named axis, against raw `lax.associative_scan` and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import AxisError, AxisNotFoundError, AxisSizeError, OperandError
from tests.laws import count_equations
from tests.nn.layouts import draw, same

pytestmark = pytest.mark.sampled

B, T, E = axn.make_axes(batch=8, time=6, mlp=4)


def compose(first, second):
    return first[0] * second[0], second[0] * first[1] + second[1]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_recurrence(reverse):
    decay, x = draw(T, E), draw(B, T, E, seed=1)
    powers, states = jax.jit(axn.associative_scan(compose, "time", reverse=reverse))((decay, x))
    state, expected, power, product = np.zeros((8, 4)), np.zeros((8, 6, 4)), np.ones(4), np.zeros((6, 4))
    for t in reversed(range(6)) if reverse else range(6):
        state = np.asarray(decay.array[t], np.float64) * state + np.asarray(x.array[:, t], np.float64)
        power = power * np.asarray(decay.array[t], np.float64)
        expected[:, t], product[t] = state, power
    same(states, ("batch", "time", "mlp"), expected)
    same(powers, ("time", "mlp"), product)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_every_size(size):
    x = draw(E, T.resize(size))
    same(jax.jit(axn.associative_scan(axn.add, "time"))(x), ("mlp", "time"), np.cumsum(x.array, 1))


def test_order_of_axes_and_plain_arrays():
    x, plain = draw(T, E), np.arange(6.0, dtype=np.float32)
    swapped = lambda a, b: {"x": (a["x"] + b["x"]).rearrange(("mlp", "time")), "n": a["n"] + b["n"]}  # noqa: E731
    out = jax.jit(axn.associative_scan(swapped, T))({"x": x, "n": plain})
    same(out["x"], ("time", "mlp"), np.cumsum(x.array, 0))
    np.testing.assert_allclose(out["n"], np.cumsum(plain))


def test_what_a_filter_left_empty_stays():
    x, hole = draw(T, E), axn.NamedArray(None, ("mlp", "time"))
    add = lambda a, b: jax.tree.map(jnp.add, a, b)  # noqa: E731
    out = axn.associative_scan(add, "time")({"x": x, "hole": hole})
    same(out["x"], ("time", "mlp"), np.cumsum(x.array, 0))
    assert (out["hole"].array, out["hole"].names) == (None, ("mlp", "time"))
    with pytest.raises(OperandError, match="the function changes the structure of an element"):
        axn.associative_scan(lambda a, b: {"x": hole, "hole": hole}, "time")({"x": x, "hole": hole})


def test_transformations_and_gradients():
    decay, x = draw(T, E), draw(B, T, E, seed=1)
    run = jax.jit(axn.associative_scan(compose, "time"))
    raw = lambda a, x: lax.associative_scan(compose, (a, x))[1]  # noqa: E731
    found = jax.jit(jax.grad(lambda both: axn.sin(run(both)[1]).sum().scalar()))((decay, x))
    expected = jax.jit(jax.grad(lambda a, x: jnp.sin(jax.vmap(raw, (None, 0))(a, x)).sum(), argnums=(0, 1)))(
        decay.array, x.array
    )
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.array, theirs, rtol=1e-4, atol=1e-5)
    mapped = jax.jit(axn.vmap(lambda x: run((decay, x))[1], B))(x)
    same(mapped, ("batch", "time", "mlp"), run((decay, x))[1].array)
    same(run((decay, x.untag("batch")))[1], ("time", "mlp"), mapped.array)


def test_there_are_no_more_equations_than_in_lax():
    x = draw(B, T, E)
    mine = count_equations(axn.associative_scan(axn.add, "time"), x)
    assert mine <= count_equations(lambda x: lax.associative_scan(jnp.add, x, axis=1), x.array)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_on_a_mesh(kind, request):
    decay, x = draw(T.resize(8), E), draw(B, T.resize(8), E, seed=1)
    run = axn.associative_scan(compose, "time")
    expected = jax.jit(run)((decay, x))[1].array
    for mapping in ({"batch": "data", "mlp": "model"}, {"time": "data"}):
        with axn.set_mesh(request.getfixturevalue(kind)):
            given = axn.shard((decay, x), mapping)
            same(axn.named_jit(run, mapping)(given)[1], ("batch", "time", "mlp"), expected)


LAYOUTS = [None, {"mlp": "data"}, {"time": "data"}]


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh", "mixed_mesh"])
def test_a_function_that_lays_its_results_out(kind, request):
    sums = lambda given: list(map(laying_out, given))  # noqa: E731
    lays_sums_out(jax.jit(sums), LAYOUTS, request.getfixturevalue(kind))


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh", "mixed_mesh"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_function_that_lays_its_results_out_outside_of_a_program(kind, layout, request):
    lays_sums_out(lambda given: [laying_out(given[0])], [layout], request.getfixturevalue(kind))


def laying_out(x):
    return axn.associative_scan(lambda a, b: axn.auto_sharded(a + b), "time")(x)


def lays_sums_out(sums, layouts, mesh):
    x = draw(B, T.resize(4), E)
    mapping = {"batch": "data", "time": "model"}  # slices along "time" are too small to be split
    with axn.set_mesh(mesh), axn.axis_mapping(mapping):
        results = sums([x if layout is None else axn.shard(x, layout) for layout in layouts])
    for result in results:
        same(result, ("batch", "time", "mlp"), np.cumsum(x.array, 1))


def test_errors():
    with pytest.raises(OperandError) as error:
        axn.associative_scan(axn.add, ("time", "mlp"))
    assert str(error.value) == "associative_scan: expected one axis, got 2: time, mlp"
    with pytest.raises(AxisNotFoundError) as error:
        axn.associative_scan(axn.add, "tim")(draw(T, E))
    assert str(error.value) == (
        "associative_scan: no axis named 'tim'\n  array has: time=6, mlp=4\n  hint: did you mean 'time'?"
    )
    with pytest.raises(AxisSizeError) as error:
        axn.associative_scan(compose, "time")((draw(T), draw(T.resize(5))))
    assert str(error.value) == (
        "associative_scan: axis 'time' has two sizes: 6 and 5\n  argument 0[0] has: time=6\n  argument 0[1] has: time=5"
    )
    with pytest.raises(
        AxisSizeError, match=r"^associative_scan: axis 'time' has two sizes: 5 and 6\n  asked for: time=5"
    ):
        axn.associative_scan(axn.add, T.resize(5))(draw(T))
    with pytest.raises(AxisSizeError, match="time=6\n  argument 0\\[1\\] has: shape"):
        axn.associative_scan(compose, "time")((draw(T), np.ones(5)))
    with pytest.raises(OperandError) as error:
        axn.associative_scan(axn.add, "time")(1.0)
    assert str(error.value) == "associative_scan: each element must be an array with axis 'time', not float"
    with pytest.raises(OperandError) as error:
        axn.associative_scan(lambda a, b: (a, b), "time")(draw(T))
    assert str(error.value) == (
        "associative_scan: the function changes the structure of an element\n"
        "  before: PyTreeDef(*)\n  after: PyTreeDef((*, *))"
    )
    for f, after in (
        (lambda a, b: (a + b).sum("time"), "no axes"),
        (lambda a, b: (a + b)["time", :1], "time=1"),
        (lambda a, b: (a + b).rename({"time": "t"}), "t=3"),
    ):
        with pytest.raises(AxisError) as error:
            axn.associative_scan(f, "time")(draw(T))
        assert str(error.value) == (
            f"associative_scan: the function changes the axes of an element\n  before: time=3\n  after: {after}"
        )
