"""Arrays as sets: laws over one row per function, and what is filled up or cut off."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import sets
from tests.laws import Bulk, Row, Values, has_row_for_each

Found = axn.Axis("f", 32)


def padded(values: np.ndarray, fill: Any = -50) -> np.ndarray:
    """Fill the first dimension up."""
    return np.concatenate([values, np.full((32 - len(values), *values.shape[1:]), fill, values.dtype)])


def pair(name: str, domain: str = "int", case: str = "") -> Row:
    """A function of arrays with 24 and 8 elements."""
    fn, reference, oracle = getattr(sets, name), getattr(jnp, name), getattr(np, name)
    return Row(
        name,
        lambda x, y: fn(x, y, Found, fill_value=-50),
        ("abc", "i"),
        lambda x, y: reference(x, y, size=32, fill_value=-50),
        "f",
        lambda x, y: padded(oracle(x, y)),
        (domain, domain),
        lambda x, y: "f",
        case,
    )


def uniques(name: str, flags: str = "", domain: str = "int", case: str = "", **options: Any) -> Row:
    """A function of an array with 24 elements; `flags` tells what it returns besides the values."""
    fn, wanted = getattr(sets, name), flags.split()
    keywords = {f"return_{flag}": True for flag in wanted}

    def call(x: axn.NamedArray) -> Any:
        return fn(x.rearrange(("a", "b", "c")) if "index" in wanted else x, Found, fill_value=-50, **options)

    def oracle(x: np.ndarray) -> Any:
        results = np.unique(x, **keywords) if flags else [np.unique(x)]
        fills = {"index": results[1][0] if "index" in wanted else None, "counts": 0}
        extra = [
            one if flag == "inverse" else padded(one, fills[flag])
            for flag, one in zip(wanted, results[1:], strict=True)
        ]
        return [padded(results[0]), *(one.astype(np.int32) for one in extra)]

    return Row(
        name,
        call,
        ("abc",),
        lambda x: jnp.unique(x, **keywords, size=32, fill_value=-50),
        ("f", *("abc" if flag == "inverse" else "f" for flag in wanted)),
        oracle,
        (domain,),
        lambda x: ["f", *("".join("abc" if "index" in wanted else x) if f == "inverse" else "f" for f in wanted)],
        case,
        any_size=not flags,
        speaker="(rearrange|unique)",
    )


ROWS = [
    pair("intersect1d"),
    Row("isin", axn.isin, ("abc", "ai"), jnp.isin, "abc", np.isin, ("int", "int"), lambda x, y: x),
    uniques("unique", domain="real"),
]
# These run the same code.
VARIANTS = [
    pair("setdiff1d"),
    pair("setxor1d"),
    pair("union1d", "real"),
    uniques("unique_all", "index inverse counts"),
    uniques("unique_counts", "counts"),
    uniques("unique_inverse", "inverse"),
    uniques("unique_values"),
    uniques("unique", "index inverse", case="two results", return_index=True, return_inverse=True),
    Row(
        "unique",
        lambda x: axn.unique(x, axn.Axis("f", 6), axis=axn.Axis("i", 8), return_inverse=True, return_counts=True),
        ("bi",),
        lambda x: jnp.unique(x, axis=1, size=6, return_inverse=True, return_counts=True),
        ("bf", "i", "f"),
        None,
        ("index",),
        lambda x: [x.replace("i", "f"), "i", "f"],
        case="slices",
    ),
    Row(
        "unique",
        lambda x: axn.unique(x, axn.Axis("i", 8), axis="i", fill_value=7),
        ("i",),
        lambda x: jnp.unique(x, size=8, fill_value=7),
        "i",
        None,
        ("index",),
        case="the same name",
    ),
    Row(
        "isin",
        lambda x: axn.isin(x, [1, 2], invert=True, method="sort"),
        ("ab",),
        lambda x: jnp.isin(x, jnp.array([1, 2]), invert=True),
        "ab",
        lambda x: np.isin(x, [1, 2], invert=True),
        ("shift",),
        case="list",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS + VARIANTS, sets)


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestRows(Bulk):
    """The laws of lifted functions."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other forms of a call."""


X = axn.named([[3, 1, 3], [7, 5, 5]], ("a", "b"))
Y = axn.named([1, 4, 5, 9], "c")


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (axn.intersect1d, [1, 5]),
        (axn.setdiff1d, [3, 7]),
        (axn.setxor1d, [3, 4, 7, 9]),
        (axn.union1d, [1, 3, 4, 5, 7, 9]),
        (lambda x, y, axis: axn.unique(axn.concatenate("c", [x.flatten("c"), y]), axis), [1, 3, 4, 5, 7, 9]),
    ],
)
@pytest.mark.parametrize("size", [0, 1, 5, 8])
def test_what_is_too_much_is_cut_off_and_the_rest_is_the_smallest_value(
    fn: Any, expected: list[int], size: int
) -> None:
    got = fn(X, Y, axn.Axis("f", size))
    assert got.array.tolist() == (expected + [expected[0]] * size)[:size]


