"""Pieces of code around models as users of Haliax write them: adapters, caches, sampling, masks, axes."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import dataclasses

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, NamedArray
from haliax.state_dict import ModuleWithStateDictSerialization, to_state_dict, to_torch_compatible_state_dict
from haliax.tree_util import scan_aware_tree_map

from tests.compat.haliax.clients import draw, same

B, S, E, M = hax.make_axes(batch=8, seq=4, embed=8, mlp=16)
KEY = jax.random.key(0, impl="rbg")


# Adapters


class LowRank(eqx.Module):
    down: hnn.Linear
    up: hnn.Linear
    scale: float = eqx.field(static=True)

    @staticmethod
    def init(In, Out, r, *, key):
        Rank = Axis("__LORA__", r)
        k_down, k_up = jax.random.split(key)
        return LowRank(
            hnn.Linear.init(In, Rank, key=k_down, use_bias=False),
            hnn.Linear.init(Rank, Out, key=k_up, use_bias=False, init_scale=0.5),
            2.0,
        )

    def __call__(self, x):
        return self.up(self.down(x)) * self.scale

    def merge(self):
        return hax.dot(self.up.weight, self.down.weight, axis="__LORA__") * self.scale


class Adapted(ModuleWithStateDictSerialization):
    wrapped: hnn.Linear
    lora: LowRank

    @staticmethod
    def init(wrapped, r, *, key):
        return Adapted(wrapped, LowRank.init(wrapped.In, wrapped.Out, r, key=key))

    def __call__(self, x, *, key=None):
        return self.wrapped(x) + self.lora(x)

    def merge(self):
        weight = self.wrapped.weight + self.lora.merge().rearrange(self.wrapped.weight.axes)
        return dataclasses.replace(self.wrapped, weight=weight)

    def _state_dict_key_map(self):
        return {"wrapped": None, "lora": "lora"}


class Layer(eqx.Module):
    up: hnn.Linear
    down: hnn.Linear

    @staticmethod
    def init(Embed, Mlp, *, key):
        k_up, k_down = jax.random.split(key)
        return Layer(hnn.Linear.init(Embed, Mlp, key=k_up), hnn.Linear.init(Mlp, Embed, key=k_down))

    def __call__(self, x):
        return x + self.down(hnn.relu(self.up(x)))


def is_linear(node):
    return isinstance(node, hnn.Linear)


def test_adapters_of_all_linear_layers():
    Layers = Axis("layers", 2)
    model = hnn.Stacked.init(Layers, Layer)(E, M, key=jax.random.split(KEY, 2))
    x = draw(B, E)

    def adapt(layer):
        if not is_linear(layer):
            return layer
        return Adapted.init(layer, 2, key=jax.random.key(1, impl="rbg"))

    adapted = scan_aware_tree_map(adapt, model, is_leaf=is_linear)
    assert adapted.stacked.up.lora.down.weight.axes == (Layers, Axis("__LORA__", 2), E)
    merged = scan_aware_tree_map(
        lambda node: node.merge() if isinstance(node, Adapted) else node,
        adapted,
        is_leaf=lambda node: isinstance(node, Adapted),
    )
    assert jax.tree.structure(merged) == jax.tree.structure(model)
    same(adapted.fold(x), (B, E), merged.fold(x).array, rtol=1e-3)
    keys = set(to_state_dict(adapted))
    assert "0.up.weight" in keys
    assert "1.down.lora.up.weight" in keys
    exported = to_torch_compatible_state_dict(adapted, prefix="base")
    assert exported["base.0.up.lora.down.weight"].shape == (2, 8)
    only = jax.tree.map(lambda node: isinstance(node, LowRank), adapted, is_leaf=lambda n: isinstance(n, LowRank))
    trainable, frozen = eqx.partition(adapted, only)
    assert len(jax.tree.leaves(trainable)) == 4
    same(eqx.combine(trainable, frozen).fold(x), (B, E), adapted.fold(x).array)


# Generation


def test_a_cache_of_keys_and_values():
    Pos, KeyPos, Heads, D = hax.make_axes(position=1, key_position=6, heads=2, head_dim=4)
    cache = hax.zeros((B, KeyPos, Heads, D))
    news = [draw(B, Heads, D, seed=i) for i in range(3)]

    @jax.jit
    def append(cache, i, new):
        cache = hax.updated_slice(cache, {"key_position": i}, new.broadcast_axis(Axis("key_position", 1)))
        query = new.broadcast_axis(Pos)
        mask = hax.arange(KeyPos) <= i
        return cache, hnn.attention.dot_product_attention(KeyPos, D, query, cache, cache, mask=mask)

    for i, new in enumerate(news):
        cache, out = append(cache, jnp.int32(i), new)
    stacked = np.stack([np.asarray(new.array) for new in news], 1)
    same(cache["key_position", :3], (B, Axis("key_position", 3), Heads, D), stacked)
    expected = jax.nn.dot_product_attention(stacked[:, -1:], stacked, stacked)
    np.testing.assert_allclose(out.rearrange(("batch", "position", "heads", "head_dim")).array, expected, rtol=1e-4)
    lengths = hax.named(np.arange(8) % 3, B)
    moved = hax.updated_slice(cache, {"key_position": lengths}, hax.ones((Axis("key_position", 1), Heads, D)))
    assert (moved["key_position", lengths].array == 1).all()


def test_sampling():
    Vocab, Top = Axis("vocab", 16), Axis("top", 4)
    logits = draw(B, Vocab)
    temperatures = hax.named(np.linspace(0.0, 1.4, 8, dtype=np.float32), B)
    safe = hax.where(temperatures == 0, 1.0, temperatures)
    drawn = hax.random.categorical(jax.random.PRNGKey(0), logits / safe, Vocab)
    tokens = hax.where(temperatures == 0, hax.argmax(logits, Vocab), drawn)
    assert tokens.axes == (B,)
    assert tokens["batch", 0].item() == np.argmax(logits.array[0])
    log_probs = hax.take(hnn.log_softmax(logits, axis=Vocab), Vocab, tokens)
    assert log_probs.axes == (B,)
    values, _ = hax.top_k(logits, Vocab, Top.size, new_axis=Top)
    cut = hax.where(logits < values[Top, -1], -jnp.inf, logits)
    assert (np.isfinite(cut.array).sum(1) == 4).all()
    order = hax.argsort(-logits, Vocab)
    ranked = hax.take(logits, Vocab, order)
    cumulative = hax.cumsum(hnn.softmax(ranked.rearrange((B, Vocab)), axis=Vocab), Vocab)
    assert ((cumulative.array[:, -1] - 1) < 1e-5).all()

    def body(state):
        i, tokens = state
        return i + 1, tokens.at[S, i].set(hax.argmax(logits, Vocab))

    _, tokens = jax.lax.while_loop(lambda state: state[0] < 3, body, (0, hax.zeros((B, S), dtype=jnp.int32)))
    assert tokens[S, 2].tolist() == np.argmax(logits.array, -1).tolist()
    assert tokens[S, 3].tolist() == [0] * 8


def test_segments_and_lengths():
    segments = hax.named([[0, 0, 1, 1]] * 8, (B, S))
    KeyPos = S.alias("key")
    mask = segments.broadcast_axis(KeyPos) == segments.rename({"seq": KeyPos})
    assert {axis.name for axis in mask.axes} == {"batch", "seq", "key"}
    both = hnn.attention.combine_masks_and(mask, hnn.attention.causal_mask(S, KeyPos))
    expected = np.tri(4, dtype=bool) & (np.array([0, 0, 1, 1])[:, None] == np.array([0, 0, 1, 1]))
    np.testing.assert_array_equal(both.rearrange((B, S, KeyPos)).array[0], expected)
    lengths = hax.named(np.arange(8) % 4 + 1, B)
    valid = hax.arange(S).broadcast_axis(B) < lengths
    np.testing.assert_array_equal(hax.sum(valid, S).array, lengths.array)
    x = draw(B, S, E)
    pooled = hax.sum(hax.where(valid, x, 0.0), S) / lengths
    assert set(pooled.axes) == {B, E}
    np.testing.assert_allclose(
        hax.mean(x, S, where=valid).rearrange((B, E)).array, pooled.rearrange((B, E)).array, rtol=1e-4, atol=1e-6
    )


def test_a_convolution_over_time():
    Mels, Time = Axis("mels", 5), Axis("position", 12)
    first = hnn.Conv.init(Time, Mels, E, kernel_size=3, padding=1, key=KEY)
    second = hnn.Conv.init(("position",), E, E.alias("out"), kernel_size=3, stride=2, padding=1, key=KEY)
    x = draw(B, Mels, Time)
    y = second(hnn.gelu(first(x))).rename({"out": "embed"})
    assert y.axes == (B, E, Axis("position", 6))
    sinusoids = hax.concatenate(
        "embed",
        [
            fn(hax.arange(Time) * hax.exp(-hax.arange(E.resize(4)) / 2.0).broadcast_axis(Time))
            for fn in (hax.sin, hax.cos)
        ],
    )
    assert set(sinusoids.axes) == {Time, E}
    same(
        y + hax.slice(sinusoids, "position", start=0, length=6),
        (B, E, Axis("position", 6)),
        y.array + sinusoids.rearrange((E, Time)).array[:, :6],
    )


def test_algebra_of_axes():
    assert hax.eliminate_axes((B, S, E), "seq") == (B, E)
    assert hax.eliminate_axes((B, S, E), (B, E)) == (S,)
    assert hax.concat_axes((B,), (S, E)) == (B, S, E)
    assert hax.concat_axis_specs(B, S) == (B, S)
    assert hax.replace_axis((B, S), S, (E, M)) == (B, E, M)
    assert hax.axis.union_axes((B, S), (S, E)) == (B, S, E)
    assert hax.axis.intersect_axes((B, S), (S, E)) == (S,)
    assert hax.axis.without_axes((B, S), ("seq", "nothing")) == (B,)
    assert hax.resolve_axis((B, S), "seq") == S
    assert hax.selects_axis((B, S), "batch")
    assert hax.flatten_axes((B, S), "flat") == Axis("flat", 32)
    assert hax.to_jax_shape((B, S)) == (8, 4)
    assert hax.axis_spec_to_tuple({"batch": 8, "x": None}) == (B, "x")
    assert hax.util.ensure_tuple(B) == (B,)
    sizes = {axis.name: axis.size for axis in (B, S)}
    same(hax.zeros(sizes), (B, S), np.zeros((8, 4)))
    assert dataclasses.replace(B, size=3) == Axis("batch", 3) == B.resize(3)
    with pytest.raises(ValueError, match="axis 'seq' not found"):
        hax.eliminate_axes((B,), "seq")


def test_checks_can_be_switched_off():
    assert hax.are_shape_checks_enabled()
    with hax.enable_shape_checks(False):
        assert not hax.are_shape_checks_enabled()
        odd = NamedArray(jnp.ones((2, 2)), (B, S))
    assert hax.are_shape_checks_enabled()
    assert odd.array.shape == (2, 2)


def test_printing_inside_of_jit(capsys):
    @jax.jit
    def fn(x):
        jax.debug.print("mean {m}", m=hax.mean(x).scalar())
        return x

    fn(hax.ones(B))
    jax.effects_barrier()
    assert "mean 1.0" in capsys.readouterr().out
    assert "batch" in f"{hax.ones(B)}"
