"""Attention block by block, against attention by hand: value, gradients, memory, meshes."""

import functools
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from measure import equations

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from tests.nn.attending import by_hand, with_gradients
from tests.nn.layouts import COMPUTE, check_on, draw, lies, same, same_trees

pytestmark = pytest.mark.sampled

B, H, G, Q, K, D, F = axn.make_axes(batch=4, heads=2, group=3, pos=7, key_pos=11, head_dim=8, out=6)
NAMES = ("batch", "heads", "group", "pos", "out")
IDS = axn.named(np.random.default_rng(1).integers(0, 2, (4, 7)), ("batch", "pos"))
KEY_IDS = axn.named(np.random.default_rng(2).integers(0, 3, (4, 11)), ("batch", "key_pos"))
PADDING = axn.named(np.arange(11) < np.array([[11], [4], [9], [0]]), ("batch", "key_pos"))


def attend(q, k, v, **options):
    options = {"implementation": "blockwise", "block_size": (3, 4), **options}
    return nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, **options)


def inputs():
    return draw(B, H, G, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, F, seed=2)


MASKS = {
    "none": (None, 0),
    "causal window": (nn.causal() & nn.window(4), 3),
    "segments and prefix": (nn.causal() & nn.segments(IDS, KEY_IDS) | nn.prefix(axn.named([0, 2, 5, 11], "batch")), 1),
    "padding": (nn.AttentionMask.of(PADDING), axn.named([0, 1, 2, 3], "batch")),
    "causal from each start": (nn.causal(), axn.named([0, 4, -2, 1], "batch")),
}


def theirs(seen, q, k, v, bias, sinks, *, further, xp):
    options = {"bias": bias[:, None], "sinks": sinks, "cap": 2.0} if further else {}
    return by_hand(q, k, v, seen, xp=xp, **options)


@functools.partial(jax.jit, static_argnames="further")
def their_gradients(seen, *plain, further):
    """Differentiate attention by hand; what is seen is an argument, so that one program serves all masks."""
    return with_gradients(functools.partial(theirs, seen, further=further, xp=jnp))(*plain)[1]


@pytest.mark.parametrize("case", MASKS)
def test_value_and_gradients(case):
    mask, start = MASKS[case]
    further = case in ("none", "segments and prefix")
    q, k, v = inputs()
    bias, sinks = draw(H, Q, K, seed=3), draw(H, G, seed=4)
    cap = 2.0 if further else None
    seen = True if mask is None else mask.materialize(Q, K, start).broadcast_axis(B).rearrange(("batch", ...)).array
    seen = np.broadcast_to(seen, (4, 7, 11))[:, None, None]

    def ours(q, k, v, bias, sinks):
        options = {"bias": bias, "sinks": sinks} if further else {}
        return attend(q, k, v, mask=mask, q_start=start, soft_cap=cap, **options)

    named = (q, k, v, bias, sinks)
    plain = [x.array for x in named]
    out, gradients = with_gradients(ours)(*named)
    same(out, NAMES, theirs(seen, *(np.asarray(x) for x in plain), further=further, xp=np))
    for mine, other in zip(gradients, their_gradients(seen, *plain, further=further), strict=True):
        np.testing.assert_allclose(mine.array, other, rtol=1e-5, atol=2e-5)


AT, PLACE = np.arange(7)[:, None], np.arange(11)
STARTS, LENGTHS, BY_QUERY = np.array([0, 4, -2, 1]), np.array([0, 2, 5, 11]), np.array([3, 1, 4, 1, 5, 9, 2])
STARTING, LONG, SEVERAL = axn.named(STARTS, "batch"), axn.named(LENGTHS, "batch"), axn.named(BY_QUERY, "pos")
BEFORE, FIRST = PLACE <= AT, LENGTHS[:, None, None] > PLACE
NEAR, PADDED = np.abs(AT + 1 - PLACE) < 3, np.asarray(PADDING.array)[:, None]
VISIBLE = {
    "padding": (nn.causal() & PADDING, 0, BEFORE & PADDED),
    "segments": (nn.segments(IDS, KEY_IDS), 0, IDS.array[:, :, None] == KEY_IDS.array[:, None]),
    "prefix": (nn.causal() | nn.prefix(LONG), 0, BEFORE | FIRST),
    "starts": (nn.causal(), STARTING, AT + STARTS[:, None, None] >= PLACE),
    "a prefix for each query": (nn.prefix(SEVERAL) & PADDING, 0, (BY_QUERY[:, None] > PLACE) & PADDED),
    "a start for each query": (nn.causal() & PADDING, SEVERAL, (AT + BY_QUERY[:, None] >= PLACE) & PADDED),
    "few bits": (nn.window(3) | nn.prefix(LONG.astype(jnp.uint8)), jnp.uint8(1), NEAR | FIRST),
}


