"""Solutions and inverses have the names that the maps have; laws and errors are in `test_linalg.py`."""

import numpy as np
import pytest

import axonym as axn
from axonym.ops import linalg
from tests.ops.linalg.matrices import draw, same


@pytest.mark.parametrize("imaginary", [False, True], ids=["real", "complex"])
class TestNames:
    """A matrix over (row, column) maps vectors over column to vectors over row."""

    def test_a_matrix_maps_the_solution_to_the_right_hand_side(self, imaginary: bool) -> None:
        a, b = draw("row", "batch", "column", imaginary=imaginary), draw("extra", "row", seed=1, imaginary=imaginary)
        x = linalg.solve(a, b, "row", "column")
        assert x.names == ("batch", "column", "extra")
        same(a.dot(x, axis="column"), b.broadcast_axis(axn.Axis("batch", 2)))

    def test_the_inverse_maps_the_right_hand_side_to_the_solution(self, imaginary: bool) -> None:
        a, b = draw("row", "batch", "column", imaginary=imaginary), draw("batch", "row", seed=1, imaginary=imaginary)
        solution = linalg.solve(a, b, "row", "column")
        for inverse in (linalg.inv, linalg.pinv):
            same(inverse(a, "row", "column").dot(b, axis="row"), solution)
            assert inverse(a, "row", "column").names == ("column", "batch", "row")
        element = linalg.inv(a, "row", "column")["row", 0]["column", 2]["batch", 1]
        np.testing.assert_allclose(element.array, np.linalg.inv(a.array[:, 1])[2, 0], rtol=1e-3)

    def test_the_inverse_of_the_inverse_is_the_matrix(self, imaginary: bool) -> None:
        a = draw("row", "column", imaginary=imaginary)
        same(linalg.inv(linalg.inv(a, "row", "column"), "column", "row"), a)

    def test_a_power_keeps_the_names(self, imaginary: bool) -> None:
        a = draw("row", "column", imaginary=imaginary)
        swap = {"row": "column", "column": "row"}
        same(linalg.matrix_power(a, "row", "column", -1), linalg.inv(a, "row", "column").rename(swap))

    def test_least_squares_leave_what_is_orthogonal_to_the_columns(self, imaginary: bool) -> None:
        a, b = draw("tall", "column", imaginary=imaginary), draw("tall", "extra", seed=1, imaginary=imaginary)
        x, rest, rank, _ = linalg.lstsq(a, b, "tall", "column", "k")
        error = a.dot(x, axis="column") - b
        np.testing.assert_allclose(linalg.vecdot(a, error, "tall").array, np.zeros((3, 4)), atol=1e-4)
        same(rest, linalg.vector_norm(error, "tall") ** 2)
        assert rank.item() == 3

    def test_swapping_names_solves_with_the_transpose(self, imaginary: bool) -> None:
        a, b = draw("row", "column", imaginary=imaginary), draw("column", seed=1, imaginary=imaginary)
        x = linalg.solve_triangular(a, b, "column", "row")
        triangle = axn.tril(a, "row", "column")
        same(triangle.dot(x, axis="row"), b)


def test_several_axes_make_the_tensor_functions() -> None:
    a, b = draw("p", "q", "batch", "six"), draw("p", "q", seed=1)
    matrix = np.moveaxis(np.asarray(a.array), 2, 0)
    x = linalg.solve(a, b, ("p", "q"), "six")
    assert x.names == ("batch", "six")
    for n in range(2):
        np.testing.assert_allclose(x.array[n], np.linalg.tensorsolve(matrix[n], b.array), rtol=1e-3)
        inverse = linalg.inv(a["batch", n], ("p", "q"), "six")
        assert inverse.names == ("six", "p", "q")
        np.testing.assert_allclose(inverse.array, np.linalg.tensorinv(matrix[n], 2), rtol=1e-3, atol=1e-4)


def test_plain_right_hand_sides_and_matrices_have_just_the_axes_of_the_equation() -> None:
    a, b = draw("row", "column"), draw("row", seed=1)
    expected = linalg.solve(a, b, "row", "column")
    same(linalg.solve(a, np.asarray(b.array), "row", "column"), expected)
    same(linalg.solve(a.array, b, "row", "column"), expected)
