"""Python numbers that change from call to call: a warning after a few programs, that names the argument."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import pytest

import axonym as axn

X = axn.ones({"a": 2})
FIVE = range(5)


def told(run: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught]


@axn.named_jit
def read(x: axn.NamedArray, *places: Any, **options: Any) -> axn.NamedArray:
    return x


def test_the_fifth_value_of_one_number_is_reported_once() -> None:
    @axn.named_jit
    def step(state: axn.NamedArray, i: int) -> axn.NamedArray:
        return state + i

    assert told(lambda: [step(X, i) for i in range(4)]) == []
    assert told(lambda: [step(X, i) for i in range(9)]) == [
        "named_jit: step is compiled for each value of i, and was so 5 times\n"
        "  its values: 0, 1, 2, 3, 4\n"
        "  hint: a Python number is static; an array is not: pass jnp.asarray(i)"
    ]


def test_the_warning_is_about_the_line_of_the_call() -> None:
    step = axn.named_jit(lambda state, i: state + i)
    with pytest.warns(UserWarning, match="for each value of i") as caught:
        [step(X, i) for i in FIVE]
    assert {one.filename for one in caught} == {__file__}


class Schedule(eqx.Module):
    rate: float

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        return x * self.rate


PLACES: list[tuple[Callable[[Any, int], Any], str]] = [
    (lambda step, i: step(X, i), "args[0]"),
    (lambda step, i: step(X, rate=i / 2), "rate"),
    (lambda step, i: step(X, {"rate": i}), "args[0]['rate']"),
    (lambda step, i: step(X, Schedule(float(i))), "args[0].rate"),
]


@pytest.mark.parametrize(("call", "place"), PLACES)
def test_the_number_is_named_as_in_the_call(call: Callable[[Any, int], Any], place: str) -> None:
    step = axn.named_jit(lambda state, *args, **options: state)
    (text,) = told(lambda: [call(step, i) for i in FIVE])
    assert f"for each value of {place}," in text


FINE: list[Callable[[Any, int], Any]] = [
    lambda step, i: step(X, i, -i),  # two numbers
    lambda step, i: step(X, "abcde"[i]),
    lambda step, i: step(X, i % 2 == 0),
    lambda step, i: step(axn.ones({"abcde"[i]: 2}), i),  # another structure each time
    lambda step, i: step.lower(X, i),
]


@pytest.mark.parametrize("call", FINE)
def test_other_differences_are_meant(call: Callable[[Any, int], Any]) -> None:
    step = axn.named_jit(lambda state, *args: state)
    assert told(lambda: [call(step, i) for i in FIVE]) == []


def test_methods_and_partial_functions_count_their_own_arguments() -> None:
    class Model(eqx.Module):
        weight: axn.NamedArray

        @axn.named_jit
        def at(self, i: int) -> axn.NamedArray:
            return self.weight * i

    model = Model(X)
    (text,) = told(lambda: [model.at(i) for i in FIVE])
    assert "at is compiled for each value of i," in text
    bound = axn.named_jit(functools.partial(lambda x, i: x * i, X))
    (text,) = told(lambda: [bound(i) for i in FIVE])
    assert "for each value of i," in text
