"""Cumulative sums, products and extrema: laws over one row per function."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import AxisError, AxisSizeError
from axonym.ops import cumulative
from tests.laws import Bulk, Smooth, SmoothBulk, Values, count_equations, has_row_for_each, row_along

row = functools.partial(row_along, cumulative)


def backwards(fn: Any) -> Any:
    return lambda x, at: np.flip(fn(np.flip(x, at), at), at)


def jax_backwards(fn: Any) -> Any:
    return lambda x, at: jnp.flip(fn(jnp.flip(x, at), at), at)


def cumlogsumexp(x: jax.Array, at: int) -> jax.Array:
    return lax.cumlogsumexp(x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float), at)


def initial(fn: Any) -> Any:
    return lambda x, at: fn(x, axis=at, include_initial=True)


def silent(fn: Any) -> Any:
    return lambda x, at: np.errstate(invalid="ignore")(fn)(x, at)


SMOOTH = [
    row("cumprod", "b", 1, jnp.cumprod, np.cumprod),
    row("cumsum", "a", 0, jnp.cumsum, np.cumsum),
]


SMOOTH_BULK = [
    row("cumlogsumexp", "a", 0, cumlogsumexp, np.logaddexp.accumulate),
    row("cummax", "a", 0, jnp.maximum.accumulate, np.maximum.accumulate),
    row("cumulative_prod", "c", 2, initial(jnp.cumulative_prod), initial(np.cumulative_prod), include_initial=True),
    row("cumulative_sum", "a", 0, initial(jnp.cumulative_sum), initial(np.cumulative_sum), include_initial=True),
]


BULK = [
    row("cummin", "c", 2, jnp.minimum.accumulate, np.minimum.accumulate),
    row("nancumprod", "a", 0, jnp.nancumprod, silent(np.nancumprod), domain="special"),
    row("nancumsum", "a", 0, jnp.nancumsum, silent(np.nancumsum), domain="special"),
]


VARIANTS = [
    row(
        "cumprod",
        "a",
        0,
        lambda x, at: jnp.flip(jnp.cumprod(jnp.flip(x, at), at, float), at),
        backwards(np.cumprod),
        case="reverse, dtype",
        domain="shift",
        dtype=float,
        reverse=True,
    ),
    row("cumsum", axn.Axis("b", 2), 1, jnp.cumsum, np.cumsum, case="Axis"),
    row("cumsum", "c", 2, jax_backwards(jnp.cumsum), backwards(np.cumsum), case="reverse", reverse=True),
    row("cumsum", "a", 0, lambda x, at: jnp.cumsum(x, at, float), np.cumsum, case="dtype", domain="int", dtype=float),
    row(
        "cumlogsumexp",
        "a",
        0,
        jax_backwards(cumlogsumexp),
        backwards(np.logaddexp.accumulate),
        case="reverse",
        reverse=True,
    ),
    row(
        "cummax",
        "c",
        2,
        jax_backwards(jnp.maximum.accumulate),
        backwards(np.maximum.accumulate),
        case="reverse",
        reverse=True,
    ),
    row(
        "cummin",
        "a",
        0,
        jax_backwards(jnp.minimum.accumulate),
        backwards(np.minimum.accumulate),
        case="reverse, bool",
        domain="bool",
        reverse=True,
    ),
    row("cumulative_sum", "a", 0, lambda x, at: jnp.cumulative_sum(x, axis=at), np.cumsum, case="nothing in front"),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + SMOOTH_BULK + BULK, cumulative)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", SMOOTH_BULK, ids=str)
class TestSmoothBulk(SmoothBulk):
    """What the engine does for all, gradients included."""


@pytest.mark.parametrize("row", BULK, ids=str)
class TestBulk(Bulk):
    """What the engine does for all."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axis."""


AXES = "  array has: batch=4, embed=3"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: x.cumsum(axn.Axis("embed", 5)),
            AxisSizeError,
            f"cumsum: axis 'embed' was given with size 5, but has size 3\n{AXES}",
        ),
        (
            lambda x: x.cumprod(("batch", "embed")),
            AxisError,
            f"cumprod: needs one axis, got 2\n{AXES}\n  hint: flatten the axes first: x.flatten_axes(...)",
        ),
        (
            lambda x: x.cumsum(None),
            AxisError,
            f"cumsum: needs one axis, got 2\n{AXES}\n  hint: flatten the axes first: x.flatten_axes(...)",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3))))
    assert str(caught.value) == text


def test_a_running_maximum_of_weak_numbers_is_weak() -> None:
    assert axn.cummax(axn.full(axn.Axis("time", 3), 1.0), "time").weak_type


def test_a_maximum_is_nan_from_the_first_nan_on() -> None:
    x = axn.named([1.0, np.nan, 3.0], "time")
    np.testing.assert_array_equal(axn.cummax(x, "time").array, [1, np.nan, np.nan])
    np.testing.assert_array_equal(axn.cummin(x, "time", reverse=True).array, [np.nan, np.nan, 3])


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_backwards_is_one_equation_and_in_the_dtype_of_forwards(name: str) -> None:
    fn, positional = getattr(cumulative, name), getattr(jnp, name)
    x = axn.named([[2.0, 0, -2], [1, 3, 2]], ("a", "b"))
    at_once = getattr(lax, name)
    assert count_equations(lambda x: fn(x, "a", reverse=True), x) <= count_equations(
        lambda x: at_once(x, reverse=True), x.array
    )

    @jax.jit
    def both(x: axn.NamedArray) -> list[tuple[jax.Array, jax.Array]]:
        pairs = []
        for own, dtype in itertools.product((bool, jnp.int8, jnp.uint8, jnp.bfloat16), (None, bool, jnp.int16, float)):
            given = x.astype(own)
            expected = jnp.flip(positional(jnp.flip(given.array, 1), 1, dtype), 1)
            pairs.append((fn(given, "b", dtype, reverse=True).array, expected))
        return pairs

    for result, expected in both(x):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_nothing_sums_to_the_initial_element(mesh: str, request: pytest.FixtureRequest) -> None:
    x = axn.zeros((axn.Axis("b", 8), axn.Axis("i", 0)), jnp.int32)
    with jax.set_mesh(request.getfixturevalue(mesh)):
        for given in (x, axn.shard(x, {"b": "data"})):
            sums = axn.cumulative_sum(given, "i", include_initial=True, dtype=float)
            np.testing.assert_array_equal(sums.array, np.zeros((8, 1), np.float32), strict=True)
            products = axn.cumulative_prod(given, "i", include_initial=True)
            np.testing.assert_array_equal(products.array, np.ones((8, 1), np.int32), strict=True)
