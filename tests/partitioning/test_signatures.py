"""Values that are equal to Python, and not in the programs that they are part of."""

import pytest

from axonym.partitioning.signatures import identify


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), (1 + 0j, complex(1, -0.0)), (0, False)])
def test_equal_values_with_different_programs(one: object, other: object) -> None:
    assert one == other
    assert identify(one) != identify(other)


@pytest.mark.parametrize("value", [1, 1.5, -0.0, 2j, "text", None])
def test_a_value_is_the_same_as_itself(value: object) -> None:
    assert identify(value) == identify(value)
