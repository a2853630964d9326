"""Sorting and choosing along an axis: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import (
    ArgumentError,
    AxisClashError,
    AxisError,
    AxisNotFoundError,
    AxisSizeError,
    BroadcastError,
    OperandError,
)
from axonym.ops import sorting
from tests.laws import Bulk, Row, SmoothBulk, Values, has_row_for_each


def row(
    name: str, axis: Any, at: int, reference: Any, oracle: Any, *, case: str = "", domain: str = "real", **options: Any
) -> Row:
    fn = getattr(sorting, name)
    return Row(
        name,
        lambda x: fn(x, axis, **options),
        ("abc",),
        lambda x: reference(x, at),
        "abc",
        lambda x: oracle(x, at),
        (domain,),
        case=case,
    )


def downwards(fn: Any) -> Any:
    return lambda x, at: fn(x, at, descending=True)


def sort_complex(x: jax.Array, at: int) -> jax.Array:
    return jnp.moveaxis(jnp.sort_complex(jnp.moveaxis(x, at, -1)), -1, at)


def chosen(
    name: str, axis: str, at: int, k: int, reference: Any, *, new: str = "", case: str = "", **options: Any
) -> Row:
    """Make a row of a function that chooses; numpy sorts stably, downwards where the largest are asked for."""
    fn, sign = getattr(sorting, name), 1 if "min" in name else -1

    def oracle(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        indices = np.argsort(sign * x, at, kind="stable").take(range(k), at).astype(np.int32)
        return np.take_along_axis(x, indices, at), indices

    def positional(x: jax.Array) -> list[jax.Array]:
        return [jnp.moveaxis(result, -1, at) for result in reference(jnp.moveaxis(x, at, -1), k)]

    out = "abc".replace(axis, new) if new else "abc"
    return Row(
        name,
        lambda x: fn(x, axis, k, new or None, **options),
        ("abc",),
        positional,
        (out, out),
        oracle,
        names=(lambda order: [tuple(order.replace(axis, new))] * 2) if new else None,
        case=case,
    )


def lexsort_by_name(x: axn.NamedArray, y: axn.NamedArray) -> axn.NamedArray:
    return axn.lexsort((x, y), "a")


SMOOTH = [
    row("partition", "a", 0, jnp.sort, np.sort, kth=2),
    row("sort", "a", 0, jnp.sort, np.sort),
    chosen("top_k", "a", 0, 3, lax.top_k),
]
STEPS = [
    chosen("approx_max_k", "a", 0, 2, lax.approx_max_k),
    chosen("approx_min_k", "c", 2, 2, lax.approx_min_k, new="k"),
    row("argpartition", "c", 2, jnp.argsort, np.argsort, kth=-1),
    row("argsort", "c", 2, jnp.argsort, np.argsort),
    Row(
        "lexsort",
        lexsort_by_name,
        ("abc", "ca"),
        lambda x, y: jnp.lexsort((x, jnp.broadcast_to(y.T[:, None], x.shape)), axis=0),
        "abc",
        lambda x, y: np.lexsort((x, np.broadcast_to(y.T[:, None], x.shape)), axis=0),
        ("real", "index"),
    ),
    row("sort_complex", "a", 0, sort_complex, lambda x, at: np.sort(x + 0j, at)),
]
VARIANTS = [
    row("sort", "c", 2, downwards(jnp.sort), lambda x, at: -np.sort(-x, at), case="descending", descending=True),
    row("sort", axn.Axis("a", 4), 0, jnp.sort, np.sort, case="Axis, unstable", stable=False),
    row("sort", "a", 0, jnp.sort, np.sort, case="NaN", domain="special"),
    row(
        "argsort", "c", 2, downwards(jnp.argsort), lambda x, at: np.argsort(-x, at), case="descending", descending=True
    ),
    row("sort_complex", "a", 0, jnp.sort, np.sort, case="complex", domain="complex"),
    row("partition", "a", 0, jnp.sort, np.sort, case="NaN", domain="special", kth=1),
    chosen("top_k", "c", 2, 2, lax.top_k, new="k", case="renamed"),
    chosen("top_k", "b", 1, 2, lax.top_k, case="all"),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + STEPS, sorting, without=["searchsorted"])  # test_searchsorted.py


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(SmoothBulk):
    """What the engine does for all, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Bulk):
    """What the engine does for all."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axis."""


@pytest.mark.parametrize("kth", [0, 3, -1])
def test_a_partition_is_one(kth: int) -> None:
    values = np.random.default_rng(kth + 1).integers(0, 5, (3, 6))
    x = axn.named(values, ("batch", "embed"))
    for result in (x.partition("embed", kth).array, np.take_along_axis(values, x.argpartition("embed", kth).array, 1)):
        pivot = np.partition(values, kth, 1)[:, kth][:, None]
        np.testing.assert_array_equal(np.sort(result), np.sort(values))
        assert (result[:, kth][:, None] == pivot).all()
        assert (result[:, :kth] <= pivot).all()
        assert (result[:, kth:] >= pivot).all()


