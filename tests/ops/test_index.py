"""Indexing by name: laws over one row per function and per kind of index."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import AxisError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import index
from tests.laws import Bulk, Laws, Row, Smooth, SmoothBulk, Values, assert_close, count_equations, has_row_for_each


def without(*letters: str) -> Any:
    return lambda x, *rest: "".join(name for name in x if name not in letters)


def in_place(old: str, new: str) -> Any:
    """Put `new` where the axes `old` stand if they are neighbours, else in front."""

    def names(x: str, *rest: str) -> str:
        at = sorted(map(x.index, old))
        kept = "".join(name for name in x if name not in old)
        return kept[: at[0]] + new + kept[at[0] :] if at[-1] - at[0] < len(old) else new + kept

    return names


def in_range(x: jax.Array, i: Any, length: int) -> jax.Array:
    """Cut a slice, with a start that is moved as `lax.dynamic_slice` should."""
    start = lax.clamp(0, lax.select(i < 0, i + x.shape[0], i), x.shape[0] - length)
    return lax.dynamic_slice_in_dim(x, start, length, 0, allow_negative_indices=False)


def gathered(case: str, call: Any, axes: tuple[str, ...], reference: Any, out: str, names: Any) -> Row:
    domains = ("real", *("index" for _ in axes[1:]))
    hand = lambda x, *i: reference(x.at, *i).get(mode="clip")  # noqa: E731
    oracle = lambda x, *i: reference(x, *i)  # noqa: E731
    return Row("index", call, axes, hand, out, oracle, domains, names, case, any_size=False, anonymous=1)


def matched(case: str, axes: tuple[str, ...], oracle: Any, out: str, names: Any) -> Row:
    """Index axis b by an array that shares axis a: the compiler is to see a batch dimension."""
    hand = jax.vmap(lambda x, i: x.at[i].get(mode="clip"))
    call, domains = lambda x, i: x["b", i], ("real", "index")
    return Row("index", call, axes, hand, out, oracle, domains, names, case, any_size=False, anonymous=1)


SMOOTH = [
    Row(
        "index",
        lambda x: x["b", 1],
        ("abc",),
        lambda x: x[:, 1],
        "ac",
        lambda x: x[:, 1],
        names=without("b"),
        case="int",
        any_size=False,
    ),
    Row("index", lambda x: x["a", 1:3], ("abc",), lambda x: x[1:3], "abc", lambda x: x[1:3], case="slice"),
    Row("index", lambda x: x["a", ::2], ("abc",), lambda x: x[::2], "abc", lambda x: x[::2], case="strided"),
    Row(
        "index",
        lambda x: x[{"c": slice(0, 2), "a": -1}],
        ("abc",),
        lambda x: lax.squeeze(lax.slice_in_dim(lax.slice_in_dim(x, 0, 2, axis=2), 3, 4), (0,)),
        "bc",
        lambda x: x[-1, :, :2],
        names=without("a"),
        case="int and slice",
    ),
    Row(
        "slice",
        lambda x: axn.slice(x, "a", start=1, length=2),
        ("abc",),
        lambda x: lax.slice_in_dim(x, 1, 3),
        "abc",
        lambda x: x[1:3],
    ),
]
STEPS = [
    Row(
        "index",
        lambda x, i: x["a", i],
        ("abc", ""),
        lambda x, i: lax.squeeze(in_range(x, i, 1), (0,)),
        "bc",
        lambda x, i: x[i],
        ("real", "index"),
        without("a"),
        "0-d array",
        anonymous=1,
    ),
    gathered(
        "array",
        lambda x, i: x["b", i],
        ("abc", "i"),
        lambda x, i: x[:, i],
        "aic",
        lambda x, i: x.replace("b", "i"),
    ),
    gathered(
        "two arrays, one axis",
        lambda x, i, k: x["a", i, "c", k],
        ("abc", "i", "i"),
        lambda x, i, k: x[i, :, k],
        "ib",
        in_place("ac", "i"),
    ),
    gathered(
        "two arrays, two axes",
        lambda x, i, k: x["b", i, "c", k],
        ("abc", "i", "j"),
        lambda x, i, k: x[:, i[:, None], k],
        "aij",
        in_place("bc", "ij"),
    ),
    matched("an axis in common", ("abc", "a"), lambda x, i: x[np.arange(4), i], "ac", without("b")),
    matched(
        "an axis in common and a new one",
        ("abc", "ai"),
        lambda x, i: x[np.arange(4)[:, None], i],
        "aic",
        lambda x, i: x.replace("b", "i"),
    ),
    Row(
        "take",
        lambda x, i: axn.take(x, "b", i),
        ("abc", "i"),
        lambda x, i: x.at[:, i].get(mode="fill"),
        "aic",
        lambda x, i: np.take(x, i, 1),
        ("real", "index"),
        lambda x, i: x.replace("b", "i"),
        any_size=False,
        anonymous=1,
    ),
    Row(
        "take_along_axis",
        lambda x, i: axn.take_along_axis(x, i, "b"),
        ("abc", "ab"),
        jax.vmap(lambda x, i: x.at[i].get(mode="fill")),
        "abc",
        lambda x, i: np.take_along_axis(x, i[:, :, None], 1),
        ("real", "index"),
        lambda x, i: x,
        any_size=False,
        anonymous=1,
    ),
    Row(
        "slice",
        lambda x, i: axn.slice(x, "a", start=i, length=2),
        ("abc", ""),
        lambda x, i: in_range(x, i, 2),
        "abc",
        lambda x, i: x[i : i + 2],
        ("real", "index"),
        lambda x, i: x,
        case="traced start",
        anonymous=1,
    ),
]

OTHERS = [
    Row(
        "take",
        lambda x, i: axn.take(x, "b", i, mode="clip"),
        ("abc", "ac"),
        lambda x, i: x.at[jnp.arange(4)[:, None], i, jnp.arange(3)].get(mode="clip"),
        "ac",
        lambda x, i: np.take_along_axis(x, i[:, None], 1)[:, 0],
        ("real", "index"),
        without("b"),
        "two axes in common",
        any_size=False,
        anonymous=1,
    ),
    Row(
        "index",
        lambda x, i: x["b", axn.dslice(i, 2), "a", 1],
        ("abc", ""),
        lambda x, i: lax.dynamic_slice_in_dim(jnp.pad(x[1], ((2, 2), (0, 0))), i + 2, 2),
        "bc",
        lambda x, i: np.concatenate([x[1], np.zeros_like(x[1])])[i : i + 2],
        ("real", "index"),
        without("a"),
        "dslice over an end",
        anonymous=1,
    ),
    gathered(
        "dslice and array",
        lambda x, i: x["b", axn.dslice(1, 1), "c", i],
        ("abc", "i"),
        lambda x, i: x[:, 1:2, i],
        "abi",
        lambda x, i: x.replace("c", "i"),
    ),
    Row(
        "take",
        lambda x, i: axn.take(x, "b", i, mode="wrap"),
        ("abc", "i"),
        lambda x, i: x[:, i % 2],
        "aic",
        lambda x, i: np.take(x, i, 1, mode="wrap"),
        ("real", "shift"),
        lambda x, i: x.replace("b", "i"),
        "wrap",
        any_size=False,
        anonymous=1,
    ),
    Row(
        "take",
        lambda x, i: axn.take(x, "b", i + 1, fill_value=7),
        ("abc", ""),
        lambda x, i: x.at[:, i + 1].get(mode="fill", fill_value=7),
        "ac",
        lambda x, i: np.concatenate([x, np.full_like(x[:, :1], 7)], 1)[:, i + 1],
        ("real", "index"),
        without("b"),
        "fill_value",
        any_size=False,
        anonymous=1,
    ),
]
INTEGERS = [
    Row(
        "ravel_multi_index",
        lambda i, j: axn.ravel_multi_index({"y": j, "x": i}, (axn.Axis("x", 3), axn.Axis("y", 2))),
        ("ab", "b"),
        lambda i, j: jnp.ravel_multi_index((i, j), (3, 2), mode="clip"),
        "ab",
        lambda i, j: np.ravel_multi_index((i, np.broadcast_to(j, i.shape)), (3, 2)).astype(np.int32),
        ("index", "index"),
    ),
    Row(
        "unravel_index",
        lambda i: tuple(axn.unravel_index(i, (axn.Axis("x", 3), axn.Axis("y", 4))).values()),
        ("ab",),
        lambda i: jnp.unravel_index(i, (3, 4)),
        ("ab", "ab"),
        lambda i: tuple(part.astype(np.int32) for part in np.unravel_index(i, (3, 4))),
        ("shift",),
        lambda x: (x, x),
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + STEPS + OTHERS + INTEGERS, index, without=["getitem"])  # the rows of index call it


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Laws):
    """All laws but the gradient."""


@pytest.mark.parametrize("row", OTHERS, ids=str)
class TestOthers(SmoothBulk):
    """Values, gradients and shardings, where positional code is another program."""


@pytest.mark.parametrize("row", INTEGERS, ids=str)
class TestIntegers(Bulk):
    """The same, without gradients."""


VARIANTS = [
    Row("take", lambda x: x.take("b", [1, 0, 1]), ("abc",), lambda x: x[:, np.array([1, 0, 1])], "abc", case="list"),
    Row("take", lambda x: x.take("b", 1), ("abc",), lambda x: x[:, 1], "ac", case="int"),
    Row("index", lambda x: x[axn.Axis("b", 2), 1], ("abc",), lambda x: x[:, 1], "ac", case="Axis"),
    Row("index", lambda x: x["b", np.int64(1), "a", -2], ("abc",), lambda x: x[-2, 1], "c", case="numpy int"),
    Row("index", lambda x: x["a", np.array([3, 0])], ("abc",), lambda x: x[np.array([3, 0])], "abc", case="numpy"),
    Row("index", lambda x: axn.index(x, {}), ("abc",), lambda x: x, "abc", case="nothing"),
]


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Other ways to write the index."""


