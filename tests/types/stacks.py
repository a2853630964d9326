"""Stacks of layers under a type checker: all have one type, and know that of their layers."""

from typing import Any, assert_type

import jax

import axonym as axn
from axonym import Axis, nn

Layers, Embed = Axis("layers", 4), Axis("embed", 8)


def last(stack: nn.BlockFoldable[nn.LayerNorm]) -> nn.LayerNorm:
    assert_type(stack.unstacked(), tuple[nn.LayerNorm, ...])
    assert_type(stack.Block, Axis)
    return stack.get_layer(-1)


def normalized(layer: nn.LayerNorm | nn.Linear, x: axn.NamedArray) -> tuple[axn.NamedArray, float]:
    return layer(x), 1.0


def stacks(key: jax.Array) -> None:
    stacked = nn.Stacked.init(Layers, nn.LayerNorm)(Embed)
    written_out = nn.BlockSeq.init(Layers, nn.LayerNorm)(Embed)
    assert_type(stacked, nn.Stacked[nn.LayerNorm])
    assert_type(stacked.with_layers(written_out.unstacked()), nn.Stacked[nn.LayerNorm])
    assert_type(nn.Interleaved.init(Layers, (nn.LayerNorm,))(Embed), nn.Interleaved[nn.LayerNorm])
    every: list[nn.BlockFoldable[nn.LayerNorm]] = [stacked, written_out]
    assert_type([last(stack) for stack in every], list[nn.LayerNorm])
    mixed: nn.BlockFoldable[Any] = nn.Interleaved.init(Layers, (nn.LayerNorm, nn.Linear))(Embed, Embed, key=key)
    mixed.fold(key)
    assert_type(stacked.fold(axn.ones(Embed)), axn.NamedArray)
    assert_type(written_out.fold((key, None), unroll=2), tuple[jax.Array, None])
    assert_type(stacked.fold_via(nn.LayerNorm.__call__)(axn.ones(Embed), key=key), axn.NamedArray)
    stacked.fold_via(nn.Linear.__call__)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    two_kinds = nn.Interleaved.init(Layers, (nn.LayerNorm, nn.Linear))(Embed, Embed, key=key)
    assert_type(two_kinds, nn.Interleaved[nn.LayerNorm | nn.Linear])
    assert_type(two_kinds.scan_via(normalized)(axn.ones(Embed)), tuple[axn.NamedArray, float])
    nn.Stacked(stacked.stacked, "layers", stacked.gradient_checkpointing)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
