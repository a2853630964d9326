"""Functions along an axis that keep it: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import along
from tests.laws import Laws, Row, Smooth, Values, has_row_for_each


def softmax(x: np.ndarray, axis: Any, where: Any = True) -> np.ndarray:
    powers = np.exp(x) * where
    return powers / powers.sum(axis, keepdims=True)


def row(name: str, axis: Any, at: Any, reference: Any, oracle: Any, *, case: str = "", **options: Any) -> Row:
    fn = getattr(along, name)
    return Row(
        name,
        lambda x: fn(x, axis, **options),
        ("abc",),
        lambda x: reference(x, at),
        "abc",
        None if oracle is None else lambda x: oracle(x, at),
        case=case,
    )


def downwards(fn: Any) -> Any:
    return lambda x, at: fn(x, at, descending=True)


SMOOTH = [
    row("cumprod", "b", 1, jnp.cumprod, np.cumprod),
    row("cumsum", "a", 0, jnp.cumsum, np.cumsum),
    row("log_softmax", "c", -1, jax.nn.log_softmax, lambda x, at: np.log(softmax(x, at))),
    row("softmax", "b", 1, jax.nn.softmax, softmax),
    row("softmax", ("c", "a"), (0, 2), jax.nn.softmax, softmax, case="two axes"),
    row("sort", "a", 0, jnp.sort, np.sort),
]
STEPS = [
    row("argsort", "c", 2, jnp.argsort, np.argsort),
    Row(
        "softmax",
        lambda x, mask: axn.softmax(x, "c", where=mask),
        ("abc", "cb"),
        lambda x, mask: jax.nn.softmax(x, -1, where=jnp.transpose(mask)[None]),
        "abc",
        lambda x, mask: (
            softmax(x, -1, mask.T | (mask.sum(0) == 0)[:, None]) * (mask.T | False)
            if mask.any(0).all()
            else np.asarray(jax.nn.softmax(x, -1, where=mask.T[None]))
        ),
        ("real", "bool"),
        case="masked",
    ),
    Row(
        "log_softmax",
        lambda x, mask: axn.log_softmax(x, "c", where=mask),
        ("abc", "cb"),
        lambda x, mask: jax.nn.log_softmax(x, -1, where=jnp.transpose(mask)[None]),
        "abc",
        domains=("real", "bool"),
        case="masked",
    ),
]
VARIANTS = [
    row("sort", "c", 2, downwards(jnp.sort), lambda x, at: -np.sort(-x, at), case="descending", descending=True),
    row(
        "argsort", "c", 2, downwards(jnp.argsort), lambda x, at: np.argsort(-x, at), case="descending", descending=True
    ),
    row("softmax", None, (0, 1, 2), jax.nn.softmax, softmax, case="all axes"),
    row("softmax", axn.Axis("b", 2), 1, jax.nn.softmax, softmax, case="Axis"),
    row("cumsum", axn.Axis("b", 2), 1, jnp.cumsum, np.cumsum, case="Axis"),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + STEPS, along)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Laws):
    """All laws but the gradient."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axis."""


AXES = "  array has: batch=4, embed=3"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: axn.softmax(x, "embedd"),
            AxisNotFoundError,
            f"softmax: no axis named 'embedd'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        (
            lambda x: x.sort("bach"),
            AxisNotFoundError,
            f"sort: no axis named 'bach'\n{AXES}\n  hint: did you mean 'batch'?",
        ),
        (
            lambda x: axn.log_softmax(x, axn.Axis("embed", 5)),
            AxisSizeError,
            f"log_softmax: axis 'embed' was given with size 5, but has size 3\n{AXES}",
        ),
        (
            lambda x: x.cumsum(axn.Axis("embed", 5)),
            AxisSizeError,
            f"cumsum: axis 'embed' was given with size 5, but has size 3\n{AXES}",
        ),
        (
            lambda x: x.cumprod(("batch", "embed")),
            AxisError,
            f"cumprod: needs one axis, got 2\n{AXES}\n  hint: flatten the axes first: x.flatten_axes(...)",
        ),
        (
            lambda x: x.cumsum(None),
            AxisError,
            f"cumsum: needs one axis, got 2\n{AXES}\n  hint: flatten the axes first: x.flatten_axes(...)",
        ),
        (
            lambda x: x.argsort(0),
            OperandError,
            "argsort: 0 is neither an Axis nor the name of one\n"
            '  hint: write an axis as Axis("batch", 32) or as "batch"',
        ),
        (
            lambda x: axn.softmax(x, "embed", where=axn.ones(axn.Axis("embed", 2), bool)),
            AxisSizeError,
            "softmax: axis 'embed' has two sizes: 3 and 2\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: embed=2\n"
            "  hint: rename one of the two 'embed' axes",
        ),
        (
            lambda x: axn.softmax(jnp.ones(3), "embed"),
            OperandError,
            "softmax: expected a NamedArray, got ArrayImpl\n"
            "  its shape: (3,)\n"
            '  hint: name it first: axn.named(array, ("batch", ...))',
        ),
        (
            lambda x: axn.sort(3.0, "embed"),
            OperandError,
            'sort: expected a NamedArray, got float\n  hint: name it first: axn.named(array, ("batch", ...))',
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3))))
    assert str(caught.value) == text
