"""Which arrays are in memory."""

import jax
import jax.numpy as jnp

from axonym.costs.traced.fusions import Fusion, has_programs, is_chain, is_kernel
from tests.costs.equations_made import array, equation, program


def kernels(fn, *args):
    traced = program(fn, *args)
    fusion = Fusion(traced.eqns, traced.outvars)
    return [(one.primitive.name, len(operands)) for one, operands in fusion.iterate_kernels()]


X = array((4, 4))


def test_chains_are_computed_together():
    assert kernels(lambda x: jnp.sin(jnp.cos(x)) + x, X) == [("add", 1)]


def test_sums_are_at_the_end_of_chains_and_products_are_not():
    assert kernels(lambda x: jnp.sin(x).sum(), X) == [("reduce_sum", 1)]
    assert kernels(lambda x: jnp.sin(x) @ x, X) == [("sin", 1), ("dot_general", 2)]


def test_calls_of_functions_of_elements():
    chain = equation("jit", lambda x: jax.jit(lambda x: jnp.sin(x) * 2)(x), X)
    product = equation("jit", lambda x: jax.jit(lambda x: x @ x)(x), X)
    assert is_chain(chain)
    assert not has_programs(chain)
    assert has_programs(product)
    assert not is_kernel(product)
