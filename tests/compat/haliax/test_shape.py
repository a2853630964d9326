"""Names, order, grouping, joining and taking apart of axes, against numpy."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

from typing import Any

import haliax as hax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, NamedArray

A, B, C = hax.make_axes(a=2, b=3, c=4)
VALUES = np.arange(24).reshape(2, 3, 4)
X = hax.named(VALUES, (A, B, C))
ROW = hax.named(np.arange(3), B)


def check(found: Any, axes: tuple[Axis, ...], values: Any) -> None:
    assert type(found) is NamedArray
    assert found.axes == axes
    np.testing.assert_array_equal(np.asarray(found.array), values)
    assert found.array.dtype == np.asarray(found.array).dtype


def test_broadcast_axis_adds_axes_in_front() -> None:
    assert hax.broadcast_axis(ROW, B) is ROW
    check(ROW.broadcast_axis(A), (A, B), np.broadcast_to(np.arange(3), (2, 3)))
    check(hax.broadcast_axis(ROW, (A, C)), (A, C, B), np.broadcast_to(np.arange(3), (2, 4, 3)))
    check(hax.broadcast_axis(ROW, {"a": 2}), (A, B), np.broadcast_to(np.arange(3), (2, 3)))


def test_broadcast_axis_gives_the_axes_asked_for_their_order() -> None:
    check(hax.broadcast_axis(X, (A, C)), (A, B, C), VALUES)
    check(hax.broadcast_axis(X, (C, A)), (C, A, B), VALUES.transpose(2, 0, 1))
    check(hax.broadcast_axis(ROW, (B, A)), (B, A), np.broadcast_to(np.arange(3)[:, None], (3, 2)))


def test_broadcast_to() -> None:
    table = np.broadcast_to(np.arange(3), (2, 3))
    check(hax.broadcast_to(ROW, (A, B)), (A, B), table)
    check(hax.broadcast_to(ROW, (B, A)), (B, A), table.T)
    check(hax.broadcast_to(ROW, (A, "b")), (A, B), table)
    check(hax.broadcast_to(ROW, (B, A), ensure_order=False), (A, B), table)
    check(hax.broadcast_to(X, (B, A), enforce_no_extra_axes=False), (B, A, C), VALUES.transpose(1, 0, 2))
    check(hax.broadcast_to(X, (A, C), enforce_no_extra_axes=False), (A, B, C), VALUES)
    check(hax.broadcast_to(7, (A,)), (A,), [7, 7])
    check(ROW.broadcast_to({"a": 2, "b": 3}), (A, B), table)
    check(hax.broadcast_to(2.5, ()), (), 2.5)


def test_broadcast_to_refuses() -> None:
    with pytest.raises(ValueError, match="the array has the extra axis"):
        hax.broadcast_to(X, (A, B))
    with pytest.raises(ValueError, match="'b'"):
        hax.broadcast_to(ROW, (A, Axis("b", 9)))
    with pytest.raises(ValueError, match="needs a size"):
        hax.broadcast_to(ROW, ("z", B))  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValueError, match="shape"):
        hax.broadcast_to(np.ones(2), (A, B))


def test_broadcast_arrays_of_which_one_contains_the_others() -> None:
    x, row, number, nothing = hax.broadcast_arrays(X, ROW, 3, None)
    check(x, (A, B, C), VALUES)
    check(row, (A, B, C), np.broadcast_to(np.arange(3)[:, None], (2, 3, 4)))
    assert (number, nothing) == (3, None)

    turned = X.rearrange((C, B, A))
    check(hax.broadcast_arrays(X, turned)[1], (A, B, C), VALUES)
    check(hax.broadcast_arrays(X, turned, ensure_order=False)[1], (C, B, A), VALUES.T)
    check(hax.broadcast_arrays(turned, X)[1], (C, B, A), VALUES.T)


def test_broadcast_arrays_of_which_none_contains_the_others() -> None:
    other = hax.named(np.arange(4), C)
    with pytest.raises(ValueError, match="no subset relationship"):
        hax.broadcast_arrays(ROW, other)
    with pytest.raises(ValueError, match="two sizes"):
        hax.broadcast_arrays(ROW, hax.ones(Axis("b", 1)))
    with pytest.raises(ValueError, match="plain array"):
        hax.broadcast_arrays(ROW, np.ones(3))

    (row, wide), axes = hax.core.broadcast_arrays_and_return_axes(ROW, other, require_subset=False)
    assert axes == (B, C)
    check(row, (B, C), np.broadcast_to(np.arange(3)[:, None], (3, 4)))
    check(wide, (B, C), np.broadcast_to(np.arange(4), (3, 4)))


def test_rename() -> None:
    check(X.rename({"a": "z"}), (Axis("z", 2), B, C), VALUES)
    check(X.rename({A: Axis("z", 2), "c": "y"}), (Axis("z", 2), B, Axis("y", 4)), VALUES)
    check(hax.rename(X, {"a": "b", "b": "a"}), (Axis("b", 2), Axis("a", 3), C), VALUES)
    check(X.rename({"nothing": "z"}), (A, B, C), VALUES)
    for new in ("z", Axis("z", 2)):
        check(X.rename({Axis("a", 9): new}), (Axis("z", 2), B, C), VALUES)
    for wrong in ({"a": "b"}, {A: Axis("z", 3)}, {"a": Axis("z", 3)}):
        with pytest.raises(ValueError, match=r"^rename"):
            X.rename(wrong)


def test_flatten_and_its_synonym() -> None:
    for flat in (hax.flatten(X, "all"), X.ravel("all"), X.flatten(Axis("all", 24))):
        check(flat, (Axis("all", 24),), VALUES.ravel())
    check(hax.named(3, ()).flatten("all"), (Axis("all", 1),), [3])


def test_flatten_axes_of_an_array() -> None:
    check(X.flatten_axes(("a", "b"), "ab"), (Axis("ab", 6), C), VALUES.reshape(6, 4))
    check(hax.flatten_axes(X, (C, A), "ca"), (Axis("ca", 8), B), VALUES.transpose(2, 0, 1).reshape(8, 3))
    check(X.flatten_axes((B,), "z"), (A, Axis("z", 3), C), VALUES)
    check(X.flatten_axes((), "new"), (Axis("new", 1), A, B, C), VALUES[None])
    check(hax.flatten_axes(X, old_axes=(B, C), new_axis=Axis("bc", 12)), (A, Axis("bc", 12)), VALUES.reshape(2, 12))


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (((A, B), "ab"), Axis("ab", 6)),
        ((A, "z"), Axis("z", 2)),
        (((), "z"), Axis("z", 1)),
        (((A, B, C), (A, B), "ab"), (Axis("ab", 6), C)),
        (((A, B, C), ("c", "b"), "cb"), (A, Axis("cb", 12))),
        (((A,), (), "z"), (Axis("z", 1), A)),
        (({"a": 2, "b": 3}, ("a",), "z"), {"z": 2, "b": 3}),
    ],
)
def test_flatten_axes_without_an_array(args: Any, wanted: Any) -> None:
    assert hax.flatten_axes(*args) == wanted


def test_flatten_axes_refuses() -> None:
    for wrong in ((X,), (X, ("a",), Axis("z", 9)), (X, ("z",), "y"), ((A, B), Axis("z", 9)), ((A, B), "a", "b")):
        with pytest.raises(ValueError, match=r"^flatten_axes|^resolve_axis"):
            hax.flatten_axes(*wrong)


def test_unflatten_axis() -> None:
    P, Q = hax.make_axes(p=2, q=2)
    check(X.unflatten_axis("c", (P, Q)), (A, B, P, Q), VALUES.reshape(2, 3, 2, 2))
    check(hax.unflatten_axis(X, C, {"p": 2, "q": 2}), (A, B, P, Q), VALUES.reshape(2, 3, 2, 2))
    check(hax.ones((A, Axis("one", 1))).unflatten_axis("one", ()), (A,), np.ones(2))
    with pytest.raises(ValueError, match="multiply"):
        X.unflatten_axis("c", (P, Axis("q", 3)))


def test_flatten_all_axes_but_and_back() -> None:
    merged, back = hax.core.flatten_all_axes_but(X, "batch", (A, C))
    check(merged, (Axis("batch", 8), B), VALUES.transpose(0, 2, 1).reshape(8, 3))
    check(back(merged), (A, B, C), VALUES)

    merged, back = hax.core.flatten_all_axes_but(X, "batch", (B, "c"), reorder_to_front=True)
    check(merged, (Axis("batch", 12), A), VALUES.reshape(2, 12).T)
    check(back(merged), (A, B, C), VALUES)
    check(back(merged.rename({"a": "out"})), (B, C, Axis("out", 2)), VALUES.transpose(1, 2, 0))


def test_split_and_unbind_give_lists() -> None:
    P, Q = Axis("p", 1), Axis("q", 3)
    pieces = X.split("c", (P, Q))
    assert isinstance(pieces, list)
    check(pieces[0], (A, B, P), VALUES[..., :1])
    check(pieces[1], (A, B, Q), VALUES[..., 1:])
    with pytest.raises(ValueError, match="add up"):
        hax.split(X, C, (P,))

    rows = hax.unbind(X, "b")
    assert isinstance(rows, list)
    for i, row in enumerate(rows):
        check(row, (A, C), VALUES[:, i])


def test_stack() -> None:
    New = Axis("new", 2)
    check(hax.stack("new", [X, X + 1]), (New, A, B, C), np.stack([VALUES, VALUES + 1]))
    check(hax.stack(New, (X, X.rearrange((C, B, A)))), (New, A, B, C), np.stack([VALUES, VALUES]))
    check(hax.stack(Axis("none", 0), []), (Axis("none", 0),), np.zeros(0, np.float32))
    for axis, arrays in ((Axis("new", 3), [X, X]), ("new", [X, ROW]), ("a", [X, X])):
        with pytest.raises(ValueError, match=r"^stack"):
            hax.stack(axis, arrays)


def test_concatenate() -> None:
    more = hax.ones((Axis("c", 2), A, B), dtype=int)
    joined = np.concatenate([VALUES, np.ones((2, 3, 2), int)], axis=2)
    check(hax.concatenate("c", [X, more]), (A, B, Axis("c", 6)), joined)
    check(hax.concatenate(Axis("c", 6), (X, more)), (A, B, Axis("c", 6)), joined)
    for axis, arrays in ((C, [X, more]), ("a", [X, more]), ("z", [X, X])):
        with pytest.raises(ValueError, match=r"^concatenate"):
            hax.concatenate(axis, arrays)


def test_roll() -> None:
    check(hax.roll(X, 1, "b"), (A, B, C), np.roll(VALUES, 1, 1))
    check(X.roll((1, -2), ("a", C)), (A, B, C), np.roll(VALUES, (1, -2), (0, 2)))
    check(hax.roll(X, hax.named(2, ()), C), (A, B, C), np.roll(VALUES, 2, 2))
    check(hax.roll(X, jnp.array([1, -2]), ("a", C)), (A, B, C), np.roll(VALUES, (1, -2), (0, 2)))
    with pytest.raises(ValueError, match="'z'"):
        hax.roll(X, 1, "z")
    for axes in ("z", "a"):
        with pytest.raises(TypeError, match=f"shift must be a scalar, but has axes: {axes}=2"):
            hax.roll(X, hax.named([0, 1], axes), "b")
