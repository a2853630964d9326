"""What devices have summed and only add is summed once."""

import jax
import jax.numpy as jnp
import pytest

from axonym.costs.traced.compilers import ACCELERATOR, CPU
from axonym.costs.traced.walk import Walk
from tests.costs.equations_made import SIZES, array, program

X, W = array((8, 16), None, "data"), array((16, 4), "data")


def summed(fn, compiler=ACCELERATOR):
    """Return over which mesh axes devices sum."""
    traced = program(fn, X, W)
    walk = Walk(SIZES, compiler=compiler)
    walk.run(traced, [walk.find_value(variable) for variable in traced.invars])
    return [one.move.mesh_axes for one in walk.sent]


def product(x, w):
    return jnp.dot(x, w, out_sharding=jax.P())


def gradient(x, w):
    return jax.checkpoint(product)(x, 2 * w)


@pytest.mark.parametrize("second", [gradient, lambda x, w: product(x, -w).T.T], ids=["checkpoint", "transposed"])
def test_partial_sums_are_added_first(second):
    def three(x, w):
        return product(x, w) + second(x, w) + product(x, 3 * w)

    assert summed(three) == [("data",)]
    assert summed(three, CPU) == [("data",)] * 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: product(x, w) + jnp.sin(product(x, 2 * w)),
        lambda x, w: (lambda y: (product(x, 2 * w) + y, y))(product(x, w)),
        lambda x, w: product(x, w) * product(x, 2 * w),
    ],
    ids=["one of a sine", "one is returned, too", "multiplied"],
)
def test_what_is_more_than_added_is_summed_before(fn):
    assert summed(fn) == [("data",)] * 2


def test_a_sum_that_is_added_to_itself():
    assert summed(lambda x, w: (lambda y: y + y)(product(x, w))) == [("data",)]