@jax.jit
def without_heads(seen, q, k, v):
    """Attend by hand, with gradients; what is seen is an argument, so that one program serves all masks."""

    def theirs(q, k, v):
        q, k = (jnp.broadcast_to(x, (4, *x.shape[-2:])) for x in (q, k))
        return by_hand(q[:, None, None], k[:, None], v[:, None], seen[:, None, None], xp=jnp)[:, 0, 0]

    return with_gradients(theirs)(q, k, v)


@pytest.mark.parametrize("batch", ["named", "anonymous", "of masks and values alone"])
@pytest.mark.parametrize("case", VISIBLE)
def test_what_masks_say_for_each_pair_without_heads(case, batch):
    """The mask has all axes of the scores, in an order of its own; or dimensions that scores lack."""
    mask, start, seen = VISIBLE[case]
    q, k, v = draw(B, Q, D), draw(B, K, D, seed=1), draw(B, K, F, seed=2)
    if batch == "of masks and values alone":
        q, k = q["batch", 0], k["batch", 0]
    if batch != "named":
        untagged = lambda x: x.untag("batch") if isinstance(x, axn.NamedArray) and x.has_axis("batch") else x  # noqa: E731
        is_named = lambda x: isinstance(x, axn.NamedArray)  # noqa: E731
        q, k, v, mask, start = jax.tree.map(untagged, (q, k, v, mask, start), is_leaf=is_named)

    out, gradients = with_gradients(lambda *x: attend(*x, mask=mask, q_start=start))(q, k, v)
    expected, others = without_heads(np.broadcast_to(seen, (4, 7, 11)), q.array, k.array, v.array)
    np.testing.assert_allclose(out.array, expected, rtol=1e-5, atol=1e-5)
    for mine, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(mine.array, other, rtol=1e-5, atol=2e-5)


@functools.cache
def biased(causal):
    """Compile attention with a bias, once for all biases."""
    return with_gradients(lambda q, k, v, bias: attend(q, k, v, mask=nn.causal() if causal else None, bias=bias))


@jax.jit
def biased_by_hand(seen, q, k, v, bias):
    def theirs(q, k, v, bias):
        scores = jnp.einsum("bhgqd,bhkd->bhgqk", q, k) / 8**0.5 + bias
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
        return jnp.einsum("bhgqk,bhkd->bhgqd", weights, v)

    return with_gradients(theirs)(q, k, v, bias)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("low", [-1e9, -1e30, float(np.finfo(np.float32).min)])
def test_a_bias_that_hides_all_keys_of_a_query(low, causal):
    """They weigh alike then, whose scores are so low that no logarithm of a sum can be told from the largest one."""
    q, k, v = inputs()
    bias = np.where((AT < 2) | (PLACE == 3), low, 0).astype(np.float32)
    given = q, k, v, axn.named(bias, ("pos", "key_pos"))
    out, gradients = biased(causal)(*given)
    seen = BEFORE if causal else np.full((7, 11), True)
    expected, others = biased_by_hand(seen, *(x.array for x in given))
    same(out, NAMES, expected)
    same_trees([x.array for x in gradients], list(others), atol=2e-5)


@pytest.mark.parametrize("axes", [(Q.resize(0), K), (Q, K.resize(0)), (Q.resize(0), K.resize(0))], ids=str)
def test_no_positions(axes):
    q, k, v = draw(B, axes[0], D), draw(B, axes[1], D, seed=1), draw(B, axes[1], F, seed=2)
    out, gradients = with_gradients(lambda *x: attend(*x, mask=nn.causal()))(q, k, v)
    same(out, ("batch", "pos", "out"), np.zeros((4, axes[0].size, 6)))
    for mine, x in zip(gradients, (q, k, v), strict=True):
        same(mine, x.names, np.zeros(x.array.shape))