SLICES = [slice(None), slice(1, None), slice(-2, None), slice(None, -1), slice(0, 0), slice(3, 1), slice(1, 99),
          slice(None, None, -1), slice(10, 0, -2), slice(None, None, 3), slice(-1, None, -3)]  # fmt: skip


@pytest.mark.parametrize("part", SLICES, ids=str)
def test_a_slice_is_that_of_numpy(part: slice) -> None:
    x = axn.arange((axn.Axis("a", 2), axn.Axis("b", 5)))
    np.testing.assert_array_equal(x["b", part].array, np.asarray(x.array)[:, part])
    assert count_equations(lambda x: x["b", part], x) <= count_equations(lambda x: x[:, part], x.array)


@pytest.mark.parametrize("at", [-1, -5, [-1, -5], np.array([-2, 4]), "named"], ids=str)
def test_a_negative_index_counts_from_the_end(at: Any) -> None:
    x = axn.arange((axn.Axis("a", 2), axn.Axis("b", 5)))
    position, at = (np.array([-3, 1]), axn.named([-3, 1], "i")) if isinstance(at, str) else (at, at)
    expected = np.asarray(x.array)[:, position]
    np.testing.assert_array_equal(x["b", at].array, expected)
    np.testing.assert_array_equal(jax.jit(lambda x: x["b", at])(x).array, expected)
    np.testing.assert_array_equal(x.take("b", at).array, expected)


