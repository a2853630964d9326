"""Fourier transforms of split arrays: values and gradients of NumPy, and what devices send each other."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import axonym as axn

X = np.random.default_rng(0).normal(size=(8, 4, 16)).astype(np.float32)
x = axn.named(X, ("batch", "lat", "time"))
COLLECTIVE = re.compile(r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")

CASES: dict[str, tuple[Any, Any]] = {
    "fft": (lambda x: axn.fft(x, "time"), np.fft.fft),
    "cropped": (lambda x: axn.ifft(x, {"time": 12}), lambda x: np.fft.ifft(x, 12)),
    "an odd half": (lambda x: axn.rfft(x, "time"), np.fft.rfft),
    "a half and back": (lambda x: axn.irfft(axn.rfft(x, "time"), "time"), lambda x: x),
    "two axes": (lambda x: axn.fft(x, ("lat", "time")), np.fft.fft2),
}


def energy(call: Any) -> Any:
    return lambda x: (abs(call(x)) ** 2 * axn.arange(x.resolve_axis("batch"))).sum().scalar()


def transform_all(x: axn.NamedArray) -> Any:
    return {case: (call(x), jax.grad(energy(call))(x)) for case, (call, _) in CASES.items()}


@pytest.fixture(scope="module")
def on_one_device() -> Any:
    return jax.jit(transform_all)(x)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize(
    ("mapping", "exchanges"),
    [
        ({"batch": "data"}, False),
        ({"batch": "data", "time": "model"}, True),
        ({"time": ("model", "data")}, True),
        ({"lat": "model", "time": "data"}, True),
    ],
    ids=str,
)
def test_blocks_are_transformed_where_they_are(
    kind: str, mapping: Any, exchanges: bool, request: Any, on_one_device: Any
) -> None:
    with axn.set_mesh(request.getfixturevalue(f"{kind}_mesh")), axn.axis_mapping(mapping):
        placed = axn.shard(x)
        program = jax.jit(transform_all).lower(placed).compile()
        results = program(placed)
    for case, (value, gradient) in results.items():
        np.testing.assert_allclose(value.array, CASES[case][1](X), rtol=1e-4, atol=1e-4, err_msg=case)
        expected = on_one_device[case][1].array
        np.testing.assert_allclose(gradient.array, expected, rtol=1e-3, atol=1e-2, err_msg=case)
    sent = set(COLLECTIVE.findall(program.as_text() or ""))
    assert sent == ({"all-to-all"} if exchanges else set())


def test_an_axis_without_another_to_move_to_is_gathered(auto_mesh: Mesh, explicit_mesh: Mesh) -> None:
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh), axn.axis_mapping({"time": "data"}):
            row = axn.shard(x["batch", 0, "lat", 0])
            value = jax.jit(lambda x: axn.fft(x, "time"))(row)
        np.testing.assert_allclose(value.array, np.fft.fft(X[0, 0]), rtol=1e-4, atol=1e-4)


def test_under_a_map_and_inside_a_shard_map(auto_mesh: Mesh, explicit_mesh: Mesh) -> None:
    mapping = {"batch": "data", "time": "model"}
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh), axn.axis_mapping(mapping):
            mapped = jax.jit(axn.vmap(lambda row: axn.fft(row, "time"), "batch"))(axn.shard(x))
            inside = axn.shard_map(lambda x: axn.fft(x, "lat"), mapping, mesh)(x)
        np.testing.assert_allclose(mapped.array, np.fft.fft(X), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(inside.array, np.fft.fft(X, axis=1), rtol=1e-4, atol=1e-4)
