"""Tests that say `import haliax` run on Axonym under `-p axonym.compat.haliax.pytest_plugin`."""

import os
import subprocess
import sys
from pathlib import Path

import axonym

SRC = Path(__file__).parents[3] / "src"
PLUGIN = "axonym.compat.haliax.pytest_plugin"
USED = f"haliax: axonym.compat.haliax of Axonym {axonym.__version__}"

CONFTEST = """
import haliax as hax
import pytest

@pytest.fixture
def Embed():
    return hax.Axis("embed", 4)
"""
TEST = """
import haliax as hax
from haliax.nn import Linear

def test_zeros(Embed):
    assert hax.zeros(Embed).axes == (Embed,)
    assert type(hax.zeros(Embed)).__module__ == "axonym.compat.haliax.core"
"""


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder as its own project; nothing of this project's settings counts."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_model.py").write_text(TEST)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SRC)},
    )


def test_conftest_and_tests_find_axonym(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "-p", PLUGIN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert USED in done.stdout.splitlines()


def test_without_the_plugin_they_do_not(tmp_path: Path) -> None:
    done = pytest_in(tmp_path)
    assert done.returncode == 4
    assert "ModuleNotFoundError: No module named 'haliax'" in done.stderr


def test_it_says_that_an_installed_haliax_is_not_used_also_in_workers(tmp_path: Path) -> None:
    real = tmp_path / "haliax/__init__.py"
    real.parent.mkdir()
    real.write_text("raise RuntimeError('this is not Axonym')")
    done = pytest_in(tmp_path, "-p", PLUGIN, "-n", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{USED}; the one at {real} is not used" in done.stdout.splitlines()


def test_after_the_real_one_it_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "haliax.py").write_text("")
    (tmp_path / "early.py").write_text("import haliax")
    done = pytest_in(tmp_path, "-p", "early", "-p", PLUGIN)
    assert done.returncode
    assert (
        f"ImportError: haliax has been imported already, from {tmp_path / 'haliax.py'}: two libraries cannot share the "
        "name. Import axonym.compat.haliax before anything that imports haliax"
    ) in done.stderr
