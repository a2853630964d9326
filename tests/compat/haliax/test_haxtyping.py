"""Annotations of `haliax.haxtyping`."""

import typing

import jax.numpy as jnp
import numpy as np
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.haxtyping as ht
from haliax import NamedArray
from haliax.core import NamedArrayAxes

DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "complex64": "complex64",
    "complex128": "complex128",
    "bool_": "bool_",
}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("item", ["a b", (NamedArray, "a b")])
def test_one_dtype(name, item):
    annotation = getattr(ht, name)[item]
    assert typing.get_origin(annotation) is typing.Annotated
    kind, axes = typing.get_args(annotation)
    assert kind is NamedArray
    assert (axes.before, axes.after, axes.ordered, axes.subset) == (("a", "b"), (), True, False)
    assert jnp.dtype(axes.dtype) == jnp.dtype(getattr(jnp, DTYPES[name]))


@pytest.mark.parametrize(
    ("annotation", "dtype", "fits"),
    [
        (ht.f32[NamedArray, "a b"], "float32", True),
        (ht.f32[NamedArray, "b a"], "float32", False),
        (ht.f32["a", "b"], "float32", True),
        (ht.f32[{"b", "a"}], "float32", True),
        (ht.i32[NamedArray, "a b"], "float32", False),
        (ht.i32[NamedArray, "..."], "int32", True),
        (ht.Float[NamedArray, ...], "bfloat16", True),
        (ht.Float["a ..."], "int32", False),
        (ht.Int["... b"], "int8", True),
        (ht.Int["... b"], "uint8", False),
        (ht.UInt["a b"], "uint8", True),
        (ht.Complex["a b"], "complex64", True),
        (ht.Named["a b"], "int32", True),
        (ht.Named[NamedArray, "a"], "int32", False),
        (hax.Named[NamedArray, "a b"], "float32", True),
    ],
    ids=str,
)
def test_fits(annotation, dtype, fits):
    x = NamedArray(np.ones((2, 3), jnp.dtype(dtype)), hax.make_axes(a=2, b=3))
    assert x.matches_axes(annotation) is fits


def test_in_signatures():
    def f(x: ht.f32[NamedArray, "a b"] | None, *, y: ht.Named["a"]) -> ht.Int["a"]: ...

    hints = typing.get_type_hints(f, include_extras=True)
    assert isinstance(typing.get_args(hints["return"])[1], NamedArrayAxes)


def test_category():
    category = ht.DTypeCategory("float", jnp.floating)
    assert (category.name, category.category, repr(category)) == ("float", jnp.floating, "float")
    assert typing.get_args(ht.Float["a"])[1].dtype == category
    kinds = [ht.Float, ht.Complex, ht.Int, ht.UInt]
    assert [str(typing.get_args(kind["a"])[1].dtype) for kind in kinds] == ["float", "complex", "int", "uInt"]


def test_bad_axes():
    with pytest.raises(ValueError, match=r"at most one \.\.\."):
        ht.f32["... a ..."]
