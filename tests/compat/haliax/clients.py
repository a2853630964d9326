"""What tests of client code share: random arrays, comparisons, and a little mathematics in NumPy."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import equinox as eqx
import haliax as hax
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def draw(*axes, seed=0):
    array = np.random.default_rng(seed).normal(size=[axis.size for axis in axes])
    return hax.named(jax.device_put(array.astype(np.float32)), axes)


def drawn(*axes, seed=0):
    """Return an array and its values."""
    x = draw(*axes, seed=seed)
    return x, np.asarray(x.array)


def same(x, axes, expected, dtype=None, *, rtol=1e-5, atol=1e-5):
    assert type(x) is hax.NamedArray
    assert x.axes == tuple(axes)
    values = np.asarray(x.array, np.complex64 if np.iscomplexobj(x.array) else np.float32)
    np.testing.assert_allclose(values, expected, rtol=rtol, atol=atol)
    assert dtype is None or x.dtype == dtype


def lies(x, mesh, *spec):
    """Tell whether an array is laid out by an entry for each of its axes."""
    return x.array.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(*spec)), x.ndim)


def on_host(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf) if is_plain(leaf) else leaf, tree)


def is_plain(leaf):
    return eqx.is_array(leaf) and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def cross_entropy(logits, labels):
    return -np.log(np.take_along_axis(softmax(logits), np.asarray(labels)[..., None], -1))
