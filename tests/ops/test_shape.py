"""Names, order and grouping of axes, joining and taking apart: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import shape
from tests.laws import Row, Smooth, Values, assert_close, has_row_for_each, primitives

A, B, C = axn.make_axes(a=4, b=2, c=3)


def merged(stored: str, old: str, new: str) -> str:
    """Put `new` where the first of `old` stands."""
    first = min(map(stored.index, old))
    return "".join(new if at == first else name for at, name in enumerate(stored) if at == first or name not in old)


ROWS = [
    Row(
        "broadcast_axis",
        lambda x: axn.broadcast_axis(x, (axn.Axis("i", 2), axn.Axis("j", 5))),
        ("ab",),
        lambda x: jnp.broadcast_to(x, (2, 5, *x.shape)),
        "ijab",
        lambda x: np.broadcast_to(x, (2, 5, *x.shape)),
        names=lambda x: f"ij{x}",
    ),
    Row(
        "broadcast_to",
        lambda x: axn.broadcast_to(x, (C, B, A)),
        ("ab",),
        lambda x: jnp.broadcast_to(x.T, (3, 2, 4)),
        "cba",
        lambda x: np.broadcast_to(x.T, (3, 2, 4)),
        names=lambda x: "cba",
        any_size=False,
    ),
    Row(
        "concatenate",
        lambda x, y: axn.concatenate("b", [x, y]),
        ("abc", "abc"),
        lambda x, y: jnp.concatenate([x, y], 1),
        "abc",
        lambda x, y: np.concatenate([x, y], 1),
        names=lambda x, y: x,
    ),
    Row(
        "flatten_axes",
        lambda x: axn.flatten_axes(x, ("c", "a"), "f"),
        ("abc",),
        lambda x: x.transpose(2, 0, 1).reshape(x.shape[2] * x.shape[0], x.shape[1]),
        "fb",
        lambda x: x.transpose(2, 0, 1).reshape(-1, x.shape[1]),
        names=lambda x: merged(x, "ca", "f"),
    ),
    Row(
        "flatten_axes",
        lambda x: axn.flatten_axes(x, ("b", "c"), "f"),
        ("abc",),
        lambda x: x.reshape(x.shape[0], x.shape[1] * x.shape[2]),
        "af",
        names=lambda x: merged(x, "bc", "f"),
        case="neighbours",
    ),
    Row(
        "rearrange",
        lambda x: axn.rearrange(x, ("c", ..., "a")),
        ("abc",),
        lambda x: x.transpose(2, 1, 0),
        "cba",
        lambda x: x.transpose(2, 1, 0),
        names=lambda x: "cba",
    ),
    Row(
        "rename",
        lambda x: axn.rename(x, {"a": "b", "b": "a", "c": "j"}),
        ("abc",),
        lambda x: x,
        "baj",
        lambda x: x,
        names=lambda x: x.translate(str.maketrans("abc", "baj")),
    ),
    Row(
        "split",
        lambda x: axn.split(x, "a", (axn.Axis("i", 1), axn.Axis("j", 3))),
        ("abc",),
        lambda x: tuple(lax.split(x, (1, 3), axis=0)),
        ("ibc", "jbc"),
        lambda x: tuple(np.split(x, [1])),
        names=lambda x: (x.replace("a", "i"), x.replace("a", "j")),
    ),
    Row(
        "stack",
        lambda x, y: axn.stack("i", [x, y]),
        ("abc", "abc"),
        lambda x, y: jnp.stack([x, y]),
        "iabc",
        lambda x, y: np.stack([x, y]),
        names=lambda x, y: f"i{x}",
    ),
    Row(
        "unbind",
        lambda x: axn.unbind(x, "c"),
        ("abc",),
        lambda x: tuple(lax.index_in_dim(x, i, 2, keepdims=False) for i in range(3)),
        ("ab", "ab", "ab"),
        lambda x: tuple(np.moveaxis(x, 2, 0)),
        names=lambda x: (x.replace("c", ""),) * 3,
    ),
    Row(
        "unflatten_axis",
        lambda x: axn.unflatten_axis(x, "a", (axn.Axis("i", 2), axn.Axis("j", 2))),
        ("abc",),
        lambda x: x.reshape(2, 2, *x.shape[1:]),
        "ijbc",
        lambda x: x.reshape(2, 2, *x.shape[1:]),
        names=lambda x: x.replace("a", "ij"),
    ),
]
VARIANTS = [
    Row(
        "broadcast_axis",
        lambda x: axn.broadcast_axis(x, (A, axn.Axis("j", 5), B)),
        ("ab",),
        lambda x: jnp.broadcast_to(x, (5, *x.shape)),
        "jab",
        names=lambda x: f"j{x}",
        case="adds only what is missing",
    ),
    Row(
        "rearrange",
        lambda x: axn.rearrange(x, (..., axn.Axis("a", 4))),
        ("abc",),
        lambda x: x,
        "abc",
        names=lambda x: f"{x.replace('a', '')}a",
        case="Axis",
    ),
    Row(
        "rename",
        lambda x: axn.rename(x, {A: axn.Axis("q", 4)}),
        ("abc",),
        lambda x: x,
        "qbc",
        names=lambda x: x.replace("a", "q"),
        case="Axis",
    ),
    Row(
        "concatenate",
        lambda x, y: axn.concatenate(axn.Axis("b", 4), [x, y]),
        ("abc", "abc"),
        lambda x, y: jnp.concatenate([x, y.astype(x.dtype)], 1),
        "abc",
        names=lambda x, y: x,
        case="promotes, checks the Axis",
        domains=("real", "int"),
    ),
    Row(
        "unflatten_axis",
        lambda x: axn.unflatten_axis(x, A, {"a": 2, "q": 2}),
        ("abc",),
        lambda x: x.reshape(2, 2, *x.shape[1:]),
        "aqbc",
        names=lambda x: x.replace("a", "aq"),
        case="keeps a name",
    ),
    Row(
        "flatten_axes",
        lambda x: axn.flatten_axes(x, ("b", "c"), axn.Axis("b", 6)),
        ("abc",),
        lambda x: x.reshape(x.shape[0], -1),
        "ab",
        names=lambda x: merged(x, "bc", "b"),
        case="keeps a name",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS, shape, without=["flatten", "tag", "untag"])


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestLaws(Smooth):
    """All laws."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axes."""


