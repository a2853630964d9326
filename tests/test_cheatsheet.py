"""The cheat sheet has a row for each public function of JAX's array namespaces, and each named form on it exists."""

import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from tests.laws import assert_close
from tests.together import Job, together

SHEET = Path(__file__).parent.parent / "docs/cheatsheet.md"
NAMESPACES = ["jax.numpy", "jax.numpy.linalg", "jax.numpy.fft", "jax.random", "jax.nn"]


def public_functions(namespace: str) -> set[str]:
    """Return the names of the functions of a namespace; dtypes, classes and modules are none."""
    module = importlib.import_module(namespace)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some names are on their way out
        members = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return {
        name
        for name, value in members.items()
        if callable(value) and not inspect.isclass(value) and not inspect.ismodule(value)
    }


def rows(namespace: str) -> dict[str, str]:
    """Return the second column of a namespace's table by the first."""
    (section,) = re.findall(rf"\n## {re.escape(namespace)}\n(.*?)(?=\n## |\Z)", SHEET.read_text(), re.DOTALL)
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE))


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_each_function_has_a_row(namespace: str) -> None:
    assert len(public_functions(namespace)) > 15
    assert sorted(public_functions(namespace) - set(rows(namespace))) == []


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_rows_are_sorted_and_say_something(namespace: str) -> None:
    table = rows(namespace)
    assert list(table) == sorted(table)
    assert [name for name, text in table.items() if len(text.strip("` ")) < 4] == []


def test_each_named_form_exists() -> None:
    for path in re.findall(r"\baxn((?:\.\w+)+)", SHEET.read_text()):
        value: object = axn
        for part in path.strip(".").split("."):
            assert hasattr(value, part), f"axn{path}"
            value = getattr(value, part)
    for method in re.findall(r"\bx\.(\w+)", SHEET.read_text()):
        assert hasattr(axn.NamedArray, method), f"x.{method}"


def test_each_operation_is_on_the_sheet() -> None:
    text = SHEET.read_text()
    functions = {name for name in axn.__all__ if inspect.isfunction(getattr(axn, name))}
    operations = {
        name for name in functions if getattr(axn, name).__module__.startswith(("axonym.ops", "axonym.create"))
    }
    assert [name for name in sorted(operations) if not re.search(rf"\baxn\.{name}\b|\bx\.{name}\b", text)] == []


def forty() -> list[list[str]]:
    """Return the rows of the short table: task, jnp, torch, einops and Axonym."""
    (section,) = re.findall(r"\n## The first forty\n(.*?)\n## ", SHEET.read_text(), re.DOTALL)
    found = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*", section, re.MULTILINE)]
    return found[2:]


FORTY = forty()


def test_the_short_table_has_forty_rows() -> None:
    assert len(FORTY) == 40
    assert [row for row in FORTY if len(row) != 5] == []


def job_of(row: list[str]) -> Job:
    """Evaluate both forms of a row: operation by operation, there would be hundreds of programs."""
    names: dict[str, object] = {"jax": jax, "jnp": jnp, "axn": axn}
    sizes = {"batch": 2, "pos": 3, "embed": 4, "mlp": 5, "heads": 2, "dim": 2}
    names |= {name.capitalize(): axn.Axis(name, size) for name, size in sizes.items()}
    axes_of = {
        "a x": "batch pos embed",
        "b y": "batch pos embed",
        "c z": "pos",
        "d v": "embed",
        "w weight": "embed mlp",
    }
    rng = np.random.default_rng(0)
    operands: dict[str, object] = {}
    for spelled, axes in axes_of.items():
        plain, named = spelled.split()
        array = jax.device_put(rng.normal(size=[sizes[name] for name in axes.split()]).astype(np.float32))
        operands |= {plain: array, named: axn.named(array, axes.split())}
    ids = jax.device_put(rng.integers(0, 4, (2, 3)).astype(np.int32))
    operands |= {"i": ids, "tokens": axn.named(ids, ("batch", "pos"))}
    codes = [compile(code.strip("`"), "", "eval") for code in (row[1], row[4])]
    return lambda operands: [eval(code, names | operands) for code in codes], (operands,)


@pytest.mark.parametrize("row", FORTY, ids=lambda row: row[0])
def test_a_row_of_the_short_table_computes_the_same(row: list[str]) -> None:
    expected, result = together(job_of, FORTY, row)
    if isinstance(result, axn.NamedArray):
        assert (result.array.shape, result.dtype) == (expected.shape, expected.dtype)
        result = result.array
    np.testing.assert_allclose(np.asarray(result, np.float32), np.asarray(expected, np.float32), rtol=2e-5, atol=1e-6)


def other_names() -> Iterator[tuple[str, str, str]]:
    """Yield namespace, name and form of functions of `x`, `y` and "a" that have another name here, or an operator."""
    plain = re.compile(r'axn\.(?:\w+\.)*(\w+)\((?:[xy]|, |"a")+\)|[xy] \W+ [xy]|~x')
    for namespace in NAMESPACES:
        for name, text in rows(namespace).items():
            for form in re.findall(r"`(.+?)`", text):
                match = plain.fullmatch(form)
                one_result = name != "minmax"  # that row has a form for each of two
                if match and match[1] != name and one_result and name in public_functions(namespace):
                    yield namespace, name, form


OTHER_NAMES = list(other_names())


def job_of_another_name(row: tuple[str, str, str]) -> Job:
    namespace, name, form = row
    values = np.arange(1, 25, dtype=np.int32) if re.search("bit|invert", name) else np.linspace(0.1, 0.9, 24)
    values = values.reshape(2, 3, 4)
    named = {key: axn.NamedArray(array, ("a", "b")) for key, array in zip("xy", values, strict=True)}
    operands = [named[key].array for key in re.findall(r"\b[xy]\b", form)]
    theirs, options = getattr(importlib.import_module(namespace), name), {"axis": 0} if '"a"' in form else {}

    def both(named: dict[str, axn.NamedArray], operands: list[jax.Array]) -> Any:
        return eval(form, {"axn": axn, **named}), theirs(*operands, **options)

    return both, (named, operands)


@pytest.mark.parametrize("row", OTHER_NAMES, ids=lambda row: f"{row[0]}.{row[1]}")
def test_a_function_of_another_name_computes_the_same(row: tuple[str, str, str]) -> None:
    result, expected = together(job_of_another_name, OTHER_NAMES, row)
    for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert_close(one, other)
