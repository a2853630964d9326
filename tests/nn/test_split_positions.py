"""Layers along positions that are split over devices: values, gradients, and that no device gets the whole sequence."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from measure import collectives

import axonym as axn
from axonym import nn

Batch, Pos, Embed = axn.make_axes(batch=2, pos=32, embed=8)
KEY = jax.random.key(0)
MAPPING = {"pos": "data"}
BYTES = 4

HEADS, *DIMS = axn.make_axes(heads=2, key_dim=4, value_dim=3)

# For each layer what it sends, in elements of float32 for each of the batch: nothing, borders, or sums.
LAYERS: dict[str, tuple[Callable[[], Any], int]] = {
    "RmsNorm": (lambda: nn.RmsNorm.init(Embed), 0),
    "GatedMLP": (lambda: nn.GatedMLP.init(Embed, Embed, Embed.resize(16), key=KEY), 0),
    "Conv": (lambda: nn.Conv.init("pos", Embed, Embed, 3, padding="SAME", key=KEY), 8),
    "Conv, causal": (lambda: nn.Conv.init("pos", Embed, Embed, 4, padding=[(3, 0)], key=KEY), 3 * 8),
    "Conv, strides": (lambda: nn.Conv.init("pos", Embed, Embed, 4, stride=2, padding=1, key=KEY), 8),
    "ConvTranspose": (lambda: nn.ConvTranspose.init("pos", Embed, Embed, 4, stride=2, padding=1, key=KEY), 8),
    "max_pool": (lambda: functools.partial(nn.max_pool, Pos.resize(3), stride=1, padding="SAME"), 8),
    "mean_pool": (lambda: functools.partial(nn.mean_pool, Pos.resize(2), stride=2), 8),
    "GroupNorm": (lambda: nn.GroupNorm.init(Embed, 2, "pos"), 2),
    "LatentAttention": (
        lambda: nn.LatentAttention.init(Embed, *axn.make_axes(heads=2, head_dim=4, latent=6, rotary=2), key=KEY),
        8 * 2 * 6,
    ),
    "GatedDeltaNet": (lambda: nn.GatedDeltaNet.init("pos", Embed, HEADS, *DIMS, chunk=4, key=KEY), 2 * 4 * (4 + 3)),
    "Mamba2": (lambda: nn.Mamba2.init("pos", Embed, HEADS, *DIMS, chunk=4, key=KEY), 2 * 4 * 3),
    "DiagonalSSM": (lambda: nn.DiagonalSSM.init("pos", Embed, Embed, key=KEY), 16),
}


def drawn(*axes: axn.Axis, seed: int = 0) -> axn.NamedArray:
    values = np.random.default_rng(seed).normal(size=[axis.size for axis in axes])
    return axn.named(jax.device_put(values.astype(np.float32)), axes)


def called(layer: Any, x: axn.NamedArray) -> axn.NamedArray:
    result = layer(x)
    return result[0] if isinstance(result, tuple) else result


def both(layer: Any, x: axn.NamedArray) -> Any:
    """Give the value, and the gradient by the input."""
    gradient = jax.grad(lambda x: (called(layer, x) ** 2).sum().scalar())
    return called(layer, x), gradient(x)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_what_one_device_gives_and_sends_borders(
    name: str, kind: str, request: pytest.FixtureRequest
) -> None:
    make, most = LAYERS[name]
    layer, x = make(), drawn(Batch, Pos, Embed)
    run = jax.jit(functools.partial(both, layer))
    expected = run(x)
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping(MAPPING):
        given = axn.shard(x)
        compiled = run.lower(given).compile()
        found = compiled(given)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-5)
    sent = [each.bytes for each in collectives(compiled)]
    # in a backward pass, each device may send what it has for each of four
    assert max(sent, default=0) <= 4 * BYTES * Batch.size * most


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_a_loss_with_targets_that_are_rolled_sends_one_position(kind: str, request: pytest.FixtureRequest) -> None:
    Vocab = axn.Axis("vocab", 16)
    logits, tokens = drawn(Batch, Pos, Vocab), axn.named(np.arange(64).reshape(2, 32) % 16, (Batch, Pos))

    def rolled(logits: axn.NamedArray, tokens: axn.NamedArray) -> jax.Array:
        weights = axn.arange(Pos) < Pos.size - 1
        targets = axn.roll(tokens, -1, "pos")
        return nn.cross_entropy_loss(logits, "vocab", targets, where=weights).scalar()

    def sliced(logits: axn.NamedArray, tokens: axn.NamedArray) -> jax.Array:
        return nn.cross_entropy_loss(logits["pos", :-1], "vocab", tokens["pos", 1:]).scalar()

    expected = jax.jit(jax.value_and_grad(sliced))(logits, tokens)
    step = jax.jit(jax.value_and_grad(rolled))
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping(MAPPING):
        given = axn.shard((logits, tokens))
        compiled = step.lower(*given).compile()
        found, sent = compiled(*given), collectives(compiled)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)
    assert {each.kind for each in sent} <= {"collective-permute", "all-reduce"}
    assert max(each.bytes for each in sent) <= BYTES * Batch.size


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_a_recurrent_layer_gathers_its_inputs_once(kind: str, request: pytest.FixtureRequest) -> None:
    """Steps wait for each other, so that all devices do all of them: nothing is sent in the loop."""
    layer, x = nn.Recurrent(nn.GRUCell.init(Embed, Embed.resize(4), key=KEY), "pos"), drawn(Batch, Pos, Embed)
    run = jax.jit(functools.partial(both, layer))
    expected = run(x)
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping(MAPPING):
        given = axn.shard(x)
        found = run(given)
        sent = collectives(jax.jit(lambda x: layer(x)[0]).lower(given).compile())
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-5)
    assert [(each.kind, each.count) for each in sent] == [("all-gather", 1)]
