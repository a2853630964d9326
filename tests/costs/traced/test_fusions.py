"""Which arrays are in memory."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.costs.traced.fusions import Fusion, has_programs, is_kernel
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


def attend(query, keys, values, at):
    """Attend to the first places of a cache, as layers do: the softmax and the mask are calls."""
    scores = jnp.einsum("bgd,bpd->bgp", query, keys, preferred_element_type=jnp.float32)
    mask = jnp.arange(keys.shape[1]) <= at[:, None, None]
    weights = jax.jit(jax.nn.softmax)(jnp.where(mask, scores / 8, -1e30)).astype(values.dtype)
    return jax.jit(lambda weights, values: jnp.einsum("bgp,bpd->bgd", weights, values))(weights, values)


def test_scores_of_attention_are_written_once_and_read_twice():
    """The program of libtpu 0.0.42 for a v5p: a product with the mask and the maxima, the sums, and a product."""
    batch, groups, places, size = 4, 8, 256, 64
    query = jax.ShapeDtypeStruct((batch, groups, size), jnp.bfloat16)
    cache = jax.ShapeDtypeStruct((batch, places, size), jnp.bfloat16)
    at = jax.ShapeDtypeStruct((batch,), jnp.int32)
    report = axn.cost(attend, {}, {"data": 1}, query, cache, cache, at, target="v5p", depth="traced")
    scores, row = 4 * batch * groups * places, 4 * batch * groups
    given = 2 * 2 * batch * groups * size + 2 * 2 * batch * places * size
    # Maxima and sums are written, and read by what follows. Each product or sum reads where the sequences end.
    small = 2 * row + 3 * row
    assert 0 <= report.totals["bytes accessed"] - (given + 3 * scores + small) <= 3 * 4 * batch


def test_what_is_found_in_the_same_scores_is_found_together():
    """The largest of each row, and whether one is NaN: compilers compute sums of one array in one pass."""

    def find(x, y):
        scores = x @ y
        return scores, scores.max(1), (scores != scores).any(1)

    x, y = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (32, 128)))
    report = axn.cost(find, {}, {"data": 1}, x, y, target="v5e", depth="traced")
    assert report.totals["bytes accessed"] == 4 * (64 * 32 + 32 * 128 + 64 * 128 + 64) + 64


def test_a_sum_is_computed_while_its_last_operand_is_made():
    def add(x, y):
        z = x + y
        return z, (z * z).sum(1)

    x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    report = axn.cost(add, {}, {"data": 1}, x, x, target="v5e", depth="traced")
    assert report.totals["bytes accessed"] == 3 * 4 * 64 * 128 + 4 * 64

    def exponents(x):
        return jnp.exp(x - x.max(1, keepdims=True)).sum(1)

    # A sum that needs another one first reads the array again.
    normed = axn.cost(exponents, {}, {"data": 1}, x, target="v5e", depth="traced")
    assert normed.totals["bytes accessed"] == 2 * 4 * 64 * 128 + 3 * 4 * 64


def test_calls_cost_nothing():
    def step(call):
        scale = call(lambda x: jnp.sin(x) * 2)
        # The second call repeats the first one, and its result is not read from memory.
        return lambda x, y: call(lambda x, y: scale(x) @ y)(x, y) + scale(x)

    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    found = [
        axn.cost(step(call), {}, {"data": 1}, x, x, target="v5e", depth="traced").totals["bytes accessed"]
        for call in (jax.jit, lambda fn: fn)
    ]
    # Both readers need x after the call: it is read and written, read with y and written, and read with that.
    assert found == [(2 + 3 + 3) * 4 * 64 * 64] * 2


def test_loops_run_programs_and_are_no_kernels():
    loop = equation("scan", lambda x: jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=3)[0], X)
    assert has_programs(loop)
    assert not is_kernel(loop)
    assert not has_programs(equation("dot_general", lambda x: x @ x, X))


def test_a_slice_of_a_stack_is_read_alone_and_a_barrier_moves_nothing():
    stack, at = array((16, 4, 4)), jax.ShapeDtypeStruct((), jnp.int32)

    def read(fn):
        traced = program(fn, stack, X, at)
        fusion = Fusion(traced.eqns, traced.outvars)
        (product,) = (own for one, own in fusion.iterate_kernels() if one.primitive.name == "dot_general")
        return sorted(variable.aval.size for variable in product if variable.aval.size > 1), fusion

    layer, fusion = read(lambda x, w, i: jax.lax.dynamic_index_in_dim(x, i, 0, keepdims=False) @ w)
    assert layer == [16, 16]
    names = [one.primitive.name for one, _ in fusion.iterate_kernels()]
    assert "squeeze" not in names
    assert kernels(lambda x: jax.lax.optimization_barrier(2 * x) @ x, X) == [("mul", 1), ("dot_general", 2)]


def test_an_associative_scan_keeps_the_arrays_of_each_level():
    """Of 8 elements: the sums of pairs and of fours, and those of the odd places below each level."""
    positions = array((8,))
    stored = kernels(lambda x: jax.lax.associative_scan(jnp.add, jnp.sin(x)), positions)
    assert [name for name, _ in stored].count("add") > 3
    # A slice of neighbours is computed where it is used.
    assert kernels(lambda x: jnp.sin(x)[1:] - jnp.sin(x)[:-1], positions) == [("sub", 1)]


def test_temporaries_of_an_associative_scan_are_like_those_of_the_compiler():
    def step(a, x):
        def scan(a, x):
            after = jax.lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, x), axis=1)
            return (after[1] ** 2).sum()

        return jax.grad(scan, (0, 1))(jax.nn.sigmoid(a), x)

    x = jax.ShapeDtypeStruct((8, 256, 64), jnp.float32)
    found = [axn.cost(step, {}, {"data": 1}, x, x, depth=depth).memory.temporary for depth in ("traced", "compiled")]
    assert 0.5 < found[0] / found[1] < 1.9


@pytest.mark.parametrize(("dtype", "size"), [(jnp.int4, 0.5), (jnp.int8, 1), (jnp.float8_e4m3fn, 1), (jnp.float32, 4)])
def test_a_product_reads_weights_as_they_are_in_memory(dtype, size):
    """The program of libtpu for a v5e has no other array than these, and no temporaries."""
    x, w = jnp.ones((64, 512), jnp.bfloat16), jnp.ones((512, 512), dtype)
    report = axn.cost(lambda x, w: x @ w.astype(x.dtype), {}, {"data": 1}, x, w, target="v5e", depth="traced")
    rows = 2 * 64 * 512
    assert report.totals["bytes accessed"] == 2 * rows + size * 512 * 512
    assert report.memory.temporary == 0


def test_several_products_share_a_conversion_to_fewer_bytes():
    def twice(x, w):
        y = w.astype(jnp.bfloat16)
        return (x @ y) @ y

    x = array((4, 4), dtype=jnp.bfloat16)
    assert kernels(twice, x, X)[0] == ("convert_element_type", 1)
    assert kernels(twice, x, array((4, 4), dtype=jnp.int8))[0] == ("dot_general", 2)
    # What is computed before a conversion is in memory.
    assert kernels(lambda x, w: x @ jnp.sin(w).astype(x.dtype), x, X)[0] == ("convert_element_type", 1)
