"""Functions without a result of no elements say which axis is empty."""

import math

import pytest

from axonym.engine.nonempty import check_nonempty
from axonym.errors import AxisSizeError

NAMES, SHAPE = ("batch", "embed"), (3, 0)


@pytest.mark.parametrize(
    ("function", "options", "hint"),
    [
        ("max", {}, "\n  hint: give a value to start from: initial=..."),
        ("argmin", {}, ""),
        ("norm", {"ord": -math.inf}, ""),
    ],
)
def test_the_empty_axis_is_named(function: str, options: dict[str, float], hint: str) -> None:
    with pytest.raises(AxisSizeError) as caught:
        check_nonempty(function, NAMES, SHAPE, (0, 1), options)
    problem = f"{function}: there is no {function} of no elements: axis 'embed' has size 0"
    assert str(caught.value) == f"{problem}\n  array has: batch=3, embed=0{hint}"


@pytest.mark.parametrize(
    ("function", "removed", "options"),
    [("sum", (1,), {}), ("max", (0,), {}), ("max", (1,), {"initial": 0.0}), ("norm", (1,), {"ord": math.inf})],
)
def test_others_pass(function: str, removed: tuple[int, ...], options: dict[str, float]) -> None:
    check_nonempty(function, NAMES, SHAPE, removed, options)
