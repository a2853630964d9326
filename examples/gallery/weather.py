"""Train a model of the weather on a sphere: winds carry dust around a globe and across its poles, and it falls.

    python weather.py                              one device, about a minute
    python weather.py --mesh data=4,model=2        eight devices, simulated where there are none

The air of each level turns as a solid body, about an axis of its own, so the true result is known: Williamson et al.
(1992), A standard test set for numerical approximations to the shallow water equations in spherical geometry, case 1.
"""

from pathlib import Path

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import tyro
from training import make_mesh, train

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

PICTURE = Path(__file__).with_suffix(".png")

# The layout: how parameters and optimiser state are stored, and how the computation is split.
STORED = {"channels": "data"}
COMPUTED = {"lat": "model", "lon": "data"}

Batch, Level, Lat, Lon, Blocks, Cloud = axn.make_axes(batch=8, level=3, lat=16, lon=32, blocks=4, cloud=6)
# Winds to the east and to the north, dust, and the cosine of the latitude.
State, Hidden = (Axis("channels", size) for size in (4, 16))


def cross_pole(rows: NamedArray) -> NamedArray:
    """Go on behind a pole, on the opposite meridian; vectors, the first half of the channels, are upside down there."""
    sign = axn.where(axn.arange(rows.resolve_axis("channels")) < rows.axis_size("channels") // 2, -1, 1)
    return sign * rows.flip("lat").roll(rows.axis_size("lon") // 2, "lon")


def make_conv(In: Axis, key: jax.Array) -> nn.Conv:
    return nn.Conv.init(("lat", "lon"), In, Hidden, 3, padding={"lat": cross_pole, "lon": "wrap"}, key=key)


class Block(eqx.Module):
    """A convolution over the sphere and one over levels, beside a residual connection."""

    norm: nn.RmsNorm
    sphere: nn.Conv
    column: nn.Conv

    @staticmethod
    def init(*, key: jax.Array) -> "Block":
        k_sphere, k_column = jax.random.split(key)
        column = nn.Conv.init("level", Hidden, Hidden, 3, padding={"level": "constant"}, key=k_column)
        return Block(nn.RmsNorm.init(Hidden), make_conv(Hidden, k_sphere), column)

    def __call__(self, x: NamedArray) -> NamedArray:
        return x + self.column(nn.silu(self.sphere(self.norm(x))))


class Forecast(eqx.Module):
    """From the state of the air {level, lat, lon, channels, ...} to the dust after a step {level, lat, lon, ...}."""

    first: nn.Conv
    blocks: nn.Stacked[Block]
    last: nn.Linear

    @staticmethod
    def init(key: jax.Array) -> "Forecast":
        k_first, k_blocks, k_last = jax.random.split(key, 3)
        blocks = nn.Stacked.init(Blocks, Block)(key=k_blocks)
        return Forecast(make_conv(State, k_first), blocks, nn.Linear.init(Hidden, (), key=k_last))

    def __call__(self, state: NamedArray) -> NamedArray:
        return state["channels", 2] + self.last(self.blocks.fold(self.first(state)))


def rotate(vector: NamedArray, spin: NamedArray) -> NamedArray:
    """Rotate vectors {xyz} about `spin` {xyz} by its length, after Rodrigues."""
    angle = axn.linalg.norm(spin, "xyz")
    pole = spin / angle
    along = pole * axn.dot(pole, vector, axis="xyz")
    return along + (vector - along) * axn.cos(angle) + axn.cross(pole, vector, "xyz") * axn.sin(angle)


def point(lat: NamedArray, lon: NamedArray) -> NamedArray:
    """Return unit vectors {xyz, ...} from the middle of the globe to points on it."""
    return axn.stack("xyz", [axn.cos(lat) * axn.cos(lon), axn.cos(lat) * axn.sin(lon), axn.sin(lat)])


def draw(key: jax.Array, count: int) -> tuple[NamedArray, NamedArray]:
    """Draw states {batch, level, lat, lon, channels}, and return them with the dust after a step."""
    lat = ((axn.arange(Lat) + 0.5) * (np.pi / Lat.size) - np.pi / 2).broadcast_axis(Lon)
    lon = (axn.arange(Lon) * (2 * np.pi / Lon.size)).broadcast_axis(Lat)
    up, north, east = point(lat, lon), point(lat + np.pi / 2, lon), point(0 * lat, lon + np.pi / 2)
    k_spin, k_cloud = jax.random.split(key)
    air = (Batch.resize(count), Level, Axis("xyz", 3))
    spin = 0.2 * axn.random.normal(k_spin, air)
    cloud = axn.random.normal(k_cloud, (*air, Cloud))
    cloud = cloud / axn.linalg.norm(cloud, "xyz")
    both = axn.stack("step", [cloud, rotate(cloud, spin.broadcast_axis(Cloud))])
    now, moved = axn.exp(10 * (axn.dot(both, up, axis="xyz") - 1)).sum("cloud").unbind("step")
    # The wind is the cross product of the spin and `up`; here are its parts along `east` and `north`.
    winds = axn.dot(spin, north, axis="xyz"), -axn.dot(spin, east, axis="xyz")
    state = axn.stack(State.name, [field.broadcast_to(now.axes) for field in (*winds, now, axn.cos(lat))])
    fallen = axn.pad(moved["level", :-1], {"level": (1, 0)})
    return state, 0.8 * moved + 0.2 * fallen  # a fifth falls from each level to the next


def measure(dust: NamedArray, true: NamedArray, state: NamedArray) -> NamedArray:
    """Return the mean square of an error over the sphere, where the width of a cell is the cosine of its latitude."""
    return axn.average((dust - true) ** 2, weights=state["channels", 3])


def loss_fn(model: Forecast, _: None, key: jax.Array) -> jax.Array:
    """Return the mean square error of the forecast from states drawn with a key."""
    state, true = draw(key, Batch.size)
    return measure(model(state), true, state).scalar()


def show(maps: dict[str, NamedArray], losses: list[float], out: Path) -> None:
    """Save the curve of the loss, and maps {lat, lon}."""
    figure, cells = plt.subplot_mosaic("LLAB;LLCD", figsize=(13, 4), layout="constrained")
    cells["L"].plot(losses)
    cells["L"].set(xlabel="step", ylabel="mean square error", yscale="log", title="Weather on a sphere")
    for cell, (title, field) in zip("ABCD", maps.items(), strict=True):
        cells[cell].pcolormesh(field.rearrange(("lat", "lon")).array, cmap="RdBu_r", vmin=-1.5, vmax=1.5)
        cells[cell].set(title=title, xlabel="longitude", ylabel="latitude", xticks=[], yticks=[])
    figure.savefig(out, dpi=120)


def main(steps: int = 400, mesh: str = "data=1,model=1", seed: int = 0, out: Path = PICTURE) -> float:
    """Train, save a picture of a forecast, and return its error as a share of the error of no change."""
    k_train, k_test = jax.random.split(jax.random.key(seed))
    options = {"stored": STORED, "computed": COMPUTED, "steps": steps, "learning_rate": 1e-2}
    with axn.set_mesh(make_mesh(mesh)):
        model, losses = train(Forecast.init, loss_fn, None, key=k_train, **options)
        state, true = axn.named_jit(lambda key: draw(key, 32), COMPUTED)(k_test)
        dust = axn.named_jit(lambda model, state: model(state), COMPUTED)(model, state)
        now = state["channels", 2]
        share = (measure(dust, true, state) / measure(now, true, state)).item()
    print(f"mean square error: {share:.3f} of that of no change")
    maps = {"dust": now, "after a step": true, "forecast": dust, "error": dust - true}
    show({title: field["batch", 0, "level", 1] for title, field in maps.items()}, losses, out)
    return share


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    tyro.cli(main, description=__doc__)
