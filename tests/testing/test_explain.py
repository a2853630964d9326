"""The text of the error of a claim."""

import numpy as np
import pytest

from axonym.testing.explain import fail, find_factor


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("blocks.1.mlp", "dot_general", "model.py:3"), "layer blocks.1.mlp, operation dot_general, model.py:3"),
        (("", "reduce_sum", ""), "outside of layers, operation reduce_sum"),
        (("mlp", "", ""), "layer mlp"),
    ],
)
def test_the_place(place, line):
    error = fail("causal", "x", axis="pos", causes="causal", effect=float("inf"), place=place)
    assert str(error).splitlines()[1:3] == ["  effect: NaN or infinity in one of both", f"  first appears: {line}"]
    assert (error.layer, error.operation) == (place[0], place[1] or None)


def test_a_factor_is_one_for_all_elements():
    x = np.float32([1, -2, 0])
    assert find_factor(x, 4 * x) == pytest.approx(4)
    assert find_factor(x, np.float32([4, -8, 1])) is None
    assert find_factor(x, x) == pytest.approx(1)
    assert find_factor(0 * x, x) is None
    assert find_factor(x[:0], x[:0]) is None
