"""The cache of keys and values, against attention to all tokens at once."""

import dataclasses
import functools
import re
from contextlib import nullcontext

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import equations

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.attending import by_hand
from tests.nn.layouts import COMPUTE, compiled, draw, fails, lies, same, same_trees

pytestmark = pytest.mark.sampled

B, H, G, D, F, T = axn.make_axes(batch=4, heads=2, group=3, head_dim=8, out=6, pos=12)
NAMES = ("batch", "heads", "group", "pos", "out")
SENT = r"\b(all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter)(-start)?\("
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


def test_stacked_caches_are_those_with_an_axis_of_layers_first():
    Layers, Places = axn.make_axes(layers=3, key_pos=12)
    axes, values = (B, Places, H, D), (B, H, Places, F)
    options = {"window": 3, "dtype": jnp.bfloat16}
    stacked = nn.KVCache.stacked(Layers, "key_pos", axes, values, lengths=B, **options)
    expected = nn.KVCache.init("key_pos", (Layers, *axes), (Layers, *values), lengths=(Layers, B), **options)
    same_trees(stacked, expected)
    assert stacked.key.names == ("layers", "batch", "key_pos", "heads", "head_dim")
    shared = nn.KVCache.stacked(Layers, "key_pos", axes)
    assert shared.value.axes == shared.key.axes
    assert shared.length.axes == (Layers,)
    with pytest.raises(AxisClashError, match="batch"):
        nn.KVCache.stacked(B, "key_pos", axes)


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


def test_keys_that_are_values_are_stored_once():
    Places = axn.Axis("key_pos", 12)
    cache = nn.KVCache.init("key_pos", (B, Places, H, D), shared=True)
    assert cache.value is None
    for at in (slice(8), slice(8, 12)):
        out, cache = compiled(
            lambda cache, q, k: cache.attend("pos", "head_dim", q, k), cache, Q["pos", at], K["pos", at]
        )
    expected = by_hand(Q.array, K.array, K.array, np.tri(12, dtype=bool))
    same(out, (*NAMES[:-1], "head_dim"), expected[:, :, :, 8:])
    fails(
        OperandError,
        "KVCache: the keys of this cache are the values, too\n"
        "  hint: give no values, or make the cache with shared=False",
        lambda: cache.extend("pos", K, K),
    )
    fails(
        ArgumentError,
        "KVCache.init: values that are the keys must not have axes of their own\n"
        "  hint: leave out value_axes, or shared=True",
        lambda: nn.KVCache.init("key_pos", (B, Places, H, D), (B, Places, F), shared=True),
    )
    fails(
        OperandError,
        "KVCache: the values are missing\n  hint: give values, or make the cache with shared=True",
        lambda: empty(12).extend("pos", K),
    )


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
        out, after = compiled(cache.attend, "pos", "head_dim", *nothing, implementation=implementation)
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


LAYERS = axn.Axis("layers", 16)
STACKED = {
    "one length": ((LAYERS, B), LAYERS),
    "lengths": ((LAYERS, B), (LAYERS, B)),
    "lengths in another order": ((B, LAYERS), (B, LAYERS)),
}


def stacked(size, axes, lengths, window=None):
    Places = axn.Axis("key_pos", size)
    return nn.KVCache.init("key_pos", (*axes, H, Places, D), (*axes, Places, H, F), lengths=lengths, window=window)


def through_layers(caches, q, k, v, **options):
    """Each layer gets the tokens shifted by its number, so that all caches differ."""

    def layer(carry, i):
        x, caches = carry
        out, caches = caches.attend("pos", "head_dim", x, k + i, v - i, layer=("layers", i), **options)
        return x + out.sum("out"), caches

    return axn.fold(layer, LAYERS)((q, caches), axn.arange(LAYERS))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kind", STACKED)
def test_layers_in_a_carry(kind, window):
    """One layer at a time is written and read, as if it had a cache of its own."""
    axes, lengths = STACKED[kind]
    caches, run = stacked(10 if window is None else 6, axes, lengths, window), jax.jit(through_layers)
    alone = [empty(10 if window is None else 6, window=window, lengths=() if lengths == LAYERS else B)] * 16
    options = {} if lengths == LAYERS else {"count": axn.named([4, 1, 2, 3], "batch")}
    for at, size, given in ((0, 4, options), (4, 4, {}), (8, 1, {})):
        q, k, v = (x["pos", at : at + size] for x in (Q, K, V))
        x, caches = run(caches, q, k, v, **given)
        for i in range(16):
            out, alone[i] = step(alone[i], q, k + i, v - i, **given)
            q = q + out.sum("out")
        same(x, q.names, q.array, rtol=1e-4, atol=1e-3)
    for i, one in enumerate(alone):
        assert caches.length["layers", i].tolist() == one.length.tolist()
        for mine, other in ((caches.key, one.key), (caches.value, one.value)):
            same(mine["layers", i].rearrange(other.names), other.names, other.array)


