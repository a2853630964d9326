"""Five models as users of Haliax write them, each against the same maths in plain JAX or Equinox, and trained."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from haliax.state_dict import (
    from_state_dict,
    from_torch_compatible_state_dict,
    load_state_dict,
    save_state_dict,
    to_numpy_state_dict,
    to_state_dict,
    to_torch_compatible_state_dict,
)

from tests.compat.haliax.clients import cross_entropy, draw, gelu, lies, on_host, same, softmax
from tests.compat.haliax.programs import convnet, llama, mixture, rnn, vision
from tests.compat.haliax.programs.trainer import train

KEY = jax.random.key(0, impl="rbg")  # its programs compile in no time
Batch = Axis("batch", 8)


def learns(model, loss_fn, *batch, mapping, mesh, first=None):
    model, batch = on_host((model, batch))  # from there they go to all devices, as from a checkpoint
    losses, trained = train(model, loss_fn, *batch, mapping=mapping, mesh=mesh)
    assert losses[-1] < losses[0]
    if first is not None:
        np.testing.assert_allclose(losses[0], first, rtol=1e-3)
    assert jax.tree.structure(trained) == jax.tree.structure(model)
    arrays = [leaf for leaf in jax.tree.leaves(trained, is_leaf=hax.is_named_array) if hax.is_named_array(leaf)]
    assert arrays
    for leaf in arrays:
        assert type(leaf) is hax.NamedArray
        assert lies(leaf, mesh, *(mapping.get(axis.name) for axis in leaf.axes)), leaf.axes


def linear(layer, x):
    """Apply a layer whose weight is {Out, In}, with one axis of input, to the last dimension of an array."""
    y = np.tensordot(x, layer.weight.array, [[-1], [layer.weight.ndim - 1]])
    return y if layer.bias is None else y + layer.bias.array


def layer_norm(layer, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + layer.eps) * layer.weight.array + layer.bias.array


# Vision transformer


def plain_vision(model, images):
    config = model.config
    b, (n, p) = images.shape[0], (config.image_size // config.patch_size, config.patch_size)
    patches = images.reshape(b, config.channels, n, p, n, p).transpose(0, 2, 4, 1, 3, 5).reshape(b, n * n, -1)
    x = linear(model.patch_projection, patches)
    token = np.broadcast_to(model.class_token.array, (b, 1, x.shape[-1]))
    x = np.concatenate([token, x], axis=1) + model.positions.array
    for block in model.blocks.blocks:
        q, k, v = np.moveaxis(linear(block.attention.qkv, layer_norm(block.norm_1, x)), 2, 0)
        weights = softmax(np.einsum("bshd,bthd->bhst", q, k) / np.sqrt(q.shape[-1]))
        out = block.attention.out
        x = x + np.einsum("bhst,bthd,ehd->bse", weights, v, out.weight.array) + out.bias.array
        first, second = block.mlp.layers
        x = x + linear(second, gelu(linear(first, layer_norm(block.norm_2, x))))
    return linear(model.head, layer_norm(model.norm, x[:, 0]))


def test_vision_transformer(auto_mesh):
    config = vision.VitConfig()
    model = hax.named_jit(vision.VisionTransformer.init)(config, key=KEY)
    images = draw(Batch, config.Channels, config.Height, config.Width)
    expected = plain_vision(*on_host((model, images.array)))
    same(eqx.filter_jit(model)(images), (Batch, config.Classes), expected)

    turned = model.patches(images.rearrange(("width", "batch", "height", "channel")))
    same(turned, (Batch, config.Patches, config.Pixels), model.patches(images).array)

    labels = hax.arange(Batch) % config.num_classes
    mapping = {"embed": "data", "mlp": "model", "heads": "model"}
    first = cross_entropy(expected, labels.array).mean()
    learns(model, vision.loss_fn, images, labels, mapping=mapping, mesh=auto_mesh, first=first)


# Llama


def rms(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight


def plain_llama(weights, config, ids):
    """Run the torch layout of the weights: each a matrix {out, in} under the name that the torch model has for it."""
    b, s = ids.shape
    kv, group, d = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.HeadSize.size
    angles = np.arange(s)[:, None] / config.rope_theta ** (np.arange(0, d, 2) / d)
    turn = np.exp(1j * angles)[:, None]

    def rotate(x):
        turned = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * turn
        return np.concatenate([turned.real, turned.imag], -1)

    x = weights["model.embed_tokens.weight"][ids]
    for i in range(config.num_layers):
        layer = {key.removeprefix(f"model.layers.{i}."): value for key, value in weights.items()}
        y = rms(x, layer["input_layernorm.weight"])
        q = rotate((y @ layer["self_attn.q_proj.weight"].T).reshape(b, s, kv * group, d))
        k = rotate((y @ layer["self_attn.k_proj.weight"].T).reshape(b, s, kv, d)).repeat(group, axis=2)
        v = (y @ layer["self_attn.v_proj.weight"].T).reshape(b, s, kv, d).repeat(group, axis=2)
        scores = np.einsum("bshd,bthd->bhst", q, k) / np.sqrt(d)
        scores = np.exp(np.where(np.tri(s, dtype=bool), scores, -np.inf))
        y = np.einsum("bhst,bthd->bshd", scores / scores.sum(-1, keepdims=True), v).reshape(b, s, -1)
        x = x + y @ layer["self_attn.o_proj.weight"].T
        y = rms(x, layer["post_attention_layernorm.weight"])
        gate = y @ layer["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ layer["mlp.up_proj.weight"].T)) @ layer["mlp.down_proj.weight"].T
    return rms(x, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


Vocab = Axis("vocab", 16)


@pytest.fixture(scope="module")
def decoder():
    return hax.named_jit(llama.LlamaLMHeadModel.init)(Vocab, llama.LlamaConfig(), key=KEY)


def causal(config):
    return hax.nn.attention.causal_mask(config.Pos, config.KeyPos)


def test_llama_against_numpy_by_its_exported_weights(decoder):
    config = decoder.config
    ids = hax.random.randint(KEY, (Batch, config.Pos), 0, Vocab.size)
    weights = to_torch_compatible_state_dict(decoder)
    assert sorted(weights)[:3] == [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
    ]
    assert len(weights) == 3 + 9 * config.num_layers
    assert weights["model.layers.1.self_attn.q_proj.weight"].shape == (16, 16)
    assert weights["model.layers.1.self_attn.k_proj.weight"].shape == (8, 16)
    assert weights["model.layers.1.mlp.down_proj.weight"].shape == (16, 24)
    logits = eqx.filter_jit(decoder)(ids, causal(config))
    same(logits, (Batch, config.Pos, Vocab), plain_llama(weights, config, np.asarray(ids.array)))


def test_llama_reloads(decoder, tmp_path):
    path = str(tmp_path / "model.safetensors")
    save_state_dict(to_torch_compatible_state_dict(decoder), path)
    other = jax.tree.map(jnp.zeros_like, decoder)
    reloaded = from_torch_compatible_state_dict(other, load_state_dict(path))
    assert eqx.tree_equal(decoder, reloaded)

    shapes = eqx.filter_eval_shape(llama.LlamaLMHeadModel.init, Vocab, decoder.config, key=KEY)
    assert eqx.tree_equal(decoder, from_torch_compatible_state_dict(shapes, load_state_dict(path)))

    named = to_state_dict(decoder, prefix="policy")
    assert named["policy.model.layers.0.self_attn.q_proj.weight"].shape == (2, 2, 4, 16)
    assert eqx.tree_equal(decoder, from_state_dict(other, named, prefix="policy"))
    on_host = to_numpy_state_dict(decoder)
    assert {key.removeprefix("policy.") for key in named} == set(on_host)
    assert all(isinstance(value, np.ndarray) for value in on_host.values())
    with pytest.raises(KeyError):
        from_state_dict(other, named)


def test_llama_learns_and_resizes(decoder, auto_mesh):
    config = decoder.config
    ids = hax.random.randint(KEY, (Batch, config.Pos), 0, Vocab.size)
    mask = hax.broadcast_to(1 - hax.nn.one_hot(-1, config.Pos, dtype=jnp.float32), (Batch, config.Pos))
    mapping = {"embed": "data", "mlp": "model", "kv_head": "model", "heads": "model"}
    expected = plain_llama(to_torch_compatible_state_dict(decoder), config, np.asarray(ids.array))
    first = cross_entropy(expected[:, :-1], ids.array[:, 1:]).mean()
    learns(decoder, llama.loss_fn, ids, mask, mapping=mapping, mesh=auto_mesh, first=first)

    larger = decoder.resize_vocab(20)
    assert larger.Vocab == Axis("vocab", 20)
    for grown, old in ((larger.lm_head, decoder.lm_head), (larger.embeddings, decoder.embeddings)):
        grown, old = (jax.tree.leaves(tree, is_leaf=hax.is_named_array)[0] for tree in (grown, old))
        same(grown["vocab", : Vocab.size], (Vocab, config.Embed), old.array)


# Mixture of experts


def plain_mixture(model, x):
    """Run each token through the experts that it chose, one by one."""
    gate, up, down = (np.asarray(layer.weight.array) for layer in jax.tree.leaves(model.experts, is_leaf=is_moe))
    router = np.asarray(model.gate.weight.array)
    outputs = []
    for token in x.reshape(-1, x.shape[-1]):
        p = np.exp(router @ token)
        chosen = np.argsort(-p)[: model.config.num_experts_per_tok]
        opened = [gate[e].T @ token for e in chosen]
        ys = [down[e].T @ (g / (1 + np.exp(-g)) * (up[e] @ token)) for e, g in zip(chosen, opened, strict=True)]
        outputs.append(sum(p[e] / p[chosen].sum() * y for e, y in zip(chosen, ys, strict=True)))
    return np.stack(outputs).reshape(x.shape)


def is_moe(node):
    return isinstance(node, hax.nn.MoELinear)


def test_mixture_of_experts(auto_mesh):
    config = mixture.MixtureConfig()
    model = hax.named_jit(mixture.SparseMoeBlock.init)(config, key=KEY)
    Pos = Axis("position", 3)
    x = draw(Batch, Pos, config.Embed)
    out, extras = eqx.filter_jit(model)(x)
    expected = plain_mixture(model, np.asarray(x.array))
    same(out, (Batch, Pos, config.Embed), expected)
    assert extras["load"].axes == (config.Experts,)
    np.testing.assert_allclose(extras["load"].sum().item(), 1, rtol=1e-6)
    assert extras["z"].axes == extras["balance"].axes == ()

    y = draw(Batch, Pos, config.Embed, seed=1)
    mapping = {"embed": "data", "mlp": "model"}
    learns(model, mixture.loss_fn, x, y, mapping=mapping, mesh=auto_mesh)


def test_rows_of_experts_come_home_by_scatter():
    Token, Repeat, Embed = hax.make_axes(token=4, repeat=9, embed=3)
    values, owner = draw(Repeat, Embed), np.array([0, 3, 3, 1, 0, 0, 3, 1, 3])
    expected = np.zeros((4, 3), np.float32)
    np.add.at(expected, owner, np.asarray(values.array))
    same(mixture.combine_by_scatter(values, Token, hax.named(owner, Repeat)), (Token, Embed), expected)


# Convolutions


def plain_conv(layer, x, groups=1):
    y = jax.lax.conv_general_dilated(x, layer.weight.array, (1, 1), ((1, 1), (1, 1)), feature_group_count=groups)
    return y if layer.bias is None else y + layer.bias.array[:, None, None]


def plain_convnet(model, x):
    for block in model.blocks:
        x = np.asarray(plain_conv(block.conv, x)).clip(0)
        x = np.asarray(plain_conv(block.depthwise, x, groups=x.shape[1]))
        x = np.moveaxis(layer_norm(block.norm, np.moveaxis(x, 1, -1)), -1, 1)
        x = x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).max((3, 5))
    return linear(model.head, x.mean((2, 3)))


def test_convnet(auto_mesh):
    model = hax.named_jit(convnet.ConvNet.init)((4, 8), key=KEY)
    images = draw(Batch, convnet.Colors, convnet.Height, convnet.Width)
    expected = plain_convnet(*on_host((model, images.array)))
    same(eqx.filter_jit(model)(images), (Batch, convnet.Classes), expected)

    split = images.unflatten_axis("batch", (Axis("replica", 2), Axis("example", 4)))
    same(eqx.filter_jit(model)(split), (*split.axes[:2], convnet.Classes), expected.reshape(2, 4, -1))
    last = model.features(images.rearrange((..., "color")))
    assert [axis.name for axis in last.axes] == ["batch", "height", "width", "channel1"]

    labels = hax.arange(Batch) % convnet.Classes.size
    mapping = {"out": "model", "classes": "data"}
    learns(model, convnet.loss_fn, images, labels, KEY, mapping=mapping, mesh=auto_mesh)


def test_transposed_convolution_against_equinox():
    In, Out = Axis("in", 3), Axis("out", 4)
    layer = hax.nn.ConvTranspose.init(
        ("height", "width"), In, Out, kernel_size=(3, 2), stride=2, padding=1, output_padding=1, key=KEY
    )
    x = draw(Batch, In, Axis("height", 4), Axis("width", 5))
    reference = eqx.nn.ConvTranspose2d(3, 4, (3, 2), stride=2, padding=1, output_padding=1, key=KEY)
    reference = eqx.tree_at(
        lambda layer: (layer.weight, layer.bias),
        reference,
        (layer.weight.rearrange(("out", "in", "height", "width")).array, layer.bias.array[:, None, None]),
    )
    expected = jax.vmap(reference)(x.array)
    axes = (Batch, Out, Axis("height", expected.shape[2]), Axis("width", expected.shape[3]))
    same(layer(x), axes, expected)


# Recurrence


def plain_cell(cell):
    made = eqx.nn.GRUCell(rnn.Embed.size, rnn.Hidden.size, key=KEY)
    return eqx.tree_at(
        lambda made: (made.weight_ih, made.weight_hh, made.bias, made.bias_n),
        made,
        (
            cell.input_gates.weight.array.reshape(-1, rnn.Embed.size),
            cell.state_gates.weight.array.reshape(-1, rnn.Hidden.size),
            cell.input_gates.bias.array.reshape(-1),
            cell.new_bias.array,
        ),
    )


def test_recurrent_net(auto_mesh):
    model = hax.named_jit(rnn.Classifier.init)(key=KEY)
    bias = draw(*model.forwards.input_gates.bias.axes)
    model = eqx.tree_at(lambda model: model.forwards.input_gates.bias, model, bias)
    ids = hax.random.randint(KEY, (Batch, rnn.Pos), 0, rnn.Vocab.size)
    states, last = eqx.filter_jit(model.states)(model.embedding(ids))

    xs = model.embedding.weight.array[ids.array]
    step = eqx.filter_jit(eqx.filter_vmap(lambda cell, x, state: cell(x, state), in_axes=(None, 0, 0)))
    forwards, backwards = plain_cell(model.forwards), plain_cell(model.backwards)
    forth = back = jnp.zeros((Batch.size, rnn.Hidden.size))
    expected = []
    for i in range(rnn.Pos.size):
        forth, back = step(forwards, xs[:, i], forth), step(backwards, xs[:, -1 - i], back)
        expected.append(forth)
    same(states, (rnn.Pos, Batch, rnn.Hidden), jnp.stack(expected))
    same(last, (Batch, rnn.Hidden), back)

    labels = hax.arange(Batch) % rnn.Classes.size
    mapping = {"hidden": "model", "vocab": "model"}
    head = on_host(model.head)
    first = cross_entropy(linear(head, np.concatenate([np.mean(expected, 0), back], -1)), labels.array).mean()
    learns(model, rnn.loss_fn, ids, labels, mapping=mapping, mesh=auto_mesh, first=first)
