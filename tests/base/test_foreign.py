"""What other libraries call things: each name is missing here, and its error says what to write."""

import re
from typing import Any

import jax
import pytest

import axonym as axn
from axonym import nn
from axonym.base import foreign

X = axn.ones({"batch": 2, "embed": 4})


@pytest.mark.parametrize("name", foreign.ATTRIBUTES)
def test_an_attribute_of_other_arrays_says_what_to_write(name: str) -> None:
    assert not hasattr(X, name)
    assert name not in dir(X)
    with pytest.raises(AttributeError) as raised:
        getattr(X, name)
    hint = f"{name}: a NamedArray has no such attribute\n  hint: {foreign.ATTRIBUTES[name]}"
    assert str(raised.value) == hint


@pytest.mark.parametrize(
    ("module", "table"), [(axn, foreign.FUNCTIONS), (nn, foreign.LAYERS), (axn.random, foreign.SAMPLERS)]
)
def test_a_name_of_other_modules_says_what_to_write(module: Any, table: dict[str, str]) -> None:
    for name, hint in table.items():
        assert not hasattr(module, name)
        with pytest.raises(AttributeError) as raised:
            getattr(module, name)
        assert str(raised.value) == f"{module.__name__}: there is no {name!r}\n  hint: {hint}"


def test_every_hint_names_only_what_is_there() -> None:
    tables = (foreign.ATTRIBUTES, foreign.FUNCTIONS, foreign.LAYERS, foreign.SAMPLERS)
    for hint in (hint for table in tables for hint in table.values()):
        for path in re.findall(r"(?<!\w)(?:axn|nn|jax|x)(?:\.[a-z_A-Z]\w*)+", hint):
            root, *names = path.split(".")
            value: Any = {"axn": axn, "nn": nn, "jax": jax, "x": X}[root]
            for name in names:
                value = getattr(value, name)


MISSING = [
    (axn, "relu", "axonym: there is no 'relu'\n  hint: it is in another module: axn.nn.relu"),
    (nn, "tanh", "axonym.nn: there is no 'tanh'\n  hint: it is in another module: axn.tanh"),
    (nn, "make_axes", "axonym.nn: there is no 'make_axes'\n  hint: it is in another module: axn.make_axes"),
    (axn, "sofmax", "axonym: there is no 'sofmax'\n  hint: did you mean 'softmax'?"),
    (nn, "Linaer", "axonym.nn: there is no 'Linaer'\n  hint: did you mean 'Linear'?"),
    (axn.random, "exponental", "axonym.random: there is no 'exponental'\n  hint: did you mean 'exponential'?"),
    (axn, "zzz", "axonym: there is no 'zzz'"),
    (axn, "__wrapped__", "module 'axonym' has no attribute '__wrapped__'"),
]


@pytest.mark.parametrize(("module", "name", "text"), MISSING)
def test_a_missing_name(module: Any, name: str, text: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(module, name)
    assert str(raised.value) == text
