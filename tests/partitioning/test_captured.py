"""Arrays that a function inside of a `shard_map` closes over, on meshes of each kind."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ShardingError
from axonym.partitioning.captured import find_typed_variables, with_variables

pytestmark = pytest.mark.sampled

B, E = axn.make_axes(batch=8, embed=4)
X = axn.arange((B, E), dtype=float)
DATA = {"batch": "data"}


@pytest.fixture(params=["auto_mesh", "explicit_mesh", "mixed_mesh"])
def mesh(request):
    chosen = request.getfixturevalue(request.param)
    with axn.set_mesh(chosen):
        yield chosen


def test_what_is_whole_on_each_device_may_be_closed_over(mesh):
    x = axn.shard(X, DATA)
    named, plain, tree = axn.arange(E, dtype=float), jnp.float32(2), {"w": axn.ones(E), "name": "bias"}
    key = jax.random.key(0)

    def f(x):
        noise = axn.random.normal(key, E)
        return axn.tanh(x * named * plain + tree["w"] + noise)

    result = axn.shard_map(f, DATA)(x)
    in_jit = jax.jit(lambda x: axn.shard_map(f, DATA)(x))(x)
    whole = np.tanh(np.asarray(X.array) * np.arange(4) * 2 + 1 + np.asarray(jax.random.normal(key, 4)))
    for got in (result, in_jit):
        np.testing.assert_allclose(got.array, whole, rtol=1e-5)


def test_gradients_of_what_is_closed_over(mesh):
    x = axn.shard(X, DATA)

    def loss(w):
        return axn.shard_map(lambda x: axn.psum((x * w).sum("batch"), "batch"), DATA)(x).sum().scalar()

    gradient = jax.jit(jax.grad(loss))(axn.ones(E))
    np.testing.assert_allclose(gradient.array, X.sum("batch").array)


SCALE = None


def test_global_variables(mesh, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", axn.full(E, 3.0))
    result = axn.shard_map(lambda x: x * SCALE, DATA)(axn.shard(X, DATA))
    np.testing.assert_allclose(result.array, X.array * 3)


def test_some_mesh_axes_only(mesh):
    w = axn.shard(axn.arange(E, dtype=float), {"embed": "model"})
    result = axn.shard_map(lambda x: x * w, DATA, manual_axes="data")(axn.shard(X, DATA))
    np.testing.assert_allclose(result.array, X.array * np.arange(4))


def test_what_is_split_must_be_an_argument(explicit_mesh):
    with axn.set_mesh(explicit_mesh):
        w = axn.shard(axn.arange(E, dtype=float), {"embed": "model"})
        with pytest.raises(ShardingError) as error:
            axn.shard_map(lambda x: x * w, DATA)(axn.shard(X, DATA))
        assert str(error.value) == (
            "shard_map: the function closes over w, on Explicit axes of the mesh\n  w: float32[4@model]\n"
            "  hint: pass it as an argument: each device gets its block by the mapping"
        )

        def fails(x):
            raise ValueError(f"of the user, beside {w.names} and {x.names}")

        with pytest.raises(ValueError, match="of the user, beside"):
            axn.shard_map(fails, {}, strict=False)(X)


class Scaled:
    def __init__(self, weight):
        self.weights = {"w": weight}

    def __call__(self, x):
        return x * self.weights["w"]

    def method(self, x):
        return self(x)


def scaled(x):
    return x * SCALE


def naming(w):
    return [lambda x: axn.dot(x, w, axis="embed"), lambda x: axn.vmap(lambda row: row + w, "batch")(x)]


def reaching(w):
    """Ways in which a function reaches an array that it does not name itself, and what the error calls the array."""
    inner, scaler = (lambda y: axn.tanh(y) * w), Scaled(w)
    return {
        "w": [
            jax.jit(inner),
            axn.named_jit(inner),
            lambda x: inner(x),
            lambda x: axn.grad(lambda x: inner(x).sum())(x),
        ],
        "y": [lambda x, y=w: x * y, functools.partial(lambda x, y: x * y, y=w)],
        "args[0]": [functools.partial(lambda y, x: x * y, w)],
        "self.weights": [scaler, scaler.method],
        "scaler.weights": [lambda x: scaler(x)],
        "SCALE": [lambda x: scaled(x), lambda x: (lambda: x * SCALE)()],
    }


@pytest.mark.parametrize("layout", [{"embed": "model"}, {}], ids=str)
def test_what_is_reached_and_refused_has_a_name(explicit_mesh, monkeypatch, layout):
    """Split arrays always; whole ones where the function itself does not name them."""
    with axn.set_mesh(explicit_mesh):
        w, x = axn.shard(axn.arange(E, dtype=float), layout), axn.shard(X, DATA)
        monkeypatch.setitem(globals(), "SCALE", w)
        cases = reaching(w)
        if layout:
            cases["w"] += naming(w)
        cases = [(name, f) for name, functions in cases.items() for f in functions]
        for name, f in cases:
            with pytest.raises(ShardingError) as error:
                jax.eval_shape(axn.shard_map(f, DATA), x)
            assert str(error.value) == (
                f"shard_map: the function closes over {name}, on Explicit axes of the mesh\n"
                f"  {name}: {jax.typeof(w.array)}\n"
                "  hint: pass it as an argument: each device gets its block by the mapping"
            )


def test_a_copy_has_other_variables_alone():
    first, second, seen = 1, 2, []

    def f(x, *, scale=2):
        seen.append(x)
        return first + second + x * scale

    copy = with_variables(f, {"second": 30})
    assert (f(1), copy(1), copy(1, scale=0), seen) == (5, 33, 31, [1, 1, 1])
    assert with_variables(f, {}) is f
    assert find_typed_variables(f) == find_typed_variables(len) == {}


def test_a_variable_that_is_not_assigned_yet():
    def f():
        return later

    assert find_typed_variables(f) == {}
    later = 1
    assert f() == later
