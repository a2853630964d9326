"""Latent attention, against the equations of its paper position by position, and against itself token by token."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import equations

import axonym as axn
from axonym import nn
from axonym.errors import OperandError
from tests.nn.layouts import check_on, compiled, draw, fails, halved, made, same, same_trees, value_and_gradients

Batch, Pos, Embed, Heads, HeadDim = axn.make_axes(batch=8, pos=8, embed=16, heads=4, head_dim=6)
Latent, Rotary, Query, Value = axn.make_axes(latent=10, rotary=4, query=7, value_dim=3)
AXES = Embed, Heads, HeadDim, Latent, Rotary
ROPE = nn.RotaryEmbedding.init(Rotary, interleaved=True)
NAMES = ("batch", "pos", "embed")
X = draw(Batch, Pos, Embed)
REAL = axn.named(np.arange(8) < np.arange(1, 9)[:, None], ("batch", "pos.key"))


def layer(**options: Any) -> nn.LatentAttention:
    return halved(made(nn.LatentAttention.init, *AXES, **options))


FULL = layer(QueryLatent=Query, ValueDim=Value, use_bias=True)


def run(layer: nn.LatentAttention, x: axn.NamedArray) -> axn.NamedArray:
    return layer(x, nn.causal() & REAL, rotate=ROPE.at(Pos))


def by_equations(layer: nn.LatentAttention, x: Any, seen: Any, xp: Any = np) -> Any:
    """Compute equations 37 to 47 of the paper of DeepSeek-V2 for x, {batch, pos, embed}."""
    read = (lambda p: np.asarray(p.array, np.float64)) if xp is np else (lambda p: p.array)

    def linear(x: Any, layer: nn.Linear, sums: str) -> Any:
        y = xp.einsum(sums, x, read(layer.weight))
        return y if layer.bias is None else y + read(layer.bias)

    def norm(x: Any, layer: nn.RmsNorm) -> Any:
        return x / xp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * read(layer.weight)

    def rotate(x: Any) -> Any:
        angles = xp.arange(8)[:, None] * 10000.0 ** (-xp.arange(2) / 2)
        pairs = x.reshape(*x.shape[:-1], 2, 2)
        cos, sin = xp.cos(angles), xp.sin(angles)
        even, odd = pairs[..., 0], pairs[..., 1]
        return xp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    c = norm(linear(x, layer.latent, "bpe,el->bpl"), layer.latent_norm)
    q = x
    if layer.query_latent is not None and layer.query_norm is not None:
        q = norm(linear(x, layer.query_latent, "bpe,eq->bpq"), layer.query_norm)
    own, rotated = (linear(q, part, "bpq,qhd->bhpd") for part in (layer.query, layer.rotary_query))
    shared = rotate(linear(x, layer.rotary_key, "bpe,er->bpr"))
    scores = xp.einsum("bhpd,bhkd->bhpk", own, linear(c, layer.key, "bpl,lhd->bhpd"))
    scores = (scores + xp.einsum("bhpr,bkr->bhpk", rotate(rotated), shared)) / (6 + 4) ** 0.5
    scores = xp.where(seen, scores, -1e30)
    weights = xp.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    attended = xp.einsum("bhpk,bhkv->bphv", weights, linear(c, layer.value, "bpl,lhv->bhpv"))
    return linear(attended, layer.out, "bphv,hve->bpe")


SEEN = np.tri(8, dtype=bool) & np.asarray(REAL.array)[:, None, None, :]


@pytest.mark.parametrize("options", [{}, {"QueryLatent": Query, "ValueDim": Value, "use_bias": True}])
def test_values_and_gradients_are_those_of_the_equations(options: dict[str, Any]) -> None:
    model = layer(**options)
    out, gradients = value_and_gradients(run)(model, X)
    same(out, NAMES, by_equations(model, np.asarray(X.array, np.float64), SEEN))
    theirs = lambda model, x: axn.named(by_equations(model, x.array, SEEN, jnp), NAMES)  # noqa: E731
    same_trees(gradients, value_and_gradients(theirs)(model, X)[1], rtol=1e-4, atol=1e-5)


def test_scale_replaces_the_root_and_heads_may_be_two_axes_or_none() -> None:
    scaled = layer(scale=2 / 10**0.5)
    doubled = eqx.tree_at(lambda one: (one.query.weight, one.rotary_query.weight), layer(), replace_fn=lambda q: 2 * q)
    same(compiled(run, scaled, X), NAMES, compiled(run, doubled, X).array)
    for heads in ((), axn.make_axes(heads=2, group=2)):
        model = halved(made(nn.LatentAttention.init, Embed, heads, *AXES[2:]))
        whole = compiled(run, model, X)
        cache = nn.KVCache.init("pos.key", (Batch, axn.Axis("pos.key", 8), model.Cached), shared=True)
        found, _ = compiled(lambda *args: args[0].extend(*args[1:], rotate=ROPE.at(Pos), mask=REAL), model, X, cache)
        same(found, NAMES, whole.array)


@eqx.filter_jit
def extend(model: nn.LatentAttention, x: axn.NamedArray, cache: nn.KVCache, **options: Any) -> Any:
    positions = cache.positions(x.resolve_axis("pos") if "pos" in x.names else None)
    y, cache = model.extend(x, cache, rotate=ROPE.at(positions), **options)
    return y.rearrange(("batch", ..., "embed")), cache


@pytest.mark.parametrize("window", [None, 3])
def test_tokens_through_a_cache_of_latents_equal_the_whole(window: int | None) -> None:
    mask = nn.causal() if window is None else nn.causal() & nn.window(window)
    whole = compiled(lambda model, x: model(x, mask, rotate=ROPE.at(Pos)), FULL, X)
    size = axn.Axis("pos.key", 8 if window is None else 5)
    cache = nn.KVCache.init("pos.key", (Batch, size, FULL.Cached), shared=True, window=window, lengths=Batch)
    assert [leaf.size for leaf in jax.tree.leaves(cache)] == [8 * size.size * (10 + 4), 8]
    for at in (slice(3), slice(3, 5), 5, 6, 7):
        found, cache = extend(FULL, X["pos", at], cache)
        expected = whole.rearrange(NAMES)["pos", at]
        same(found, expected.names, expected.array)


def test_prompts_of_several_lengths_and_caches_of_layers() -> None:
    whole = compiled(lambda model, x: model(x, nn.causal(), rotate=ROPE.at(Pos)), FULL, X).rearrange(NAMES)
    Layers, count = axn.Axis("layers", 2), axn.named(np.arange(8) % 4 + 1, "batch")
    axes = (Batch, axn.Axis("pos.key", 9), FULL.Cached)
    cache = nn.KVCache.stacked(Layers, "pos.key", axes, shared=True, lengths=Batch)

    @jax.jit
    def both(model: nn.LatentAttention, x: axn.NamedArray, cache: nn.KVCache) -> axn.NamedArray:
        prompt, at = x["pos", :4], ("layers", 1)
        _, cache = model.extend(prompt, cache, rotate=ROPE.at(axn.arange(Pos.resize(4))), count=count, layer=at)
        places = cache.positions(None)["layers", 1]
        return model.extend(x["pos", places], cache, rotate=ROPE.at(places), layer=at)[0]

    same(both(FULL, X, cache), ("batch", "embed"), whole["pos", count].array)


def test_a_step_makes_no_keys_or_values_of_the_cache() -> None:
    cache = nn.KVCache.init("pos.key", (Batch, axn.Axis("pos.key", 512), FULL.Cached), shared=True)
    program = jax.make_jaxpr(lambda x, cache: FULL.extend(x, cache)[0].array)(X["pos", 0], cache)
    sizes = [out.aval.size for one in equations(program.jaxpr) for out in one.outvars]
    # Nothing is larger than the cache; keys of all heads would be.
    assert max(sizes) <= cache.key.size < 8 * 512 * 4 * 6


def test_context_may_be_another_sequence() -> None:
    Frames, other = axn.Axis("features", 5), draw(Batch, Pos.resize(3), axn.Axis("features", 5), seed=2)
    model = layer(Context=Frames)
    out = compiled(lambda model, *x: model(x[0], context=x[1]), model, X, other)
    latent, rotated = model.latent_norm(model.latent(other)), model.rotary_key(other)
    k = axn.concatenate("d", [model.key(latent).rename({"head_dim": "d"}), rotated.rename({"rotary": "d"})])
    q = [part(X).rename({part.Out[-1].name: "d"}) for part in (model.query, model.rotary_query)]
    k, v = k.rename({"pos": "k"}), model.value(latent).rename({"pos": "k"})
    attended = nn.dot_product_attention("pos", "k", "d", axn.concatenate("d", q), k, v)
    same(out, NAMES, model.out(attended).rearrange(NAMES).array)


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
def test_on_a_mesh(mode: str, request: pytest.FixtureRequest) -> None:
    mesh = request.getfixturevalue(mode)
    check_on(mesh, run, FULL, X)

    def decode(model: nn.LatentAttention, x: axn.NamedArray) -> axn.NamedArray:
        cache = nn.KVCache.init("pos.key", (Batch, axn.Axis("pos.key", 8), model.Cached), shared=True)
        _, cache = model.extend(x["pos", :4], cache)
        return model.extend(x["pos", 4], cache)[0]

    expected = compiled(decode, FULL, X)
    for mapping in ({"batch": "data", "heads": "model"}, {"pos": "data", "heads": "model"}):
        with axn.set_mesh(mesh):
            run_decode = axn.named_jit(functools.partial(decode, FULL), mapping, strict=False)
            same(run_decode(axn.shard(X, mapping, strict=False)), ("batch", "embed"), expected.array)


def test_half_precision_is_near() -> None:
    narrow = jax.tree.map(lambda p: p.astype(jnp.bfloat16), (FULL, X))
    wide = jax.tree.map(lambda p: p.astype(jnp.float32), narrow)
    expected = np.asarray(compiled(run, *wide).array)
    found = np.asarray(compiled(run, *narrow).array, np.float32)
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


def test_a_step_reads_adapters_and_padded_heads() -> None:
    cache = nn.KVCache.init("pos.key", (Batch, axn.Axis("pos.key", 8), FULL.Cached), shared=True)

    @jax.jit
    def make() -> tuple[Any, Any]:
        adapted = nn.add_lora(FULL, 2, key=jax.random.key(0))
        adapted = jax.tree.map(lambda p: p + 0.1, adapted)  # the sum of an adapter starts at zero
        return adapted, axn.partitioning.pad_axes(FULL, {"heads": 3, "latent": 4})

    for model in make():
        whole = compiled(lambda model, x: model(x, nn.causal(), rotate=ROPE.at(Pos)), model, X)
        found = compiled(lambda model, x, cache: model.extend(x, cache, rotate=ROPE.at(Pos))[0], model, X, cache)
        same(found, NAMES, whole.array)


def test_a_cache_with_values_is_refused() -> None:
    Places = axn.Axis("pos.key", 8)
    fails(
        OperandError,
        "LatentAttention: the cache has values of its own, but latents are keys and values\n"
        "  hint: KVCache.init(KPos, (KPos, layer.Cached, ...), shared=True)",
        lambda: FULL.extend(X, nn.KVCache.init("pos.key", (Batch, Places, FULL.Cached))),
    )
