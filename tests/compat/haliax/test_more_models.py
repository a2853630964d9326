"""Programs that do more than a model and a loop: kernels, generation, optimizers and trainers on top of Haliax."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import itertools

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import jax.random as jrandom
import numpy as np
import optax
import pytest
from haliax import Axis
from haliax.state_dict import (
    from_torch_compatible_state_dict,
    load_state_dict,
    save_state_dict,
    to_numpy_state_dict,
    to_torch_compatible_state_dict,
)

from tests.compat.haliax.clients import draw, lies, same
from tests.compat.haliax.programs import decoding, diffusion, export, flash, optimizers, resuming, speech

KEY = jax.random.key(0, impl="rbg")  # its programs compile in no time
Batch = Axis("batch", 4)


def filled(init, *args, **kwargs):
    """Make a model of random numbers, without a program that draws them."""
    rng = np.random.default_rng(0)
    shapes = eqx.filter_eval_shape(init, *args, key=KEY, **kwargs)
    fill = lambda x: jax.device_put(0.3 * rng.normal(size=x.shape).astype(x.dtype))  # noqa: E731
    return jax.tree.map(lambda x: fill(x) if isinstance(x, jax.ShapeDtypeStruct) else x, shapes)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


# Speech


def plain_speech(weights, config, mel, ids):
    """Run the weights under the names of the torch model on one sequence."""

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(x):
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def conv(name, x, stride):
        x = np.pad(x, ((1, 1), (0, 0)))
        windows = np.stack([x[i : i + 3] for i in range(0, len(x) - 2, stride)])
        return gelu(np.einsum("pwi,oiw->po", windows, weights[f"{name}.weight"]) + weights[f"{name}.bias"])

    def attend(name, x, source, mask):
        heads = [linear(f"{name}.{part}_proj", y) for part, y in (("q", x), ("k", source), ("v", source))]
        q, k, v = (y.reshape(len(y), config.num_heads, -1) for y in heads)
        scores = np.einsum("shd,thd->hst", q, k) / np.sqrt(q.shape[-1])
        shares = softmax(np.where(mask, scores, -1e9))
        return linear(f"{name}.out_proj", np.einsum("hst,thd->shd", shares, v).reshape(len(x), -1))

    x = conv("encoder.conv2", conv("encoder.conv1", mel.T, 1), 2)
    angles = np.arange(len(x))[:, None] / 10000 ** np.linspace(0, 1, x.shape[1] // 2)
    x = x + np.concatenate([np.sin(angles), np.cos(angles)], -1)
    for i in range(config.encoder_layers):
        layer = f"encoder.layers.{i}"
        y = norm(f"{layer}.self_attn_layer_norm", x)
        x = x + attend(f"{layer}.self_attn", y, y, True)
        x = x + linear(f"{layer}.fc2", gelu(linear(f"{layer}.fc1", norm(f"{layer}.final_layer_norm", x))))
    heard = norm("encoder.layer_norm", x)

    table = weights["decoder.embed_tokens.weight"]
    x = table[ids] + weights["decoder.embed_positions.weight"][: len(ids)]
    for i in range(config.decoder_layers):
        layer = f"decoder.layers.{i}"
        y = norm(f"{layer}.norms.0", x)
        x = x + attend(f"{layer}.self_attn", y, y, np.tri(len(ids), dtype=bool))
        x = x + attend(f"{layer}.encoder_attn", norm(f"{layer}.norms.1", x), heard, True)
        x = x + linear(f"{layer}.fc2", gelu(linear(f"{layer}.fc1", norm(f"{layer}.norms.2", x))))
    return norm("decoder.layer_norm", x) @ table.T


def test_speech(auto_mesh):
    config = speech.SpeechConfig()
    with hax.set_mesh(auto_mesh):
        Vocab = hax.partitioning.round_axis_for_partitioning(Axis("vocab", 15), {"vocab": ("data", "model")})
    assert Vocab.size == 16
    model = filled(speech.SpeechModel.init, Vocab, config)
    mel = draw(Batch, config.Mels, config.Frames)
    ids = hax.random.randint(KEY, (Batch, config.Pos), 0, Vocab.size)
    weights = to_torch_compatible_state_dict(model, prefix="model")
    assert len(weights) == 4 + 2 * (7 + 4 + 4) + 2 + 2 + 2 * (14 + 4 + 6) + 2
    weights = {key.removeprefix("model."): value for key, value in weights.items()}
    rows = [plain_speech(weights, config, *row) for row in zip(np.asarray(mel.array), ids.array, strict=True)]
    expected = np.stack(rows)

    where = hax.arange(config.Pos) < config.max_length - 1
    step = eqx.filter_jit(eqx.filter_value_and_grad(speech.loss_fn, has_aux=True))
    (loss, logits), grads = step(model, mel, ids, where)
    same(logits, (Batch, config.Pos, Vocab), expected, rtol=1e-4, atol=1e-4)
    picked = np.take_along_axis(softmax(expected)[:, :-1], np.asarray(ids.array)[:, 1:, None], -1)
    np.testing.assert_allclose(loss, -np.log(picked).mean(), rtol=1e-4)
    assert all(np.any(leaf.array) for leaf in hax.tree_util.tree_leaves(grads))


# Attention by blocks


@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_blocks(causal, auto_mesh):
    Heads, Pos, Key = hax.make_axes(heads=2, position=8, head_size=4)
    KeyPos = Axis("key_position", 8 if causal else 12)
    q, k, v = (
        draw(Batch, Heads, Pos, Key),
        draw(Batch, KeyPos, Heads, Key, seed=1),
        draw(KeyPos, Heads, Batch, Key, seed=2),
    )

    def plain(q, k, v):
        scores = jnp.einsum("bhsd,bthd->bhst", q, k) / 2
        shares = jax.nn.softmax(jnp.where(np.tri(8, dtype=bool), scores, -jnp.inf) if causal else scores)
        return jnp.einsum("bhst,thbd->bhsd", shares, v)

    @hax.named_jit(axis_resources={"batch": "data", "heads": "model"})
    def blockwise(q, k, v):
        def loss(qkv):
            out = flash.flash_attention(Pos, "key_position", Key, *qkv, causal=causal)
            return hax.sum(out * out).scalar(), out

        (_, out), grads = eqx.filter_value_and_grad(loss, has_aux=True)((q, k, v))
        return out, grads

    with hax.set_mesh(auto_mesh):
        out, grads = blockwise(q, k, v)
    raw = [x.array for x in (q, k, v)]
    same(out, q.axes, plain(*raw), rtol=1e-4)
    assert lies(out, auto_mesh, "data", "model")
    expected = jax.grad(lambda *qkv: (plain(*qkv) ** 2).sum(), argnums=(0, 1, 2))(*raw)
    for grad, x, values in zip(grads, (q, k, v), expected, strict=True):
        same(grad, x.axes, values, rtol=1e-3, atol=1e-4)


# Generation


def test_generation_with_a_cache(auto_mesh):
    model = filled(decoding.LanguageModel.init)
    Prompt = decoding.Pos.resize(3)
    prompt = hax.random.randint(KEY, (Batch, Prompt), 0, decoding.Vocab.size)
    temperature = hax.named([0.0, 0.0, 1.0, 0.7], Batch)
    mapping = {"batch": "data", "kv_heads": "model"}
    with hax.set_mesh(auto_mesh):
        state = hax.named_jit(decoding.generate, axis_resources=mapping)(model, prompt, temperature, -1, key=KEY)
    assert lies(state.cache.k, auto_mesh, None, "data", None, "model")
    np.testing.assert_array_equal(state.cache.length.array, np.full((2, 4), 6))
    ids = hax.named(np.asarray(state.ids.array), state.ids.axes)
    assert ids.axes == (Batch, decoding.Pos)
    assert np.array_equal(ids["position", :3].array, prompt.array)

    logits = eqx.filter_jit(model)(ids)  # all at once, without a cache
    greedy = hax.argmax(logits, "vocab")["batch", 0:2, "position", 2:-1]
    np.testing.assert_array_equal(greedy.array, ids["batch", 0:2, "position", 3:].array)
    scale = hax.where(temperature > 0, temperature, 1.0)
    log_p = np.log(softmax(np.asarray((logits / scale).array)))[:, 2:-1]
    expected = np.take_along_axis(log_p, np.asarray(ids.array)[:, 3:, None], -1)[..., 0]
    np.testing.assert_allclose(state.log_probs["position", 3:].array, expected, rtol=1e-3, atol=1e-4)

    eos = int(ids["batch", 0, "position", 4].item())
    ended = eqx.filter_jit(decoding.generate)(model, prompt["batch", 0:1], temperature["batch", 0:1], eos, key=KEY)
    assert bool(ended.finished.array.all())
    first = int(np.argmax(np.asarray(ids.array)[0, 3:] == eos)) + 3
    assert int(ended.step) == first
    assert np.all(np.asarray(ended.ids.array)[0, first + 1 :] == -1)


# Optimizers

Embed, Classes = optimizers.Embed, optimizers.Classes


@pytest.fixture(scope="module")
def net():
    return filled(optimizers.Net.init)


def plain_muon(matrix):
    x = matrix / np.linalg.norm(matrix)
    u, s, v = np.linalg.svd(x, full_matrices=False)
    for _ in range(4):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return u * s @ v


def test_an_optimizer_of_matrices(net):
    grads = jax.tree.map(lambda x: jrandom.normal(KEY, x.shape), net)
    optimizer = optimizers.scale_by_muon()
    updates, state = eqx.filter_jit(optimizer.update)(grads, optimizer.init(net))
    assert jax.tree.structure(updates) == jax.tree.structure(net)
    assert eqx.tree_equal(state.momentum, grads)
    for part in ("up", "down"):
        grad, update = (getattr(tree.blocks.stacked, part).weight for tree in (grads, updates))
        assert update.axes == getattr(net.blocks.stacked, part).weight.axes
        grad, update = (
            x.flatten_axes((optimizers.Heads, optimizers.HeadSize), "wide").rearrange(("layers", "wide", "embed"))
            for x in (grad, update)
        )
        for matrix, found in zip(np.asarray(grad.array), update.array, strict=True):
            np.testing.assert_allclose(found, plain_muon(matrix), rtol=1e-3, atol=1e-4)
    assert eqx.tree_equal(updates.norm, grads.norm)


def test_optimizers_for_parts_of_a_model(net):
    x, labels = draw(Batch, Embed), hax.named([0, 1, 2, 3], Batch)

    def loss_fn(model):
        return hnn.cross_entropy_loss(model(x), Classes, hnn.one_hot(labels, Classes)).scalar()

    by_width = optax.chain(optax.scale_by_adam(), optimizers.scale_by_width(), optax.scale(-0.02))
    for optimizer in (optimizers.muon(0.02), by_width):

        @hax.named_jit
        def train_step(model, opt_state, optimizer=optimizer):
            loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
            updates, opt_state = optimizer.update(grads, opt_state, model)
            return loss, eqx.apply_updates(model, updates), opt_state, updates

        model, opt_state, losses = net, optimizer.init(net), []
        for _ in range(3):
            loss, model, opt_state, _ = train_step(model, opt_state)
            losses.append(float(loss))
        assert losses[2] < losses[1] < losses[0]
        assert jax.tree.structure(model) == jax.tree.structure(net)
    first = train_step(net, by_width.init(net))[-1]
    for layer, scale in ((first.inputs, 1), (first.head, 1), (first.blocks.stacked.up, 1 / 8), (first.norm, 1)):
        np.testing.assert_allclose(hax.max(hax.abs(layer.weight)).item(), 0.02 * scale, rtol=1e-2)


# Diffusion


def test_diffusion():
    x = draw(Batch, diffusion.Colors, diffusion.Height, diffusion.Width)
    norm = diffusion.GroupNorm.init(diffusion.Colors.resize(6), 2)
    wide = hax.concatenate("color", [x, 2 * x + 1])
    groups = np.asarray(wide.array).reshape(4, 2, 3, 8, 8)
    centred = groups - groups.mean((2, 3, 4), keepdims=True)
    expected = centred / np.sqrt((centred**2).mean((2, 3, 4), keepdims=True) + 1e-5)
    same(norm(wide), wide.axes, expected.reshape(4, 6, 8, 8))

    model = filled(diffusion.UNet.init)
    left = hax.cumprod(1 - hax.linspace(Axis("steps", 3), start=1e-2, stop=0.5), "steps")

    @hax.named_jit
    def run(model, left, x, key):
        return diffusion.loss_fn(model, left, x, key=key), diffusion.sample(model, left, x.axes, key=key)

    blind = eqx.tree_at(lambda model: model.outputs.weight, model, replace_fn=hax.zeros_like)
    loss, (images, largest) = run(blind, left, x, KEY)
    noise = jrandom.normal(jrandom.split(KEY)[1], x.array.shape)
    np.testing.assert_allclose(loss, (noise**2).mean(), rtol=1e-5)
    assert images.axes == x.axes
    assert largest.axes == (Axis("steps", 3), Batch)
    np.testing.assert_allclose(largest.array, np.ones((3, 4)))  # all is clipped
    assert not np.allclose(run(model, left, x, KEY)[1][0].array, images.array)


# Export


@pytest.mark.parametrize("kind", [hnn.Stacked, hnn.BlockSeq])
def test_export_of_fused_weights(kind, tmp_path):
    model = filled(export.Model.init, kind)
    state = to_torch_compatible_state_dict(model, prefix="neox")
    assert {key.removeprefix("neox."): value.shape for key, value in state.items() if ".1." not in key} == {
        "embed_in.weight": (16, 8),
        "layers.0.attention.query_key_value.weight": (24, 8),
        "layers.0.attention.query_key_value.bias": (24,),
        "layers.0.attention.dense.weight": (8, 8),
        "layers.0.attention.dense.bias": (8,),
        "layers.0.attention.rotary_emb.inv_freq": (4,),
        "layers.0.input_layernorm.weight": (8,),
        "layers.0.input_layernorm.bias": (8,),
        "layers.0.gate": (),
        "norm.weight": (8,),
        "scales.logit": (),
        "lm_head.weight": (16, 8),
    }
    k = model.layers.get_layer(1).attention.k.weight.array.reshape(8, 8)
    np.testing.assert_array_equal(state["neox.layers.1.attention.query_key_value.weight"][8:16], k)
    np.testing.assert_allclose(state["neox.lm_head.weight"], model.head.projection.weight.array / 8, rtol=1e-6)
    assert all(isinstance(value, np.ndarray) for value in to_numpy_state_dict(model).values())

    path = str(tmp_path / "model.safetensors")
    save_state_dict(state, path)
    for template in (jax.tree.map(jnp.zeros_like, model), eqx.filter_eval_shape(export.Model.init, kind, key=KEY)):
        assert eqx.tree_equal(from_torch_compatible_state_dict(template, load_state_dict(path), prefix="neox"), model)


# A trainer that may be stopped


def test_a_resumed_run_goes_on_as_if_never_stopped(tmp_path):
    config = resuming.TrainerConfig()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(2e-2, 10)))
    trainer = resuming.Trainer(config, optimizer, resuming.loss_fn)
    batches = list(itertools.islice(resuming.batches(config), 4))
    init = jax.tree_util.Partial(resuming.Classifier.init, key=KEY)
    path = str(tmp_path / "state.safetensors")
    with hax.set_mesh(config.device_mesh):
        state = trainer.initial_state(init, key=jrandom.PRNGKey(1))
        before = trainer.eval_step(state.model, *batches[0])
        losses = []
        for i, batch in enumerate(batches):
            if i == 2:
                resuming.save(state, path)
            loss, state = trainer.train_step(state, *batch)
            losses.append(loss)
        again = trainer.initial_state(init, key=jrandom.PRNGKey(1), path=path)
        assert int(again.step) == 2
        for i in (2, 3):
            loss, again = trainer.train_step(again, *batches[i])
            np.testing.assert_allclose(loss, losses[i], rtol=1e-6)
        assert trainer.eval_step(state.model, *batches[0]) < before
        assert trainer.eval_step(state.model, *batches[0]) < trainer.eval_step(state.average, *batches[0]) < before
    assert eqx.tree_equal(again, state, rtol=1e-5, atol=1e-6)
    for tree in (state.model, again.model, again.average, again.opt_state[1][0].mu):
        assert lies(tree.mlp.layers[0].weight, config.device_mesh, "model", "data")
    assert state.model.scale.sharding.spec == jax.P("data")


# Gradients one by one


def test_clipped_gradients_of_single_examples(net):
    x, labels = draw(Batch, Embed), hax.named([0, 1, 2, 3], Batch)

    def loss_fn(model, x, label):
        return hnn.cross_entropy_loss(model(x), Classes, hnn.one_hot(label, Classes), reduction=None).scalar()

    @hax.named_jit
    def clipped(net, x, labels):
        grads = hax.vmap(eqx.filter_grad(loss_fn), Batch)(net, x, labels)
        squares = hax.tree_util.tree_map(lambda g: hax.sum(g**2, hax.eliminate_axes(g.axes, Batch)), grads)
        norm = hax.sqrt(sum(hax.tree_util.tree_leaves(squares)))
        mean = hax.tree_util.tree_map(lambda g: hax.mean(g * hax.minimum(1.0, 0.1 / norm), Batch), grads)
        return norm, mean

    norm, mean = clipped(net, x, labels)
    grad_fn = eqx.filter_jit(eqx.filter_grad(loss_fn))
    singles = [grad_fn(net, x["batch", i], labels["batch", i]) for i in range(Batch.size)]
    norms = [np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(single))) for single in singles]
    same(norm, (Batch,), norms, rtol=1e-4)
    expected = [
        np.mean([leaf * min(1, 0.1 / n) for leaf, n in zip(row, norms, strict=True)], 0)
        for row in zip(*map(jax.tree.leaves, singles), strict=True)
    ]
    assert jax.tree.structure(mean) == jax.tree.structure(net)
    for leaf, values in zip(hax.tree_util.tree_leaves(mean), expected, strict=True):
        same(leaf, leaf.axes, values, rtol=1e-3)
