"""The words of errors: how a message is built, and that each kind is caught by what Python's custom expects."""

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st

import axonym as axn
from axonym import errors


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error") and name != "AxonymError"])
def test_errors_are_what_python_expects(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.AxonymError)
    assert issubclass(kind, TypeError if name == "OperandError" else ValueError)
    assert issubclass(kind, errors.AxisError) == (name not in {"ArgumentError", "OperandError", "ShardingError"})
    assert str(pickle.loads(pickle.dumps(kind("a problem")))) == "a problem"


def test_a_message_has_a_line_per_fact_and_a_hint() -> None:
    assert errors.message("sum", "no axis") == "sum: no axis"
    assert errors.message("sum", "no axis", "array has: a=1", hint="look") == (
        "sum: no axis\n  array has: a=1\n  hint: look"
    )


@pytest.mark.parametrize(
    ("names", "shape", "text"),
    [
        ((), (), "no axes"),
        (("a", "b"), (2, 3), "a=2, b=3"),
        (("b",), (5, 2, 3), "anonymous (5, 2), b=3"),
        ((), (2,), "anonymous (2,)"),
        (("a", "b"), (3,), "names a, b on an array of shape (3,)"),
        (("a", "b"), None, "a, b"),
        ((), None, "no axes"),
    ],
)
def test_axes_are_spelled_with_their_sizes(names: Any, shape: Any, text: str) -> None:
    assert errors.describe(names, shape) == text


def test_suggestions_are_near_misses() -> None:
    known = ["batch", "Embed", "mlp"]
    assert errors.suggestion("bach", known) == "did you mean 'batch'?"
    assert errors.suggestion("EMBED", known) == "did you mean 'Embed'?"
    assert errors.suggestion("position", known) is None
    assert errors.suggestion("x", []) is None
    assert errors.suggestion(None, ["none"]) is None


@given(st.text(min_size=1), st.lists(st.text(min_size=1)))
def test_a_suggestion_is_always_something_known(name: str, known: list[str]) -> None:
    found = errors.suggestion(name, known)
    assert found is None or any(found == f"did you mean {one!r}?" for one in known)


def test_a_message_never_shows_values() -> None:
    x = axn.full(axn.Axis("batch", 3), 7531.0)
    bad = [
        lambda: x + axn.full(axn.Axis("batch", 2), 7531.0),
        lambda: x.sum(x.array),  # type: ignore[arg-type]
        lambda: x["batch", x],
        lambda: axn.random.normal(x, x.array),
        lambda: x + jnp.full((2,), 7531.0),
        lambda: x.rename({"batch": x}),  # type: ignore[dict-item]
    ]
    for call in bad:
        with pytest.raises((errors.AxisError, errors.OperandError)) as caught:
            call()
        assert "7531" not in str(caught.value)


def test_the_cause_of_an_error_is_not_a_second_error() -> None:
    x = axn.ones(axn.Axis("batch", 3))
    for call in (lambda: x.sum("bach"), lambda: x + axn.ones(axn.Axis("b", 3)), lambda: x.rename({"q": "r"})):
        with pytest.raises(errors.AxisError) as caught:
            call()
        assert caught.value.__suppress_context__


def test_errors_are_the_same_under_a_trace() -> None:
    x, y = axn.ones(axn.Axis("batch", 3)), axn.ones(axn.Axis("batch", 2))
    texts = []
    for call in (lambda x, y: x + y, jax.jit(lambda x, y: x + y)):
        with pytest.raises(errors.AxisSizeError) as caught:
            call(x, y)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("copied", [lambda error: error, copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_keep_the_parts_of_their_text(copied: Any) -> None:
    x = axn.ones(axn.make_axes(batch=3, embed=4))
    with pytest.raises(errors.AxisNotFoundError) as caught:
        x.sum("embd")
    error = copied(caught.value)
    assert (error.function, error.problem) == ("sum", "no axis named 'embd'")
    assert (error.facts, error.hint) == (("array has: batch=3, embed=4",), "did you mean 'embed'?")
    assert str(error) == ("sum: no axis named 'embd'\n  array has: batch=3, embed=4\n  hint: did you mean 'embed'?")


def test_parts_of_an_error_in_an_expression_are_lines() -> None:
    with pytest.raises(errors.PatternError) as caught:
        axn.ones(axn.make_axes(a=2, b=3)).rearrange("a b -> (a b)")
    error = caught.value
    assert error.problem == "a merged axis needs a name"
    assert error.facts == ("a b -> (a b)", "       ^^^^^", "array has: a=2, b=3")


@pytest.mark.parametrize(
    "error",
    [
        errors.ArgumentError("wrong"),
        errors.OperandError(errors.message("f", "wrong", "it has: a=1", hint="write b")),
        errors.AxisNotFoundError("wrong", "write b", ("it has: a=1",)),
    ],
)
def test_an_error_is_explained_further(error: Any) -> None:
    more = errors.explained(error, "f", "at: w")
    assert type(more) is type(error)
    assert more.facts == (*error.facts, "at: w")
    lines = ["f: wrong", *more.facts]
    if error.hint:
        lines.append("hint: write b")
    assert str(more) == "\n  ".join(lines)
