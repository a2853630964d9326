"""Integers in a type with room for what is computed of them, however JAX promotes; nothing here mixes ranks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import linalg
from axonym.base.dtypes import widen_positions
from tests.laws import program

Bins = axn.Axis("bin", 2)
XYZ = axn.named([1.0, 2.0, 3.0], "b")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_integers_are_converted(dtype: Any) -> None:
    for positions in (dtype(100), np.array([100], dtype), jnp.array([100], dtype), axn.named(np.array(100, dtype), ())):
        assert widen_positions(positions).dtype == np.int32
        assert np.ravel(np.asarray(widen_positions(positions))).tolist() == [100]


@pytest.mark.parametrize(
    "positions", [7, 0.5, "a", jnp.int32(7), jnp.uint32(7), np.int64(7), jnp.float16(7), np.bool_(1)]
)
def test_all_else_stays_as_it_is(positions: Any) -> None:
    assert widen_positions(positions) is positions


@pytest.mark.parametrize("order", [0, 1, 3, -1, np.inf])
def test_the_norm_of_integers_is_a_float(order: float) -> None:
    values = np.array([[1, 2, 3], [4, -5, 6]], np.int32)
    for norm in (
        linalg.norm(axn.named(values, ("a", "b")), "b", order),
        linalg.vector_norm(axn.named(values, ("a", "b")), "b", ord=order),
    ):
        assert norm.dtype == np.float32
        np.testing.assert_allclose(norm.array, np.linalg.norm(values.astype(float), order, axis=1), rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: axn.average(x, "b", x["a", 0]),
        lambda x: axn.sort_complex(x, "b"),
        lambda x: axn.histogram(x, Bins, "b"),
        lambda x: axn.segment_mean(x, axn.named([0, 1, 1], "b"), Bins),
        lambda x: linalg.cross(axn.zeros({"c": 5, "a": 2, "b": 3}), x.astype(float), "b"),
        lambda x: axn.polyval(axn.zeros({"c": 4, "b": 3}), x.astype(float), axis="c"),
        lambda x: axn.polyval(axn.zeros({"c": 4, "a": 2, "b": 3}), XYZ, axis="c"),
        lambda x: axn.gradient(x.astype(float), "b", spacing=XYZ),
        lambda x: axn.trapezoid(x.astype(float), "b", x=XYZ),
    ],
)
def test_integers_and_ranks_need_no_promotion(call: Callable[[axn.NamedArray], Any]) -> None:
    x = axn.named(jnp.ones((2, 3), jnp.int32), ("a", "b"))
    _, expected = program(call, x)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert program(call, x)[1] == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_integers_become_the_floats_that_jnp_makes_of_them(dtype: Any) -> None:
    with jax.enable_x64(True):
        values = jnp.array([[3, 4, 2**7]], dtype)
        x = axn.named(values, ("a", "b"))
        pairs: list[Any] = [
            (lambda: axn.average(x, "b", x["a", 0]), lambda: jnp.average(values, 1, values[0])),
            (lambda: axn.sort_complex(x, "b"), lambda: jnp.sort_complex(values)),
            (lambda: linalg.norm(x, "b"), lambda: jnp.linalg.norm(values, axis=1)),
            (lambda: linalg.norm(x, ("a", "b"), "fro"), lambda: jnp.linalg.norm(values, "fro")),
        ]
        for call, reference in pairs:
            assert jax.eval_shape(call).dtype == jax.eval_shape(reference).dtype
