"""Attention, against `jax.nn.dot_product_attention`, Equinox, and loops."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import equations

import axonym as axn
from axonym import nn
from tests.nn.attending import by_hand
from tests.nn.layouts import COMPUTE, draw, lies, same, same_trees

pytestmark = pytest.mark.sampled

B, H, G, Q, K, D, F = axn.make_axes(batch=4, heads=2, group=3, pos=5, key_pos=7, head_dim=8, out=6)


def inputs(*extra):
    return draw(*extra, Q, D), draw(*extra, K, D, seed=1), draw(*extra, K, D, seed=2)


@eqx.filter_jit
def attend(q, k, v, **options):
    return nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, **options)


def positional(x, *names):
    return x.rearrange(names).array


@eqx.filter_jit
def reference(q, k, v, **options):
    """Attend with jax.nn, whose order of axes is batch, position, heads, features."""
    arrays = [positional(q, "batch", "pos", "heads", "head_dim")]
    arrays += [positional(x, "batch", "key_pos", "heads", "head_dim") for x in (k, v)]
    return axn.named(jax.nn.dot_product_attention(*arrays, **options), ("batch", "pos", "heads", "head_dim"))


def with_gradients(call, *given):
    weigh = lambda out: (axn.sin(out).sum().scalar(), out)  # noqa: E731
    (_, out), gradients = jax.jit(jax.value_and_grad(lambda *x: weigh(call(*x)), (0, 1, 2), has_aux=True))(*given)
    return out, gradients


@functools.cache
def reference_with_gradients(causal):
    return with_gradients(lambda *x: reference(*x, is_causal=causal), *inputs(B, H))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("order", ["batch heads pos head_dim", "pos head_dim heads batch"])
def test_against_jax_with_gradients(causal, order):
    q, k, v = inputs(B, H)
    order = tuple(order.split())
    q = q.rearrange(order)
    mask = nn.causal_mask(Q, K) if causal else None
    out, gradients = with_gradients(lambda *x: attend(*x, mask=mask), q, k, v)
    expected, (by_query, *others) = reference_with_gradients(causal)
    same(out, order, expected.rearrange(order).array)
    same_trees(gradients, (by_query.rearrange(order), *others))


def test_bias_and_masks_of_some_axes():
    q, k, v = inputs(B, H)
    bias = draw(H, Q, K, seed=3)
    mask = axn.named(np.random.default_rng(4).random((4, 7)) < 0.6, ("batch", "key_pos"))
    mask = nn.combine_masks_or(mask, axn.arange(K) == 0)
    expected = reference(q, k, v, bias=bias.array[None], mask=mask.array[:, None, None, :])
    names = ("batch", "heads", "pos", "head_dim")
    same(attend(q, k, v, mask=mask, bias=bias), names, expected.rearrange(names).array)
    both = nn.combine_masks_and(mask, nn.causal_mask(Q, K))
    full = mask.array[:, None, None, :] & np.tri(5, 7, dtype=bool)
    expected = reference(q, k, v, bias=bias.array[None], mask=full)
    same(attend(q, k, v, mask=both, bias=bias), names, expected.rearrange(names).array)
    transposed = both.rearrange(("key_pos", "pos", "batch"))
    same(attend(q, k, v, mask=transposed, bias=bias), names, expected.rearrange(names).array)


def test_no_further_axes_and_many():
    q, k, v = inputs()
    expected = jax.nn.softmax(q.array @ k.array.T / math.sqrt(8)) @ v.array
    same(attend(q, k, v), ("pos", "head_dim"), expected)
    many = inputs(B, G, H)
    parts = [(np.asarray(x.array), x.names[2:]) for x in many]
    expected = [[attend(*(axn.named(x[b, g], names) for x, names in parts)).array for g in range(3)] for b in range(4)]
    same(attend(*many), ("batch", "group", "heads", "pos", "head_dim"), expected)


def test_grouped_heads_are_two_axes_of_queries():
    q, k, v = draw(B, H, G, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2)
    out = attend(q, k, v)
    flat = axn.named(
        positional(q, "batch", "pos", "heads", "group", "head_dim").reshape(4, 5, 6, 8), ["b", "p", "h", "d"]
    )
    keys, values = (positional(x, "batch", "key_pos", "heads", "head_dim") for x in (k, v))
    expected = jax.nn.dot_product_attention(flat.array, keys, values).reshape(4, 5, 2, 3, 8)
    same(out, ("batch", "heads", "group", "pos", "head_dim"), np.moveaxis(expected, 1, 3))
    # One head of keys for all heads of queries.
    one = attend(q, k["heads", 0], v["heads", 0])
    expected = jax.nn.dot_product_attention(flat.array, keys[:, :, :1], values[:, :, :1]).reshape(4, 5, 2, 3, 8)
    same(one, ("batch", "heads", "group", "pos", "head_dim"), np.moveaxis(expected, 1, 3))


def test_values_may_have_other_features():
    q, k, _ = inputs(B, H)
    v = draw(B, H, K, F)
    weights = nn.dot_product_attention_weights("head_dim", "key_pos", q, k)
    same(attend(q, k, v), ("batch", "heads", "pos", "out"), weights.array @ v.array)
    same(attend(q, k, v["out", 0]), ("batch", "heads", "pos"), (weights.array @ v.array)[..., 0])


def test_equals_multi_head_attention_of_equinox():
    theirs = eqx.nn.MultiheadAttention(2, 16, key=jax.random.key(0))
    x = draw(Q, axn.Axis("embed", 16))
    projected = [jax.vmap(p)(x.array) for p in (theirs.query_proj, theirs.key_proj, theirs.value_proj)]
    q, k, v = (axn.named(p.reshape(5, 2, 8), ("pos", "heads", "head_dim")) for p in projected)
    k, v = (x.rename({"pos": "key_pos"}) for x in (k, v))
    P = axn.Axis("key_pos", 5)
    out = attend(q, k, v, mask=nn.causal_mask(Q, P))
    result = jax.vmap(theirs.output_proj)(positional(out, "pos", "heads", "head_dim").reshape(5, 16))
    np.testing.assert_allclose(result, theirs(x.array, x.array, x.array, mask=np.tri(5, dtype=bool)), atol=1e-5)


def test_weights():
    q, k, _ = inputs(B, H)
    scores = np.einsum("bhqd,bhkd->bhqk", q.array, k.array)
    weights = nn.dot_product_attention_weights("head_dim", "key_pos", q, k)
    same(weights, ("batch", "heads", "pos", "key_pos"), jax.nn.softmax(scores / math.sqrt(8)))
    same(weights.sum("key_pos"), ("batch", "heads", "pos"), np.ones((4, 2, 5)))
    for factor in (1.0, 0.0, 0.3):
        scaled = nn.dot_product_attention_weights("head_dim", "key_pos", q, k, scaling_factor=factor)
        same(scaled, ("batch", "heads", "pos", "key_pos"), jax.nn.softmax(scores * factor))
    sized = nn.dot_product_attention_weights(D, K, q, k)
    same(sized, weights.names, weights.array)


def test_the_dtype_of_scores():
    q, k, v = (x.astype(jnp.bfloat16) for x in inputs(B, H))

    def dtypes_of_scores(**options):
        """Of those that are kept for the backward pass."""
        backward = jax.eval_shape(lambda *x: jax.vjp(lambda q, k, v: attend(q, k, v, **options), *x)[1], q, k, v)
        return {str(leaf.dtype) for leaf in jax.tree.leaves(backward) if leaf.shape == (4, 2, 5, 7)}

    for dtype in (jnp.bfloat16, "bfloat16"):
        assert dtypes_of_scores(attention_dtype=dtype) == {"bfloat16"}
    assert "float32" in dtypes_of_scores()  # the weights meet the values in their dtype
    out = attend(q, k, v)
    assert out.dtype == jnp.bfloat16
    expected = attend(*(x.astype(jnp.float32) for x in (q, k, v)))
    same(out, expected.names, expected.array, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("implementation", ["plain", "blockwise"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_scores_of_half_precision_are_exact(implementation, dtype):
    """The scale, which is no power of two, rounds nothing to the dtype of the query."""
    D = axn.Axis("head_dim", 128)
    axes = Q, K, K
    q, k, v = ((3 * np.asarray(draw(axis, D, seed=i).array)).astype(dtype) for i, axis in enumerate(axes))
    exact = by_hand(q[None, None, None], k[None, None], v[None, None])[0, 0, 0]
    named = (axn.named(x, (axis, D)) for x, axis in zip((q, k, v), axes, strict=True))
    one_head = jax.nn.dot_product_attention(*(jax.device_put(x[:, None]) for x in (q, k, v)))
    results = attend(*named, implementation=implementation).array, np.asarray(one_head)[:, 0]
    error, of_jax = (np.square(exact - np.asarray(x, np.float64)).mean() ** 0.5 for x in results)
    assert error < 1.1 * of_jax


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_query_without_keys_weighs_all_alike_with_finite_gradients(dtype):
    q, k, v = (x.astype(dtype) for x in inputs(B, H))
    mask = nn.causal_mask(Q, K, k_start=2)
    call = lambda *x: attend(*x, mask=mask)  # noqa: E731
    run = jax.jit(call)
    out = run(q, k, v)
    assert np.isfinite(out.array).all()
    mean = v.astype(jnp.float32).mean("key_pos").array
    tolerance = 4 * float(jnp.finfo(dtype).eps)
    for nobody in (0, 1):
        same(out["pos", nobody], ("batch", "heads", "head_dim"), mean, atol=tolerance, rtol=tolerance)
    gradients = jax.jit(jax.grad(lambda *x: call(*x).sum().scalar(), argnums=(0, 1, 2)))(q, k, v)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    # What is hidden has no influence.
    far = axn.where(axn.arange(K) == 6, 1e4, k).astype(dtype)
    same(run(q, far, v), out.names, out.array)


def test_large_scores():
    q, k, v = inputs()
    same(attend(q * 1e4, k, v), ("pos", "head_dim"), v.array[jnp.argmax(q.array @ k.array.T, 1)])


def test_one_query_at_a_time_gives_the_whole():
    q, k, v = draw(B, H, K.alias("pos"), D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2)
    whole = attend(q, k, v, mask=nn.causal_mask(K.alias("pos"), K))
    step = jax.jit(lambda q, i: attend(q, k, v, mask=nn.causal_mask(Q.resize(1), K, q_start=i)))
    for i in range(7):
        one = step(q["pos", i : i + 1], i)
        same(one, ("batch", "heads", "pos", "head_dim"), whole["pos", i : i + 1].array)


def test_shared_keys_equal_repeated_ones():
    q, k, v = draw(B, H, G, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2)
    run = lambda q, k, v: axn.sin(attend(q, k, v, mask=nn.causal())).sum().scalar()  # noqa: E731
    gradients = jax.jit(jax.grad(run, (0, 1, 2)))(q, k, v)
    repeated = [x.broadcast_axis(G) for x in (k, v)]
    others = jax.jit(jax.grad(run, (0, 1, 2)))(q, *repeated)
    same(attend(q, k, v), ("batch", "heads", "group", "pos", "head_dim"), attend(q, *repeated).array)
    same(gradients[0], q.names, others[0].array)
    for mine, other in zip(gradients[1:], others[1:], strict=True):
        same(mine, k.names, other.sum("group").rearrange(k.names).array)
    program = jax.make_jaxpr(jax.grad(run, (0, 1, 2)))(q, k, v).jaxpr
    assert (4, 2, 3, 7, 8) not in {out.aval.shape for one in equations(program) for out in one.outvars}


@pytest.mark.parametrize("G", [G, G.resize(1)], ids=str)
def test_soft_cap_sinks_scale_bias_and_structure_together(G):
    q, k, v = draw(B, H, G, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, F, seed=2)
    bias, sinks = draw(G, K, seed=3), draw(H, G, seed=4)
    ids = axn.named(np.arange(28).reshape(4, 7) // 4, ("batch", "key_pos"))
    mask = nn.causal() & nn.window(4) & nn.segments(ids["key_pos", :5].rename({"key_pos": "pos"}), ids)
    seen = np.array(mask.materialize(Q, K, 1).array)[:, None, None]

    def theirs(q, k, v, bias, sinks, xp=jnp):
        return by_hand(q * 0.5 * 8**0.5, k, v, seen, bias[:, None], sinks, 2.0, xp)

    def ours(q, k, v, bias, sinks):
        return attend(q, k, v, mask=mask, bias=bias, sinks=sinks, soft_cap=2.0, scale=0.5, q_start=1)

    def with_gradients(call):
        def loss(*x):
            out = call(*x)
            return jnp.sin(getattr(out, "array", out)).sum(), out

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3, 4), has_aux=True))

    named = q, k, v, bias, sinks
    plain = [x.array for x in named]
    (_, out), gradients = with_gradients(ours)(*named)
    same(out, ("batch", "heads", "group", "pos", "out"), theirs(*map(np.asarray, plain), xp=np))
    _, others = with_gradients(theirs)(*plain)
    for mine, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(mine.array, other, rtol=1e-5, atol=1e-5)

    @eqx.filter_jit
    def by_weights(q, k, v, bias, sinks):
        weights = nn.dot_product_attention_weights(
            D, K, q, k, mask.materialize(Q, K, 1), bias, scaling_factor=0.5, soft_cap=2.0, sinks=sinks
        )
        return axn.dot(weights, v, axis=K, out_axes=out.names)

    same(out, out.names, by_weights(*named).array)


def test_a_query_without_keys_and_with_a_sink_gets_nothing():
    q, k, v = inputs(B, H)
    sinks = draw(H, seed=3)
    mask = nn.AttentionMask.of(axn.named(np.arange(4) > 1, "batch"))
    run = lambda *x: attend(*x[:3], mask=mask, sinks=x[3])  # noqa: E731
    out = run(q, k, v, sinks)
    assert (out["batch", :2].array == 0).all()
    assert (out["batch", 2:].array != 0).all()
    gradients = jax.jit(jax.grad(lambda *x: run(*x).sum().scalar(), (0, 1, 2, 3)))(q, k, v, sinks)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_one_query_without_position():
    q, k, v = inputs(B, H)
    mask = nn.causal() & nn.window(2)
    whole = attend(q, k, v, mask=mask, q_start=2)
    step = jax.jit(
        lambda q, i: nn.dot_product_attention(None, K, D, q, k, v, mask=mask, q_start=i)  # a cache counts its tokens
    )
    for i in (0, 4):
        same(step(q["pos", i], i + 2), ("batch", "heads", "head_dim"), whole["pos", i].array)
    starts = axn.named([2, 3, 4, 5], "batch")
    ragged = nn.dot_product_attention(None, K, D, q["pos", 0], k, v, mask=mask, q_start=starts)
    for b in range(4):
        same(ragged["batch", b], ("heads", "head_dim"), step(q["pos", 0], b + 2)["batch", b].array)


def test_dropout_of_weights():
    q, k, _ = inputs(B, H)
    identity = axn.named(np.eye(7, dtype=np.float32), ("key_pos", "out"))
    key = jax.random.key(0, impl="rbg")
    dropped = attend(q, k, identity, dropout=0.25, key=key)
    whole = attend(q, k, identity, dropout=0.25, inference=True)
    left = np.asarray(dropped.array != 0)
    assert abs(left.mean() - 0.75) < 0.1
    same(dropped, whole.names, whole.array * left / 0.75)
    same(attend(q, k, identity, dropout=0.25, key=key), dropped.names, dropped.array)


@pytest.mark.parametrize("implementation", ["plain", "blockwise"])
def test_numbers_of_numpy_leave_the_dtype(implementation):
    q, k, v = (x.astype(jnp.bfloat16) for x in inputs(B))
    options = {"dropout": 0.5, "key": jax.random.key(0, impl="rbg"), "scale": 0.5, "soft_cap": 3.0}
    expected = attend(q, k, v, implementation=implementation, block_size=2, **options)
    options |= {name: np.float64(options[name]) for name in ("dropout", "scale", "soft_cap")}
    for block_size in (np.int64(2), (np.int64(2), np.int64(2))):
        options |= {"implementation": implementation, "block_size": block_size}
        # As parts of the program: they are no arguments.
        call = functools.partial(nn.dot_product_attention, "pos", "key_pos", "head_dim", **options)
        out = jax.jit(lambda q, k, v, call=call: call(q, k, v))(q, k, v)
        assert out.dtype == jnp.bfloat16
        np.testing.assert_array_equal(out.array, expected.array)


def test_each_product_is_laid_out(auto_mesh):
    q, k, v = inputs(B, H)
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTE):
        jaxpr = jax.make_jaxpr(attend)(q, k, v)
    specs = [
        eqn.params["sharding"].spec
        for eqn in equations(jaxpr.jaxpr)
        if eqn.primitive.name == "sharding_constraint" and eqn.invars[0].aval.ndim == 4
    ]
    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    of_operands = [spec for spec in specs if free in spec]
    assert of_operands == [jax.sharding.PartitionSpec("data", "model", free, free)] * 4
    results = [spec for spec in specs if free not in spec]
    assert results == [jax.sharding.PartitionSpec("data", "model", None, None)] * 2


POSITIONS = axn.make_axes(pos=6, key_pos=6)


def run(q, k, v):
    call = lambda q, k, v: attend(q, k, v, mask=nn.causal_mask(*POSITIONS), attention_dtype=jnp.float32)  # noqa: E731
    gradients = jax.grad(lambda *x: axn.sin(call(*x)).sum().scalar(), argnums=(0, 1, 2))(q, k, v)
    return call(q, k, v), gradients


run_on_one_device = jax.jit(run)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("mapping", [COMPUTE, {"batch": "data", "pos": "model"}, {"key_pos": "model"}], ids=str)
def test_on_a_mesh(kind, mapping, auto_mesh, explicit_mesh):
    Q, K = POSITIONS
    q, k, v = draw(B, H, G, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2)
    out, gradients = run_on_one_device(q, k, v)
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    with axn.set_mesh(mesh):
        given = axn.shard((q, k, v), mapping, strict=False)
        result, others = axn.named_jit(run, mapping, strict=False)(*given)
    assert lies(result, mesh, mapping)
    same(result, out.names, out.array)
    same_trees(others, gradients)
