"""What every operation asks of its operands."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.engine import checks
from axonym.errors import AxisNotFoundError, AxisSizeError, OperandError


@pytest.mark.parametrize(
    ("fn", "name"),
    [(jnp.exp, "exp"), (jnp.add, "add"), (partial(jnp.sum, axis=0), "sum"), (partial(partial(jnp.sum)), "sum")],
)
def test_an_error_speaks_of_the_function(fn: Any, name: str) -> None:
    assert checks.title(fn) == name


def test_sizes_are_checked_where_both_have_the_name() -> None:
    names = (("a", "b"), (), ("b",))
    assert checks.check_sizes("f", names, (jnp.ones((2, 3)), 1.0, jnp.ones((7, 3)))) == {"a": 2, "b": 3}
    with pytest.raises(AxisSizeError) as caught:
        checks.check_sizes("f", names, (jnp.ones((5, 2, 3)), 1.0, jnp.ones(4)))
    assert str(caught.value) == (
        "f: axis 'b' has two sizes: 3 and 4\n"
        "  operand 1 has: anonymous (5,), a=2, b=3\n"
        "  operand 2 has: no axes\n"
        "  operand 3 has: b=4\n"
        '  hint: if one is shifted by a place, cut the longer one: x["b", :-1] or x["b", 1:]'
    )


def test_two_different_errors_do_not_share_a_cache() -> None:
    x = axn.ones(axn.Axis("a", 2))
    for _ in range(2):
        with pytest.raises(AxisNotFoundError, match="no axis named 'b'"):
            x.sum("b")
        with pytest.raises(AxisNotFoundError, match="no axis named 'c'"):
            x.sum("c")
    assert x.sum("a").item() == 2


def test_an_axis_and_its_name_are_the_same_selection() -> None:
    x = axn.ones((axn.Axis("a", 2), axn.Axis("b", 3)))
    for axis in ("a", axn.Axis("a", 2), ["a"], ("a",), {"a": 2}, {"a": None}):
        assert x.sum(axis).axes == (axn.Axis("b", 3),)
        assert axn.softmax(x, axis).names == ("a", "b")
    for function in (x.sum, x.cumsum, x.argmax):
        with pytest.raises(OperandError, match=r"2\.5 is neither an Axis nor the name of one"):
            function(2.5)


def test_axes_are_required_with_their_sizes() -> None:
    x = axn.ones(axn.make_axes(batch=2, embed=3))
    assert checks.require("f", x, ("embed", axn.Axis("batch", 2))) == axn.make_axes(embed=3, batch=2)
    with pytest.raises(AxisNotFoundError) as missing:
        checks.require("f", x, "embd")
    assert str(missing.value) == (
        "f: no axis named 'embd'\n  array has: batch=2, embed=3\n  hint: did you mean 'embed'?"
    )
    with pytest.raises(AxisSizeError) as other:
        checks.require("f", x, {"embed": 4})
    assert str(other.value) == ("f: axis 'embed' was given with size 4, but has size 3\n  array has: batch=2, embed=3")
    with pytest.raises(OperandError) as plain:
        checks.require("f", jnp.ones(2), "batch")
    assert str(plain.value) == (
        "f: expected a NamedArray, got a plain array\n"
        "  its shape: (2,)\n"
        '  hint: name its dimensions first: axn.named(array, "batch")'
    )


class Variable:
    """A wrapper that passes attributes on to what it holds, as those of Flax do."""

    def __init__(self, value: axn.NamedArray) -> None:
        vars(self)["value"] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{name} is set on an object of somebody else")


@pytest.mark.parametrize(
    "call",
    [
        axn.exp,
        lambda x: axn.add(x, 1.0),
        lambda x: axn.clip(x, 0.0, 1.0),
        lambda x: axn.sum(x, "a"),
        lambda x: axn.softmax(x, "a"),
        lambda x: axn.cumsum(x, "a"),
        lambda x: axn.sort(x, "a"),
        lambda x: axn.tril(x, "a", "b"),
        lambda x: axn.diagonal(x, "a", "b", new_axis="c"),
        lambda x: axn.dot(x, axn.ones({"a": 2}), axis="a"),
        lambda x: axn.dot(axn.ones({"a": 2}), x, axis="a"),
        lambda x: axn.einsum("a b -> b", x),
        lambda x: axn.where(axn.ones({"a": 2}) > 0, x, 0.0),
        lambda x: axn.take(x, "a", 0),
        lambda x: axn.concatenate("a", [x, x]),
        lambda x: axn.roll(x, 1, "a"),
        lambda x: axn.pad(x, {"a": (1, 1)}),
        lambda x: axn.rename(x, {"a": "c"}),
        lambda x: axn.rearrange(x, ("b", "a")),
        lambda x: axn.flatten_axes(x, ("a", "b"), "c"),
        lambda x: axn.split(x, "a", [axn.Axis("c", 1), axn.Axis("d", 1)]),
    ],
)
def test_a_wrapper_around_a_named_array_is_none(call: Any) -> None:
    """Its attributes are those of a named array, but a result could not be of its type."""
    with pytest.raises(OperandError, match="Variable"):
        call(Variable(axn.ones({"a": 2, "b": 2})))


def test_the_error_about_a_wrapper_says_what_to_take() -> None:
    with pytest.raises(OperandError) as caught:
        axn.exp(Variable(axn.ones({"a": 2})))  # type: ignore[arg-type]
    assert str(caught.value) == (
        "exp: expected a NamedArray, got Variable\n  hint: take the NamedArray out of the Variable first"
    )
