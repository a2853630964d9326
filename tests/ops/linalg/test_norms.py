"""Norms at zero, of nothing and of numbers of NumPy; laws and errors are in `test_linalg.py`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisSizeError
from axonym.ops import linalg
from tests.ops.linalg.matrices import draw, same


def test_numbers_of_numpy_serve_as_well() -> None:
    x, square = draw("row"), draw("row", "column")
    same(linalg.vector_norm(x, "row", ord=np.int64(3)), linalg.vector_norm(x, "row", ord=3))
    power = linalg.matrix_power(square, "row", "column", np.int64(3))
    np.testing.assert_allclose(power.array, np.linalg.matrix_power(square.array, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", [None, 1.5, 2, 3])
def test_the_gradient_of_the_norm_of_zeros_is_zero(order: Any) -> None:
    x = axn.named([[0.0, 0.0], [3.0, -4.0]], ("row", "column"))
    gradient = jax.grad(lambda x: linalg.norm(x, "column", ord=order).sum().scalar())(x).array
    expected = jax.grad(lambda row: jnp.linalg.norm(row, ord=order))(x.array[1])
    np.testing.assert_allclose(gradient, [np.zeros(2), expected], rtol=1e-6)
    of_matrix = jax.grad(lambda x: linalg.matrix_norm(x, "row", "column").scalar())(x * 0).array
    np.testing.assert_array_equal(of_matrix, np.zeros((2, 2)))


def test_the_least_of_no_elements_is_refused() -> None:
    with pytest.raises(AxisSizeError) as caught:
        linalg.norm(axn.zeros(axn.make_axes(batch=2, time=0)), "time", ord=-np.inf)
    assert str(caught.value) == (
        "norm: there is no norm of no elements: axis 'time' has size 0\n  array has: batch=2, time=0"
    )
