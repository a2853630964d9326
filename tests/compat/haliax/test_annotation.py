"""Annotations of arrays by their axes."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import typing
from typing import Any

import haliax as hax
import jax.numpy as jnp
import pytest
from haliax import NamedArray
from haliax.core import NamedArrayAxes, NamedArrayMeta

X = hax.ones(hax.make_axes(a=2, b=3, c=4))


@pytest.mark.parametrize(
    ("spec", "wanted", "text"),
    [
        ("a b c", NamedArrayAxes(("a", "b", "c")), "NamedArray[a b c]"),
        ("a ... c", NamedArrayAxes(("a",), ("c",), subset=True), "NamedArray[a ... c]"),
        (("a", ...), NamedArrayAxes(("a",), subset=True), "NamedArray[a ...]"),
        ({"b", "a"}, NamedArrayAxes(("a", "b"), ordered=False), "NamedArray[{a, b}]"),
        ({"b", ...}, NamedArrayAxes(("b",), ordered=False, subset=True), "NamedArray[{b, ...}]"),
    ],
)
def test_annotations(spec: Any, wanted: NamedArrayAxes, text: str) -> None:
    annotation = NamedArray[spec]  # type: ignore[misc,valid-type]  # by the metaclass
    assert typing.get_origin(annotation) is typing.Annotated
    assert typing.get_args(annotation) == (NamedArray, wanted)
    assert repr(wanted) == text
    assert type(NamedArray) is NamedArrayMeta


def test_an_annotation_has_one_ellipsis() -> None:
    for spec in ("a ... b ...", ("a", ..., ...), 3):
        with pytest.raises(TypeError, match=r"NamedArray\[...\]"):
            NamedArray[spec]  # type: ignore[misc,valid-type]  # what is tested


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ("a b c", True),
        ("a c b", False),
        ("a b", False),
        ("a b c d", False),
        ("...", True),
        ("a ...", True),
        ("b ...", False),
        ("... c", True),
        ("a ... c", True),
        ("a b ... b c", False),
        (("a", "b", "c"), True),
        (["a", ..., "c"], True),
        ({"c", "a", "b"}, True),
        ({"c", "a"}, False),
        ({"c", ...}, True),
        ({"z", ...}, False),
        (NamedArray["a ..."], True),  # type: ignore[misc]  # by the metaclass
        (NamedArrayAxes(("a",), subset=True, dtype=jnp.float32), True),
        (NamedArrayAxes(("a",), subset=True, dtype=jnp.int32), False),
        (NamedArrayAxes(("a",), subset=True, dtype=jnp.floating), True),
        (NamedArrayAxes(("a",), subset=True, dtype="float32"), True),
    ],
)
def test_matching_an_annotation(spec: Any, fits: bool) -> None:
    assert X.matches_axes(spec) is fits


def test_the_dtype_in_an_annotation_prints_short() -> None:
    for dtype, text in (
        (jnp.float32, "f32"),
        (jnp.bfloat16, "bf16"),
        ("uint8", "u8"),
        (jnp.int32, "i32"),
        (bool, "bool"),
    ):
        assert repr(NamedArrayAxes(("a",), dtype=dtype)) == f"NamedArray[{text} a]"
