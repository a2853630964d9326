"""Memory of traced programs, counted by hand."""

import jax
import jax.numpy as jnp

from axonym.costs.shared.places import find_place
from axonym.costs.traced.compilers import CPU
from axonym.costs.traced.memory import count_donated, find_peak, list_residuals
from axonym.costs.traced.walk import Walk
from tests.costs.equations_made import SIZES, array, program

X = array((8, 8), "data")
BLOCK = 8 * 8 * 4 // 4


def walked(fn, *args):
    traced = program(fn, *args)
    walk = Walk(SIZES, compiler=CPU)
    walk.run(traced, [walk.find_value(variable) for variable in traced.invars])
    return traced, walk


def test_the_most_that_is_needed_at_once():
    def three(x, w):
        return ((x @ w) @ w) @ w

    traced, walk = walked(three, X, array((8, 8)))
    # The second product is made of the first one; the third is the result.
    assert find_peak(traced, walk.count_bytes) == 2 * BLOCK
    assert find_peak(traced, walk.count_bytes, is_whole=True) == 2 * BLOCK


def test_a_call_frees_an_operand_that_is_not_read_again():
    def two(y, w):
        return (y @ w) @ w

    def free(x, w):
        return jax.jit(two)(x @ w, w)

    def keep(x, w):
        y = x @ w
        return jax.jit(two)(y, w) + jnp.sin(y @ w)

    whole = array((8, 8))
    # Two are held at once, as without the call; a product that is read again is the third.
    for fn, most in ((free, 2), (lambda x, w: two(x @ w, w), 2), (keep, 3)):
        traced, walk = walked(fn, X, whole)
        assert find_peak(traced, walk.count_bytes) == most * BLOCK


def test_a_view_has_the_bytes_of_its_array():
    def both(x, w):
        y = x @ w
        # Readers want both orders of dimensions.
        return y @ w, y.reshape(4, 2, 8).transpose(2, 0, 1).reshape(8, 8) @ w

    traced, walk = walked(both, array((8, 8)), array((8, 8)))
    assert find_peak(traced, walk.count_bytes, is_whole=True) == 8 * 8 * 4
    assert find_peak(traced, walk.count_bytes) == 3 * 8 * 8 * 4


def test_what_a_call_returns_is_fused_with_its_readers_unless_a_barrier_is_between():
    double = jax.jit(lambda y: 2 * y)

    def fused(x, w):
        return (double(x @ w) + double(x)) @ w

    def parted(x, w):
        return (jax.lax.optimization_barrier(double(x @ w)) + double(x)) @ w

    whole = array((8, 8))
    # The product and the sum; and in between what the barrier asks for.
    for fn, most in ((fused, 2), (parted, 2), (lambda x, w: parted(x, w) + x @ w, 3)):
        traced, walk = walked(fn, X, whole)
        assert find_peak(traced, walk.count_bytes) == most * BLOCK, fn


def test_what_a_loop_stacks_is_kept():
    def loss(w, x):
        with jax.named_scope("layer"):
            x, _ = jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, w)
        return x.sum()

    traced, walk = walked(jax.grad(loss), array((3, 8, 8)), X)
    found = list_residuals(traced, lambda source: find_place(source, has_gradient=True))
    kept = sorted((one.layer, one.several, walk.count_bytes(one.variable)) for one in found)
    assert ("layer", 3, 3 * BLOCK) in kept
    assert all(walk.count_bytes(one.variable) for one in found)


def test_results_take_the_place_of_arguments_of_their_layout():
    traced, walk = walked(lambda x, y: (x + 1, y.T), X, X)
    assert count_donated(traced.invars, [True, True], traced.outvars, walk, walk.count_bytes) == BLOCK
    assert count_donated(traced.invars, [False, False], traced.outvars, walk, walk.count_bytes) == 0