def test_a_layer_by_number():
    Layers = axn.Axis("layers", 3)
    given = [x["pos", :2] for x in (K, V)]
    for lengths in ((Layers,), (Layers, B)):
        caches = stacked(4, (Layers, B), lengths)
        extend = lambda caches, at: caches.extend("pos", *given, layer=("layers", at))  # noqa: E731
        at_each = lambda caches, *at, extend=extend: [extend(caches, each) for each in (-2, *at)]  # noqa: E731
        of_known, *others = jax.jit(at_each)(caches, np.int64(1), jnp.int8(-2), axn.named(1, ()))
        expected = caches.extend("pos", *given, layer=(Layers, 1))
        written = (expected.key != 0).any(("batch", "key_pos", "heads", "head_dim"))
        assert written.tolist() == (expected.length.max(lengths[1:]) > 0).tolist() == [False, True, False]
        for found in (of_known, *others, extend(caches, -2)):
            same_trees(found, expected)


def temporaries(compiled, caches):
    """The memory that a step needs beside the caches, as a part of these, on one device."""
    held = compiled.memory_analysis()
    whole = sum(x.nbytes // len(x.sharding.device_set) for x in (caches.key.array, caches.value.array))
    assert held.alias_size_in_bytes >= whole
    return held.temp_size_in_bytes / whole


@pytest.mark.parametrize("mesh", [None, "auto", "explicit"])
@pytest.mark.parametrize("kind", STACKED)
def test_layers_in_a_carry_are_written_in_place(kind, mesh, auto_mesh, explicit_mesh):
    """One layer is read at a time, and nothing is sent."""
    given = [x["pos", :1] for x in (Q, K, V)]
    expected, filled = jax.jit(through_layers)(stacked(256, *STACKED[kind]), *given)
    mapping = None if mesh is None else COMPUTE
    with axn.set_mesh({"auto": auto_mesh, "explicit": explicit_mesh}[mesh]) if mesh else nullcontext():
        caches = axn.named_jit(lambda: stacked(256, *STACKED[kind]), mapping, strict=False)()
        run = axn.named_jit(through_layers, mapping, donate_args=(True, False, False, False), strict=False)
        given = axn.shard(given, mapping, strict=False) if mesh else given
        compiled = run.lower(caches, *given).compile()
        assert temporaries(compiled, caches) < 1 / 8
        assert not re.search(SENT, compiled.as_text())
        x, after = run(caches, *given)
    same(x, expected.names, expected.array)
    same_trees(jax.device_get(after), jax.device_get(filled))


@pytest.mark.parametrize("kind", STACKED)
def test_a_layer_is_written_by_its_new_tokens_alone(kind):
    caches, given = stacked(256, *STACKED[kind]), [x["pos", :2] for x in (Q, K, V)]
    # XLA counts an update as if it wrote the whole array: only what is traced shows how much is written.
    jaxpr = jax.make_jaxpr(through_layers)(caches, *given)
    wide = {x.array.shape for x in (caches.key, caches.value)}
    scatters = [eqn for eqn in equations(jaxpr.jaxpr) if eqn.primitive.name == "scatter"]
    into_caches = [eqn for eqn in scatters if eqn.outvars[0].aval.shape in wide]
    assert [eqn.invars[2].aval.size for eqn in into_caches] == [x.array.size for x in given[1:]]


def test_sequences_with_lengths_are_written_in_place():
    """Where their axis stands does not matter."""
    Places, counts = axn.Axis("key_pos", 256), axn.named(np.arange(8).reshape(4, 2) % 3, (B, H))
    cache = nn.KVCache.init("key_pos", (H, B, Places, D), (Places, H, B, F), lengths=(B, H))
    extend = lambda cache, k, v, count: cache.extend("pos", k, v, count=count)  # noqa: E731
    run, given = jax.jit(extend, donate_argnums=0), (K["pos", :2], V["pos", :2], counts)
    assert temporaries(run.lower(cache, *given).compile(), cache) < 1 / 8
    twice = run(run(cache, *given), *given)
    for b, h in np.ndindex(4, 2):
        n = counts["batch", b]["heads", h].item()
        key = np.concatenate([K["batch", b]["heads", h]["pos", :size].array for size in (n, 2)])
        np.testing.assert_array_equal(twice.key["batch", b]["heads", h].array[: n + 2], key)


def test_what_does_not_fit_is_dropped_under_jit():
    cache = step(empty(6), Q["pos", :4], K["pos", :4], V["pos", :4])[1]
    full = step(cache, Q["pos", :4], K["pos", 4:8], V["pos", 4:8])[1]
    same(full.value, ("batch", "heads", "key_pos", "out"), V["pos", :6].array)
    assert full.length.item() == 8


def test_a_step_of_decoding_has_few_operations():
    token = [x["pos", :1] for x in (Q, K, V)]
    run = jax.jit(lambda cache, *given: cache.attend("pos", "head_dim", *given))
    text = run.lower(empty(12), *token).as_text()
    names = re.findall(r"stablehlo\.(\w+)[\" ]", text)
    # The position needs no counting, and cannot be negative.
    assert (names.count("iota"), names.count("compare"), names.count("select")) == (1, 1, 1)
    assert (names.count("scatter"), names.count("dot_general")) == (2, 2)


GIVEN = [x["pos", :6] for x in (Q, K, V)]


@functools.cache
def gradients_without_a_cache():
    def loss(q, k, v):
        k, v = (x.rename({"pos": "key_pos"}) for x in (k, v))
        out = nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, nn.causal())
        return axn.sin(out).sum().scalar()

    return jax.jit(jax.grad(loss, (0, 1, 2)))(*GIVEN)


