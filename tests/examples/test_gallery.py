"""The programs of examples/gallery learn, on a mesh, in a few steps, and save their pictures."""

from pathlib import Path

import diffusion
import mixture_of_experts
import pytest
import vit
from training import make_mesh


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


def test_a_mesh_needs_its_devices() -> None:
    with pytest.raises(SystemExit) as caught:
        make_mesh("data=8,model=2")
    assert str(caught.value) == "a mesh of data=8,model=2 needs 16 devices, this machine has 8"
