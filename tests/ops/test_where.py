"""Choosing elements by a condition: laws over one row per function, and what is filled up or cut off."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from axonym.ops import where
from tests.laws import Bulk, Row, Smooth, SmoothBulk, Values, has_row_for_each

Found = axn.Axis("f", 6)


def ordered(x: axn.NamedArray) -> axn.NamedArray:
    """Store an array as positional code has it, where the order of what is found depends on that."""
    return x.rearrange(tuple(sorted(x.names)))


def padded(found: np.ndarray, size: int, fill: Any) -> np.ndarray:
    """Cut or fill the last dimension."""
    found = found[..., :size]
    rest = np.full((*found.shape[:-1], size - found.shape[-1]), fill, found.dtype)
    return np.concatenate([found, rest], -1)


def indices(x: np.ndarray, size: int, fill: int) -> tuple[np.ndarray, ...]:
    return tuple(padded(at, size, fill) for at in np.nonzero(x))


def compressed(mask: np.ndarray, x: np.ndarray, size: int) -> np.ndarray:
    """Compress (b, c) by a mask (c) for each b."""
    return np.stack([padded(row[mask], size, -1) for row in x])


SMOOTH = [
    Row(
        "where",
        axn.where,
        ("cb", "abc", "a"),
        lambda condition, x, y: jnp.where(jnp.expand_dims(condition.T, 0), x, jnp.expand_dims(y, (1, 2))),
        "abc",
        lambda condition, x, y: np.where(condition.T, x, y[:, None, None]),
        ("bool", "real", "real"),
    ),
]
SMOOTH_BULK = [
    Row(
        "choose",
        lambda i, x, y: axn.choose(i, [x, 2.0, y]),
        ("ab", "abc", "c"),
        lambda i, x, y: jnp.select([i[..., None] == 0, i[..., None] == 1], [x, 2.0], y[None, None]),
        "abc",
        lambda i, x, y: np.choose(i[..., None], [x, np.float32(2), y], mode="clip"),
        ("shift", "real", "real"),
    ),
    Row(
        "choose",
        lambda i, x: axn.choose(i, x, "c", mode="wrap"),
        ("ab", "cb"),
        lambda i, x: x[i % 3, jnp.arange(x.shape[1])],
        "ab",
        lambda i, x: np.choose(i, x, mode="wrap"),
        ("int", "real"),
        lambda i, x: i,
        case="along an axis",
    ),
    Row(
        "compress",
        lambda m, x: axn.compress(m, x, "c", size=axn.Axis("f", 4), fill_value=-1),
        ("c", "bc"),
        jax.vmap(
            lambda m, x: jnp.where(
                jnp.arange(4) < m.sum(), x[jnp.nonzero(m, size=4)[0]], jnp.asarray(-1).astype(x.dtype)
            ),
            (None, 0),
        ),
        "bf",
        lambda m, x: compressed(m, x, 4),
        ("bool", "real"),
        lambda m, x: x.replace("c", "f"),
    ),
    Row(
        "piecewise",
        lambda x, m, n: axn.piecewise(x, [True, m, n], [lambda x: 2 * x, 1, lambda x: x * x, 0.5]),
        ("abc", "cb", "a"),
        lambda x, m, n: jnp.where(
            n[:, None, None], x * x, jnp.where(m.T[None], x.dtype.type(1), (2 * x).astype(x.dtype))
        ),
        "abc",
        lambda x, m, n: np.piecewise(
            x,
            [np.broadcast_to(mask, x.shape) for mask in (True, m.T, n[:, None, None])],
            [lambda x: 2 * x, 1, lambda x: x * x, 0.5],
        ),
        ("real", "bool", "bool"),
        speaker="(multiply|piecewise)",
    ),
    Row(
        "select",
        lambda m, n, x, y: axn.select([m, n], [x, y], 3),
        ("cb", "abc", "abc", "c"),
        lambda m, n, x, y: jnp.where(m.T[None], x, jnp.where(n, y[None, None], 3)),
        "abc",
        lambda m, n, x, y: np.select([m.T[None], n], [x, y], np.float32(3)),
        ("bool", "bool", "real", "real"),
    ),
]
BULK = [
    Row(
        "argwhere",
        lambda x: axn.argwhere(ordered(x), "i", size=Found, fill_value=-1),
        ("ab",),
        lambda x: jnp.argwhere(x, size=6, fill_value=-1),
        "fi",
        lambda x: padded(np.argwhere(x).T, 6, -1).T.astype(np.int32),
        ("index",),
        lambda x: "fi",
        speaker="rearrange",
    ),
    Row(
        "flatnonzero",
        lambda x: axn.flatnonzero(ordered(x), size=Found),
        ("abc",),
        lambda x: jnp.flatnonzero(x, size=6, fill_value=0),
        "f",
        lambda x: padded(np.flatnonzero(x), 6, 0).astype(np.int32),
        ("bool",),
        lambda x: "f",
        speaker="rearrange",
    ),
    Row(
        "nonzero",
        lambda x: ordered(x).nonzero(size=Found, fill_value=9),
        ("ab",),
        lambda x: jnp.nonzero(x, size=6, fill_value=9),
        ("f", "f"),
        lambda x: [at.astype(np.int32) for at in indices(x, 6, 9)],
        ("index",),
        lambda x: ["f", "f"],
        speaker="rearrange",
    ),
]
VARIANTS = [
    Row(
        "where",
        lambda m, x: axn.where(m, x, 0.0),
        ("abc", "abc"),
        lambda m, x: jnp.where(m, x, 0.0),
        "abc",
        None,
        ("bool", "real"),
        case="scalar",
    ),
    Row(
        "where",
        lambda x: axn.where(x, fill_value=-1, new_axis=Found),
        ("i",),
        lambda x: jnp.where(x, size=6, fill_value=-1),
        ("f",),
        lambda x: [at.astype(np.int32) for at in indices(x, 6, -1)],
        ("index",),
        lambda x: ["f"],
        case="one argument",
    ),
    Row(
        "compress",
        lambda m, x: axn.compress(m, x, size=Found, fill_value=-1),
        ("i", "i"),
        lambda m, x: jnp.compress(m, x, size=6, fill_value=-1),
        "f",
        lambda m, x: padded(x[m], 6, -1),
        ("bool", "real"),
        lambda m, x: "f",
        case="all axes",
    ),
    Row(
        "compress",
        lambda m, x: axn.compress(m, x, ("b", "a"), size=Found),
        ("abc", "ab"),
        lambda m, x: jax.vmap(lambda m: jnp.compress(m.T.ravel(), x.T.ravel(), size=6), 2)(m),
        "cf",
        lambda m, x: np.stack([padded(x.T[m[..., c].T], 6, 0) for c in range(3)]),
        ("bool", "real"),
        lambda m, x: "cf",
        case="a mask for each position",
    ),
    Row(
        "piecewise",
        lambda x, m: axn.piecewise(x, [m], [lambda x, p, q: x * p + q], 3, q=1),
        ("a", "ab"),
        lambda x, m: jnp.where(m, x[:, None] * 3 + 1, jnp.zeros((), x.dtype)),
        "ab",
        lambda x, m: np.where(m, x[:, None] * 3 + 1, np.int32(0)),
        ("int", "bool"),
        lambda x, m: m,
        case="arguments",
    ),
    Row(
        "choose",
        lambda i: axn.choose(i, [2.5]),
        ("ab",),
        lambda i: jnp.full(i.shape, 2.5),
        "ab",
        None,
        ("int",),
        case="one choice",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + SMOOTH_BULK + BULK, where)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", SMOOTH_BULK, ids=str)
class TestSmoothBulk(SmoothBulk):
    """The laws of lifted functions, gradients included."""


@pytest.mark.parametrize("row", BULK, ids=str)
class TestBulk(Bulk):
    """The laws of functions that look for elements."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other forms of a call."""


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_a_narrow_index_chooses_among_many(dtype: Any, mode: Any) -> None:
    index = np.array([0, 100, 127], dtype)
    named = axn.named(index, "i")
    assert axn.choose(named, axn.arange(axn.Axis("a", 300)), "a", mode=mode).tolist() == [0, 100, 127]
    assert axn.choose(named, list(range(7, 147)), mode=mode).tolist() == (7 + index.astype(int)).tolist()


