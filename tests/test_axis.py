"""Axes, selections and specs, and the algebra of axes."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st

import axonym as axn
from axonym.axis import selection, selector, sized, spec
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError

A, B, C = axn.make_axes(batch=4, embed=6, mlp=8)
AXES = st.lists(st.sampled_from([A, B, C]), unique=True).map(tuple)


def test_an_axis_is_a_name_and_a_size() -> None:
    axis = axn.Axis("batch", np.int64(4))
    assert (axis.name, axis.size, type(axis.size), str(axis), repr(axis)) == (
        "batch",
        4,
        int,
        "batch(4)",
        "Axis(name='batch', size=4)",
    )
    assert axis == A
    assert hash(axis) == hash(A)
    assert axis != A.resize(5)
    assert A.alias("heads") == axn.Axis("heads", 4)
    assert A.resize(0) == axn.Axis("batch", 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        A.size = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("batch", (("batch", None),)),
        (A, (("batch", 4),)),
        ((A, "embed"), (("batch", 4), ("embed", None))),
        ([], ()),
        ((axis for axis in (A, B)), (("batch", 4), ("embed", 6))),
        ({"batch": 4, "embed": None}, (("batch", 4), ("embed", None))),
    ],
)
def test_selection_takes_every_form(given_: Any, expected: Any) -> None:
    assert selection(given_) == expected


def test_selector_and_spec() -> None:
    assert (selector("batch"), selector(A), selector((A,))) == (("batch", None), ("batch", 4), ("batch", 4))
    assert spec(A) == (A,)
    assert spec({"batch": 4, "embed": 6}) == (A, B)
    assert sized(A) == sized((A,)) == A  # type: ignore[arg-type]
    with pytest.raises(OperandError, match="axis 'batch' needs a size here"):
        sized("batch")  # type: ignore[arg-type]
    with pytest.raises(OperandError, match="expected one axis, got 2"):
        sized((A, B))  # type: ignore[arg-type]
    assert axn.axis_name(A) == axn.axis_name("batch") == "batch"
    assert axn.axis_name((A, "embed")) == ("batch", "embed")
    assert (axn.axis_size(A), axn.axis_size((A, B)), axn.axis_size(())) == (4, 24, 1)


@given(AXES, AXES)
def test_algebra_is_that_of_ordered_sets(first: tuple[axn.Axis, ...], second: tuple[axn.Axis, ...]) -> None:
    assert axn.union_axes(first, second) == (*first, *(axis for axis in second if axis not in first))
    assert axn.intersect_axes(first, second) == tuple(axis for axis in first if axis in second)
    assert axn.without_axes(first, second) == tuple(axis for axis in first if axis not in second)
    assert axn.selects_axis(first, second) == (set(second) <= set(first))
    assert axn.unsize_axes(first) == tuple(axis.name for axis in first)
    names = tuple(axis.name for axis in second)
    if set(second) <= set(first):
        assert axn.resolve_axis(first, names) == second
        assert axn.eliminate_axes(first, names) == axn.without_axes(first, second)
    else:
        with pytest.raises(AxisNotFoundError):
            axn.eliminate_axes(first, names)
    if set(first) & set(second):
        with pytest.raises(AxisClashError):
            axn.concat_axes(first, second)
    else:
        assert axn.concat_axes(first, second) == (*first, *second)


def test_names_and_sizes_complete_each_other() -> None:
    assert axn.union_axes("batch", A) == (A,)
    assert axn.intersect_axes(("batch", B), A) == (A,)
    assert axn.selects_axis(A, "batch")
    assert axn.selects_axis("batch", A)
    assert not axn.selects_axis(A, A.resize(3))
    assert axn.unsize_axes((A, B), "embed") == (A, "embed")


def test_a_dict_stays_a_dict() -> None:
    given_ = {"batch": 4, "embed": 6}
    assert axn.without_axes(given_, "batch") == {"embed": 6}
    assert axn.concat_axes(given_, C) == {"batch": 4, "embed": 6, "mlp": 8}
    assert axn.union_axes(given_, C) == {"batch": 4, "embed": 6, "mlp": 8}
    assert axn.replace_axis(given_, "embed", C) == {"batch": 4, "mlp": 8}


def test_replace_axis_keeps_the_place() -> None:
    assert axn.replace_axis((A, B), A, (C, "heads")) == (C, "heads", B)
    assert axn.replace_axis((A, B), "batch", ()) == (B,)
    assert axn.replace_axis((A, B), "batch", A.resize(1)) == (axn.Axis("batch", 1), B)


def test_resolve_axis_gives_what_was_asked_for() -> None:
    assert axn.resolve_axis((A, B), "embed") == B
    assert axn.resolve_axis({"batch": 4}, A) == A
    assert axn.resolve_axis((A, B), ()) == ()


def test_a_size_may_be_symbolic() -> None:
    (size,) = jax.export.symbolic_shape("b")
    axis = axn.Axis("batch", size)
    assert axis == axn.Axis("batch", size) != A
    assert len({axis, axn.Axis("batch", size), axis.resize(4)}) == 2
    assert (axis.derive("key").size, axn.axis_size((axis, B)), str(axis)) == (size, size * 6, "batch(b)")

    def several(x: axn.NamedArray) -> Any:
        batch = x.resolve_axis("batch")
        rows = axn.vmap(lambda row: row * 2, batch)(x)
        return rows, axn.arange(batch) + x, x.sum("batch") / x.axis_size("batch"), axn.where(x > 0, batch.size, x)

    abstract = axn.NamedArray(jax.ShapeDtypeStruct((size, 6), np.float32), (axis, B))
    exported = jax.export.export(jax.jit(several))(abstract)
    raw = np.arange(24, dtype=np.float32).reshape(4, 6) - 3
    doubled, shifted, mean, filled = exported.call(axn.named(raw, (A, B)))
    assert doubled.axes == shifted.axes == filled.axes == (A, B)
    np.testing.assert_allclose(doubled.array, raw * 2)
    np.testing.assert_allclose(shifted.array, raw + np.arange(4)[:, None])
    np.testing.assert_allclose(mean.array, raw.mean(0), rtol=1e-6)
    np.testing.assert_allclose(filled.array, np.where(raw > 0, 4, raw))


INPUT = A, B

BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("axn.Axis(3, 3)", lambda A, B: axn.Axis(3, 3), OperandError, "Axis: the name must be a non-empty str, not 3"),
    ("axn.Axis('', 3)", lambda A, B: axn.Axis("", 3), OperandError, "Axis: the name must be a non-empty str, not ''"),
    (
        "axn.Axis('a', 2.0)",
        lambda A, B: axn.Axis("a", 2.0),
        OperandError,
        "Axis: the size of 'a' must be an int, not 2.0",
    ),
    (
        "axn.Axis('a', None)",
        lambda A, B: axn.Axis("a", None),
        OperandError,
        "Axis: the size of 'a' must be an int, not None",
    ),
    (
        "axn.Axis('a', True)",
        lambda A, B: axn.Axis("a", True),
        OperandError,
        "Axis: the size of 'a' must be an int, not True",
    ),
    (
        "axn.Axis('a', np.True_)",
        lambda A, B: axn.Axis("a", np.True_),
        OperandError,
        "Axis: the size of 'a' must be an int, not np.True_",
    ),
    (
        "axn.Axis('a', '3')",
        lambda A, B: axn.Axis("a", "3"),
        OperandError,
        "Axis: the size of 'a' must be an int, not '3'",
    ),
    (
        "axn.Axis('a', -1)",
        lambda A, B: axn.Axis("a", -1),
        AxisSizeError,
        "Axis: the size of 'a' must not be negative, got -1",
    ),
    (
        "A.resize(-2)",
        lambda A, B: A.resize(-2),
        AxisSizeError,
        "Axis: the size of 'batch' must not be negative, got -2",
    ),
    (
        "axn.make_axes(a=-1)",
        lambda A, B: axn.make_axes(a=-1),
        AxisSizeError,
        "Axis: the size of 'a' must not be negative, got -1",
    ),
    (
        "axn.axis_name((A, 3))",
        lambda A, B: axn.axis_name((A, 3)),
        OperandError,
        'axis_name: 3 is a position, but axes have names\n  hint: write the name of an axis, such as "batch"',
    ),
    (
        "axn.axis_name((A, A))",
        lambda A, B: axn.axis_name((A, A)),
        AxisClashError,
        "axis_name: axis 'batch' is given twice\n  axes: batch, batch",
    ),
    (
        "axn.axis_name(None)",
        lambda A, B: axn.axis_name(None),
        OperandError,
        "axis_name: None is neither an Axis nor the name of one\n"
        '  hint: an axis is written as Axis("batch", 32), or as "batch"',
    ),
    (
        "axn.axis_size('a')",
        lambda A, B: axn.axis_size("a"),
        OperandError,
        "axis_size: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        "axn.axis_size((A, 'a'))",
        lambda A, B: axn.axis_size((A, "a")),
        OperandError,
        "axis_size: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        "axn.axis_size({'a': None})",
        lambda A, B: axn.axis_size({"a": None}),
        OperandError,
        "axis_size: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        "axn.concat_axes(A, (B, A))",
        lambda A, B: axn.concat_axes(A, (B, A)),
        AxisClashError,
        "concat_axes: axis 'batch' is in both arguments",
    ),
    (
        "axn.union_axes(A, A.resize(3))",
        lambda A, B: axn.union_axes(A, A.resize(3)),
        AxisSizeError,
        "union_axes: axis 'batch' has two sizes: 4 and 3",
    ),
    (
        "axn.intersect_axes((A, B), A.resize(3))",
        lambda A, B: axn.intersect_axes((A, B), A.resize(3)),
        AxisSizeError,
        "intersect_axes: axis 'batch' has two sizes: 4 and 3",
    ),
    (
        "axn.without_axes((A, B), A.resize(3))",
        lambda A, B: axn.without_axes((A, B), A.resize(3)),
        AxisSizeError,
        "without_axes: axis 'batch' has two sizes: 4 and 3",
    ),
    (
        "axn.eliminate_axes((A, B), 'bach')",
        lambda A, B: axn.eliminate_axes((A, B), "bach"),
        AxisNotFoundError,
        "eliminate_axes: no axis named 'bach'\n  axes: batch, embed\n  hint: did you mean 'batch'?",
    ),
    (
        "axn.eliminate_axes((), 'b')",
        lambda A, B: axn.eliminate_axes((), "b"),
        AxisNotFoundError,
        "eliminate_axes: no axis named 'b'\n  axes: none",
    ),
    (
        "axn.replace_axis((A, B), 'emb', 'x')",
        lambda A, B: axn.replace_axis((A, B), "emb", "x"),
        AxisNotFoundError,
        "replace_axis: no axis named 'emb'\n  axes: batch, embed\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.replace_axis((A, B), 'embed', 'batch')",
        lambda A, B: axn.replace_axis((A, B), "embed", "batch"),
        AxisClashError,
        "replace_axis: axis 'batch' is given twice\n  axes: batch, batch",
    ),
    (
        "axn.replace_axis((A, B), A.resize(3), 'x')",
        lambda A, B: axn.replace_axis((A, B), A.resize(3), "x"),
        AxisSizeError,
        "replace_axis: axis 'batch' has two sizes: 4 and 3",
    ),
    (
        "axn.replace_axis((A, B), (A, B), 'x')",
        lambda A, B: axn.replace_axis((A, B), (A, B), "x"),
        OperandError,
        "replace_axis: expected one axis, got 2: batch, embed",
    ),
    (
        "axn.resolve_axis((A, B), 'emb')",
        lambda A, B: axn.resolve_axis((A, B), "emb"),
        AxisNotFoundError,
        "resolve_axis: no axis named 'emb'\n  axes: batch, embed\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.resolve_axis((A, B), A.resize(3))",
        lambda A, B: axn.resolve_axis((A, B), A.resize(3)),
        AxisSizeError,
        "resolve_axis: axis 'batch' has two sizes: 4 and 3",
    ),
    (
        "axn.resolve_axis(('batch', B), 'embed')",
        lambda A, B: axn.resolve_axis(("batch", B), "embed"),
        OperandError,
        "resolve_axis: axis 'batch' needs a size here\n  hint: write Axis(\"batch\", size)",
    ),
    (
        "axn.unsize_axes((A, B), 'emb')",
        lambda A, B: axn.unsize_axes((A, B), "emb"),
        AxisNotFoundError,
        "unsize_axes: no axis named 'emb'\n  axes: batch, embed\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.selects_axis(A, 3)",
        lambda A, B: axn.selects_axis(A, 3),
        OperandError,
        'selects_axis: 3 is a position, but axes have names\n  hint: write the name of an axis, such as "batch"',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(*INPUT)
    assert str(caught.value) == text


def test_a_derived_axis_has_a_base_and_a_role() -> None:
    assert axn.Axis("pos", 4).derive("key").derive("new") == axn.Axis("pos.key.new", 4)


@pytest.mark.parametrize("role", ["", 3, None])
def test_a_role_is_text(role: Any) -> None:
    with pytest.raises(OperandError) as error:
        axn.Axis("pos", 4).derive(role)
    assert str(error.value) == f"Axis.derive: the role of 'pos' must be a non-empty str, not {role!r}"
