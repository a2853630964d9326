"""Repeating, tiling and padding: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import extend
from tests.laws import Row, SmoothBulk, Values, has_row_for_each, primitives

MODES = ("edge", "linear_ramp", "maximum", "mean", "median", "minimum", "reflect", "symmetric", "wrap")


def repeated(x: Any, counts: Any, total: int) -> Any:
    """Repeat along the last axis of a matrix, each row in its own way."""
    rows = [jnp.repeat(row, n, total_repeat_length=total) for row, n in zip(x, counts, strict=True)]
    return jnp.stack(rows)


ROWS = [
    Row(
        "pad",
        lambda x: axn.pad(x, {"c": (1, 0), "a": 2}),
        ("abc",),
        lambda x: jnp.pad(x, ((2, 2), (0, 0), (1, 0))),
        "abc",
        lambda x: np.pad(x, ((2, 2), (0, 0), (1, 0))),
        names=lambda x: x,
    ),
    Row(
        "pad_left",
        lambda x, value: axn.pad_left(x, "b", axn.Axis("i", 5), value),
        ("abc", "c"),
        lambda x, value: jnp.concatenate(
            [jnp.broadcast_to(value, (x.shape[0], 5 - x.shape[1], x.shape[2])), x], 1, dtype=x.dtype
        ),
        "aic",
        lambda x, value: np.concatenate([np.broadcast_to(value, (4, 3, 3)), x], 1),
        names=lambda x, value: x.replace("b", "i"),
    ),
    Row(
        "repeat",
        lambda x: axn.repeat(x, 3, "b"),
        ("abc",),
        lambda x: jnp.repeat(x, 3, 1),
        "abc",
        lambda x: np.repeat(x, 3, 1),
        names=lambda x: x,
    ),
    Row(
        "repeat",
        lambda x, counts: axn.repeat(x, counts, "a", total_repeat_length=6),
        ("abc", "a"),
        lambda x, counts: jnp.repeat(x, counts, 0, total_repeat_length=6),
        "abc",
        lambda x, counts: np.repeat(np.concatenate([x, x[-1:]]), [*counts, max(6 - counts.sum(), 0)], 0)[:6],
        domains=("real", "index"),
        names=lambda x, counts: x,
        case="counts",
    ),
    Row(
        "tile",
        lambda x: axn.tile(x, {"b": 3, "i": 2, "a": 1}),
        ("abc",),
        lambda x: jnp.tile(x, (2, 1, 3, 1)),
        "iabc",
        lambda x: np.tile(x, (2, 1, 3, 1)),
        names=lambda x: f"i{x}",
    ),
]
VARIANTS = [
    *(
        Row(
            "pad",
            lambda x, mode=mode: axn.pad(x, {axn.Axis("a", 4): (3, 1)}, mode=mode),
            ("ab",),
            lambda x, mode=mode: jnp.pad(x, ((3, 1), (0, 0)), mode),
            "ab",
            lambda x, mode=mode: np.pad(x, ((3, 1), (0, 0)), mode),
            names=lambda x: x,
            case=mode,
        )
        for mode in MODES
    ),
    Row(
        "pad",
        lambda x, value: axn.pad(x, {"a": (0, 1)}, constant_values=value),
        ("ab", ""),
        lambda x, value: jnp.pad(x, ((0, 1), (0, 0)), constant_values=value),
        "ab",
        lambda x, value: np.pad(x, ((0, 1), (0, 0)), constant_values=value),
        names=lambda x, value: x,
        case="value",
    ),
    Row(
        "pad",
        lambda x: axn.pad(x, {"a": 2}, mode="mean", stat_length=2),
        ("ab",),
        lambda x: jnp.pad(x, ((2, 2), (0, 0)), "mean", stat_length=2),
        "ab",
        lambda x: np.pad(x, ((2, 2), (0, 0)), "mean", stat_length=2),
        names=lambda x: x,
        case="stat_length",
    ),
    Row(
        "pad",
        lambda x: axn.pad(x, {"a": 2}, mode="reflect", reflect_type="odd"),
        ("ab",),
        lambda x: jnp.pad(x, ((2, 2), (0, 0)), "reflect", reflect_type="odd"),
        "ab",
        lambda x: np.pad(x, ((2, 2), (0, 0)), "reflect", reflect_type="odd"),
        names=lambda x: x,
        case="reflect_type",
    ),
    Row(
        "pad",
        lambda x: axn.pad(x, {"a": 2}, mode="linear_ramp", end_values=3),
        ("ab",),
        lambda x: jnp.pad(x, ((2, 2), (0, 0)), "linear_ramp", end_values=3),
        "ab",
        lambda x: np.pad(x, ((2, 2), (0, 0)), "linear_ramp", end_values=3),
        names=lambda x: x,
        case="end_values",
    ),
    Row(
        "repeat",
        lambda x: axn.repeat(x, [2, 0, 1], axn.Axis("c", 3)),
        ("abc",),
        lambda x: jnp.repeat(x, np.array([2, 0, 1]), 2),
        "abc",
        lambda x: np.repeat(x, [2, 0, 1], 2),
        names=lambda x: x,
        case="list",
    ),
    Row(
        "repeat",
        lambda x, counts: axn.repeat(x, counts, "b", 3),
        ("ab", "ab"),
        lambda x, counts: repeated(x, counts, 3),
        "ab",
        domains=("real", "index"),
        names=lambda x, counts: x,
        case="counts for each row",
    ),
    Row(
        "tile",
        lambda x: axn.tile(x, {axn.Axis("a", 4): 0, axn.Axis("i", 2): 2}),
        ("ab",),
        lambda x: jnp.tile(x, (2, 0, 1)),
        "iab",
        lambda x: np.tile(x, (2, 0, 1)),
        names=lambda x: f"i{x}",
        case="Axis, none",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS, extend)


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestLaws(SmoothBulk):
    """The laws of what is lifted along an axis."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axes."""


