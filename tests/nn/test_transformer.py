"""Blocks of a transformer, against their parts put together by hand, and on meshes."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import OperandError
from tests.nn.layouts import compiled, draw, fails, halved, made, same

pytestmark = pytest.mark.sampled

Batch, Pos, Embed, Heads, HeadDim, Mlp = axn.make_axes(batch=4, pos=5, embed=8, heads=2, head_dim=4, mlp=16)
KEY = jax.random.key(0)
LLAMA: dict[str, Any] = {"norm": nn.RmsNorm.init, "gated": True, "use_bias": False}


def make(**options: Any) -> nn.TransformerBlock:
    return halved(halved(made(nn.TransformerBlock.init, Embed, Heads, HeadDim, Mlp, **options)))


def by_parts(block: nn.TransformerBlock, x: axn.NamedArray) -> axn.NamedArray:
    if block.post_norm:
        x = block.attention_norm(x + block.attention(x, nn.causal()))
        return block.mlp_norm(x + block.mlp(x))
    x = x + block.attention(block.attention_norm(x), nn.causal())
    return x + block.mlp(block.mlp_norm(x))


@pytest.mark.parametrize("options", [{}, {"post_norm": True}, LLAMA], ids=["GPT-2", "post-norm", "Llama"])
def test_is_the_sum_of_its_parts(options: dict[str, Any]) -> None:
    block, x = make(**options), draw(Batch, Pos, Embed)
    same(compiled(block, x, nn.causal()), x.names, compiled(by_parts, block, x).array)
    has_bias = [p for p in jax.tree.leaves(block.mlp, is_leaf=axn.is_named_array) if "embed" not in p.names]
    assert bool(has_bias) == options.get("use_bias", True)


def test_a_norm_that_is_no_function() -> None:
    fails(
        OperandError,
        "TransformerBlock.init: norm must be a function of an axis, not 'rms'\n"
        "  hint: pass axn.nn.LayerNorm.init or axn.nn.RmsNorm.init",
        lambda: make(norm="rms"),
    )


def test_dropout_only_with_a_key() -> None:
    x = draw(Batch, Pos, Embed)
    block = make(dropout=0.5)
    without = compiled(block, x).array
    same(compiled(make(), x), x.names, without)
    assert not np.allclose(compiled(block, x, key=KEY).array, without)
    same(compiled(eqx.nn.inference_mode(block), x, key=KEY), x.names, without)


def test_a_stack_of_blocks_with_caches_equals_the_whole() -> None:
    Layers, KPos = axn.make_axes(layers=3, **{"pos.key": 8})
    blocks = made(nn.Stacked.init(Layers, nn.TransformerBlock), Embed, Heads, HeadDim, Mlp, **LLAMA)
    blocks = halved(halved(blocks))
    x = draw(Batch, Pos, Embed)
    whole = blocks.fold(x, nn.causal())
    caches = nn.KVCache.init(KPos, (Layers, Batch, KPos, Heads, HeadDim), lengths=Layers)

    def layer(block: nn.TransformerBlock, carry: Any, i: axn.NamedArray) -> Any:
        x, caches = carry
        return block.extend(x, caches, layer=("layers", i))

    @jax.jit
    def extend(x: axn.NamedArray, caches: nn.KVCache) -> Any:
        return blocks.fold_via(layer)((x, caches), axn.arange(Layers))

    first, caches = extend(x["pos", :4], caches)
    last, caches = extend(x["pos", 4], caches)
    same(first.rearrange(x.names), x.names, whole["pos", :4].array)
    same(last.rearrange(("batch", "embed")), ("batch", "embed"), whole["pos", 4].array)


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_on_a_mesh(mesh: str, request: pytest.FixtureRequest) -> None:
    block, x = make(), draw(Batch, Pos, Embed)
    expected = compiled(block, x, nn.causal())
    mapping = {"batch": "data", "heads": "model", "mlp": "model"}
    with axn.set_mesh(request.getfixturevalue(mesh)):
        found = axn.named_jit(lambda block, x: block(x, nn.causal()), mapping)(block, x)
    same(found, x.names, expected.array)
