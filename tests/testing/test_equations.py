"""Programs, equation by equation."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from axonym.testing.equations import Site, Visitor, find_call, list_variables, make_program
from axonym.testing.program import Program


class Numbers(Visitor):
    """A run whose values are arrays, and which writes down what it keeps."""

    def __init__(self, f, x):
        super().__init__(f, [x], Program("f", f, (x,)))
        self.live = []

    def apply(self, run, operands, count, equation, site):
        self.live.append((equation.primitive.name, site.turns, float(jnp.sum(operands[0]))))
        return run(*operands)

    def keep(self, array):
        return array


def f(arrays):
    def turn(carry, x):
        return jax.jit(jnp.sin)(carry) + x, carry * x

    return jax.lax.scan(turn, arrays[0][0], arrays[0], reverse=True)


def test_a_walk_visits_calls_and_turns_in_order():
    x = jnp.arange(3.0)
    numbers = Numbers(f, x)
    found = numbers.inline(numbers.program, [x], Site())
    for own, expected in zip(found, jax.tree.leaves(f([x])), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-6)
    turns = [turn for name, turn, _ in numbers.live if name == "sin"]
    assert turns == [(2,), (1,), (0,)]


def test_some_equations_are_a_program():
    traced = jax.make_jaxpr(lambda x: jnp.cos(jnp.sin(x)) + jax.jit(jnp.exp)(x))(1.0).jaxpr
    sin, cos = traced.eqns[:2]
    assert find_call(sin) is None
    assert any(find_call(each) is not None for each in traced.eqns)
    program = make_program([sin, cos], list_variables(sin.invars), cos.outvars)
    found = jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(program, ()))(2.0)
    np.testing.assert_allclose(found, [np.cos(np.sin(2.0))], rtol=1e-6)
