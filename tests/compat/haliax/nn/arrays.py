"""What tests of layers share: arrays drawn without compiling, and comparisons with NumPy."""

import jax
import numpy as np

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax


def draw(*axes, seed=1, dtype=np.float32):
    values = np.random.default_rng(seed).normal(size=[axis.size for axis in axes])
    return hax.named(jax.device_put(values.astype(dtype)), axes)


def same(x, axes, values, **tolerance):
    assert type(x) is hax.NamedArray
    assert x.axes == tuple(axes)
    np.testing.assert_allclose(np.asarray(x.array), values, **({"rtol": 1e-5, "atol": 1e-6} | tolerance))


def same_trees(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)


def zeros_like(tree):
    return jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), tree)
