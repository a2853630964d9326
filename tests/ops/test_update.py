"""Updates by name: laws over one row per method, and any index at all against numpy."""

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from axonym.ops import update
from tests.laws import Bulk, Row, SmoothBulk, has_row_for_each


def first(x: str, *rest: str) -> str:
    return x


def changed(fn: Any) -> Any:
    """Let a numpy function change a copy of its first argument."""

    def oracle(x: np.ndarray, *rest: Any) -> np.ndarray:
        x = np.array(x)
        fn(x, *rest)
        return x

    return oracle


def each(ufunc: Any) -> Any:
    """Apply a numpy function at indices along the middle axis, which may repeat."""
    return changed(lambda x, i, v: ufunc.at(x, (slice(None), i), v))


def boxed(name: str, ufunc: Any) -> Row:
    """Update a box, by a method."""
    return Row(
        "At",
        lambda x, v: getattr(x.at["b", 1, "a", 1:3], name)(v),
        ("abc", "c"),
        lambda x, v: getattr(x.at[1:3, 1], name)(v),
        "abc",
        changed(lambda x, v: operator.setitem(x, (slice(1, 3), 1), ufunc(x[1:3, 1], v))),
        ("positive", "positive"),
        first,
        f"box, {name}",
        any_size=False,
        anonymous=1,
    )


def scattered(name: str, oracle: Any) -> Row:
    """Update at indices that repeat, by a method."""
    return Row(
        "At",
        lambda x, i, v: getattr(x.at["b", i], name)(v),
        ("abc", "i", "aic"),
        lambda x, i, v: getattr(x.at[:, i], name)(v),
        "abc",
        oracle,
        ("positive", "index", "positive"),
        first,
        f"array, {name}",
        any_size=False,
        anonymous=1,
    )


def matched(name: str, ufunc: Any) -> Row:
    """Update one element for each position of an axis in common."""
    return Row(
        "At",
        lambda x, i, v: getattr(x.at["a", i], name)(v),
        ("abc", "b", "cb"),
        lambda x, i, v: getattr(x.at[i, jnp.arange(2)], name)(v.T),
        "abc",
        changed(lambda x, i, v: ufunc.at(x, (i, np.arange(2)), v.T)),
        ("positive", "index", "positive"),
        first,
        f"axis in common, {name}",
        any_size=False,
        anonymous=1,
    )