@pytest.mark.parametrize("kind", ["one length", "lengths", "a layer"])
def test_gradients_pass_through(kind):
    def loss(q, k, v):
        cache = stacked(6, (LAYERS, B), (LAYERS, B)) if kind == "a layer" else empty(6, lengths=B)
        cache = empty(6) if kind == "one length" else cache
        options = {"layer": ("layers", 2)} if kind == "a layer" else {}
        first, cache = cache.attend("pos", "head_dim", *(x["pos", :4] for x in (q, k, v)), **options)
        out, _ = cache.attend("pos", "head_dim", *(x["pos", 4:] for x in (q, k, v)), **options)
        return (axn.sin(first).sum() + axn.sin(out).sum()).scalar()

    for mine, other in zip(jax.jit(jax.grad(loss, (0, 1, 2)))(*GIVEN), gradients_without_a_cache(), strict=True):
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
        assert not re.search(SENT, compiled.as_text())
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


def test_one_token_is_put_into_a_cache_that_is_split_just_before(explicit_mesh):
    """On all devices but one its place is out of range."""
    one = axn.named(jnp.array([5]), "batch")
    old, new = draw(axn.Axis("batch", 1), axn.Axis("key_pos", 16), D), axn.ones((axn.Axis("batch", 1), D))

    def step(old):
        split = axn.shard(old * 2, {"key_pos": ("data", "model")})
        cache = nn.KVCache.init("key_pos", old.axes, lengths=axn.Axis("batch", 1))
        cache = dataclasses.replace(cache, key=split, value=split, length=one)
        return cache.extend(None, new, new).key

    with axn.set_mesh(explicit_mesh):
        found = jax.jit(step)(axn.shard(jax.device_get(old), {}))
    np.testing.assert_array_equal(found.array, np.asarray((old * 2).at["key_pos", 5].set(1.0).array))


def test_a_cache_lies_as_the_mapping_says(auto_mesh):
    elsewhere = empty(6)
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTE):
        caches = jax.jit(lambda: (empty(6), elsewhere.extend("pos", K["pos", :2], V["pos", :2])))()
    for cache in caches:
        assert lies(cache.key, auto_mesh, COMPUTE)
        assert lies(cache.value, auto_mesh, COMPUTE)


# errors
HAS = "  cache has: batch=4, key_pos=6, heads=2, head_dim=8"


