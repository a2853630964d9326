"""Run examples in docstrings and calls in tables of the documentation."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import errors

ROOT = Path(__file__).parents[2]
TEXTS = {page: page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}
MODULES = ["axonym", *sorted(module.name for module in pkgutil.walk_packages(axn.__path__, "axonym."))]

CODE = re.compile(r"^( *)```py[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# What a program printed in columns.
TABLE = re.compile(r"# .*\S  +\S.*\S  +\S")


def test_code_fits_the_page() -> None:
    """A window of usual width shows 85 columns; the rest would have to be scrolled."""
    long: list[str] = []
    for page, text in TEXTS.items():
        for block in CODE.finditer(text):
            for line in textwrap.dedent(block[2]).splitlines():
                if len(line) > 85 and not TABLE.match(line):
                    long.append(f"{page.name}: {line}")
    assert long == []


@pytest.mark.sampled
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


def calls_in_tables() -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls in the code of tables, and that code; `...` as an argument leaves something out."""
    rows = (row for text in TEXTS.values() for row in re.findall(r"^\|.*", text, re.MULTILINE))
    for code in (code for row in rows for code in re.findall(r"`(.+?)`", row)):
        try:
            nodes = list(ast.walk(ast.parse(code, mode="eval")))
        except SyntaxError:
            continue
        for node in nodes:
            if isinstance(node, ast.Call) and "..." not in map(ast.unparse, node.args):
                yield code, node


def test_calls_in_tables_fit_the_signatures() -> None:
    names = {name: getattr(axn, name) for name in axn.__all__} | {
        "axn": axn,
        "nn": axn.nn,
        "x": axn.ones({"a": 2, "pos": 3}),
    }
    checked, wrong = 0, []
    for code, call in calls_in_tables():
        name = ast.unparse(call.func)
        try:
            function = eval(name, {"__builtins__": {}}, names)
        except (NameError, AttributeError):  # of another library, or of no module that is named
            assert not re.fullmatch(r"axn(\.\w+)+", name), code
            continue
        checked += 1
        try:
            inspect.signature(function).bind(*call.args, **{str(given.arg): given.value for given in call.keywords})
        except TypeError as error:
            wrong.append((code, str(error)))
    assert wrong == [("dot(axis, x, y)", "missing a required argument: 'axis'")]  # Haliax has this order
    assert checked > 500


def test_pages_that_make_a_mesh_of_several_devices_say_so() -> None:
    """Whoever copies a block to a machine with one device reads beside it what to do."""
    silent = [
        page.name
        for page, text in TEXTS.items()
        if any(re.search(r"make_mesh\(\s*\((?!1,\))\d", block[2]) for block in CODE.finditer(text))
        and "eight devices" not in " ".join(text.split())
    ]
    assert silent == []


def test_each_exception_is_on_the_page_about_errors() -> None:
    """The base classes are told of below the table."""
    page = TEXTS[ROOT / "docs/guides/arrays.md"]
    exceptions = {name for name in errors.__all__ if name.endswith("Error")}
    assert set(re.findall(r"^\| `(\w+Error)` \|", page, re.MULTILINE)) == exceptions - {"AxisError", "AxonymError"}
