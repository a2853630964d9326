"""Rolling, reversing and rotating: laws over one row per function."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import roll
from tests.laws import Row, SmoothBulk, Values, has_row_for_each, row_along

row = functools.partial(row_along, roll)


def turned(k: int) -> Any:
    return Row(
        "rot90",
        lambda x: axn.rot90(x, "c", "a", k),
        ("abc",),
        lambda x: jnp.rot90(x, k, (2, 0)),
        "abc",
        lambda x: np.rot90(x, k, (2, 0)),
        case=f"{k} times",
    )


def rolled_each(x: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return np.stack([np.stack([np.roll(x[i, :, k], shift[k, i]) for k in range(3)], -1) for i in range(4)])


SMOOTH_BULK = [
    row("flip", ("a", "c"), (0, 2), jnp.flip, np.flip),
    row("roll", "a", 0, lambda x, at: jnp.roll(x, -3, at), lambda x, at: np.roll(x, -3, at), shift=-3),
    Row(
        "roll",
        lambda x, shift: axn.roll(x, shift, "b"),
        ("abc", "ca"),
        lambda x, shift: jax.vmap(jax.vmap(jnp.roll), (1, 0), 1)(jnp.moveaxis(x, 1, 2), shift).transpose(0, 2, 1),
        "abc",
        rolled_each,
        ("real", "shift"),
        case="each by its own",
    ),
    turned(1),
]


VARIANTS = [
    row("flip", None, None, jnp.flip, np.flip, case="all axes"),
    row("flip", "b", 1, jnp.flip, np.flip, case="one axis"),
    row(
        "roll",
        ("a", "c"),
        (0, 2),
        lambda x, at: jnp.roll(x, (1, 7), at),
        lambda x, at: np.roll(x, (1, 7), at),
        case="two axes",
        shift=(1, 7),
    ),
    Row(
        "roll",
        lambda x, shift: axn.roll(x, shift, ("c", "a")),
        ("abc", ""),
        lambda x, shift: jnp.roll(x, shift, (2, 0)),
        "abc",
        lambda x, shift: np.roll(x, shift, (2, 0)),
        ("real", "int"),
        case="traced",
    ),
    Row(
        "roll",
        lambda x, shift: axn.roll(x, (shift, 2), (axn.Axis("c", 3), "a")),
        ("abc", ""),
        lambda x, shift: jnp.roll(x, (shift, 2), (2, 0)),
        "abc",
        lambda x, shift: np.roll(x, (shift, 2), (2, 0)),
        ("real", "int"),
        case="traced and static",
    ),
    *map(turned, (-1, 2, 4)),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH_BULK, roll)


@pytest.mark.parametrize("row", SMOOTH_BULK, ids=str)
class TestSmoothBulk(SmoothBulk):
    """What the engine does for all, gradients included."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axis."""


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_split_axis_sends_its_edges_only(kind, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    x = axn.arange(axn.Axis("batch", 64))
    with axn.set_mesh(mesh):
        program = axn.named_jit(lambda x: axn.roll(x, -1, "batch"), {"batch": "data"})
        given = axn.shard(x, {"batch": "data"})
        text = program.lower(given).compile().as_text()
        rolled = program(given)
    np.testing.assert_array_equal(rolled.array, np.roll(np.arange(64), -1))
    assert re.search(r"s32\[1\]\S* collective-permute", text)
    assert not re.search(r"all-(gather|to-all|reduce)", text)


AXES = "  array has: batch=4, embed=3"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: x.flip(0),
            OperandError,
            'flip: 0 is a position, but axes have names\n  array has: batch=4, embed=3\n  hint: write "batch"',
        ),
        (
            lambda x: axn.flip(3.0, "embed"),
            OperandError,
            "flip: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.rot90(x, "batch", "batch"),
            AxisClashError,
            "rot90: axis 'batch' is given twice\n  axes: batch, batch",
        ),
        (
            lambda x: axn.rot90(x, "batch", "embedd"),
            AxisNotFoundError,
            f"rot90: no axis named 'embedd'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        (
            lambda x: x.roll((1, 2, 3), ("batch", "embed")),
            ArgumentError,
            "roll: 3 shifts for 2 axes\n  axes: batch, embed",
        ),
        (
            lambda x: x.roll(1.5, "batch"),
            OperandError,
            "roll: a shift must be an integer, not float32",
        ),
        (
            lambda x: x.roll(1, axn.Axis("embed", 5)),
            AxisSizeError,
            f"roll: axis 'embed' was given with size 5, but has size 3\n{AXES}",
        ),
        (
            lambda x: x.roll(axn.named([1, 2], "batch"), "embed"),
            AxisSizeError,
            "roll: axis 'batch' has two sizes: 4 and 2\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: batch=2\n"
            '  hint: if they are the same axis, cut the longer one, x["batch", :2]; '
            'if not, rename one: x.rename({"batch": ...})',
        ),
        (
            lambda x: axn.roll(jnp.ones(3), jnp.array(1), "embed"),
            OperandError,
            "roll: expected a NamedArray, got a plain array\n"
            "  its shape: (3,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3))))
    assert str(caught.value) == text


def test_another_static_shift_is_another_program_and_a_traced_one_is_not() -> None:
    x = axn.named(np.arange(5), "time")
    traces = []

    @jax.jit
    def traced(shift: jax.Array) -> axn.NamedArray:
        traces.append(shift)
        return x.roll(shift, "time")

    for shift in (1, 2):
        np.testing.assert_array_equal(traced(shift).array, np.roll(np.arange(5), shift))
        np.testing.assert_array_equal(x.roll(np.int64(shift), "time").array, np.roll(np.arange(5), shift))
    assert len(traces) == 1
