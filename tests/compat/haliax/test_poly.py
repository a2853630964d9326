"""Polynomials, against numpy."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.poly import DEFAULT_POLY_AXIS_NAME, polyval

P, Q = np.float32([2, 0, -3, 1]), np.float32([1, 4])


def named(array, name="p"):
    return hax.named(jnp.asarray(array), name)


def matches(result, expected, name):
    assert type(result) is hax.NamedArray
    expected = np.asarray(expected)
    assert result.axes == (hax.Axis(name, len(expected)),)
    np.testing.assert_allclose(np.asarray(result.array), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["polyadd", "polysub", "polymul"])
def test_of_two(name):
    fn, ref = getattr(hax, name), getattr(np, name)
    matches(fn(named(P), named(Q, "q")), ref(P, Q), "p")
    matches(fn(p1=named(Q, "q"), p2=named(P)), ref(Q, P), "q")
    matches(fn(jnp.asarray(Q), named(P)), ref(Q, P), "p")
    matches(fn(named(P), Q.tolist()), ref(P, Q), "p")
    matches(fn(P, Q), ref(P, Q), DEFAULT_POLY_AXIS_NAME)
    matches(fn(named(P), 2.0), ref(P, 2.0), "p")


def test_polydiv():
    quotient, remainder = hax.polydiv(named(P), named(Q, "q"))
    matches(quotient, np.polydiv(P, Q)[0], "p")
    assert type(remainder) is hax.NamedArray
    np.testing.assert_allclose(np.trim_zeros(np.asarray(remainder.array).round(4), "f"), np.polydiv(P, Q)[1], rtol=1e-4)


@pytest.mark.parametrize("name", ["p", "degree"])
def test_of_one(name):
    wrapped = named if name == "p" else jnp.asarray
    matches(hax.polyder(wrapped(P)), np.polyder(P), name)
    matches(hax.polyder(p=wrapped(P), m=2), np.polyder(P, 2), name)
    matches(hax.polyint(wrapped(P)), np.polyint(P), name)
    matches(hax.polyint(wrapped(P), 2, k=jnp.array([1.0, 2.0])), np.polyint(P, 2, [1.0, 2.0]), name)
    matches(hax.poly(wrapped(Q)), np.poly(Q), name)
    matches(hax.trim_zeros(wrapped(np.float32([0, 1, 2, 0]))), [1, 2], name)
    matches(hax.trim_zeros(wrapped(np.float32([0, 1, 2, 0])), trim="f"), [1, 2, 0], name)
    roots = hax.roots(wrapped(P))
    assert roots.axes == (hax.Axis(name, 3),)
    np.testing.assert_allclose(np.sort_complex(roots.array), np.sort_complex(np.roots(P)), rtol=1e-4)


def test_polyval():
    x = hax.arange(hax.Axis("x", 3), dtype=jnp.float32)
    for p in (named(P), jnp.asarray(P), P.tolist()):
        matches(polyval(p, x), np.polyval(P, [0, 1, 2]), "x")
        plain = polyval(p, jnp.arange(3.0))
        assert isinstance(plain, jax.Array)
        np.testing.assert_allclose(plain, np.polyval(P, [0, 1, 2]))
        assert float(polyval(p, 2.0)) == np.polyval(P, 2.0)


def test_vander():
    result = hax.vander(named([2.0, 3.0], "x"), hax.Axis("degree", 3))
    assert result.axes == (hax.Axis("x", 2), hax.Axis("degree", 3))
    np.testing.assert_array_equal(result.array, np.vander([2.0, 3.0], 3))
    assert hax.vander(x=named([2.0, 3.0], "x"), degree="d").axes == (hax.Axis("x", 2), hax.Axis("d", 2))


def test_polyfit():
    x = np.linspace(-1, 1, 9).astype(np.float32)
    y = (2 * x**2 - x + 0.5 + 0.01 * np.sin(9 * x)).astype(np.float32)
    expected = np.polyfit(x, y, 2)
    matches(hax.polyfit(named(x, "i"), named(y, "i"), 2), expected, "i")
    matches(hax.polyfit(jnp.asarray(x), jnp.asarray(y), deg=2), expected, "degree")
    weights = np.arange(1.0, 10, dtype=np.float32)
    matches(hax.polyfit(named(x, "i"), named(y, "i"), 2, w=named(weights, "i")), np.polyfit(x, y, 2, w=weights), "i")
    for other in (named(weights, "k"), jnp.asarray(weights)):
        matches(hax.polyfit(named(x, "i"), named(y, "j"), 2, w=other), np.polyfit(x, y, 2, w=weights), "i")
    matches(hax.polyfit(jnp.asarray(x), named(y, "j"), 2), expected, "j")
    fit, covariance = hax.polyfit(named(x, "i"), named(y, "i"), 2, cov=True)
    matches(fit, expected, "i")
    assert covariance.axes == (hax.Axis("i", 3), hax.Axis("i_cov", 3))
    np.testing.assert_allclose(covariance.array, np.polyfit(x, y, 2, cov=True)[1], rtol=1e-3, atol=1e-6)
    full = hax.polyfit(named(x, "i"), named(y, "i"), 2, full=True)
    assert len(full) == 5
    np.testing.assert_allclose(np.asarray(full[0]), expected, rtol=1e-4)
    assert int(full[2]) == 3
    for found, name in ((full, "i"), (hax.polyfit(jnp.asarray(x), jnp.asarray(y), 2, full=True), "degree")):
        matches(found[0], expected, name)
        for part, reference in zip(
            found[1:], jnp.polyfit(jnp.asarray(x), jnp.asarray(y), 2, full=True)[1:], strict=True
        ):
            assert isinstance(part, jax.Array)
            assert part.shape == reference.shape
            np.testing.assert_allclose(part, reference, rtol=1e-2, atol=1e-6)
