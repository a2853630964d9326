"""What several kinds of operations ask of their operands."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.engine.operands import integers, names_of, only_axis
from axonym.errors import AxisNotFoundError, OperandError

X = axn.named([[1, 2]], ("a", "b"))


@pytest.mark.parametrize("operand", [X, 1, np.int8(1), jnp.ones(2, jnp.uint32)])
def test_integers_are_accepted(operand: Any) -> None:
    integers("f", "the index", operand)


@pytest.mark.parametrize(
    ("operand", "text"),
    [
        (X > 0, "f: the index must have an integer dtype, not bool\n  hint: write f(x)"),
        (0.5, "f: the index must have an integer dtype, not float32"),
        (
            [1],
            "f: cannot combine a NamedArray and list\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
    ],
)
def test_anything_else_is_not(operand: Any, text: str) -> None:
    with pytest.raises(OperandError) as caught:
        integers("f", "the index", operand, for_masks="write f(x)")
    assert str(caught.value) == text


def test_names_are_those_of_a_named_array() -> None:
    assert names_of("f", X) == ("a", "b")
    assert only_axis("f", X["a", 0]) == "b"
    with pytest.raises(OperandError, match=r"^f: expected a NamedArray, got int"):
        names_of("f", 1)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (X, "f: needs one axis, got 2\n  array has: a=1, b=2\n  hint: say which one is meant: axis=..."),
        (X.sum(), "f: needs one axis, got 0\n  array has: no axes"),
    ],
)
def test_one_axis_is_asked_for_where_there_are_others(array: Any, text: str) -> None:
    with pytest.raises(AxisNotFoundError) as caught:
        only_axis("f", array)
    assert str(caught.value) == text
