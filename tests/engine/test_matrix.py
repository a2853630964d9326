"""The engine of linear algebra: several axes for rows and columns, right-hand sides, dimensions without names."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import axonym as axn
from axonym.engine.matrix import apply_to_matrices
from axonym.errors import AxisClashError
from tests.laws import placed


def _transpose(matrix: jax.Array) -> jax.Array:
    return jnp.swapaxes(matrix, -1, -2)


def _multiply(matrix: jax.Array, sides: jax.Array, scale: Any = 1) -> tuple[jax.Array, jax.Array]:
    assert matrix.ndim <= sides.ndim, "vectors would be taken for matrices"
    return scale * (jnp.swapaxes(matrix, -1, -2) @ sides), jnp.sum(sides, -2)


def multiply(a: Any, b: Any, row: Any, column: Any, *scale: Any) -> tuple[axn.NamedArray, axn.NamedArray]:
    """Return what columns say of rows: the product over `row`, and the sum of the right-hand sides."""
    return apply_to_matrices(_multiply, [a, b, *scale], row, column, ("CE", "E"))


SIZES = {"batch": 4, "p": 2, "q": 3, "c": 5, "d": 2, "extra": 3, "more": 2}


def draw(*names: str) -> axn.NamedArray:
    shape = tuple(SIZES[name] for name in names)
    values = np.random.default_rng(len(names)).normal(size=shape).astype(np.float32)
    return axn.named(jax.device_put(values), names)


@pytest.mark.parametrize(
    ("a", "b", "row", "column"),
    [
        (("p", "c"), ("p",), "p", "c"),
        (("p", "c"), ("p", "extra"), "p", "c"),
        (("batch", "p", "c"), ("extra", "p", "batch"), "p", "c"),
        (("c", "batch", "p"), ("p",), "p", "c"),
        (("batch", "p", "q", "c"), ("q", "p", "extra", "more"), ("p", "q"), "c"),
        (("q", "c", "d", "p"), ("extra", "q", "p"), ("q", "p"), ("d", "c")),
        (("batch", "c"), ("batch",), (), "c"),
    ],
)
def test_products_come_out_by_name(a: Any, b: Any, row: Any, column: Any) -> None:
    matrix, sides = draw(*a), draw(*b)
    product, total = multiply(matrix, sides, row, column, 2.0)
    expected = 2 * matrix.dot(sides, axis=row)
    assert set(product.names) == set(expected.names)
    np.testing.assert_allclose(product.array, expected.rearrange(product.names).array, rtol=1e-5, atol=1e-5)
    assert set(total.names) == set(product.names) - set(column)


def test_several_axes_swap_in_the_order_given() -> None:
    x = draw("q", "c", "batch", "p")
    result = apply_to_matrices(_transpose, [x], ("p", "q"), "c", "CR")
    assert result.names == ("batch", "c", "p", "q")
    np.testing.assert_array_equal(result.array, x.rearrange(result.names).array)


def test_dimensions_without_names_are_batch_dimensions() -> None:
    a, b = draw("batch", "p", "c"), draw("batch", "p", "extra")
    expected = a.dot(b, axis="p")
    for one, other in ((a.untag("batch"), b.untag("batch")), (a["batch", 0], b.untag("batch"))):
        result = multiply(one, other, "p", "c")[0]
        assert result.names == ("c", "extra")
        assert result.array.shape == (4, 5, 3)
    np.testing.assert_allclose(
        multiply(a.untag("batch"), b.untag("batch"), "p", "c")[0].array, expected.array, rtol=1e-5
    )
    result = multiply(a.untag("batch"), b["batch", 0], "p", "c")[0]
    np.testing.assert_allclose(result.array, a.dot(b["batch", 0], axis="p").array, rtol=1e-5, atol=1e-6)


def test_batch_axes_stay_where_they_are_on_a_mesh(explicit_mesh: jax.sharding.Mesh) -> None:
    a, b = draw("batch", "p", "c"), draw("p", "batch", "extra")
    expected = multiply(a, b, "p", "c")[0]
    with jax.set_mesh(explicit_mesh):
        layout = {"batch": "data", "p": "model"}
        result = multiply(placed(a, explicit_mesh, layout), placed(b, explicit_mesh, layout), "p", "c")[0]
        assert jax.typeof(result.array).sharding.spec == PartitionSpec("data", None, None)
    np.testing.assert_allclose(result.array, expected.array, rtol=1e-5)


def test_the_axis_of_the_unknowns_is_that_of_the_matrix_alone() -> None:
    with pytest.raises(AxisClashError) as caught:
        multiply(np.ones((2, 5)), draw("p", "c"), "p", "c")
    assert str(caught.value) == (
        "multiply: both operands have axis 'c', which is the axis of the unknowns\n"
        "  operand 2 has: p=2, c=5\n"
        '  hint: rename that of the second operand: b.rename({"c": "c_2"})'
    )