def test_half_precision_and_queries_without_keys():
    q, k, v = inputs()
    mask = nn.causal() & PADDING
    expected, others = with_gradients(lambda *x: attend(*x, mask=mask, implementation="plain"))(q, k, v)
    same(expected["batch", 3], NAMES[1:], np.broadcast_to(v["batch", 3].array.mean(1)[:, None, None], (2, 3, 7, 6)))
    for dtype in (jnp.bfloat16, jnp.float16):
        out, gradients = with_gradients(lambda *x: attend(*x, mask=mask))(*(x.astype(dtype) for x in (q, k, v)))
        assert {x.dtype for x in (out, *gradients)} == {jnp.dtype(dtype)}
        tolerance = 8 * float(jnp.finfo(dtype).eps)
        same(out, NAMES, expected.array, rtol=tolerance, atol=tolerance)
        for mine, other in zip(gradients, others, strict=True):
            same(mine, other.names, other.array, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_where_a_query_sees_almost_one_key(dtype):
    """What values pass back to its weight is almost all taken away again: both must be rounded alike, or not at all."""
    given = [x.astype(dtype) for x in inputs()]
    given[0] = given[0] * 64
    wide = [np.asarray(x.array, np.float32) for x in given]
    _, expected = with_gradients(functools.partial(by_hand, xp=jnp))(*wide)
    _, gradients = with_gradients(attend)(*given)
    for mine, theirs in zip(gradients, expected, strict=True):
        difference = np.abs(np.asarray(mine.array, np.float32) - theirs).mean()
        assert difference < 4 * float(jnp.finfo(dtype).eps) * np.abs(theirs).mean()


def test_other_axes_and_sizes_of_blocks():
    """Keys have an axis that queries lack, and values two of features."""
    q, k, v = draw(Q, D), draw(G, K, D, seed=1), draw(K, F, G, axn.Axis("more", 2), seed=2)
    expected = nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, mask=nn.causal(), implementation="plain")
    for block_size in (None, 1, (7, 4)):
        out = jax.jit(lambda *x: attend(*x, mask=nn.causal(), block_size=block_size))(q, k, v)  # noqa: B023
        same(out, expected.names, expected.array)


def test_blocks_that_divide_the_positions():
    Even, Even_key = axn.make_axes(pos=6, key_pos=8)
    given = draw(H, Even, D), draw(H, Even_key, D, seed=1), draw(H, Even_key, F, seed=2)
    run = with_gradients(lambda *x: attend(*x, mask=nn.causal()))
    out, gradients = run(*given)
    expected, others = with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation="plain"))(*given)
    same(out, expected.names, expected.array)
    same_trees(gradients, others, atol=2e-5)
    counts = [e.primitive.name for e in equations(jax.make_jaxpr(run)(*given).jaxpr) if e.outvars[0].aval.shape == ()]
    # Each of the four loops multiplies once, for the first position of its block, and no block begins elsewhere.
    assert (counts.count("mul"), counts.count("min"), counts.count("rem")) == (4, 0, 0)


def test_one_query_is_computed_at_once():
    q, k, v = inputs()
    one = nn.dot_product_attention(
        None, K, D, q["pos", 2], k, v, mask=nn.causal(), q_start=2, implementation="blockwise"
    )
    whole = attend(q, k, v, mask=nn.causal(), implementation="plain")
    same(one, ("batch", "heads", "group", "out"), whole["pos", 2].array)


def test_hidden_blocks_are_not_read():
    q, k, v = inputs()
    for mask, start, read in (
        (nn.causal(), 0, (0, 8)),
        (nn.causal() & nn.window(2), 5, (4, 11)),
        (nn.prefix(3), 0, (0, 4)),
    ):
        hidden = axn.named((np.arange(11) < read[0]) | (np.arange(11) >= read[1]), "key_pos")
        hide = lambda x: axn.where(hidden, jnp.nan, x)  # noqa: B023, E731
        out, (by_query, *_) = with_gradients(lambda *x: attend(*x, mask=mask, q_start=start))(q, hide(k), hide(v))  # noqa: B023
        assert np.isfinite(out.array).all()
        assert np.isfinite(by_query.array).all()
        assert not np.isfinite(
            attend(q, hide(k), hide(v), mask=mask, q_start=start, implementation="plain").array
        ).any()


def test_dropout_is_the_same_in_both_passes():
    q, k, _ = inputs()
    options = {"mask": nn.causal(), "q_start": 4, "dropout": 0.4, "key": jax.random.key(0, impl="rbg")}
    identity = axn.named(np.eye(11, dtype=np.float32), ("key_pos", "out"))
    kept = jax.jit(lambda q, k: attend(q, k, identity, **options))(q, k)
    whole = attend(q, k, identity, **options, inference=True, implementation="plain")
    left = np.asarray(kept.array != 0)
    assert abs(left[np.asarray(whole.array > 0)].mean() - 0.6) < 0.05
    same(kept, whole.names, whole.array * left / 0.6)

    def by_weights(q, k, v):
        scores = jnp.einsum("bhgqd,bhkd->bhgqk", q, k) / 8**0.5
        weights = jax.nn.softmax(jnp.where(np.tri(7, 11, 4, dtype=bool), scores, -1e30)) * left / 0.6
        return jnp.einsum("bhgqk,bhkd->bhgqd", weights, v)

    v = inputs()[2]
    out, gradients = with_gradients(lambda *x: attend(*x, **options))(q, k, v)
    expected, others = with_gradients(by_weights)(q.array, k.array, v.array)
    same(out, NAMES, expected)
    same_trees([x.array for x in gradients], list(others), atol=2e-5)


