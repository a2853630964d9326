"""The programs of examples/gallery learn, on a mesh, in a few steps, and save their pictures."""

from pathlib import Path

import diffusion
import jax
import mixture_of_experts
import numpy as np
import pytest
import vit
import weather
from training import make_mesh

import axonym as axn
from axonym import nn


def is_picture(path: Path) -> bool:
    content = path.read_bytes()
    return content.startswith(b"\x89PNG") and len(content) > 10_000


def test_a_vision_transformer_reads_digits(tmp_path: Path) -> None:
    accuracy = vit.main(steps=60, mesh="data=4,model=2", out=tmp_path / "vit.png")
    assert accuracy > 0.4  # by chance 0.1; 600 steps give 0.98
    assert is_picture(tmp_path / "vit.png")


def test_a_diffusion_model_finds_noise(tmp_path: Path) -> None:
    error = diffusion.main(steps=10, draws=2, mesh="data=4,model=2", out=tmp_path / "diffusion.png")
    assert error < 0.8  # to find none gives 1; 600 steps give 0.16
    assert is_picture(tmp_path / "diffusion.png")


def test_a_mixture_of_experts_learns_text(tmp_path: Path) -> None:
    loss = mixture_of_experts.main(steps=20, mesh="data=4,model=2", out=tmp_path / "experts.png")
    assert loss < 4.2  # all bytes alike give log(128) = 4.85; 250 steps give 1.98
    assert is_picture(tmp_path / "experts.png")


def fields(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """The winds of a body that turns, and two scalars, in closed form: also at latitudes behind a pole."""
    lat, lon = np.meshgrid(lat, lon, indexing="ij")
    spin, cloud = np.array([0.3, -0.7, 0.2]), np.array([0.5, 0.1, 0.8])
    up = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1)
    east = np.stack([-np.sin(lon), np.cos(lon), np.zeros_like(lon)], -1)
    north = np.cross(up, east)
    wind = np.cross(spin, up)
    return np.stack([(wind * east).sum(-1), (wind * north).sum(-1), np.exp(up @ cloud), np.sin(lat)], -1)


def test_weather_goes_on_behind_poles() -> None:
    """A convolution is that of the fields themselves on a wider grid: formulas of the sphere hold behind a pole."""
    apart = np.pi / 16
    lat, lon = (np.arange(-1, 17) + 0.5) * apart - np.pi / 2, np.arange(-1, 33) * apart
    wide = axn.named(fields(lat, lon).astype(np.float32), ("lat", "lon", "channels"))
    key = jax.random.key(0)
    conv = weather.make_conv(weather.State, key)
    unpadded = nn.Conv.init(("lat", "lon"), weather.State, weather.Hidden, 3, key=key)
    np.testing.assert_allclose(conv(wide["lat", 1:-1, "lon", 1:-1]).array, unpadded(wide).array, atol=1e-5)


def test_weather_turns_with_the_globe_on_one_device_and_on_eight() -> None:
    model = weather.Forecast.init(jax.random.key(0))
    state, _ = weather.draw(jax.random.key(1), 1)
    dust = jax.jit(lambda state: model(state))(state)
    with axn.set_mesh(make_mesh("data=4,model=2")):
        run = axn.named_jit(lambda model, state: model(state), weather.COMPUTED)
        turned = run(model, axn.shard(state.roll(5, "lon"), weather.COMPUTED))
    order = ("batch", "level", "lat", "lon")
    expected = np.roll(dust.rearrange(order).array, 5, order.index("lon"))
    np.testing.assert_allclose(turned.rearrange(order).array, expected, atol=1e-5)


def test_a_model_of_the_weather_carries_dust(tmp_path: Path) -> None:
    share = weather.main(steps=20, mesh="data=2,model=2", out=tmp_path / "weather.png")
    assert share < 0.8  # no change gives 1; 400 steps give 0.04
    assert is_picture(tmp_path / "weather.png")


def test_a_mesh_needs_its_devices() -> None:
    with pytest.raises(SystemExit) as caught:
        make_mesh("data=8,model=2")
    assert str(caught.value) == "a mesh of data=8,model=2 needs 16 devices, this machine has 8"
