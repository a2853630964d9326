"""Sliding one signal along another, where they lie on a mesh: values and gradients are those of numpy."""

from typing import Any

import jax
import numpy as np
import pytest

import axonym as axn

pytestmark = pytest.mark.sampled


def bilinear(name: str, mode: str, n: int, m: int) -> np.ndarray:
    """Spell a function of two signals as a tensor {i, j, k}, by what numpy makes of unit vectors."""
    oracle = getattr(np, name)
    return np.stack([np.stack([oracle(x, v, mode) for v in np.eye(m)]) for x in np.eye(n)])


SPLIT: dict[str, Any] = {
    "a signal": ("i", {"i": "data"}, "j", {}),
    "over two mesh axes": ("i", {"i": ("model", "data")}, "j", {}),
    "both": ("i", {"i": "data"}, "j", {"j": "data"}),
    "one filter for all": ("bi", {"b": "model", "i": "data"}, "j", {"j": "model"}),
    "each its own": ("bi", {"b": "model", "i": "data"}, "bj", {"b": "model"}),
    "filters whole": ("bi", {"i": "data"}, "bj", {}),
    "all filters": ("bi", {"i": "data"}, "cj", {"c": "model"}),
}


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
@pytest.mark.parametrize("case", SPLIT)
def test_signals_in_parts(case: str, mesh: str, request: pytest.FixtureRequest) -> None:
    """Values and gradients are those of numpy, on whatever mesh axes the signals lie and others idle."""
    first, of_x, second, of_v = SPLIT[case]
    devices, rng = request.getfixturevalue(mesh), np.random.default_rng(0)
    x, v = (rng.normal(size=[{"i": 16, "j": 4, "b": 2, "c": 4}[each] for each in own]) for own in (first, second))
    rows = "".join(sorted({*first, *second} - {*"ij"}))
    modes = [(name, mode) for name in ("convolve", "correlate") for mode in ("full", "same", "valid")]
    tensors = [bilinear(*each, 16, 4) for each in modes]
    expected = [np.einsum(f"ijk,{first},{second}->{rows}k", t, x, v) for t in tensors]
    weights = [rng.normal(size=y.shape) for y in expected]

    def run(x: axn.NamedArray, v: axn.NamedArray) -> Any:
        results = [getattr(axn, name)(x, v, "i", mode=mode) for name, mode in modes]
        pairs = zip(results, weights, strict=True)
        return sum((y * axn.named(w.astype(np.float32), (*rows, "i"))).sum().scalar() for y, w in pairs), results

    def put(array: np.ndarray, own: str, on: dict[str, Any]) -> axn.NamedArray:
        spec = jax.sharding.PartitionSpec(*(on.get(each) for each in own))
        laid_out = jax.device_put(array.astype(np.float32), jax.sharding.NamedSharding(devices, spec))
        return axn.named(laid_out, tuple(own.replace("j", "i")))

    given = put(x, first, of_x), put(v, second, of_v)
    (_, results), gradients = jax.jit(jax.value_and_grad(run, (0, 1), has_aux=True))(*given)
    for found, y in zip(results, expected, strict=True):
        np.testing.assert_allclose(found.rearrange((*rows, "i")).array, y, atol=1e-4)
    for found, own, other, array in ((gradients[0], first, second, v), (gradients[1], second, first, x)):
        pairs = zip(tensors, weights, strict=True)
        total = sum(np.einsum(f"ijk,{rows}k,{other}->{own}", t, w, array) for t, w in pairs)
        np.testing.assert_allclose(found.array, total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_products_of_coefficients_in_parts(mesh: str, request: pytest.FixtureRequest) -> None:
    devices = request.getfixturevalue(mesh)
    layout = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("data"))
    one, other, weights = np.arange(16.0) + 1, np.array([1.0, -2, 3]), np.arange(18.0) - 5
    p = axn.named(jax.device_put(one.astype(np.float32), layout), "degree")

    def total(q: axn.NamedArray, p: axn.NamedArray) -> jax.Array:
        return (axn.polymul(p, q) * axn.named(weights.astype(np.float32), "degree")).sum().scalar()

    with axn.set_mesh(devices):
        value, gradient = jax.jit(jax.value_and_grad(total))(axn.named(other.astype(np.float32), "degree"), p)
    np.testing.assert_allclose(value, weights @ np.polymul(one, other))
    np.testing.assert_allclose(gradient.array, [weights @ np.convolve(one, unit) for unit in np.eye(3)])
