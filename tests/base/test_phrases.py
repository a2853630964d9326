"""Texts that several errors share."""

import pytest

from axonym.base import phrases
from axonym.errors import AxisNotFoundError

CASES = {
    "of an array": (
        phrases.missing_axis("sum", "embd", ("batch", "embed"), "array has: batch=2, embed=3"),
        "sum: no axis named 'embd'\n  array has: batch=2, embed=3\n  hint: did you mean 'embed'?",
    ),
    "of a plan": (phrases.missing_axis(None, "embd", ("batch",)), "no axis named 'embd'"),
    "of one": (
        phrases.missing_axis("Linear", "embd", ("batch",), what="input", role=" of tokens"),
        "Linear: the input lacks axis 'embd' of tokens",
    ),
    "of several, with a hint": (
        phrases.missing_axis("f", "a", ("a.b",), what="keys", role=", the positions", hint="tag it"),
        "f: the keys lack axis 'a', the positions\n  hint: tag it",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_missing_axis(case: str) -> None:
    error, text = CASES[case]
    assert isinstance(error, AxisNotFoundError)
    assert str(error) == text


def test_a_verb_agrees_with_what_it_is_about() -> None:
    assert [phrases.verb(what) for what in ("input", "bias", "values")] == ["has", "has", "have"]


def test_a_size_that_was_given() -> None:
    assert phrases.write_size_conflict("a", 3, "has size 2") == "axis 'a' was given with size 3, but has size 2"
