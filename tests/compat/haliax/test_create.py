"""Arrays from nothing, against jax.numpy."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

A, B = hax.Axis("A", 2), hax.Axis("B", 3)


def matches(result, expected, *axes):
    assert type(result) is hax.NamedArray
    assert result.axes == axes
    assert result.dtype == jax.dtypes.canonicalize_dtype(expected.dtype)
    np.testing.assert_allclose(np.asarray(result.array), np.asarray(expected), rtol=1e-6)


@pytest.mark.parametrize("spec", [(A, B), [A, B], {"A": 2, "B": 3}])
def test_filled(spec):
    matches(hax.zeros(spec), np.zeros((2, 3), np.float32), A, B)
    matches(hax.ones(spec, dtype=jnp.int32), np.ones((2, 3), np.int32), A, B)
    matches(hax.full(spec, 7), np.full((2, 3), 7, np.int32), A, B)
    matches(hax.full(shape=spec, fill_value=2.5, dtype=jnp.bfloat16), jnp.full((2, 3), 2.5, jnp.bfloat16), A, B)


def test_one_axis_and_none():
    matches(hax.zeros(A), jnp.zeros(2), A)
    matches(hax.ones(()), jnp.ones(()))
    matches(hax.full(A, jnp.asarray(3.0)), jnp.full(2, 3.0), A)
    matches(hax.full((A, B), jnp.arange(3)), jnp.full((2, 3), jnp.arange(3)), A, B)
    matches(hax.full(A, hax.zeros(())), jnp.zeros(2), A)


def test_default_dtype_is_float32():
    with jax.enable_x64(True):
        assert hax.zeros(A).dtype == jnp.float32
        assert hax.ones(A).dtype == jnp.float32
        assert hax.full(A, 1.0).dtype == jnp.float64


def test_like():
    x = hax.NamedArray(jnp.ones((2, 3), jnp.bfloat16), (A, B))
    matches(hax.zeros_like(x), jnp.zeros((2, 3), jnp.bfloat16), A, B)
    matches(hax.ones_like(x, dtype=jnp.int32), np.ones((2, 3), np.int32), A, B)
    matches(hax.full_like(a=x, fill_value=4), jnp.full((2, 3), 4, jnp.bfloat16), A, B)
    matches(hax.full_like(x, 4, jnp.float32), jnp.full((2, 3), 4.0), A, B)


def test_arange():
    matches(hax.arange(B), jnp.arange(3), B)
    matches(hax.arange(B, start=5), jnp.arange(5, 8), B)
    matches(hax.arange(B, start=1.0, step=0.5), jnp.array([1.0, 1.5, 2.0]), B)
    matches(hax.arange(axis=B, dtype=jnp.float32), jnp.arange(3.0), B)
    matches(hax.arange((A, B), start=1, step=2), 1 + 2 * jnp.arange(6).reshape(2, 3), A, B)
    matches(jax.jit(lambda start: hax.arange(B, start=start))(4), jnp.arange(4, 7), B)
    matches(hax.arange(B, start=hax.full((), 2)), jnp.arange(2, 5), B)


@pytest.mark.parametrize(("name", "more"), [("linspace", {}), ("geomspace", {}), ("logspace", {"base": 2.0})])
def test_spaced(name, more):
    fn, ref = getattr(hax, name), getattr(np, name)
    matches(fn(B, start=1.0, stop=4.0, **more), ref(1.0, 4.0, 3, **more), B)
    matches(fn(B, start=1, stop=4, endpoint=False, **more), ref(1, 4, 3, endpoint=False, **more), B)


def test_spaced_options():
    assert hax.linspace("Z", start=1.0, stop=4.0).axes == (hax.Axis("Z", 50),)
    assert hax.linspace(B, start=1.0, stop=4.0, dtype=jnp.float16).dtype == jnp.float16


def test_bad_axes():
    with pytest.raises(ValueError, match="A"):
        hax.zeros((A, A))
    with pytest.raises((TypeError, ValueError), match="A"):
        hax.zeros("A")
