"""What tests of client code share: random arrays, and comparisons with NumPy."""

import axonym.compat.haliax  # noqa: F401

# isort: split

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