def test_memory_is_linear_in_positions():
    @functools.cache
    def temp_bytes(positions, implementation):
        Heads, Long, Long_key = axn.make_axes(heads=2, pos=positions, key_pos=positions)
        shapes = jax.eval_shape(lambda: (axn.zeros((Heads, Long, D)), *[axn.zeros((Heads, Long_key, D))] * 2))
        run = with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation=implementation, block_size=64))
        return run.lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    assert temp_bytes(1024, "blockwise") < 2.1 * temp_bytes(512, "blockwise")
    assert temp_bytes(1024, "plain") > 3.5 * temp_bytes(512, "plain")
    assert temp_bytes(1024, "blockwise") < 0.2 * temp_bytes(1024, "plain")


# layout
M = axn.Axis("key_pos", 7)


def call(model, q, k, v):
    mask = nn.causal() & nn.segments(IDS)
    return attend(q, k, v, mask=mask, bias=model["bias"], sinks=model["sinks"]).rename({"out": "features"})


MODEL = {"bias": draw(H, Q, M, seed=3), "sinks": draw(H, G, seed=4)}


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    check_on(mesh, call, MODEL, draw(B, H, G, Q, D), draw(B, H, M, D, seed=1), draw(B, H, M, F, seed=2))


def test_sharded_batch_and_heads_send_nothing(auto_mesh, explicit_mesh):
    arrays = draw(B, H, G, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, F, seed=2)
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            step = axn.named_jit(
                with_gradients(lambda *x: attend(*x, mask=nn.causal() & nn.window(3))), COMPUTE, strict=False
            )
            text = step.lower(*axn.shard(arrays, COMPUTE, strict=False)).compile().as_text()
        assert not re.search(r"\b(all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter)(-start)?\(", text)


def test_sharded_positions_are_gathered(auto_mesh, explicit_mesh):
    mapping = {"batch": "data", "pos": "model"}
    P, R = axn.make_axes(pos=8, key_pos=8)
    arrays = draw(B, H, P, D), draw(B, H, R, D, seed=1), draw(B, H, R, F, seed=2)
    run = with_gradients(lambda *x: attend(*x, mask=nn.causal()))
    out, gradients = with_gradients(lambda *x: attend(*x, mask=nn.causal(), implementation="plain"))(*arrays)
    with axn.set_mesh(auto_mesh):
        result, others = axn.named_jit(run, mapping, strict=False)(*axn.shard(arrays, mapping, strict=False))
        assert lies(result, auto_mesh, mapping)
    same(result, out.names, out.array)
    same_trees(others, gradients)
    with axn.set_mesh(explicit_mesh):  # the types tell, without a mapping too
        result, others = run(*axn.shard(arrays, mapping, strict=False))
    same(result, out.names, out.array)
    same_trees(others, gradients)


def test_in_a_shard_map_and_under_vmap(auto_mesh):
    q, k, v = inputs()
    k = k["batch", 0]  # the same on all devices that have other batches: its gradient is a sum over them
    call = lambda *x: attend(*x, mask=nn.causal())  # noqa: E731
    out, gradients = with_gradients(call)(q, k, v)
    with axn.set_mesh(auto_mesh):
        result, others = with_gradients(axn.shard_map(call, mapping=COMPUTE, strict=False))(q, k, v)
    same(result, out.names, out.array)
    same_trees(others, gradients)
    each = jax.vmap(call, in_axes=(0, None, 0))(q.untag("batch"), k, v.untag("batch"))
    same(each.tag("batch").rearrange(out.names), out.names, out.array)


def test_errors():
    with pytest.raises(ArgumentError) as caught:
        attend(*inputs(), block_size=(3, 0))
    assert str(caught.value) == "dot_product_attention: a block must have at least one position, not 0"


@pytest.mark.parametrize(("size", "positions"), [("n", 5), ("4*n", 8)])
def test_the_number_of_positions_may_be_known_later(size, positions):
    """In `jax.export`, blocks are cut where they are known to divide the axis."""

    def run(query, key, value):
        q, k = axn.named(query, ("pos", "head_dim")), axn.named(key, ("key_pos", "head_dim"))
        v = axn.named(value, ("key_pos", "head_dim"))
        return attend(q, k, v, mask=nn.causal(), block_size=(4, 4)).array

    arrays = [np.random.default_rng(i).normal(size=(positions, 2)).astype(np.float32) for i in range(3)]
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"{size}, 2"), jnp.float32)
    found = jax.export.export(jax.jit(run))(spec, spec, spec).call(*arrays)
    query, key, value = arrays
    scores = np.where(np.tri(positions, dtype=bool), query @ key.T / np.sqrt(2), -np.inf)
    np.testing.assert_allclose(found, jax.nn.softmax(scores) @ value, rtol=1e-5, atol=1e-6)
