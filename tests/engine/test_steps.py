"""How a selector becomes a static step and an argument."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import axonym as axn
from axonym.engine.steps import Gather, Int, Slice, Step, Strided, Traced, Window, step_of_range, steps_of
from axonym.errors import OperandError

X = axn.ones(axn.make_axes(a=4, b=5))


@pytest.mark.parametrize(
    ("selector", "step", "argument"),
    [
        (-1, Int("a"), 3),
        (np.int8(2), Int("a"), 2),
        (jnp.int32(2), Traced("a"), 2),
        (slice(1, 3), Slice("a", 2), 1),
        (slice(3, 1), Slice("a", 0), 3),
        (slice(None, None, -1), Strided("a", 3, None, -1), 0),
        (slice(0, 4, 2), Strided("a", 0, 4, 2), 0),
        (axn.dslice(2, 2), Slice("a", 2), 2),
        (axn.dslice(3, 2), Window("a", 2), 3),
        (axn.dslice(jnp.int32(1), 2), Window("a", 2), 1),
        ([0, 2], Gather("a", ("a",)), [0, 2]),
        (axn.named([0, 2], "i"), Gather("a", ("i",)), [0, 2]),
    ],
)
def test_each_selector_has_a_step(selector: Any, step: Step, argument: Any) -> None:
    steps, arguments = steps_of("f", X, {"a": selector})
    assert steps == (step,)
    np.testing.assert_array_equal(arguments[0], argument)


def test_steps_of_different_kinds_are_different_keys() -> None:
    steps = [Int("a"), Traced("a"), Slice("a", 2), Window("a", 2)]
    assert len({*steps}) == 4
    assert {Int("a"): 1}[Int("a")] == 1


@given(st.integers(0, 6), st.integers(-1, 6), st.integers(-3, 3).filter(bool))
def test_a_step_has_the_positions_of_its_range(start: int, stop: int, step: int) -> None:
    positions = range(6)[start : stop if stop >= 0 else None : step]
    made, first = step_of_range("a", positions)
    if isinstance(made, Slice):
        assert list(range(first, first + made.length)) == list(positions)
    else:
        assert isinstance(made, Strided)
        assert range(6)[made.slice] == positions


@pytest.mark.parametrize(
    ("index", "kinds", "hint"),
    [
        (X > 0, "NamedArray", "use where() to choose by a mask, or compress() to select by one"),
        ((..., None), "ellipsis, NoneType", "leave None out: operands are lined up by name, without axes of size 1"),
    ],
)
def test_indices_of_numpy_say_what_is_written_here(index: Any, kinds: str, hint: str) -> None:
    with pytest.raises(OperandError) as raised:
        X[index]
    problem = f"index: an index is a dict, or pairs of an axis and a selector, not ({kinds})"
    assert str(raised.value) == f"{problem}\n  array has: a=4, b=5\n  hint: {hint}"
