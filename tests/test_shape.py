"""Sizes by name: like a dict, but nothing that takes a tuple of sizes takes it."""

import operator
from typing import Any

import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.errors import AxisError, AxisNotFoundError

A, B = axn.make_axes(a=2, b=3)


def x() -> axn.NamedArray:
    return axn.arange((A, B), dtype=jnp.float32)


def test_a_shape_is_a_dict_that_cannot_be_mistaken_for_a_tuple() -> None:
    shape = x().shape
    assert shape == {"a": 2, "b": 3}
    assert {"a": 2, "b": 3}.__eq__(shape) is NotImplemented  # so that the shape is asked
    assert shape != {"a": 2}
    assert (dict(shape), {**shape}, len(shape), repr(shape)) == (
        {"a": 2, "b": 3},
        {"a": 2, "b": 3},
        2,
        str(dict(shape)),
    )
    assert (list(shape.keys()), list(shape.values()), shape["b"]) == (["a", "b"], [2, 3], 3)
    assert (shape.get("b"), shape.get("c"), shape.get(0), "b" in shape, "c" in shape, 0 in shape) == (
        *(3, None, None),
        *(True, False, False),
    )
    assert (shape | {"c": 1}, {"c": 1} | shape) == ({"a": 2, "b": 3, "c": 1},) * 2
    assert axn.zeros(shape).axes == x().axes
    assert x().sum(shape).axes == ()
    (a, b), (c, d) = shape.items()
    assert (a, b, c, d) == ("a", 2, "b", 3)

    def unpack() -> None:
        _first, _second = x().shape

    calls = (unpack, lambda: tuple(shape), lambda: list(shape), lambda: [*shape], lambda: max(shape))
    for call in calls:
        with pytest.raises(AxisError) as error:
            call()
        assert str(error.value) == (
            "shape: sizes by name cannot be iterated or unpacked, which would give the names\n"
            "  array has: a=2, b=3\n"
            "  hint: write x.shape.values() for the sizes, x.names for the names, x.axes for both; "
            "functions of other libraries take x.array, and axn.nmap(f)(x) applies f by name"
        )


def test_a_shape_is_not_added_to_a_tuple() -> None:
    """Code for positional arrays makes new shapes that way, as NumPyro does of parameters."""
    for pair in ((x().shape, (3,)), ((), x().shape), (x().shape, x().shape)):
        with pytest.raises(AxisError) as error:
            operator.add(*pair)
        assert str(error.value) == (
            "shape: sizes by name cannot be added to others, which have no names\n"
            "  array has: a=2, b=3\n"
            "  hint: write x.shape.values() for the sizes, x.names for the names, x.axes for both; "
            "functions of other libraries take x.array, and axn.nmap(f)(x) applies f by name"
        )


@pytest.mark.parametrize("position", [0, -1, slice(2), None])
def test_a_shape_has_no_positions(position: Any) -> None:
    with pytest.raises(KeyError) as error:
        x().shape[position]
    assert str(error.value) == (
        f"shape: {position!r} is not the name of an axis\n"
        "  array has: a=2, b=3\n"
        "  hint: a position counts in x.axes and in x.array.shape; functions of other libraries take x.array, and "
        "axn.nmap(f)(x) applies f by name"
    )
    with pytest.raises(AxisNotFoundError) as error:
        axn.ones(axn.Axis("batch", 2)).shape["bach"]
    assert str(error.value) == "shape: no axis named 'bach'\n  array has: batch=2\n  hint: did you mean 'batch'?"
