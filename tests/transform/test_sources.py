"""Which arguments each result of a program depends on."""

import jax
import jax.numpy as jnp

from axonym.transform.sources import find_sources


def test_calls_and_branches_are_looked_into():
    @jax.jit
    def both(x, y):
        return jnp.sin(x), y * 2

    def run(x, y, z, choice):
        a, b = both(x, y)
        c, d = jax.lax.cond(choice > 0, lambda x, z: (x, z + 1), lambda x, z: (x * 2, z), x, z)
        e, f = jax.lax.fori_loop(0, 3, lambda i, pair: (pair[0] + 1, pair[1] * 2), (x, y))
        return a, b, c, d, e, f, x + z, jnp.zeros(()), 2.0

    jaxpr = jax.make_jaxpr(run)(1.0, 2.0, 3.0, 4.0).jaxpr
    found = find_sources(jaxpr, [frozenset({number}) for number in range(4)])
    loop = {0, 1}  # what is in a loop is not told apart
    assert [set(own) for own in found] == [{0}, {1}, {0, 3}, {2, 3}, loop, loop, {0, 2}, set(), set()]
