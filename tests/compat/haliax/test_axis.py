"""Axes and their algebra: values, and the types of results that Haliax gives."""

import axonym.compat.haliax  # isort: skip

from typing import Any

import haliax as hax
import haliax.axis as ha
import pytest
from haliax import Axis

import axonym
import axonym.compat.haliax  # makes `haliax` resolve

A, B, C = hax.make_axes(a=2, b=3, c=4)


def test_an_axis_is_that_of_axonym() -> None:
    assert hax.Axis is ha.Axis is axonym.Axis
    assert A.resize(5) == Axis("a", 5)
    assert A.alias("x") == Axis("x", 2)
    assert len({A, Axis("a", 2), B}) == 2
    assert (str(A), repr(A)) == ("a(2)", "Axis(name='a', size=2)")


RESULTS: list[tuple[Any, Any]] = [
    (ha.axis_name(A), "a"),
    (ha.axis_name("a"), "a"),
    (ha.axis_name((A, "b")), ("a", "b")),
    (ha.axis_name([A]), ("a",)),
    (ha.axis_name({"a": 2, "b": None}), ("a", "b")),
    (ha.axis_size(A), 2),
    (ha.axis_size((A, B)), 6),
    (ha.axis_size(()), 1),
    (ha.axis_size({"a": 2, "c": 4}), 8),
    (ha.axis_spec_to_shape_dict(A), {"a": 2}),
    (ha.axis_spec_to_shape_dict((A, "b")), {"a": 2, "b": None}),
    (ha.axis_spec_to_shape_dict((A, Axis("a", 7))), {"a": 7}),
    (ha.axis_spec_to_tuple(A), (A,)),
    (ha.axis_spec_to_tuple("a"), ("a",)),
    (ha.axis_spec_to_tuple({"a": 2, "b": None}), (A, "b")),
    (ha.concat_axes(A, B), (A, B)),
    (ha.concat_axes((A,), (B, C)), (A, B, C)),
    (ha.concat_axes({"a": 2}, (B,)), {"a": 2, "b": 3}),
    (ha.concat_axes((A,), {"b": 3}), (A, B)),
    (ha.concat_axis_specs((A,), B), (A, B)),
    (ha.eliminate_axes((A, B, C), "b"), (A, C)),
    (ha.eliminate_axes((A, B), (B, A)), ()),
    (ha.eliminate_axes({"a": 2, "b": 3}, A), {"b": 3}),
    (ha.intersect_axes((A, B, C), (C, A)), (A, C)),
    (ha.intersect_axes((A, B), ("b", "z")), ("b",)),
    (ha.intersect_axes(("a", "b"), (B,)), (B,)),
    (ha.is_axis_compatible(A, Axis("a", 9)), True),
    (ha.is_axis_compatible("a", B), False),
    (ha.make_axes(x=2, w=1), (Axis("x", 2), Axis("w", 1))),
    (ha.replace_axis((A, B), "a", C), (C, B)),
    (ha.replace_axis((A, B), Axis("a", 99), (C, Axis("d", 1))), (C, Axis("d", 1), B)),
    (ha.replace_axis({"a": 2, "b": 3}, A, C), {"c": 4, "b": 3}),
    (ha.replace_missing_with_ellipsis((A, B, C), (C, "a")), (A, ..., C)),
    (ha.resolve_axis((A, B), "a"), A),
    (ha.resolve_axis((A, B), ("b", A)), (B, A)),
    (ha.resolve_axis((A, B), {"b": None}), {"b": 3}),
    (ha.resolve_axis({"a": 2}, "a"), A),
    (ha.selects_axis((A, B), "a"), True),
    (ha.selects_axis(("a", B), (A, B)), True),
    (ha.selects_axis((A, B), C), False),
    (ha.selects_axis((A, B), Axis("a", 9)), False),
    (ha.selects_axis((), ()), True),
    (ha.to_jax_shape(A), 2),
    (ha.to_jax_shape((A, B)), (2, 3)),
    (ha.to_jax_shape({"a": 2, "b": 3}), (2, 3)),
    (ha.union_axes((A, B), (B, C)), (A, B, C)),
    (ha.union_axes(A, B), (A, B)),
    (ha.union_axes(("a",), (A,)), (A,)),
    (ha.union_axes((A,), {"b": 3}), {"a": 2, "b": 3}),
    (ha.union_axes({"a": 2}, B), {"a": 2, "b": 3}),
    (ha.unsize_axes((A, B)), ("a", "b")),
    (ha.unsize_axes((A,)), ("a",)),
    (ha.unsize_axes(A), "a"),
    (ha.unsize_axes("a"), "a"),
    (ha.unsize_axes(A, "a"), ("a",)),
    (ha.unsize_axes((A, B), B), (A, "b")),
    (ha.unsize_axes({"a": 2, "b": 3}, "a"), {"a": None, "b": 3}),
    (ha.without_axes((A, B), ("b", "z")), (A,)),
    (ha.without_axes({"a": 2, "b": 3}, "b"), {"a": 2}),
    (ha.without_axes((A, B), Axis("b", 9), allow_mismatched_sizes=True), (A,)),
]


