"""Small pieces of typical Haliax: layers, losses, attention, loops and stacks of layers."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import dataclasses

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from haliax import Axis, NamedArray
from haliax.jax_utils import filter_eval_shape, maybe_rng_split
from haliax.nn.scan import BlockSeq, ScanCheckpointPolicy, Stacked
from haliax.state_dict import from_state_dict, to_state_dict
from jax.random import PRNGKey, split

from tests.compat.haliax.clients import draw, same

B, S, E, M = hax.make_axes(batch=2, seq=3, embed=4, mlp=6)
Layers = Axis("layers", 3)
KEY = PRNGKey(0)


# Layers


def test_linear():
    layer = hnn.Linear.init(E, M, key=KEY)
    assert layer.weight.axes == (M, E)
    assert layer.bias.axes == (M,)
    raw = jax.random.truncated_normal(KEY, -3.0, 3.0, (6, 4)) / 2
    same(layer.weight, (M, E), raw)
    x = draw(B, S, E)
    same(layer(x), (B, S, M), x.array @ raw.T)
    same(layer(x.rearrange((E, S, B)), key=KEY), (S, B, M), (x.array @ raw.T).swapaxes(0, 1))
    same(
        hnn.Linear.init(E, M, key=KEY, out_first=False).weight,
        (E, M),
        jax.random.truncated_normal(KEY, -3, 3, (4, 6)) / 2,
    )
    assert layer(x.astype(jnp.bfloat16)).dtype == jnp.float32
    several = hnn.Linear.init((E, M), (Axis("a", 2), Axis("b", 3)), key=KEY, use_bias=False, init_scale=0.5)
    assert several.weight.axes == (Axis("a", 2), Axis("b", 3), E, M)
    assert several.bias is None
    scalar_out = hnn.Linear.init(E, (), key=KEY)
    assert scalar_out(x).axes == (B, S)
    rebuilt = dataclasses.replace(layer, bias=None)
    same(rebuilt(x), (B, S, M), x.array @ raw.T)
    moved = eqx.tree_at(lambda layer: layer.bias, layer, hax.ones(M))
    same(moved(x), (B, S, M), x.array @ raw.T + 1)
    with pytest.raises(ValueError, match="in both In and Out"):
        hnn.Linear.init(E, (E, M), key=KEY)


def test_norms_embedding_dropout():
    x = draw(B, E)
    norm = hnn.LayerNorm.init(E)
    same(norm(x), (B, E), jax.nn.standardize(x.array))
    rms = hnn.RmsNorm.init(E, use_bias=False, eps=1e-6)
    assert rms.bias is None
    same(rms(x), (B, E), x.array / np.sqrt((x.array**2).mean(-1, keepdims=True) + 1e-6))
    no_affine = hnn.LayerNorm.init(E, use_weight=False, use_bias=False)
    assert no_affine.weight is no_affine.bias is None
    same(hnn.standardize(x, E), (B, E), jax.nn.standardize(x.array))

    Vocab = Axis("vocab", 8)
    embedding = hnn.Embedding.init(Vocab, E, key=KEY)
    same(embedding.weight, (Vocab, E), jax.random.truncated_normal(KEY, -3.0, 3.0, (8, 4)) / 4)
    ids = hax.named([[1, 2, 7], [0, 0, 3]], (B, S))
    same(embedding(ids), (B, S, E), embedding.weight.array[ids.array])
    same(embedding.embed(ids), (B, S, E), embedding.weight.array[ids.array])
    same(embedding.unembed(x), (B, Vocab), x.array @ embedding.weight.array.T)
    assert embedding.resize_embeddings(10).Vocab == Axis("vocab", 10)
    assert embedding.resize_embeddings(5).weight.axes == (Axis("vocab", 5), E)

    dropout = hnn.Dropout(0.5)
    assert dropout.is_active
    kept = dropout(hax.ones(Axis("n", 512)), key=KEY, inference=False)
    assert set(np.unique(kept.array)) == {0.0, 2.0}
    assert dropout(x, inference=True) is x
    shared = hnn.Dropout(0.5, broadcast_axes=E)(hax.ones((Axis("n", 64), E)), key=KEY)
    assert (shared.array == shared.array[:, :1]).all()
    with pytest.raises(RuntimeError):
        dropout(x)
    same(hnn.dropout(x, 0.0, inference=False), (B, E), x.array)


def test_mlp_and_activations():
    mlp = hnn.MLP.init(E, S, 8, 2, hnn.gelu, key=KEY)
    assert [layer.weight.axes for layer in mlp.layers] == [
        (Axis("mlp", 8), E),
        (Axis("mlp2", 8), Axis("mlp", 8)),
        (S, Axis("mlp2", 8)),
    ]
    assert (mlp.In, mlp.Out) == (E, S)
    x = draw(B, E)
    y = x.array
    for i, layer in enumerate(mlp.layers):
        y = y @ layer.weight.array.T + layer.bias.array
        y = jax.nn.gelu(y) if i < 2 else y
    same(mlp(x), (B, S), y)
    for name in ("relu", "silu", "gelu"):
        same(getattr(hnn, name)(x), (B, E), getattr(jax.nn, name)(x.array))
    same(hnn.gelu(x, approximate=False), (B, E), jax.nn.gelu(x.array, approximate=False))
    same(hnn.quick_gelu(x), (B, E), x.array * jax.nn.sigmoid(1.702 * x.array))
    same(hnn.relu_squared(x), (B, E), jax.nn.relu(x.array) ** 2)
    same(hnn.softmax(x, E), (B, E), jax.nn.softmax(x.array, -1))
    same(hnn.softmax(x, (B, E)), (B, E), jax.nn.softmax(x.array, (0, 1)))
    same(hnn.log_softmax(x, axis="embed"), (B, E), jax.nn.log_softmax(x.array, -1))
    same(hnn.logsumexp(x, E), (B,), jax.nn.logsumexp(x.array, -1))


def test_losses():
    Label = Axis("label", 5)
    logits, targets = draw(B, S, Label), hax.named([[0, 1, 4], [2, 2, 3]], (B, S))
    one_hot = hnn.one_hot(targets, Label)
    same(one_hot, (B, S, Label), jax.nn.one_hot(targets.array, 5))
    same(hnn.one_hot(2, Label, dtype=jnp.int32), (Label,), [0, 0, 1, 0, 0], jnp.int32)
    expected = -np.take_along_axis(
        np.asarray(jax.nn.log_softmax(logits.array)), np.asarray(targets.array)[..., None], -1
    )[..., 0]
    same(hnn.cross_entropy_loss(logits, Label, one_hot), (), expected.mean())
    same(hnn.cross_entropy_loss(logits, "label", one_hot, reduction=None), (B, S), expected)
    same(hnn.cross_entropy_loss(logits, Label, one_hot, hax.sum), (), expected.sum())
    same(hnn.cross_entropy_loss(logits, Label, one_hot, reduction_axis=S), (B,), expected.mean(1))
    keep = hax.named([1.0, 1.0, 0.0], S)
    same(hnn.cross_entropy_loss(logits, Label, one_hot, where=keep.broadcast_axis(B)), (), expected[:, :2].mean())
    losses, normalizers = hnn.cross_entropy_loss_and_log_normalizers(logits, Label, one_hot)
    same(losses, (B, S), expected)
    same(normalizers, (B, S), jax.nn.logsumexp(logits.array, -1))
    binary = hnn.binary_cross_entropy_loss(logits, one_hot, reduction=None)
    same(binary, (B, S, Label), optax.sigmoid_binary_cross_entropy(logits.array, one_hot.array))
    same(hnn.reduce_loss(losses, None, where=keep.broadcast_axis(B) > 0), (B, S), expected * [1, 1, 0])


def test_attention_and_masks():
    H, D, K = Axis("heads", 2), Axis("head_dim", 4), Axis("key", 3)
    q, k, v = draw(B, H, S, D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2)
    mask = hnn.attention.causal_mask(S, K)
    same(mask, (S, K), np.tri(3), jnp.bool_)
    out = hnn.attention.dot_product_attention(K, D, q, k, v, mask=mask)
    positional = [x.rearrange(("batch", ..., "heads", "head_dim")).array for x in (q, k, v)]
    expected = jax.nn.dot_product_attention(*positional, is_causal=True)
    same(out, (B, H, S, D), expected.swapaxes(1, 2))
    weights = hnn.attention.dot_product_attention_weights(D, K, q, k, mask=mask, attention_dtype=jnp.float32)
    same(weights.sum(K), (B, H, S), np.ones((2, 2, 3)))
    bias = hnn.attention.alibi_attention_bias(H, K)
    assert bias.axes == (H, K)
    hnn.attention.dot_product_attention(K, D, q, k, v, bias=bias)
    both = hnn.attention.combine_masks_and(mask, hax.arange(K) < 2)
    same(both, (S, K), np.tri(3) * [1, 1, 0])
    assert hnn.attention.combine_masks_or(None, mask) is mask
    prefix = hnn.attention.prefix_lm_mask(S, K, 2)
    same(prefix, (S, K), [[1, 1, 0], [1, 1, 0], [1, 1, 1]])
    same(hnn.attention.causal_mask(Axis("q", 1), K, q_start=2), (Axis("q", 1), K), [[1, 1, 1]])
    with pytest.raises(ValueError, match="the query has axis 'seq'"):
        hnn.attention.dot_product_attention(S, D, q, k, v)


# vmap, scan, fold, map


def test_loops():
    x = draw(B, S, E)
    total, sums = hax.scan(lambda carry, row: (carry + row, carry), S)(hax.zeros((B, E)), x)
    same(total, (B, E), x.array.sum(1))
    same(sums, (S, B, E), np.moveaxis(np.cumsum(x.array, 1) - x.array, 1, 0))
    same(
        hax.fold(lambda carry, row, scale: carry + row * scale, "seq")(hax.zeros((B, E)), x, 2.0),
        (B, E),
        2 * x.array.sum(1),
    )
    same(hax.map(lambda row: row * 2, S)(x), (S, B, E), np.moveaxis(x.array, 1, 0) * 2)
    last, ys = hax.scan(lambda c, i: (c + 1, c), Axis("n", 4))(jnp.int32(0), hax.arange(Axis("n", 4)))
    assert last == 4
    assert ys.tolist() == [0, 1, 2, 3]
    keys = split(KEY, S.size)
    out = hax.fold(lambda c, row, key: c + hax.random.normal(key, E) * row, S)(hax.zeros((B, E)), x, keys)
    expected = sum(jax.random.normal(keys[i], (4,)) * x.array[:, i] for i in range(3))
    same(out, (B, E), expected)


@pytest.mark.parametrize("remat", [True, "recompute", "nested", ScanCheckpointPolicy(save_inputs=True)], ids=str)
def test_checkpointed_loops(remat):
    def loss(x):
        return hax.fold(lambda carry, row: hax.sin(carry + row), S, remat=remat)(hax.zeros((B, E)), x).sum().scalar()

    def plain(x):
        carry = jnp.zeros((2, 4))
        for i in range(3):
            carry = jnp.sin(carry + x[:, i])
        return carry.sum()

    x = draw(B, S, E)
    same(jax.grad(loss)(x), (B, S, E), jax.grad(plain)(x.array))


def test_vmap():
    x, w = draw(B, S, E), draw(E, M)
    same(hax.vmap(lambda x: x.dot(w, axis=E), B)(x), (B, S, M), x.array @ w.array)
    same(
        hax.vmap(lambda x, k: x + hax.random.normal(k, E), B)(x["seq", 0], split(KEY, 2)),
        (B, E),
        x.array[:, 0] + jax.vmap(lambda k: jax.random.normal(k, (4,)))(split(KEY, 2)),
    )
    same(hax.vmap(lambda x: x.sum(), (S, B))(x), (S, B), x.array.sum(-1).T)
    same(hax.vmap(lambda x, raw: x * raw, "batch", args=(0, None))(x["seq", 0], 3.0), (B, E), x.array[:, 0] * 3)
    same(hax.vmap(lambda: hax.ones(E), Axis("new", 2))(), (Axis("new", 2), E), np.ones((2, 4)))
    layers = hax.vmap(hnn.Linear.init, Layers)(E, M, key=split(KEY, 3))
    assert layers.weight.axes == (Layers, M, E)
    with pytest.raises(RuntimeError):
        hax.vmap(lambda x: x, Axis("batch", 5))(x)


def test_transformations_of_jax():
    x = draw(B, E)
    gradient = jax.grad(lambda x: hax.sum(x**2).scalar())(x)
    same(gradient, (B, E), 2 * x.array)
    same(jax.jit(lambda x: hax.exp(x))(x), (B, E), np.exp(x.array))
    same(jax.lax.cond(True, lambda x: x + 1, lambda x: x, x), (B, E), x.array + 1)
    same(jax.lax.while_loop(lambda x: hax.max(x).scalar() < 10, lambda x: x + 5, x), (B, E), x.array + 10)
    shape = jax.eval_shape(lambda x: x.rearrange((E, B)), x)
    assert type(shape) is NamedArray
    assert shape.axes == (E, B)
    assert isinstance(shape.array, jax.ShapeDtypeStruct)
    assert filter_eval_shape(hnn.Linear.init, E, M, key=KEY).weight.axes == (M, E)
    _, tangent = jax.jvp(lambda x: x * 2, (x,), (x,))
    same(tangent, (B, E), 2 * x.array)
    doubled = jax.tree.map(lambda array: array * 2, {"x": x})
    same(doubled["x"], (B, E), 2 * x.array)
    assert maybe_rng_split(None, 2) == [None, None]
    assert len(maybe_rng_split(KEY, 3)) == 3


def test_training_without_compilation():
    target = hnn.Linear.init(E, M, key=PRNGKey(5))
    model = {"linear": hnn.Linear.init(E, M, key=KEY), "dropout": hnn.Dropout(0.1), "scale": hax.ones(M)}
    x = draw(Axis("batch", 8), E)

    def compute_loss(model, x, key, inference):
        y = model["dropout"](model["linear"](x) * model["scale"], key=key, inference=inference)
        return hax.mean(hax.square(y - target(x)))

    def batch_loss(model, x, keys):
        return hax.mean(hax.vmap(compute_loss, "batch")(model, x, keys, inference=False), "batch").scalar()

    grad_loss = eqx.filter_value_and_grad(batch_loss)
    for given in (model, eqx.filter(model, eqx.is_inexact_array)):
        optimizer, trained, losses = optax.adamw(1e-1), model, []
        opt_state = optimizer.init(given)
        for key in split(KEY, 4):
            loss, grads = grad_loss(trained, x, split(key, 8))
            updates, opt_state = optimizer.update(grads, opt_state, params=trained)
            trained = eqx.apply_updates(trained, updates)
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        assert type(trained["linear"].weight) is type(opt_state[0].nu["scale"]) is NamedArray


# Stacks of layers


class Layer(eqx.Module):
    linear: hnn.Linear
    scale: jax.Array
    name: str = eqx.field(static=True, default="layer")

    @staticmethod
    def init(Embed, *, key):
        return Layer(hnn.Linear.init(Embed, Embed.alias("out"), key=key), jnp.ones(()))

    def __call__(self, x, offset=0.0, *, key=None):
        return x + hax.tanh(self.linear(x)).rename({"out": "embed"}) * self.scale + offset

    def with_output(self, x):
        y = self(x)
        return y, y.mean(E)


@pytest.mark.parametrize("kind", [Stacked, BlockSeq])
def test_stacks(kind):
    blocks = kind.init(Layers, Layer)(E, key=split(KEY, 3))
    x = draw(B, E)
    y, means = x, []
    for key in split(KEY, 3):
        y = Layer.init(E, key=key)(y)
        means.append(y.array.mean(-1))
    same(blocks.fold(x), (B, E), y.array)
    same(hax.named_jit(blocks.fold)(x), (B, E), y.array)
    out, collected = blocks.scan_via(Layer.with_output)(x)
    same(out, (B, E), y.array)
    same(collected, (Layers, B), np.stack(means))
    same(blocks.fold_via(lambda block, carry: block(carry))(x), (B, E), y.array)
    same(blocks.fold_via(Layer.__call__, unroll=3)(x), (B, E), y.array)
    outputs = blocks.vmap_via(Layer.__call__)(x)
    assert outputs.axes == (Layers, B, E)
    layers = blocks.unstacked()
    assert len(layers) == 3
    same(layers[1].linear.weight, (E.alias("out"), E), Layer.init(E, key=split(KEY, 3)[1]).linear.weight.array)
    same(blocks.get_layer(2)(x), (B, E), layers[2](x).array)
    assert set(to_state_dict(blocks, prefix="h")) == {
        f"h.{i}.{name}" for i in range(3) for name in ("linear.weight", "linear.bias", "scale")
    }
    other = kind.init(Layers, Layer, gradient_checkpointing=True)(E, key=split(PRNGKey(1), 3))
    loaded = from_state_dict(other, to_state_dict(blocks, prefix="h"), prefix="h")
    same(loaded.fold(x), (B, E), y.array)


def test_stack_with_extra_inputs():
    blocks = Stacked.init(Layers, Layer, gradient_checkpointing="offload")(E, key=split(KEY, 3))
    assert blocks.Block == blocks.Layers == Layers
    x = draw(B, E)
    y = x
    for i, layer in enumerate(blocks.unstacked()):
        y = layer(y, offset=float(i))
    same(blocks.fold(x, hax.arange(Layers).astype(jnp.float32)), (B, E), y.array)
    same(blocks.fold(x, offset=jnp.arange(3.0)), (B, E), y.array)
    assert blocks.vmap(x).axes == (Layers, B, E)
