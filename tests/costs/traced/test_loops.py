"""What a loop does alike in every turn runs once."""

import jax
import pytest

from axonym.costs.traced.compilers import CPU
from axonym.costs.traced.walk import Walk
from tests.costs.equations_made import SIZES, array, program

X, W = array((16, 16)), array((16, 16), "data")


def gathered(fn, *args):
    """Return how often each array is gathered."""
    traced = program(fn, *args)
    walk = Walk(SIZES, compiler=CPU)
    walk.run(traced, [walk.find_value(variable) for variable in traced.invars])
    return [one.runs for one in walk.sent if one.move.kind == "all-gather"]


def multiplied(x, w):
    return x @ jax.reshard(w, jax.P())


def test_what_no_turn_changes_is_gathered_once():
    def loop(x, w):
        return jax.lax.scan(lambda x, _: (multiplied(x, w), None), x, length=5)[0]

    assert gathered(loop, X, W) == [1]


def test_what_a_turn_slices_is_gathered_in_each():
    def loop(x, layers):
        return jax.lax.scan(lambda x, w: (multiplied(x, w), None), x, layers)[0]

    assert gathered(loop, X, array((5, 16, 16), None, "data")) == [5]


@pytest.mark.parametrize(("layers", "expected"), [(1, 1), (2, 2 * 5)])
def test_a_loop_of_one_turn_is_none(layers, expected):
    def inner(x, layers):
        return jax.lax.scan(lambda x, w: (multiplied(x, w), None), x, layers)[0]

    def outer(x, layers):
        return jax.lax.scan(lambda x, _: (inner(x, layers), None), x, length=5)[0]

    assert gathered(outer, X, array((layers, 16, 16), None, "data")) == [expected]


def test_what_one_turn_makes_is_gathered_in_the_next():
    def turn(w, _):
        return jax.reshard(2 * jax.reshard(w, jax.P()), jax.P("data")), None

    assert gathered(lambda w: jax.lax.scan(turn, w, length=5)[0], W) == [5]


@pytest.mark.parametrize(("prevent_cse", "expected"), [(False, [1]), (True, [5])])
def test_what_a_checkpoint_computes_again_waits_for_the_gradient(prevent_cse, expected):
    def loss(x, w):
        turn = jax.checkpoint(lambda x, _: (jax.numpy.sin(multiplied(x, w)), None), prevent_cse=prevent_cse)
        return jax.lax.scan(turn, x, length=5)[0].sum()

    assert gathered(jax.grad(loss), X, W)[1:] == expected


def test_what_is_in_a_branch_stays_there():
    def turn(x, w):
        return jax.lax.cond(x.sum() > 0, multiplied, lambda x, w: x, x, w), None

    assert gathered(lambda x, w: jax.lax.scan(lambda x, _: turn(x, w), x, length=5)[0], X, W) == [5]
