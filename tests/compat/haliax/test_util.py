"""Small helpers of `haliax.util` and type aliases of `haliax.types`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
from haliax.util import (
    UNSPECIFIED,
    StringHolderEnum,
    Unspecified,
    ensure_tuple,
    is_jax_or_hax_array_like,
    is_named_array,
    maybe_untuple,
    safe_update_wrapper,
    safe_wraps,
)


@pytest.mark.parametrize(
    ("given", "expected"), [(3, (3,)), ("ab", ("ab",)), ([1, 2], (1, 2)), ((1,), (1,)), (None, (None,))]
)
def test_ensure_tuple(given, expected):
    assert ensure_tuple(given) == expected


def test_ensure_tuple_takes_an_axis_as_one():
    axis = hax.Axis("a", 2)
    assert ensure_tuple(axis) == (axis,)


@pytest.mark.parametrize(("given", "expected"), [((1,), 1), ((1, 2), (1, 2)), (3, 3), ([1], [1])])
def test_maybe_untuple(given, expected):
    assert maybe_untuple(given) == expected


def test_what_is_an_array():
    x = hax.ones(hax.Axis("a", 2))
    assert is_named_array(x)
    assert not is_named_array(jnp.ones(2))
    assert all(map(is_jax_or_hax_array_like, (x, jnp.ones(2), np.ones(2), jax.ShapeDtypeStruct((2,), jnp.int32))))
    assert not any(map(is_jax_or_hax_array_like, (1.0, "a", [1], None)))


def test_safe_wraps_takes_a_module():
    class Layer(eqx.Module):
        """A layer."""

        def __call__(self, x):
            return x + 1

    layer = Layer()

    @safe_wraps(layer)
    def wrapped(x):
        return layer(x)

    def named(x):
        """The text."""
        return x

    assert wrapped(1) == 2
    assert safe_update_wrapper(lambda x: x, named).__name__ == "named"
    assert safe_wraps(named)(lambda x: x).__doc__ == "The text."


def test_string_holder():
    class Kind(metaclass=StringHolderEnum):
        ONE = "one"
        TWO = "two"

    assert Kind.ONE == "one"
    assert list(Kind) == ["one", "two"]
    assert "two" in Kind
    assert len(Kind) == 2
    assert Kind.__members__ == {"ONE": "one", "TWO": "two"}


def test_unspecified():
    assert isinstance(UNSPECIFIED, Unspecified)
    assert repr(UNSPECIFIED) == "UNSPECIFIED"