def ones(*axes: axn.Axis) -> axn.NamedArray:
    return axn.arange(axes, dtype=float)


def test_flatten_merges_in_storage_order() -> None:
    x = ones(A, B)
    assert x.flatten("f").tolist() == list(range(8))
    assert x.rearrange(("b", "a")).flatten("f").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert x.flatten("f").names == ("f",)
    assert primitives(lambda x: x.flatten("f"), x) == ["reshape"]


def test_flatten_of_no_axes_gives_one_of_size_one() -> None:
    x = axn.named(3.0, ()).flatten("f")
    assert (x.axes, x.tolist()) == ((axn.Axis("f", 1),), [3.0])


def test_untag_and_tag_are_inverse() -> None:
    x = ones(A, B, C)
    there = x.untag("c", "a")
    assert (there.names, there.array.shape, there.shape) == (("b",), (3, 4, 2), {"b": 2})
    back = there.tag("c", "a")
    assert back.names == ("c", "a", "b")
    assert axn.array_equal(back, x)
    assert primitives(lambda x: x.untag("a").tag("a"), x) == []
    assert primitives(lambda x: x.untag("c"), x) == ["transpose"]


def test_untag_puts_axes_behind_the_anonymous_ones() -> None:
    assert ones(A, B, C).untag("a").untag("c").array.shape == (4, 3, 2)


def test_an_order_that_is_there_already_costs_nothing() -> None:
    x = ones(A, B)
    assert x.rearrange((..., "b")).array is x.array
    assert x.broadcast_to((A, B)).array is x.array
    assert axn.broadcast_axis(x, A).array is x.array