def test_keys_and_values_that_do_not_fit():
    cache, k, v = empty(6), K["pos", :4], V["pos", :4]
    fails(
        AxisNotFoundError,
        "KVCache.init: the values lack axis 'key_pos', the positions\n  values have: batch=4, out=6",
        lambda: nn.KVCache.init("key_pos", (B, axn.Axis("key_pos", 3), D), (B, F)),
    )
    fails(
        AxisSizeError,
        "KVCache.init: axis 'key_pos' was given with size 7, but the keys have size 3\n"
        "  keys have: batch=4, key_pos=3, head_dim=8",
        lambda: nn.KVCache.init(axn.Axis("key_pos", 7), (B, axn.Axis("key_pos", 3), D)),
    )
    fails(
        ArgumentError,
        "KVCache.init: window must be from 1 to 6, the size of the cache, not 7\n"
        "  axes: batch=4, key_pos=6, heads=2, head_dim=8",
        lambda: empty(6, window=7),
    )
    fails(
        AxisNotFoundError,
        f"KVCache: the keys lack axis 'heads'\n  keys have: batch=4, head=2, pos=4, head_dim=8\n{HAS}\n"
        "  hint: did you mean 'head'?",
        lambda: cache.extend("pos", k.rename({"heads": "head"}), v),
    )
    fails(
        AxisNotFoundError,
        "KVCache: the values lack axis 'pos'\n  values have: batch=4, heads=2, out=6\n"
        "  cache has: batch=4, heads=2, key_pos=6, out=6",
        lambda: cache.extend("pos", k, v["pos", 0]),
    )
    fails(
        AxisClashError,
        f"KVCache: new keys must not have axis 'pos'\n  keys have: batch=4, heads=2, pos=4, head_dim=8\n{HAS}",
        lambda: cache.extend(None, k, v),
    )
    more = k.broadcast_axis(axn.Axis("key_pos", 2))
    fails(
        AxisClashError,
        "KVCache: new keys must not have axis 'key_pos'\n"
        f"  keys have: key_pos=2, batch=4, heads=2, pos=4, head_dim=8\n{HAS}\n"
        "  hint: give the positions of new tokens another name",
        lambda: cache.extend("pos", more, v),
    )
    with pytest.raises(OperandError, match=r"^KVCache: expected a NamedArray, got a plain array"):
        cache.extend("pos", k.array, v)


def test_tokens_that_find_no_room():
    cache, k, v = empty(6), K["pos", :4], V["pos", :4]
    fails(
        ArgumentError,
        f"KVCache: 4 more tokens do not fit\n{HAS}\n  hint: make it larger, or give it a window; at most 6 fit at once",
        lambda: cache.extend("pos", k, v).extend("pos", k, v),
    )
    ragged = empty(6, lengths=B).extend("pos", k, v, count=axn.named([4, 1, 1, 1], "batch"))
    ragged = ragged.extend("pos", k, v, count=axn.named([2, 4, 4, 4], "batch"))
    assert ragged.length.tolist() == [6, 5, 5, 5]
    fails(
        ArgumentError,
        f"KVCache: 1 more token does not fit\n"
        f"{HAS}\n  hint: make it larger, or give it a window; at most 6 fit at once",
        lambda: ragged.extend(None, k["pos", 0], v["pos", 0]),
    )
    fails(
        ArgumentError,
        f"KVCache: 4 more tokens do not fit\n{HAS}\n  hint: make it larger, or give it a window; at most 3 fit at once",
        lambda: empty(6, window=4).extend("pos", k, v),
    )
    fails(
        AxisNotFoundError,
        "KVCache: the count has axes that the length of the cache lacks\n  count has: batch=4\n"
        "  length has: no axes\n  hint: KVCache.init(..., lengths=...)",
        lambda: cache.extend("pos", k, v, count=axn.named([1, 2, 3, 4], "batch")),
    )
    fails(
        ArgumentError,
        "KVCache.attend: the key axis of a cache with a window has slots, which a mask cannot compare with positions\n"
        "  hint: the window of the cache is causal already; give other conditions as an array",
        lambda: empty(6, window=3).attend("pos", "head_dim", Q["pos", :4], k, v, mask=nn.window(2)),
    )


