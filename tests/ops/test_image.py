"""Images over named axes: laws over one row per function."""

import jax
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisNotFoundError, AxisSizeError
from axonym.ops import image
from tests.laws import Row, SmoothBulk, Values, has_row_for_each


def resized_by_two(x: np.ndarray) -> np.ndarray:
    """Interpolate along the first axis: each new element is a quarter from an old one, towards its neighbour."""
    before, after = np.concatenate([x[:1], x[:-1]]), np.concatenate([x[1:], x[-1:]])
    pairs = np.stack([0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after], 1)
    return pairs.reshape(-1, *x.shape[1:])


ROWS = [
    Row(
        "resize",
        lambda x: axn.image.resize(x, {"a": 8}),
        ("abc",),
        lambda x: jax.image.resize(x, (2 * x.shape[0], *x.shape[1:]), "linear"),
        "abc",
        resized_by_two,
        any_size=False,
    ),
]


def with_method(method: str) -> Row:
    axes = (axn.Axis("c", 2), axn.Axis("a", 7))
    return Row(
        "resize",
        lambda x: axn.image.resize(x, axes, method, antialias=False),
        ("abc",),
        lambda x: jax.image.resize(x, (7, x.shape[1], 2), method, antialias=False),
        "abc",
        case=f"two axes, {method}",
    )


VARIANTS = [with_method("nearest"), with_method("cubic")]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS, image)


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestLaws(SmoothBulk):
    """The laws of lifted functions."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Other methods, and several axes."""


def test_bad_input_is_explained() -> None:
    x = axn.ones(axn.make_axes(height=4, width=6))
    with pytest.raises(ArgumentError) as caught:
        axn.image.resize(x, {"height": 2}, "bilinear")
    assert str(caught.value) == (
        "resize: unknown method 'bilinear'\n"
        "  methods: nearest, linear, cubic, lanczos3, lanczos5\n"
        "  hint: did you mean 'linear'?"
    )
    with pytest.raises(AxisNotFoundError, match="resize: no axis named 'hight'"):
        axn.image.resize(x, {"hight": 2})
    with pytest.raises(AxisSizeError) as caught:
        axn.image.resize(x["height", :0], {"height": 2})
    assert str(caught.value) == "resize: axis 'height' has no elements to resample\n  array has: height=0, width=6"