ROWS = [
    *(
        boxed(name, ufunc)
        for name, ufunc in {
            "set": lambda old, new: new,
            "add": np.add,
            "subtract": np.subtract,
            "multiply": np.multiply,
            "mul": np.multiply,
            "power": np.power,
            "min": np.minimum,
            "max": np.maximum,
        }.items()
    ),
    scattered("add", each(np.add)),
    scattered("subtract", each(np.subtract)),
    matched("add", np.add),
    matched("subtract", np.subtract),
    Row(
        "At",
        lambda x, i, v: x.at["b", i, "c", 2].set(v),
        ("abc", "", "a"),
        lambda x, i, v: x.at[:, i, 2].set(v),
        "abc",
        changed(lambda x, i, v: operator.setitem(x, (slice(None), i, 2), v)),
        ("real", "index", "real"),
        first,
        "traced int",
        any_size=False,
        anonymous=1,
    ),
    Row(
        "At",
        lambda x, i, v: x.at["b", i].add(v),
        ("abc", "a", "ca"),
        lambda x, i, v: x.at[jnp.arange(4), i].add(v.T),
        "abc",
        changed(lambda x, i, v: operator.setitem(x, (np.arange(4), i), x[np.arange(4), i] + v.T)),
        ("real", "index", "real"),
        first,
        "axis in common",
        any_size=False,
        anonymous=1,
    ),
    Row(
        "At",
        lambda x, i, j, v: x.at["a", i, "c", j].set(v),
        ("abc", "b", "b", "b"),
        lambda x, i, j, v: x.at[i, jnp.arange(2), j].set(v),
        "abc",
        changed(lambda x, i, j, v: operator.setitem(x, (i, np.arange(2), j), v)),
        ("real", "index", "index", "real"),
        first,
        "axis in common of two arrays",
        any_size=False,
        anonymous=1,
    ),
    Row(
        "At",
        lambda x, i, v: x.at["a", i, "c", i].add(v),
        ("abc", "i", "b"),
        lambda x, i, v: x.at[i, :, i].add(v),
        "abc",
        changed(lambda x, i, v: np.add.at(x, (i, slice(None), i), v)),
        ("real", "index", "real"),
        first,
        "separated arrays",
        any_size=False,
        anonymous=1,
    ),
    Row(
        "At",
        lambda x, i, v: x.at["a", ::2, "b", axn.dslice(i, 1)].set(v),
        ("abc", "", "c"),
        lambda x, i, v: x.at[::2, i].set(v),
        "abc",
        changed(lambda x, i, v: operator.setitem(x, (slice(None, None, 2), i), v)),
        ("real", "index", "real"),
        first,
        "strided and dslice",
        any_size=False,
        anonymous=1,
    ),
    Row(
        "At",
        lambda x, i: x.at["b", i].apply(lambda part: part * part),
        ("abc", "i"),
        lambda x, i: x.at[:, i].set(x[:, i] * x[:, i]),
        "abc",
        changed(lambda x, i: operator.setitem(x, (slice(None), i), np.square(x[:, i]))),
        ("real", "index"),
        first,
        "apply",
        any_size=False,
        anonymous=1,
    ),
    Row(
        "At",
        lambda x, v: x.at[...].set(v),
        ("abc", "b"),
        lambda x, v: x.at[:].set(v[:, None]),
        "abc",
        changed(lambda x, v: operator.setitem(x, ..., v[:, None])),
        (),
        first,
        "all",
        anonymous=1,
    ),
    Row(
        "At",
        lambda x, i: x.at["b", i, "a", 1].get(mode="fill", fill_value=3),
        ("abc", "i"),
        lambda x, i: x.at[1, i].get(mode="fill", fill_value=3),
        "ic",
        lambda x, i: np.concatenate([x[1], np.full_like(x[1], 3)])[i],
        ("real", "shift"),
        lambda x, i: x.replace("a", "").replace("b", "i"),
        "get",
        any_size=False,
        anonymous=1,
    ),
    Row(
        "put_along_axis",
        lambda x, i, v: axn.put_along_axis(x, i, v, "b"),
        ("abc", "ab", "a"),
        lambda x, i, v: x.at[jnp.arange(4)[:, None], i].set(v[:, None, None]),
        "abc",
        changed(lambda x, i, v: np.put_along_axis(x, i[:, :, None], v[:, None, None], 1)),
        ("real", "index", "real"),
        first,
        any_size=False,
        anonymous=1,
    ),
    Row(
        "updated_slice",
        lambda x, i, v: axn.updated_slice(x, {"b": i, "a": 1}, v),
        ("abc", "", "bc"),
        lambda x, i, v: lax.dynamic_update_slice(x, v[None], (1, i, 0)),
        "abc",
        changed(lambda x, i, v: operator.setitem(x, 1, v)),
        ("real", "index", "real"),
        first,
        any_size=False,
        anonymous=1,
    ),
    Row(
        "updated_slice",
        lambda x, i, j, v: axn.updated_slice(x, {"b": i, "c": j}, v),
        ("abc", "a", "", "a"),
        lambda x, i, j, v: x.at[jnp.arange(4), i, j].set(v),
        "abc",
        changed(lambda x, i, j, v: operator.setitem(x, (np.arange(4), i, j), v)),
        ("real", "index", "index", "real"),
        first,
        "batched starts",
        any_size=False,
        anonymous=1,
    ),
]
STEPS = [
    scattered("multiply", each(np.multiply)),
    dataclasses.replace(scattered("divide", each(np.divide)), domains=("complex", "index", "complex")),
    dataclasses.replace(boxed("divide", np.divide), domains=("complex", "complex")),
    scattered("min", each(np.minimum)),
    scattered("max", each(np.maximum)),
    *(
        matched(name, ufunc)
        for name, ufunc in {
            "multiply": np.multiply,
            "power": np.power,
            "min": np.minimum,
            "max": np.maximum,
        }.items()
    ),
    dataclasses.replace(matched("divide", np.divide), domains=("complex", "index", "complex")),
]
ROWS = [dataclasses.replace(row, speaker="at") if row.function == "At" else row for row in ROWS]
STEPS = [dataclasses.replace(row, speaker="at") for row in STEPS]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS, update, without=["Part", "ScatterMode"])  # what At gives


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestUpdates(SmoothBulk):
    """Values, gradients, shardings."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestUpdatesWithoutGradients(Bulk):
    """The same without gradients, which JAX has for a product of updates only where none repeats."""


def test_products_have_gradients_where_no_index_repeats() -> None:
    x, v = axn.arange(axn.Axis("b", 3), dtype=float), axn.named([2.0, 4.0], "i")
    index = {"b": axn.named([2, 1], "i")}
    gradient = jax.grad(lambda x: x.at[index].multiply(v, unique_indices=True).sum().scalar())(x)
    assert gradient.tolist() == [1, 4, 2]
    gradient = jax.grad(lambda v: x.at[index].divide(v, unique_indices=True).sum().scalar())(v)
    np.testing.assert_allclose(gradient.array, [-2 / 4, -1 / 16])
    # One for each position of an axis in common.
    rows, each = axn.ones(axn.make_axes(a=2, b=3)), axn.named([2, 0], "a")
    gradient = jax.grad(lambda x: x.at["b", each].multiply(axn.named([5.0, 7.0], "a")).sum().scalar())(rows)
    assert gradient.tolist() == [[1, 1, 5], [7, 1, 1]]


def test_updates_out_of_range_are_left_out() -> None:
    x = axn.arange(axn.Axis("b", 4))
    for at in (
        jnp.int32(4),
        jnp.int32(-5),
        axn.named([7, -9], "i"),
        axn.dslice(jnp.int32(4), 2),
        axn.dslice(jnp.int32(-2), 2),
    ):
        assert x.at["b", at].set(9).tolist() == [0, 1, 2, 3]
        assert x.at["b", at].apply(lambda part: part + 9).tolist() == [0, 1, 2, 3]
    assert x.at["b", axn.dslice(jnp.int32(-1), 3)].set(axn.named([7, 8, 9], "b")).tolist() == [8, 9, 2, 3]
    assert x.at["b", axn.dslice(3, 3)].add(axn.named([7, 8, 9], "b")).tolist() == [0, 1, 2, 10]
    assert x.at["b", axn.dslice(-1, 6)].set(axn.arange(axn.Axis("b", 6))).tolist() == [1, 2, 3, 4]


def test_a_mode_says_what_is_out_of_range() -> None:
    x = axn.arange(axn.Axis("b", 4), dtype=float)
    far = axn.named([1, 9], "i")
    assert x.at["b", [1, 9]].set(7.0, mode="drop").tolist() == [0, 7, 2, 3]
    assert x.at["b", [1, 9]].apply(lambda part: part + 6, mode="drop").tolist() == [0, 7, 2, 3]
    assert x.at["b", far].set(7.0, mode="clip").tolist() == [0, 7, 2, 7]
    assert x.at["b", far].get(mode="clip").tolist() == [1, 3]
    assert x.at["b", far].get(fill_value=-1).tolist() == [1, -1]
    assert jnp.isnan(x.at["b", jnp.int32(4)].get(mode="fill").array)
    assert x.at["b", axn.dslice(jnp.int32(2), 3)].get(mode="clip").tolist() == [2, 3, 3]
    assert x.at["b", axn.dslice(jnp.int32(-2), 3)].get(mode="clip").tolist() == [0, 0, 0]
    assert x.at["b", axn.dslice(jnp.int32(-1), 3)].get(fill_value=-1).tolist() == [-1, 0, 1]
    assert x.at["b", axn.dslice(jnp.int32(1), 2)].get(mode="promise_in_bounds").tolist() == [1, 2]
    assert x.at["b", axn.dslice(jnp.int32(3), 2)].max(5.0, mode="clip").tolist() == [0, 1, 2, 5]


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["promise_in_bounds", "clip", "drop", "fill", None])
@pytest.mark.parametrize("at", [axn.dslice(2, 3), axn.dslice(-2, 3), axn.named([1, 9, -1], "i"), jnp.int32(4)], ids=str)
def test_a_function_is_applied_to_what_it_replaces(at: Any, mode: Any) -> None:
    x = np.array([10, 20, 30, 40])
    if mode == "promise_in_bounds":
        at = axn.dslice(jnp.int32(2), 2) if isinstance(at, axn.dslice) else jnp.int32(-1)
    reached = axn.arange(axn.Axis("b", 4)).at["b", at].get(mode=mode if mode == "clip" else "fill", fill_value=-1)
    met = np.zeros(4, bool)
    met[[place for place in np.ravel(reached.array) if place >= 0]] = True
    result = axn.named(x, "b").at["b", at].apply(lambda part: part * 2, mode=mode)
    assert result.tolist() == np.where(met, 2 * x, x).tolist()


def test_where_there_are_no_elements_nothing_is_written() -> None:
    x = axn.zeros(axn.make_axes(b=0, c=3))
    for at in (
        jnp.int32(0),
        jnp.array([0, 1]),
        axn.named([0, 1, 2], "c"),
        axn.named([0], "i"),
        axn.dslice(0, 2),
        slice(None),
    ):
        for mode in (None, "clip", "drop"):
            assert x.at["b", at].add(1.0, mode=mode).shape == {"b": 0, "c": 3}
    with pytest.raises(BroadcastError):
        x.at["b", jnp.int32(0)].set(axn.ones(axn.Axis("d", 2)))


def test_updates_under_a_named_vmap_over_starts() -> None:
    x, starts = axn.zeros((axn.Axis("a", 3), axn.Axis("b", 4))), axn.arange(axn.Axis("a", 3))
    expected = np.triu(np.tri(3, 4, 1)).tolist()
    ones = axn.ones(axn.Axis("b", 2))
    assert axn.vmap(lambda x, i: x.at["b", axn.dslice(i, 2)].set(1.0), "a")(x, starts).tolist() == expected
    assert axn.vmap(lambda x, i: axn.updated_slice(x, {"b": i}, ones), "a")(x, starts).tolist() == expected
    assert axn.updated_slice(x, {"b": starts}, ones).tolist() == expected
    assert x.at["b", starts + axn.arange(axn.Axis("k", 2))["k", 0]].set(1.0).tolist() == np.eye(3, 4).tolist()


def test_updated_slice_reverses_slice() -> None:
    x = axn.arange((axn.Axis("a", 2), axn.Axis("b", 5)))
    piece = axn.named([[7, 8], [9, 10], [11, 12]], ("b", "a"))
    for start in (-3, 0, 1, 2, jnp.int32(9), jnp.int32(-1), axn.named(3, ())):
        result = x.updated_slice({"b": start}, piece)
        assert result.names == ("a", "b")
        assert result.slice("b", start=start, length=3).tolist() == piece.rearrange(("a", "b")).tolist()
    assert axn.updated_slice(x, {}, 7).tolist() == [[7] * 5] * 2
    assert axn.updated_slice(x, {axn.Axis("b", 5): 4}, axn.named([7, 8], "a"))["b", 4].tolist() == [7, 8]


X = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))
PART = "  indexed part has: embed=6"
BAD: list[tuple[Any, type[Exception], str]] = [
    (
        lambda x: x.at["embd", 0],
        AxisNotFoundError,
        "at: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        lambda x: x.at["embed", 0.5],
        OperandError,
        "at: cannot index axis 'embed' by float\n  hint: use an int, a slice, or an array of integers",
    ),
    (
        lambda x: x.at["embed", x["batch", 0] > 0],
        OperandError,
        "at: the index over 'embed' must have an integer dtype, not bool\n"
        "  hint: use where() to choose by a mask, or compress() to select by one",
    ),
    (
        lambda x: x.at["embed", 6],
        AxisSizeError,
        "at: index 6 is out of range for embed=6\n  array has: batch=4, embed=6",
    ),
    (lambda x: x.at["embed", 0, "embed", 1], AxisClashError, "at: axis 'embed' is given twice\n  axes: embed, embed"),
    (
        lambda x: x.at["embed"],
        OperandError,
        "at: an index is a dict, or pairs of an axis and a selector, not (str)\n"
        "  array has: batch=4, embed=6\n"
        '  hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]',
    ),
    (
        lambda x: x.at["batch", 0].set(x),
        BroadcastError,
        f"at: the update has axis 'batch', which the indexed part lacks\n  update has: batch=4, embed=6\n{PART}",
    ),
    (
        lambda x: x.at["batch", [0]].add(axn.ones(axn.Axis("embd", 6))),
        BroadcastError,
        "at: the update has axis 'embd', which the indexed part lacks\n"
        "  update has: embd=6\n"
        "  indexed part has: batch=1, embed=6\n"
        "  hint: did you mean 'embed'?",
    ),
    (
        lambda x: x.at["batch", 0].set(axn.ones(axn.Axis("embed", 1))),
        AxisSizeError,
        f"at: axis 'embed' has size 1 in the update, and 6 in the indexed part\n  update has: embed=1\n{PART}",
    ),
    (
        lambda x: x.at["batch", 0].set(np.ones(6)),
        OperandError,
        f"at: the update is a plain array of shape (6,)\n{PART}\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
    (
        lambda x: x.at["batch", 0].set("a"),
        OperandError,
        "at: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        lambda x: x.at["batch", 0].set(axn.ones(axn.Axis("z", 2)).untag("z")),
        OperandError,
        f"at: the update has more anonymous dimensions than the array\n  update has: anonymous (2,)\n{PART}",
    ),
    (
        lambda x: x.astype(int).at["batch", 0].add(0.5),
        OperandError,
        "at: an array of int32 cannot hold an update of float32 without loss\n"
        "  hint: convert one of the two: update.astype(x.dtype)",
    ),
    (
        lambda x: x.astype(int).at["batch", 0].divide(2),
        OperandError,
        "at: divide gives floats, which int32 cannot hold\n  hint: convert the array first: x.astype(float)",
    ),
    (
        lambda x: (x > 0).at["batch", [0]].add(True),
        OperandError,
        "at: add is not defined for bool\n  hint: use set, or max for a logical or, and min for a logical and",
    ),
    (
        lambda x: x.at["batch", 0].set(1.0, mode="wrap"),
        ArgumentError,
        "at: the mode must be one of promise_in_bounds, clip, drop, fill, not 'wrap'",
    ),
    (
        lambda x: x.at["batch", 0].get(fill_value=x),
        OperandError,
        "at: fill_value must be a Python scalar\n  hint: choose afterwards: axn.where(...)",
    ),
    (
        lambda x: x.at["embed", axn.dslice(0.5, 2)],
        OperandError,
        "at: the start of the dslice over 'embed' must be one integer",
    ),
    (
        lambda x: x.at["embed", axn.dslice(axn.named([0, 1], "batch"), 2)],
        OperandError,
        "at: the start of the dslice over 'embed' has axes batch\n"
        '  hint: to cut several pieces, index by the positions: start + axn.arange(Axis("embed", length))',
    ),
    (
        lambda x: axn.put_along_axis(x, axn.named([0], "i"), 1.0, "embed"),
        AxisNotFoundError,
        "put_along_axis: the indices have no axis named 'embed'\n"
        "  array has: batch=4, embed=6\n  indices have: i=1\n"
        "  hint: use take to replace the axis by the axes of the index",
    ),
    (
        lambda x: axn.take_along_axis(x, axn.named([[0]], ("embed", "bach")), "embed"),
        AxisNotFoundError,
        "take_along_axis: the indices have axis 'bach', which the array lacks\n"
        "  array has: batch=4, embed=6\n  indices have: embed=1, bach=1\n  hint: did you mean 'batch'?",
    ),
    (
        lambda x: axn.take_along_axis(x, np.zeros((4, 6), int), "embed"),
        OperandError,
        "take_along_axis: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        lambda x: axn.take(x, "embed", [0], mode="raise"),
        ArgumentError,
        "take: the mode must be one of fill, clip, wrap, not 'raise'",
    ),
    (
        lambda x: axn.updated_slice(x, {"embd": 0}, 1.0),
        AxisNotFoundError,
        "updated_slice: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        lambda x: axn.updated_slice(x, {"embed": 0}, axn.ones(axn.Axis("embed", 7))),
        AxisSizeError,
        "updated_slice: a piece with embed=7 does not fit into embed=6\n"
        "  array has: batch=4, embed=6\n  update has: embed=7",
    ),
    (
        lambda x: axn.updated_slice(x, {"embed": 99}, 1.0),
        AxisSizeError,
        "updated_slice: a piece of 1 from 99 does not fit into embed=6\n  array has: batch=4, embed=6",
    ),
    (
        lambda x: axn.updated_slice(x, {"batch": 0, "embed": np.int64(5)}, axn.ones(axn.Axis("embed", 2))),
        AxisSizeError,
        "updated_slice: a piece of 2 from 5 does not fit into embed=6\n  array has: batch=4, embed=6",
    ),
    (
        lambda x: x.at["embed", [6]].set(0.0),
        AxisSizeError,
        "at: index 6 is out of range for embed=6\n  array has: batch=4, embed=6",
    ),
    (
        lambda x: x.at["embed", [-7]].get(mode="promise_in_bounds"),
        AxisSizeError,
        "at: index -7 is out of range for embed=6\n  array has: batch=4, embed=6",
    ),
    (
        lambda x: axn.updated_slice(x, {"embed": 0}, axn.ones(axn.Axis("batch", 3))),
        AxisSizeError,
        "updated_slice: a piece with batch=3 does not fit into batch=4\n"
        "  array has: batch=4, embed=6\n  update has: batch=3\n  hint: give its start: {'batch': 0}",
    ),
    (
        lambda x: axn.updated_slice(x, {"embed": 0}, axn.ones(axn.Axis("bath", 4))),
        BroadcastError,
        "updated_slice: the update has axis 'bath', which the array lacks\n"
        "  operand 1 has: batch=4, embed=6\n  operand 3 has: bath=4\n  hint: did you mean 'batch'?",
    ),
    (
        lambda x: axn.updated_slice(x, {"embed": axn.zeros(axn.Axis("embed", 6), dtype=int)}, 1.0),
        AxisClashError,
        "updated_slice: a start has axis 'embed', along which the piece is moved\n"
        "  operand 1 has: batch=4, embed=6\n  operand 2 has: embed=6",
    ),
    (
        lambda x: axn.updated_slice(x, {"embed": axn.zeros(axn.Axis("batch", 3), dtype=int)}, 1.0),
        AxisSizeError,
        "updated_slice: axis 'batch' has two sizes: 4 and 3\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: batch=3\n"
        '  hint: if one is shifted by a place, cut the longer one: x["batch", :-1] or x["batch", 1:]',
    ),
    (
        lambda x: axn.updated_slice(x, {"embed": 0.5}, 1.0),
        OperandError,
        "updated_slice: the start along 'embed' must be one integer, or a NamedArray of integers",
    ),
    (
        lambda x: axn.updated_slice(x, {"embed": 0}, np.ones(6)),
        OperandError,
        "updated_slice: the update has more anonymous dimensions than the array\n"
        "  update has: anonymous (6,)\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
    (
        lambda x: axn.updated_slice(x, 0, 1.0),
        OperandError,
        "updated_slice: start must be a dict from axes to integers, not int\n"
        '  array has: batch=4, embed=6\n  hint: write {"pos": 0}',
    ),
    (
        lambda x: axn.unravel_index(x, x.axes),
        OperandError,
        "unravel_index: the indices must have an integer dtype, not float32",
    ),
    (
        lambda x: axn.ravel_multi_index({"batch": x}, x.axes),
        AxisNotFoundError,
        "ravel_multi_index: the indices are for batch\n  axes: batch=4, embed=6\n"
        "  hint: give one index for each of the axes",
    ),
    (
        lambda x: axn.ravel_multi_index({"batch": x, "embed": 0}, x.axes),
        OperandError,
        "ravel_multi_index: the index over 'batch' must have an integer dtype, not float32",
    ),
    (
        lambda x: axn.ravel_multi_index({"a": 0, "b": np.int8(1)}, axn.make_axes(a=2**16, b=2**16)),
        ArgumentError,
        "ravel_multi_index: int32 cannot index 4294967296 elements\n  axes: a=65536, b=65536\n"
        "  hint: give indices of int64, under jax.enable_x64(True)",
    ),
    (
        lambda x: axn.ravel_multi_index({"batch": 0, "embed": 0}, x.axes, mode="raise"),
        ArgumentError,
        "ravel_multi_index: the mode must be one of clip, wrap, not 'raise'",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD, ids=[text.splitlines()[0] for _, _, text in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(X)
    assert str(caught.value) == text


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_a_piece_shorter_than_its_axis_is_split_has_a_gradient(mesh: str, request: pytest.FixtureRequest) -> None:
    """XLA alone refuses its own program on Explicit axes."""

    def loss(x: axn.NamedArray) -> jax.Array:
        return axn.sin(axn.updated_slice(x, {"b": 0}, x["b", 0:2] * 2)).sum().scalar()

    x = axn.arange(axn.Axis("b", 4)) / 4
    expected = jax.jit(jax.grad(loss))(x)
    with axn.set_mesh(request.getfixturevalue(mesh)):
        found = jax.jit(jax.grad(loss))(axn.shard(x, {"b": "data"}))
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-6)