def test_counts_that_are_none():
    """What is known is checked, also while something else is traced; a dtype is always known."""
    cache, k, v = empty(6, lengths=B), K["pos", :4], V["pos", :4]
    text = "KVCache: the count of real tokens must be from 0 to 4, the number of new tokens\n"
    text += "  keys have: batch=4, heads=2, pos=4, head_dim=8"
    ragged = axn.named([4, -1, 2, 3], "batch")
    for count in (5, -1, np.int32(5), jnp.array(-1), axn.named([1, 2, 5, 3], "batch"), ragged):
        fails(ArgumentError, text, lambda count=count: cache.extend("pos", k, v, count=count))
        traced = lambda k, count=count: cache.attend("pos", "head_dim", Q["pos", :4], k, v, count=count)  # noqa: E731
        fails(ArgumentError, text, lambda traced=traced: jax.eval_shape(traced, k))
    fails(
        ArgumentError,
        "KVCache: the count of real tokens must be from 0 to 1, the number of new tokens\n"
        "  keys have: batch=4, heads=2, head_dim=8",
        lambda: cache.extend(None, k["pos", 0], v["pos", 0], count=2),
    )
    call = lambda count: cache.extend("pos", k, v, count=count).length  # noqa: E731
    for count, dtype in ((1.5, "float32"), (ragged / 2, "float32"), (True, "bool")):
        text = f"KVCache: the count must have an integer dtype, not {dtype}"
        fails(OperandError, text, lambda count=count: call(count))
        fails(OperandError, text, lambda count=count: jax.eval_shape(call, count))
    for count in (0, 4, np.int8(3), axn.named([0, 4, 0, 4], "batch")):
        expected = np.broadcast_to(count.array if isinstance(count, axn.NamedArray) else count, 4)
        assert cache.extend("pos", k, v, count=count).length.tolist() == expected.tolist()


def test_sizes_that_differ():
    k, v = K["pos", :4], V["pos", :4]
    for window in (None, 3):
        cache = empty(6, window=window)
        for size in (1, 2):
            fails(
                AxisSizeError,
                f"KVCache.attend: axis 'pos' has size {size} in the query, and 4 in the keys\n"
                f"  query has: batch=4, heads=2, group=3, pos={size}, head_dim=8\n"
                "  keys have: batch=4, heads=2, pos=4, head_dim=8",
                lambda cache=cache, size=size: cache.attend("pos", "head_dim", Q["pos", :size], k, v),
            )
    fails(
        AxisSizeError,
        "KVCache: axis 'pos' has size 3 in the values, and 4 in the keys\n"
        "  values have: batch=4, heads=2, pos=3, out=6\n  keys have: batch=4, heads=2, pos=4, head_dim=8",
        lambda: cache.extend("pos", k, v["pos", :3]),
    )
    fails(
        AxisSizeError,
        f"KVCache: axis 'heads' has size 1 in the keys, and 2 in the cache\n"
        f"  keys have: batch=4, heads=1, pos=4, head_dim=8\n{HAS}",
        lambda: empty(6, lengths=B).extend("pos", k["heads", :1], v),
    )
    with pytest.raises(OperandError, match=r"^KVCache\.attend: expected a NamedArray, got a plain array"):
        cache.attend("pos", "head_dim", Q.array, k, v)


def test_caches_that_cannot_be():
    axes = "\n  axes: batch=4, key_pos=6, heads=2, head_dim=8"
    fails(
        AxisSizeError,
        "KVCache.init: axis 'key_pos' has size 6 in the keys, and 5 in the values\n"
        "  keys have: key_pos=6, head_dim=8\n  values have: key_pos=5, head_dim=8",
        lambda: nn.KVCache.init("key_pos", (axn.Axis("key_pos", 6), D), (axn.Axis("key_pos", 5), D)),
    )
    fails(
        ArgumentError,
        f"KVCache.init: lengths must not have axis 'key_pos', along which they count{axes}",
        lambda: empty(6, lengths=axn.Axis("key_pos", 6)),
    )
    fails(
        AxisSizeError,
        f"KVCache.init: axis 'batch' has size 3 in the lengths, and 4 in the keys{axes}",
        lambda: empty(6, lengths=axn.Axis("batch", 3)),
    )
    fails(
        AxisNotFoundError,
        "KVCache.init: the keys lack axis 'batches' of the lengths\n"
        "  keys have: batch=4, key_pos=6, heads=2, head_dim=8\n  hint: did you mean 'batch'?",
        lambda: empty(6, lengths=axn.Axis("batches", 4)),
    )
    fails(
        AxisNotFoundError,
        "KVCache.init: the values lack axis 'batch' of the lengths\n  values have: key_pos=6",
        lambda: nn.KVCache.init("key_pos", (B, axn.Axis("key_pos", 6), D), axn.Axis("key_pos", 6), lengths=B),
    )
    fails(ArgumentError, "KVCache.init: window must be an int, not True", lambda: empty(6, window=True))


