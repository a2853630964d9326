"""The decoder: layouts, caches, losses and files; tests/huggingface compares it with others."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
import axonym.nn as nn
from axonym import state_dict as sd
from axonym.models import Decoder, DecoderConfig, DeltaConfig, ExpertsConfig, LatentConfig, Rope, load, save

LLAMA = DecoderConfig(vocab=64, layers=3, embed=32, mlp=48, heads=4, kv_heads=2, head_dim=8, positions=32)
CONFIGS = {
    "gpt2": dataclasses.replace(LLAMA.as_gpt2(), kv_heads=4),
    "gemma": dataclasses.replace(
        LLAMA,
        norm="shifted",
        norm_places="both",
        head_norms="each",
        window=4,
        pattern=("local", "global"),
        local_rope=Rope(100.0),
        score_cap=5.0,
        logit_cap=3.0,
        embed_scale=math.sqrt(32),
        tied=True,
    ),
    "qwen moe": dataclasses.replace(LLAMA, biases=frozenset({"qkv"}), experts=ExpertsConfig(4, 2, 16, shared=24)),
    # Latent attention without experts, and memories with some; no family has both.
    "mixed": dataclasses.replace(
        LLAMA,
        layers=4,
        kv_heads=4,
        pattern=("global_dense", "delta"),
        latent=LatentConfig(12, 8, 6),
        delta=DeltaConfig(8, 4, 6, 10, 3),
        experts=ExpertsConfig(4, 2, 16, shared=24, shared_gate=False, sigmoid=True, groups=2, chosen_groups=1),
    ),
    "gpt-oss": dataclasses.replace(
        LLAMA,
        sinks=True,
        biases=frozenset({"qkv", "out", "experts"}),
        experts=ExpertsConfig(4, 2, 48, clamp=0.5, slope=1.7),
        window=4,
        pattern=("local", "global", "global"),
    ),
}
STORED = {"embed": "data", "kv_heads": "model", "mlp": "model", "vocab": "model"}
COMPUTED = {"batch": "data", "kv_heads": "model", "mlp": "model", "vocab": "model"}
TOKENS = axn.named(np.random.default_rng(0).integers(64, size=(8, 9)).astype(np.int32), ("batch", "pos"))
# tests/huggingface reads, caches and differentiates gpt-oss, so here it is only laid out and written.
each = pytest.mark.parametrize("name", [name for name in CONFIGS if name != "gpt-oss"])
every = pytest.mark.parametrize("name", CONFIGS)


@functools.cache
def make(name):
    """Make a model with parameters so large that each matters."""
    model = jax.eval_shape(lambda: Decoder.init(CONFIGS[name], key=jax.random.key(0)))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jax.device_put(0.3 * rng.standard_normal(leaf.shape, np.float32)), model)


@jax.jit
def logits(model, tokens):
    return model(tokens)


@each
def test_a_cache_changes_nothing(name):
    @jax.jit
    def cached(model, tokens):
        cache = model.cache(16, tokens.resolve_axis("batch"))
        cache, chunk = model.extend_hidden(cache, tokens["pos", :6])
        cache, last = model.extend(cache, tokens["pos", 6:])
        return model.scores(chunk), last

    chunk, last = cached(make(name), TOKENS)
    expected = logits(make(name), TOKENS)
    np.testing.assert_allclose(chunk.array, expected["pos", :6].array, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(last.array, expected["pos", -1].array, rtol=1e-4, atol=1e-4)


@each
def test_a_token_does_not_see_those_behind_it(name):
    changed = TOKENS.updated_slice({"pos": 6}, axn.zeros_like(TOKENS["pos", 6:]))
    before, after = logits(make(name), TOKENS), logits(make(name), changed)
    np.testing.assert_allclose(after["pos", :6].array, before["pos", :6].array, rtol=1e-5, atol=1e-5)


@each
def test_the_loss_is_the_cross_entropy_of_the_logits(name):
    where = axn.named(np.arange(8) < 6, "pos")
    model, scores = make(name), logits(make(name), TOKENS["pos", :-1])
    expected = nn.cross_entropy_loss(scores, "vocab", TOKENS["pos", 1:], where=where)
    found = jax.jit(lambda model: model.loss(TOKENS, where=where))(model)
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-5)


@pytest.mark.parametrize(("name", "routers"), [("qwen moe", 3), ("mixed", 2)])
def test_experts_of_unequal_load_may_cost(name, routers):
    model = make(name)
    _, routing = jax.jit(lambda: model.hidden(TOKENS["pos", :-1]))()
    loss = jax.jit(lambda balance: model.loss(TOKENS, balance=balance))
    plain, more = loss(0.0), loss(2.0)
    np.testing.assert_allclose((more - plain).item(), 2 * np.sum(routing.load_balance.tolist()) / routers, rtol=1e-3)


def test_experts_do_not_see_padding():
    model, counted = make("qwen moe"), axn.named(np.arange(8) < 5, "pos")
    loss = jax.jit(lambda tokens: model.loss(tokens, where=counted, balance=2.0))
    padded = TOKENS.updated_slice({"pos": 6}, axn.zeros_like(TOKENS["pos", 6:]))
    assert loss(padded).item() == loss(TOKENS).item()


@pytest.mark.sampled
@every
@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_a_layout_changes_nothing(name, mesh, request):
    def step(model, tokens):
        with axn.axis_mapping(COMPUTED):
            return jax.value_and_grad(lambda model: model.loss(tokens).scalar())(model)

    loss, gradients = jax.jit(step)(make(name), TOKENS)
    mesh = request.getfixturevalue(mesh)
    with axn.set_mesh(mesh):
        model = axn.shard(make(name), STORED, strict=False)
        spread, theirs = axn.named_jit(step, STORED, strict=False)(model, axn.shard(TOKENS, COMPUTED, strict=False))
        np.testing.assert_allclose(spread, loss, rtol=1e-5)
        for mine, its in zip(jax.tree.leaves(gradients), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(its, mine, rtol=1e-3, atol=1e-4)
    weight = theirs.blocks.repeated.stacked[0].attention.query.weight
    assert weight.array.sharding.spec[1:3] == ("data", "model")


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "mixed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_read_as_it_was_written_each_device_its_part(name, dtype, tmp_path, auto_mesh):
    model = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf).astype(dtype)), make(name))
    save(model, tmp_path, max_bytes=20_000, eos_token_id=7)
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 7
    again = load(tmp_path, mapping={"embed": "data", "kv_heads": "model"}, mesh=auto_mesh)
    assert again.config == dataclasses.replace(model.config, out_first=name != "gpt2")
    new = jax.eval_shape(functools.partial(Decoder.init, again.config), key=jax.random.key(0))
    assert jax.tree.structure(again) == jax.tree.structure(new)
    own, read = (jax.tree.leaves_with_path(tree, is_leaf=axn.is_named_array) for tree in (model, again))
    for (path, mine), (_, its) in zip(own, read, strict=True):
        assert mine.dtype == its.dtype
        # Named axes may be stored in another order.
        np.testing.assert_array_equal(its.rearrange(mine.names).array, mine.array, err_msg=jax.tree_util.keystr(path))
    query = again.blocks.repeated.stacked[0].attention.query.weight
    assert dict(zip(query.names, query.array.sharding.spec, strict=True)) == {
        **dict.fromkeys(("layers", "group", "head_dim")),
        "embed": "data",
        "kv_heads": "model",
    }
    assert load(tmp_path, dtype=jnp.float32).norm.weight.dtype == jnp.float32


def test_old_files_of_gpt2_are_read(tmp_path):
    model = make("gpt2")
    save(model, tmp_path)
    new = sd.load_state_dict(tmp_path)
    # As those of the first release: no root, masks beside the parameters, and the table twice.
    old = {key.removeprefix("transformer."): np.asarray(array) for key, array in new.items()}
    old |= {f"h.{i}.attn.bias": np.tril(np.ones((1, 1, 32, 32), np.uint8)) for i in range(3)}
    old["lm_head.weight"] = old["wte.weight"]
    sd.save_state_dict(old, tmp_path / "model.safetensors")
    for mine, its in zip(jax.tree.leaves(model), jax.tree.leaves(load(tmp_path)), strict=True):
        np.testing.assert_array_equal(its, mine)


def test_files_that_do_not_fit_are_an_error(tmp_path):
    save(make("gpt2"), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "n_layer": 4, "vocab_size": 65}))
    with pytest.raises(axn.errors.ArgumentError) as caught:
        load(tmp_path)
    assert "missing: transformer.h.3.ln_1.weight" in str(caught.value)
    assert "wrong shape: transformer.wte.weight: (64, 32), but the model has vocab=65, embed=32" in str(caught.value)
