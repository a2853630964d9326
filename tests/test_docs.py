"""Run what the documentation shows: `python` blocks of README and docs, examples in docstrings."""

import doctest
import importlib
import pkgutil
import re
import sys
import textwrap
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
TEXTS = {page: page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}
PAGES = [page for page, text in TEXTS.items() if BLOCK.search(text)]
MODULES = ["axonym", *sorted(module.name for module in pkgutil.walk_packages(axn.__path__, "axonym."))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order, in one namespace."""
    # A module of its own, because classes look up their module by name.
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = TEXTS[page]
    for block in BLOCK.finditer(text):
        # Leading newlines give tracebacks the file and line of the page.
        code = "\n" * (text.count("\n", 0, block.start()) + 1) + textwrap.dedent(block[2])
        exec(compile(code, str(page), "exec"), module.__dict__)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    """Every `>>>` line of a module prints what its docstring says."""
    module = importlib.import_module(name)
    names = {"axn": axn, "jax": jax, "jnp": jnp, "np": np}
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for example in doctest.DocTestFinder().find(module, extraglobs=names):
        runner.run(example, out=report.append)
    assert not report, "".join(report)
