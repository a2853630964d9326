"""Every public name of Haliax is there, and every call that binds there binds here.

`api.json` has the facts: for each module its names, each with its parameters (`a, b=, *, c`; null where it is no
callable), and for each class its members.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import axonym.compat.haliax  # noqa: F401  # makes `haliax` resolve

API = json.loads((Path(__file__).parent / "api.json").read_text())
SUBMODULES = {
    "haliax": "axis core debug haxtyping hof jax_utils nn ops partitioning quantization random ref specialized_fns "
    "state_dict tree tree_util types util wrap",
    "haliax.nn": "activations attention conv embedding linear loss mlp mup normalization pool scan",
}
# What a `**kwargs` stands for, where not every keyword makes sense.
KEYWORDS = {"dot": "axis", "pad": "stat_length", "rearrange": "axes", "named_jit": "inline", "field": "default"}
# Metaclasses, whose signature tells how a class statement calls them.
METACLASSES = {"ResourceAxis", "StringHolderEnum"}


def calls(name: str, parameters: str) -> Iterator[tuple[tuple[object, ...], dict[str, object]]]:
    """Yield calls that bind in Haliax: minimal, full, by position and by keyword, each option alone."""
    listed = [each.strip() for each in parameters.split(",") if each.strip()]
    star = listed.index("*") if "*" in listed else len(listed)
    variadic = next((i for i, each in enumerate(listed) if each.startswith("*") and not each.startswith("**")), None)
    split = min(star, len(listed) if variadic is None else variadic)
    positional = [each for each in listed[:split] if not each.startswith("*")]
    keyword = [each for each in listed[split:] if not each.startswith("*")]
    required = [each for each in positional if not each.endswith("=")]
    always = dict.fromkeys(each for each in keyword if not each.endswith("="))
    everything = always | dict.fromkeys(each.rstrip("=") for each in keyword)

    yield tuple(required), always
    yield tuple(positional), everything
    for option in (each.rstrip("=") for each in (*positional, *keyword) if each.endswith("=")):
        yield tuple(required), always | {option: None}
    if variadic is not None and listed[variadic] != "*":
        yield (*positional, 1, 2, 3), everything
    else:
        yield (), dict.fromkeys(each.rstrip("=") for each in positional) | everything
    if any(each.startswith("**") for each in listed):
        yield tuple(required), always | {KEYWORDS.get(name, "other"): None}


def refused(name: str, function: Callable[..., Any], parameters: str) -> list[str]:
    """List the calls that bind in Haliax and do not bind here."""
    signature = inspect.signature(function)
    wrong = []
    for args, kwargs in calls(name, parameters):
        try:
            signature.bind(*args, **kwargs)
        except TypeError as flaw:
            wrong.append(f"{name}(*{args}, **{kwargs}): {flaw}; here it is {signature}")
    return wrong


@pytest.mark.parametrize("module", sorted(API["names"]))
def test_names_are_there_and_take_the_calls(module: str) -> None:
    here, wrong = importlib.import_module(module), []
    for name, parameters in API["names"][module].items():
        if not hasattr(here, name):
            wrong.append(f"{module} has no {name}")
        elif parameters is not None and name not in METACLASSES:
            wrong += refused(name, getattr(here, name), parameters)
    assert wrong == []


def owner_of(owner: str) -> Any:
    if owner.endswith(".at"):
        Axis = importlib.import_module("haliax").Axis
        return type(importlib.import_module("haliax").zeros(Axis("x", 1)).at["x", 0])
    module, _, name = owner.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("owner", sorted(API["members"]))
def test_members_are_there_and_take_the_calls(owner: str) -> None:
    cls, wrong = owner_of(owner), []
    fields = getattr(cls, "__dataclass_fields__", {})
    for name, parameters in API["members"][owner].items():
        if name not in fields and not hasattr(cls, name):
            wrong.append(f"{owner} has no {name}")
        elif parameters is not None:
            method = inspect.getattr_static(cls, name)
            wrong += refused(name, method if isinstance(method, FunctionType) else getattr(cls, name), parameters)
    assert wrong == []


def test_fields_have_the_order_in_which_a_constructor_takes_them() -> None:
    for module, found in API["names"].items():
        for name, parameters in found.items():
            owner = f"{module}.{name}"
            cls = getattr(importlib.import_module(module), name)
            if owner in API["members"] and hasattr(cls, "__dataclass_fields__") and parameters:
                wanted = [each.strip().rstrip("=") for each in parameters.split(",")]
                have = [each for each in cls.__dataclass_fields__ if each in wanted]
                assert have == wanted or owner == "haliax.axis.dslice", owner


@pytest.mark.parametrize("module", sorted(API["names"]))
def test_a_module_lists_its_names(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in getattr(found, "__all__", []) if not hasattr(found, name)] == []


def test_modules_are_attributes_of_their_packages() -> None:
    for package, names in SUBMODULES.items():
        for name in names.split():
            assert isinstance(getattr(importlib.import_module(package), name), ModuleType), f"{package}.{name}"


@pytest.mark.parametrize("name", ["fft", "poly", "field"])
def test_three_functions_hide_the_modules_of_their_names(name: str) -> None:
    package, module = importlib.import_module("haliax"), importlib.import_module(f"haliax.{name}")
    assert isinstance(module, ModuleType)
    assert getattr(package, name) is getattr(module, name)


def test_the_check_of_calls_sees_what_it_should() -> None:
    def narrower(x: object, *, y: object) -> None: ...

    assert refused("f", narrower, "x, *, y") == []
    assert len(refused("f", narrower, "x, y=, *, z=")) == 4
    assert len(refused("f", narrower, "*xs, y")) == 3
    assert len(refused("f", narrower, "x, *, y, **options")) == 1
