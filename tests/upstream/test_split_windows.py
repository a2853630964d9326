"""XLA's partitioner gets gradients wrong where a window slides along a split axis of a mesh of several axes.

It sums gradients over mesh axes that nothing is split over, too, and passes those of overlapping maxima to the wrong
elements. The tests hold on all versions so far. Where the first two begin to fail, convolutions need
`faults/split_windows.py` no longer; where the third fails, maxima. Where the last fails, `faults/slid_signals.py` can
go.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def largest_error(mesh: Mesh, fn: Callable[..., jax.Array], x: Any, *weights: Any, spec: PartitionSpec) -> float:
    """Compare the last gradient of a function whose first argument is split with that on one device."""
    x, *weights = (jnp.asarray(array, jnp.float32) for array in (x, *weights))
    gradient = jax.jit(jax.grad(lambda *args: (fn(*args) ** 2).sum(), len(weights)))
    split = jax.device_put(x, NamedSharding(mesh, spec))
    whole = [jax.device_put(weight, NamedSharding(mesh, PartitionSpec())) for weight in weights]
    return float(np.abs(np.asarray(gradient(split, *whole)) - np.asarray(gradient(x, *weights))).max())


def convolve(x: jax.Array, weight: jax.Array, groups: int) -> jax.Array:
    return lax.conv_general_dilated(x, weight, (1,), "SAME", feature_group_count=groups)


def test_the_gradient_of_a_convolution_along_a_split_axis(auto_mesh: Mesh) -> None:
    draw = np.random.default_rng(0).normal
    x, weight = draw(size=(2, 4, 16)), draw(size=(4, 4, 3))
    spec = PartitionSpec(None, None, "data")
    assert largest_error(auto_mesh, partial(convolve, groups=1), x, weight, spec=spec) > 1


def test_the_gradient_of_a_convolution_in_groups_of_a_split_batch(auto_mesh: Mesh) -> None:
    draw = np.random.default_rng(0).normal
    x, weight = draw(size=(2, 4, 16)), draw(size=(4, 1, 3))
    assert largest_error(auto_mesh, partial(convolve, groups=4), x, weight, spec=PartitionSpec("model")) > 1


def test_the_gradient_of_maxima_of_overlapping_windows(auto_mesh: Mesh) -> None:
    x = np.random.default_rng(0).normal(size=16)

    def pool(x: jax.Array) -> jax.Array:
        found: jax.Array = lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), [(1, 1)])
        return found

    assert largest_error(auto_mesh, pool, x, spec=PartitionSpec("data")) > 0.1


def test_the_gradient_of_a_signal_that_slides_along_a_split_one(auto_mesh: Mesh) -> None:
    draw = np.random.default_rng(0).normal
    assert largest_error(auto_mesh, jnp.convolve, draw(size=16), draw(size=8), spec=PartitionSpec("data")) > 1