def test_repeat_takes_the_size_from_counts_that_are_known() -> None:
    x = axn.arange(axn.Axis("x", 3))
    assert x.repeat(jnp.array([1, 0, 2]), "x").tolist() == [0, 2, 2]
    for count in (np.array(2), jnp.array(2), axn.named(2, ())):
        np.testing.assert_array_equal(x.repeat(count, "x").array, np.repeat(x.array, 2))
    assert x.repeat(axn.named([1, 0, 2], "x"), "x").tolist() == [0, 2, 2]
    assert x.repeat(np.int64(2), "x").tolist() == [0, 0, 1, 1, 2, 2]
    assert x.repeat(0, "x").tolist() == []
    assert jax.jit(lambda x: x.repeat([1, 0, 2], "x"))(x).tolist() == [0, 2, 2]
    assert axn.zeros(axn.Axis("x", 0)).repeat([], "x").tolist() == []


@pytest.mark.parametrize("counts", [np.uint8([200, 100, 50]), np.int8([100, 0, 127])])
def test_counts_may_add_up_to_more_than_their_dtype_holds(counts: Any) -> None:
    x = axn.arange(axn.Axis("x", 3))
    assert x.repeat(counts, "x").tolist() == np.repeat(np.arange(3), counts).tolist()


def test_one_traced_count_is_for_all() -> None:
    x = axn.arange(axn.Axis("x", 3))
    assert jax.jit(lambda n: x.repeat(n, "x", total_repeat_length=5))(2).tolist() == [0, 0, 1, 1, 2]


def test_anonymous_dimensions_stay_in_front() -> None:
    x = axn.arange(axn.make_axes(a=2, b=3)).untag("a")
    assert axn.tile(x, {"b": 2, "i": 4}).array.shape == (2, 4, 6)
    assert axn.pad(x, {"b": 1}).array.shape == (2, 5)
    assert axn.pad_left(x, "b", axn.Axis("b", 4)).array.shape == (2, 4)
    assert axn.repeat(x, [1, 1, 2], "b").array.shape == (2, 4)


