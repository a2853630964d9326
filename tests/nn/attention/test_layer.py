"""Attention as a layer, against the one of Equinox, PyTorch's formula for groups by hand, and itself token by token."""

import equinox as eqx
import jax
import numpy as np

import axonym as axn
from axonym import nn
from axonym.errors import AxisNotFoundError
from tests.nn.attending import by_hand
from tests.nn.layouts import compiled, draw, fails, halved, made, same

Batch, Pos, Embed, Heads, HeadDim = axn.make_axes(batch=2, pos=5, embed=16, heads=4, head_dim=4)
KVHeads, Group = axn.make_axes(kv_heads=2, group=2)
KEY = jax.random.key(0)


def of_equinox(theirs: eqx.nn.MultiheadAttention) -> nn.Attention:
    """Give our layer the weights of theirs."""
    ours = nn.Attention.init(Embed, Heads, HeadDim, key=KEY)

    def linear(layer: nn.Linear, given: eqx.nn.Linear) -> nn.Linear:
        assert given.bias is not None
        assert layer.bias is not None
        weight = axn.named(given.weight.T.reshape(layer.weight.array.shape), layer.weight.names)
        bias = axn.named(given.bias.reshape(layer.bias.array.shape), layer.bias.names)
        return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (weight, bias))

    parts = (ours.query, ours.key, ours.value, ours.out)
    given = (theirs.query_proj, theirs.key_proj, theirs.value_proj, theirs.output_proj)
    filled = tuple(map(linear, parts, given))
    return eqx.tree_at(lambda layer: (layer.query, layer.key, layer.value, layer.out), ours, filled)


def test_equals_multi_head_attention_of_equinox() -> None:
    biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
    theirs = eqx.nn.MultiheadAttention(4, 16, **biases, key=KEY)
    ours = of_equinox(theirs)
    x, other = draw(Batch, Pos, Embed), draw(Batch, Pos.resize(7), Embed, seed=1)

    @eqx.filter_jit
    def expected(mask: np.ndarray | None, context: axn.NamedArray) -> jax.Array:
        return jax.vmap(lambda x, y: theirs(x, y, y, mask=mask))(x.array, context.array)

    names = ("batch", "pos", "embed")
    same(compiled(ours, x), names, expected(None, x))
    same(compiled(ours, x, nn.causal()), names, expected(np.tri(5, dtype=bool), x))
    same(compiled(ours, x, context=other), names, expected(None, other))


def test_grouped_heads_and_a_single_head_of_keys() -> None:
    x = draw(Batch, Pos, Embed)
    for kv_heads in ((KVHeads,), ()):
        layer = made(nn.Attention.init, Embed, (KVHeads, Group), HeadDim, KVHeads=kv_heads, use_bias=False)
        layer = halved(halved(layer))
        q = layer.query(x).rearrange(("batch", "kv_heads", "group", "pos", "head_dim")).array
        k, v = layer.key(x), layer.value(x)
        if not kv_heads:
            k, v = (y.broadcast_axis(KVHeads) for y in (k, v))
        k, v = (y.rearrange(("batch", "kv_heads", "pos", "head_dim")).array for y in (k, v))
        attended = axn.named(by_hand(q, k, v).astype(np.float32), ("batch", "kv_heads", "group", "pos", "head_dim"))
        expected = layer.out(attended).rearrange(x.names)
        same(compiled(layer, x), x.names, expected.array)


def test_tokens_through_a_cache_equal_the_whole() -> None:
    layer = halved(halved(made(nn.Attention.init, Embed, (KVHeads, Group), HeadDim, KVHeads=KVHeads)))
    x, rope = draw(Batch, Pos, Embed), nn.RotaryEmbedding.init(HeadDim)
    whole = compiled(lambda layer, x: layer(x, nn.causal(), rotate=rope.at(Pos)), layer, x)

    cache = nn.KVCache.init("pos.key", (Batch, axn.Axis("pos.key", 8), KVHeads, HeadDim))

    @eqx.filter_jit
    def extend(layer: nn.Attention, x: axn.NamedArray, cache: nn.KVCache) -> tuple[axn.NamedArray, nn.KVCache]:
        positions = cache.positions(x.resolve_axis("pos") if "pos" in x.names else None)
        y, cache = layer.extend(x, cache, rotate=rope.at(positions))
        return y.rearrange(("batch", ..., "embed")), cache

    for at in (slice(3), 3, 4):
        found, cache = extend(layer, x["pos", at], cache)
        expected = whole.rearrange(("batch", "pos", "embed"))["pos", at]
        same(found, expected.names, expected.array)