ONE_AXIS = [0, -1, 5, -6, True, np.int64(2), 1.0, "c", slice(1, 3), slice(np.int64(1), None), slice(1, 2.0),
            slice(4, 2), slice(None, None, 2), slice(0, 1, 0), jnp.int32(2)]  # fmt: skip


@pytest.mark.parametrize("selector", ONE_AXIS, ids=repr)
@pytest.mark.parametrize("axis", ["b", "d"])
def test_a_pair_and_a_dict_are_the_same_index(axis: str, selector: Any) -> None:
    """The pair of a name and an int or a slice has a way of its own, which other pairs must not take."""
    x = axn.NamedArray(jnp.arange(24).reshape(2, 4, 3), ("a", "b", "c"))

    def read(item: Any) -> Any:
        try:
            return str(x[item])
        except (AxisError, OperandError) as error:
            return type(error), str(error)

    assert read((axis, selector)) == read({axis: selector})


def test_a_symbolic_size_is_indexed() -> None:
    (size,) = jax.export.symbolic_shape("b")
    x = axn.NamedArray(jax.ShapeDtypeStruct((size,), jnp.float32), "b")
    exported = jax.export.export(jax.jit(lambda x: x["b", 1:].array))(x)
    assert exported.call(axn.named([1.0, 2.0, 3.0], "b")).tolist() == [2.0, 3.0]


