"""A few random programs in each setting; `python -m tests.fuzz` runs any number, and shows small ones that fail."""

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from tests.fuzz.compare import Result, difference
from tests.fuzz.generate import Style, generate, reference
from tests.fuzz.program import Input, Line, Program
from tests.fuzz.run import SETTINGS, Finding, check, programs_of
from tests.fuzz.shrink import shrunk

# Eager programs compile each of their operations.
PROGRAMS = {name: 8 if setting.compiled else 3 for name, setting in SETTINGS.items()}


@pytest.mark.parametrize("setting", SETTINGS)
def test_random_programs_compute_what_numpy_does(setting: str) -> None:
    found = check(setting, programs_of(SETTINGS[setting], range(PROGRAMS[setting])))
    small = [shrunk(each) for each in found]
    assert not found, "\n\n".join(f"{each.problem}\n{each.program.script(setting)}" for each in small)


def test_a_seed_gives_the_same_program() -> None:
    first, second = (generate(7, Style()) for _ in range(2))
    assert first.source() == second.source()
    assert len(first.lines) > 1


def square(values: np.ndarray, dtype: str = "float32") -> Program:
    lines = (Line(("v1",), "n.square(v0)"), Line(("v2",), "n.sum(v1, 'a')"))
    return Program({"v0": Input(("a",), values, dtype)}, lines, ("v2",))


@pytest.mark.parametrize(("error", "is_wrong"), [(0, False), (1e-6, False), (1e-3, True)])
def test_a_result_may_be_as_wrong_as_rounding_makes_it(error: float, is_wrong: bool) -> None:
    program = square(np.array([1.0, 2.0, 3.0]))
    result = Result((), "float32", np.array(14 * (1 + error)))
    assert (difference(program, [result]) is not None) == is_wrong


def test_a_comparison_next_to_a_jump_decides_nothing() -> None:
    lines = (Line(("v1",), "v0 / 3"), Line(("v2",), "v1 * 3 < v0"))
    program = Program({"v0": Input((), np.array(0.7), "float32")}, lines, ("v2",))
    assert all(difference(program, [Result((), "bool", np.array(given))]) is None for given in (True, False))


def test_a_finding_becomes_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many lines, only the one that is at fault is left, on plain inputs."""
    monkeypatch.setattr(axn, "square", lambda x: x * x + 1)
    given = Input(("a", "b"), np.arange(6.0).reshape(2, 3) ** 2, "float32")
    texts = "n.sin(v0)", "n.square(v1)", "n.sum(v2, 'a')", "v1 + v0"
    lines = tuple(Line((f"v{i}",), text) for i, text in enumerate(texts, start=1))
    small = shrunk(Finding("jit", Program({"v0": given}, lines, ("v3", "v4")), "values: wrong"))
    assert [str(line) for line in small.program.lines] == ["v2 = n.square(v1)"]
    assert np.array_equal(small.program.inputs["v1"].values, np.ones((2, 3)))
    assert "v2 = axn.square(v1)" in small.program.script("jit")


def test_the_reference_is_numpy() -> None:
    program = square(np.array([1, 2, 3]), "int8")
    (table,) = reference(program)
    assert (table.values, table.dtype) == (14, str(jnp.sum(jnp.ones(1, "int8")).dtype))
