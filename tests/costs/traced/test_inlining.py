"""Programs without calls."""

import jax
import jax.numpy as jnp

from axonym.costs.traced.equations import list_bodies
from axonym.costs.traced.inlining import inline
from tests.costs.equations_made import array, program

X = array((8, 8))


def names(inlined):
    return [equation.primitive.name for equation in inlined.equations]


def test_each_call_makes_arrays_of_its_own():
    square = jax.jit(lambda x: x @ x)
    inlined = inline(program(lambda x: square(square(x)), X))
    first, second = inlined.equations
    assert names(inlined) == ["dot_general"] * 2
    assert second.invars == [first.outvars[0]] * 2
    assert inlined.results == second.outvars != first.outvars


def test_what_a_call_passes_on_is_its_operand_and_unused_results_are_dropped():
    @jax.jit
    def several(x):
        return x, x @ x, jnp.sin(x)

    inlined = inline(program(lambda x: several(x)[::2], X))
    assert names(inlined) == ["sin"]
    assert inlined.results == [inlined.given[0], inlined.equations[0].outvars[0]]


def test_what_repeats_an_equation_has_its_result():
    sine = jax.jit(jnp.sin)
    inlined = inline(program(lambda x: sine(x) @ sine(x).T, X), repeated={1: 0})
    assert names(inlined) == ["sin", "transpose", "dot_general"]
    first, turned, product = inlined.equations
    assert turned.invars == product.invars[:1] == first.outvars
    # Without the first one, its result is an array from elsewhere.
    inlined = inline(program(lambda x: sine(x) @ sine(x).T, X), repeated={1: None})
    assert names(inlined) == ["sin", "transpose", "dot_general"]
    assert inlined.equations[1].invars != inlined.equations[0].outvars


def test_equations_of_unused_results_are_dropped_and_those_of_calls_know_their_calls():
    @jax.jit
    def both(x):
        return jnp.sin(x), jnp.cos(x)

    inlined = inline(program(lambda x: both(x), X), used=(False, True))
    assert names(inlined) == ["cos"]
    assert inlined.equations[0].prefix == "jit(both)"


def test_loops_and_branches_keep_their_programs():
    def both(x):
        x, _ = jax.lax.scan(lambda x, _: (jax.jit(jnp.sin)(x), None), x, length=3)
        return jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)

    inlined = inline(program(both, X))
    assert {"scan", "cond"} <= set(names(inlined))
    loop = inlined.equations[names(inlined).index("scan")]
    assert list_bodies(loop)


def test_a_recomputation_awaits_its_operands():
    def gradient(x, prevent):
        return jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(2 * x).sum(), prevent_cse=prevent)(x))(x)

    assert inline(program(lambda x: gradient(x, True), X)).awaited
    assert not inline(program(lambda x: gradient(x, False), X)).awaited
