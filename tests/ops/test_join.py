"""Joining arrays, taking them apart, putting elements in and leaving them out: laws over one row per function."""

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from measure import flops_bytes

import axonym as axn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from axonym.ops import join
from tests.laws import Row, Smooth, SmoothBulk, Values, assert_close, count_equations, has_row_for_each

A, B, C = axn.make_axes(a=4, b=2, c=3)

ROWS = [
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
]
BULK = [
    Row(
        "concatenate",
        lambda x, y: axn.concatenate("b", [y, x]),
        ("abc", "b"),
        lambda x, y: jnp.concatenate([jnp.broadcast_to(y[:, None], (x.shape[0], *y.shape, x.shape[2])), x], 1),
        "abc",
        lambda x, y: np.concatenate([np.broadcast_to(y[:, None], (x.shape[0], *y.shape, x.shape[2])), x], 1),
        names=lambda x, y: x,
        case="an array that lacks axes",
    ),
    Row(
        "stack",
        lambda x, y: axn.stack("i", [y, x]),
        ("abc", "c"),
        lambda x, y: jnp.stack([jnp.broadcast_to(y, x.shape), x]),
        "iabc",
        lambda x, y: np.stack([np.broadcast_to(y, x.shape), x]),
        names=lambda x, y: f"i{x}",
        case="an array that lacks axes",
    ),
    Row(
        "delete",
        lambda x: axn.delete(x, [0, -1, 0], "a"),
        ("abc",),
        lambda x: jnp.delete(x, jnp.array([0, 3]), 0, assume_unique_indices=True),
        "abc",
        lambda x: np.delete(x, [0, -1, 0], 0),
        names=lambda x: x,
    ),
    Row(
        "insert",
        lambda x, values: axn.insert(x, [3, 1, 3], values, "a"),
        ("abc", "cb"),
        lambda x, values: jnp.insert(x, jnp.array([3, 1, 3]), values.T, 0),
        "abc",
        lambda x, values: np.insert(x, [3, 1, 3], values.T, 0),
        names=lambda x, values: x,
        anonymous=1,
    ),
]
VARIANTS = [
    Row(
        "split",
        lambda x: axn.split(x, "a", {"i": 1, "j": 3}),
        ("abc",),
        lambda x: tuple(lax.split(x, (1, 3), axis=0)),
        ("ibc", "jbc"),
        lambda x: tuple(np.split(x, [1])),
        names=lambda x: (x.replace("a", "i"), x.replace("a", "j")),
        case="dict",
    ),
    Row(
        "split",
        lambda x: axn.split(x, "a", 2),
        ("abc",),
        lambda x: tuple(lax.split(x, (2, 2), axis=0)),
        ("abc", "abc"),
        lambda x: tuple(np.split(x, 2)),
        case="equal parts",
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
        "delete",
        lambda x: axn.delete(x, 1, "c"),
        ("abc",),
        lambda x: jnp.delete(x, 1, 2),
        "abc",
        lambda x: np.delete(x, 1, 2),
        names=lambda x: x,
        case="int",
    ),
    Row(
        "delete",
        lambda x: axn.delete(x, slice(None, None, 2), A),
        ("abc",),
        lambda x: jnp.delete(x, slice(None, None, 2), 0),
        "abc",
        lambda x: np.delete(x, slice(None, None, 2), 0),
        names=lambda x: x,
        case="slice, Axis",
    ),
    Row(
        "delete",
        lambda x: axn.delete(x, [], "a"),
        ("abc",),
        lambda x: jnp.delete(x, slice(0, 0), 0),
        "abc",
        lambda x: np.delete(x, slice(0, 0), 0),
        names=lambda x: x,
        case="none",
    ),
    Row(
        "insert",
        lambda x: axn.insert(x, slice(1, 3), 7.5, "a"),
        ("abc",),
        lambda x: jnp.insert(x, slice(1, 3), 7.5, 0),
        "abc",
        lambda x: np.insert(x, slice(1, 3), 7.5, 0),
        names=lambda x: x,
        case="scalar, slice",
    ),
    Row(
        "insert",
        lambda x, values: axn.insert(x, -1, values.rename({"i": "c"}), "c"),
        ("abc", "iab"),
        lambda x, values: jnp.concatenate([x[..., :-1], values.transpose(1, 2, 0), x[..., -1:]], -1),
        "abc",
        names=lambda x, values: x,
        case="several at one position",
    ),
    Row(
        "insert",
        lambda x, values: axn.insert(x, [3, 0], values.rename({"i": "c"})["c", :2], "c"),
        ("abc", "i"),
        lambda x, values: jnp.insert(x, jnp.array([3, 0]), values[:2], 2),
        "abc",
        lambda x, values: np.insert(x, [3, 0], values[:2], 2),
        names=lambda x, values: x,
        case="one at each position",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS + BULK, join)


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestLaws(Smooth):
    """All laws."""


@pytest.mark.parametrize("row", BULK, ids=str)
class TestBulk(SmoothBulk):
    """The laws of what takes elements in another order."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axes and the positions."""


def ones(*axes: axn.Axis) -> axn.NamedArray:
    return axn.arange(axes, dtype=float)


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


# On Explicit mesh axes: the current mapping, how each array lies, and how the joined one does.
Layout = dict[str, Any]
LAYOUTS: list[tuple[Layout | None, Layout, Layout, Layout]] = [
    (None, {}, {"a": "data"}, {"a": "data"}),
    (None, {"c": "model"}, {"a": "data"}, {"a": "data", "c": "model"}),
    (None, {"a": "data"}, {"c": "data"}, {"a": "data"}),
    (None, {"c": "data"}, {"c": ("data", "model")}, {"c": "data"}),
    (None, {"b": "data"}, {"a": ("data", "model")}, {"a": ("data", "model")}),
    ({"c": "data"}, {"a": "data"}, {"c": "data"}, {"c": "data"}),
    ({"a": "data", "c": "model"}, {"c": "data"}, {"a": "data"}, {"a": "data"}),
]


@pytest.mark.parametrize(("mapping", "first", "second", "expected"), LAYOUTS)
def test_arrays_that_lie_differently(
    mapping: Layout | None, first: Layout, second: Layout, expected: Layout, explicit_mesh: jax.sharding.Mesh
) -> None:
    x, y = (np.random.default_rng(i).normal(size=(8, 4, 8)).astype(np.float32) for i in range(2))
    joined = [("b", axn.concatenate, np.concatenate([x, y], 1)), ("i", axn.stack, np.stack([x, y]))]
    with jax.set_mesh(explicit_mesh):
        turned = axn.NamedArray(y.transpose(2, 0, 1), [*"cab"])
        operands = axn.shard(axn.NamedArray(x, [*"abc"]), first), axn.shard(turned, second)
        with nullcontext() if mapping is None else axn.axis_mapping(mapping):
            for axis, join, values in joined:
                for run in (join, jax.jit(join, static_argnums=0)):
                    result = run(axis, operands)
                    assert jax.typeof(result.array).sharding.spec == axn.pspec_for(result, expected, strict=False)
                    np.testing.assert_array_equal(result.array, values)


def test_inserted_values_take_the_dtype() -> None:
    assert axn.insert(axn.named([1, 2], "x"), 1, 2.7, "x").tolist() == [1, 2, 2]
    assert axn.insert(axn.named([1, 2], "x"), 1, 2.7, "x").dtype == jnp.int32


def test_anonymous_dimensions_stay_in_front() -> None:
    x = ones(A, B, C).untag("b")
    assert axn.delete(x, 0, "a").array.shape == (2, 3, 3)
    inserted = axn.insert(x, 0, axn.named([7.0, 8.0, 9.0], "c"), "a")
    assert inserted.array.shape == (2, 5, 3)
    assert inserted["a", 0].tolist() == [[7.0, 8.0, 9.0]] * 2


def test_an_empty_axis_can_be_filled() -> None:
    assert axn.insert(axn.zeros(axn.Axis("x", 0)), [0, 0], 5, "x").tolist() == [5.0, 5.0]
    assert axn.delete(axn.zeros(axn.Axis("x", 0)), [], "x").shape == {"x": 0}


KNOWN: list[tuple[Any, Any, Any]] = [
    (
        lambda x, y: axn.delete(x, 3, "a"),
        lambda x, y: np.delete(x, 3, 1),
        lambda x, y: [x[:, :3], x[:, 4:]],
    ),
    (
        lambda x, y: axn.delete(x, slice(2, 30), "a"),
        lambda x, y: np.delete(x, slice(2, 30), 1),
        lambda x, y: [x[:, :2], x[:, 30:]],
    ),
    (
        lambda x, y: axn.delete(x, np.array([5, -1, 6]), "a"),
        lambda x, y: np.delete(x, np.array([5, -1, 6]), 1),
        lambda x, y: [x[:, :5], x[:, 7:39]],
    ),
    (
        lambda x, y: axn.insert(x, 3, 7.5, "a"),
        lambda x, y: np.insert(x, 3, 7.5, 1),
        lambda x, y: [x[:, :3], jnp.full((2, 1), 7.5), x[:, 3:]],
    ),
    (
        lambda x, y: axn.insert(x, [40, 0, 9], y, "a"),
        lambda x, y: np.insert(x, np.array([40, 0, 9]), y, 1),
        lambda x, y: [y[:, 1:2], x[:, :9], y[:, 2:], x[:, 9:], y[:, :1]],
    ),
    (
        lambda x, y: axn.insert(x, 0, y, "a"),
        lambda x, y: np.concatenate([y, x], 1),
        lambda x, y: [y, x],
    ),
]


def test_known_places_take_no_more_memory_than_slices_and_their_gradients() -> None:
    # All elements differ, so that a result tells where each of them went.
    arrays = np.arange(80, dtype=np.float32).reshape(2, 40), 80 + np.arange(6, dtype=np.float32).reshape(2, 3)

    def compiled(calls: Any, *given: Any) -> Any:
        def all_of_them(*given: Any) -> Any:
            slopes = [jax.grad(lambda *given, f=f: (f(*given) ** 2).sum(), (0, 1))(*given) for f in calls]
            return [call(*given) for call in calls], slopes

        return jax.jit(all_of_them).lower(*given).compile()

    names = ("b", "a")
    by_name = [lambda x, y, f=f: f(axn.named(x, names), axn.named(y, names)).array for f, *_ in KNOWN]
    by_hand = [lambda x, y, f=f: jnp.concatenate(f(x, y), 1) for *_, f in KNOWN]
    program = compiled(by_name, *arrays)
    assert flops_bytes(program).bytes <= flops_bytes(compiled(by_hand, *arrays)).bytes
    for i, (result, slopes) in enumerate(zip(*program(*arrays), strict=True)):
        expected = KNOWN[i][1](*arrays)
        np.testing.assert_array_equal(result, expected, err_msg=str(i))
        for slope, array in zip(slopes, arrays, strict=True):
            np.testing.assert_array_equal(slope, np.where(np.isin(array, expected), 2 * array, 0), err_msg=str(i))


def test_many_places_are_not_a_slice_each() -> None:
    x = axn.arange(axn.Axis("a", 40))
    every = slice(None, None, 2)
    for by_name, by_hand in (
        (lambda x: axn.delete(x, every, "a"), lambda x: jnp.delete(x, every)),
        (lambda x: axn.insert(x, slice(None), 0, "a"), lambda x: jnp.insert(x, slice(None), 0)),
    ):
        assert count_equations(by_name, x) <= count_equations(by_hand, x.array)


def test_values_in_a_program_take_the_dtype_as_outside() -> None:
    x = axn.zeros(axn.Axis("a", 3), jnp.uint8)
    for run in (lambda f, x: f(x), lambda f, x: jax.jit(f)(x)):
        assert run(lambda x: axn.insert(x, 1, -1, "a"), x).tolist() == [0, 255, 0, 0]


INPUT = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))