def test_choices_may_be_numbers_where_nothing_is_compiled() -> None:
    with jax.disable_jit():
        assert axn.choose(axn.named([1, 0], "i"), [axn.named([1.0, 2.0], "i"), 3.0]).tolist() == [3, 2]


def test_nonzero_follows_the_order_in_which_axes_are_stored() -> None:
    x = axn.named(np.array([[0, 1, 0], [1, 1, 0]]), ("a", "b"))
    for stored in (x, x.rearrange(("b", "a"))):
        found = stored.nonzero(size=axn.Axis("f", 4), fill_value=7)
        for got, expected in zip(found, np.nonzero(np.asarray(stored)), strict=True):
            np.testing.assert_array_equal(got.array, [*expected, 7])
        read = stored.nonzero(size=axn.Axis("f", 2))
        assert stored[dict(zip(stored.names, read, strict=True))].array.tolist() == [1, 1]


def test_what_is_missing_is_filled_also_where_there_are_no_elements() -> None:
    empty = axn.zeros((axn.Axis("a", 0), axn.Axis("b", 2)))
    (rows, columns) = empty.nonzero(size=axn.Axis("f", 2), fill_value=5)
    assert (rows.array.tolist(), columns.array.tolist()) == ([5, 5], [5, 5])
    assert axn.compress(empty > 0, empty, size=axn.Axis("f", 2), fill_value=3).array.tolist() == [3, 3]
    full = axn.ones(axn.Axis("a", 2))
    assert axn.compress(full > 0, full, "a", size=axn.Axis("f", 3), fill_value=3).array.tolist() == [1, 1, 3]


