"""Expressions of einsum, planned without arrays: numpy's letters are the reference for ordered ones."""

import pytest

from axonym.errors import PatternError
from axonym.names import subscripts


def test_letters_name_axes_by_position() -> None:
    found = subscripts.plan_einsum("a b, b c -> a c", (("batch", "embed"), ("embed", "mlp")), ())
    assert found == (("embed",), ("batch", "mlp"), ())


def test_braces_name_axes_wherever_they_are() -> None:
    operands = (("embed", "batch"), ("mlp", "embed"))
    found = subscripts.plan_einsum("{batch embed}, {embed mlp} -> batch mlp", operands, ())
    assert found.contracted == ("embed",)
    assert found.out == ("batch", "mlp")


def test_only_a_result_sums_over_all_other_axes() -> None:
    found = subscripts.plan_einsum("-> batch", (("batch", "embed"), ("embed",)), ())
    assert found == (("embed",), ("batch",), ())


def test_sizes_of_keywords_are_kept_for_the_arrays() -> None:
    found = subscripts.plan_einsum("a b -> a", (("batch", "embed"),), (("b", ("embed", 4)),))
    assert found.given == (("embed", 4),)


@pytest.mark.parametrize(
    ("text", "error", "problem"),
    [
        ("a b -> z", PatternError, "'z' is not on the left"),
        ("a a -> a", PatternError, "'a' appears twice"),
        ("a b, b c -> a", PatternError, "the expression has 2 operands, but 1 were given"),
    ],
)
def test_what_makes_no_sense(text: str, error: type[Exception], problem: str) -> None:
    with pytest.raises(error) as caught:
        subscripts.plan_einsum(text, (("batch", "embed"),), ())
    assert str(caught.value).startswith(problem)
