"""Copies of elements and of whole arrays: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import repeat
from tests.laws import Row, SmoothBulk, Values, has_row_for_each


def repeated(x: Any, counts: Any, total: int) -> Any:
    """Repeat along the last axis of a matrix, each row in its own way."""
    rows = [jnp.repeat(row, n, total_repeat_length=total) for row, n in zip(x, counts, strict=True)]
    return jnp.stack(rows)


ROWS = [
    Row(
        "repeat",
        lambda x: axn.repeat(x, 3, "b"),
        ("abc",),
        lambda x: jnp.repeat(x, 3, 1),
        "abc",
        lambda x: np.repeat(x, 3, 1),
        names=lambda x: x,
    ),
    Row(
        "repeat",
        lambda x, counts: axn.repeat(x, counts, "a", total_repeat_length=6),
        ("abc", "a"),
        lambda x, counts: jnp.repeat(x, counts, 0, total_repeat_length=6),
        "abc",
        lambda x, counts: np.repeat(np.concatenate([x, x[-1:]]), [*counts, max(6 - counts.sum(), 0)], 0)[:6],
        domains=("real", "index"),
        names=lambda x, counts: x,
        case="counts",
    ),
    Row(
        "tile",
        lambda x: axn.tile(x, {"b": 3, "i": 2, "a": 1}),
        ("abc",),
        lambda x: jnp.tile(x, (2, 1, 3, 1)),
        "iabc",
        lambda x: np.tile(x, (2, 1, 3, 1)),
        names=lambda x: f"i{x}",
    ),
]


VARIANTS = [
    Row(
        "repeat",
        lambda x: axn.repeat(x, [2, 0, 1], axn.Axis("c", 3)),
        ("abc",),
        lambda x: jnp.repeat(x, np.array([2, 0, 1]), 2),
        "abc",
        lambda x: np.repeat(x, [2, 0, 1], 2),
        names=lambda x: x,
        case="list",
    ),
    Row(
        "repeat",
        lambda x, counts: axn.repeat(x, counts, "b", 3),
        ("ab", "ab"),
        lambda x, counts: repeated(x, counts, 3),
        "ab",
        domains=("real", "index"),
        names=lambda x, counts: x,
        case="counts for each row",
    ),
    Row(
        "tile",
        lambda x: axn.tile(x, {axn.Axis("a", 4): 0, axn.Axis("i", 2): 2}),
        ("ab",),
        lambda x: jnp.tile(x, (2, 0, 1)),
        "iab",
        lambda x: np.tile(x, (2, 0, 1)),
        names=lambda x: f"i{x}",
        case="Axis, none",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS, repeat)


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestLaws(SmoothBulk):
    """The laws of what is lifted along an axis."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axes."""


def test_anonymous_dimensions_stay_in_front() -> None:
    x = axn.arange(axn.make_axes(a=2, b=3)).untag("a")
    assert axn.tile(x, {"b": 2, "i": 4}).array.shape == (2, 4, 6)
    assert axn.repeat(x, [1, 1, 2], "b").array.shape == (2, 4)


def test_repeat_takes_the_size_from_counts_that_are_known() -> None:
    x = axn.arange(axn.Axis("x", 3))
    assert x.repeat(jnp.array([1, 0, 2]), "x").tolist() == [0, 2, 2]
    for count in (np.array(2), jnp.array(2), axn.named(2, ())):
        np.testing.assert_array_equal(x.repeat(count, "x").array, np.repeat(x.array, 2))
    assert x.repeat(axn.named([1, 0, 2], "x"), "x").tolist() == [0, 2, 2]
    assert x.repeat(np.int64(2), "x").tolist() == [0, 0, 1, 1, 2, 2]
    assert x.repeat(0, "x").tolist() == []
    assert jax.jit(lambda x: x.repeat([1, 0, 2], "x"))(x).tolist() == [0, 2, 2]
    assert axn.zeros(axn.Axis("x", 0)).repeat([], "x").tolist() == []


@pytest.mark.parametrize("counts", [np.uint8([200, 100, 50]), np.int8([100, 0, 127])])
def test_counts_may_add_up_to_more_than_their_dtype_holds(counts: Any) -> None:
    x = axn.arange(axn.Axis("x", 3))
    assert x.repeat(counts, "x").tolist() == np.repeat(np.arange(3), counts).tolist()


def test_one_traced_count_is_for_all() -> None:
    x = axn.arange(axn.Axis("x", 3))
    assert jax.jit(lambda n: x.repeat(n, "x", total_repeat_length=5))(2).tolist() == [0, 0, 1, 1, 2]


INPUT = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))


BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "axn.repeat(x, 2, 'embd')",
        lambda x: axn.repeat(x, 2, "embd"),
        AxisNotFoundError,
        "repeat: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.repeat(x, 2, axn.Axis('embed', 5))",
        lambda x: axn.repeat(x, 2, axn.Axis("embed", 5)),
        AxisSizeError,
        "repeat: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.repeat(x.array, 2, 'embed')",
        lambda x: axn.repeat(x.array, 2, "embed"),
        OperandError,
        "repeat: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.repeat(x, 2, ('batch', 'embed'))",
        lambda x: axn.repeat(x, 2, ("batch", "embed")),
        OperandError,
        "repeat: expected one axis, got 2: batch, embed",
    ),
    (
        "axn.repeat(x, -1, 'embed')",
        lambda x: axn.repeat(x, -1, "embed"),
        ArgumentError,
        "repeat: the number for axis 'embed' must not be negative, got -1",
    ),
    (
        "axn.repeat(x, [1, 1, 1, 1, 1, -1], 'embed')",
        lambda x: axn.repeat(x, [1, 1, 1, 1, 1, -1], "embed"),
        ArgumentError,
        "repeat: the number for axis 'embed' must not be negative, got -1",
    ),
    (
        "axn.repeat(x, [1.5] * 6, 'embed')",
        lambda x: axn.repeat(x, [1.5] * 6, "embed"),
        OperandError,
        "repeat: repeats must be integers, not float32",
    ),
    (
        "axn.repeat(x, 'z', 'embed')",
        lambda x: axn.repeat(x, "z", "embed"),
        OperandError,
        "repeat: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        "axn.repeat(x, 2.0, 'embed')",
        lambda x: axn.repeat(x, 2.0, "embed"),
        OperandError,
        "repeat: repeats must be integers, not float32",
    ),
    (
        "axn.repeat(x, True, 'embed')",
        lambda x: axn.repeat(x, True, "embed"),
        OperandError,
        "repeat: repeats must be integers, not bool",
    ),
    (
        "axn.repeat(x, [1, 2], 'embed')",
        lambda x: axn.repeat(x, [1, 2], "embed"),
        AxisSizeError,
        "repeat: axis 'embed' has two sizes: 6 and 2\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=2\n"
        '  hint: if they are the same axis, cut the longer one, x["embed", :2]; '
        'if not, rename one: x.rename({"embed": ...})',
    ),
    (
        "jax.jit(lambda n: axn.repeat(x, n, 'embed'))(2)",
        lambda x: jax.jit(lambda n: axn.repeat(x, n, "embed"))(2),
        ArgumentError,
        "repeat: the new size of the axis cannot be computed from these repeats\n"
        "  hint: give it: total_repeat_length=...",
    ),
    (
        "axn.repeat(x, x.astype(int), 'embed')",
        lambda x: axn.repeat(x, x.astype(int), "embed"),
        ArgumentError,
        "repeat: the new size of the axis cannot be computed from these repeats\n"
        "  hint: give it: total_repeat_length=...",
    ),
    (
        "axn.tile(x, {axn.Axis('embed', 5): 2})",
        lambda x: axn.tile(x, {axn.Axis("embed", 5): 2}),
        AxisSizeError,
        "tile: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.tile(x, {axn.Axis('heads', 5): 2})",
        lambda x: axn.tile(x, {axn.Axis("heads", 5): 2}),
        AxisSizeError,
        "tile: axis 'heads' was given with size 5, but there are 2 copies\n  array has: batch=4, embed=6",
    ),
    (
        "axn.tile(x, {'embed': 2, axn.Axis('embed', 6): 2})",
        lambda x: axn.tile(x, {"embed": 2, axn.Axis("embed", 6): 2}),
        AxisClashError,
        "tile: axis 'embed' is given twice\n  axes: embed, embed",
    ),
    (
        "axn.tile(x, {'embed': 1.5})",
        lambda x: axn.tile(x, {"embed": 1.5}),
        OperandError,
        "tile: the number for axis 'embed' must be an int, not float",
    ),
    (
        "axn.tile(x, {'embed': -1})",
        lambda x: axn.tile(x, {"embed": -1}),
        ArgumentError,
        "tile: the number for axis 'embed' must not be negative, got -1",
    ),
    (
        "axn.tile(x, (2, 1))",
        lambda x: axn.tile(x, (2, 1)),
        OperandError,
        "tile: reps must be a dict from axes to ints, not tuple\n"
        "  array has: batch=4, embed=6\n"
        '  hint: write {"pos": 2}',
    ),
    (
        "axn.tile(x.array, {'embed': 2})",
        lambda x: axn.tile(x.array, {"embed": 2}),
        OperandError,
        "tile: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text
