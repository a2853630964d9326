"""Choosing, padding, sorting out, against numpy."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.ops import raw_array_or_scalar

A, B, C = hax.Axis("A", 2), hax.Axis("B", 3), hax.Axis("C", 4)
X = np.array([[3.0, -1.0, 2.0], [0.0, 5.0, -4.0]], np.float32)


def named(array, *axes):
    return hax.NamedArray(jnp.asarray(array), axes)


def matches(result, expected, *axes):
    assert type(result) is hax.NamedArray
    assert result.axes == axes
    np.testing.assert_allclose(np.asarray(result.array), expected, rtol=1e-6)


# choosing
def test_where_by_name():
    x, mask = named(X, A, B), named(X > 0, A, B)
    matches(hax.where(mask, x, 0.0), np.where(X > 0, X, 0), A, B)
    matches(hax.where(condition=mask, x=1, y=2), np.where(X > 0, 1, 2), A, B)
    matches(hax.where(named([True, False, True], B), x, -x), np.where([True, False, True], X, -X), A, B)
    matches(hax.where(mask, named([1.0, 2.0, 3.0], B), x), np.where(X > 0, [1, 2, 3], X), A, B)
    matches(hax.where(named(X.T > 0, B, A), x, 0), np.where(X > 0, X, 0).T, B, A)
    with pytest.raises(ValueError, match="no operand has the axes of all others"):
        hax.where(named([True, False, True], B), named([1.0, 2.0], A), 0.0)
    with pytest.raises(ValueError, match="name it first"):
        hax.where(mask, jnp.ones((2, 3)), 0.0)


@pytest.mark.parametrize("condition", [True, False, np.bool_(True), jnp.array(False), hax.named(jnp.array(True), ())])
def test_where_of_a_scalar_condition(condition):
    chosen = bool(condition)
    matches(hax.where(condition, named(X, A, B), named(-X, A, B)), X if chosen else -X, A, B)
    matches(hax.where(condition, named(X, A, B), 0), X if chosen else 0 * X, A, B)  # fails in Haliax
    assert float(hax.where(condition, 1.0, 0)) == float(chosen)


def test_where_under_jit():
    pick = jax.jit(lambda condition, x: (hax.where(condition, x, 0), hax.where(condition, 1.0, 0.0)))
    whole, scalar = pick(True, named(X, A, B))
    matches(whole, X, A, B)
    assert float(scalar) == 1.0


@pytest.mark.parametrize("condition", [True, jnp.bool_(True), named(True)])
def test_without_axes_a_result_is_named_if_one_of_the_values_is(condition):
    plain, number, own = jnp.int32(3), -1, named(5)
    for values, is_named in (((plain, number), False), ((number, own), True), ((own, plain), True), ((own, own), True)):
        result = hax.where(condition, *values)
        assert isinstance(result, hax.NamedArray) is is_named
        assert raw_array_or_scalar(result) == raw_array_or_scalar(values[0])
    chosen = jax.lax.cond(True, lambda: hax.where(condition, own, 0), lambda: hax.where(condition, 1, own))
    assert type(chosen) is hax.NamedArray


def test_clip_and_isclose_without_axes():
    one, two = named(1.0), jnp.float32(2)
    for result in (hax.clip(one, named(0.0), named(2.0)), hax.clip(one, 0.0, two), hax.clip(two, 0.0, one)):
        matches(result, 1)
    matches(hax.isclose(one, named(1.0)), True)
    matches(hax.isclose(one, two), False)
    assert isinstance(hax.clip(two, 0.0, 1.0), jax.Array)
    row = named(jnp.arange(3.0), B)
    matches(hax.vmap(hax.where, B)(row == 1, row, -row), [0, 1, -2], B)
    matches(hax.vmap(hax.clip, B)(row, named(0.0), row * 0 + 1), [0, 1, 1], B)
    matches(hax.vmap(hax.isclose, "B")(row, row), [True] * 3, B)


def test_where_of_plain_arrays():
    result = hax.where(jnp.asarray(X) > 0, 1.0, jnp.asarray(X))
    assert isinstance(result, jax.Array)
    np.testing.assert_array_equal(result, np.where(X > 0, 1, X))


def test_where_and_nonzero_find_places():
    found = hax.Axis("found", 4)
    for rows, columns in (
        hax.where(named(X > 0, A, B), fill_value=-1, new_axis=found),
        hax.nonzero(named(X > 0, A, B), size=found, fill_value=-1),
    ):
        matches(rows, [0, 0, 1, -1], found)
        matches(columns, [0, 2, 1, -1], found)
    matches(hax.nonzero(array=named(X[0] > 0, B), size=found)[0], [0, 2, 0, 0], found)
    with pytest.raises(ValueError, match="both fill_value and new_axis"):
        hax.where(named(X > 0, A, B))
    with pytest.raises(ValueError, match="x and y"):
        hax.where(named(X > 0, A, B), 1.0)


def test_clip():
    x, low = named(X, A, B), named([0.0, -2.0, 1.0], B)
    matches(hax.clip(x, -1, 1), X.clip(-1, 1), A, B)
    matches(hax.clip(array=x, a_min=low, a_max=2.0), X.clip([0, -2, 1], 2), A, B)
    matches(hax.clip(x, None, 1.0), X.clip(None, 1), A, B)
    matches(hax.clip(x, 1.0, None), X.clip(1), A, B)
    matches(hax.clip(low, x, 5.0), np.clip(np.float32([0, -2, 1]), X, 5), A, B)
    matches(hax.clip(1.0, low, 3.0), np.clip(1.0, [0, -2, 1], 3), B)
    np.testing.assert_array_equal(hax.clip(jnp.asarray(X), 0, 1), X.clip(0, 1))
    with pytest.raises(ValueError, match="axes of all others"):
        hax.clip(low, named([1.0, 2.0], A), 3.0)


# comparing
def test_comparisons_are_bools():
    x, same, other = named(X, A, B), named(X.T, B, A), named(X * (1 + 1e-6), A, B)
    for result in (hax.array_equal(x, same), hax.array_equiv(x, same), hax.allclose(x, other)):
        assert result is True
    assert hax.array_equal(x, other + 1) is False
    assert hax.array_equal(x, x.rename({"A": "Q"})) is False
    assert hax.array_equal(x, named(X[0], B)) is False
    assert hax.array_equiv(named(np.tile(X[0], (2, 1)), A, B), named(X[0], B)) is True
    assert hax.array_equiv(x, named(np.ones(4), C)) is False
    assert hax.allclose(x, x + 0.1, rtol=0.0, atol=0.2) is True
    assert hax.allclose(named(X[0], B), 3.0) is False
    assert hax.allclose(jnp.ones(3), jnp.ones(3)) is True
    assert hax.allclose(named([np.nan], hax.Axis("n", 1)), np.nan, equal_nan=True) is True
    assert hax.array_equal(jnp.ones(3), jnp.zeros(3)) is False
    matches(hax.isclose(x, same), np.ones((2, 3)), A, B)
    matches(hax.isclose(x, named(X[0], B), atol=0.1), np.isclose(X, X[0], atol=0.1), A, B)
    with pytest.raises(ValueError, match="axes of all others"):
        hax.allclose(x, named(np.ones(4), C))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(hax.allclose)(x, x)


# matrices
def test_trace_and_triangles():
    cube = np.arange(24.0).reshape(2, 3, 4)
    x = named(cube, A, B, C)
    matches(hax.trace(x, "A", C), cube.trace(axis1=0, axis2=2), B)
    matches(hax.trace(x, axis1=B, axis2="A", offset=1), cube.trace(1, 1, 0), C)
    assert hax.trace(x, A, B, dtype=jnp.int32).dtype == jnp.int32
    moved = cube.transpose(1, 0, 2)
    matches(hax.tril(x, A, C), np.tril(moved), B, A, C)
    matches(hax.triu(x, axis1=A, axis2=C, k=1), np.triu(moved, 1), B, A, C)
    matches(hax.tril(x, "C", "A", -1), np.tril(cube.transpose(1, 2, 0), -1), B, C, A)
    with pytest.raises(ValueError, match="'Q'"):
        hax.tril(x, "Q", A)


# sizes
def test_pad():
    x = named(X, A, B)
    expected = np.pad(X, ((0, 0), (1, 2)))
    matches(hax.pad(x, {B: (1, 2)}), expected, A, hax.Axis("B", 6))
    matches(hax.pad(x, {"B": (1, 2), "Q": (3, 3)}), expected, A, hax.Axis("B", 6))
    filled = np.pad(X, ((1, 0), (0, 1)), constant_values=7)
    matches(hax.pad(x, {"A": (1, 0), "B": (0, 1)}, constant_values=7), filled, hax.Axis("A", 3), hax.Axis("B", 4))
    matches(hax.pad(x, {"B": (1, 1)}, mode="reflect"), np.pad(X, ((0, 0), (1, 1)), "reflect"), A, hax.Axis("B", 5))
    odd = np.pad(X, ((0, 0), (1, 1)), "reflect", reflect_type="odd")
    matches(hax.pad(x, {"B": (1, 1)}, mode="reflect", reflect_type="odd"), odd, A, hax.Axis("B", 5))
    ends = np.pad(X, ((1, 0), (1, 1)), constant_values=(1, 5))
    matches(hax.pad(x, {"A": (1, 0), B: (1, 1)}, constant_values=(1, 5)), ends, hax.Axis("A", 3), hax.Axis("B", 5))
    Wide = hax.Axis("Wide", 5)
    matches(hax.pad_left(x, B, Wide), np.pad(X, ((0, 0), (2, 0))), A, Wide)
    matches(hax.pad_left(x, B, Wide, value=-1), np.pad(X, ((0, 0), (2, 0)), constant_values=-1), A, Wide)
    with pytest.raises(ValueError, match="cannot pad 3 elements"):
        hax.pad_left(x, B, hax.Axis("B", 2))


def test_bits():
    bits = np.random.default_rng(0).integers(0, 2, (2, 11)).astype(bool)
    N = hax.Axis("N", 11)
    packed = hax.packbits(named(bits, A, N), N)
    matches(packed, np.packbits(bits, axis=1), A, hax.Axis("N", 2))
    matches(hax.unpackbits(packed, "N"), np.unpackbits(np.packbits(bits, axis=1), axis=1), A, hax.Axis("N", 16))
    matches(hax.unpackbits(packed, "N", count=11), bits, A, N)
    little = np.packbits(bits, axis=1, bitorder="little")
    matches(hax.packbits(named(bits, A, N), "N", bitorder="little"), little, A, hax.Axis("N", 2))


def test_repeat_and_tile():
    x = named(X, A, B)
    matches(hax.repeat(x, 2, "B"), X.repeat(2, 1), A, hax.Axis("B", 6))
    matches(hax.repeat(x, jnp.array([2, 0, 1]), axis=B), X.repeat([2, 0, 1], 1), A, B)
    matches(hax.repeat(x, jnp.array(2), A), X.repeat(2, 0), hax.Axis("A", 4), B)
    traced = jax.jit(lambda n: hax.repeat(x, n, "A", total_repeat_length=3))(jnp.array([1, 2]))
    matches(traced, X.repeat([1, 2], 0), hax.Axis("A", 3), B)
    matches(hax.tile(x, {"B": 2}), np.tile(X, (1, 2)), A, hax.Axis("B", 6))
    new = np.tile(X, (3, 2, 2, 1))
    matches(hax.tile(x, {"N": 3, "M": 2, A: 2}), new, hax.Axis("N", 3), hax.Axis("M", 2), hax.Axis("A", 4), B)


# sets and counts
def test_searchsorted():
    levels, values = np.float32([1, 2, 2, 4]), np.float32([[2, 3, 0], [4, 5, 1]])
    a, v = named(levels, C), named(values, A, B)
    matches(hax.searchsorted(a, v), np.searchsorted(levels, values), A, B)
    matches(hax.searchsorted(a=a, v=v, side="right", method="sort"), np.searchsorted(levels, values, "right"), A, B)
    matches(hax.searchsorted(a, 3.0), 3)
    matches(hax.searchsorted(a, named(values[0], hax.Axis("C", 3))), [1, 3, 0], hax.Axis("C", 3))
    mixed, order = levels[[2, 0, 3, 1]], np.array([1, 0, 3, 2])
    for sorter in (order, named(order, C)):
        matches(hax.searchsorted(named(mixed, C), v, sorter=sorter), np.searchsorted(levels, values), A, B)
    plain = hax.searchsorted(a, jnp.asarray(values))
    assert isinstance(plain, jax.Array)
    np.testing.assert_array_equal(plain, np.searchsorted(levels, values))
    with pytest.raises(ValueError, match="one axis"):
        hax.searchsorted(v, 3.0)


def test_bincount():
    x, Counts = named([2, 0, 2, 1], C), hax.Axis("Counts", 5)
    matches(hax.bincount(x, Counts), [1, 1, 2, 0, 0], Counts)
    for weights in (np.float32([0.5, 1, 2, 3]), named(np.float32([0.5, 1, 2, 3]), C)):
        matches(hax.bincount(x=x, Counts=Counts, weights=weights, minlength=3), [1, 3, 2.5, 0, 0], Counts)


def test_unique():
    x, Unique = named([[3, 1, 3], [1, 1, 2]], A, B), hax.Axis("Unique", 4)
    matches(hax.unique(x, Unique, fill_value=-1), [1, 2, 3, -1], Unique)
    for results in (
        hax.unique_all(x, Unique),
        hax.unique(x, Unique, return_index=True, return_inverse=True, return_counts=True),
    ):
        values, index, inverse, counts = results
        matches(values, [1, 2, 3, 1], Unique)
        np.testing.assert_array_equal(index.array[:3], [1, 5, 0])
        matches(inverse, [[2, 0, 2], [0, 0, 1]], A, B)
        matches(counts, [3, 1, 2, 0], Unique)
    assert [part.axes for part in hax.unique_counts(x, Unique)] == [(Unique,), (Unique,)]
    Row = hax.Axis("Row", 1)
    rows, inverse = hax.unique(named([[1, 2, 3], [1, 2, 3]], A, B), Row, axis=A, return_inverse=True)
    matches(rows, [[1, 2, 3]], Row, B)
    matches(inverse, [0, 0], A)


@pytest.mark.parametrize("name", ["unique_values", "unique_inverse"])
def test_parts_of_unique(name):
    x, Unique = named([[3, 1, 3], [1, 1, 2]], A, B), hax.Axis("Unique", 3)
    shapes = jax.eval_shape(lambda x: getattr(hax, name)(x, Unique), x)
    assert [part.axes for part in jax.tree.leaves(shapes, is_leaf=hax.is_named_array)] == [(Unique,), (A, B)][
        : 1 + (name == "unique_inverse")
    ]


def test_raw_array_or_scalar():
    assert raw_array_or_scalar(2.0) == 2.0
    assert isinstance(raw_array_or_scalar(named(X, A, B)), jax.Array)
