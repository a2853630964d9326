"""Functions along one axis, or along several as one."""

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.engine import along
from axonym.errors import AxisError, OperandError

NUMBERS = np.arange(24.0).reshape(2, 3, 4) % 7


def x() -> axn.NamedArray:
    return axn.named(NUMBERS, ("a", "b", "c"))


def test_the_axis_stays_in_its_place() -> None:
    found = along.along(jnp.cumsum, x(), "b")
    assert found.names == ("a", "b", "c")
    np.testing.assert_array_equal(found.array, np.cumsum(NUMBERS, 1))


def test_the_axis_may_have_another_name_and_size_after_it() -> None:
    found = along.along_with(jnp.diff, x(), "b", to=axn.Axis("step", 2))
    assert found.names == ("a", "step", "c")
    np.testing.assert_array_equal(found.array, np.diff(NUMBERS, axis=1))


def test_a_search_along_several_axes_counts_in_their_order() -> None:
    found = along.search(jnp.argmax, x(), ("c", "b"))
    expected = np.moveaxis(NUMBERS, 2, 1).reshape(2, 12).argmax(1)
    np.testing.assert_array_equal(found.array, expected)


def test_several_axes_are_refused_where_one_must_stay() -> None:
    with pytest.raises(AxisError) as caught:
        along.along(jnp.cumsum, x(), ("a", "b"))
    assert str(caught.value) == (
        "cumsum: needs one axis, got 2\n  array has: a=2, b=3, c=4\n  hint: flatten the axes first: x.flatten_axes(...)"
    )


def test_an_array_without_names_is_refused() -> None:
    with pytest.raises(OperandError, match="cumsum: expected a NamedArray, got a plain array"):
        along.along(jnp.cumsum, NUMBERS, "b")
