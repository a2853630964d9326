"""The table of all bars says which are missed, and counts what is compiled."""

import jax.numpy as jnp
import pytest
from all import Row, of_new_names

import axonym as axn


@pytest.mark.parametrize(("value", "is_met"), [(0.5, True), (1.0004, True), (1.0006, False), (2, False)])
def test_a_bar_is_met_up_to_three_digits(value: float, is_met: bool) -> None:
    assert Row("equations", value, 1.0).is_met is is_met


def test_programs_for_new_names_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = of_new_names()
    assert row == ("programs compiled for ten new names", 0, 0)

    shapes = iter(range(2, 100))
    monkeypatch.setattr(axn, "softmax", lambda x, name: jnp.ones(next(shapes)) * 3)
    (row,) = of_new_names()
    assert row.value >= 10
