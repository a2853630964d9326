"""Tests of axonym.base.calls; `tests/mistakes` has the texts."""

import inspect
import pickle

import pytest

import axonym as axn
from axonym.base.calls import explain_call
from axonym.errors import OperandError

X = axn.named([[1.0, 2.0], [3.0, 4.0]], ("row", "column"))


def scale(x: float, by: float = 2.0, *, shift: float = 0.0) -> tuple[float, float, float]:
    """Return the arguments."""
    return x, by, shift


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((1,), {}),
        ((1, 3), {}),
        ((1,), {"by": 3}),
        ((), {"x": 1}),
        ((), {"by": 3, "x": 1, "shift": 4}),
        ((1,), {"shift": 4}),
    ],
)
def test_a_right_call_gets_its_arguments(args: tuple[float, ...], options: dict[str, float]) -> None:
    assert explain_call(scale)(*args, **options) == scale(*args, **options)


@pytest.mark.parametrize(
    ("args", "options", "problem"),
    [
        ((), {}, "x is missing"),
        ((), {"by": 3}, "x is missing"),
        ((1, 2, 3), {}, "3 arguments are given by position, where it takes 2: x, by"),
        ((1,), {"x": 1}, "x is given by position and by name"),
        ((1,), {"factor": 1}, "there is no argument 'factor'"),
    ],
)
def test_a_wrong_call_is_answered(args: tuple[float, ...], options: dict[str, float], problem: str) -> None:
    with pytest.raises(TypeError):
        scale(*args, **options)
    with pytest.raises(OperandError) as error:
        explain_call(scale)(*args, **options)
    assert error.value.problem == problem
    assert error.value.facts == ("it takes: (x, by=2.0, *, shift=0.0)",)


def test_an_error_of_the_function_itself_stays() -> None:
    def fail(x: int) -> int:
        return x + "1"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        explain_call(fail)(1)


def test_a_function_stays_what_it_was() -> None:
    explained = explain_call(scale)
    assert inspect.signature(explained) == inspect.signature(scale)
    assert (explained.__name__, explained.__doc__, explained.__module__) == ("scale", scale.__doc__, __name__)
    assert pickle.loads(pickle.dumps(axn.sum)) is axn.sum is axn.NamedArray.sum


def test_a_default_is_that_of_the_function() -> None:
    assert axn.sum(X, "row").tolist() == [4.0, 6.0]
    assert axn.sum(x=X, axis=("row", "column"), where=X > 1).item() == 9.0
