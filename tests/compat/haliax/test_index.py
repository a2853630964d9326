"""Indexing and updates, against numpy: values and the order of axes."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, NamedArray, ds

A, B, C, D = hax.make_axes(a=2, b=3, c=4, d=5)
VALUES = np.arange(120).reshape(2, 3, 4, 5)
X = hax.named(VALUES, (A, B, C, D))
AT_I, AT_J = np.arange(6) % 3, np.arange(7) % 4
BY_I, BY_J = hax.named(AT_I, "i"), hax.named(AT_J, "j")
TABLE = np.arange(42).reshape(6, 7) % 3
BY_TABLE = hax.named(TABLE, ("i", "j"))


def check(found: Any, axes: Any, values: Any) -> None:
    assert type(found) is NamedArray
    assert hax.axis_name(found.axes) == tuple(axes)
    np.testing.assert_array_equal(np.asarray(found.array), values)


@pytest.mark.parametrize(
    ("item", "at", "axes"),
    [
        ({"a": 1}, (1,), "bcd"),
        ({B: 1, "d": -1}, (slice(None), 1, slice(None), -1), "ac"),
        (("b", 1), (slice(None), 1), "acd"),
        (("b", 1, D, 2), (slice(None), 1, slice(None), 2), "ac"),
        (("b", slice(1, None)), (slice(None), slice(1, None)), "abcd"),
        (("c", slice(None, None, -2), "a", 0), (0, slice(None), slice(None, None, -2)), "bcd"),
        ({"a": np.int64(1), "b": jnp.array(2), "c": hax.named(3, ())}, (1, 2, 3), "d"),
        ({"a": 0, "b": 0, "c": 0, "d": 7 - 5}, (0, 0, 0, 2), ""),
        ({}, (), "abcd"),
        ({"b": [2, 0]}, (slice(None), [2, 0]), "abcd"),
        ({"b": jnp.array([2, 0, 1])}, (slice(None), [2, 0, 1]), "abcd"),
        ({"b": jnp.array([2, 0])}, ([0, 1], [2, 0]), "acd"),
        ({"b": jnp.array([2, 0]), "a": slice(None)}, (slice(None), [2, 0]), "abcd"),
        ({"b": jnp.array([2, 0, 1, 1]), "d": 3}, (slice(None), [2, 0, 1, 1], range(4), 3), "ac"),
        ({"b": np.array([2, 0])}, (slice(None), [2, 0]), "abcd"),
        ({"c": jnp.array([2, 0])}, ([0, 1], slice(None), [2, 0]), "abd"),
        ({"b": BY_I}, (slice(None), AT_I), "aicd"),
        ({"b": BY_TABLE}, (slice(None), TABLE), "aijcd"),
        ({"b": BY_I, "c": BY_I}, (slice(None), AT_I, AT_I), "aid"),
        ({"b": BY_I, "d": BY_I}, (slice(None), AT_I, slice(None), AT_I), "iac"),
        ({"b": BY_I, "a": 0}, (0, AT_I), "icd"),
        ({"b": BY_I, "d": 0}, (slice(None), AT_I, slice(None), 0), "iac"),
        ({"b": BY_I, "c": slice(1, 3)}, (slice(None), AT_I, slice(1, 3)), "aicd"),
        ({"c": [1, 0], "d": 2}, (slice(None), slice(None), [1, 0], 2), "abc"),
        ({"c": [1, 0], "a": 1}, (1, slice(None), [1, 0]), "cbd"),
        ({"b": ds(1, 2)}, (slice(None), slice(1, 3)), "abcd"),
        ({"c": ds(1, 2), "a": 1}, (1, slice(None), [1, 2]), "cbd"),
        ({"c": ds(1, 2), "b": 1}, (slice(None), 1, [1, 2]), "acd"),
        ({"b": BY_I, "c": BY_J}, (slice(None), AT_I[:, None], AT_J), "aijd"),
        ({"c": BY_J, "b": BY_I}, (slice(None), AT_I[:, None], AT_J), "aijd"),
        ({"b": BY_TABLE, "c": BY_J}, (slice(None), TABLE, AT_J), "aijd"),
        ({"b": BY_I, "d": BY_J}, (slice(None), AT_I[:, None], slice(None), AT_J), "ijac"),
        ({"b": ds(0, 2), "c": BY_I}, (slice(None), [[0], [1]], AT_I), "abid"),
        ({"b": ds(0, 2), "d": BY_I}, (slice(None), [[0], [1]], slice(None), AT_I), "biac"),
    ],
)
def test_index_like_numpy(item: Any, at: Any, axes: str) -> None:
    check(X[item], axes, VALUES[at])
    if isinstance(item, dict):
        check(hax.index(X, item), axes, VALUES[at])


def test_the_axes_of_the_largest_index_come_last() -> None:
    wide, small = hax.named(np.arange(10) % 3, "w"), hax.named(np.arange(8).reshape(2, 4) % 4, ("r", "s"))
    wanted = VALUES[:, (np.arange(10) % 3)[None, None, :], (np.arange(8).reshape(2, 4) % 4)[:, :, None]]

    check(X[{"b": wide, "c": small}], "arswd", wanted)


def test_an_axis_that_an_index_shares_is_matched() -> None:
    by_a = hax.named([2, 0], A)
    check(X["b", by_a], "acd", np.stack([VALUES[0, 2], VALUES[1, 0]]))
    check(X["c", by_a], "abd", np.stack([VALUES[0, :, 2], VALUES[1, :, 0]]))
    check(X["a", 1, "c", hax.named([3, 1, 0], B)], "bd", VALUES[1, [0, 1, 2], [3, 1, 0]])
    both = hax.named([[2, 0, 1], [1, 1, 0]], (A, "k"))
    check(X["b", both], "akcd", VALUES[[[0], [1]], both.array])
    check(X["c", both], "akbd", VALUES[[[0], [1]], :, both.array])


def test_a_plain_index_is_paired_with_another_axis_of_its_length() -> None:
    square, order = np.arange(9).reshape(3, 3), np.array([2, 0, 1])
    x = hax.named(square, ("p", "q"))
    check(x["p", jnp.array(order)], "q", square[order, range(3)])
    check(eqx.filter_jit(lambda i: x["p", i])(jnp.array(order)), "q", square[order, range(3)])
    check(x.at["p", jnp.array(order)].get(), "q", square[order, range(3)])
    written = square.copy()
    written[order, range(3)] = -1
    check(x.at["p", jnp.array(order)].set(-1), "pq", written)
    ref = hax.new_ref(x)
    check(ref["p", jnp.array(order)], "q", square[order, range(3)])
    ref["p", jnp.array(order)] = -1
    check(ref.value(), "pq", written)
    for index in ([2, 0, 1], order, hax.named(order, "p")):  # an array of NumPy is an error there
        check(x["p", index], "pq", square[order])


def test_a_dslice_reads_zero_out_of_range() -> None:
    row = hax.named(np.arange(1, 6), D)
    check(row["d", ds(3, 4)], "d", [4, 5, 0, 0])
    check(row["d", ds(-1, 3)], "d", [0, 1, 2])
    check(jax.jit(lambda start: row["d", hax.dslice(start, Axis("n", 3))])(4), "d", [5, 0, 0])
    check(X["b", hax.dblock(1, 2)], "abcd", np.concatenate([VALUES[:, 2:], 0 * VALUES[:, :1]], 1))


def test_a_slice_of_pallas_is_a_dslice() -> None:
    class Slice:
        start, size, stride = 3, 4, 1

    check(hax.named(np.arange(1, 6), D)["d", Slice()], "d", [4, 5, 0, 0])


def test_index_arrays_out_of_range_read_the_nearest_element() -> None:
    check(hax.named(np.arange(5), D)["d", hax.named([0, 9], "i")], "i", [0, 4])


@pytest.mark.parametrize(
    "item",
    [
        *("a", 0, slice(1), ..., ("a", 0, "b"), ("a", 0.5), ("a", 9), ("z", 0)),
        *({"a": hax.named([0.5], "i")}, (Axis("a", 9), 0)),
    ],
)
def test_index_refuses(item: Any) -> None:
    with pytest.raises(ValueError, match=r"^(index|resolve_axis): "):
        X[item]


def test_an_axis_of_another_size_is_a_runtime_error() -> None:
    for call in (lambda: X[Axis("a", 9), 0], lambda: X.take(Axis("a", 9), 0), lambda: X.at[Axis("a", 9), 0].set(1)):
        with pytest.raises(RuntimeError, match="size 9"):
            call()


def test_take() -> None:
    check(hax.take(X, "b", 1), "acd", VALUES[:, 1])
    check(X.take(B, np.int64(1)), "acd", VALUES[:, 1])
    check(X.take("b", BY_I), "aicd", VALUES[:, AT_I])
    check(X.take("b", BY_TABLE), "aijcd", VALUES[:, TABLE])
    check(X.take("b", jnp.array([2, 0])), "abcd", VALUES[:, [2, 0]])
    check(X.take("b", hax.named([2, 0], "b")), "abcd", VALUES[:, [2, 0]])
    for axis, wrong in (("z", 0), ("a", BY_I.astype(float)), ("a", 9)):
        with pytest.raises(ValueError, match=r"^take"):
            hax.take(X, axis, wrong)


def test_take_where_the_index_has_axes_of_the_array() -> None:
    order = X.argsort("c")
    check(X.take("c", order), "cabd", np.sort(VALUES, 2).transpose(2, 0, 1, 3))
    by_c = hax.named([[3, 1, 0], [2, 2, 1]], (Axis("c", 2), B))
    wanted = np.stack([VALUES[:, np.arange(3), row] for row in by_c.tolist()])
    check(X.take("c", by_c), "cabd", wanted)
    check(X.take("c", by_c.rearrange(("b", "c"))), "cabd", wanted)
    flipped = X.rearrange(("d", "c", "b", "a")).take("c", hax.named([3, 0], A))
    check(flipped, "dba", np.stack([VALUES[0, :, 3], VALUES[1, :, 0]]).transpose(2, 1, 0))
    table = np.array([[2, 0, 1], [1, 1, 0]])
    check(X.take("c", hax.named(table, (A, "k"))), "kabd", np.stack([VALUES[[0, 1], :, table[:, k]] for k in range(3)]))


def test_slice_along_one_axis() -> None:
    check(hax.slice(X, "b", start=1, length=2), "abcd", VALUES[:, 1:])
    check(hax.slice(X, B, Axis("n", 2), 1), "ancd", VALUES[:, 1:])
    check(X.slice("b", "n", start=1, length=2), "ancd", VALUES[:, 1:])
    check(X.slice("b", start=9, length=2), "abcd", VALUES[:, 1:])
    check(X.slice("b", start=-1, length=2), "abcd", VALUES[:, 1:])
    check(X.slice("b", start=np.int64(9), length=2), "abcd", VALUES[:, 1:])
    check(jax.jit(lambda start: X.slice("b", "n", start, 2))(1), "ancd", VALUES[:, 1:])
    check(X.slice("b", Axis("n", 2), hax.named(1, ())), "ancd", VALUES[:, 1:])
    for args in (("b",), ("z", None, 0, 1), ("b", None, 0, 9), ("b", Axis("n", 2), 0, 3)):
        with pytest.raises(ValueError, match=r"^slice"):
            X.slice(*args)


def test_slice_along_several_axes() -> None:
    check(hax.slice(X, {"b": 1, "d": 2}, {"b": 2, "d": 3}), "abcd", VALUES[:, 1:, :, 2:])
    check(X.slice({B: 1, "d": 0}, {"b": Axis("n", 2), "d": Axis("d", 1)}), "ancd", VALUES[:, 1:, :, :1])
    check(X.slice(start={"b": jnp.array(1)}, length={"b": 2}), "abcd", VALUES[:, 1:])
    check(X.slice({"b": -1}, {"b": 2}), "abcd", VALUES[:, 1:])
    for start, length in (({"b": 2}, {"b": 2}), ({"b": 0}, {}), ({}, {"b": 2}), ({"z": 0}, {"z": 1})):
        with pytest.raises(ValueError, match=r"^(slice|resolve_axis)"):
            X.slice(start, length)


UPDATES = [
    ("set", 2.0, lambda old, new: new),
    ("add", 2.0, np.add),
    ("mul", 2.0, np.multiply),
    ("multiply", 2.0, np.multiply),
    ("divide", 2.0, np.divide),
    ("power", 2.0, np.power),
    ("min", 2.0, np.minimum),
    ("max", 2.0, np.maximum),
]


@pytest.mark.parametrize(("name", "value", "function"), UPDATES)
@pytest.mark.parametrize(
    ("item", "at"),
    [
        ({"a": 1}, (1,)),
        ({"b": hax.named([2, 0], "i")}, (slice(None), [2, 0])),
    ],
)
def test_updates(name: str, value: float, function: Any, item: Any, at: Any) -> None:
    old = VALUES.astype(np.float32)
    wanted = old.copy()
    wanted[at] = function(old[at], value)
    x = hax.named(old, (A, B, C, D))

    found = getattr(x.at[item], name)(value, indices_are_sorted=False, unique_indices=True, mode="drop")

    check(found, "abcd", wanted)
    assert found.dtype == jnp.float32


def test_updates_line_up_by_name() -> None:
    wanted = VALUES.copy()
    wanted[:, 1:, :, 0] = 7
    check(X.at["b", ds(1, 2), "d", 0].set(7), "abcd", wanted)

    row = hax.named(np.arange(4), C)
    wanted = VALUES.copy()
    wanted[:, 1] = np.arange(4)[None, :, None]
    check(X.at["b", 1].set(row), "abcd", wanted)

    by_i = hax.named(np.arange(2) * 10, "i")
    wanted = VALUES.copy()
    wanted[:, [2, 0]] += (np.arange(2) * 10)[None, :, None, None]
    check(X.at["b", hax.named([2, 0], "i")].add(by_i), "abcd", wanted)
    for wrong in (hax.named(np.arange(3), B), hax.named(np.arange(9), "c"), jnp.arange(4)):
        with pytest.raises(ValueError, match=r"^at"):
            X.at["b", 1].set(wrong)


def test_an_update_takes_the_dtype_of_the_array() -> None:
    half = hax.zeros(C, dtype=jnp.bfloat16)
    found = half.at["c", ds(1, 2)].set(hax.ones(Axis("c", 2)) * 1.5)
    assert found.dtype == jnp.bfloat16
    check(found, "c", [0, 1.5, 1.5, 0])
    check(hax.updated_slice(half, {"c": 1}, hax.ones(Axis("c", 2)) * 1.5), "c", [0, 1.5, 1.5, 0])
    check(hax.arange(C).at["c", 0].set(7.5), "c", [7, 1, 2, 3])
    check((hax.arange(C) > 1).at["c", 0].set(1), "c", [True, False, True, True])
    check(hax.arange(C).at["c", 1].divide(2), "c", [0, 0.5, 2, 3])


def test_apply_takes_functions_of_plain_arrays_and_of_named_ones() -> None:
    x = hax.named(np.arange(4, dtype=np.float32), C)
    for function in (jnp.exp, hax.exp, lambda part: hax.exp(part) * 1):
        check(x.at["c", slice(1, 3)].apply(function).astype(int), "c", [0, 2, 7, 3])


@pytest.mark.parametrize(
    ("item", "at"),
    [
        ({"c": hax.named([0, 0, 3], "i")}, (slice(None), slice(None), np.array([0, 0, 3]))),
        ({"c": [2, -2]}, (slice(None), slice(None), np.array([2, 2]))),
        ({"b": BY_I, "d": BY_I}, (slice(None), AT_I, slice(None), AT_I)),
        ({"b": BY_I, "c": BY_J, "a": 1}, (1, AT_I[:, None], AT_J)),
        ({"b": BY_I, "c": slice(1, 3)}, (slice(None), AT_I, slice(1, 3))),
        ({"c": hax.named([3, 3, 0], B)}, (slice(None), np.arange(3), np.array([3, 3, 0]))),
    ],
    ids=str,
)
def test_apply_counts_how_often_an_element_is_meant(item: Any, at: Any) -> None:
    floats = VALUES.astype(np.float32) / 100
    wanted = floats.copy()
    means = np.zeros(VALUES.shape, int)
    np.add.at(means, at, 1)
    for time in range(means.max()):
        wanted = np.where(means > time, np.sin(wanted), wanted)
    x = hax.named(floats, (A, B, C, D))
    for apply in (lambda x: x.at[item].apply(jnp.sin), jax.jit(lambda x: x.at[item].apply(hax.sin))):
        found = apply(x)
        assert type(found) is NamedArray
        assert found.axes == (A, B, C, D)
        np.testing.assert_allclose(found.array, wanted, rtol=1e-5)


def test_apply_out_of_range_in_other_dtypes_and_under_grad() -> None:
    x = hax.named(np.arange(1, 5), C)
    for mode, wanted in ((None, [1, 2, 3, 8]), ("drop", [1, 2, 3, 8]), ("clip", [1, 2, 3, 16])):
        check(x.at["c", hax.named([3, 9], "i")].apply(lambda part: part * 2, mode=mode), "c", wanted)
        check(x.at["c", ds(3, 2)].apply(lambda part: part * 2, mode=mode), "c", wanted)
    check(x.at["c", [0, 0]].apply(lambda part: part + 1.5), "c", [3, 2, 3, 4])
    floats = x.astype(jnp.float32)
    for at, options in ((slice(1, 3), {}), ([1, 2], {"unique_indices": True})):
        loss = lambda x, at=at, options=options: x.at["c", at].apply(jnp.square, **options).sum().scalar()  # noqa: E731
        check(jax.grad(loss)(floats), "c", [1, 4, 6, 1])


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_apply_on_a_mesh(kind: str, request: pytest.FixtureRequest) -> None:
    Row, Column = hax.make_axes(row=4, column=8)
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    wanted = values.copy()
    wanted[:, [0, 1]] += [4, 2]
    with hax.set_mesh(request.getfixturevalue(kind)):
        x = hax.shard(hax.named(values, (Row, Column)), {"row": "data", "column": "model"})
        found = x.at["column", hax.named([0, 0, 1], "i")].apply(lambda element: element + 2)
        assert found.array.sharding.is_equivalent_to(x.array.sharding, 2)
        np.testing.assert_array_equal(found.array, wanted)


def test_get_out_of_range() -> None:
    x = hax.named(np.arange(1, 5), C)
    far = hax.named([3, 9], "i")
    check(x.at["c", far].get(mode="fill", fill_value=-1), "i", [4, -1])
    check(X.at["c", [1, 0], "a", 1].get(), "cbd", VALUES[1, :, [1, 0]])
    check(X.at[...].get(), "abcd", VALUES)
    check(x.at["c", far].get(mode="clip"), "i", [4, 4])
    check(x.at["c", far].add(1, mode="drop"), "c", [1, 2, 3, 5])
    check(x.at["c", far].add(1, mode="clip"), "c", [1, 2, 3, 6])


def test_updated_slice() -> None:
    piece = hax.named(-np.ones((3, 2), int), (B, "c"))
    wanted = VALUES.copy()
    wanted[:, :, 1:3] = -1
    check(X.updated_slice({"c": 1}, piece), "abcd", wanted)
    check(jax.jit(lambda start: hax.updated_slice(X, {C: start}, piece))(1), "abcd", wanted)

    cache = hax.zeros((A, C))
    moved = cache.updated_slice({"c": hax.named([0, 2], A)}, hax.ones(Axis("c", 2)))
    check(moved, "ac", [[1, 1, 0, 0], [0, 0, 1, 1]])
    check(hax.zeros(C).updated_slice({"c": 1}, 1.0), "c", [0, 1, 0, 0])
    pair = hax.ones(Axis("c", 2))
    check(hax.zeros(C).updated_slice({"c": -1}, pair), "c", [0, 0, 1, 1])
    check(hax.zeros(C).updated_slice({"c": np.int64(3)}, pair), "c", [0, 0, 1, 1])
    check(jax.jit(lambda start: hax.zeros(C).updated_slice({"c": start}, pair))(3), "c", [0, 0, 1, 1])
    for start, update, problem in (
        ({"c": 0}, hax.ones(Axis("z", 2)), r"axes \(z\) that are not in the original array with shape \{'a': 2, 'b'"),
        ({"z": 0}, piece, "axis 'z' not found"),
        ({"c": 0}, hax.ones(Axis("c", 9)), "a piece of 9 elements that starts at 0 runs over the end of c=4"),
        ({"c": 3}, piece, "a piece of 2 elements that starts at 3 runs over the end of c=4"),
        ({"c": 9}, 1.0, "a piece of 1 elements that starts at 9 runs over the end of c=4"),
    ):
        with pytest.raises(ValueError, match=problem):
            X.updated_slice(start, update)


def test_indexing_under_transformations() -> None:
    x = hax.named(VALUES.astype(np.float32), (A, B, C, D))

    def loss(x: NamedArray, i: jax.Array) -> jax.Array:
        return (x["b", i, "c", BY_J] ** 2).sum().scalar()

    gradient = jax.jit(jax.grad(loss))(x, 1)

    wanted = np.zeros_like(VALUES, dtype=np.float32)
    np.add.at(wanted, (slice(None), 1, AT_J), 2 * VALUES[:, 1, AT_J])
    check(gradient, "abcd", wanted)
