"""Comparisons, logic and bits: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisSizeError, LostAxisError, OperandError
from axonym.ops import logical
from tests.laws import Bulk, Laws, Row, Sharded, has_row_for_each


def pair(name: str, *domains: str, axes: tuple[str, str] = ("abc", "ca"), **more: Any) -> Row:
    fn = getattr(jnp, name)
    if name == "isclose":  # tolerances are given, not left to jnp's defaults, which it would treat as constants
        fn = lambda x, y: jnp.isclose(x, y, 1e-5, 1e-8)  # noqa: E731
    reference = fn if axes[0] == axes[1] else lambda x, y: fn(x, jnp.expand_dims(jnp.transpose(y), 1))
    oracle = getattr(np, name)
    return Row(
        name,
        getattr(logical, name),
        axes,
        reference,
        "abc",
        oracle if axes[0] == axes[1] else lambda x, y: oracle(x, y.T[:, None]),
        domains or ("int", "int"),
        **more,
    )


def single(name: str, domain: str, case: str = "") -> Row:
    return Row(
        name, getattr(logical, name), ("abc",), getattr(jnp, name), "abc", getattr(np, name), (domain,), case=case
    )


ROWS = [
    pair("bitwise_and"),
    Row(
        "bitwise_invert",
        logical.bitwise_invert,
        ("abc",),
        jnp.bitwise_invert,
        "abc",
        np.invert,
        ("int",),
    ),
    pair("bitwise_or"),
    pair("bitwise_xor"),
    pair("equal", "shift", "shift"),
    pair("greater", "shift", "shift"),
    pair("greater_equal", "shift", "shift"),
    pair("isclose", "special", "special"),
    pair("left_shift", "int", "shift"),
    pair("less", "shift", "shift"),
    pair("less_equal", "shift", "shift"),
    pair("logical_and", "bool", "bool"),
    Row("logical_not", logical.logical_not, ("abc",), jnp.logical_not, "abc", np.logical_not, ("bool",)),
    pair("logical_or", "bool", "bool"),
    pair("logical_xor", "bool", "bool"),
    pair("not_equal", "shift", "shift"),
    pair("right_shift", "int", "shift"),
]
PLAIN = [
    single("bitwise_count", "int"),
    single("iscomplex", "complex"),
    single("iscomplex", "real", case="real"),
    single("isneginf", "special"),
    single("isposinf", "special"),
    single("isreal", "complex"),
    single("signbit", "special"),
]
PAIRS = [pair(n, axes=("abc", "abc"), case="equal names") for n in ("equal", "isclose", "left_shift")]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS + PLAIN, logical, without=["allclose", "array_equal", "array_equiv"])


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestLaws(Laws):
    """All laws."""


@pytest.mark.parametrize("row", PLAIN, ids=str)
class TestPlain(Bulk):
    """Fewer examples, of an engine that the rows above have put through all laws."""


@pytest.mark.parametrize("row", PAIRS, ids=str)
class TestEqualNames(Sharded):
    """Pairs of arrays on meshes."""


def test_allclose_lines_up_by_name() -> None:
    x = axn.named(jnp.arange(6.0).reshape(2, 3), ("a", "b"))
    assert axn.allclose(x, x.rearrange(("b", "a")) * 1.000001)
    assert not axn.allclose(x, x + 1e-3)
    assert axn.allclose(x, x + 1e-3, atol=1e-2)
    assert axn.allclose(x, x + 1e-3, rtol=jnp.float32(0), atol=jnp.float32(1e-2))
    assert axn.allclose(x * np.nan, x * np.nan, equal_nan=True)
    assert not axn.allclose(x * np.nan, x * np.nan)
    assert axn.allclose(axn.zeros_like(x), 0.0)
    assert axn.allclose(1.0, axn.ones_like(x))


def test_array_equal_compares_axes_and_elements() -> None:
    x = axn.named(jnp.arange(6.0).reshape(2, 3), ("a", "b"))
    assert axn.array_equal(x, x.rearrange(("b", "a")))
    assert not axn.array_equal(x, x + 1)
    assert not axn.array_equal(x, x.rename({"b": "c"}))
    assert not axn.array_equal(x, x["b", :2])
    assert not axn.array_equal(x, x["b", 0])
    assert not axn.array_equal(x * np.nan, x * np.nan)
    assert axn.array_equal(x * np.nan, x * np.nan, equal_nan=True)
    assert isinstance(axn.array_equal(x, x), jnp.ndarray)


def test_array_equiv_broadcasts_by_name() -> None:
    x = axn.named(jnp.arange(3.0), "b")
    rows = x.broadcast_axis(axn.Axis("a", 2))
    assert axn.array_equiv(x, rows)
    assert axn.array_equiv(rows.rearrange(("b", "a")), x)
    assert axn.array_equiv(axn.zeros_like(x), 0)
    assert not axn.array_equiv(x + 1, rows)
    assert not axn.array_equiv(x, x["b", :2])
    assert not axn.array_equiv(x["b", :1], rows)
    assert not axn.array_equiv(rows, x.rename({"b": "c"}))
    assert isinstance(axn.array_equiv(x, rows), jnp.ndarray)
    assert jax.jit(axn.array_equiv)(x, rows)
    with pytest.raises(LostAxisError):
        jax.vmap(axn.array_equiv, in_axes=(None, 0))(x, rows)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: x < x["b", :2],
            AxisSizeError,
            "less: axis 'b' has two sizes: 3 and 2\n"
            "  operand 1 has: a=2, b=3\n"
            "  operand 2 has: a=2, b=2\n"
            '  hint: if one is shifted by a place, cut the longer one: x["b", :-1] or x["b", 1:]',
        ),
        (
            lambda x: x == None,  # noqa: E711
            OperandError,
            "equal: cannot combine a NamedArray and NoneType\n  hint: operands are NamedArrays, scalars or 0-d arrays",
        ),
        (
            lambda x: axn.logical_and(True, [1]),
            OperandError,
            "logical_and: expected a NamedArray, got bool\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.isclose(x, x["b", :2]),
            AxisSizeError,
            "isclose: axis 'b' has two sizes: 3 and 2\n"
            "  operand 1 has: a=2, b=3\n"
            "  operand 2 has: a=2, b=2\n"
            "  operand 3 has: no axes\n"
            "  operand 4 has: no axes\n"
            '  hint: if one is shifted by a place, cut the longer one: x["b", :-1] or x["b", 1:]',
        ),
        (
            lambda x: axn.allclose(1.0, 2.0),
            OperandError,
            "isclose: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.array_equiv(x, jnp.ones(3)),
            OperandError,
            "array_equiv: cannot combine a plain array of shape (3,) with axes a, b\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda x: ~jax.vmap(lambda x: ~x)(x),
            LostAxisError,
            "bitwise_invert: an array of shape (3,) cannot have the 2 axes a, b\n"
            "  raw jax.vmap, lax.scan and indexing remove the leading dimension, but not its name\n"
            '  hint: use axn.vmap(f, "a") or axn.scan(f, "a"), or make the axis anonymous first: x.untag("a")',
        ),
        (
            lambda x: axn.signbit(1.0),
            OperandError,
            "signbit: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.array_equal(x, jnp.ones(3)),
            OperandError,
            "array_equal: expected a NamedArray, got a plain array\n"
            "  its shape: (3,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.named(jnp.arange(6.0).reshape(2, 3), ("a", "b")))
    assert str(caught.value) == text
