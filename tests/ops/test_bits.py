"""Bits packed into bytes: laws over one row per function."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.engine.core import wrap
from axonym.errors import ArgumentError, OperandError
from axonym.ops import bits
from tests.laws import Bulk, Row, Values, has_row_for_each, row_along

row = functools.partial(row_along, bits)


def as_bytes(x: axn.NamedArray) -> axn.NamedArray:
    return wrap(x, x.array.astype("uint8"), x.names)


BULK = [
    row("packbits", "c", 2, jnp.packbits, np.packbits, domain="bool"),
    Row(
        "unpackbits",
        lambda x: axn.unpackbits(as_bytes(x), "a"),
        ("abc",),
        lambda x: jnp.unpackbits(x.astype("uint8"), 0),
        "abc",
        lambda x: np.unpackbits(x.astype("uint8"), 0),
        ("int",),
    ),
]


VARIANTS = [
    row(
        "packbits",
        "a",
        0,
        lambda x, at: jnp.packbits(x, at, "little"),
        lambda x, at: np.packbits(x, at, "little"),
        case="little",
        domain="int",
        bitorder="little",
    ),
    Row(
        "unpackbits",
        lambda x: axn.unpackbits(as_bytes(x), "c", count=-5, bitorder="little"),
        ("abc",),
        lambda x: jnp.unpackbits(x.astype("uint8"), 2, -5, "little"),
        "abc",
        lambda x: np.unpackbits(x.astype("uint8"), 2, -5, "little"),
        ("int",),
        case="some, little",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(BULK, bits)


@pytest.mark.parametrize("row", BULK, ids=str)
class TestBulk(Bulk):
    """What the engine does for all."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axis."""


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: axn.packbits(x, "embed"),
            OperandError,
            "packbits: needs booleans or integers, got float32",
        ),
        (
            lambda x: axn.packbits(x > 0, "embed", bitorder="middle"),
            ArgumentError,
            "packbits: unknown bitorder 'middle'\n  hint: orders: big, little",
        ),
        (
            lambda x: axn.unpackbits(x, "embed"),
            OperandError,
            'unpackbits: needs uint8, got float32\n  hint: write x.astype("uint8")',
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3))))
    assert str(caught.value) == text


def test_bits_of_no_bytes_have_the_shape_that_numpy_gives() -> None:
    for sizes, count in (((2, 0), 5), ((0, 2), -3), ((0, 2), None), ((0, 2), 7)):
        raw = np.zeros(sizes, np.uint8)
        got = axn.unpackbits(axn.named(raw, ("batch", "embed")), "embed", count=count)
        assert tuple(got.shape.values()) == np.unpackbits(raw, 1, count).shape
