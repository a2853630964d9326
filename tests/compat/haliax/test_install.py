"""Importing the package makes `import haliax` mean Axonym, each case in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SRC)},
    )


USE = """
import haliax as hax
import haliax.nn as hnn
import haliax.nn.scan
from haliax.partitioning import named_jit
import haliax.core as core
Embed = hax.Axis("embed", 4)
assert type(hax.zeros(Embed)) is hax.NamedArray is core.NamedArray
assert hnn.Stacked is haliax.nn.scan.Stacked
import axonym.compat.haliax
assert hax is axonym.compat.haliax and hax.__spec__.name == "axonym.compat.haliax"
assert isinstance(hax.zeros(Embed), __import__("axonym").NamedArray)
"""


@pytest.mark.parametrize(
    "before",
    [
        "import axonym.compat.haliax",
        "from axonym.compat.haliax import install; install(); install()",
    ],
    ids=["import", "again"],
)
def test_haliax_resolves_to_axonym(before: str) -> None:
    done = run(f"{before}\n{USE}")
    assert done.returncode == 0, done.stderr


def test_axonym_alone_leaves_the_name_to_others() -> None:
    done = run("import axonym, sys; assert 'haliax' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_after_the_real_one_it_is_an_error() -> None:
    real = "import sys, types; real = types.ModuleType('haliax'); real.__file__ = 'site/haliax/__init__.py'\n"
    done = run(f"{real}sys.modules['haliax'] = real\nimport axonym.compat.haliax")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: haliax has been imported already, from site/haliax/__init__.py: two libraries cannot share the "
        "name. Import axonym.compat.haliax before anything that imports haliax"
    )


def test_a_module_that_haliax_never_had_is_not_there() -> None:
    done = run("import axonym.compat.haliax, sys; assert 'pytest' not in sys.modules; import haliax.no_such_module")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'haliax.no_such_module'"