def test_equal_elements_keep_their_order() -> None:
    x = axn.named([1, 0, 1, 0], "a")
    np.testing.assert_array_equal(x.argsort("a").array, [1, 3, 0, 2])
    np.testing.assert_array_equal(x.argsort("a", descending=True).array, [0, 2, 1, 3])
    np.testing.assert_array_equal(x.top_k("a", 3)[1].array, [0, 2, 1])
    for given, wanted in zip(x.top_k("a", axn.Axis("best", 2)), x.top_k("a", 2, "best"), strict=True):
        assert given.axes == (axn.Axis("best", 2),)
        np.testing.assert_array_equal(given.array, wanted.array)


def test_nothing_can_be_chosen() -> None:
    values, indices = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3))).top_k("embed", 0, axn.Axis("none", 0))
    assert values.shape == indices.shape == {"batch": 4, "none": 0}


AXES = "  array has: batch=4, embed=3"


def test_the_axis_of_the_chosen_says_how_many() -> None:
    x = axn.named([[1.0, 3.0, 2.0]], ("batch", "vocab"))
    for found in (axn.top_k(x, "vocab", axn.Axis("beam", 2)), axn.top_k(x, "vocab", np.int64(2), "beam")):
        assert [(part.names, part.tolist()) for part in found] == [
            (("batch", "beam"), [[3.0, 2.0]]),
            (("batch", "beam"), [[1, 2]]),
        ]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: x.sort("bach"),
            AxisNotFoundError,
            f"sort: no axis named 'bach'\n{AXES}\n  hint: did you mean 'batch'?",
        ),
        (
            lambda x: x.argsort(0),
            OperandError,
            'argsort: 0 is a position, but axes have names\n  array has: batch=4, embed=3\n  hint: write "batch"',
        ),
        (
            lambda x: x.sort(("batch", "embed")),
            AxisError,
            f"sort: needs one axis, got 2\n{AXES}\n  hint: flatten the axes first: x.flatten_axes(...)",
        ),
        (
            lambda x: axn.sort(3.0, "embed"),
            OperandError,
            "sort: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: x.partition("embed", 3),
            AxisSizeError,
            "partition: position 3 lies outside of axis 'embed', which has size 3",
        ),
        (
            lambda x: x.argpartition("embed", -4),
            AxisSizeError,
            "argpartition: position -4 lies outside of axis 'embed', which has size 3",
        ),
        (
            lambda x: x.top_k("embd", 2),
            AxisNotFoundError,
            f"top_k: no axis named 'embd'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        *(
            (
                lambda x, call=call: call(x, "embed", 2.0),
                OperandError,
                f"{call.__name__}: {what} must be a static integer, not float",
            )
            for call, what in (
                (axn.top_k, "k"),
                (axn.approx_max_k, "k"),
                (axn.partition, "kth"),
                (axn.argpartition, "kth"),
            )
        ),
        (
            lambda x: jax.jit(lambda k: axn.top_k(x, "embed", k))(2),
            OperandError,
            "top_k: k must be a static integer, not a plain array",
        ),
        (
            lambda x: x.top_k("embed", 4),
            AxisSizeError,
            "top_k: cannot choose 4 elements of axis 'embed', which has size 3",
        ),
        (
            lambda x: axn.approx_max_k(x, "embed", -1),
            AxisSizeError,
            "approx_max_k: cannot choose -1 elements of axis 'embed', which has size 3",
        ),
        (
            lambda x: axn.approx_min_k(x, "embed", axn.Axis("k", 2), "best"),
            OperandError,
            "approx_min_k: k must be a static integer, not Axis",
        ),
        (
            lambda x: x.top_k("embed", 2, axn.Axis("k", 3)),
            AxisSizeError,
            "top_k: axis 'k' was given with size 3, but 2 elements are chosen",
        ),
        (
            lambda x: x.top_k("embed", 2, "batch"),
            AxisClashError,
            f"top_k: in the result, axis 'batch' would appear twice\n{AXES}",
        ),
        (
            lambda x: axn.lexsort((), "embed"),
            ArgumentError,
            "lexsort: there are no keys to sort by",
        ),
        (
            lambda x: axn.lexsort((x, x["batch", :2]), "embed"),
            AxisSizeError,
            "lexsort: axis 'batch' has two sizes: 4 and 2\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: batch=2, embed=3\n"
            '  hint: if they are the same axis, cut the longer one, x["batch", :2]; '
            'if not, rename one: x.rename({"batch": ...})',
        ),
        (
            lambda x: axn.lexsort((x, x.rename({"batch": "time"})), "embed"),
            BroadcastError,
            "lexsort: no operand has the axes of all others\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: time=4, embed=3\n"
            "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(time)",
        ),
        (
            lambda x: axn.lexsort((x, x["embed", 0]), "embed"),
            AxisNotFoundError,
            "lexsort: operand 2 has no axis named 'embed'\n  operand 1 has: batch=4, embed=3\n  operand 2 has: batch=4",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3))))
    assert str(caught.value) == text


def test_a_negative_nan_is_among_the_largest_too() -> None:
    values, places = axn.top_k(axn.named(np.float32([1.0, -np.nan, 3.0]), "x"), "x", 2)
    np.testing.assert_array_equal(values.array, [np.nan, 3])
    np.testing.assert_array_equal(places.array, [1, 2])
