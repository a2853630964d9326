"""Pooling against equinox and windows written out in numpy."""

import axonym.compat.haliax  # noqa: F401  # makes `haliax` resolve

# isort: split

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.nn.pool import DEFAULT_PADDING, pool

Batch, Height, Width, Channel = hax.make_axes(batch=2, height=7, width=6, channel=3)
IMAGE = np.random.default_rng(0).normal(size=(2, 7, 3, 6)).astype(np.float32)
X = hax.named(IMAGE, (Batch, Height, Channel, Width))
WINDOW = Height.resize(3), Width.resize(2)


def check(out, expected):
    assert type(out) is hax.NamedArray
    assert out.dtype == jnp.float32
    assert out.axes == (Batch, Height.resize(expected.shape[1]), Channel, Width.resize(expected.shape[3]))
    np.testing.assert_allclose(out.array, expected, rtol=1e-5, atol=1e-6)


def by_equinox(layer, **settings):
    return np.moveaxis(jax.vmap(layer((3, 2), **settings))(jnp.moveaxis(IMAGE, 2, 1)), 1, 2)


SETTINGS = [{"stride": (2, 3)}, {"stride": 2, "padding": ((0, 1), (1, 0))}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_of_largest_and_smallest(settings):
    expected = by_equinox(eqx.nn.MaxPool2d, **settings)
    check(hnn.max_pool(WINDOW, X, **settings), expected)
    check(hnn.min_pool({"height": 3, "width": 2}, -X, **settings), -expected)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_of_means(settings):
    if "padding" in settings:
        ones = hnn.pool.pool(WINDOW, hax.ones_like(X), 0.0, hax.sum, **settings)
        total = hnn.pool.pool(WINDOW, X, 0.0, hax.sum, **settings)
        check(hnn.mean_pool(WINDOW, X, **settings), np.asarray((total / ones).array))
    expected = by_equinox(eqx.nn.AvgPool2d, **settings)
    check(hnn.mean_pool(WINDOW, X, count_include_pad=True, **settings), expected)


def test_positions_and_defaults():
    check(hnn.max_pool(WINDOW, X), by_equinox(eqx.nn.MaxPool2d, stride=1))
    assert DEFAULT_PADDING == "VALID"
    check(hnn.max_pool(WINDOW, X, 2, "VALID", False), by_equinox(eqx.nn.MaxPool2d, stride=2))
    same = hnn.max_pool(Width.resize(3), X, stride=2, padding="SAME")
    assert same.axes == (Batch, Height, Channel, Width.resize(3))
    ceil = hnn.max_pool(WINDOW, X, stride=4, use_ceil=True)
    check(ceil, by_equinox(eqx.nn.MaxPool2d, stride=4, use_ceil=True))


REDUCTIONS = [
    (hax.max, -jnp.inf, np.max),
    (hax.min, jnp.inf, np.min),
    (hax.sum, 0.0, np.sum),
    (hax.prod, 1.0, np.prod),
    (jax.lax.max, -np.inf, np.max),
    (jnp.add, jnp.zeros(()), np.sum),
    (hax.maximum, -np.inf, np.max),
]


@pytest.mark.parametrize(("reduce_fn", "init", "reference"), REDUCTIONS, ids=range(len(REDUCTIONS)))
def test_of_any_reduction(reduce_fn, init, reference):
    seen = np.lib.stride_tricks.sliding_window_view(IMAGE, (3, 2), axis=(1, 3))[:, ::2]
    check(pool(WINDOW, X, init, reduce_fn, stride=(2, 1)), reference(seen, axis=(-2, -1)))


def test_gradient():
    gradient = jax.grad(lambda x: hnn.max_pool(WINDOW, x, stride=3).sum().scalar())(X)
    assert type(gradient) is hax.NamedArray
    assert float(gradient.array.sum()) == 2 * 2 * 3 * 2


def test_errors():
    with pytest.raises(ValueError, match="'depth'"):
        hnn.max_pool(hax.Axis("depth", 2), X)
    with pytest.raises(ValueError, match="a window of 9 does not fit into axis 'width' of size 6"):
        hnn.mean_pool(Width.resize(9), X)
    with pytest.raises(TypeError, match="max_pool"):
        hnn.max_pool(Width.resize(2), IMAGE)
