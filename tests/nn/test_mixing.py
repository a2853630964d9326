"""Layers of several kinds that mix tokens: documents in one row, and caches of which a part is real."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import OperandError
from axonym.nn.mixing import Cache, Cached, Within, find_begins, start_memories
from tests.nn.layouts import draw, fails, halved, made

Batch, Pos, Embed = axn.make_axes(batch=2, pos=7, embed=6)
HEADS, KeyDim = axn.make_axes(heads=2), axn.Axis("head_dim", 4)
Layers = axn.Axis("layers", 2)
LAYER = halved(made(nn.GatedDeltaNet.init, "pos", Embed, HEADS, KeyDim, window=3))
X = draw(Batch, Pos, Embed)


def test_a_memory_does_not_see_the_document_before():
    ids = axn.named([[0, 0, 0, 1, 1, 1, 1], [4, 4, 4, 4, 4, 4, 2]], ("batch", "pos"))

    @jax.jit
    def apply(x, ids):
        alone = [LAYER(x["batch", i]["pos", cut])[0] for i, cut in ((0, slice(3, 7)), (1, slice(6, 7)), (1, slice(6)))]
        return Within(nn.causal(), find_begins(nn.segments(ids)))(LAYER, x, None), alone

    packed, alone = apply(X, ids)
    for i, cut, own in zip((0, 1, 1), (slice(3, 7), slice(6, 7), slice(6)), alone, strict=True):
        np.testing.assert_allclose(packed["batch", i]["pos", cut].array, own.array, rtol=1e-4, atol=1e-5)


def test_a_memory_meets_no_other_mask():
    ids = axn.zeros(Pos, dtype=jnp.int32)
    for mask in (nn.window(3), nn.segments(ids) & nn.window(3), nn.segments(ids) | nn.prefix(2)):
        fails(
            OperandError,
            "mask: layers with a memory see all tokens of their segment, and meet no other mask\n"
            "  hint: pass nn.segments(ids), or no mask",
            lambda mask=mask: find_begins(mask),
        )
    assert find_begins(None) is None


@pytest.mark.parametrize("single", [False, True])
def test_padding_leaves_memories_as_they_are(single):
    @jax.jit
    def run(x, count):
        memories = start_memories(lambda: LAYER, x["pos", :1], Layers)
        size = axn.Axis("pos.key", 9)
        cache = Cache.stacked(Layers, size, (Batch, size, KeyDim), lengths=Batch)
        cache = Cache(cache.key, cache.value, cache.length, cache.KPos, memories=memories)
        outputs = []
        for chunk in (x["pos", :4], x["pos", 4] if single else x["pos", 4:]):
            Own = chunk.resolve_axis("pos") if chunk.has_axis("pos") else None
            given = axn.minimum(count, 1) if Own is None else count
            real = None if Own is None else axn.arange(Own).broadcast_axis(Batch) < given
            mix = Cached(cache, Own, given, real, ("layers", axn.named(1, ())))
            outputs.append(mix(LAYER, chunk, None))
            cache = mix.cache
        whole = LAYER(axn.concatenate("pos", [x["pos", :2], x["pos", 4:]]))[0]
        return outputs, cache.memories, whole

    # The first sequence has two real tokens in each chunk, the second has none.
    (_, second), (memory, _), whole = run(X, axn.named([2, 0], "batch"))
    first = second["batch", 0] if single else second["batch", 0]["pos", 0]
    np.testing.assert_allclose(first.array, whole["batch", 0]["pos", 2].array, rtol=1e-4, atol=1e-5)
    assert (memory["layers", 0].array == 0).all()
    assert (memory["layers", 1]["batch", 1].array == 0).all()
    assert (memory["layers", 1]["batch", 0].array != 0).any()
