"""`BlockSeq` with layers that differ; what it shares with `Stacked` is tested there."""

from typing import Any

import jax
import numpy as np

import axonym as axn
from axonym import nn

Layers, Batch, Embed = axn.make_axes(layers=2, batch=3, embed=4)


def test_layers_that_differ_are_applied_in_order() -> None:
    key, draw_key = jax.random.split(jax.random.key(0))
    linear = nn.Linear.init(Embed, Embed, key=key)
    layers: tuple[Any, ...] = (linear, nn.LayerNorm.init(Embed))
    blocks: nn.BlockSeq[Any] = nn.BlockSeq.init(Layers, [lambda: linear, lambda: layers[1]])()
    x = axn.random.normal(draw_key, (Batch, Embed))

    hidden = np.asarray(x.array) @ np.asarray(linear.weight.rearrange(("embed", ...)).array) + np.asarray(
        linear.bias.array
    )
    centred = hidden - hidden.mean(-1, keepdims=True)
    expected = centred / np.sqrt(hidden.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(blocks.fold(x).array, expected, rtol=1e-4, atol=1e-5)
    assert [type(layer) for layer in blocks.unstacked()] == [nn.Linear, nn.LayerNorm]
