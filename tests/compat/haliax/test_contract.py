"""Contractions and rearrange, against numpy."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import warnings
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, NamedArray

A, B, C, D = hax.make_axes(a=2, b=3, c=4, d=5)
LEFT = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
RIGHT = np.random.default_rng(1).normal(size=(4, 3, 5)).astype(np.float32)
X, Y = hax.named(LEFT, (A, B, C)), hax.named(RIGHT, (C, B, D))
W = hax.named(np.arange(5, dtype=np.float32), D)


def check(found: Any, axes: tuple[Axis, ...], values: Any) -> None:
    assert type(found) is NamedArray
    assert found.axes == axes
    np.testing.assert_allclose(np.asarray(found.array), values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", ["c", C, ("c",), [C], {"c": 4}])
def test_dot_sums_over_its_axis_and_matches_the_others(axis: Any) -> None:
    check(hax.dot(X, Y, axis=axis), (A, B, D), np.einsum("abc,cbd->abd", LEFT, RIGHT))


@pytest.mark.parametrize(
    ("arrays", "axis", "equation", "axes"),
    [
        ((X, Y), ("b", "c"), "abc,cbd->ad", (A, D)),
        ((X, Y), None, "abc,cbd->", ()),
        ((X, W), (), "abc,d->abcd", (A, B, C, D)),
        ((Y, X), "c", "cbd,abc->bda", (B, D, A)),
        ((X, Y, W), (C, "d"), "abc,cbd,d->ab", (A, B)),
        ((W, X, Y), ("c", "d"), "d,abc,cbd->ab", (A, B)),
        ((X,), ("c",), "abc->ab", (A, B)),
        ((X,), None, "abc->", ()),
        ((X, Y), ("a", "c"), "abc,cbd->bd", (B, D)),
        ((X, Y), ("a", "d"), "abc,cbd->bc", (B, C)),
    ],
)
def test_dot_of_any_number_of_arrays(arrays: Any, axis: Any, equation: str, axes: Any) -> None:
    wanted = np.einsum(equation, *(np.asarray(x.array) for x in arrays))

    check(hax.dot(*arrays, axis=axis), axes, wanted)


def test_out_axes() -> None:
    table = np.einsum("abc,cbd->abd", LEFT, RIGHT)
    check(hax.dot(X, Y, axis="c", out_axes=("d", "a", "b")), (D, A, B), table.transpose(2, 0, 1))
    check(hax.dot(X, Y, axis=C, out_axes=(D, ...)), (D, A, B), table.transpose(2, 0, 1))
    check(hax.dot(X, Y, axis=C, out_axes=(..., "a", ...)), (A, B, D), table)
    check(hax.dot(X, Y, axis=C, out_axes=(..., "a")), (B, D, A), table.transpose(1, 2, 0))
    with pytest.raises(ValueError, match="leaves out"):
        hax.dot(X, Y, axis=C, out_axes=("a", "b"))


def test_dot_passes_its_options_on() -> None:
    calls = []

    def product(*args: Any, **kwargs: Any) -> jax.Array:
        calls.append(kwargs)
        return jax.lax.dot_general(*args, **kwargs)

    half = X.astype(jnp.bfloat16)
    options = {"precision": "highest", "preferred_element_type": jnp.float32}
    found = hax.dot(half, Y, axis="c", dot_general=product, **options)

    assert found.dtype == hax.dot(half, half, axis="c", preferred_element_type=jnp.float32).dtype == jnp.float32
    assert hax.dot(half, half, axis="c").dtype == jnp.bfloat16
    assert calls == [options]


def test_the_old_form_of_dot_warns() -> None:
    wanted = np.einsum("abc,cbd->abd", LEFT, RIGHT)
    for call in (
        lambda: hax.dot("c", X, Y),
        lambda: hax.dot(C, X, Y),
        lambda: hax.dot(("c",), X, Y),
        lambda: X.dot(C, Y),
        lambda: X.dot("c", Y, precision=None),
    ):
        with pytest.warns(DeprecationWarning, match="axis=") as seen:
            check(call(), (A, B, D), wanted)
        assert seen[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="axis="):
        check(hax.dot(None, X, Y), (), wanted.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(X.dot(Y, axis=C), (A, B, D), wanted)
        check(X.dot(Y, W, axis=("c", "d")), (A, B), np.einsum("abc,cbd,d->ab", LEFT, RIGHT, np.arange(5)))


def test_dot_refuses() -> None:
    with pytest.raises(TypeError, match="precison"):
        hax.dot(X, Y, axis="c", precison="highest")
    for wrong in (lambda: hax.dot(X, Y, axis="z"), lambda: hax.dot(X, Y, axis=Axis("c", 9)), lambda: hax.dot(X, Y)):
        with pytest.raises(ValueError, match=r"^dot"):
            wrong()
    with pytest.raises(ValueError, match="two sizes"):
        hax.dot(X, hax.ones(Axis("c", 9)), axis="c")
    with pytest.raises(TypeError, match="NamedArray"):
        hax.dot(X, jnp.ones(4), axis="c")


@pytest.mark.parametrize(
    ("equation", "positional", "axes"),
    [
        ("x y z, z y w -> x w", "abc,cbd->ad", (A, D)),
        ("x y z, z y w -> w y x", "abc,cbd->dba", (D, B, A)),
        ("... z, z ... w -> ... w", "abc,cbd->abd", (A, B, D)),
        ("{b c}, {b c} -> ", "abc,cbd->ad", (A, D)),
        ("{c}, {c} -> a", "abc,cbd->bda", (B, D, A)),
        ("{c a}, {c} -> a ...", "abc,cbd->abd", (A, B, D)),
        ("{...}, {...} -> d a", "abc,cbd->da", (D, A)),
        ("-> d b", "abc,cbd->db", (D, B)),
        ("-> a b d", "abc,cbd->abd", (A, B, D)),
    ],
)
def test_einsum(equation: str, positional: str, axes: Any) -> None:
    check(hax.einsum(equation, X, Y), axes, np.einsum(positional, LEFT, RIGHT))


@pytest.mark.parametrize(
    ("equation", "positional", "axes"),
    [
        ("{b c} -> b", "abc,cbd->adb", (A, D, B)),
        ("{b c d} -> b ...", "abc,cbd->ba", (B, A)),
        ("{... c} -> ...", "abc,cbd->abd", (A, B, D)),
        ("{... b} -> d a", "abc,cbd->da", (D, A)),
        ("{z} ->", "abc,cbd->abd", (A, B, D)),
    ],
)
def test_one_pair_of_braces_speaks_of_all_arrays(equation: str, positional: str, axes: Any) -> None:
    aliases = {"z": C} if "z" in equation else {}
    check(hax.einsum(equation, X, Y, **aliases), axes, np.einsum(positional, LEFT, RIGHT))


def test_einsum_with_aliases_and_options() -> None:
    calls = []

    def product(*args: Any, **kwargs: Any) -> jax.Array:
        calls.append(kwargs)
        return jax.lax.dot_general(*args, **kwargs)

    wanted = np.einsum("abc,cbd->abd", LEFT, RIGHT)
    check(hax.einsum("{Z}, {Z} -> ... Out", X, Y, Z=C, Out="d"), (A, B, D), wanted)
    check(hax.einsum("x y z, z y w -> x y w", X, Y, z=C, _dot_general=product), (A, B, D), wanted)
    assert calls == [{"precision": None, "preferred_element_type": None}]
    assert hax.einsum("-> a", X.astype(jnp.bfloat16), preferred_element_type=jnp.float32).dtype == jnp.float32


def test_einsum_without_an_arrow() -> None:
    check(hax.einsum("x y z, x y z", X, X), (), (LEFT * LEFT).sum())
    with pytest.raises(ValueError, match="the expression has no ->"):
        hax.einsum("x y z, z y w", X, Y)
    with pytest.raises(ValueError, match="axis 'q' not found"):
        hax.einsum("{q c} -> c", X, Y)


@pytest.mark.parametrize(
    ("equation", "aliases"),
    [
        ("x y z, z y q > x q", {}),
        ("x y z -> x", {}),
        ("x y, z y w -> x", {}),
        ("{q}, {q} -> a", {}),
        ("x y z, z y w -> x", {"unused": "a"}),
        ("x y z, y z w -> x", {}),
    ],
)
def test_einsum_refuses(equation: str, aliases: Any) -> None:
    with pytest.raises(ValueError, match=r"^einsum"):
        hax.einsum(equation, X, Y, **aliases)


@pytest.mark.parametrize(
    ("order", "at"),
    [
        (("c", "a", "b"), (2, 0, 1)),
        ([C, A, B], (2, 0, 1)),
        ((C, ...), (2, 0, 1)),
        ((..., A), (1, 2, 0)),
        ((C, ..., A), (2, 1, 0)),
        ((..., B, ...), (0, 1, 2)),
        ((Axis("c", 99), "a", Axis("b", 1)), (2, 0, 1)),
        ("x y z -> z x y", (2, 0, 1)),
        ("x ... z -> z ... x", (2, 1, 0)),
        ("{c} -> c ...", (2, 0, 1)),
        ("{b a} -> ... b a", (2, 1, 0)),
    ],
)
def test_rearrange_orders_axes(order: Any, at: tuple[int, ...]) -> None:
    wanted = tuple((A, B, C)[i] for i in at)
    for found in (hax.rearrange(X, order), X.rearrange(order)):
        check(found, wanted, LEFT.transpose(at))
    keyword = "expression" if isinstance(order, str) else "axes"
    check(hax.rearrange(X, **{keyword: order}), wanted, LEFT.transpose(at))


def test_rearrange_splits_and_merges() -> None:
    H = Axis("h", 2)
    split = LEFT.reshape(2, 3, 2, 2)
    check(X.rearrange("x y (h d) -> h x y d", h=H), (H, A, B, Axis("d", 2)), split.transpose(2, 0, 1, 3))
    check(X.rearrange("x y (h d) -> x y h d", h=2, d="size"), (A, B, H, Axis("size", 2)), split)
    check(X.rearrange("{(c: h d)} -> ... d h", h=2), (A, B, Axis("d", 2), H), split.swapaxes(2, 3))
    check(X.rearrange("x y z -> (n: y x) z"), (Axis("n", 6), C), LEFT.transpose(1, 0, 2).reshape(6, 4))
    check(X.rearrange("{a b} -> (n: a b) ..."), (Axis("n", 6), C), LEFT.reshape(6, 4))
    check(X.rearrange("{a} -> (N: a ...)", N="all"), (Axis("all", 24),), LEFT.ravel())


@pytest.mark.parametrize(
    ("order", "keywords"),
    [
        (("a", "b"), {}),
        (("a", "b", "z"), {}),
        (("a", "a", "b", "c"), {}),
        ("x y -> y x", {}),
        ("x y z -> x y", {}),
        ("x y (h d) -> x y h d", {}),
        ("x y (h d) -> x y h d", {"h": 3}),
        ("x y z -> (x y) z", {}),
    ],
)
def test_rearrange_refuses(order: Any, keywords: Any) -> None:
    with pytest.raises(ValueError, match=r"^rearrange"):
        X.rearrange(order, **keywords)


def test_rearrange_takes_one_order() -> None:
    for call in (lambda: X.rearrange(), lambda: X.rearrange("a", "b")):
        with pytest.raises(TypeError, match="expected one order"):
            call()
