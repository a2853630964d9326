"""Sums over windows, of which gradients of single elements are sums of padded ones: values are those of numpy."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

import axonym as axn
import axonym.nn as nn
from tests.laws import count_equations

Batch, Time = axn.make_axes(batch=3, time=5)
WEIGHTS = axn.named([1.0, 10.0, 100.0], "batch")


def slope(fn: Callable[[axn.NamedArray], axn.NamedArray], size: int = Time.size) -> np.ndarray:
    """Return the gradient of a sum over the batch, in which each element counts with another weight."""
    x = axn.ones((Batch, Time.resize(size)))
    compiled = jax.jit(jax.grad(lambda x: (fn(x) * WEIGHTS).sum().scalar()))
    return np.asarray(compiled(x).array)


@pytest.mark.parametrize("i", [1, 2, slice(2, 3)])
def test_one_element_of_a_cumulative_sum(i: int | slice) -> None:
    place = i if isinstance(i, int) else i.start
    before = np.outer(WEIGHTS.array, np.arange(5) <= place)
    np.testing.assert_array_equal(slope(lambda x: x.cumsum("time")["time", i]), before)
    np.testing.assert_array_equal(slope(lambda x: axn.nancumsum(x, "time")["time", i]), before)
    after = np.outer(WEIGHTS.array, np.arange(5) >= place)
    np.testing.assert_array_equal(slope(lambda x: axn.cumsum(x, "time", reverse=True)["time", i]), after)


@pytest.mark.parametrize("reverse", [False, True])
def test_one_element_between_as_many_zeros(reverse: bool) -> None:
    @jax.jit
    def sums(x: axn.NamedArray) -> axn.NamedArray:
        return axn.cumsum(axn.pad(x, {"time": (2, 2)}), "time", reverse=reverse)

    ahead = np.array([1, 1, 1, 0, 0] if reverse else [0, 0, 1, 1, 1])
    x = axn.named([[3.0], [5.0]], ("batch", "time"))
    np.testing.assert_array_equal(sums(x).array, np.outer([3, 5], ahead))


@pytest.mark.parametrize("size", [5, 6])
def test_one_element_of_a_cumulative_sum_that_begins_with_zero(size: int) -> None:
    found = slope(lambda x: axn.cumulative_sum(x, "time", include_initial=True)["time", 3], size)
    np.testing.assert_array_equal(found, np.outer(WEIGHTS.array, np.arange(size) < 3))


def test_one_element_of_sums_over_windows() -> None:
    window = Time.resize(3)
    found = slope(lambda x: nn.pool(window, x, 0.0, jax.lax.add, 1, "SAME")["time", 2])
    np.testing.assert_array_equal(found, np.outer(WEIGHTS.array, [0, 1, 1, 1, 0]))


def test_no_more_than_the_sum_is_computed_where_nothing_can_be_confused() -> None:
    assert count_equations(lambda x: x.cumsum("time"), axn.ones((Batch, Time.resize(6)))) == 1


WINDOWED: dict[str, Callable[[axn.NamedArray], axn.NamedArray]] = {
    "pad": lambda x: axn.pad(x, {"time": (1, 1)}),
    "pad with 5": lambda x: axn.pad(x, {"time": (1, 1)}, constant_values=5),
    "pad_left": lambda x: axn.pad_left(x, "time", axn.Axis("time", 11), 7),
    "cumsum": lambda x: x.cumsum("time"),
    "cumprod": lambda x: x.cumprod("time"),
    "cumprod, reversed": lambda x: axn.cumprod(x, "time", reverse=True),
    "cumlogsumexp": lambda x: axn.cumlogsumexp(x, "time"),
    "cummax": lambda x: axn.cummax(x, "time"),
    "cummin": lambda x: axn.cummin(x, "time"),
    "nancumsum": lambda x: axn.nancumsum(x, "time"),
    "nancumprod": lambda x: axn.nancumprod(x, "time"),
    "cumulative_prod": lambda x: axn.cumulative_prod(x, "time"),
    "max_pool": lambda x: nn.max_pool(axn.Axis("time", 3), x, 1, "SAME"),
    "mean_pool": lambda x: nn.mean_pool(axn.Axis("time", 3), x, 1, "SAME"),
    "convolve": lambda x: axn.convolve(x, axn.named([1.0, 2.0, 1.0], "time"), "time"),
}


@pytest.mark.parametrize("split", ["data", "model"])
def test_operations_on_windows_of_one_split_array_do_not_meet(auto_mesh: jax.sharding.Mesh, split: str) -> None:
    """XLA alone gives one of them the padding of another (tests/upstream/test_shared_paddings.py)."""

    def every(x: axn.NamedArray) -> dict[str, axn.NamedArray]:
        return {name: fn(x) for name, fn in WINDOWED.items()}

    x = axn.random.normal(jax.random.key(0), (Batch, axn.Axis("time", 8)))
    alone = {name: fn(x) for name, fn in WINDOWED.items()}
    with axn.set_mesh(auto_mesh):
        found = jax.jit(every)(axn.shard(x, {"time": split}))
    for name, right in alone.items():
        np.testing.assert_allclose(found[name].array, right.array, rtol=1e-5, atol=1e-5, err_msg=name)
