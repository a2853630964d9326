"""A vision transformer, an encoder of text and a U-Net, for plans of their training steps."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from llama import OPTIMIZER

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

PIXELS = ("height", "width")


class Encoder(eqx.Module):
    """A transformer of patches, whose mean is classified, or of tokens, of which each is predicted."""

    inputs: nn.Linear | nn.Embedding
    positions: NamedArray
    blocks: nn.Stacked[nn.TransformerBlock]
    head: nn.Linear | None

    @staticmethod
    def init(inputs: Axis, layers: int, embed: int, heads: int, positions: int, *, key: jax.Array) -> "Encoder":
        Embed, Pos, Classes, Mlp = axn.make_axes(embed=embed, pos=positions, classes=1000, mlp=4 * embed)
        Heads, Dim = axn.make_axes(heads=heads, head_dim=embed // heads)
        init: Any = nn.Embedding.init if inputs.name == "vocab" else nn.Linear.init
        head = None if inputs.name == "vocab" else nn.Linear.init(Embed, Classes, key=key)
        stack = nn.Stacked.init(Axis("layers", layers), nn.TransformerBlock, gradient_checkpointing=True)
        blocks = stack(Embed, Heads, Dim, Mlp, key=key)
        return Encoder(init(inputs, Embed, key=key), axn.zeros((Pos, Embed)), blocks, head)

    def loss(self, rows: tuple[NamedArray, NamedArray]) -> NamedArray:
        inputs, targets = rows
        if self.head is not None:
            inputs = inputs.astype(jnp.bfloat16)
        x = self.blocks.fold(self.inputs(inputs) + self.positions)
        if self.head is not None:
            return nn.cross_entropy_loss(self.head(x.mean("pos")).astype(jnp.float32), "classes", targets)
        return nn.chunked_cross_entropy_loss(x, self.inputs.weight, "embed", "vocab", targets)


class Residual(eqx.Module):
    """Two convolutions beside a residual connection."""

    norm_1: nn.GroupNorm
    conv_1: nn.Conv
    norm_2: nn.GroupNorm
    conv_2: nn.Conv
    skip: nn.Linear

    @staticmethod
    def init(before: int, after: int, *, key: jax.Array) -> "Residual":
        In, Out = Axis("channels", before), Axis("channels", after)
        conv = functools.partial(nn.Conv.init, PIXELS, kernel_size=3, padding="SAME", key=key)
        norms = [nn.GroupNorm.init(own, 32, over=PIXELS) for own in (In, Out)]
        return Residual(norms[0], conv(In, Out), norms[1], conv(Out, Out), nn.Linear.init(In, Out, key=key))

    def __call__(self, x: NamedArray) -> NamedArray:
        y = self.conv_1(nn.silu(self.norm_1(x)))
        return self.skip(x) + self.conv_2(nn.silu(self.norm_2(y)))


class UNet(eqx.Module):
    """Residual blocks at three scales, as in Ho et al. (2020)."""

    first: nn.Conv
    down: list[Residual]
    up: list[Residual]
    last: nn.Conv

    @staticmethod
    def init(width: int, *, key: jax.Array) -> "UNet":
        widths = [width, 2 * width, 4 * width]
        conv = functools.partial(nn.Conv.init, PIXELS, kernel_size=3, padding="SAME", key=key)
        down = [Residual.init(*pair, key=key) for pair in zip([width, *widths], widths, strict=False)]
        up = [Residual.init(3 * own, own, key=key) for own in widths[-2::-1]]
        Colours, Channels = Axis("colours", 4), Axis("channels", width)
        return UNet(conv(Colours, Channels), down, up, conv(Channels, Colours))

    def loss(self, rows: tuple[NamedArray, NamedArray]) -> NamedArray:
        images, targets = rows
        x, skipped = self.first(images.astype(jnp.bfloat16)), []
        for block in self.down:
            x = block(x)
            skipped.append(x)
            x = nn.mean_pool(axn.make_axes(height=2, width=2), x, stride=2)
        x = skipped.pop()
        for block in self.up:
            x = axn.concatenate("channels", [skipped.pop(), x.repeat(2, "height").repeat(2, "width")])
            x = block(x)
        return ((self.last(x) - targets) ** 2).mean()


def make_training(init: Callable[[jax.Array], Any], *rows: NamedArray) -> tuple[Any, ...]:
    """Return a step of AdamW that computes in bfloat16, with abstract arguments."""

    def loss(model: Any, rows: Any) -> jax.Array:
        half = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), model)
        return half.loss(rows).scalar()

    def step(model: Any, state: Any, rows: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(model, rows)
        updates, state = OPTIMIZER.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, value

    model = jax.eval_shape(init, jax.random.key(0))
    run = axn.named_jit(step, {}, donate_args=(True, True))
    return run, model, jax.eval_shape(OPTIMIZER.init, model), rows


def make_rows(dtype: Any, **sizes: int) -> NamedArray:
    """Return an array without values."""
    return NamedArray(jax.ShapeDtypeStruct(tuple(sizes.values()), dtype), tuple(sizes))


def make_vit(layers: int, embed: int, rows: int, patches: int) -> tuple[Any, ...]:
    """Return a step of a vision transformer with 16 heads, of patches of 14 x 14 pixels."""
    init = functools.partial(Encoder.init, Axis("pixels", 588), layers, embed, 16, patches)
    images = make_rows(np.float32, batch=rows, pos=patches, pixels=588)
    return make_training(lambda key: init(key=key), images, make_rows(np.int32, batch=rows))


def make_bert(rows: int, positions: int) -> tuple[Any, ...]:
    """Return a step of BERT large, with a vocabulary that many devices divide."""
    init = functools.partial(Encoder.init, Axis("vocab", 30720), 24, 1024, 16, positions)
    tokens = make_rows(np.int32, batch=rows, pos=positions)
    return make_training(lambda key: init(key=key), tokens, tokens)


def make_unet(width: int, rows: int, side: int) -> tuple[Any, ...]:
    """Return a step of a U-Net."""
    images = make_rows(np.float32, batch=rows, height=side, width=side, colours=4)
    return make_training(lambda key: UNet.init(width, key=key), images, images)
