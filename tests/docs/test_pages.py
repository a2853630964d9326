"""Run the `python` blocks of README and docs."""

import re
import sys
import textwrap
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in FILES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order, in one namespace."""
    # A module of its own, because classes look up their module by name.
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = page.read_text()
    for block in BLOCK.finditer(text):
        # Leading newlines give tracebacks the file and line of the page.
        code = "\n" * (text.count("\n", 0, block.start()) + 1) + textwrap.dedent(block[2])
        exec(compile(code, str(page), "exec"), module.__dict__)
