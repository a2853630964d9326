"""What equations are, on blocks."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

from axonym.costs.traced.compilers import CPU, TPU
from axonym.costs.traced.equations import (
    count_bytes,
    count_flops,
    count_unstacked,
    find_layout,
    find_needed,
    list_bodies,
    remember,
)
from tests.costs.equations_made import SIZES, TYPED, array, equation, program


def flops(one):
    return count_flops(one, [find_layout(variable) for variable in one.invars], SIZES)


def test_a_product_of_blocks():
    one = equation("dot_general", jnp.dot, array((8, 6), "data"), array((6, 10), None, "model"))
    assert flops(one) == 2 * (8 // 4) * 6 * (10 // 2)
    assert count_bytes(find_layout(one.outvars[0]), SIZES) == 2 * 5 * 4


def test_a_sum_over_blocks_that_is_asked_for_in_parts():
    def product(x, y):
        return jnp.einsum("ij,jk->ik", x, y, out_sharding=jax.P("data", "model"))

    one = equation("dot_general", product, array((8, 6), "data", "model"), array((6, 10), "model"))
    assert flops(one) == 2 * (8 // 4) * (6 // 2) * 10


def test_a_convolution_against_its_definition():
    def convolve(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", out_sharding=jax.P("data"))

    one = equation("conv_general_dilated", convolve, array((8, 3, 9, 9), "data"), array((5, 3, 2, 2)))
    assert flops(one) == 2 * (8 // 4) * 5 * 8 * 8 * 3 * 2 * 2


@pytest.mark.parametrize(
    ("image", "kernel"),
    [
        ([("data",)], [("model",)]),
        ([("data",), ("model",)], []),
        # As in a gradient of the kernel, which sums over the rows of both.
        ([(), ("data",)], [("model",), ("data",)]),
    ],
)
def test_a_convolution_whose_type_does_not_tell_is_divided_as_its_operands_are(image, kernel):
    def convolve(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "VALID")

    x, k = jnp.ones((8, 4, 9, 9)), jnp.ones((6, 4, 2, 2))
    (one,) = jax.make_jaxpr(convolve)(x, k).eqns
    inputs = [find_layout(variable, guess) for variable, guess in zip(one.invars, (image, kernel), strict=True)]
    assert count_flops(one, inputs, SIZES) == 2 * 8 * 6 * 8 * 8 * 4 * 2 * 2 // (4 * 2)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_gradients_of_a_convolution_compute_what_it_does(strides):
    def convolve(x, k):
        return jax.lax.conv_general_dilated(x, k, strides, "VALID")

    x, k = jnp.ones((8, 3, 9, 9)), jnp.ones((5, 3, 3, 3))
    steps = jax.make_jaxpr(lambda x, k: jax.vjp(convolve, x, k)[1](convolve(x, k)))(x, k).eqns
    counted = [flops(one) for one in steps if one.primitive.name == "conv_general_dilated"]
    size = (9 - 3) // strides[0] + 1
    assert counted == [2 * 8 * 5 * 3 * (size * 3) ** 2] * len(counted)
    assert len(counted) > 2


@pytest.mark.parametrize(
    ("compiler", "most"), [(None, [1, 1, 1]), (CPU, [4, 4, 4]), (TPU, [1, 1, 4])], ids=["none", "cpu", "tpu"]
)
def test_ragged_products_and_their_gradients(compiler, most):
    def gradients(rows, matrices):
        result, back = jax.vjp(lambda *both: jax.lax.ragged_dot(*both, jnp.arange(4)), rows, matrices)
        return back(result)

    # A row has one matrix of four.
    expected = [2 * 8 * 6 * 10 * groups for groups in most]
    equations = jax.make_jaxpr(gradients)(jnp.ones((8, 6)), jnp.ones((4, 6, 10))).eqns
    products = [one for one in equations if one.primitive.name.startswith("ragged_dot")]
    counted = []
    for one in products:
        inputs = [find_layout(variable) for variable in one.invars]
        counted.append(count_flops(one, inputs, SIZES, compiler))
    assert sorted(counted) == expected


def test_what_is_found_in_a_program_is_remembered_as_long_as_it_lives():
    found = []
    count = remember(lambda program, least: found.append(program) or len(program.eqns) + least)
    traced = program(jnp.sin, array((4,)))
    assert [count(traced, 0), count(traced, 0), count(traced, 1)] == [1, 1, 2]
    assert len(found) == 2
    gone = weakref.ref(traced)
    found.clear()
    del traced
    gc.collect()
    jax.clear_caches()
    assert gone() is None


def test_what_nobody_uses_is_not_needed():
    def wasteful(x):
        jnp.sin(x)
        return jnp.cos(x)

    assert [one.primitive.name for one in find_needed(program(wasteful, array((4,))))] == ["cos"]


def test_what_a_call_reads_for_nobody_is_not_needed():
    @jax.jit
    def both(x, y):
        return jnp.sin(x), jnp.cos(y)

    traced = program(lambda x: both(jnp.tan(x), jnp.exp(x))[1], array((4,)))
    assert [one.primitive.name for one in find_needed(traced)] == ["exp", "jit"]


def test_a_collective_that_nobody_uses_is_not_needed():
    def exchanged(x):
        jax.lax.all_to_all(x, "data", 1, 0, tiled=True)
        return jax.lax.psum(x, "data")

    mapped = jax.shard_map(exchanged, mesh=TYPED, in_specs=jax.P("data"), out_specs=jax.P())
    (body,) = list_bodies(equation("shard_map", mapped, array((8, 4), "data")))
    assert "all_to_all" in {one.primitive.name for one in body.eqns}
    assert "all_to_all" not in {one.primitive.name for one in find_needed(body)}


def test_arguments_that_a_loop_slices():
    def loop(carry, xs):
        return jax.lax.scan(lambda carry, x: (carry + x, carry), carry, xs)

    one = equation("scan", loop, array((2,)), array((3, 2)))
    (body,) = list_bodies(one)
    assert count_unstacked(one.invars, body.invars) == 1
    assert count_unstacked(one.outvars, body.outvars) == 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_bytes_of_a_block(dtype):
    one = equation("sin", jnp.sin, array((8, 6), ("data", "model"), dtype=dtype))
    assert count_bytes(find_layout(one.invars[0]), SIZES) == 6 * jnp.dtype(dtype).itemsize
