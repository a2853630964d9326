"""`vmap` and loops over named axes."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.hof
import haliax.nn as hnn
from haliax import NamedArray

from tests.laws import count_kept

Time, Embed, Batch = hax.make_axes(time=4, embed=3, batch=2)
X = hax.named(jnp.arange(12.0).reshape(3, 4), (Embed, Time))  # the axis of the loop is not the first one
RAW = jnp.arange(8.0).reshape(4, 2)


def _scanned(f, init, xs, **options):
    return lax.scan(f, init, xs, **options)


@pytest.mark.parametrize(("axis", "reverse", "unroll"), [(Time, False, 1), ("time", True, 2), ("time", False, True)])
def test_scan(axis, reverse, unroll):
    def f(carry, x, raw, *, scale):
        assert x.axes == (Embed,)
        assert raw.shape == (2,)
        carry = carry * scale + x
        return carry, (carry.sum(), raw * 2, x + 1)

    init = hax.ones(Embed)
    carry, (sums, raws, ys) = hax.scan(f, axis, reverse=reverse, unroll=unroll)(init, X, RAW, scale=0.5)

    def plain(c, x):
        c = c * 0.5 + x[0]
        return c, (c.sum(), x[1] * 2, x[0] + 1)

    expected, (esums, eraws, eys) = _scanned(plain, jnp.ones(3), (X.array.T, RAW), reverse=reverse)
    assert {type(carry), type(sums), type(ys)} == {NamedArray}
    assert isinstance(raws, jax.Array)
    assert (carry.axes, sums.axes, ys.axes) == ((Embed,), (Time,), (Time, Embed))
    for mine, theirs in ((carry.array, expected), (sums.array, esums), (raws, eraws), (ys.array, eys)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize("loop", [hax.fold, hax.reduce, haliax.hof.fold])
def test_fold(loop):
    total = loop(lambda carry, x, y: carry + x * y, Time)(hax.zeros(Embed), X, 2.0)
    assert type(total) is NamedArray
    np.testing.assert_allclose(total.array, 2 * X.array.sum(1))


def test_fold_without_arrays():
    assert hax.fold(lambda n: n + 1, Time)(0) == 4
    carry, ys = hax.scan(lambda n: (n + 1, n), Time)(0)
    assert (carry, ys.tolist()) == (4, [0, 1, 2, 3])


def test_carry_is_any_tree():
    def step(carry, x, i):
        return {"sum": carry["sum"] + x, "n": carry["n"] + i.scalar(), "none": None}

    init = {"sum": hax.zeros(Embed), "n": 0, "none": None}
    final = hax.fold(step, Time)(init, X, hax.arange(Time))
    assert final["none"] is None
    assert final["n"] == 6
    np.testing.assert_allclose(final["sum"].array, X.array.sum(1))


def test_keys_are_split_and_a_typed_key_is_shared():
    keys = jax.random.split(jax.random.PRNGKey(0), 4)

    def draw(carry, key, shared):
        return carry, (jax.random.normal(key, ()), jax.random.normal(shared, ()))

    _, (own, shared) = hax.scan(draw, Time)(0, keys, jax.random.key(1))
    np.testing.assert_allclose(own, jax.vmap(lambda key: jax.random.normal(key, ()))(keys), rtol=1e-6)
    assert len(set(shared.tolist())) == 1


@pytest.mark.parametrize(
    "is_scanned",
    [
        hax.is_named_array,
        lambda x: isinstance(x, NamedArray),
        ((True, False), {}),
    ],
)
def test_is_scanned(is_scanned):
    weights = jnp.ones(7)

    def step(carry, x, w):
        assert w.shape == (7,)
        return carry + x.sum().scalar() * w

    np.testing.assert_allclose(hax.fold(step, Time, is_scanned=is_scanned)(jnp.zeros(7), X, weights), [66.0] * 7)


def test_nothing_is_scanned():
    final = hax.fold(lambda c, x: c + x, Time, is_scanned=False)(hax.zeros(X.axes), X)
    np.testing.assert_allclose(final.array, 4 * X.array)


REMATS = [False, True, "offload", "recompute", "save_all", hax.ScanCheckpointPolicy(nested=2)]


@pytest.mark.parametrize("remat", [*REMATS, hax.ScanCheckpointPolicy(save_block_internals=["inner"])], ids=str)
def test_remat_changes_no_value(remat):
    def loss(x):
        def step(carry, part):
            inner = hax.tree_checkpoint_name(hax.sin(carry * part), "inner")
            return carry + inner

        return hax.fold(step, Time, remat=remat)(hax.ones(Embed), x).sum().scalar()

    def plain(x):
        carry = jnp.ones(3)
        for i in range(4):
            carry = carry + jnp.sin(carry * x[:, i])
        return carry.sum()

    expected = jax.grad(plain)(X.array)
    np.testing.assert_allclose(jax.grad(loss)(X).array, expected, rtol=1e-5)
    assert (count_kept(loss, X) < count_kept(plain, X.array)) is (remat not in (False, "save_all"))


def test_map():
    doubled = hax.map(lambda x: x * 2, Time)(X)
    assert type(doubled) is NamedArray
    assert doubled.axes == (Time, Embed)
    np.testing.assert_allclose(doubled.array, 2 * X.array.T)
    sums = hax.map(lambda tree: {"s": tree["x"].sum() + tree["r"].sum()}, Time, reverse=True)({"x": X, "r": RAW})
    np.testing.assert_allclose(sums["s"].array, X.array.sum(0) + RAW.sum(1))
    only = hax.map(lambda tree: tree["x"] * tree["r"].size, Time, is_mapped=hax.is_named_array)({"x": X, "r": RAW})
    np.testing.assert_allclose(only.array, 8 * X.array.T)


def test_vmap():
    def f(x, y, raw, number, *, key=None):
        assert x.axes == (Embed,)
        assert y.axes == (Batch,)
        assert raw.shape == (2,)
        assert number == 3
        return x.sum(), raw * number, y

    y = hax.ones(Batch)
    sums, raws, ys = hax.vmap(f, "time")(X, y, RAW, 3, key=jax.random.split(jax.random.key(0), 4))
    assert (sums.axes, ys.axes) == ((Time,), (Time, Batch))
    assert type(sums) is type(ys) is NamedArray
    np.testing.assert_allclose(sums.array, X.array.sum(0))
    np.testing.assert_allclose(raws, 3 * RAW)


def test_vmap_over_several_axes_and_a_new_one():
    def f(x):
        assert x.axes == ()
        return x * 2

    result = hax.vmap(f, (Time, Embed))(X)
    assert result.axes == (Time, Embed)
    np.testing.assert_allclose(result.array, 2 * X.array.T)
    assert hax.vmap(lambda x: x, Batch)(X).axes == (Batch, Embed, Time)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (2,)),
        ({"default": None}, (4, 4)),
        ({"default": 1}, (4,)),
        ({"args": (None,)}, (4, 4)),
        ({"args": (1,)}, (4,)),
        ({"kwargs": {"raw": None}}, (4, 4)),
        ({"default": lambda x: None if x.ndim == 2 else 0}, (4, 4)),
        ({"args": (lambda x: 1,)}, (4,)),
    ],
)
def test_vmap_of_raw_arrays(options, shape):
    raw = jnp.ones((4, 4) if shape != (2,) else (4, 2))
    seen = []
    hax.vmap(lambda raw, x: seen.append(raw.shape) or raw.sum() + x, Time, **options)(raw, X)
    assert seen == [shape]


class Layer(eqx.Module):
    weight: NamedArray
    inference: bool
    act: object

    @staticmethod
    def init(axis, *, key):
        return Layer(hax.random.normal(key, axis), False, jax.nn.relu)

    def __call__(self, x):
        return x * self.weight


def test_vmap_of_constructors_and_methods():
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    layers = hax.vmap(Layer.init, Time)(Embed, key=keys)
    assert type(layers.weight) is NamedArray
    assert layers.weight.axes == (Time, Embed)
    assert layers.inference is False
    assert layers.act is jax.nn.relu
    for i in range(4):
        np.testing.assert_allclose(layers.weight.array[i], Layer.init(Embed, key=keys[i]).weight.array, rtol=1e-6)
    one = Layer.init(Embed, key=keys[0])
    for fn in (one, one.__call__, functools.partial(Layer.__call__, one), eqx.Partial(Layer.__call__, one)):
        assert hax.vmap(fn, Time)(X).axes == (Time, Embed)
    linears = hax.vmap(hnn.Linear.init, Time)(Embed, Batch, key=keys)
    assert linears.weight.axes == (Time, Batch, Embed)
    assert hax.vmap(Layer, Time)(X, True, None).weight.axes == (Time, Embed)


def test_vmap_of_dtypes():
    assert hax.vmap(lambda x: x.astype(jnp.bfloat16), Time)(X).dtype == jnp.bfloat16


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_sizes_that_differ(error):
    for loop in (hax.fold(lambda c, x, r: c, Time), hax.scan(lambda c, x, r: (c, 0), Time)):
        with pytest.raises(error, match=r"axis 'time' has two sizes: 4 and 3[\s\S]* r has leading dimension 3"):
            loop(0, X, jnp.ones(3))
    with pytest.raises(error, match="two sizes"):
        hax.vmap(lambda x: x, Time.resize(5))(X)


@pytest.mark.parametrize("following", [lambda c: hax.ones(Batch), lambda c: c[Embed, :2]])
def test_a_carry_that_changes(following):
    with pytest.raises(TypeError, match="a step changes"):
        hax.fold(lambda c, x: following(c), Time)(hax.ones(Embed), X)


def test_a_carry_whose_dtype_changes():
    with pytest.raises(TypeError):
        hax.fold(lambda c, x: c.astype(jnp.bfloat16), Time)(hax.ones(Embed), X)


def test_a_step_without_output():
    for error in (TypeError, ValueError):
        with pytest.raises(error, match="pair of carry and output"):
            hax.scan(lambda c, x: c, Time)(hax.ones(Embed), X)


def test_an_axis_that_nothing_has():
    with pytest.raises(ValueError, match="no argument has axis 'tim'"):
        hax.vmap(lambda x: x, "tim")(X)


def test_errors_of_the_function_pass():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        hax.vmap(fails, Time)(X)


@pytest.mark.parametrize("unknown", ["off", 3])
def test_unknown_policies(unknown):
    with pytest.raises(ValueError, match="is not a checkpoint policy"):
        hax.fold(lambda c: c, Time, remat=unknown)


def test_under_jit_and_grad():
    @jax.jit
    def loss(x):
        _, ys = hax.scan(lambda c, v: (c + v, c * v), Time)(hax.zeros(Embed), x)
        return ys.sum().scalar()

    def plain(x):
        before = jnp.cumsum(x, 1) - x
        return (before * x).sum()

    np.testing.assert_allclose(jax.grad(loss)(X).array, jax.grad(plain)(X.array), rtol=1e-5)


@pytest.mark.parametrize("payload", [None, (), "frozen"])
def test_named_arrays_without_an_array_pass(payload):
    hollow = hax.tree_util.tree_map(lambda x: hax.NamedArray(payload, x.axes), X)
    inner = []

    def step(carry, x, hollow):
        inner.append(hollow.axes)
        return carry, {"x": x, "hollow": hollow}

    _, scanned = hax.scan(step, Time)(hollow, X, hollow)
    results = [
        scanned["hollow"],
        hax.scan(step, "time")(hollow, X, hollow)[0],
        hax.fold(lambda c, x, hollow: step(c, x, hollow)[0], Time)(hollow, X, hollow),
        hax.vmap(lambda x, hollow: step(0, x, hollow)[1], "time")(X, hollow=hollow)["hollow"],
        hax.map(lambda tree: step(0, *tree)[1], Time)((X, hollow))["hollow"],
    ]
    assert set(inner) == {tuple(axis for axis in X.axes if axis != Time)}
    front = (Time, *inner[0])
    assert [x.axes for x in results] == [front, X.axes, X.axes, front, front]
    assert all(type(x) is hax.NamedArray and x.array == payload for x in results)
