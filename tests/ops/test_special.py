"""Special functions: values against SciPy, names, messages, dtypes; the engine has its own tests."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as oracle

import axonym as axn
from axonym.errors import AxisSizeError, OperandError
from axonym.ops import special
from tests.laws import (
    Bulk,
    Row,
    Sharded,
    SmoothBulk,
    Table,
    has_row_for_each,
    operands,
    positionally,
    refuses_a_lost_axis,
)
from tests.together import together


def unary(name: str, domain: str = "real") -> Row:
    fn = getattr(special, name)
    return Row(name, fn, ("abc",), getattr(jax.scipy.special, name), "abc", getattr(oracle, name), (domain,))


def binary(name: str, *domains: str) -> Row:
    return Row(
        name,
        getattr(special, name),
        ("abc", "ca"),
        lambda x, y: getattr(jax.scipy.special, name)(x, jnp.transpose(y)[:, None]),
        "abc",
        lambda x, y: getattr(oracle, name)(x, y.T[:, None]),
        domains or ("positive", "positive"),
    )


ROWS = [
    binary("betaln"),
    unary("digamma", "positive"),
    unary("entr", "positive"),
    unary("erf"),
    unary("erfc"),
    unary("erfinv", "unit"),
    unary("gamma", "positive"),
    binary("gammainc"),
    binary("gammaincc"),
    unary("gammaln", "above one"),
    unary("i0e"),
    unary("i1"),
    unary("i1e"),
    binary("kl_div"),
    unary("log_ndtr"),
    Row(
        "logit",
        lambda x: axn.logit(x / 3),
        ("abc",),
        lambda x: jax.scipy.special.logit(x / 3),
        "abc",
        lambda x: oracle.logit(x / 3),
        ("positive",),
        speaker="divide",
    ),
    unary("ndtr"),
    Row(
        "ndtri",
        lambda x: axn.ndtri(x / 3),
        ("abc",),
        lambda x: jax.scipy.special.ndtri(x / 3),
        "abc",
        lambda x: oracle.ndtri(x / 3),
        ("positive",),
        speaker="divide",
    ),
    binary("rel_entr"),
    binary("xlog1py", "real", "positive"),
    binary("xlogy", "real", "positive"),
    binary("zeta", "above one", "positive"),
]
LAWS = [unary("erf"), binary("xlogy", "real", "positive")]
STEPS = [
    Row(
        "betainc",
        lambda a, b, x: axn.betainc(a, b, x / 3),
        ("a", "", "abc"),
        lambda a, b, x: jax.scipy.special.betainc(a[:, None, None], b, x / 3),
        "abc",
        lambda a, b, x: oracle.betainc(a[:, None, None], b, x / 3),
        ("positive", "positive", "positive"),
        speaker="(betainc|divide)",  # the latter for the last operand
    ),
    Row(
        "polygamma",
        special.polygamma,
        ("ca", "abc"),
        lambda n, x: jax.scipy.special.polygamma(jnp.transpose(n)[:, None], x),
        "abc",
        lambda n, x: oracle.polygamma(n.T[:, None], x).astype(np.float32),
        ("shift", "above one"),
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS + STEPS, special)


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestValues(Table):
    """Little, for many functions of one engine."""

    def test_equals_scipy(self, row: Row, rows: Sequence[Row]) -> None:
        arrays, orders = row.draw(0), [tuple(reversed(axes)) for axes in row.operands]
        result = row.call(*operands(row, arrays, orders))
        row.check(result, together(positionally, rows, row, 0), orders)
        row.check(result, row.oracle(*arrays), orders)

    def test_works_on_explicit_axes(self, row: Row, rows: Sequence[Row], explicit_mesh: jax.sharding.Mesh) -> None:
        Sharded().on_mesh(row, rows, explicit_mesh)

    def test_refuses_an_array_that_lost_an_axis(self, row: Row) -> None:
        refuses_a_lost_axis(row)


@pytest.mark.parametrize("row", LAWS, ids=str)
class TestLaws(SmoothBulk):
    """A function of one and of two operands."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Bulk):
    """Functions of an order, or of three operands."""


X = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3)))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: axn.xlogy(X, X["embed", :2]),
            AxisSizeError,
            "xlogy: axis 'embed' has two sizes: 3 and 2\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: batch=4, embed=2\n"
            '  hint: if one is shifted by a place, cut the longer one: x["embed", :-1] or x["embed", 1:]',
        ),
        (
            lambda: axn.erf(jnp.ones(2)),
            OperandError,
            "erf: expected a NamedArray, got a plain array\n"
            "  its shape: (2,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
        (
            lambda: axn.betainc(1.0, "2", X),
            OperandError,
            "betainc: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


def test_any_other_function_is_mapped() -> None:
    assert axn.nmap(jax.scipy.special.expi)(X).names == ("batch", "embed")
