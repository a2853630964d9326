"""Which arrays of a program share memory."""

import jax
import jax.numpy as jnp

from axonym.costs.traced.sharing import Sharing, list_written, order_equations
from tests.costs.equations_made import array, equation, program

X, ROW = array((8, 8)), array((1, 8))


def shared(fn, *args, replaced=()):
    """Return a traced program, the same without calls, and which of its arrays share memory."""
    traced = program(fn, *args)
    inlined, _ = order_equations(traced)
    pairs = [(traced.invars[at], inlined.results[at]) for at in replaced]
    sharing = Sharing(traced, pairs)
    return traced, inlined, sharing


def update(x, row):
    return jax.lax.dynamic_update_slice(x, row, (0, 0))


def test_an_update_has_the_memory_of_a_product_but_not_of_an_argument():
    _, inlined, sharing = shared(lambda x, row: (update(x @ x, row), update(x, row)), X, ROW)
    product = next(one for one in inlined.equations if one.primitive.name == "dot_general")
    first, second = map(sharing.find_key, inlined.results)
    assert first == sharing.find_key(product.outvars[0])
    assert second == id(inlined.results[1])


def test_an_argument_is_written_over_if_nothing_reads_it_later():
    def is_replaced(fn):
        traced, inlined, sharing = shared(fn, X, ROW, replaced=(0,))
        return sharing.is_written_over(traced.invars[0], inlined.results[0])

    assert is_replaced(lambda x, row: (update(x, row), row))
    # An element is computed of the one at its place.
    assert is_replaced(lambda x, row: (jnp.sin(x) + row, x.sum()))
    # The product of the old one runs first.
    assert is_replaced(lambda x, row: (update(x, row), x @ x))
    # These need all elements, the argument itself, or the old and the new one.
    assert not is_replaced(lambda x, row: (x @ x, row))
    assert not is_replaced(lambda x, row: (update(x, row), x))
    assert not is_replaced(lambda x, row: (lambda y: (y, y @ x))(update(x, row)))
    assert not is_replaced(lambda x, row: (x[::-1] + x, row))


def test_a_barrier_moves_nothing_and_a_reshard_only_what_it_lays_out_anew():
    def two(x):
        y = jax.lax.optimization_barrier(x @ x)
        same = jax.reshard(y, jax.P("data", None))
        return same, jax.reshard(y, jax.P(None, "data"))

    _, inlined, sharing = shared(two, array((8, 8), "data"))
    product = next(one for one in inlined.equations if one.primitive.name == "dot_general")
    same, other = map(sharing.find_key, inlined.results)
    assert same == sharing.find_key(product.outvars[0]) != other


def test_loops_and_branches_write_over_what_they_carry():
    def scan(x, rows):
        return jax.lax.scan(lambda pair, row: ((pair[0] + row, update(pair[1], row)), row), (x, x), rows)

    def repeat(x, row):
        return jax.lax.while_loop(
            lambda pair: pair[0] < row[0, 0], lambda pair: (pair[0] + 1, update(pair[1], row)), (0, x)
        )

    def choose(x, row):
        return jax.lax.cond(row[0, 0] > 0, lambda x: update(x, row), lambda x: x, x)

    for name, fn, args, count in (
        ("scan", scan, (X, array((3, 1, 8))), 2),
        ("while", repeat, (X, ROW), 1),
        ("cond", choose, (X, ROW), 1),
    ):
        one = equation(name, fn, *args)
        outside, inside = list_written(one)
        assert len(outside) == count, name
        # Literals, such as the start of a counter, are no arrays.
        assert all(operand.aval.shape == result.aval.shape for operand, result in outside)
        assert all(argument.aval.shape == result.aval.shape for body in inside for argument, result in body)
    unlike = equation("cond", lambda x, row: jax.lax.cond(row[0, 0] > 0, jnp.sin, lambda x: x, x), X, ROW)
    assert list_written(unlike) == ([], [[], []])
