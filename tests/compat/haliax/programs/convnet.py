"""A net of convolutions with pooling, over any axes of batch, and a small decoder of transposed convolutions."""

from collections.abc import Sequence

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax.random as jrandom
from haliax import Axis, NamedArray

Height, Width, Colors = hax.make_axes(height=8, width=8, color=3)
Classes = Axis("classes", 4)


class ConvBlock(eqx.Module):
    conv: hnn.Conv
    depthwise: hnn.Conv
    norm: hnn.LayerNorm
    dropout: hnn.Dropout

    @staticmethod
    def init(In: Axis, Out: Axis, *, key) -> "ConvBlock":
        k_conv, k_depthwise = jrandom.split(key)
        return ConvBlock(
            hnn.Conv.init(("height", "width"), In, Out, kernel_size=3, padding=1, key=k_conv),
            hnn.Conv.init(
                (Height, Width),
                Out,
                Out.alias("out"),
                (3, 3),
                padding=((1, 1), (1, 1)),
                groups=Out.size,
                use_bias=False,
                key=k_depthwise,
            ),
            hnn.LayerNorm.init(Out),
            hnn.Dropout(0.1, broadcast_axes=None),
        )

    def __call__(self, x: NamedArray, *, inference: bool = True, key=None) -> NamedArray:
        x = hnn.relu(self.conv(x))
        x = self.depthwise(x).rename({"out": self.conv.Out.name})
        x = self.dropout(self.norm(x), inference=inference, key=key)
        return hnn.max_pool((Axis("height", 2), Axis("width", 2)), x, stride=2)


class ConvNet(eqx.Module):
    blocks: list[ConvBlock]
    head: hnn.Linear

    @staticmethod
    def init(widths: Sequence[int], *, key) -> "ConvNet":
        axes = [Colors, *(Axis(f"channel{i}", width) for i, width in enumerate(widths))]
        *keys, k_head = jrandom.split(key, len(widths) + 1)
        blocks = [ConvBlock.init(In, Out, key=k) for In, Out, k in zip(axes[:-1], axes[1:], keys, strict=True)]
        return ConvNet(blocks, hnn.Linear.init(axes[-1], Classes, key=k_head))

    def features(self, x: NamedArray, *, inference: bool = True, key=None) -> NamedArray:
        for block, k in zip(self.blocks, hax.jax_utils.maybe_rng_split(key, len(self.blocks)), strict=True):
            x = block(x, inference=inference, key=k)
        return x

    def __call__(self, x: NamedArray, *, inference: bool = True, key=None) -> NamedArray:
        x = self.features(x, inference=inference, key=key)
        window = {"height": x.axis_size("height"), "width": x.axis_size("width")}
        pooled = hnn.mean_pool(window, x)
        return self.head(pooled["height", 0, "width", 0])


def loss_fn(model: ConvNet, images: NamedArray, labels: NamedArray, key):
    logits = model(images, inference=False, key=key)
    targets = hax.nn.one_hot(labels, Classes)
    per_example = hnn.cross_entropy_loss(logits, Classes, targets, reduction=None)
    return hax.mean(per_example).scalar()
