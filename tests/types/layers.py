"""Layers under a type checker: `init` makes the class on which it is called."""

from typing import assert_type

import jax

from axonym import Axis, nn

Layers, Embed = Axis("layers", 4), Axis("embed", 8)


class Own(nn.Linear): ...


class Norm(nn.LayerNorm): ...


def layers(key: jax.Array) -> None:
    assert_type(nn.Linear.init(Embed, Embed, key=key), nn.Linear)
    assert_type(Own.init(Embed, Embed, key=key), Own)
    assert_type(Norm.init(Embed), Norm)
    assert_type(nn.Embedding.init(Embed, Embed, key=key).resize_embeddings(2), nn.Embedding)
    assert_type(nn.LoraLinear.init(Own.init(Embed, Embed, key=key), 2, key=key), nn.LoraLinear)
    assert_type(nn.Stacked.init(Layers, Norm.init)(Embed), nn.Stacked[Norm])
