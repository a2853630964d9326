"""Several `...` on the right of an expression, against numpy."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

from typing import Any

import haliax as hax
import numpy as np
import pytest
from haliax import Axis, NamedArray

A, B, C, D = hax.make_axes(a=2, b=3, c=4, d=5)
LEFT = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
RIGHT = np.random.default_rng(1).normal(size=(4, 3, 5)).astype(np.float32)
X, Y = hax.named(LEFT, (A, B, C)), hax.named(RIGHT, (C, B, D))
CUBE = np.arange(720.0, dtype=np.float32).reshape(2, 3, 4, 5, 6)
SIZES = dict(zip("bdhwc", CUBE.shape, strict=True))


def check(found: Any, axes: tuple[Axis, ...], values: Any) -> None:
    assert type(found) is NamedArray
    assert found.axes == axes
    np.testing.assert_allclose(np.asarray(found.array), values, rtol=1e-5, atol=1e-5)


# The first of several `...` takes the axes that come next, the last one what is left.
@pytest.mark.parametrize(
    ("expression", "order"),
    [
        ("b d h w c -> d ... c ... h", "dbcwh"),
        ("b d h w c -> ... c ...", "bdhwc"),
        ("b d h w c -> c ...", "cbdhw"),
        ("x ... y -> ... y ... x", "dhwcb"),
        ("{c d} -> d ... c ...", "dbchw"),
        ("{b} -> h ... b ...", "hbdwc"),
        ("{b h} -> ... w h", "bdcwh"),
        ("{first h} -> ... h ... first", "dhwcb"),
    ],
)
def test_rearrange_with_several_ellipses(expression: str, order: str) -> None:
    x = hax.named(CUBE, SIZES)
    aliases = {"first": "b"} if "first" in expression else {}
    wanted = tuple(Axis(name, SIZES[name]) for name in order)
    check(hax.rearrange(x, expression, **aliases), wanted, np.einsum(f"bdhwc->{order}", CUBE))


def test_several_ellipses_between_split_and_merged_axes() -> None:
    x, J = hax.named(CUBE, SIZES), Axis("j", 2)
    split = CUBE.reshape(2, 3, 4, 5, 3, 2)
    ordered = hax.rearrange(x, "b ... (i j) -> ... i ... (m: j b)", j=J)
    axes = (*(Axis(name, SIZES[name]) for name in "dhw"), Axis("i", 3), Axis("m", 4))
    check(ordered, axes, np.einsum("bdhwij->dhwijb", split).reshape(3, 4, 5, 3, 4))
    named = hax.rearrange(x, "{(c: i c) b} -> c ... (m: b i) ...", c=J)
    axes = (J, Axis("m", 6), *(Axis(name, SIZES[name]) for name in "dhw"))
    check(named, axes, np.einsum("bdhwij->jbidhw", split).reshape(2, 6, 3, 4, 5))


@pytest.mark.parametrize(
    ("equation", "positional", "axes"),
    [
        ("{c} -> ... c ...", "abc,cbd->abcd", (A, B, C, D)),
        ("{} -> d ... b ...", "abc,cbd->dabc", (D, A, B, C)),
        ("{b c}, {c} -> ... d ... b", "abc,cbd->adb", (A, D, B)),
        ("-> c ... a ...", "abc,cbd->cabd", (C, A, B, D)),
        ("{... c} -> d ... a ...", "abc,cbd->dab", (D, A, B)),
        ("{sum Out} -> Out ... a ...", "abc,cbd->dab", (D, A, B)),
    ],
)
def test_einsum_with_several_ellipses(equation: str, positional: str, axes: Any) -> None:
    aliases = {"sum": C, "Out": "d"} if "Out" in equation else {}
    check(hax.einsum(equation, X, Y, **aliases), axes, np.einsum(positional, LEFT, RIGHT))


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("x y z -> ... q ...", "'q' is not on the left"),
        ("{a} -> ... a ... a", "'a' appears twice"),
        ("... x ... -> x ...", "'...' appears twice"),
        ("x y -> ... x ...", "the array has 3 axes, but the expression has 2"),
    ],
)
def test_an_expression_with_several_ellipses_that_is_wrong(expression: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        hax.rearrange(X, expression)