def test_the_fill_value_may_be_traced_and_a_size_may_keep_the_name() -> None:
    x = axn.named([0, 5, 6], "a")
    found = jax.jit(lambda fill: axn.compress(x, x, "a", size=axn.Axis("a", 4), fill_value=fill))(7)
    assert (found.names, found.array.tolist()) == (("a",), [5, 6, 7, 7])
    (at,) = jax.jit(lambda fill: axn.nonzero(x, size=axn.Axis("a", 1), fill_value=fill))(7)
    assert (at.names, at.array.tolist()) == (("a",), [1])


AXES = "  array has: batch=4, embed=6"
SIZE = axn.Axis("found", 3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: axn.where(x > 0, x, axn.ones(axn.Axis("embd", 6))),
            BroadcastError,
            "where: no operand has the axes of all others\n"
            "  operand 1 has: batch=4, embed=6\n"
            "  operand 2 has: batch=4, embed=6\n"
            "  operand 3 has: embd=6\n"
            "  hint: did you mean 'embed'? Or: if the outer product is meant, "
            "give an operand the others' axes first: x.broadcast_axis(embd)",
        ),
        (
            lambda x: axn.where(x > 0, x, axn.ones(axn.Axis("embed", 5))),
            AxisSizeError,
            "where: axis 'embed' has two sizes: 6 and 5\n"
            "  operand 1 has: batch=4, embed=6\n"
            "  operand 2 has: batch=4, embed=6\n"
            "  operand 3 has: embed=5\n"
            '  hint: if one is shifted by a place, cut the longer one: x["embed", :-1] or x["embed", 1:]',
        ),
        (
            lambda x: axn.where(True, 1.0, 2.0),
            OperandError,
            "where: expected a NamedArray, got bool\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.where(x > 0, x, "a"),
            OperandError,
            "where: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
        ),
        (
            lambda x: axn.where(x > 0, x, np.ones(6)),
            OperandError,
            "where: cannot combine a plain array of shape (6,) with axes batch, embed\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda x: axn.where(x > 0, x),
            OperandError,
            "where: needs either x and y, or new_axis\n"
            '  hint: write where(condition, x, y), or where(condition, fill_value=0, new_axis=Axis("found", 10))',
        ),
        (
            lambda x: axn.where(x.array > 0, new_axis=SIZE),
            OperandError,
            "where: expected a NamedArray, got a plain array\n"
            "  its shape: (4, 6)\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: x.nonzero(size="found"),
            OperandError,
            "nonzero: axis 'found' needs a size here\n  hint: write Axis(\"found\", size)",
        ),
        (
            lambda x: x.nonzero(size=(SIZE, SIZE.alias("more"))),
            OperandError,
            "nonzero: expected one axis, got 2: found, more",
        ),
        (
            lambda x: x.nonzero(size=SIZE, fill_value=0.5),
            OperandError,
            "nonzero: the fill value must have an integer dtype, not float32",
        ),
        (
            lambda x: axn.flatnonzero(x.sum(), size=SIZE),
            AxisNotFoundError,
            "flatnonzero: the array has no axis to search along\n  array has: no axes",
        ),
        (
            lambda x: axn.argwhere(x, axn.Axis("axis", 3), size=SIZE),
            AxisSizeError,
            f"argwhere: axis 'axis' was given with size 3, but there are 2 coordinates\n{AXES}",
        ),
        (
            lambda x: axn.argwhere(x, "found", size=SIZE),
            AxisClashError,
            f"argwhere: in the result, axis 'found' would appear twice\n{AXES}",
        ),
        (
            lambda x: axn.compress(x["batch", 0], x, "batch", size=SIZE),
            AxisNotFoundError,
            "compress: operand 2 has no axis named 'batch'\n"
            "  operand 1 has: batch=4, embed=6\n  operand 2 has: embed=6",
        ),
        (
            lambda x: axn.compress(x > 0, x, "embedd", size=SIZE),
            AxisNotFoundError,
            "compress: no axis named 'embedd'\n"
            "  operand 1 has: batch=4, embed=6\n"
            "  operand 2 has: batch=4, embed=6\n"
            "  hint: did you mean 'embed'?",
        ),
        (
            lambda x: axn.choose(x, [x, x]),
            OperandError,
            "choose: the index must have an integer dtype, not float32",
        ),
        (
            lambda x: x.astype(int).choose(x),
            OperandError,
            "choose: a single array of choices needs the axis of the choices\n"
            "  choices have: batch=4, embed=6\n"
            '  hint: write choose(index, choices, "option"), or give a list of arrays',
        ),
        (
            lambda x: axn.choose(x.astype(int), x, "embd"),
            AxisNotFoundError,
            "choose: operand 2 has no axis named 'embd'\n"
            "  operand 1 has: batch=4, embed=6\n"
            "  operand 2 has: batch=4, embed=6\n"
            "  hint: did you mean 'embed'?",
        ),
        (
            lambda x: axn.choose(x.astype(int), x.array, "embed"),
            OperandError,
            "choose: choices must be a NamedArray with an axis, or a list of operands, not a plain array",
        ),
        (
            lambda x: axn.choose(axn.named(0, ()), x["embed", 0:0], "embed"),
            AxisSizeError,
            "choose: the axis of the choices has no elements",
        ),
        (lambda x: axn.choose(x.astype(int), []), ArgumentError, "choose: no choices given"),
        (
            lambda x: axn.choose(x.astype(int), [x], mode="raise"),
            ArgumentError,
            "choose: the mode must be 'clip' or 'wrap', not 'raise'",
        ),
        (lambda x: axn.select([], []), ArgumentError, "select: no conditions given"),
        (lambda x: axn.select([x > 0], [x, x]), ArgumentError, "select: 1 conditions, but 2 choices"),
        (
            lambda x: axn.select(x > 0, x),
            OperandError,
            "select: conditions must be given as a list, not as NamedArray",
        ),
        (
            lambda x: axn.piecewise(x, [x > 0], [1, 2, 3]),
            ArgumentError,
            "piecewise: 1 conditions, but 3 functions\n"
            "  hint: give one function per condition, and possibly one more for all other elements",
        ),
        (
            lambda x: axn.piecewise(1.0, [True], [1]),
            OperandError,
            "piecewise: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6))))
    assert str(caught.value) == text