def test_a_traced_fill_value_keeps_the_dtype() -> None:
    x = axn.arange(axn.Axis("x", 2))
    for padded in (
        jax.jit(lambda value: axn.pad(x, {"x": (1, 0)}, constant_values=value))(7.5),
        jax.jit(lambda value: axn.pad_left(x, "x", axn.Axis("x", 3), value))(7.5),
    ):
        assert (padded.tolist(), padded.dtype) == ([7, 0, 1], jnp.int32)


def test_a_scalar_on_the_left_is_a_pad() -> None:
    x = axn.ones(axn.make_axes(x=2, y=3))
    for value in (0, -1.5, axn.named(np.float32(7), ())):
        found = primitives(lambda x, value=value: axn.pad_left(x, "y", axn.Axis("y", 5), value), x)
        assert found == primitives(lambda x: lax.pad(x, np.float32(0), ((0, 0, 0), (2, 0, 0))), x.array)


@pytest.mark.parametrize("mode", ["constant", "wrap"])
def test_the_padded_axis_may_be_split_over_devices(mode: Any, explicit_mesh: jax.sharding.Mesh) -> None:
    x = np.arange(32.0).reshape(4, 8)
    with jax.set_mesh(explicit_mesh):
        padded = axn.pad(
            axn.NamedArray(jax.device_put(x, jax.P("data", "model")), ("a", "i")), {"a": (1, 2)}, mode=mode
        )
    np.testing.assert_array_equal(padded.array, np.pad(x, ((1, 2), (0, 0)), mode))


def test_empty_axes() -> None:
    x = axn.zeros(axn.make_axes(x=0, y=2))
    assert axn.pad(x, {"x": (1, 0)}).shape == {"x": 1, "y": 2}
    assert axn.pad(x, {"y": 1}, mode="edge").shape == {"x": 0, "y": 4}
    assert axn.pad_left(x, "x", axn.Axis("x", 2), 1).tolist() == [[1, 1], [1, 1]]
    assert axn.tile(x, {"x": 3}).shape == {"x": 0, "y": 2}
    assert axn.tile(axn.named(3, ()), {"x": 2}).tolist() == [3, 3]


INPUT = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))

BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "axn.repeat(x, 2, 'embd')",
        lambda x: axn.repeat(x, 2, "embd"),
        AxisNotFoundError,
        "repeat: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.repeat(x, 2, axn.Axis('embed', 5))",
        lambda x: axn.repeat(x, 2, axn.Axis("embed", 5)),
        AxisSizeError,
        "repeat: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.repeat(x.array, 2, 'embed')",
        lambda x: axn.repeat(x.array, 2, "embed"),
        OperandError,
        "repeat: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.repeat(x, 2, ('batch', 'embed'))",
        lambda x: axn.repeat(x, 2, ("batch", "embed")),
        OperandError,
        "repeat: expected one axis, got 2: batch, embed",
    ),
    (
        "axn.repeat(x, -1, 'embed')",
        lambda x: axn.repeat(x, -1, "embed"),
        ArgumentError,
        "repeat: the number for axis 'embed' must not be negative, got -1",
    ),
    (
        "axn.repeat(x, [1, 1, 1, 1, 1, -1], 'embed')",
        lambda x: axn.repeat(x, [1, 1, 1, 1, 1, -1], "embed"),
        ArgumentError,
        "repeat: the number for axis 'embed' must not be negative, got -1",
    ),
    (
        "axn.repeat(x, [1.5] * 6, 'embed')",
        lambda x: axn.repeat(x, [1.5] * 6, "embed"),
        OperandError,
        "repeat: repeats must be integers, not float32",
    ),
    (
        "axn.repeat(x, 'z', 'embed')",
        lambda x: axn.repeat(x, "z", "embed"),
        OperandError,
        "repeat: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        "axn.repeat(x, 2.0, 'embed')",
        lambda x: axn.repeat(x, 2.0, "embed"),
        OperandError,
        "repeat: repeats must be integers, not float32",
    ),
    (
        "axn.repeat(x, True, 'embed')",
        lambda x: axn.repeat(x, True, "embed"),
        OperandError,
        "repeat: repeats must be integers, not bool",
    ),
    (
        "axn.repeat(x, [1, 2], 'embed')",
        lambda x: axn.repeat(x, [1, 2], "embed"),
        AxisSizeError,
        "repeat: axis 'embed' has two sizes: 6 and 2\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=2\n"
        "  hint: rename one of the two 'embed' axes",
    ),
    (
        "jax.jit(lambda n: axn.repeat(x, n, 'embed'))(2)",
        lambda x: jax.jit(lambda n: axn.repeat(x, n, "embed"))(2),
        ArgumentError,
        "repeat: the new size of the axis cannot be computed from these repeats\n"
        "  hint: give it: total_repeat_length=...",
    ),
    (
        "axn.repeat(x, x.astype(int), 'embed')",
        lambda x: axn.repeat(x, x.astype(int), "embed"),
        ArgumentError,
        "repeat: the new size of the axis cannot be computed from these repeats\n"
        "  hint: give it: total_repeat_length=...",
    ),
    (
        "axn.tile(x, {axn.Axis('embed', 5): 2})",
        lambda x: axn.tile(x, {axn.Axis("embed", 5): 2}),
        AxisSizeError,
        "tile: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.tile(x, {axn.Axis('heads', 5): 2})",
        lambda x: axn.tile(x, {axn.Axis("heads", 5): 2}),
        AxisSizeError,
        "tile: axis 'heads' was given with size 5 for 2 copies\n  array has: batch=4, embed=6",
    ),
    (
        "axn.tile(x, {'embed': 2, axn.Axis('embed', 6): 2})",
        lambda x: axn.tile(x, {"embed": 2, axn.Axis("embed", 6): 2}),
        AxisClashError,
        "tile: axis 'embed' is given twice\n  axes: embed, embed",
    ),
    (
        "axn.tile(x, {'embed': 1.5})",
        lambda x: axn.tile(x, {"embed": 1.5}),
        OperandError,
        "tile: the number for axis 'embed' must be an int, not float",
    ),
    (
        "axn.tile(x, {'embed': -1})",
        lambda x: axn.tile(x, {"embed": -1}),
        ArgumentError,
        "tile: the number for axis 'embed' must not be negative, got -1",
    ),
    (
        "axn.tile(x, (2, 1))",
        lambda x: axn.tile(x, (2, 1)),
        OperandError,
        "tile: reps must be a dict from axes to ints, not tuple\n"
        "  array has: batch=4, embed=6\n"
        '  hint: write {"pos": 2}',
    ),
    (
        "axn.tile(x.array, {'embed': 2})",
        lambda x: axn.tile(x.array, {"embed": 2}),
        OperandError,
        "tile: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.pad(x, {'embd': 1})",
        lambda x: axn.pad(x, {"embd": 1}),
        AxisNotFoundError,
        "pad: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.pad(x, {axn.Axis('embed', 5): 1})",
        lambda x: axn.pad(x, {axn.Axis("embed", 5): 1}),
        AxisSizeError,
        "pad: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.pad(x, {'embed': 1, axn.Axis('embed', 6): 2})",
        lambda x: axn.pad(x, {"embed": 1, axn.Axis("embed", 6): 2}),
        AxisClashError,
        "pad: axis 'embed' is given twice\n  axes: embed, embed",
    ),
    (
        "axn.pad(x, ((1, 1), (0, 0)))",
        lambda x: axn.pad(x, ((1, 1), (0, 0))),
        OperandError,
        "pad: pad_width must be a dict from axes to (before, after), not tuple\n"
        "  array has: batch=4, embed=6\n"
        '  hint: write {"pos": (0, 1)}',
    ),
    (
        "axn.pad(x, {'embed': (1, 2, 3)})",
        lambda x: axn.pad(x, {"embed": (1, 2, 3)}),
        OperandError,
        "pad: the number for axis 'embed' must be an int, not tuple",
    ),
    (
        "axn.pad(x, {'embed': (-1, 0)})",
        lambda x: axn.pad(x, {"embed": (-1, 0)}),
        ArgumentError,
        "pad: the number for axis 'embed' must not be negative, got -1",
    ),
    (
        "jax.jit(lambda n: axn.pad(x, {'embed': n}))(2)",
        lambda x: jax.jit(lambda n: axn.pad(x, {"embed": n}))(2),
        OperandError,
        "pad: the number for axis 'embed' must be an int, not DynamicJaxprTracer",
    ),
    (
        "axn.pad(x, {'embed': 1}, mode='mirror')",
        lambda x: axn.pad(x, {"embed": 1}, mode="mirror"),
        ArgumentError,
        "pad: unknown mode 'mirror'\n"
        "  modes: constant, edge, empty, linear_ramp, maximum, mean, median, minimum, reflect, symmetric, wrap",
    ),
    (
        "axn.pad(x, {'embed': 1}, mode='reflect', reflect_type='none')",
        lambda x: axn.pad(x, {"embed": 1}, mode="reflect", reflect_type="none"),
        ArgumentError,
        "pad: unknown reflect_type 'none'\n  types: even, odd",
    ),
    (
        "axn.pad(x['embed', :0], {'embed': 1}, mode='edge')",
        lambda x: axn.pad(x["embed", :0], {"embed": 1}, mode="edge"),
        AxisSizeError,
        "pad: axis 'embed' is empty, and mode 'edge' extends existing elements\n  array has: batch=4, embed=0",
    ),
    (
        "axn.pad(x, {'embed': 1}, constant_values=x)",
        lambda x: axn.pad(x, {"embed": 1}, constant_values=x),
        OperandError,
        "pad: the fill value must be a scalar, but has axes batch, embed",
    ),
    (
        "axn.pad(x, {'embed': 1}, constant_values=np.ones(2))",
        lambda x: axn.pad(x, {"embed": 1}, constant_values=np.ones(2)),
        OperandError,
        "pad: the fill value must be a scalar, but has shape (2,)",
    ),
    (
        "axn.pad(x.array, {'embed': 1})",
        lambda x: axn.pad(x.array, {"embed": 1}),
        OperandError,
        "pad: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.pad_left(x, 'embd', axn.Axis('e', 8))",
        lambda x: axn.pad_left(x, "embd", axn.Axis("e", 8)),
        AxisNotFoundError,
        "pad_left: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.pad_left(x, axn.Axis('embed', 5), axn.Axis('e', 8))",
        lambda x: axn.pad_left(x, axn.Axis("embed", 5), axn.Axis("e", 8)),
        AxisSizeError,
        "pad_left: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.pad_left(x, 'embed', axn.Axis('e', 5))",
        lambda x: axn.pad_left(x, "embed", axn.Axis("e", 5)),
        AxisSizeError,
        "pad_left: cannot pad 6 elements to e=5\n  hint: cut them with x.slice(...)",
    ),
    (
        "axn.pad_left(x, 'embed', 'e')",
        lambda x: axn.pad_left(x, "embed", "e"),
        OperandError,
        "pad_left: axis 'e' needs a size here\n  hint: write Axis(\"e\", size)",
    ),
    (
        "axn.pad_left(x, 'embed', axn.Axis('batch', 8))",
        lambda x: axn.pad_left(x, "embed", axn.Axis("batch", 8)),
        AxisClashError,
        "pad_left: in the result, axis 'batch' would appear twice\n  array has: batch=4, embed=6",
    ),
    (
        "axn.pad_left(x.array, 'embed', axn.Axis('e', 8))",
        lambda x: axn.pad_left(x.array, "embed", axn.Axis("e", 8)),
        OperandError,
        "pad_left: expected a NamedArray, got ArrayImpl\n"
        "  its shape: (4, 6)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text