def test_take_by_an_axis_of_this_size_and_of_another() -> None:
    x, i = axn.arange((axn.Axis("a", 2), axn.Axis("b", 5))), axn.named([4, 0], "i")
    for _ in range(2):  # the second call finds what the first one made
        assert x.take(axn.Axis("b", 5), i).tolist() == x.take("b", i).tolist() == [[4, 0], [9, 5]]
        with pytest.raises(AxisSizeError, match="axis 'b' was given with size 4, but has size 5"):
            x.take(axn.Axis("b", 4), i)
        with pytest.raises(AxisNotFoundError, match="no axis named 'd'"):
            x.take(axn.Axis("d", 5), i)


def test_an_index_array_out_of_range_reads_the_nearest_element() -> None:
    x = axn.arange(axn.Axis("b", 5))
    assert x["b", jnp.array([7, -9, 2])].tolist() == [4, 0, 2]
    assert jax.jit(lambda x, i: x["b", i])(x, 9).item() == 4


NUMBERS = [-7, -4, -1, 0, 2, 3, 7]


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_take_reads_what_that_of_numpy_does(mode: Any) -> None:
    numbers, x = np.array([10, 20, 30]), axn.named([10, 20, 30], "a")
    expected = np.take(numbers, NUMBERS, mode=mode).tolist()
    assert x.take("a", NUMBERS, mode=mode).tolist() == expected
    assert [x.take("a", at, mode=mode).item() for at in NUMBERS] == expected
    assert [x.take("a", jnp.int32(at), mode=mode).item() for at in NUMBERS] == expected
    assert [jax.jit(lambda at: x.take("a", at, mode=mode))(at).item() for at in NUMBERS] == expected


def test_take_along_axis_clips_as_that_of_jax() -> None:
    x, at = jnp.array([10, 20, 30]), jnp.array(NUMBERS)
    result = axn.take_along_axis(axn.named(x, "a"), axn.named(at, "a"), "a", mode="clip")
    assert result.tolist() == jnp.take_along_axis(x, at, 0, mode="clip").tolist()


def test_a_flat_index_of_a_narrow_dtype() -> None:
    axes, flat = axn.make_axes(p=3, q=200), np.array([100, 127], np.int8)
    where = axn.unravel_index(axn.named(flat, "i"), axes)
    assert [part.tolist() for part in where.values()] == [part.tolist() for part in np.unravel_index(flat, (3, 200))]
    given = {"p": axn.named(np.array([1, 2], np.int8), "i"), "q": axn.named(flat, "i")}
    assert axn.ravel_multi_index(given, axes).tolist() == np.ravel_multi_index(([1, 2], flat), (3, 200)).tolist()


def test_a_list_may_hold_traced_ints() -> None:
    x = axn.named([10, 20, 30], "a")
    assert jax.jit(lambda i: x["a", [0, i]])(2).tolist() == [10, 30]
    assert jax.jit(lambda i: x["a", [i, axn.named(i, ()), -1]])(1).tolist() == [20, 20, 30]


def test_take_out_of_range_reads_zeros_of_both_signs() -> None:
    x, at = axn.named([1.0, 2.0], "a"), axn.named([5], "k")
    found = [axn.take(x, "a", at, fill_value=zero).item() for zero in (0.0, -0.0)]
    assert np.signbit(found).tolist() == [False, True]


def test_take_out_of_range_reads_nan() -> None:
    x = axn.arange(axn.Axis("b", 3), dtype=float)
    np.testing.assert_array_equal(x.take("b", [0, 5, -1]).array, [0, np.nan, 2])


def test_a_traced_int_out_of_range_reads_nan_in_take() -> None:
    x = axn.arange(axn.Axis("b", 3), dtype=float)
    assert jnp.isnan(x.take("b", jnp.int32(3)).array)
    assert x["b", jnp.int32(3)].item() == 2


ORDERS = [
    ({"a": "i"}, "ibcd"),
    ({"b": "i", "c": "i"}, "aid"),
    ({"b": "i", "c": "j"}, "aijd"),
    ({"c": "j", "b": "i"}, "ajid"),
    ({"a": "i", "c": "i"}, "ibd"),
    ({"a": "i", "d": "j"}, "ijbc"),
    ({"b": "ij", "d": "j"}, "ijac"),
    ({"b": "ij", "c": "j"}, "aijd"),
]


