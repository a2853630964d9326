"""Factors of matrices have the names of the matrix; laws and errors are in `test_linalg.py`."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.ops import linalg
from tests.ops.linalg.matrices import draw, same


@pytest.mark.parametrize("imaginary", [False, True], ids=["real", "complex"])
class TestNames:
    """The factors give the matrix back, by name."""

    def test_singular_vectors_are_orthonormal_and_give_the_matrix_back(self, imaginary: bool) -> None:
        a = draw("batch", "tall", "column", imaginary=imaginary)
        u, s, vh = linalg.svd(a, "tall", "column", axn.Axis("k", 3))
        same((u * s).dot(vh, axis="k"), a)
        for vectors, axis in ((u, "tall"), (vh, "column")):
            gram = linalg.vecdot(vectors, vectors.rename({"k": "l"}), axis).rearrange(("batch", "k", "l"))
            np.testing.assert_allclose(gram.array, np.broadcast_to(np.eye(3), (2, 3, 3)), atol=1e-5)
        same(linalg.svdvals(a, "tall", "column", "k"), s)
        u, s, vh = linalg.svd(a, "tall", "column", "k", full_matrices=True)
        assert (u.axes[-1].size, s.axes[-1].size, vh.axes[-2].size) == (5, 3, 3)

    @pytest.mark.parametrize(("mode", "size"), [("reduced", 3), ("complete", 5)])
    def test_qr_is_orthonormal_times_triangular(self, imaginary: bool, mode: Any, size: int) -> None:
        a = draw("column", "tall", imaginary=imaginary)
        q, r = linalg.qr(a, "tall", "column", axn.Axis("k", size), mode=mode)
        same(q.dot(r, axis="k"), a)
        np.testing.assert_allclose(linalg.vecdot(q, q.rename({"k": "l"}), "tall").array, np.eye(size), atol=1e-5)
        np.testing.assert_allclose(r.array, np.triu(r.array), atol=1e-6)

    def test_eigenvectors_are_multiplied_with_their_values(self, imaginary: bool) -> None:
        half = draw("row", "k", imaginary=imaginary)
        hermitian = linalg.vecdot(half.rename({"row": "column"}), half, "k")
        w, v = linalg.eigh(hermitian, "row", "column", "k")
        same(hermitian.dot(v.rename({"row": "column"}), axis="column"), v * w)
        same(linalg.eigvalsh(hermitian, "row", "column", "k"), w)
        w, v = linalg.eig(half, "row", "k", "l")
        same(half.astype(jnp.complex64).dot(v.rename({"row": "k"}), axis="k"), v * w)
        assert linalg.eigh(hermitian, "row", "column", "column")[1].names == ("row", "column")

    def test_a_cholesky_factor_solves_and_gives_the_matrix_back(self, imaginary: bool) -> None:
        half, b = draw("row", "k", imaginary=imaginary), draw("row", seed=1, imaginary=imaginary)
        a = linalg.vecdot(half.rename({"row": "column"}), half, "k") + axn.eye(
            axn.Axis("row", 3), axn.Axis("column", 3)
        )
        for upper in (False, True):
            factor = linalg.cholesky(a, "row", "column", upper=upper)
            same(linalg.cho_solve(factor, b, "row", "column", upper=upper), linalg.solve(a, b, "row", "column"))
        lower = linalg.cholesky(a, "row", "column").rename({"column": "k"})
        same(linalg.vecdot(lower.rename({"row": "column"}), lower, "k"), a)
