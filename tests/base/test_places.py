"""The table of places says what type checkers see."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from axonym.base.places import BELOW, NAMES

ROOT = Path(__file__).parents[2]


def test_the_table_is_what_the_tool_writes() -> None:
    done = subprocess.run([sys.executable, "tools/places.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", NAMES)
def test_no_name_is_in_two_places(package: str) -> None:
    names = " ".join(NAMES[package].values()).split()
    assert len(names) == len(set(names))


@pytest.mark.parametrize("package", BELOW)
def test_modules_are_reached_by_their_path(package: str) -> None:
    here = importlib.import_module(package)
    own = " ".join(NAMES[package].values()).split()
    for name in BELOW[package].split():
        if name not in own:  # a public name goes first, as the function `nn.dropout` before its module
            assert getattr(here, name) is importlib.import_module(f"{package}.{name}")