def test_what_a_cache_knows_itself():
    cache, given = empty(6), [x["pos", :4] for x in (Q, K, V)]
    for name in ("q_start", "k_start"):
        fails(
            ArgumentError,
            f"KVCache.attend: {name} must not be given: the cache tracks positions\n  hint: cache.positions(Pos)",
            lambda name=name: cache.attend("pos", "head_dim", *given, **{name: 3}),
        )
    fails(
        OperandError,
        "KVCache.positions: axis 'pos' needs a size here\n  hint: write Axis(\"pos\", size)",
        lambda: cache.positions("pos"),
    )


def test_segments_tell_those_of_keys():
    ids, given = axn.named([0, 0, 1, 1], "pos"), [x["pos", :4] for x in (Q, K, V)]
    one = nn.segments(ids["pos", 0]), *(x["pos", 0] for x in given)
    chunk = nn.segments(ids), *given
    for window, tokens, (mask, *parts) in ((None, "pos", chunk), (3, "pos", chunk), (None, None, one)):
        cache = empty(6, window=window)
        fails(
            OperandError,
            f"KVCache.attend: the segment ids of new tokens do not cover all keys of the cache\n{HAS}\n"
            "  hint: pass key_ids=..., over axis 'key_pos'",
            lambda cache=cache, tokens=tokens, mask=mask, parts=parts: cache.attend(tokens, "head_dim", *parts, mask),
        )
    seen = np.tri(4, dtype=bool) & (ids.array[:, None] == ids.array)
    # As many tokens as there are positions lend the keys their ids.
    for size, mask in ((4, nn.segments(ids)), (6, nn.segments(ids, axn.named([0, 0, 1, 1, 1, 1], "key_pos")))):
        out, _ = step(empty(size), *given, mask=mask)
        same(out, NAMES, by_hand(*(x.array for x in given), seen))


def test_layers_that_are_none():
    Layers = axn.Axis("layers", 3)
    caches, k, v = stacked(6, (Layers, B), Layers), K["pos", :4], V["pos", :4]
    extend = lambda layer, x=caches: x.extend("pos", k, v, layer=layer)  # noqa: E731
    has = "\n  length has: layers=3"
    fails(
        OperandError,
        'KVCache: layer must be an axis and a position along it, not int\n  hint: such as ("layers", i)',
        lambda: extend(1),
    )
    fails(
        AxisNotFoundError,
        "KVCache: the cache has one length for all of axis 'batch', which cannot grow layer by layer"
        f"{has}\n  hint: KVCache.init(..., lengths=...)",
        lambda: extend(("batch", 1)),
    )
    fails(
        AxisNotFoundError,
        "KVCache: the cache has one length for all of axis 'layer', which cannot grow layer by layer"
        f"{has}\n  hint: did you mean 'layers'?",
        lambda: extend(("layer", 1)),
    )
    for index in (3, -4, np.array([0, 1]), axn.arange(Layers)):
        fails(
            AxisSizeError,
            f"KVCache: the layer must be one position along axis 'layers', from 0 to 2{has}",
            lambda index=index: extend(("layers", index)),
        )
    fails(
        OperandError,
        "KVCache: the position of the layer must have an integer dtype, not float32",
        lambda: extend(("layers", 1.0)),
    )
    with pytest.raises(AxisSizeError, match=r"'layers' was given with size 4, but has size 3"):
        extend((axn.Axis("layers", 4), 1))
    every = k.broadcast_axis(Layers)
    fails(
        AxisClashError,
        "KVCache: new keys must not have axis 'layers'\n"
        "  keys have: layers=3, batch=4, heads=2, pos=4, head_dim=8\n"
        "  cache has: layers=3, batch=4, heads=2, key_pos=6, head_dim=8",
        lambda: caches.extend("pos", every, v, layer=("layers", 1)),
    )
    full = extend(("layers", 1))
    assert full.extend("pos", k, v, layer=("layers", 0)).length.tolist() == [4, 4, 0]
    fails(
        ArgumentError,
        "KVCache: 4 more tokens do not fit\n  cache has: layers=3, batch=4, heads=2, key_pos=6, head_dim=8\n"
        "  hint: make it larger, or give it a window; at most 6 fit at once",
        lambda: extend(("layers", 1), full),
    )


def test_a_subclass_keeps_its_class():
    class Own(nn.KVCache): ...

    token = axn.ones(D)
    cache = eqx.filter_eval_shape(lambda: Own.init("kpos", (axn.Axis("kpos", 4), D)).extend(None, token, token))
    assert type(cache) is Own
