"""Train a vision transformer on the handwritten digits of scikit-learn.

    python vit.py                              one device, about a minute
    python vit.py --mesh data=4,model=2        eight devices, simulated where there are none

Reference: Dosovitskiy et al. (2021), An image is worth 16x16 words.
"""

from pathlib import Path

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import tyro
from training import Digits, digits, make_mesh, train

import axonym as axn
import axonym.nn as nn
from axonym import NamedArray

PICTURE = Path(__file__).with_suffix(".png")

# The layout: how parameters and optimiser state are stored, and how the computation is split.
STORED = {"embed": "data", "heads": "model", "mlp": "model"}
COMPUTED = {"batch": "data", "heads": "model", "mlp": "model"}

Batch, Classes = axn.make_axes(batch=64, classes=10)
# An image of 8x8 is a grid of 4x4 patches of 2x2.
Row, Column, PatchHeight, PatchWidth = axn.make_axes(row=4, column=4, patch_height=2, patch_width=2)
Layers, Embed, Heads, HeadDim, Mlp = axn.make_axes(layers=3, embed=64, heads=4, head_dim=16, mlp=128)


class Block(eqx.Module):
    """Attention and an MLP, each behind a norm and beside a residual connection."""

    norm_1: nn.LayerNorm
    qkv: nn.Linear
    out: nn.Linear
    norm_2: nn.LayerNorm
    mlp: nn.MLP

    @staticmethod
    def init(*, key: jax.Array) -> "Block":
        k_qkv, k_out, k_mlp = jax.random.split(key, 3)
        qkv = nn.Linear.init(Embed, (axn.Axis("qkv", 3), Heads, HeadDim), key=k_qkv)
        out = nn.Linear.init((Heads, HeadDim), Embed, key=k_out)
        mlp = nn.MLP.init(Embed, Embed, Mlp, depth=1, activation=nn.gelu, key=k_mlp)
        return Block(nn.LayerNorm.init(Embed), qkv, out, nn.LayerNorm.init(Embed), mlp)

    def __call__(self, x: NamedArray) -> NamedArray:
        q, k, v = self.qkv(self.norm_1(x)).unbind("qkv")
        k, v = k.rename({"patch": "patch.key"}), v.rename({"patch": "patch.key"})
        x = x + self.out(nn.dot_product_attention("patch", "patch.key", "head_dim", q, k, v))
        return x + self.mlp(self.norm_2(x))


class VisionTransformer(eqx.Module):
    """From images {height, width, ...} to scores {classes, ...}."""

    patches: nn.Linear  # patch_height, patch_width -> embed
    positions: NamedArray  # row, column, embed
    blocks: nn.Stacked[Block]
    norm: nn.LayerNorm
    head: nn.Linear

    @staticmethod
    def init(key: jax.Array) -> "VisionTransformer":
        k_patches, k_positions, k_blocks, k_head = jax.random.split(key, 4)
        patches = nn.Linear.init((PatchHeight, PatchWidth), Embed, key=k_patches)
        positions = 0.02 * axn.random.normal(k_positions, (Row, Column, Embed))
        blocks = nn.Stacked.init(Layers, Block)(key=k_blocks)
        return VisionTransformer(
            patches, positions, blocks, nn.LayerNorm.init(Embed), nn.Linear.init(Embed, Classes, key=k_head)
        )

    def __call__(self, images: NamedArray) -> NamedArray:
        grid = images.unflatten_axis("height", (Row, PatchHeight)).unflatten_axis("width", (Column, PatchWidth))
        x = self.patches(grid) + self.positions
        x = self.blocks.fold(x.flatten_axes(("row", "column"), "patch"))
        return self.head(self.norm(x).mean("patch"))


def loss_fn(model: VisionTransformer, data: Digits, key: jax.Array) -> jax.Array:
    """Return the mean cross entropy of a batch, with noise in its images, since there are few of them."""
    k_batch, k_noise = jax.random.split(key)
    batch = data.take(axn.random.randint(k_batch, Batch, 0, data.labels.size))
    images = batch.images + 0.5 * axn.random.normal(k_noise, batch.images.axes)
    return nn.cross_entropy_loss(model(images), Classes, batch.labels).scalar()


def show(digits: Digits, read: NamedArray, losses: list[float], out: Path) -> None:
    """Save the curve of the loss, and digits with what the model reads, errors first."""
    figure = plt.figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subfigures(1, 2)
    curve = left.subplots()
    curve.plot(losses)
    curve.set(xlabel="step", ylabel="loss (nats)", yscale="log", title="Vision transformer")
    correct = read == digits.labels
    for cell, i in zip(right.subplots(4, 10).flat, axn.argsort(correct, "image").tolist(), strict=False):
        cell.imshow(digits.images["image", i].array, cmap="gray_r")
        cell.set_title(str(read["image", i].item()), color="black" if correct["image", i] else "red")
        cell.axis("off")
    right.suptitle("What it reads, errors first")
    figure.savefig(out, dpi=120)


def main(steps: int = 600, mesh: str = "data=1,model=1", seed: int = 0, out: Path = PICTURE) -> float:
    """Train, save a picture, and return the share of held-out digits that are read correctly."""
    data, held_out = digits()
    options = {"stored": STORED, "computed": COMPUTED, "steps": steps, "learning_rate": 3e-3}
    with axn.set_mesh(make_mesh(mesh)):
        model, losses = train(VisionTransformer.init, loss_fn, data, key=jax.random.key(seed), **options)
        read = axn.named_jit(lambda model, images: model(images).argmax("classes"))(model, held_out.images)
    accuracy = (read == held_out.labels).mean().item()
    print(f"{accuracy:.1%} of {read.size} held-out digits are read correctly")
    show(held_out, read, losses, out)
    return accuracy


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    tyro.cli(main, description=__doc__)
