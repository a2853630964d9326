"""The `python` blocks of a page, run as a reader would type them."""

import re
import sys
import textwrap
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# These need the libraries that they are about, which have an environment of their own.
NEIGHBOURS = ROOT / "docs/neighbours"
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """Return the path of a page in the project."""
    return str(page.relative_to(ROOT))


def run_blocks(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of a page in order, in one namespace."""
    # A module of its own, because classes look up their module by name.
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = page.read_text()
    for block in BLOCK.finditer(text):
        # Leading newlines give tracebacks the file and line of the page.
        code = "\n" * (text.count("\n", 0, block.start()) + 1) + textwrap.dedent(block[2])
        exec(compile(code, str(page), "exec"), module.__dict__)
