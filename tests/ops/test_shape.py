"""Names, order and grouping of axes: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, BroadcastError, LostAxisError, OperandError
from axonym.ops import shape
from tests.laws import Row, Smooth, Values, count_equations, has_row_for_each

A, B, C = axn.make_axes(a=4, b=2, c=3)


def merged(stored: str, old: str, new: str) -> str:
    """Put `new` where the first of `old` stands."""
    first = min(map(stored.index, old))
    return "".join(new if at == first else name for at, name in enumerate(stored) if at == first or name not in old)


ROWS = [
    Row(
        "broadcast_arrays",
        lambda x, y: axn.broadcast_arrays(x, y),
        ("b", "abc"),
        lambda x, y: (lax.broadcast_in_dim(x, y.shape, (1,)), y),
        ("abc", "abc"),
        lambda x, y: np.broadcast_arrays(x[:, None], y),
        names=lambda x, y: (y, y),
    ),
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
        "squeeze",
        lambda x: axn.squeeze(axn.broadcast_axis(x, {"i": 1}), "i"),
        ("ab",),
        lambda x: jnp.squeeze(x[None], 0),
        "ab",
        lambda x: x,
        names=lambda x: x,
        speaker="broadcast_axis",
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
        "broadcast_arrays",
        lambda x, y: axn.broadcast_arrays(x, y, require_subset=False),
        ("bc", "ab"),
        lambda x, y: (jnp.broadcast_to(x, (4, 2, 3)), jnp.broadcast_to(y[..., None], (4, 2, 3))),
        ("abc", "abc"),
        names=lambda x, y: (f"a{x}", f"a{x}"),
        case="outer",
    ),
    Row(
        "broadcast_arrays",
        lambda x, y: axn.broadcast_arrays(x, y, ensure_order=False),
        ("bc", "abc"),
        lambda x, y: (jnp.broadcast_to(x, y.shape), y),
        ("abc", "abc"),
        names=lambda x, y: (f"a{x}", y),
        case="own order",
    ),
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
    assert count_equations(lambda x: x.flatten("f"), x) <= count_equations(lambda x: x.reshape(-1), x.array)


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
    assert count_equations(lambda x: x.untag("a").tag("a"), x) == 0
    assert count_equations(lambda x: x.untag("c"), x) <= count_equations(lambda x: x.transpose(2, 0, 1), x.array)


def test_untag_puts_axes_behind_the_anonymous_ones() -> None:
    assert ones(A, B, C).untag("a").untag("c").array.shape == (4, 3, 2)


def test_an_order_that_is_there_already_costs_nothing() -> None:
    x = ones(A, B)
    assert x.rearrange((..., "b")).array is x.array
    assert x.broadcast_to((A, B)).array is x.array
    assert axn.broadcast_axis(x, A).array is x.array


def test_broadcast_arrays_passes_scalars_and_none_on() -> None:
    x, y = ones(A, B), ones(B)
    first, second, third, fourth = axn.broadcast_arrays(None, y, 2.0, x)
    assert (first, third) == (None, 2.0)
    assert second.axes == (A, B)
    assert fourth.array is x.array
    assert axn.broadcast_arrays(1, None) == (1, None)
    assert axn.broadcast_arrays() == ()


def test_squeeze_of_several_axes() -> None:
    x = axn.arange((axn.Axis("i", 1), A, axn.Axis("j", 1)))
    assert x.squeeze(("j", "i")).axes == (A,)
    assert x.untag("a").squeeze({"i": 1, "j": 1}).array.shape == (4,)
    with pytest.raises(LostAxisError, match=r"^squeeze: an array of shape \(4, 1\) cannot have the 3 axes"):
        jax.vmap(lambda x: x.squeeze("i"))(x)


def test_rename_keeps_the_array() -> None:
    x = ones(A, B)
    assert x.rename({"a": "b", "b": "a"}).array is x.array


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
        "rename: axis 'embed' would appear twice\n  array has: batch=4, embed=6",
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
        "rename: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "x['batch', 0, 'embed', 0].flatten(axn.Axis('one', 5))",
        lambda x: x["batch", 0, "embed", 0].flatten(axn.Axis("one", 5)),
        AxisSizeError,
        "flatten: axis 'one' was given with size 5, but no axes merge to size 1",
    ),
    (
        "x.rename([('batch', 'b')])",
        lambda x: x.rename([("batch", "b")]),
        OperandError,
        'rename: expected a dict of old names to new ones, got list\n  hint: write x.rename({"old": "new"})',
    ),
    (
        "x.rename({0: 'b'})",
        lambda x: x.rename({0: "b"}),
        OperandError,
        'rename: 0 is a position, but axes have names\n  array has: batch=4, embed=6\n  hint: write "batch"',
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
        "rearrange: axis 'embed' would appear twice\n  array has: batch=4, embed=6",
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
        'rearrange: 1 is a position, but axes have names\n  array has: batch=4, embed=6\n  hint: write "embed"',
    ),
    (
        "axn.rearrange(x.array, ('batch', ...))",
        lambda x: axn.rearrange(x.array, ("batch", ...)),
        OperandError,
        "rearrange: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
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
        "tag: axis 'embed' would appear twice\n  array has: anonymous (4,), embed=6",
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
        "untag: axis 'batch' would appear twice\n  array has: batch=4, embed=6",
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
        "untag: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.tag(x.array, 'batch')",
        lambda x: axn.tag(x.array, "batch"),
        OperandError,
        "tag: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
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
        "broadcast_axis: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
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
        "flatten_axes: axis 'embed' would appear twice\n  array has: batch=4, embed=6",
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
        "flatten_axes: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
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
        "unflatten_axis: axis 'batch' would appear twice\n  array has: batch=4, embed=6",
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
        "unflatten_axis: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.broadcast_arrays(x, y)",
        lambda x: axn.broadcast_arrays(x, axn.ones(axn.Axis("bach", 4))),
        BroadcastError,
        "broadcast_arrays: no operand has the axes of all others\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: bach=4\n"
        "  hint: did you mean 'batch'? Or: if the outer product is meant, give an operand the others' axes first: "
        "x.broadcast_axis(bach)",
    ),
    (
        "axn.broadcast_arrays(x, axn.ones(axn.Axis('embed', 1)))",
        lambda x: axn.broadcast_arrays(x, axn.ones(axn.Axis("embed", 1))),
        AxisSizeError,
        "broadcast_arrays: axis 'embed' has two sizes: 6 and 1\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=1\n"
        '  hint: an axis of size 1 is not stretched: drop it, x["embed", 0]',
    ),
    (
        "axn.broadcast_arrays(x, x.array)",
        lambda x: axn.broadcast_arrays(x, x.array),
        OperandError,
        "broadcast_arrays: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "x.squeeze('embed')",
        lambda x: x.squeeze("embed"),
        AxisSizeError,
        "squeeze: axis 'embed' has size 6, not 1\n"
        "  array has: batch=4, embed=6\n"
        "  hint: x['embed', 0] takes the first of its elements",
    ),
    (
        "x.squeeze('embd')",
        lambda x: x.squeeze("embd"),
        AxisNotFoundError,
        "squeeze: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "x.squeeze(axn.Axis('embed', 1))",
        lambda x: x.squeeze(axn.Axis("embed", 1)),
        AxisSizeError,
        "squeeze: axis 'embed' was given with size 1, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "x.squeeze(None)",
        lambda x: x.squeeze(None),
        OperandError,
        "squeeze: None is neither an Axis nor the name of one\n"
        '  hint: an axis is written as Axis("batch", 32), or as "batch"',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text