def test_rename_keeps_the_array() -> None:
    x = ones(A, B)
    assert x.rename({"a": "b", "b": "a"}).array is x.array


def test_unbind_of_an_empty_axis_gives_nothing() -> None:
    assert axn.zeros((A, axn.Axis("e", 0))).unbind("e") == ()


def test_join_one_array() -> None:
    x = ones(A)
    assert axn.stack("i", [x]).shape == {"i": 1, "a": 4}
    assert_close(axn.concatenate("a", [x]).array, x.array)


def test_concatenate_of_different_sizes() -> None:
    x, y = ones(A, B), ones(C, B).rename({"c": "a"}).rearrange(("b", "a"))
    joined = axn.concatenate("a", (x, y))
    assert joined.shape == {"a": 7, "b": 2}
    np.testing.assert_array_equal(joined.array, np.concatenate([x.array, np.asarray(y.array).T]))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_splitting_and_merging_a_sharded_axis(kind: str, request: pytest.FixtureRequest) -> None:
    mesh = request.getfixturevalue(f"{kind}_mesh")
    x = axn.arange((axn.Axis("a", 8), axn.Axis("b", 4)), dtype=float)
    with jax.set_mesh(mesh), axn.axis_mapping({"a": "data", "b": "model", "h": "data", "q": "model"}):
        sharded = axn.shard(x)
        split = jax.jit(lambda x: x.unflatten_axis("a", {"h": 4, "d": 2}))(sharded)
        assert axn.array_equal(split.flatten_axes(("h", "d"), "a"), x)
        merged = jax.jit(lambda x: x.flatten_axes(("b", "a"), "q"))(sharded)
        np.testing.assert_array_equal(merged.array, np.asarray(x.array).T.ravel())
        np.testing.assert_array_equal(jax.jit(lambda x: x.flatten("all"))(sharded).array, np.arange(32))


INPUT = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))

BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "x.rename({'bach': 'b'})",
        lambda x: x.rename({"bach": "b"}),
        AxisNotFoundError,
        "rename: no axis named 'bach'\n  array has: batch=4, embed=6\n  hint: did you mean 'batch'?",
    ),
    (
        "x.rename({'batch': 'embed'})",
        lambda x: x.rename({"batch": "embed"}),
        AxisClashError,
        "rename: axis 'embed' would stand twice\n  array has: batch=4, embed=6",
    ),
    (
        "x.rename({axn.Axis('batch', 5): 'b'})",
        lambda x: x.rename({axn.Axis("batch", 5): "b"}),
        AxisSizeError,
        "rename: axis 'batch' was given with size 5, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "x.rename({'batch': axn.Axis('b', 5)})",
        lambda x: x.rename({"batch": axn.Axis("b", 5)}),
        AxisSizeError,
        "rename: axis 'batch' was given with size 5, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "axn.rename(x.array, {'batch': 'b'})",
        lambda x: axn.rename(x.array, {"batch": "b"}),
        OperandError,
        "rename: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "x.rename({0: 'b'})",
        lambda x: x.rename({0: "b"}),
        OperandError,
        'rename: 0 is neither an Axis nor the name of one\n  hint: write an axis as Axis("batch", 32) or as "batch"',
    ),
    (
        "x.rearrange(('embed', 'bach'))",
        lambda x: x.rearrange(("embed", "bach")),
        AxisNotFoundError,
        "rearrange: no axis named 'bach'\n  array has: batch=4, embed=6\n  hint: did you mean 'batch'?",
    ),
    (
        "x.rearrange(('embed',))",
        lambda x: x.rearrange(("embed",)),
        AxisNotFoundError,
        "rearrange: the order leaves out batch\n"
        "  array has: batch=4, embed=6\n"
        "  hint: name all axes, or write ... for the others",
    ),
    (
        "x.rearrange(('embed', 'embed', 'batch'))",
        lambda x: x.rearrange(("embed", "embed", "batch")),
        AxisClashError,
        "rearrange: axis 'embed' would stand twice\n  array has: batch=4, embed=6",
    ),
    (
        "x.rearrange((..., 'embed', ...))",
        lambda x: x.rearrange((..., "embed", ...)),
        AxisClashError,
        "rearrange: the order has more than one ...\n  array has: batch=4, embed=6\n  hint: write ... once",
    ),
    (
        "x.rearrange((axn.Axis('embed', 5), ...))",
        lambda x: x.rearrange((axn.Axis("embed", 5), ...)),
        AxisSizeError,
        "rearrange: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "x.rearrange((1, 0))",
        lambda x: x.rearrange((1, 0)),
        OperandError,
        'rearrange: 1 is neither an Axis nor the name of one\n  hint: write an axis as Axis("batch", 32) or as "batch"',
    ),
    (
        "axn.rearrange(x.array, ('batch', ...))",
        lambda x: axn.rearrange(x.array, ("batch", ...)),
        OperandError,
        "rearrange: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "x.tag('a')",
        lambda x: x.tag("a"),
        AxisSizeError,
        "tag: 1 names for 0 anonymous dimensions\n  array has: batch=4, embed=6\n  names: ['a']",
    ),
    (
        "x.untag('batch').tag()",
        lambda x: x.untag("batch").tag(),
        AxisSizeError,
        "tag: 0 names for 1 anonymous dimensions\n  array has: anonymous (4,), embed=6\n  names: []",
    ),
    (
        "x.untag('batch').tag('embed')",
        lambda x: x.untag("batch").tag("embed"),
        AxisClashError,
        "tag: axis 'embed' would stand twice\n  array has: anonymous (4,), embed=6",
    ),
    (
        "x.untag('batch').tag(axn.Axis('batch', 3))",
        lambda x: x.untag("batch").tag(axn.Axis("batch", 3)),
        AxisSizeError,
        "tag: axis 'batch' was given with size 3, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "x.untag('heads')",
        lambda x: x.untag("heads"),
        AxisNotFoundError,
        "untag: no axis named 'heads'\n  array has: batch=4, embed=6",
    ),
    (
        "x.untag('batch', 'batch')",
        lambda x: x.untag("batch", "batch"),
        AxisClashError,
        "untag: axis 'batch' would stand twice\n  array has: batch=4, embed=6",
    ),
    (
        "x.untag(axn.Axis('batch', 3))",
        lambda x: x.untag(axn.Axis("batch", 3)),
        AxisSizeError,
        "untag: axis 'batch' was given with size 3, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "axn.untag(x.array, 'batch')",
        lambda x: axn.untag(x.array, "batch"),
        OperandError,
        "untag: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.tag(x.array, 'batch')",
        lambda x: axn.tag(x.array, "batch"),
        OperandError,
        "tag: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "x.broadcast_axis(axn.Axis('batch', 3))",
        lambda x: x.broadcast_axis(axn.Axis("batch", 3)),
        AxisSizeError,
        "broadcast_axis: axis 'batch' was given with size 3, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "x.broadcast_axis('heads')",
        lambda x: x.broadcast_axis("heads"),
        OperandError,
        "broadcast_axis: axis 'heads' needs a size here\n  hint: write Axis(\"heads\", size)",
    ),
    (
        "axn.broadcast_axis(x.array, axn.Axis('heads', 3))",
        lambda x: axn.broadcast_axis(x.array, axn.Axis("heads", 3)),
        OperandError,
        "broadcast_axis: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "x.broadcast_to((axn.Axis('batch', 4), axn.Axis('heads', 2)))",
        lambda x: x.broadcast_to((axn.Axis("batch", 4), axn.Axis("heads", 2))),
        AxisNotFoundError,
        "broadcast_to: the array has axis 'embed', which the result would not have\n"
        "  array has: batch=4, embed=6\n"
        "  asked for: batch=4, heads=2",
    ),
    (
        "x.broadcast_to((axn.Axis('batch', 4), axn.Axis('embed', 5)))",
        lambda x: x.broadcast_to((axn.Axis("batch", 4), axn.Axis("embed", 5))),
        AxisSizeError,
        "broadcast_to: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "x.flatten_axes(('batch', 'emb'), 'f')",
        lambda x: x.flatten_axes(("batch", "emb"), "f"),
        AxisNotFoundError,
        "flatten_axes: no axis named 'emb'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x.flatten_axes(('batch', 'embed'), axn.Axis('f', 23))",
        lambda x: x.flatten_axes(("batch", "embed"), axn.Axis("f", 23)),
        AxisSizeError,
        "flatten_axes: axis 'f' was given with size 23, but the axes merge to size 24\n  array has: batch=4, embed=6",
    ),
    (
        "x.flatten_axes('batch', 'embed')",
        lambda x: x.flatten_axes("batch", "embed"),
        AxisClashError,
        "flatten_axes: axis 'embed' would stand twice\n  array has: batch=4, embed=6",
    ),
    (
        "x.flatten_axes((axn.Axis('batch', 3), 'embed'), 'f')",
        lambda x: x.flatten_axes((axn.Axis("batch", 3), "embed"), "f"),
        AxisSizeError,
        "flatten_axes: axis 'batch' was given with size 3, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "axn.flatten_axes(x.array, 'batch', 'f')",
        lambda x: axn.flatten_axes(x.array, "batch", "f"),
        OperandError,
        "flatten_axes: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "x.unflatten_axis('emb', {'h': 2, 'd': 3})",
        lambda x: x.unflatten_axis("emb", {"h": 2, "d": 3}),
        AxisNotFoundError,
        "unflatten_axis: no axis named 'emb'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x.unflatten_axis('embed', {'h': 2, 'd': 4})",
        lambda x: x.unflatten_axis("embed", {"h": 2, "d": 4}),
        AxisSizeError,
        "unflatten_axis: h=2, d=4 multiply to 8, not to embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "x.unflatten_axis('embed', {'h': 2, 'batch': 3})",
        lambda x: x.unflatten_axis("embed", {"h": 2, "batch": 3}),
        AxisClashError,
        "unflatten_axis: axis 'batch' would stand twice\n  array has: batch=4, embed=6",
    ),
    (
        "x.unflatten_axis('embed', ('h', 'd'))",
        lambda x: x.unflatten_axis("embed", ("h", "d")),
        OperandError,
        "unflatten_axis: axis 'h' needs a size here\n  hint: write Axis(\"h\", size)",
    ),
    (
        "x.unflatten_axis(axn.Axis('embed', 5), {'h': 2, 'd': 3})",
        lambda x: x.unflatten_axis(axn.Axis("embed", 5), {"h": 2, "d": 3}),
        AxisSizeError,
        "unflatten_axis: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.unflatten_axis(x.array, 'embed', {'h': 6})",
        lambda x: axn.unflatten_axis(x.array, "embed", {"h": 6}),
        OperandError,
        "unflatten_axis: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "x.unbind('emb')",
        lambda x: x.unbind("emb"),
        AxisNotFoundError,
        "unbind: no axis named 'emb'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x.unbind(axn.Axis('batch', 3))",
        lambda x: x.unbind(axn.Axis("batch", 3)),
        AxisSizeError,
        "unbind: axis 'batch' was given with size 3, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "axn.unbind(x.array, 'batch')",
        lambda x: axn.unbind(x.array, "batch"),
        OperandError,
        "unbind: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "x.unbind(('batch', 'embed'))",
        lambda x: x.unbind(("batch", "embed")),
        OperandError,
        "unbind: one axis goes here, not 2: batch, embed",
    ),
    (
        "x.split('emb', (axn.Axis('a', 2), axn.Axis('b', 4)))",
        lambda x: x.split("emb", (axn.Axis("a", 2), axn.Axis("b", 4))),
        AxisNotFoundError,
        "split: no axis named 'emb'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x.split('embed', (axn.Axis('a', 2), axn.Axis('b', 3)))",
        lambda x: x.split("embed", (axn.Axis("a", 2), axn.Axis("b", 3))),
        AxisSizeError,
        "split: pieces of sizes (2, 3) add up to 5, not to embed=6\n  array has: batch=4, embed=6",
    ),
    (
        "x.split('embed', (axn.Axis('a', 2), axn.Axis('batch', 4)))",
        lambda x: x.split("embed", (axn.Axis("a", 2), axn.Axis("batch", 4))),
        AxisClashError,
        "split: axis 'batch' would stand twice\n  array has: batch=4, embed=6",
    ),
    (
        "x.split('embed', ('a', 'b'))",
        lambda x: x.split("embed", ("a", "b")),
        OperandError,
        "split: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        "axn.split(x.array, 'embed', (axn.Axis('a', 6),))",
        lambda x: axn.split(x.array, "embed", (axn.Axis("a", 6),)),
        OperandError,
        "split: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.concatenate('embed', [])",
        lambda x: axn.concatenate("embed", []),
        OperandError,
        "concatenate: no arrays to join",
    ),
    (
        "axn.concatenate('heads', [x, x])",
        lambda x: axn.concatenate("heads", [x, x]),
        AxisNotFoundError,
        "concatenate: no axis named 'heads'\n  operand 1 has: batch=4, embed=6\n  operand 2 has: batch=4, embed=6",
    ),
    (
        "axn.concatenate('embed', [x, x['batch', :3]])",
        lambda x: axn.concatenate("embed", [x, x["batch", :3]]),
        AxisSizeError,
        "concatenate: axis 'batch' has two sizes: 4 and 3\n"
        "  operand 1 has: batch=4\n"
        "  operand 2 has: batch=3\n"
        "  hint: rename one of the two 'batch' axes",
    ),
    (
        "axn.concatenate('embed', [x, x.rename({'batch': 'bach'})])",
        lambda x: axn.concatenate("embed", [x, x.rename({"batch": "bach"})]),
        AxisNotFoundError,
        "concatenate: no axis named 'batch'\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: bach=4, embed=6\n"
        "  hint: did you mean 'bach'?",
    ),
    (
        "axn.concatenate(axn.Axis('embed', 7), [x, x])",
        lambda x: axn.concatenate(axn.Axis("embed", 7), [x, x]),
        AxisSizeError,
        "concatenate: axis 'embed' was given with size 7, but the sizes add up to 12",
    ),
    (
        "axn.concatenate('embed', [x, x.array])",
        lambda x: axn.concatenate("embed", [x, x.array]),
        OperandError,
        "concatenate: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.stack('embed', [x, x])",
        lambda x: axn.stack("embed", [x, x]),
        AxisClashError,
        "stack: the arrays already have axis 'embed'\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: batch=4, embed=6\n"
        "  hint: concatenate joins along an axis that is there",
    ),
    ("axn.stack('heads', [])", lambda x: axn.stack("heads", []), OperandError, "stack: no arrays to join"),
    (
        "axn.stack(axn.Axis('heads', 3), [x, x])",
        lambda x: axn.stack(axn.Axis("heads", 3), [x, x]),
        AxisSizeError,
        "stack: axis 'heads' was given with size 3 for 2 arrays",
    ),
    (
        "axn.stack('heads', [x, x['batch', 0]])",
        lambda x: axn.stack("heads", [x, x["batch", 0]]),
        AxisNotFoundError,
        "stack: no axis named 'batch'\n  operand 1 has: batch=4, embed=6\n  operand 2 has: embed=6",
    ),
    (
        "axn.stack('heads', [x, x['batch', :3]])",
        lambda x: axn.stack("heads", [x, x["batch", :3]]),
        AxisSizeError,
        "stack: axis 'batch' has two sizes: 4 and 3\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: batch=3, embed=6\n"
        "  hint: rename one of the two 'batch' axes",
    ),
    (
        "axn.stack('heads', [1.0, x])",
        lambda x: axn.stack("heads", [1.0, x]),
        OperandError,
        'stack: expected a NamedArray, got float\n  hint: name it first: axn.named(array, ("batch", ...))',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text
