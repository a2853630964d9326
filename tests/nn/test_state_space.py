"""`DiagonalSSM`, against a loop in complex128."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from measure import collectives, equations

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError
from tests.nn.layouts import check_on, draw, lies, same, value_and_gradients

pytestmark = pytest.mark.sampled

B, T, E, M = axn.make_axes(batch=8, time=5, embed=4, mlp=6)
LAYER = jax.jit(lambda key: nn.DiagonalSSM.init("time", E, M, r_min=0.5, r_max=0.95, key=key))(jax.random.key(0))
X = draw(B, T, E)


# Written out, the parallel form is hundreds of small programs.
both = eqx.filter_jit(lambda layer, x, state=None: layer(x, state, key=None))


def run(layer, x):
    return layer(x)[0]


def by_loop(layer, x, xp=np, dtype=np.complex128):
    """Go through {batch, time, embed} step by step, with complex matrices."""
    a = xp.exp(-xp.exp(layer.log_rate.array.astype(dtype)) + 1j * xp.exp(layer.log_phase.array.astype(dtype)))
    b, c = layer.input.weight.array, layer.output.weight.array
    b = xp.exp(layer.log_gain.array) * (b[:, 0] + 1j * b[:, 1])
    state, outputs = xp.zeros((x.shape[0], 6), dtype), []
    for t in range(x.shape[1]):
        state = a * state + x[:, t] @ b
        outputs.append((state @ (c[0] - 1j * c[1])).real + layer.skip.array * x[:, t])
    return xp.stack(outputs, 1), state


def test_against_a_loop():
    plain = jax.tree.map(lambda p: np.asarray(p, np.float64), LAYER)
    expected, last = by_loop(plain, np.asarray(X.array, np.float64))
    y, state = both(LAYER, X)
    same(y, ("batch", "time", "embed"), expected)
    assert state.names == ("batch", "mlp")
    np.testing.assert_allclose(state.array, last, atol=1e-5)
    moved = both(LAYER, X.rearrange(("embed", "time", "batch")))[0]
    same(moved.rearrange(y.names), y.names, expected)


def test_gradients():
    theirs = lambda n, x: axn.named(by_loop(n, x.array, jnp, jnp.complex64)[0], x.names)  # noqa: E731
    _, (found, (dx,)) = value_and_gradients(run)(LAYER, X)
    _, (expected, (dx_expected,)) = value_and_gradients(theirs)(LAYER, X)
    same(dx, X.names, dx_expected.array, atol=1e-4)
    for mine, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


def test_steps_equal_the_parallel_form():
    y, last = both(LAYER, X)
    step, state = eqx.filter_jit(LAYER.step), None
    for t in range(5):
        out, state = step(X["time", t], state)
        same(out, ("batch", "embed"), y["time", t].array)
    np.testing.assert_allclose(state.array, last.array, atol=1e-5)
    # A prompt in parallel, then the rest from its state.
    _, state = both(LAYER, X["time", :2])
    rest, end = both(LAYER, X["time", 2:], state)
    same(rest, y.names, y["time", 2:].array)
    np.testing.assert_allclose(end.array, last.array, atol=1e-5)


def test_a_state_may_have_axes_that_the_input_lacks():
    x, state = X["batch", 0], draw(B, M, seed=1) + 0j
    y, last = both(LAYER, x, state)
    repeated, end = both(LAYER, x.broadcast_axis(B), state)
    same(y, ("batch", "time", "embed"), repeated.array)
    np.testing.assert_allclose(last.array, end.array, atol=1e-5)
    step = eqx.filter_jit(LAYER.step)
    for t in range(5):
        out, state = step(x["time", t], state)
        same(out, ("batch", "embed"), y["time", t].array)
    np.testing.assert_allclose(last.array, state.array, atol=1e-5)


def test_the_ring():
    State = axn.Axis("mlp", 2000)
    init = lambda key: nn.DiagonalSSM.init("time", E, State, r_min=0.8, r_max=0.9, max_phase=1, key=key)  # noqa: E731
    layer = jax.jit(init)(jax.random.key(1))
    size, phase = np.exp(-np.exp(layer.log_rate.array)), np.exp(layer.log_phase.array)
    assert 0.8 <= size.min() < 0.801
    assert 0.899 < size.max() <= 0.9
    assert abs((size**2).mean() - (0.64 + 0.81) / 2) < 0.005  # uniform by area
    assert phase.max() <= 1
    assert abs(phase.mean() - 0.5) < 0.03
    np.testing.assert_allclose(np.exp(layer.log_gain.array) ** 2, 1 - size**2, rtol=1e-4)
    # White noise leaves the state with the variance of its input.
    noise = draw(axn.Axis("time", 64), axn.Axis("batch", 4), E)
    states = both(layer, noise)[1]
    assert 0.7 < (abs(states.array) ** 2).mean() < 1.3
    assert math.isclose(layer.input.weight.std().item(), 1 / math.sqrt(8), rel_tol=0.05)


def test_a_thin_ring_at_one():
    """One minus |a| squared is uniform, from zero on, and has all digits: no logarithm of it is infinite."""
    State, lowest = axn.Axis("state", 4096), 1 - 1e-7
    layer = nn.DiagonalSSM.init("time", E, State, r_min=lowest, key=jax.random.key(0))
    rate, gain = (np.exp(np.asarray(p.array, np.float64)) for p in (layer.log_rate, layer.log_gain))
    assert min(rate.min(), gain.min()) > 0
    width = 1 - lowest**2
    np.testing.assert_allclose(gain**2, -np.expm1(-2 * rate), rtol=1e-4)
    quantiles = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(np.quantile(gain**2 / width, quantiles), quantiles, atol=0.03)


def test_dtypes():
    narrow = jax.tree.map(lambda p: p.astype(jnp.bfloat16), LAYER)
    y, state = both(narrow, X.astype(jnp.bfloat16))
    assert (y.dtype, state.dtype) == (jnp.bfloat16, jnp.complex64)
    back = jax.tree.map(lambda p: p.astype(jnp.float32), narrow)
    same(y, X.names, both(back, X)[0].array, rtol=0.05, atol=0.05)
    assert jax.eval_shape(run, LAYER, X.astype(jnp.bfloat16)).dtype == jnp.float32


def test_transformations():
    y = both(LAYER, X)[0].array
    same(both(LAYER, X.untag("batch"))[0], ("time", "embed"), y)
    same(jax.jit(axn.vmap(lambda x: LAYER(x)[0], B))(X), X.names, y)


def test_the_decay_is_not_repeated_for_each_batch():
    def by_hand(layer, x):
        decay = jnp.exp(lax.complex(-jnp.exp(layer.log_rate.array), jnp.exp(layer.log_phase.array)))
        parts = jnp.einsum("bte,ecm->cbtm", x, layer.input.weight.array) * jnp.exp(layer.log_gain.array)
        compose = lambda one, other: (one[0] * other[0], one[1] * other[0] + other[1])  # noqa: E731
        scan = jax.vmap(lambda x: lax.associative_scan(compose, (jnp.broadcast_to(decay, (5, 6)), x))[1])
        states = scan(lax.complex(parts[0], parts[1]))
        parts = jnp.stack([states.real, -states.imag])
        return jnp.einsum("cbtm,cme->bte", parts, layer.output.weight.array) + layer.skip.array * x

    # XLA may move a broadcast behind what it computes: look at what it is given.
    programs = [jax.make_jaxpr(fn)(LAYER, x).jaxpr for fn, x in ((run, X), (by_hand, X.array))]
    elements = [sum(out.aval.size for one in equations(program) for out in one.outvars) for program in programs]
    assert elements[0] <= elements[1]


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
def test_on_a_mesh(mode, request):
    check_on(request.getfixturevalue(mode), run, LAYER, X)


def test_batches_and_states_lie_as_the_mapping_says(auto_mesh):
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"batch": "data", "mlp": "model"}):
        program = jax.jit(run).lower(LAYER, X).compile()
        assert lies(program(LAYER, X), auto_mesh, {"batch": "data"})
    # Both devices of the model axis have states of their own.
    assert [(each.kind, each.group) for each in collectives(program)] == [("all-reduce", 2)]


def test_no_positions_leave_the_state_as_it_is():
    x, state = draw(B, T.resize(0), E), LAYER.step(draw(B, E))[1]
    for start, expected in ((None, state * 0), (state, state)):
        y, last = LAYER(x, start)
        assert y.axes == x.axes
        assert last.axes == expected.axes
        np.testing.assert_array_equal(last.array, expected.array)


def test_errors():
    with pytest.raises(ArgumentError) as error:
        nn.DiagonalSSM.init("time", E, M, r_min=0.9, r_max=0.5, key=jax.random.key(0))
    assert str(error.value) == (
        "DiagonalSSM.init: decays need 0 <= r_min < r_max <= 1 and max_phase > 0, got 0.9, 0.5 and 6.283185307179586"
    )
    with pytest.raises(AxisNotFoundError) as error:
        LAYER(draw(B, E))
    assert str(error.value) == "DiagonalSSM: no axis named 'time'\n  array has: batch=8, embed=4"
    with pytest.raises(AxisSizeError) as error:
        nn.DiagonalSSM.init(T, E, M, key=jax.random.key(0))(draw(T.resize(3), E))
    assert str(error.value) == (
        "axis_size: axis 'time' was given with size 5, but has size 3\n  array has: time=3, embed=4"
    )
    with pytest.raises(AxisSizeError) as error:
        LAYER.step(draw(B, E.resize(3)))
    assert str(error.value) == (
        "DiagonalSSM: axis 'embed' of the input has size 3, but the layer was made for 4\n  input has: batch=8, embed=3"
    )
    with pytest.raises(AxisClashError) as error:
        LAYER(draw(T, E, M))
    assert str(error.value) == (
        "DiagonalSSM: the input already has axis 'mlp', which the layer adds\n"
        "  input has: time=5, embed=4, mlp=6\n  hint: rename it first: x.rename({'mlp': ...})"
    )
    with pytest.raises(AxisClashError) as error:
        LAYER(X, draw(B, T, M) + 0j)
    assert str(error.value) == (
        "DiagonalSSM: the state has axis 'time', which the layer runs along\n"
        "  state has: batch=8, time=5, mlp=6\n  hint: start from the state of one position: state['time', -1]"
    )