@pytest.mark.parametrize(("found", "wanted"), RESULTS)
def test_the_algebra_of_axes(found: Any, wanted: Any) -> None:
    assert found == wanted
    assert type(found) is type(wanted)


ORDERS = [
    ((A, B, C), ("c", "a", "b"), ("c", "a", "b")),
    ((A, B, C), ("c", ...), ("c", "a", "b")),
    ((A, B, C), (..., "a"), ("b", "c", "a")),
    ((A, B, C), ("c", ..., "a"), ("c", "b", "a")),
    ((A, B, C), (..., B, ...), ("a", "b", "c")),
    ((A, B, C), (..., "c", ..., "a", ...), ("c", "a", "b")),
    ((A, B, C), (..., "c", "a", ...), ("c", "a", "b")),
    ((A, B, C), (..., "c", ..., "a"), ("b", "c", "a")),
    ((A, B, C), ("b", ..., "c", ...), ("b", "a", "c")),
    ((A, B, C), ("a", ..., "c", ...), ("a", "b", "c")),
    ((A, B, C), (...,), ("a", "b", "c")),
    ((), (...,), ()),
]


@pytest.mark.parametrize(("axes", "order", "wanted"), ORDERS)
def test_a_partial_order_is_completed(axes: Any, order: Any, wanted: tuple[str, ...]) -> None:
    found = ha.rearrange_for_partial_order(order, axes)

    assert ha.axis_name(found) == wanted
    assert all(axis in axes for axis in found)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ha.concat_axes((A, B), A),
        lambda: ha.eliminate_axes((A, B), C),
        lambda: ha.eliminate_axes((A, B), Axis("a", 3)),
        lambda: ha.intersect_axes((A, B), Axis("a", 3)),
        lambda: ha.rearrange_for_partial_order(("a", "b"), (A, B, C)),
        lambda: ha.rearrange_for_partial_order(("a", "z", ...), (A, B, C)),
        lambda: ha.rearrange_for_partial_order(("a", "a", ...), (A, B, C)),
        lambda: ha.replace_axis((A, B), "z", C),
        lambda: ha.replace_axis((A, B), "a", B),
        lambda: ha.resolve_axis((A, B), "z"),
        lambda: ha.resolve_axis((A, B), Axis("a", 3)),
        lambda: ha.union_axes((A,), (Axis("a", 3),)),
        lambda: ha.without_axes((A, B), Axis("a", 3)),
        lambda: ha.axis_size("a"),  # type: ignore[arg-type]  # what is tested
        lambda: ha.axis_name((3,)),  # type: ignore[arg-type]  # what is tested
    ],
)
def test_a_mistake_about_axes_is_a_value_error(call: Any) -> None:
    with pytest.raises(ValueError, match=r"^\w+: "):
        call()


def test_a_dslice_has_a_start_and_a_size() -> None:
    piece = hax.dslice(2, B)

    assert (piece.start, piece.size) == (2, 3)
    assert hax.ds is hax.dslice
    assert piece.to_slice() == slice(2, 5)
    assert piece == hax.ds(2, 3) != hax.ds(2, 4)
    assert piece != 2
    assert {piece: 1}[hax.dslice(2, 3)] == 1
    assert type(hax.dblock(2, 5)) is hax.dslice
    assert hax.dblock(2, 5).to_slice() == hax.dslice.block(2, 5).to_slice() == slice(10, 15)