@pytest.mark.parametrize(("index", "names"), ORDERS, ids=str)
def test_the_axes_of_index_arrays_stand_as_in_numpy(index: dict[str, str], names: str) -> None:
    sizes = {"a": 2, "b": 3, "c": 4, "d": 5, "i": 2, "j": 3}
    x = axn.arange(axn.make_axes(a=2, b=3, c=4, d=5))
    rng = np.random.default_rng(0)
    given = {axis: rng.integers(0, 2, [sizes[name] for name in own]) for axis, own in index.items()}
    result = x[{axis: axn.named(given[axis], tuple(own)) for axis, own in index.items()}]
    assert result.names == tuple(names)
    every = "".join(dict.fromkeys(name for own in sorted(index.values(), key=len, reverse=True) for name in own))
    spread = {
        axis: given[axis].reshape([sizes[name] if name in own else 1 for name in every]) for axis, own in index.items()
    }
    expected = np.asarray(x.array)[tuple(spread.get(axis, slice(None)) for axis in "abcd")]
    np.testing.assert_array_equal(result.array, expected)


def test_a_flat_index_goes_there_and_back() -> None:
    x = axn.arange(axn.make_axes(a=2, b=3, c=4))
    flat = axn.named([[23, 0], [7, -1]], ("i", "j"))
    where = axn.unravel_index(flat, x.axes)
    assert list(where) == ["a", "b", "c"]
    assert x[where].tolist() == [[23, 0], [7, 23]]
    assert axn.ravel_multi_index(where, x.axes).tolist() == [[23, 0], [7, 23]]
    assert axn.unravel_index(flat, ()) == {}
    assert axn.ravel_multi_index({"a": 3, "b": axn.named([4], "i")}, x.axes[:2], mode="wrap").tolist() == [4]


def test_what_reads_nothing() -> None:
    x = axn.ones((axn.Axis("a", 2), axn.Axis("b", 3)))
    assert x["b", -5::-1].shape == {"a": 2, "b": 0}
    assert x["b", []].shape == {"a": 2, "b": 0}


def test_slice_moves_the_start_so_that_the_piece_fits() -> None:
    x = axn.arange(axn.Axis("b", 5))
    assert x.slice("b", start=jnp.int32(4), length=3).tolist() == [2, 3, 4]
    assert x.slice("b", start=jnp.int32(-9), length=3).tolist() == [0, 1, 2]
    assert x.slice("b", start=-2, length=2).tolist() == [3, 4]
    assert x.slice("b", start=5, length=0).shape == {"b": 0}
    assert x.slice("b", start=axn.named(1, ()), length=0).shape == {"b": 0}


def test_an_ellipsis_and_no_index_are_the_array() -> None:
    x = axn.ones(axn.Axis("b", 3))
    assert x[...] is x
    assert_close(x[{}].array, x.array)


def test_the_gradient_of_a_gather_adds_up() -> None:
    x = axn.ones((axn.Axis("a", 2), axn.Axis("b", 3)))
    gradient = jax.grad(lambda x: x["b", axn.named([0, 0, 2], "i")].sum().scalar())(x)
    assert gradient.tolist() == [[2, 0, 1], [2, 0, 1]]


INPUT = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))

BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "x['embd', 0]",
        lambda x: x["embd", 0],
        AxisNotFoundError,
        "index: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x['embed', [0, 6]]",
        lambda x: x["embed", [0, 6]],
        AxisSizeError,
        "index: index 6 is out of range for embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "an array of NumPy",
        lambda x: jax.jit(lambda x: x["embed", np.array([-7, 0])])(x),
        AxisSizeError,
        "index: index -7 is out of range for embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "a slice out of range",
        lambda x: axn.slice(x, "embed", start=99, length=2),
        AxisSizeError,
        "slice: a piece of 2 from 99 does not fit into embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "a slice over the end",
        lambda x: jax.jit(lambda x: axn.slice(x, "embed", start=-1, length=2))(x),
        AxisSizeError,
        "slice: a piece of 2 from -1 does not fit into embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "x['embed', 6]",
        lambda x: x["embed", 6],
        AxisSizeError,
        "index: index 6 is out of range for embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "x['embed', -7]",
        lambda x: x["embed", -7],
        AxisSizeError,
        "index: index -7 is out of range for embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "x[{'batch': 0, 'emb': 1}]",
        lambda x: x[{"batch": 0, "emb": 1}],
        AxisNotFoundError,
        "index: no axis named 'emb'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x[axn.Axis('embed', 5), 0]",
        lambda x: x[axn.Axis("embed", 5), 0],
        AxisSizeError,
        "index: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "x['embed']",
        lambda x: x["embed"],
        OperandError,
        "index: an index is a dict, or pairs of an axis and a selector, not (str)\n"
        "  array has: batch=4, embed=6\n"
        '  hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]',
    ),
    (
        "x[0]",
        lambda x: x[0],
        OperandError,
        "index: an index is a dict, or pairs of an axis and a selector, not (int)\n"
        "  array has: batch=4, embed=6\n"
        '  hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]',
    ),
    (
        "x['embed', 0, 'batch']",
        lambda x: x["embed", 0, "batch"],
        OperandError,
        "index: an index is a dict, or pairs of an axis and a selector, not (str, int, str)\n"
        "  array has: batch=4, embed=6\n"
        '  hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]',
    ),
    (
        "x[0, 'embed']",
        lambda x: x[0, "embed"],
        OperandError,
        "index: an index is a dict, or pairs of an axis and a selector, not (int, str)\n"
        "  array has: batch=4, embed=6\n"
        '  hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]',
    ),
    (
        "x['embed', None]",
        lambda x: x["embed", None],
        OperandError,
        "index: cannot index axis 'embed' by NoneType\n  hint: use an int, a slice, or an array of integers",
    ),
    (
        "x['embed', 1.5]",
        lambda x: x["embed", 1.5],
        OperandError,
        "index: cannot index axis 'embed' by float\n  hint: use an int, a slice, or an array of integers",
    ),
    (
        "x['embed', True]",
        lambda x: x["embed", True],
        OperandError,
        "index: cannot index axis 'embed' by bool\n  hint: use an int, a slice, or an array of integers",
    ),
    (
        "x['embed', 'a']",
        lambda x: x["embed", "a"],
        OperandError,
        "index: cannot index axis 'embed' by str\n  hint: use an int, a slice, or an array of integers",
    ),
    (
        "x['embed', np.array([True, False])]",
        lambda x: x["embed", np.array([True, False])],
        OperandError,
        "index: the index over 'embed' must have an integer dtype, not bool\n"
        "  hint: use where() to choose by a mask, or compress() to select by one",
    ),
    (
        "x['embed', x > 0]",
        lambda x: x["embed", x > 0],
        OperandError,
        "index: the index over 'embed' must have an integer dtype, not bool\n"
        "  hint: use where() to choose by a mask, or compress() to select by one",
    ),
    (
        "x['embed', [[0], [1, 2]]]",
        lambda x: x["embed", [[0], [1, 2]]],
        OperandError,
        "index: the list over 'embed' cannot be converted to an array of integers\n"
        "  hint: its elements are ints or 0-d arrays",
    ),
    (
        "x['embed', 0:0]['embed', jnp.int32(0)]",
        lambda x: x["embed", 0:0]["embed", jnp.int32(0)],
        AxisSizeError,
        "index: axis 'embed' has no elements to read\n  array has: batch=4, embed=0",
    ),
    (
        "x['embed', 0:0].take('embed', axn.named([0, 1], 'i'))",
        lambda x: x["embed", 0:0].take("embed", axn.named([0, 1], "i")),
        AxisSizeError,
        "take: axis 'embed' has no elements to read\n  array has: batch=4, embed=0",
    ),
    (
        "x['embed', 0:0].at['embed', axn.dslice(0, 2)].get(fill_value=1)",
        lambda x: x["embed", 0:0].at["embed", axn.dslice(0, 2)].get(fill_value=1),
        AxisSizeError,
        "at: axis 'embed' has no elements to read\n  array has: batch=4, embed=0",
    ),
    (
        "x['embed', 0:0]['embed', axn.named([0, 0, 0, 0], 'batch')]",
        lambda x: x["embed", 0:0]["embed", axn.named([0, 0, 0, 0], "batch")],
        AxisSizeError,
        "index: axis 'embed' has no elements to read\n  array has: batch=4, embed=0",
    ),
    (
        "x['embed', 0:0].take('embed', 0, mode='wrap')",
        lambda x: x["embed", 0:0].take("embed", 0, mode="wrap"),
        AxisSizeError,
        "take: index 0 is out of range for embed=0\n  array has: batch=4, embed=0",
    ),
    (
        "x['embed', [[0, 1]]]",
        lambda x: x["embed", [[0, 1]]],
        OperandError,
        "index: the index over 'embed' has shape (1, 2), but no names\n"
        '  hint: name them: axn.named(index, ("a", "b"))',
    ),
    (
        "x['embed', np.zeros((1, 2), int)]",
        lambda x: x["embed", np.zeros((1, 2), int)],
        OperandError,
        "index: the index over 'embed' has shape (1, 2), but no names\n"
        '  hint: name them: axn.named(index, ("a", "b"))',
    ),
    (
        "x['embed', 0.5:]",
        lambda x: x["embed", 0.5:],
        OperandError,
        "index: the bounds of a slice over 'embed' must be ints, and its step not zero\n"
        "  hint: use axn.dslice(start, length), or x.slice(axis, start=..., length=...), where the start is traced",
    ),
    (
        "x['embed', axn.named([0, 1, 2], 'batch')]",
        lambda x: x["embed", axn.named([0, 1, 2], "batch")],
        AxisSizeError,
        "index: axis 'batch' has two sizes: 4 and 3\n"
        "  operand 1 has: batch=4\n"
        "  operand 2 has: batch=3\n"
        '  hint: if one is shifted by a place, cut the longer one: x["batch", :-1] or x["batch", 1:]',
    ),
    (
        "x['embed', axn.named([0, 1], 'i'), 'batch', axn.named([0, 1, 2], 'i')]",
        lambda x: x["embed", axn.named([0, 1], "i"), "batch", axn.named([0, 1, 2], "i")],
        AxisSizeError,
        "index: axis 'i' has two sizes: 2 and 3\n"
        "  operand 1 has: no axes\n"
        "  operand 2 has: i=2\n"
        "  operand 3 has: i=3\n"
        '  hint: if one is shifted by a place, cut the longer one: x["i", :-1] or x["i", 1:]',
    ),
    (
        "axn.index(x.array, {'embed': 0})",
        lambda x: axn.index(x.array, {"embed": 0}),
        OperandError,
        "index: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "x.take('embd', 0)",
        lambda x: x.take("embd", 0),
        AxisNotFoundError,
        "take: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x.take('embd', axn.named([0], 'i'))",
        lambda x: x.take("embd", axn.named([0], "i")),
        AxisNotFoundError,
        "take: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x.take('embed', 6)",
        lambda x: x.take("embed", 6),
        AxisSizeError,
        "take: index 6 is out of range for embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "x.take('embed', axn.named([0.5], 'i'))",
        lambda x: x.take("embed", axn.named([0.5], "i")),
        OperandError,
        "take: the index over 'embed' must have an integer dtype, not float32",
    ),
    (
        "x.take(axn.Axis('embed', 5), axn.named([0], 'i'))",
        lambda x: x.take(axn.Axis("embed", 5), axn.named([0], "i")),
        AxisSizeError,
        "take: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.take(x.array, 'embed', 0)",
        lambda x: axn.take(x.array, "embed", 0),
        OperandError,
        "take: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "x.slice('embd', length=2)",
        lambda x: x.slice("embd", length=2),
        AxisNotFoundError,
        "slice: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x.slice('embed', length=7)",
        lambda x: x.slice("embed", length=7),
        AxisSizeError,
        "slice: cannot cut 7 elements from embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "x.slice('embed', length=-1)",
        lambda x: x.slice("embed", length=-1),
        AxisSizeError,
        "slice: cannot cut -1 elements from embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "x.slice('embed', start='1', length=2)",
        lambda x: x.slice("embed", start="1", length=2),
        OperandError,
        "slice: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x["embed", 0, "embed", 1],
        lambda x: x[{"embed": 0, axn.Axis("embed", 6): 1}],
        lambda x: x["embed", [True, False]],
        lambda x: x["embed", [0.5]],
        lambda x: x["embed", ::0],
        lambda x: x["embed", axn.named([0, 1], "i").untag("i")],
        lambda x: axn.index(x, ("embed", 0)),
        lambda x: x.slice("embed", start=1.5, length=2),
        lambda x: x.slice("embed", start=axn.named([1], "i"), length=2),
        lambda x: x.slice("embed", length=2.5),
        lambda x: x.slice(("batch", "embed"), length=2),
        lambda x: axn.slice(x.array, "embed", length=2),
    ],
    ids=[
        "twice",
        "twice, Axis",
        "bools",
        "floats",
        "no step",
        "anonymous",
        "no mapping",
        "float start",
        "1-d start",
        "float length",
        "two axes",
        "no name, slice",
    ],
)
def test_bad_input_is_refused_in_the_words_of_the_library(call: Any) -> None:
    with pytest.raises((AxisError, OperandError), match=r"^(index|slice): "):
        call(INPUT)
