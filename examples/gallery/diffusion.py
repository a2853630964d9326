"""Train a diffusion U-Net that draws handwritten digits, and let it draw.

    python diffusion.py                              one device, about a minute
    python diffusion.py --mesh data=4,model=2        eight devices, simulated where there are none

References: Ho et al. (2020), Denoising diffusion probabilistic models; Song et al. (2021), DDIM, for the sampler.
"""

from pathlib import Path

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import tyro
from training import Digits, digits, make_mesh, train

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

PICTURE = Path(__file__).with_suffix(".png")

# The layout: how parameters and optimiser state are stored, and how the computation is split.
STORED = {"channels": "data"}
COMPUTED = {"batch": ("data", "model")}

Batch, Digit, Time = axn.make_axes(batch=64, digit=10, time=32)
Wide, Deep, Joined = (axn.Axis("channels", size) for size in (32, 64, 32 + 64))
PIXELS = ("height", "width")


class Block(eqx.Module):
    """Two convolutions beside a residual connection, told of the time and the digit between them."""

    norm_1: nn.GroupNorm
    conv_1: nn.Conv
    condition: nn.Linear
    norm_2: nn.GroupNorm
    conv_2: nn.Conv
    skip: nn.Linear

    @staticmethod
    def init(In: Axis, Out: Axis, *, key: jax.Array) -> "Block":
        keys = jax.random.split(key, 4)
        return Block(
            nn.GroupNorm.init(In, 8, over=PIXELS),
            nn.Conv.init(PIXELS, In, Out, 3, padding="SAME", key=keys[0]),
            nn.Linear.init(Time, Out, key=keys[1]),
            nn.GroupNorm.init(Out, 8, over=PIXELS),
            nn.Conv.init(PIXELS, Out, Out, 3, padding="SAME", key=keys[2]),
            nn.Linear.init(In, Out, key=keys[3]),
        )

    def __call__(self, x: NamedArray, condition: NamedArray) -> NamedArray:
        y = self.conv_1(nn.silu(self.norm_1(x))) + self.condition(condition)
        return self.skip(x) + self.conv_2(nn.silu(self.norm_2(y)))


class UNet(eqx.Module):
    """From noisy images {height, width, ...}, times {...} and digits {...} to the noise in them."""

    digit: nn.Embedding
    first: nn.Linear
    down: Block
    bottom: Block
    up: Block
    last: nn.Linear

    @staticmethod
    def init(key: jax.Array) -> "UNet":
        keys = jax.random.split(key, 6)
        return UNet(
            nn.Embedding.init(Digit, Time, key=keys[0], init_scale=4.0),
            nn.Linear.init((), Wide, key=keys[1]),
            Block.init(Wide, Wide, key=keys[2]),
            Block.init(Wide, Deep, key=keys[3]),
            Block.init(Joined, Wide, key=keys[4]),
            nn.Linear.init(Wide, (), key=keys[5]),
        )

    def __call__(self, images: NamedArray, time: NamedArray, digit: NamedArray) -> NamedArray:
        condition = nn.silu(nn.sinusoidal_positions(1000 * time, Time) + self.digit(digit))
        fine = self.down(self.first(images), condition)
        small = nn.mean_pool(axn.make_axes(height=2, width=2), fine, stride=2)
        coarse = self.bottom(small, condition).repeat(2, "height").repeat(2, "width")
        return self.last(self.up(axn.concatenate("channels", [fine, coarse]), condition))


def signal_and_noise(time: NamedArray) -> tuple[NamedArray, NamedArray]:
    """Return the shares of image and noise at times from 0, all image, to 1, all noise."""
    return axn.cos(time * (np.pi / 2)), axn.sin(time * (np.pi / 2))


def loss_fn(model: UNet, data: Digits, key: jax.Array) -> jax.Array:
    """Draw images, times and noise, and return the mean square of the error of the noise."""
    k_batch, k_time, k_noise = jax.random.split(key, 3)
    batch = data.take(axn.random.randint(k_batch, Batch, 0, data.labels.size))
    time = axn.random.uniform(k_time, Batch, minval=0.01, maxval=0.99)
    noise = axn.random.normal(k_noise, batch.images.axes)
    signal, share = signal_and_noise(time)
    return ((model(signal * batch.images + share * noise, time, batch.labels) - noise) ** 2).mean().scalar()


def sample(model: UNet, digits: NamedArray, key: jax.Array, steps: int) -> NamedArray:
    """Draw an image of each digit, from pure noise to no noise."""

    def denoise(noisy: NamedArray, now: NamedArray, later: NamedArray) -> NamedArray:
        (signal, share), (next_signal, next_share) = signal_and_noise(now), signal_and_noise(later)
        noise = model(noisy, now, digits)
        image = axn.clip((noisy - share * noise) / signal, -1, 1)
        return next_signal * image + next_share * noise

    times = axn.linspace(axn.Axis("step", steps + 1), start=0.99, stop=0.0)
    start = axn.random.normal(key, (*digits.axes, *axn.make_axes(height=8, width=8)))
    return axn.fold(denoise, "step")(start, times["step", :-1], times["step", 1:])


def show(drawn: NamedArray, losses: list[float], out: Path) -> None:
    """Save the curve of the loss, and drawn images {batch, digit, height, width} as one sheet."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    left.plot(losses)
    left.set(xlabel="step", ylabel="mean square error", yscale="log", title="Diffusion U-Net")
    framed = axn.pad(drawn, {"height": 1, "width": 1}, constant_values=-1)
    sheet = framed.rearrange("{batch height digit width} -> (down: batch height) (across: digit width)")
    right.imshow(sheet.array, cmap="gray_r")
    right.set(xticks=np.arange(10) * 10 + 5, xticklabels=range(10), yticks=[], title="What it draws when asked for")
    figure.savefig(out, dpi=120)


def main(steps: int = 600, draws: int = 50, mesh: str = "data=1,model=1", seed: int = 0, out: Path = PICTURE) -> float:
    """Train, save a picture of what the model draws, and return the held-out loss."""
    data, held_out = digits()
    k_train, k_error, k_sample = jax.random.split(jax.random.key(seed), 3)
    asked = axn.arange(Digit).broadcast_axis(Batch.resize(8))
    options = {"stored": STORED, "computed": COMPUTED, "steps": steps, "learning_rate": 3e-3}
    with axn.set_mesh(make_mesh(mesh)):
        model, losses = train(UNet.init, loss_fn, data, key=k_train, **options)
        drawn = axn.named_jit(sample, COMPUTED)(model, asked, k_sample, draws)
        evaluate = axn.named_jit(loss_fn, COMPUTED)
        error = float(np.mean([evaluate(model, held_out, key) for key in jax.random.split(k_error, 10)]))
    print(f"mean square error of the noise in held-out images: {error:.3f}")
    show(drawn, losses, out)
    return error


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    tyro.cli(main, description=__doc__)