def test_positions_of_a_narrow_dtype() -> None:
    x, at = np.arange(300), np.array([100, -1], np.int8)
    assert axn.delete(axn.named(x, "a"), at, "a").tolist() == np.delete(x, [100, -1]).tolist()
    assert axn.insert(axn.named(x, "a"), at, 7, "a").tolist() == np.insert(x, [100, -1], 7).tolist()


BAD: list[tuple[str, Any, type[Exception], str]] = [
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
        "unbind: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "x.unbind(('batch', 'embed'))",
        lambda x: x.unbind(("batch", "embed")),
        OperandError,
        "unbind: expected one axis, got 2: batch, embed",
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
        "split: axis 'batch' would appear twice\n  array has: batch=4, embed=6",
    ),
    (
        "x.split('embed', 4)",
        lambda x: x.split("embed", 4),
        AxisSizeError,
        "split: embed=6 has no 4 equal parts\n  array has: batch=4, embed=6\n"
        "  hint: give the pieces names and sizes, such as [Axis(...), Axis(...)]",
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
        "split: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
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
        '  hint: if one is shifted by a place, cut the longer one: x["batch", :-1] or x["batch", 1:]',
    ),
    (
        "axn.concatenate('embed', [x, x.rename({'batch': 'bach'})])",
        lambda x: axn.concatenate("embed", [x, x.rename({"batch": "bach"})]),
        BroadcastError,
        "concatenate: no operand has the axes of all others\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: bach=4, embed=6\n"
        "  hint: did you mean 'batch'? Or: if the outer product is meant, give an operand the others' axes first: "
        "x.broadcast_axis(bach)",
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
        "concatenate: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.stack('embed', [x, x])",
        lambda x: axn.stack("embed", [x, x]),
        AxisClashError,
        "stack: the arrays already have axis 'embed'\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: batch=4, embed=6\n"
        "  hint: concatenate joins along an existing axis",
    ),
    (
        "axn.concatenate('batch', x)",
        lambda x: axn.concatenate("batch", x),
        OperandError,
        "concatenate: the arrays must be given as a list, not as NamedArray\n  array has: batch=4, embed=6",
    ),
    (
        "axn.concatenate('batch', (y for y in [x]))",
        lambda x: axn.concatenate("batch", (y for y in [x])),
        OperandError,
        "concatenate: the arrays must be given as a list, not as generator",
    ),
    (
        "axn.stack(axn.Axis('heads', 1), x)",
        lambda x: axn.stack(axn.Axis("heads", 1), x),
        OperandError,
        "stack: the arrays must be given as a list, not as NamedArray\n  array has: batch=4, embed=6",
    ),
    (
        "axn.stack('heads', None)",
        lambda x: axn.stack("heads", None),
        OperandError,
        "stack: the arrays must be given as a list, not as NoneType",
    ),
    (
        "axn.split(x, 'embed', 2.0)",
        lambda x: axn.split(x, "embed", 2.0),
        OperandError,
        "split: the pieces must be given as a list of axes, not as float\n  array has: batch=4, embed=6\n"
        '  hint: give each piece its name and size, such as [Axis("first", 2), Axis("second", 3)]',
    ),
    (
        "x.split('embed', axn.Axis('embed', 6))",
        lambda x: x.split("embed", axn.Axis("embed", 6)),
        OperandError,
        "split: the pieces must be given as a list of axes, not as Axis\n  array has: batch=4, embed=6\n"
        '  hint: give each piece its name and size, such as [Axis("first", 2), Axis("second", 3)]',
    ),
    ("axn.stack('heads', [])", lambda x: axn.stack("heads", []), OperandError, "stack: no arrays to join"),
    (
        "axn.stack(axn.Axis('heads', 3), [x, x])",
        lambda x: axn.stack(axn.Axis("heads", 3), [x, x]),
        AxisSizeError,
        "stack: axis 'heads' was given with size 3, but there are 2 arrays",
    ),
    (
        "axn.stack('heads', [x['embed', 0], x['batch', 0]])",
        lambda x: axn.stack("heads", [x["embed", 0], x["batch", 0]]),
        BroadcastError,
        "stack: no operand has the axes of all others\n  operand 1 has: batch=4\n  operand 2 has: embed=6\n"
        "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(embed)",
    ),
    (
        "axn.stack('heads', [x, x['batch', :3]])",
        lambda x: axn.stack("heads", [x, x["batch", :3]]),
        AxisSizeError,
        "stack: axis 'batch' has two sizes: 4 and 3\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: batch=3, embed=6\n"
        '  hint: if one is shifted by a place, cut the longer one: x["batch", :-1] or x["batch", 1:]',
    ),
    (
        "axn.stack('heads', [1.0, x])",
        lambda x: axn.stack("heads", [1.0, x]),
        OperandError,
        "stack: expected a NamedArray, got float\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.delete(x, 0, 'embd')",
        lambda x: axn.delete(x, 0, "embd"),
        AxisNotFoundError,
        "delete: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.delete(x, 0, axn.Axis('embed', 5))",
        lambda x: axn.delete(x, 0, axn.Axis("embed", 5)),
        AxisSizeError,
        "delete: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.delete(x, 6, 'embed')",
        lambda x: axn.delete(x, 6, "embed"),
        AxisSizeError,
        "delete: a position is out of range for embed=6",
    ),
    (
        "axn.delete(x, jnp.array([0]), 'embed')",
        lambda x: axn.delete(x, jnp.array([0]), "embed"),
        OperandError,
        "delete: positions must be static ints, not a plain array\n"
        "  hint: an index array, x[axis, array], may be traced",
    ),
    (
        "axn.delete(x, [True, False], 'embed')",
        lambda x: axn.delete(x, [True, False], "embed"),
        OperandError,
        "delete: positions must be a one-dimensional array of integers, not bool of shape (2,)",
    ),
    (
        "axn.delete(x, [[0]], 'embed')",
        lambda x: axn.delete(x, [[0]], "embed"),
        OperandError,
        "delete: positions must be a one-dimensional array of integers, not int64 of shape (1, 1)",
    ),
    (
        "axn.delete(x.array, 0, 'embed')",
        lambda x: axn.delete(x.array, 0, "embed"),
        OperandError,
        "delete: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.delete(x, 0, ('batch', 'embed'))",
        lambda x: axn.delete(x, 0, ("batch", "embed")),
        OperandError,
        "delete: expected one axis, got 2: batch, embed",
    ),
    (
        "axn.insert(x, -7, 0, 'embed')",
        lambda x: axn.insert(x, -7, 0, "embed"),
        AxisSizeError,
        "insert: a position is out of range for embed=6",
    ),
    (
        "axn.insert(x, 0, axn.ones(axn.Axis('bach', 4)), 'embed')",
        lambda x: axn.insert(x, 0, axn.ones(axn.Axis("bach", 4)), "embed"),
        AxisNotFoundError,
        "insert: no axis named 'bach'\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: bach=4\n"
        "  hint: did you mean 'batch'?",
    ),
    (
        "axn.insert(x, 0, axn.ones(axn.Axis('batch', 3)), 'embed')",
        lambda x: axn.insert(x, 0, axn.ones(axn.Axis("batch", 3)), "embed"),
        AxisSizeError,
        "insert: the values have batch=3, but the size must be 4\n  array has: batch=4, embed=6",
    ),
    (
        "axn.insert(x, [0, 1], axn.ones(axn.Axis('embed', 3)), 'embed')",
        lambda x: axn.insert(x, [0, 1], axn.ones(axn.Axis("embed", 3)), "embed"),
        AxisSizeError,
        "insert: the values have embed=3, but the size must be 2\n  array has: batch=4, embed=6",
    ),
    (
        "axn.insert(x, 0, jnp.ones(4), 'embed')",
        lambda x: axn.insert(x, 0, jnp.ones(4), "embed"),
        OperandError,
        "insert: values of shape (4,) have dimensions without names\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
    (
        "axn.insert(x, 0, 'z', 'embed')",
        lambda x: axn.insert(x, 0, "z", "embed"),
        OperandError,
        "insert: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        "axn.insert(1.0, 0, 0, 'embed')",
        lambda x: axn.insert(1.0, 0, 0, "embed"),
        OperandError,
        "insert: expected a NamedArray, got float\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.split(x, 'embed', {'p': 1, 'q': None})",
        lambda x: axn.split(x, "embed", {"p": 1, "q": None}),
        OperandError,
        "split: axis 'q' needs a size here\n  hint: write Axis(\"q\", size)",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text


@pytest.mark.parametrize("other", [(), (1,), (2,), (3, 1)])
def test_anonymous_dimensions_broadcast(other: tuple[int, ...]) -> None:
    x, y = np.ones((2, 3)), np.zeros((*other, 3))
    one, two = axn.NamedArray(jnp.asarray(x), ("a",)), axn.NamedArray(jnp.asarray(y), ("a",))
    both = np.broadcast_arrays(x, y)
    for operands, arrays in (((one, two), both), ((two, one), both[::-1])):
        np.testing.assert_array_equal(axn.concatenate("a", operands).array, np.concatenate(arrays, -1))
        np.testing.assert_array_equal(axn.stack("b", operands).array, np.stack(arrays, -2))
