"""Kernels of users, which say what they compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError
from tests.costs.programs import simulated


def matmul(a, b):
    return a @ b


def test_a_kernel_of_the_user_counts_as_it_says():
    kernel = axn.partitioning.kernel_cost(matmul, flops=lambda a, b: 3.0 * a.size, backward=7)
    a, b = jnp.ones((8, 16)), jnp.ones((16, 4))

    def several(a, b):
        return jax.vmap(kernel, (0, None))(a[None].repeat(5, 0), b).sum()

    alone = {"data": 1}
    for depth, mesh in (("traced", alone), ("compiled", simulated(alone))):
        for fn, expected in (
            (kernel, 3 * 128),
            (several, 5 * 3 * 128),
            (jax.grad(lambda a, b: kernel(a, b).sum(), argnums=(0, 1)), 3 * 128 + 7),
            (jax.value_and_grad(jax.checkpoint(lambda a, b: jnp.sin(kernel(a, b)).sum())), 2 * 3 * 128 + 7),
        ):
            cost = axn.cost(fn, {}, mesh, a, b, target="h100", depth=depth)
            assert cost.totals["flops"] == expected, (depth, fn)
    np.testing.assert_array_equal(kernel(a, b), np.full((8, 4), 16.0))
    (gradient,) = jax.grad(lambda a: kernel(a, b).sum(), argnums=(0,))(a)
    np.testing.assert_array_equal(gradient, np.full((8, 16), 4.0))


@pytest.mark.parametrize(("number", "text"), [(-1, "-1.0"), (float("nan"), "nan"), (float("inf"), "inf")])
def test_operations_are_a_number_that_is_not_negative(number, text):
    kernel = axn.partitioning.kernel_cost(matmul, flops=number)
    with pytest.raises(ArgumentError) as error:
        axn.cost(kernel, {}, {"data": 1}, jnp.ones((8, 16)), jnp.ones((16, 4)), target="h100", depth="traced")
    assert str(error.value) == f"kernel_cost: a kernel cannot have {text} operations"
