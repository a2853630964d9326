"""NaN is the largest and the smallest element of an array, on however many devices it lies."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from tests.laws import count_equations

SEGMENT = axn.Axis("segment", 3)
NUMBERS = np.arange(16) % 3
IDS = axn.named(NUMBERS, "a")


def in_segments(values: np.ndarray, choose: Callable[..., Any], start: float) -> np.ndarray:
    return np.stack([choose(values[np.equal(NUMBERS, i)], initial=start) for i in range(3)])


# by name, and in numpy
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "max": (axn.max, np.max),
    "min": (axn.min, np.min),
    "ptp": (axn.ptp, np.ptp),
    "max, masked": (lambda x: axn.max(x, where=x != 3, initial=0), np.max),
    "norm": (lambda x: axn.linalg.vector_norm(x, "a", ord=np.inf), np.max),
    "least norm": (lambda x: axn.linalg.vector_norm(x, "a", ord=-np.inf), np.min),
    "matrix norm": (
        lambda x: axn.linalg.matrix_norm(x.unflatten_axis("a", {"row": 8, "column": 2}), "row", "column", ord=1),
        lambda x: np.linalg.norm(x.reshape(8, 2), ord=1),
    ),
    "segments": (lambda x: axn.segment_max(x, IDS, SEGMENT), lambda x: in_segments(x, np.max, -np.inf)),
    "segments, least": (lambda x: axn.segment_min(x, IDS, SEGMENT), lambda x: in_segments(x, np.min, np.inf)),
    "updates": (lambda x: axn.zeros(SEGMENT).at["segment", IDS].max(x), lambda x: in_segments(x, np.max, 0)),
    "least updates": (lambda x: axn.full(SEGMENT, 9.0).at["segment", IDS].min(x), lambda x: in_segments(x, np.min, 9)),
    "edges": (
        lambda x: axn.histogram_bin_edges(x, axn.Axis("bin", 2)),
        lambda x: np.linspace(x.min(), x.max(), 3),
    ),
}


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh", "mixed_mesh"])
def test_devices_do_not_lose_nan(kind: str, request: pytest.FixtureRequest) -> None:
    values = np.arange(16, dtype=np.float32)
    with_nan = np.where(values == 5, np.float32(np.nan), values)

    def every(x: axn.NamedArray) -> dict[str, axn.NamedArray]:
        return {name: call(x) for name, (call, _) in CASES.items()}

    with axn.set_mesh(request.getfixturevalue(kind)):
        for own in (values, with_nan):
            found = jax.jit(every)(axn.shard(axn.named(own, "a"), {"a": ("data", "model")}))
            for name, (_, oracle) in CASES.items():
                np.testing.assert_allclose(np.asarray(found[name].array), oracle(own), rtol=1e-6, err_msg=name)


def test_nothing_is_looked_for_where_the_array_lies_on_one_device(explicit_mesh: jax.sharding.Mesh) -> None:
    x = axn.ones({"a": 8, "b": 4})
    alone = count_equations(lambda x: x.max(0), x.array)
    largest = lambda x: x.max("a")  # noqa: E731
    assert count_equations(largest, x) <= alone
    with axn.set_mesh(explicit_mesh):
        assert count_equations(largest, axn.shard(x, {"b": "data"})) <= alone
        assert count_equations(largest, axn.shard(axn.astype(x, int), {"a": "data"})) <= alone
        block = axn.shard_map(lambda x: axn.psum(x.max("a"), "a"), {"a": "data"})
        assert count_equations(block, x) <= count_equations(block, axn.astype(x, int))  # which has no NaN


def test_the_gradient_is_that_of_one_device(auto_mesh: jax.sharding.Mesh) -> None:
    x = axn.named(jnp.array([1.0, 4.0, 4.0, 2.0]), "a")
    with axn.set_mesh(auto_mesh):
        slope = jax.jit(jax.grad(lambda x: x.max().scalar()))(axn.shard(x, {"a": "data"}))
    assert slope.tolist() == [0, 0.5, 0.5, 0]
