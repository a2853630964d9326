"""What a mistake is answered with: decorators that turn a mistake into a test of the whole answer.

A mistake is a function that does what somebody might try. Its arguments are fixtures; those that are arrays also arrive
as tracers, since an answer is the same under `jit`.
"""

import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from axonym.array import is_named_array

ROOT = Path(__file__).parents[2]
Mistake = Callable[..., Any]


def raised(mistake: Mistake) -> BaseException | None:
    """Return the error that a mistake ends in."""
    try:
        mistake()
    except Exception as error:
        return error
    return None


def text_of(error: BaseException | None) -> str:
    """Return all that a user reads of an error, notes included."""
    if error is None:
        return "nothing was raised"
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("----")]  # of JAX, on tracebacks
    text = "\n".join([str(error), *notes]).replace(f"{ROOT}/", "")
    text = re.sub(r"/latest/\d+/", "/latest/", text)  # pages of some releases of JAX
    return re.sub(r"(\bline |\.py:)\d+", r"\1N", text)


def ways(mistake: Mistake, given: dict[str, Any]) -> list[Mistake]:
    """Return the ways to make a mistake: as it is, and with its arrays traced."""
    arrays = {name: value for name, value in given.items() if is_named_array(value)}
    others = {name: value for name, value in given.items() if name not in arrays}
    made: list[Mistake] = [lambda: mistake(**given)]
    if arrays:
        made.append(lambda: jax.eval_shape(lambda traced: mistake(**traced, **others), arrays))
    return made


def as_test(mistake: Mistake, check: Callable[[dict[str, Any]], None]) -> Mistake:
    """Make the test of a mistake, which asks for the fixtures that it has as arguments."""

    def test(**given: Any) -> None:
        check(given)

    test.__name__, test.__doc__, test.__module__ = mistake.__name__, mistake.__doc__, mistake.__module__
    test.__signature__ = inspect.signature(mistake)  # type: ignore[attr-defined]
    test.pytestmark = getattr(mistake, "pytestmark", [])  # type: ignore[attr-defined]
    return test


def expected(text: str, given: dict[str, Any]) -> str:
    """Return a text as it is on the mesh of a test: KIND is the type of its axes."""
    text = inspect.cleandoc(text)
    return text.replace("KIND", given["mesh"].axis_types[0].name) if "mesh" in given else text


def says(text: str) -> Callable[[Mistake], Mistake]:
    """Claim that a mistake is an error of this text: what was asked, what is there, what would work."""

    def decorate(mistake: Mistake) -> Mistake:
        def check(given: dict[str, Any]) -> None:
            for attempt in ways(mistake, given):
                assert text_of(raised(attempt)) == expected(text, given)

        return as_test(mistake, check)

    return decorate


def warns(text: str) -> Callable[[Mistake], Mistake]:
    """Claim that a mistake is a warning of this text, once."""

    def decorate(mistake: Mistake) -> Mistake:
        def check(given: dict[str, Any]) -> None:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                mistake(**given)
            assert [str(one.message) for one in caught] == [inspect.cleandoc(text)]

        return as_test(mistake, check)

    return decorate


def theirs(text: str, *, page: str, answer: str) -> Callable[[Mistake], Mistake]:
    """Claim that a mistake is an error of JAX or Python, which we cannot word, with this in it.

    Args:
        text: what is in it.
        page: the page of the docs that says what to do.
        answer: what is on that page.
    """

    def decorate(mistake: Mistake) -> Mistake:
        def check(given: dict[str, Any]) -> None:
            assert inspect.cleandoc(text) in text_of(raised(lambda: mistake(**given)))
            assert answer in (ROOT / "docs" / page).read_text()

        return as_test(mistake, check)

    return decorate


def silent(why: str, *, page: str, answer: str) -> Callable[[Mistake], Mistake]:
    """Claim that a mistake raises nothing, for a reason, which a warning on a page of the docs tells.

    Args:
        why: why it cannot be seen, or is no mistake elsewhere.
        page: the page.
        answer: what is on it.
    """
    assert why

    def decorate(mistake: Mistake) -> Mistake:
        def check(given: dict[str, Any]) -> None:
            mistake(**given)
            assert answer in (ROOT / "docs" / page).read_text()

        return as_test(mistake, check)

    return decorate
