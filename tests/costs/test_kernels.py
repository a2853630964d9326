"""Kernels of the machine that a cost is for, against closed formulas; this machine could run none of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from tests.costs.programs import simulated

B, H, G = axn.make_axes(batch=4, heads=2, group=3)
IDS = axn.named(np.zeros((4, 512), np.int32), ("batch", "pos"))


def inputs(queries=512, keys=512, dims=(64, 64), dtype=jnp.bfloat16):
    q, k, d, f = axn.make_axes(pos=queries, key_pos=keys, head_dim=dims[0], out=dims[1])
    shapes = (B, H, G, q, d), (B, H, k, d), (B, H, k, f)
    return [axn.NamedArray(jax.ShapeDtypeStruct(tuple(axis.size for axis in axes), dtype), axes) for axes in shapes]


def attend(q, k, v, mask=None, **options):
    return nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, mask, **options)


def step(q, k, v, *options):
    def loss(*given):
        return attend(*given, *options).sum().scalar().astype(jnp.float32)

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def count(fn, *args, target="v5p", depth="traced", mesh=None):
    mapping = {"batch": "data", "heads": "model"}
    mesh = mesh or {"data": 2, "model": 2}
    return axn.cost(axn.named_jit(fn, {}), mapping, mesh, *args, target=target, depth=depth)


def shown(queries, keys, distance):
    """Count the pairs of a query and a key whose distance a mask shows, one by one."""
    return sum(distance(q - k) for q in range(queries) for k in range(keys))


@pytest.mark.parametrize(("target", "name", "share"), [("v5p", "splash", 7), ("h100", "cudnn", 5)])
@pytest.mark.parametrize(
    ("mask", "pairs"),
    [
        (None, 512 * 512),
        (nn.causal(), shown(512, 512, lambda d: d >= 0)),
        (nn.causal() & nn.window(100), shown(512, 512, lambda d: 0 <= d < 100)),
    ],
)
def test_operations_are_those_of_the_pairs_that_are_seen(target, name, share, mask, pairs):
    """Two products forwards; backwards five, and for splash, which has a kernel for queries and one for keys, seven."""
    one = 2 * pairs * 64 * (4 * 2 * 3) / 4  # of a device: a half of the batch and of the heads of keys
    for fn, products in ((attend, 2), (step, 2 + share)):
        cost = count(lambda *given, fn=fn: fn(*given, mask), *inputs(), target=target)
        assert cost.totals["flops"] == pytest.approx(products * one, rel=1e-6)
        assert dict(cost.attention) == {name: ("outside of layers",)}
        assert not cost.notes
        assert f"attention in outside of layers: {name}" in str(cost)


@pytest.mark.parametrize("target", ["v5p", "h100"])
def test_gradients_of_shared_keys_are_summed_over_the_devices_of_their_queries(target):
    q, *rest = inputs()
    mapping = {"batch": "data", "group": "model"}
    cost = axn.cost(step, mapping, {"data": 2, "model": 3}, q, *rest, target=target, depth="traced")
    # Of two gradients, in bfloat16, a ring of 3 devices sends two thirds twice.
    assert cost.totals["bytes sent"] == pytest.approx(2 * 2 * (2 * 2 * 512 * 64) * 2 * 2 / 3, abs=2)
    assert cost.by_axis.keys() == {"group"}


def test_segments_hide_nothing_before_they_are_known():
    masks = nn.causal(), nn.causal() & nn.segments(IDS)
    costs = [count(step, *inputs(), mask) for mask in masks]
    assert costs[0].totals["flops"] == costs[1].totals["flops"]


def test_features_of_keys_and_values_may_differ():
    """Scores take the features of keys, forwards and three times backwards; the others those of values."""
    cost = count(step, *inputs(256, 1024, (192, 128)))
    one = 2 * 256 * 1024 * 6
    assert cost.totals["flops"] == one * (192 + 128 + 4 * 192 + 3 * 128)
    assert dict(cost.attention) == {"splash": ("outside of layers",)}


def test_a_kernel_keeps_its_result_and_a_number_for_each_query():
    size = 2 * 1 * 3 * 512  # of a device: heads and queries
    kept = count(step, *inputs()).memory.temporary - count(attend, *inputs()).memory.temporary
    # Of operands, the scaled query is no argument. The gradient of the result is a number that is broadcast.
    assert kept == pytest.approx(size * (4 + 64 * 2 + 64 * 2), rel=0.05)


def test_a_compiled_program_has_the_kernels_of_the_target():
    """This machine compiles a call that stands for the kernel, of which only the shapes are true."""
    mesh = simulated({"data": 2, "model": 2})
    mask = nn.causal()
    for target, name in (("v5p", "splash"), ("h100", "cudnn")):
        compiled = count(step, *inputs(), mask, target=target, depth="compiled", mesh=mesh)
        traced = count(step, *inputs(), mask, target=target)
        assert compiled.totals["flops"] == traced.totals["flops"]
        assert dict(compiled.attention) == {name: ("outside of layers",)}


def test_the_report_says_why_no_kernel_computes():
    given = inputs(dtype=jnp.float32)
    cost = count(attend, *given, target="h100")
    reason = "plain: cudnn: it supports only bfloat16 and float16"
    assert dict(cost.attention) == {reason: ("outside of layers",)}
    assert dict(count(attend, *given, target="cpu").attention) == {"plain": ("outside of layers",)}


def test_all_blocks_of_a_loop_count():
    """Of 8 by 8 blocks, a causal mask leaves 36; the gradient computes the scores again."""
    options = nn.causal(), {"implementation": "blockwise", "block_size": 64}

    def run(q, k, v):
        return attend(q, k, v, options[0], **options[1])

    def differentiate(q, k, v):
        return jax.grad(lambda *x: run(*x).sum().scalar().astype(jnp.float32), argnums=(0, 1, 2))(q, k, v)

    one = 2 * 64**2 * 36 * 64 * 6
    mesh = simulated({"data": 2, "model": 2})
    for fn, products in ((run, 2), (differentiate, 7)):
        for cost in (count(fn, *inputs()), count(fn, *inputs(), depth="compiled", mesh=mesh)):
            # The compiler drops nothing and adds nothing but a sum over features for each query.
            assert cost.totals["flops"] == pytest.approx(products * one, rel=0.01)
            assert not cost.notes


def test_programs_that_run_are_as_before():
    q, k, v = (axn.ones(dict(zip(x.names, x.array.shape, strict=True))) for x in inputs(128, 128))
    step = jax.jit(attend)
    axn.cost(step, {}, {"data": 1}, *inputs(128, 128, dtype=jnp.float32), target="v5p", depth="traced")
    text = step.lower(q, k, v).as_text(debug_info=True)
    assert "kernel[" not in text
    assert "attention<" not in text
    np.testing.assert_allclose(step(q, k, v).array, 1.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtypes", "rate"),
    [
        (("int8", "int8"), 918e12),
        (("int8", "bfloat16"), 459e12),
        (("bfloat16", "float8_e4m3fn"), 459e12),
        (("float8_e4m3fn", "float8_e5m2"), 459e12),  # which a v5p computes in bfloat16
    ],
)
def test_products_of_few_bits_take_the_time_of_the_wider_operand(dtypes, rate):
    a, b = (jax.ShapeDtypeStruct((512, 512), dtype) for dtype in dtypes)

    def product(a, b):
        return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    cost = axn.cost(product, {}, {"data": 1}, a, b, target="v5p", depth="traced")
    assert cost.time.computing == pytest.approx(2 * 512**3 / rate)


def test_notes_list_what_is_not_counted():
    def several(x):
        root = jnp.linalg.cholesky(x @ x.T)
        unknown = jax.ffi.ffi_call("of_nobody", jax.ShapeDtypeStruct((8, 8), jnp.float32))
        return root, jax.named_call(unknown, name="mine")(x)

    cost = axn.cost(several, {}, {"data": 1}, jnp.ones((8, 8)), target="h100", depth="traced")
    assert cost.notes == (
        "operations of cholesky are not counted: outside of layers",
        "operations of ffi_call are not counted: mine",
    )
    assert cost.totals["flops"] == 2 * 8**3


def test_a_step_of_llama_8b_takes_the_time_of_its_closed_formula():
    """Layers of Llama 3 8B without grouped heads, 64 sequences of 8192 tokens on 64 v5p, all recomputed."""
    Rows, Pos, Embed, Heads, Dim, Mlp, Layers = axn.make_axes(
        batch=64, pos=8192, embed=4096, heads=32, head_dim=128, mlp=14336, layers=32
    )
    stack = nn.Stacked.init(Layers, nn.TransformerBlock, gradient_checkpointing=True)
    options = {"norm": nn.RmsNorm.init, "gated": True, "use_bias": False}
    model = jax.eval_shape(lambda key: stack(Embed, Heads, Dim, Mlp, key=key, **options), jax.random.key(0))
    x = axn.NamedArray(jax.ShapeDtypeStruct((64, 8192, 4096), jnp.bfloat16), (Rows, Pos, Embed))

    def step(model, x):
        def loss(model):
            model = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), model)
            return (model.fold(x, nn.causal()) ** 2).mean().scalar().astype(jnp.float32)

        return jax.grad(loss)(model)

    mappings = axn.Mappings({"embed": "data"}, {"batch": "data"})
    cost = axn.cost(step, mappings, {"data": 64}, model, x, target="v5p", depth="traced")
    down = 32 * 4096 * 14336
    parameters = 32 * 4 * 4096 * 4096 + 3 * down
    # Scores of half of the pairs: two products, once more, and seven backwards.
    attention = (2 + 2 + 7) * 2 * 8192 * 8192 / 2 * 4096 * 32
    # The result of the last product of a layer is the carry of the next one, which is not computed again.
    expected = 8192 * (8 * parameters - 2 * down) + attention
    assert cost.totals["flops"] == pytest.approx(expected, rel=0.01)
    assert cost.time.seconds == pytest.approx(expected / 459e12, rel=0.1)
    assert cost.memory.peak < 10e9


@pytest.mark.parametrize(("target", "name"), [("v5p", "splash"), ("h100", "cudnn")])
def test_a_pipeline_has_the_kernel_in_each_stage(target, name):
    """A device computes a fourth of the layers, for a fourth of the rows, in 4 + 4 - 1 ticks."""
    Batch, Pos, Embed, Heads, Features, Mlp, Layers = axn.make_axes(
        batch=8, pos=128, embed=32, heads=2, head_dim=64, mlp=64, layers=4
    )
    make = nn.Stacked.init(Layers, nn.TransformerBlock)

    def init(key):
        stack = make(Embed, Heads, Features, Mlp, key=key)
        return jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), stack)

    def alone(model, x):
        return jax.grad(lambda model: (model.fold(x, nn.causal()) ** 2).mean().scalar().astype(jnp.float32))(model)

    def piped(model, x):
        with axn.pipelined("batch", 4):
            return alone(model, x)

    x = axn.NamedArray(jax.ShapeDtypeStruct((8, 128, 32), jnp.bfloat16), (Batch, Pos, Embed))
    given = jax.eval_shape(init, jax.random.key(0)), x
    flops = []
    for step, mapping, mesh in ((piped, {"layers": "stage"}, {"stage": 4}), (alone, {}, {"stage": 1})):
        cost = axn.cost(step, mapping, mesh, *given, target=target, depth="traced")
        assert list(cost.attention) == [name]
        flops.append(cost.totals["flops"])
    assert flops[0] == flops[1] / 4 / 4 * (4 + 4 - 1)
