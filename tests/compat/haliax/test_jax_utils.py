"""Additions to JAX of `haliax.jax_utils`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.jax_utils as ju

from tests.laws import count_kept

A, B = hax.make_axes(a=2, b=3)


@pytest.mark.parametrize("make", [jax.random.PRNGKey, jax.random.key])
@pytest.mark.parametrize("num", [1, 2, 5])
def test_maybe_rng_split(make, num):
    key = make(0)
    keys = ju.maybe_rng_split(key, num)
    expected = key[None] if num == 1 else jax.random.split(key, num)
    assert keys.shape == expected.shape
    assert jnp.array_equal(keys, expected)
    assert ju.maybe_rng_split(None, num) == [None] * num


def test_maybe_rng_split_into_two_by_default():
    one, two = ju.maybe_rng_split(jax.random.key(0))
    assert jnp.array_equal(jnp.stack([one, two]), jax.random.split(jax.random.key(0)))


@pytest.mark.parametrize(("shape", "leading"), [(3, (3,)), ((2, 3), (2, 3)), ([4], (4,)), (1, (1,)), ((), ())])
def test_shaped_rng_split(shape, leading):
    assert ju.shaped_rng_split(jax.random.PRNGKey(0), shape).shape == (*leading, 2)
    keys = ju.shaped_rng_split(jax.random.key(0), shape)
    assert keys.shape == leading
    if keys.size > 1:
        assert jnp.array_equal(keys.reshape(-1), jax.random.split(jax.random.key(0), keys.size))


def test_named_call_on_functions_and_methods():
    class Layer(eqx.Module):
        scale: float

        @ju.named_call
        def __call__(self, x, *, key=None):
            """Multiply."""
            return jnp.sin(x) * self.scale

    @ju.named_call(name="given")
    def f(x):
        return jnp.cos(x)

    def g(x):
        return jnp.tan(x)

    layer = Layer(2.0)
    wrapped = [
        layer,
        f,
        ju.named_call(g),
        ju.named_call(g, "other"),
        ju.named_call(layer),
        ju.named_call(layer.__call__),
    ]
    assert Layer.__call__.__doc__ == "Multiply."
    assert f.__name__ == "f"
    assert layer(0.5) == 2 * jnp.sin(0.5)

    def all_of_them(x):
        return [fn(x) for fn in wrapped]

    text = jax.jit(all_of_them).lower(1.0).as_text(debug_info=True)
    for name in ("Layer.__call__", "given", "g/", "other"):
        assert name in text


def test_multilevel_scan_equals_scan():
    xs = jnp.arange(6.0)

    def step(carry, x):
        return carry * 0.5 + x, carry

    for reverse in (False, True):
        expected = jax.lax.scan(step, 1.0, xs, reverse=reverse)
        actual = ju.multilevel_scan(step, 1.0, xs, 2, 6, reverse=reverse, unroll=1)
        for one, other in zip(expected, actual, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    squares = lambda carry, x: (jnp.sin(carry * x), None)  # noqa: E731
    everything = count_kept(lambda x: jax.lax.scan(squares, 1.0, x)[0], xs)
    assert count_kept(lambda x: ju.multilevel_scan(squares, 1.0, x, 2, 6)[0], xs) < everything
    with pytest.raises(ValueError, match="6 steps cannot be split into 4"):
        ju.multilevel_scan(step, 1.0, xs, 4, 6)


def test_scalars():
    x = hax.named(jnp.array(3), ())
    assert ju.is_scalarish(x)
    assert all(map(ju.is_scalarish, (1, 2.0, True, jnp.array(1), np.float32(1))))
    assert not any(map(ju.is_scalarish, (hax.ones(A), jnp.ones(1), "a", [1], None)))
    assert ju.ensure_scalar(x) is x.array
    assert ju.ensure_scalar(4) == 4
    for error in (TypeError, ValueError):
        with pytest.raises(error, match="start must be a scalar, not NamedArray"):
            ju.ensure_scalar(hax.ones(A), name="start")


def test_trees():
    tree = {"one": 1, "two": None}
    assert ju.broadcast_prefix({"a": 1, "b": 2}, {"a": [0, 0], "b": 0}) == {"a": [1, 1], "b": 2}
    assert ju.combine({"one": None, "two": 2}, tree) == {"one": 1, "two": 2}
    named = ju.tree_checkpoint_name({"x": hax.ones(A), "n": 3}, "name")
    assert type(named["x"]) is hax.NamedArray
    assert named["n"] == 3
    static = ju.Static("value")
    assert static.value == "value"
    assert jax.tree.leaves(static) == []


def test_across_processes():
    ju.sync_global_devices("a name")
    ju.assert_equal({"x": jnp.ones(2)}, "differs")
    np.testing.assert_array_equal(ju.broadcast_one_to_all(jnp.ones(2), True), np.ones(2))


def test_equinox():
    shapes = ju.filter_eval_shape(lambda n: {"x": hax.ones((A, B)) * n, "text": "t"}, 2)
    assert type(shapes["x"]) is hax.NamedArray
    assert shapes["x"].axes == (A, B)
    assert shapes["text"] == "t"
    twice = lambda x: jnp.sin(jnp.sin(x))  # noqa: E731
    f = ju.filter_checkpoint(twice, prevent_cse=False, policy=None)
    assert count_kept(f, 1.0) < count_kept(twice, 1.0)


def test_shapes():
    assert ju.to_jax_shape((A, B)) == (2, 3)
    assert ju.to_jax_shape(A) == (2,)
    assert ju.to_jax_shape((A, 5)) == (2, 5)
    assert ju.to_jax_shape({"a": 2}) == (2,)


def test_where_it_runs():
    assert ju.is_in_jit() is False
    inside = []
    jax.make_jaxpr(lambda x: inside.append(ju.is_in_jit()) or x)(1)
    assert inside == [True]
    assert ju.is_on_mac_metal() is False
    assert ju.is_pallas_dslice(pallas.ds(0, 2))
    assert not ju.is_pallas_dslice(hax.ds(0, 2))
    assert ju.is_jax_array_like(jnp.ones(2))
    assert not ju.is_jax_array_like(2)
