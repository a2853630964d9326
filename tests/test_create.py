"""Arrays from axes: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import axonym as axn
from axonym import create
from axonym.errors import AxisClashError, AxisSizeError, OperandError

A, B = axn.make_axes(a=4, b=2)
# The function, a call of it, and the same in jax.numpy.
ROWS: list[tuple[str, Any, Any]] = [
    ("zeros", lambda: axn.zeros((A, B)), lambda: jnp.zeros((4, 2))),
    ("zeros", lambda: axn.zeros((A, B), jnp.int8), lambda: jnp.zeros((4, 2), jnp.int8)),
    ("ones", lambda: axn.ones({"a": 4, "b": 2}), lambda: jnp.ones((4, 2))),
    ("ones", lambda: axn.ones((), bool), lambda: jnp.ones((), bool)),
    ("full", lambda: axn.full((A, B), 7), lambda: jnp.full((4, 2), 7)),
    ("full", lambda: axn.full(A, 7, jnp.bfloat16), lambda: jnp.full(4, 7, jnp.bfloat16)),
    ("full", lambda: axn.full(A.resize(0), jnp.inf), lambda: jnp.full(0, jnp.inf)),
    ("full_like", lambda: axn.full_like(axn.ones((A, B)), 3), lambda: jnp.full_like(jnp.ones((4, 2)), 3)),
    ("full_like", lambda: axn.full_like(axn.ones(A), 3, int), lambda: jnp.full(4, 3, "int32")),
    ("zeros_like", lambda: axn.zeros_like(axn.ones((A, B), jnp.int8)), lambda: jnp.zeros((4, 2), jnp.int8)),
    ("ones_like", lambda: axn.ones_like(axn.zeros(A), jnp.int8), lambda: jnp.ones(4, jnp.int8)),
    ("arange", lambda: axn.arange(A), lambda: jnp.arange(4)),
    ("arange", lambda: axn.arange(A, start=2), lambda: jnp.arange(2, 6)),
    ("arange", lambda: axn.arange(A, start=1, step=-3), lambda: jnp.arange(1, -11, -3)),
    ("arange", lambda: axn.arange(A, start=0.5, step=0.25), lambda: jnp.arange(0.5, 1.5, 0.25)),
    ("arange", lambda: axn.arange(A, dtype=jnp.bfloat16), lambda: jnp.arange(4, dtype=jnp.bfloat16)),
    ("arange", lambda: axn.arange((A, B)), lambda: jnp.arange(8).reshape(4, 2)),
    ("arange", lambda: axn.arange((A, B), start=1, step=2), lambda: jnp.arange(1, 17, 2).reshape(4, 2)),
    (
        "one_hot",
        lambda: axn.one_hot(axn.named([1, 0, 5, -1], A), B),
        lambda: jax.nn.one_hot(jnp.array([1, 0, 5, -1]), 2),
    ),
    (
        "one_hot",
        lambda: axn.one_hot(axn.named(1, ()), A, dtype=jnp.int8),
        lambda: jax.nn.one_hot(1, 4, dtype=jnp.int8),
    ),
]
IDS = [f"{name}-{i}" for i, (name, *_) in enumerate(ROWS)]


def test_every_function_has_a_row() -> None:
    assert {name for name, *_ in ROWS} == set(create.__all__)


@pytest.mark.parametrize(("call", "reference"), [row[1:] for row in ROWS], ids=IDS)
class TestLaws:
    def test_equals_jnp(self, call: Any, reference: Any) -> None:
        result, expected = call(), reference()
        assert isinstance(result, axn.NamedArray)
        assert len(result.names) == result.ndim
        assert (result.dtype, result.array.weak_type) == (expected.dtype, expected.weak_type)
        np.testing.assert_array_equal(np.asarray(result.array), np.asarray(expected))
        np.testing.assert_array_equal(np.asarray(jax.jit(call)().array), np.asarray(expected))

    @pytest.mark.parametrize("kind", ["auto", "explicit"])
    def test_is_the_same_on_a_mesh(self, call: Any, reference: Any, kind: str, request: pytest.FixtureRequest) -> None:
        with (
            jax.set_mesh(request.getfixturevalue(f"{kind}_mesh")),
            axn.axis_mapping({"a": "data", "b": "model"}),
        ):
            np.testing.assert_array_equal(np.asarray(call().array), np.asarray(reference()))


def test_names_come_in_the_order_of_the_axes() -> None:
    assert axn.ones((B, A)).axes == (B, A)
    assert axn.one_hot(axn.named([0, 1], B), A).names == ("b", "a")
    assert axn.one_hot(axn.arange(B).untag("b"), A).array.shape == (2, 4)


def test_start_and_step_may_be_traced() -> None:
    result = jax.jit(lambda start, step: axn.arange(A, start=start, step=step))(1, 2)
    assert result.tolist() == [1, 3, 5, 7]


def test_with_explicit_axes_arrays_are_laid_out_from_the_start(explicit_mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(explicit_mesh), axn.axis_mapping({"a": "data", "b": "model"}):
        for made in (axn.zeros((A, B)), axn.full((A, B), 2), axn.arange((A, B)), jax.jit(lambda: axn.ones((A, B)))()):
            assert jax.typeof(made.array).sharding.spec == PartitionSpec("data", "model")
            assert jax.typeof(axn.zeros_like(made).array).sharding.spec == PartitionSpec("data", "model")


@pytest.mark.parametrize("value", [np.ones(4), axn.ones(A)], ids=["ndarray", "NamedArray"])
def test_a_fill_value_is_a_scalar(value: Any) -> None:
    for function, call in (
        ("full", lambda: axn.full(A, value)),
        ("full_like", lambda: axn.full_like(axn.ones(A), value)),
    ):
        with pytest.raises(OperandError) as caught:
            call()
        assert str(caught.value) == (
            f"{function}: the fill value must be a scalar, not {type(value).__name__}\n"
            "  hint: repeat an array along new axes: x.broadcast_axis(...)"
        )


INPUT = A

BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "axn.zeros('a')",
        lambda A: axn.zeros("a"),
        OperandError,
        "zeros: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    ("axn.ones((A, A))", lambda A: axn.ones((A, A)), AxisClashError, "ones: axis 'a' is given twice\n  axes: a, a"),
    (
        "axn.full((A, 3), 1)",
        lambda A: axn.full((A, 3), 1),
        OperandError,
        'full: 3 is neither an Axis nor the name of one\n  hint: write an axis as Axis("batch", 32) or as "batch"',
    ),
    (
        "axn.zeros({'a': -1})",
        lambda A: axn.zeros({"a": -1}),
        AxisSizeError,
        "Axis: the size of 'a' must not be negative, got -1",
    ),
    (
        "axn.zeros({'a': 2.5})",
        lambda A: axn.zeros({"a": 2.5}),
        OperandError,
        "Axis: the size of 'a' must be an int, not 2.5",
    ),
    (
        "axn.arange('a')",
        lambda A: axn.arange("a"),
        OperandError,
        "arange: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        "axn.one_hot(axn.arange(A), A)",
        lambda A: axn.one_hot(axn.arange(A), A),
        AxisClashError,
        "one_hot: the array already has axis 'a'\n  array has: a=4",
    ),
    (
        "axn.one_hot(axn.arange(A), 'c')",
        lambda A: axn.one_hot(axn.arange(A), "c"),
        OperandError,
        "one_hot: axis 'c' needs a size here\n  hint: write Axis(\"c\", size)",
    ),
    (
        "axn.one_hot(3, axn.Axis('c', 4))",
        lambda A: axn.one_hot(3, axn.Axis("c", 4)),
        OperandError,
        'one_hot: expected a NamedArray, got int\n  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.zeros_like(np.ones(3))",
        lambda A: axn.zeros_like(np.ones(3)),
        OperandError,
        "zeros_like: expected a NamedArray, got ndarray\n"
        "  its shape: (3,)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.full_like(3, 1)",
        lambda A: axn.full_like(3, 1),
        OperandError,
        'full_like: expected a NamedArray, got int\n  hint: name it first: axn.named(array, ("batch", ...))',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text
