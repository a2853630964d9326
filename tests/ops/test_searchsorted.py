"""Places in a sorted axis: the laws of operations for `searchsorted`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, OperandError
from tests.laws import Bulk, Row, Values

Bin, Other = axn.make_axes(p=5, q=3)


STEPS = [
    Row(
        "searchsorted",
        lambda a, v: axn.searchsorted(axn.sort(a, "i"), v, "i"),
        ("ai", "abc"),
        jax.vmap(lambda a, v: jnp.searchsorted(jnp.sort(a), v)),
        "abc",
        lambda a, v: np.stack([np.searchsorted(np.sort(a), v) for a, v in zip(a, v, strict=True)]).astype(np.int32),
        ("int", "int"),
        lambda a, v: v,
        any_size=False,
        speaker="(sort|searchsorted)",
    ),
]


# These run the same code.
VARIANTS = [
    Row(
        "searchsorted",
        lambda a, v: axn.searchsorted(a, v, side="right", sorter=axn.argsort(a, "i"), method="sort"),
        ("i", "abc"),
        lambda a, v: jnp.searchsorted(jnp.sort(a), v, side="right"),
        "abc",
        lambda a, v: np.searchsorted(np.sort(a), v, side="right").astype(np.int32),
        ("int", "int"),
        lambda a, v: v,
        case="sorter",
    ),
]


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Bulk):
    """The laws of lifted functions."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other axes."""


@pytest.mark.parametrize("method", ["scan", "scan_unrolled", "sort", "compare_all"])
def test_every_method_finds_the_same(method: str) -> None:
    a, v = axn.named([[1, 3, 5], [2, 2, 2]], ("b", "i")), axn.named([[0, 3, 6], [2, 3, 1]], ("b", "j"))
    assert axn.searchsorted(a, v, "i", method=method).tolist() == [[0, 1, 3], [0, 3, 0]]


X = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))


EDGES = axn.named([0.0, 1.0, 2.0], "edge")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: axn.searchsorted(EDGES, X, side="middle"),
            ArgumentError,
            "searchsorted: the side must be one of left, right, not 'middle'",
        ),
        (
            lambda: axn.searchsorted(EDGES, X, method="hash"),
            ArgumentError,
            "searchsorted: the method must be one of scan, scan_unrolled, sort, compare_all, not 'hash'",
        ),
        (
            lambda: axn.searchsorted(EDGES, X, sorter=EDGES),
            OperandError,
            "searchsorted: the sorter must have an integer dtype, not float32",
        ),
        (
            lambda: axn.searchsorted(np.ones(3), X),
            OperandError,
            "searchsorted: expected a NamedArray, got a plain array\n"
            "  its shape: (3,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
