"""Memory of traced programs, counted by hand."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.costs.shared.places import find_place
from axonym.costs.traced.compilers import CPU
from axonym.costs.traced.memory import find_peak, list_residuals, pair_donated
from axonym.costs.traced.walk import Walk
from tests.costs.equations_made import SIZES, array, program
from tests.costs.programs import simulated

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
    assert find_peak(traced, walk) == 2 * BLOCK
    assert find_peak(traced, walk, is_whole=True) == 2 * BLOCK


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
        assert find_peak(traced, walk) == most * BLOCK


def test_a_view_has_the_bytes_of_its_array():
    def both(x, w):
        y = x @ w
        # Readers want both orders of dimensions.
        return y @ w, y.reshape(4, 2, 8).transpose(2, 0, 1).reshape(8, 8) @ w

    traced, walk = walked(both, array((8, 8)), array((8, 8)))
    assert find_peak(traced, walk, is_whole=True) == 8 * 8 * 4
    assert find_peak(traced, walk) == 3 * 8 * 8 * 4


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
        assert find_peak(traced, walk) == most * BLOCK, fn


@pytest.mark.parametrize("call", [jax.jit, lambda fn: fn])
def test_of_a_chain_in_a_call_what_it_reads_is_kept(call):
    def loss(x, w):
        with jax.named_scope("layer"):
            return call(lambda y: jnp.tanh(2 * y))(x @ w).sum()

    traced, walk = walked(jax.grad(loss, argnums=1), X, array((8, 8)))
    (found,) = list_residuals(traced, lambda source: find_place(source, has_gradient=True))
    # The product is in memory, and the backward pass computes the function of elements again.
    assert (found.layer, found.several, walk.count_bytes(found.variable)) == ("layer", 1, BLOCK)


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
    given, results = traced.invars, traced.outvars
    assert pair_donated(given, [True, True], results, walk) == [(given[0], results[0])]
    assert pair_donated(given, [False, False], results, walk) == []


def held(fn, *args, donated=()):
    """Return the memory at the peak in addition to arguments and results, in complete arrays of the size of WHOLE."""
    traced, walk = walked(fn, *args)
    pairs = pair_donated(traced.invars, [i in donated for i in range(len(args))], traced.outvars, walk)
    return find_peak(traced, walk, is_whole=True, replaced=pairs) // (8 * 8 * 4)


WHOLE, ROW = array((8, 8)), array((1, 8))


def test_an_update_writes_over_an_operand_that_nothing_reads_later():
    def update(x, row):
        return jax.lax.dynamic_update_slice(x, row, (0, 0))

    # The product is updated in place, twice, and the second product is the result.
    assert held(lambda x, w, row: update(update(x @ w, row), 2 * row) @ w, WHOLE, WHOLE, ROW) == 1
    assert held(lambda x, w: (x @ w).at[0].set(1.0) @ w, WHOLE, WHOLE) == 1
    # The second product needs the first one as it was and as it is.
    assert held(lambda x, w, row: (lambda y: update(y, row) @ y)(x @ w), WHOLE, WHOLE, ROW) == 2
    # An argument stays as it is, unless it is donated to the result of its layout.
    assert held(lambda x, row: update(update(x, row), 2 * row) @ x.T, WHOLE, ROW) == 1


def test_a_loop_carries_one_array_that_it_updates():
    def fill(x, rows):
        def body(x, row):
            return jax.lax.dynamic_update_slice(x, row, (0, 0)), None

        return jax.lax.scan(body, x, rows)[0]

    rows = array((3, 1, 8))
    assert held(fill, WHOLE, rows, donated=(0,)) == 0
    # The result counts outside, and is the only copy of the argument.
    assert held(fill, WHOLE, rows) == 0
    assert held(lambda x, w, rows: fill(x @ w, rows) @ w, WHOLE, WHOLE, rows) == 1
    # The last product needs the first one and the carried copy.
    assert held(lambda x, w, rows: (lambda y: fill(y, rows) @ y)(x @ w), WHOLE, WHOLE, rows) == 2

    def count(x):
        return jax.lax.while_loop(lambda pair: pair[1] < 3, lambda pair: (2 * pair[0], pair[1] + 1), (x, 0))

    assert held(lambda x, w: count(x @ w)[0] @ w, WHOLE, WHOLE) == 1


def test_a_loop_holds_what_it_carries_and_the_next_one_that_it_cannot_write_over_it():
    def repeat(x, w, step):
        return jax.lax.scan(lambda x, _: (step(x, w), None), x, length=3)[0] @ w

    # A product reads all of what it would overwrite; the sum of both only reads the place that it writes.
    assert held(lambda x, w: repeat(x @ w, w, lambda x, w: x @ w), WHOLE, WHOLE) == 2
    assert held(lambda x, w: repeat(x @ w, w, lambda x, w: x + x @ w), WHOLE, WHOLE) == 2
    assert held(lambda x, w: repeat(x @ w, w, lambda x, w: 2 * x), WHOLE, WHOLE) == 1
    # Shifted rows are read at other places than they are written to.
    assert held(lambda x, w: repeat(x @ w, w, lambda x, w: jnp.roll(x, 1, 1)), WHOLE, WHOLE) == 2


def test_a_branch_updates_what_both_branches_pass_on():
    def choose(x, row, no):
        return jax.lax.cond(row[0, 0] > 0, lambda x: jax.lax.dynamic_update_slice(x, row, (0, 0)), no, x)

    assert held(lambda x, w, row: choose(x @ w, row, lambda x: x) @ w, WHOLE, WHOLE, ROW) == 1
    assert held(lambda x, w, row: choose(x @ w, row, lambda x: jnp.roll(x, 1, 1)) @ w, WHOLE, WHOLE, ROW) == 2


def test_a_result_that_a_loop_stacks_cannot_be_written_over_what_it_reads():
    def layers(caches, row):
        def layer(row, cache):
            return row, jax.lax.dynamic_update_slice(cache, row, (0, 0))

        return jax.lax.scan(layer, row, caches)[1]

    caches = array((3, 8, 8))
    # All new caches, and the one of the layer, whose argument is a slice of the old ones.
    assert held(layers, caches, ROW, donated=(0,)) == 3 + 1
    assert held(layers, caches, ROW) == 1


def test_products_read_slices_of_arguments_where_they_are():
    def read(caches, x, at):
        return x @ jax.lax.dynamic_index_in_dim(caches, at, 0, keepdims=False)

    caches, at = array((3, 8, 8)), jax.ShapeDtypeStruct((), jnp.int32)
    assert held(lambda c, x, i: read(c, x, i) @ x.T, caches, WHOLE, at) == 1
    # Of an array that is made here, only the slice is kept.
    assert held(lambda c, x, i: read(c @ x, x, i) @ x.T, caches, WHOLE, at) == 3 + 1


@pytest.mark.parametrize("is_donated", [True, False])
def test_a_cache_that_a_loop_fills_is_there_as_often_as_in_the_compiled_program(is_donated):
    def fill(cache, rows):
        def body(carry, row):
            cache, at = carry
            cache = jax.lax.dynamic_update_slice(cache, row[None], (at, 0))
            return (cache, at + 1), row.sum()

        return jax.lax.scan(body, (cache, 0), rows)

    fn = axn.named_jit(fill, {}, donate_args=(is_donated, False))
    args = jax.ShapeDtypeStruct((4096, 64), jnp.float32), jax.ShapeDtypeStruct((16, 64), jnp.float32)
    traced, compiled = (
        axn.cost(fn, {}, simulated({"data": 1}), *args, depth=depth).memory for depth in ("traced", "compiled")
    )
    caches = 1 if is_donated else 2
    for memory in (traced, compiled):
        assert memory.peak // (4096 * 64 * 4) == caches
    assert traced.peak == pytest.approx(compiled.peak, rel=0.01)
