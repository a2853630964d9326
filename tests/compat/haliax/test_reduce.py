"""Reductions and functions along axes, by rules R and A of Haliax, against jax.numpy."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

A, B, C = hax.Axis("A", 2), hax.Axis("B", 3), hax.Axis("C", 4)
X = np.sin(np.arange(24, dtype=np.float32).reshape(2, 3, 4) * 1.7)

PLAIN = ["all", "any", "max", "min", "amax", "amin", "nanmax", "nanmin", "ptp"]
TYPED = ["sum", "mean", "prod", "product", "nansum", "nanmean", "nanprod"]
SPREAD = ["std", "var", "nanstd", "nanvar"]


def named(array, *axes):
    return hax.NamedArray(jnp.asarray(array), axes)


def x():
    return named(X, A, B, C)


def matches(result, expected, *axes):
    assert type(result) is hax.NamedArray
    assert result.axes == axes
    np.testing.assert_allclose(np.asarray(result.array), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", PLAIN + TYPED + SPREAD)
def test_reduction(name):
    fn, ref = getattr(hax, name), getattr(np, "prod" if name == "product" else name)
    raw = X > 0 if name in ("all", "any") else X.copy()
    if name.startswith("nan"):
        raw[0, 1, 2] = np.nan
    a = named(raw, A, B, C)
    matches(fn(array=a), ref(raw))
    mask = named([True, False, True], B)
    matches(fn(a, "B", where=mask), ref(raw[:, ::2], axis=1), A, C)
    plain = jax.eval_shape(lambda raw: fn(raw, 1), raw)
    assert type(plain) is jax.ShapeDtypeStruct
    assert plain.shape == (2, 4)


def test_selections_of_axes():
    matches(hax.sum(x(), ("C", A)), X.sum((0, 2)), B)
    matches(hax.sum(x(), {"B": 3}), X.sum(1), A, C)
    matches(hax.sum(x(), B), X.sum(1), A, C)
    matches(hax.sum(x(), ["C", "B", "A"]), X.sum())
    matches(hax.sum(x(), ()), X, A, B, C)
    matches(hax.sum(x(), axis=None), X.sum())


def test_plain_arrays():
    for result, expected in (
        (hax.sum(X), X.sum()),
        (hax.max(X, 1), X.max(1)),
        (hax.mean(X, where=X > 0), X.mean(where=X > 0)),
        (hax.argmin(X, 1), X.argmin(1)),
        (hax.cumsum(X, 1), X.cumsum(1)),
    ):
        assert isinstance(result, jax.Array)
        np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["sum", "prod", "nanmean", "var"])
def test_dtype(name):
    half = named(X.astype(jnp.bfloat16), A, B, C)
    assert getattr(hax, name)(half, B, dtype=jnp.float32).dtype == jnp.float32
    assert getattr(hax, name)(half, B).dtype == jnp.bfloat16


@pytest.mark.parametrize("name", ["std", "nanvar"])
def test_ddof(name):
    matches(getattr(hax, name)(x(), "C", ddof=1), getattr(np, name)(X, axis=2, ddof=1), A, B)


def test_counts_of_booleans():
    mask = named(X > 0, A, B, C)
    matches(hax.sum(mask, "C"), (X > 0).sum(2), A, B)
    matches(hax.mean(mask), (X > 0).mean())


def test_where_is_named_and_has_axes_of_the_array():
    for error in (TypeError, ValueError):
        with pytest.raises(error, match="where must be a NamedArray"):
            hax.sum(x(), "A", where=X > 0)
    with pytest.raises(ValueError, match="'D'"):
        hax.sum(x(), "A", where=named(np.ones(5, bool), hax.Axis("D", 5)))
    mask = X.transpose(2, 0, 1) > 0
    matches(hax.sum(x(), "B", where=named(mask, C, A, B)), np.where(X > 0, X, 0).sum(1), A, C)


def test_axes_that_are_not_there():
    with pytest.raises(ValueError, match="axis 'Q' not found"):
        hax.sum(x(), "Q")
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="size 7"):
            hax.mean(x(), hax.Axis("A", 7))


def test_trees():
    tree = {"a": x(), "b": [X, None], "c": 2.0}
    total = hax.sum(tree)
    matches(total["a"], X.sum())
    np.testing.assert_allclose(total["b"][0], X.sum(), rtol=1e-5)
    assert total["b"][1] is None
    assert float(total["c"]) == 2.0
    per = hax.max([x(), named(X[0], B, C)], "B")
    matches(per[0], X.max(1), A, C)
    matches(per[1], X[0].max(0), C)
    where = named([True, False, True], B)
    masked = hax.sum([x(), named(X[0], B, C)], "B", where=where)
    matches(masked[0], X[:, ::2].sum(1), A, C)
    matches(masked[1], X[0, ::2].sum(0), C)
    with pytest.raises(ValueError, match="no named axes"):
        hax.sum(tree, "B")
    with pytest.raises(TypeError, match="no named axes"):
        hax.argmax(X, "B")
    assert [int(i) for i in hax.argmax((X, x()), None)] == [int(X.argmax())] * 2


@pytest.mark.parametrize("name", ["argmax", "argmin", "nanargmax", "nanargmin"])
def test_search(name):
    fn, ref = getattr(hax, name), getattr(np, name)
    matches(fn(x(), "B"), ref(X, axis=1), A, C)
    matches(fn(x(), axis=None), ref(X))
    with pytest.raises(ValueError, match="one axis"):
        fn(x(), ("A", "B"))
    with pytest.raises(ValueError, match="'Q'"):
        fn(x(), "Q")


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "nancumsum", "nancumprod", "sort", "argsort"])
def test_along(name):
    fn, ref = getattr(hax, name), getattr(np, name)
    raw = X.copy()
    if name.startswith("nan"):
        raw[0, 1, 2] = np.nan
    a = named(raw, A, B, C)
    matches(fn(a, "B"), ref(raw, axis=1), A, B, C)
    flat = fn(a, axis=None)
    assert isinstance(flat, jax.Array)
    np.testing.assert_allclose(flat, ref(raw, axis=None), rtol=2e-5)
    with pytest.raises(ValueError, match="one axis"):
        fn(a, ("A", "B"))


def test_options_of_functions_along():
    ints = named(np.int8([1, 2, 3]), B)
    assert hax.cumsum(ints, B, dtype=jnp.int32).dtype == jnp.int32
    assert hax.cumprod(ints, B, jnp.float32).dtype == jnp.float32
    assert hax.nancumprod(ints, "B", dtype=jnp.float32).dtype == jnp.float32
    matches(hax.argsort(named([1, 0, 1], B), B, stable=True), [1, 0, 2], B)


def test_under_jit_and_grad():
    def loss(a):
        return hax.mean(hax.var(a, "C") + hax.max(a, C)).scalar()

    expected = jax.grad(lambda a: (a.var(2) + a.max(2)).mean())(X)
    matches(jax.jit(jax.grad(loss))(x()), expected, A, B, C)