@pytest.mark.parametrize(
    ("fn", "left", "right"),
    [
        (axn.intersect1d, [], []),
        (axn.setdiff1d, [], [1, 3, 5, 7]),
        (axn.setxor1d, [1, 3, 5, 7], [1, 3, 5, 7]),
        (axn.union1d, [1, 3, 5, 7], [1, 3, 5, 7]),
    ],
)
def test_a_set_may_be_empty(fn: Any, left: list[int], right: list[int]) -> None:
    none, size = Y["c", 0:0], axn.Axis("f", 5)
    for x, y, expected in [(none, X, left), (X, none, right), (none, none, [])]:
        assert fn(x, y, size, fill_value=-1).array.tolist() == (expected + [-1] * 5)[:5]
    assert fn(none, none, size).array.tolist() == [0] * 5
    values, index, inverse, counts = axn.unique_all(none, size, fill_value=2)
    assert [x.array.tolist() for x in (values, index, inverse, counts)] == [[2] * 5, [0] * 5, [], [0] * 5]


def test_common_values_tell_where_they_stand() -> None:
    values, in_x, in_y = axn.intersect1d(X, Y, axn.Axis("f", 3), return_indices=True, fill_value=0)
    assert [x.array.tolist() for x in (values, in_x, in_y)] == [[1, 5, 0], [1, 4, 6], [0, 2, 4]]


def test_nan_is_one_value() -> None:
    x, y, size = axn.named([np.nan, 1, np.nan, 2], "a"), axn.named([np.nan, 3], "b"), axn.Axis("f", 4)
    results = [fn(x, y, size, fill_value=0) for fn in (axn.intersect1d, axn.setdiff1d, axn.setxor1d, axn.union1d)]
    expected = [[np.nan, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0], [1, 2, 3, np.nan]]
    for got, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got.array, wanted)
    np.testing.assert_array_equal(axn.unique(x, size, fill_value=0).array, [1, 2, np.nan, 0])
    np.testing.assert_array_equal(axn.unique_values(x, size, fill_value=0).array, [1, 2, np.nan, np.nan])


def test_a_plain_array_may_be_the_second_set_and_the_fill_value_may_be_traced() -> None:
    got = jax.jit(lambda fill: axn.setdiff1d(X, [[1, 3]], axn.Axis("f", 3), fill_value=fill))(9)
    assert got.array.tolist() == [5, 7, 9]


def test_other_elements_may_differ_for_each_position_of_anonymous_dimensions() -> None:
    element, others = axn.named([[1, 2], [3, 4]], ("z", "a")), axn.named([[1, 3], [1, 3]], ("z", "b"))
    got = axn.isin(element.untag("z"), others.untag("z"))
    assert got.array.tolist() == [[True, False], [True, False]]
    alike = others.rename({"b": "a"})
    assert axn.isin(element.untag("z"), alike.untag("z")).array.tolist() == got.array.tolist()


AXES = "  array has: a=2, b=3"
SIZE = axn.Axis("f", 4)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: axn.unique(X, SIZE, axis="bb"),
            AxisNotFoundError,
            f"unique: no axis named 'bb'\n{AXES}\n  hint: did you mean 'b'?",
        ),
        (
            lambda: axn.unique_values(X, SIZE, axis=axn.Axis("b", 5)),
            AxisSizeError,
            f"unique: axis 'b' was given with size 5, but has size 3\n{AXES}",
        ),
        (
            lambda: axn.unique(X, axn.Axis("a", 2), axis="b"),
            AxisClashError,
            f"unique: in the result, axis 'a' would appear twice\n{AXES}",
        ),
        (
            lambda: axn.unique_counts(X, "f"),
            OperandError,
            "unique: axis 'f' needs a size here\n  hint: write Axis(\"f\", size)",
        ),
        (
            lambda: axn.unique_all([1, 2], SIZE),
            OperandError,
            "unique: expected a NamedArray, got list\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: axn.unique(X, SIZE, fill_value=jnp.zeros(2)),
            OperandError,
            "unique: a plain array of shape (2,) does not match axes: none\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda: axn.union1d(X, axn.named([1, 2], "b"), SIZE),
            AxisSizeError,
            "union1d: axis 'b' has two sizes: 3 and 2\n"
            "  operand 1 has: a=2, b=3\n"
            "  operand 2 has: b=2\n"
            '  hint: if one is shifted by a place, cut the longer one: x["b", :-1] or x["b", 1:]',
        ),
        (
            lambda: axn.setxor1d(X, Y, 5),
            OperandError,
            'setxor1d: 5 is a size without a name\n  hint: name it: Axis("name", 5), or {"name": 5}',
        ),
        (
            lambda: axn.intersect1d([1, 2], [1], SIZE),
            OperandError,
            "intersect1d: expected a NamedArray, got a plain array\n"
            "  its shape: (2,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
        (
            lambda: axn.isin(X, Y, method="hash"),
            ArgumentError,
            "isin: the method must be one of auto, compare_all, binary_search, sort, not 'hash'",
        ),
        (
            lambda: axn.isin(X.array, Y),
            OperandError,
            "isin: a plain array of shape (2, 3) does not match axes: none\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
