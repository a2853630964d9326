"""The cache of keys and values, against attention to all tokens at once."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, OperandError
from benchmarks.trace import equations
from tests.nn.attending import by_hand
from tests.nn.layouts import COMPUTE, draw, fails, lies, same, same_trees

B, H, G, D, F, T = axn.make_axes(batch=4, heads=2, group=3, head_dim=8, out=6, pos=12)
NAMES = ("batch", "heads", "group", "pos", "out")
Q, K, V = draw(B, H, G, T, D), draw(B, H, T, D, seed=1), draw(B, H, T, F, seed=2)


def empty(size, **options):
    Places = axn.Axis("key_pos", size)
    return nn.KVCache.init("key_pos", (B, Places, H, D), (B, H, Places, F), **options)


def whole(window=None):
    distance = np.arange(12)[:, None] - np.arange(12)
    seen = (distance >= 0) & (True if window is None else distance < window)
    return by_hand(Q.array, K.array, V.array, seen)


@jax.jit
def step(cache, q, k, v, **options):
    return cache.attend("pos", "head_dim", q, k, v, **options)


def in_chunks(cache, chunks, call=step):
    outs, at = [], 0
    for n in chunks:
        out, cache = call(cache, *(x["pos", at : at + n] for x in (Q, K, V)))
        assert out.names == NAMES
        outs.append(out.array)
        at += n
    return np.concatenate(outs, NAMES.index("pos")), cache


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("lengths", [(), B], ids=["one length", "lengths"])
def test_chunks_and_tokens_give_the_whole(window, lengths):
    cache = empty(12 if window is None else 6, window=window, lengths=lengths)
    out, cache = in_chunks(cache, (4, 4, 1, 1, 1, 1))
    np.testing.assert_allclose(out, whole(window), rtol=1e-5, atol=1e-5)
    assert cache.length.names == (() if lengths == () else ("batch",))
    assert (cache.length.array == 12).all()
    assert cache.value.names == ("batch", "heads", "key_pos", "out")
    if window is None:
        same(cache.key, ("batch", "key_pos", "heads", "head_dim"), np.moveaxis(np.asarray(K.array), 2, 1))


@pytest.mark.parametrize("window", [None, 3])
def test_loops_without_an_axis_of_positions(window):
    """One token at a time in `lax.scan`, whose carry is the cache; the ring goes around several times."""
    size = 12 if window is None else 4

    def body(cache, token):
        out, cache = cache.attend(None, "head_dim", *token)
        return cache, out

    tokens = tuple(x.rearrange(("pos", ...)).untag("pos") for x in (Q, K, V))
    cache, out = jax.jit(lambda tokens: jax.lax.scan(body, empty(size, window=window), tokens))(tokens)
    same(out.tag("pos").rearrange(NAMES), NAMES, whole(window))
    assert cache.length.item() == 12


@pytest.mark.parametrize("window", [None, 3])
def test_prompts_of_several_lengths(window):
    """Chunks are padded; what stands there is seen by no later token."""
    counts = np.array([1, 4, 2, 3])
    count, at = axn.named(counts, "batch"), axn.arange(axn.Axis("pos", 4))
    cache = empty(10 if window is None else 6, window=window, lengths=B)
    seen, starts = [[] for _ in range(4)], np.zeros(4, int)
    for which in range(2):
        more = count if which == 0 else axn.named(np.array([3, 2, 4, 0]), "batch")
        index = axn.named(jnp.minimum(starts[:, None] + at.array, 11), ("batch", "pos"))
        real = at.broadcast_axis(B) < more
        q, k, v = (x["pos", index] for x in (Q, K, V))
        k, v = (axn.where(real, x, 1e3) for x in (k, v))
        out, cache = step(cache, q, k, v, count=more)
        for b in range(4):
            seen[b].append(np.asarray(out["batch", b].array)[..., : more.array[b], :])
        starts = starts + np.asarray(more.array)
    assert (cache.length.array == starts).all()
    for _ in range(2):
        one = axn.named(starts, "batch")
        out, cache = step(cache, *(x["pos", one].broadcast_axis(axn.Axis("pos", 1)) for x in (Q, K, V)))
        for b in range(4):
            seen[b].append(np.asarray(out["batch", b].rearrange(NAMES[1:]).array))
        starts = starts + 1
    expected = whole(window)
    for b in range(4):
        got = np.concatenate(seen[b], axis=-2)
        np.testing.assert_allclose(got, expected[b][..., : starts[b], :], rtol=1e-5, atol=1e-5)


def test_positions_dtypes_masks_and_implementations():
    cache = empty(12, lengths=B, dtype=jnp.bfloat16)
    assert cache.key.dtype == cache.value.dtype == jnp.bfloat16
    extend = jax.jit(lambda cache, k, v, count: cache.extend("pos", k, v, count=count))
    cache = extend(cache, K["pos", :5], V["pos", :5], axn.named([1, 2, 3, 4], "batch"))
    positions = cache.positions(axn.Axis("pos", 2))
    assert positions.rearrange(("batch", "pos")).tolist() == [[1, 2], [2, 3], [3, 4], [4, 5]]
    assert cache.positions(None).tolist() == [1, 2, 3, 4]
    rest = [x["pos", 5:7] for x in (Q, K, V)]

    @jax.jit
    def run(cache, q, k, v):
        block, _ = cache.attend("pos", "head_dim", q, k, v, nn.window(2), implementation="blockwise", block_size=3)
        out, filled = cache.attend("pos", "head_dim", q, k, v, nn.window(2))
        mask = nn.causal() & nn.window(2)
        names = "pos", "key_pos", "head_dim"
        direct = nn.dot_product_attention(*names, q, filled.key, filled.value, mask, q_start=cache.length)
        return out, block, direct

    out, block, direct = run(cache, *rest)
    assert out.dtype == jnp.float32
    same(out, NAMES, direct.array)
    same(out, NAMES, block.array, rtol=0.02, atol=0.02)
    ring = empty(6, window=3)
    hidden = axn.named(np.arange(6) != 1, "key_pos")
    out, _ = step(ring, *(x["pos", :3] for x in (Q, K, V)), mask=hidden)
    seen = np.tri(3, dtype=bool) & (np.arange(3) != 1)
    same(out, NAMES, by_hand(Q["pos", :3].array, K["pos", :3].array, V["pos", :3].array, seen))


def test_with_wide_integers():
    """The length keeps its dtype, so that a cache is the carry of a loop, and blocks are counted from it."""
    counts = axn.named(np.array([1, 4, 2, 3]), "batch")
    given = [x["pos", :4] for x in (Q, K, V)]
    expected, _ = step(empty(12, lengths=B), *given)
    with jax.enable_x64(True):
        out, _ = empty(12, lengths=B).attend("pos", "head_dim", *given, implementation="blockwise", block_size=5)
        extend = lambda cache, _: (cache.extend("pos", *given[1:], count=counts), None)  # noqa: E731
        cache, _ = jax.lax.scan(extend, empty(12, lengths=B), length=2)
    same(out, NAMES, expected.array)
    assert cache.length.dtype == jnp.int32
    assert cache.length.tolist() == [2, 8, 4, 6]


def test_an_empty_chunk_changes_nothing():
    _, cache = step(empty(12), *(x["pos", :4] for x in (Q, K, V)))
    for implementation in ("plain", "blockwise"):
        nothing = (x["pos", :0] for x in (Q, K, V))
        out, after = cache.attend("pos", "head_dim", *nothing, implementation=implementation)
        same(out, NAMES, np.zeros((4, 2, 3, 0, 6)))
        same_trees(after, cache)


def test_a_cache_of_several_layers():
    """Stored along an axis, the caches of layers are scanned over as the layers are."""
    Layers = axn.Axis("layers", 2)
    Places = axn.Axis("key_pos", 12)
    caches = nn.KVCache.init("key_pos", (Layers, B, Places, H, D), (Layers, B, Places, H, F), lengths=Layers)

    def layer(x, cache):
        out, cache = cache.attend("pos", "head_dim", x, K["pos", :5], V["pos", :5])
        return x + out.sum("out"), cache

    x, filled = jax.jit(lambda caches: axn.scan(layer, Layers)(Q["pos", :5], caches))(caches)
    assert jax.tree.structure(filled) == jax.tree.structure(caches)
    assert filled.length.tolist() == [5, 5]
    out, expected = Q["pos", :5], []
    for _ in range(2):
        more, one = step(empty(12), out, K["pos", :5], V["pos", :5])
        out = out + more.sum("out")
        expected.append(one.key.array)
    same(x, Q.names, out.array)
    same(filled.key, ("layers", "batch", "key_pos", "heads", "head_dim"), np.stack(expected))


def test_what_does_not_fit_is_dropped_under_jit():
    cache = step(empty(6), Q["pos", :4], K["pos", :4], V["pos", :4])[1]
    full = step(cache, Q["pos", :4], K["pos", 4:8], V["pos", 4:8])[1]
    same(full.value, ("batch", "heads", "key_pos", "out"), V["pos", :6].array)
    assert full.length.item() == 8


def test_a_step_of_decoding_has_few_operations():
    token = [x["pos", :1] for x in (Q, K, V)]
    jaxpr = jax.make_jaxpr(lambda cache, *given: cache.attend("pos", "head_dim", *given))(empty(12), *token)
    names = [eqn.primitive.name for eqn in equations(jaxpr.jaxpr)]
    # The position needs no counting, and cannot be negative.
    assert (names.count("iota"), names.count("lt"), names.count("select_n")) == (1, 0, 1)
    assert (names.count("scatter"), names.count("dot_general")) == (2, 2)


def test_gradients_pass_through():
    def loss(q, k, v, cached):
        if cached:
            cache = empty(6)
            first, cache = cache.attend("pos", "head_dim", *(x["pos", :4] for x in (q, k, v)))
            out, _ = cache.attend("pos", "head_dim", *(x["pos", 4:] for x in (q, k, v)))
            return (axn.sin(first).sum() + axn.sin(out).sum()).scalar()
        k, v = (x.rename({"pos": "key_pos"}) for x in (k, v))
        out = nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, nn.causal())
        return axn.sin(out).sum().scalar()

    given = [x["pos", :6] for x in (Q, K, V)]
    run = jax.jit(jax.grad(loss, (0, 1, 2)), static_argnums=3)
    for mine, other in zip(run(*given, True), run(*given, False), strict=True):
        same(mine, other.names, other.array)


# layout
@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("lengths", [(), B], ids=["one length", "lengths"])
def test_on_a_mesh(kind, lengths, auto_mesh, explicit_mesh):
    """Nothing is sent, and a donated cache is written in place."""
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    with axn.set_mesh(mesh):
        make = axn.named_jit(lambda: empty(6, window=3, lengths=lengths), COMPUTE, strict=False)
        cache = make()
        assert lies(cache.key, mesh, COMPUTE)
        assert lies(cache.length, mesh, COMPUTE)
        call = lambda cache, *given: cache.attend("pos", "head_dim", *given)  # noqa: E731
        run = axn.named_jit(call, COMPUTE, donate_args=(True, False, False, False), strict=False)
        given = axn.shard((Q, K, V), COMPUTE, strict=False)
        compiled = run.lower(cache, *(x["pos", :4] for x in given)).compile()
        sent = r"\b(all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter)(-start)?\("
        assert not re.search(sent, compiled.as_text())
        assert compiled.memory_analysis().alias_size_in_bytes >= (cache.key.nbytes + cache.value.nbytes) // 8
        old = cache
        outs = []
        for at in (0, 4, 8):
            out, cache = run(cache, *(x["pos", at : at + 4] for x in given))
            outs.append(np.asarray(out.array))
            assert lies(out, mesh, COMPUTE)
            assert lies(cache.value, mesh, COMPUTE)
        assert old.key.is_deleted()
    np.testing.assert_allclose(np.concatenate(outs, 3), whole(3), rtol=1e-5, atol=1e-5)


def test_constraints_are_emitted(auto_mesh):
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTE):
        jaxpr = jax.make_jaxpr(lambda: empty(6).extend("pos", K["pos", :2], V["pos", :2]))()
    specs = [
        eqn.params["sharding"].spec for eqn in equations(jaxpr.jaxpr) if eqn.primitive.name == "sharding_constraint"
    ]
    P = jax.sharding.PartitionSpec
    key, value = P("data", None, "model", None), P("data", "model", None, None)
    assert specs == [key, value, P(), key, value, P()]


# errors
HAS = "  cache has: batch=4, key_pos=6, heads=2, head_dim=8"


def test_keys_and_values_that_do_not_fit():
    cache, k, v = empty(6), K["pos", :4], V["pos", :4]
    fails(
        AxisNotFoundError,
        "KVCache.init: the values lack axis 'key_pos', the positions\n  axes: batch=4, out=6",
        lambda: nn.KVCache.init("key_pos", (B, axn.Axis("key_pos", 3), D), (B, F)),
    )
    fails(
        ArgumentError,
        "KVCache.init: a window has from one position to as many as the cache, not 7\n"
        "  axes: batch=4, key_pos=6, heads=2, head_dim=8",
        lambda: empty(6, window=7),
    )
    fails(
        AxisNotFoundError,
        f"KVCache: the key lacks axis 'heads'\n  key has: batch=4, head=2, pos=4, head_dim=8\n{HAS}\n"
        "  hint: did you mean 'head'?",
        lambda: cache.extend("pos", k.rename({"heads": "head"}), v),
    )
    fails(
        AxisNotFoundError,
        "KVCache: the value lacks axis 'pos'\n  value has: batch=4, heads=2, out=6\n"
        "  cache has: batch=4, heads=2, key_pos=6, out=6",
        lambda: cache.extend("pos", k, v["pos", 0]),
    )
    fails(
        AxisClashError,
        "KVCache: the key has axis 'pos', which is none of a new key\n"
        f"  key has: batch=4, heads=2, pos=4, head_dim=8\n{HAS}",
        lambda: cache.extend(None, k, v),
    )
    more = k.broadcast_axis(axn.Axis("key_pos", 2))
    fails(
        AxisClashError,
        "KVCache: the key has axis 'key_pos', which is none of a new key\n"
        f"  key has: key_pos=2, batch=4, heads=2, pos=4, head_dim=8\n{HAS}\n"
        "  hint: positions of new tokens have a name of their own",
        lambda: cache.extend("pos", more, v),
    )
    with pytest.raises(OperandError, match=r"^KVCache: expected a NamedArray, got ArrayImpl"):
        cache.extend("pos", k.array, v)


def test_tokens_that_find_no_room():
    cache, k, v = empty(6), K["pos", :4], V["pos", :4]
    fails(
        ArgumentError,
        f"KVCache: 4 more tokens do not fit\n{HAS}\n  hint: make it larger, or give it a window; at once it takes 6",
        lambda: cache.extend("pos", k, v).extend("pos", k, v),
    )
    ragged = empty(6, lengths=B).extend("pos", k, v, count=axn.named([4, 1, 1, 1], "batch"))
    ragged = ragged.extend("pos", k, v, count=axn.named([2, 4, 4, 4], "batch"))
    assert ragged.length.tolist() == [6, 5, 5, 5]
    fails(
        ArgumentError,
        f"KVCache: 1 more token does not fit\n{HAS}\n  hint: make it larger, or give it a window; at once it takes 6",
        lambda: ragged.extend(None, k["pos", 0], v["pos", 0]),
    )
    fails(
        ArgumentError,
        f"KVCache: 4 more tokens do not fit\n{HAS}\n  hint: make it larger, or give it a window; at once it takes 3",
        lambda: empty(6, window=4).extend("pos", k, v),
    )
    fails(
        AxisNotFoundError,
        "KVCache: the count has axes along which all sequences have one length\n  count has: batch=4\n"
        "  length has: no axes\n  hint: KVCache.init(..., lengths=...)",
        lambda: cache.extend("pos", k, v, count=axn.named([1, 2, 3, 4], "batch")),
    )
    fails(
        ArgumentError,
        "KVCache.attend: in a ring, the axis of keys counts places, which a mask cannot compare with positions\n"
        "  hint: the window of the cache is causal already; give other conditions as an array",
        lambda: empty(6, window=3).attend("pos", "head_dim", Q["pos", :4], k, v, mask=nn.window(2)),
    )
