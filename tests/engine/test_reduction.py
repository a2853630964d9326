"""Functions that remove axes, or compare elements along them, perhaps under a mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.engine import reduction
from axonym.errors import OperandError

NUMBERS = np.arange(12.0).reshape(3, 4)


def x() -> axn.NamedArray:
    return axn.named(NUMBERS, ("a", "b"))


def test_a_mask_may_lack_axes_and_have_them_in_any_order() -> None:
    rows = axn.named(np.array([True, False, True]), "a")
    found = reduction.reduction(jnp.sum, x(), "b", rows)
    np.testing.assert_array_equal(found.array, np.where([[True], [False], [True]], NUMBERS, 0).sum(1))
    even = axn.named(NUMBERS.T % 2 == 0, ("b", "a"))
    found = reduction.reduction(jnp.sum, x(), ("b", "a"), even)
    assert found.array == NUMBERS[NUMBERS % 2 == 0].sum()


def test_numbers_beside_the_array_are_operands() -> None:
    def shares(array: jax.Array, power: float, axis: tuple[int, ...]) -> jax.Array:
        return array**power / (array**power).sum(axis, keepdims=True)

    found = reduction.normalization(shares, x() + 1, "b", None, 2.0)
    expected = (NUMBERS + 1) ** 2
    np.testing.assert_allclose(found.array, expected / expected.sum(1, keepdims=True), rtol=1e-6)
    assert found.names == ("a", "b")


def test_a_mask_without_names_is_refused() -> None:
    with pytest.raises(OperandError) as caught:
        reduction.reduction(jnp.sum, x(), "b", np.ones(4, bool))
    assert str(caught.value).startswith("sum: the mask has shape (4,) and no names\n  array has: a=3, b=4\n")


def test_a_mask_with_more_anonymous_dimensions_is_refused() -> None:
    masks = axn.NamedArray(np.ones((2, 3, 4), bool), ("a", "b"))
    for call in (axn.softmax, axn.log_softmax, axn.mean, axn.logsumexp):
        with pytest.raises(OperandError) as caught:
            call(x(), "b", where=masks)
        assert str(caught.value).endswith(
            "the mask has more anonymous dimensions than the array\n  array has: a=3, b=4\n"
            "  mask has: anonymous (2,), a=3, b=4\n  hint: name them: mask.tag(...)"
        )
    several = x().broadcast_axis(axn.Axis("c", 2)).untag("c")
    np.testing.assert_array_equal(axn.softmax(several, "b", where=masks).array[1], axn.softmax(x(), "b").array)
