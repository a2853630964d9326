"""Matrices for the tests of linear algebra."""

import jax
import numpy as np

import axonym as axn

__all__ = ["draw", "same"]


def draw(*axes: str, seed: int = 0, imaginary: bool = False) -> axn.NamedArray:
    sizes = {"batch": 2, "row": 3, "column": 3, "tall": 5, "p": 2, "q": 3, "extra": 4, "six": 6, "k": 3}
    rng, shape = np.random.default_rng(seed), tuple(sizes[name] for name in axes)
    values = rng.normal(size=shape) + 1j * rng.normal(size=shape) if imaginary else rng.normal(size=shape)
    return axn.named(jax.device_put(values.astype(np.complex64 if imaginary else np.float32)), axes)


def same(x: axn.NamedArray, y: axn.NamedArray) -> None:
    assert set(x.names) == set(y.names)
    np.testing.assert_allclose(x.array, y.rearrange(x.names).array, rtol=1e-3, atol=1e-4)
