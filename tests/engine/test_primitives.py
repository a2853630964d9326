"""Arithmetic as primitives: numbers, types and no more equations than those of `jax.numpy`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axonym.engine import primitives
from tests.laws import program

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (primitives.add, jnp.add),
    "subtract": (primitives.subtract, jnp.subtract),
    "multiply": (primitives.multiply, jnp.multiply),
    "divide": (primitives.divide, jnp.true_divide),
}


def check_same(mine: Callable[..., Any], general: Callable[..., Any], *args: Any) -> None:
    """Compare the types of results, also whether they are weak, and the numbers; nothing is computed on top."""
    (found, types), (allowed, expected) = program(mine, *args), program(general, *args)
    assert types == expected
    assert found <= allowed
    np.testing.assert_array_equal(mine(*args), general(*args))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool", "complex64"])
@pytest.mark.parametrize("name", PAIRS)
def test_operands_that_are_alike_give_what_jnp_gives(name: str, dtype: str) -> None:
    mine, general = PAIRS[name]
    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    column = jnp.array([[2], [-3]]).astype(dtype)
    if (name, dtype) == ("subtract", "bool"):
        with pytest.raises(TypeError, match="dtype bool"):
            mine(x, x)
        return
    check_same(mine, general, x, column)


def test_operations_of_named_arrays_have_them() -> None:
    for mine, general in PAIRS.values():
        assert primitives.BY_FUNCTION[general] is mine


@pytest.mark.parametrize("name", PAIRS)
def test_other_operands_are_promoted_as_jnp_promotes_them(name: str) -> None:
    mine, general = PAIRS[name]
    x = jnp.ones((2, 3), "bfloat16")
    for other in (
        jnp.ones((2, 3), "float32"),
        jnp.ones(3, "bfloat16"),
        jnp.ones((), "bfloat16"),
        jnp.ones((2, 3), int),
    ):
        check_same(mine, general, x, other)
        check_same(mine, general, other, x)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_python_number_changes_no_dtype(name: str, dtype: str) -> None:
    mine, general = PAIRS[name]
    x = jnp.full((2, 3), 3, dtype)
    for number in (0.5, 2, -1.5):
        for args in ((x, number), (number, x)):
            result, expected = mine(*args), general(*args)
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)


@pytest.mark.sampled
@pytest.mark.parametrize("other", [2j, np.float64(1.5), np.complex64(2)])
@pytest.mark.parametrize("name", PAIRS)
def test_other_numbers_are_promoted_as_jnp_promotes_them(name: str, other: complex) -> None:
    mine, general = PAIRS[name]
    for x in (jnp.ones(3, "bfloat16"), jnp.ones(3, "float32"), jnp.ones(3, int)):
        for args in ((x, other), (other, x)):
            result, expected = mine(*args), general(*args)
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", PAIRS)
def test_ranks_differ_where_jax_may_not_promote_them(name: str) -> None:
    mine, general = PAIRS[name]
    x, y = jnp.ones((2, 3)), jnp.full(3, 2.0)
    expected = general(x, y)
    with jax.numpy_rank_promotion("raise"):
        np.testing.assert_array_equal(mine(x, y), expected)
        np.testing.assert_array_equal(primitives.equal(y, x), jnp.zeros((2, 3), bool))


def test_a_choice_and_a_comparison_give_what_jnp_gives() -> None:
    x, y = jnp.ones((2, 3)), jnp.zeros((2, 3))
    column = jnp.array([[True], [False]])
    for condition in (x > y, column):
        for other in (y, y[0], y.astype("bfloat16"), 0, np.nan):
            expected = jnp.where(condition, x, other)
            result = primitives.where(condition, x, other)
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)
    check_same(primitives.where, jnp.where, x > y, x, y)
    for other in (y, y[:, :1], y[0], y.astype("bfloat16")):
        check_same(primitives.equal, jnp.equal, x, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("at", [(-1,), (0, -1), ()])
def test_reductions_give_what_jnp_gives_and_keep_dimensions(dtype: str, at: tuple[int, ...]) -> None:
    x = jnp.arange(24).reshape(2, 3, 4).astype(dtype)
    check_same(lambda x: primitives.total(x, at), lambda x: x.sum(at, keepdims=True), x)
    check_same(lambda x: primitives.mean(x, at), lambda x: x.mean(at, keepdims=True), x)
    check_same(lambda x: primitives.largest(x, at), lambda x: x.max(at, keepdims=True, initial=-jnp.inf), x)


def test_reductions_of_nothing_give_what_jnp_gives() -> None:
    x = jnp.ones((2, 0))
    np.testing.assert_array_equal(primitives.total(x, (1,)), [[0], [0]])
    np.testing.assert_array_equal(primitives.mean(x, (1,)), [[np.nan], [np.nan]])
    np.testing.assert_array_equal(primitives.largest(x, (1,)), [[-np.inf], [-np.inf]])


def test_a_mean_takes_symbolic_sizes() -> None:
    (size,) = jax.export.symbolic_shape("n")
    exported = jax.export.export(jax.jit(lambda x: primitives.mean(x, (0,))))(jax.ShapeDtypeStruct((size,), "float32"))
    np.testing.assert_array_equal(exported.call(np.float32([1, 2, 6])), [3])