def test_a_scale_and_a_further_mask() -> None:
    layer = halved(made(nn.Attention.init, Embed, Heads, HeadDim, scale=0.25, use_bias=False))
    x, seen = draw(Batch, Pos, Embed), axn.named(np.arange(5) != 2, "pos.key")
    q, k, v = (
        part(x).rearrange(("batch", "heads", "pos", "head_dim")).array for part in (layer.query, layer.key, layer.value)
    )
    attended = by_hand(q[:, :, None] / 2, k, v, np.tri(5, dtype=bool) & np.asarray(seen.array))[:, :, 0]
    expected = layer.out(axn.named(attended.astype(np.float32), ("batch", "heads", "pos", "head_dim")))
    same(compiled(layer, x, nn.causal() & seen), x.names, expected.rearrange(x.names).array)
    cache = nn.KVCache.init("pos.key", (Batch, axn.Axis("pos.key", 5), Heads, HeadDim))
    found, _ = compiled(lambda layer, *args: layer.extend(*args, mask=seen), layer, x, cache)
    same(found, x.names, expected.rearrange(x.names).array)


def test_each_head_may_have_a_sink() -> None:
    """As in gpt-oss; also with a cache, and of latents."""
    heads = KVHeads, Group
    layer = halved(made(nn.Attention.init, Embed, heads, HeadDim, KVHeads=KVHeads, use_sinks=True))
    x = draw(Batch, Pos, Embed)
    q, k, v = layer.query(x), layer.key(x), layer.value(x)
    q = q.rearrange(("batch", "kv_heads", "group", "pos", "head_dim"))
    k, v = (y.rearrange(("batch", "kv_heads", "pos", "head_dim")) for y in (k, v))
    attended = by_hand(q.array, k.array, v.array, np.tri(5, dtype=bool), sinks=layer.sinks.array)
    expected = layer.out(axn.named(attended.astype(np.float32), q.names)).rearrange(x.names)
    same(compiled(layer, x, nn.causal()), x.names, expected.array)
    cache = nn.KVCache.init("pos.key", (Batch, axn.Axis("pos.key", 5), KVHeads, HeadDim))
    same(compiled(lambda layer, *args: layer.extend(*args)[0], layer, x, cache), x.names, expected.array)

    more = axn.make_axes(latent=6, rotary=2)
    latent = halved(made(nn.LatentAttention.init, Embed, heads, HeadDim, *more, use_sinks=True))
    whole = compiled(latent, x, nn.causal())
    without = eqx.tree_at(lambda layer: layer.sinks, latent, None)
    assert not np.allclose(compiled(without, x, nn.causal()).array, whole.array)
    cache = nn.KVCache.init("pos.key", (Batch, axn.Axis("pos.key", 5), latent.Cached), shared=True)
    same(compiled(lambda layer, *args: layer.extend(*args)[0], latent, x, cache), x.names, whole.array)
    for stacked in (layer, latent):
        assert {own.kind for own in axn.parameters.walk(stacked) if own.path.endswith("sinks")} == {"scale"}


def test_dropout_needs_a_key_and_drops_nothing_without() -> None:
    layer = made(nn.Attention.init, Embed, Heads, HeadDim, dropout=0.5)
    plain = made(nn.Attention.init, Embed, Heads, HeadDim)
    x = draw(Batch, Pos, Embed)
    without = compiled(layer, x).array
    same(compiled(plain, x), x.names, without)
    assert not np.allclose(compiled(layer, x, key=KEY).array, without)
    same(compiled(eqx.nn.inference_mode(layer), x, key=KEY), x.names, without)


def test_heads_of_keys_are_among_those_of_queries() -> None:
    fails(
        AxisNotFoundError,
        "Attention.init: keys and values have heads kv_heads=2, which queries lack\n"
        "  Heads: heads=4\n"
        "  hint: grouped heads are two axes of queries: Heads=(KVHeads, Group)",
        lambda: nn.Attention.init(Embed, Heads, HeadDim, KVHeads=KVHeads, key=KEY),
    )


def test_positions_are_where_the_layer_looks_for_them() -> None:
    layer = nn.Attention.init(Embed, Heads, HeadDim, key=KEY)
    x = draw(Batch, Pos, Embed)
    fails(
        AxisNotFoundError,
        "Attention: the input lacks axis 'pos', the positions\n"
        "  input has: batch=2, seq=5, embed=16\n"
        '  hint: make the layer with pos="...", the name of its positions',
        lambda: layer(x.rename({"pos": "seq"})),
    )
    fails(
        AxisNotFoundError,
        "Attention: the context lacks axis 'pos', the positions\n"
        "  context has: batch=2, frames=5, embed=16\n"
        '  hint: rename its positions: context.rename({"...": "pos"})',
        lambda: layer(x, context=x.rename({"pos": "frames"})),
    )
