"""A denoiser of images: convolutions down and up with a skip, norms of groups by hand, sampling by a scan."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax.numpy as jnp
import jax.random as jrandom
import numpy as np
from haliax import Axis, NamedArray

Height, Width, Colors, Time, Hidden = hax.make_axes(height=8, width=8, color=3, time=8, hidden=4)
Spatial = ("height", "width")


class GroupNorm(eqx.Module):
    Channels: Axis = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    weight: NamedArray
    bias: NamedArray

    @classmethod
    def init(cls, Channels: Axis, groups: int) -> "GroupNorm":
        return cls(Channels, groups, hax.ones(Channels), hax.zeros(Channels))

    def __call__(self, x: NamedArray) -> NamedArray:
        Group, Member = Axis("group", self.groups), Axis("member", self.Channels.size // self.groups)
        y = x.unflatten_axis(self.Channels, (Group, Member))
        over = (Member, *Spatial)
        y = (y - hax.mean(y, over)) * hax.rsqrt(hax.var(y, axis=over) + 1e-5)
        y = y.flatten_axes(("group", Member), self.Channels).rearrange(x.axes)
        return y * self.weight + self.bias


class UNet(eqx.Module):
    time: hnn.MLP
    norm: GroupNorm
    inputs: hnn.Conv
    down: hnn.Conv
    up: hnn.ConvTranspose
    outputs: hnn.Conv

    @staticmethod
    def init(*, key) -> "UNet":
        k_time, k_in, k_down, k_up, k_out = jrandom.split(key, 5)
        Wide, Up, Both = Axis("wide", 8), Hidden.alias("up"), Axis("both", 8)
        return UNet(
            hnn.MLP.init(Time, Wide, 8, 1, hnn.silu, key=k_time),
            GroupNorm.init(Hidden, 2),
            hnn.Conv.init(Spatial, Colors, Hidden, kernel_size=3, padding=1, key=k_in),
            hnn.Conv.init(Spatial, Hidden, Wide, kernel_size=3, stride=2, padding=1, key=k_down),
            hnn.ConvTranspose.init(Spatial, Wide, Up, kernel_size=4, stride=2, padding=1, key=k_up),
            hnn.Conv.init([Height, Width], Both, Colors.alias("noise"), (1, 1), use_bias=False, key=k_out),
        )

    def __call__(self, x: NamedArray, t: NamedArray) -> NamedArray:
        Half = Time.resize(Time.size // 2)
        angles = hax.dot(t, hax.exp(hax.linspace(Half, start=0.0, stop=-np.log(1000.0))), axis=())
        time = self.time(hax.concatenate(Time, [hax.sin(angles), hax.cos(angles)]))
        skip = hnn.silu(self.norm(self.inputs(x)))
        h = self.up(hnn.silu(self.down(skip) + time)).rename({"up": "both"})
        h = hax.concatenate("both", [h, skip.rename({Hidden: "both"})])
        return self.outputs(h).rename({"noise": Colors})


def loss_fn(model: UNet, left: NamedArray, x: NamedArray, *, key):
    """Compare the noise that the model finds with what was added; `left` tells what is left of x after each step."""
    k_t, k_noise = jrandom.split(key)
    (Steps,) = left.axes
    t = hax.random.randint(k_t, x.resolve_axis("batch"), 0, Steps.size)
    noise = hax.random.normal(k_noise, x.axes)
    share = left.take(Steps, t)
    found = model(hax.sqrt(share) * x + hax.sqrt(1 - share) * noise, t.astype(jnp.float32))
    return hax.mean((found - noise) ** 2).scalar()


def sample(model: UNet, left: NamedArray, axes: tuple[Axis, ...], *, key) -> tuple[NamedArray, NamedArray]:
    (Steps,) = left.axes
    k_start, k_steps = jrandom.split(key)
    Batch = next(axis for axis in axes if axis.name == "batch")

    def step(x: NamedArray, share: NamedArray, t: NamedArray, key):
        noise = model(x, t.astype(jnp.float32).broadcast_axis(Batch))
        clean = hax.clip((x - hax.sqrt(1 - share) * noise) / hax.sqrt(share), -1.0, 1.0)
        x = hax.sqrt(share) * clean + hax.sqrt(1 - share) * hax.random.normal(key, x.axes)
        return x, hax.max(hax.abs(clean), (*Spatial, Colors))

    start = hax.random.normal(k_start, axes)
    keys = jrandom.split(k_steps, Steps.size)
    return hax.scan(step, Steps, reverse=True)(start, left, hax.arange(Steps), keys)
