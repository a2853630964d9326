"""Padding: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import pad
from tests.laws import Row, SmoothBulk, Values, count_equations, has_row_for_each

MODES = ("edge", "linear_ramp", "maximum", "mean", "median", "minimum", "reflect", "symmetric", "wrap")


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
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(ROWS, pad)


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestLaws(SmoothBulk):
    """The laws of what is lifted along an axis."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axes."""


def test_anonymous_dimensions_stay_in_front() -> None:
    x = axn.arange(axn.make_axes(a=2, b=3)).untag("a")
    assert axn.pad(x, {"b": 1}).array.shape == (2, 5)
    assert axn.pad_left(x, "b", axn.Axis("b", 4)).array.shape == (2, 4)


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
        found = count_equations(lambda x, value=value: axn.pad_left(x, "y", axn.Axis("y", 5), value), x)
        assert found <= count_equations(lambda x: lax.pad(x, np.float32(0), ((0, 0, 0), (2, 0, 0))), x.array)


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
        "pad: the number for axis 'embed' must be an int, not a plain array",
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
        "pad: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
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
        "pad_left: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text
