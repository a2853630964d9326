"""Random arrays: values depend on the key and the axes alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import axonym as axn
from axonym import random
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from tests.laws import assert_close

A, B = axn.make_axes(a=4, b=2)
KEY = jax.random.key(1)
ROWS: list[tuple[str, Any, Any]] = [
    ("normal", lambda: random.normal(KEY, (A, B)), lambda: jax.random.normal(KEY, (4, 2))),
    ("normal", lambda: random.normal(KEY, A, jnp.bfloat16), lambda: jax.random.normal(KEY, 4, jnp.bfloat16)),
    ("gumbel", lambda: random.gumbel(KEY, (A, B)), lambda: jax.random.gumbel(KEY, (4, 2))),
    ("uniform", lambda: random.uniform(KEY, (A, B)), lambda: jax.random.uniform(KEY, (4, 2))),
    (
        "uniform",
        lambda: random.uniform(KEY, (A, B), minval=-2.0, maxval=3.0),
        lambda: jax.random.uniform(KEY, (4, 2)) * 5 - 2,
    ),
    (
        "uniform",
        lambda: random.uniform(KEY, (A, B), jnp.bfloat16, -2, 3),
        lambda: jax.random.uniform(KEY, (4, 2), jnp.bfloat16) * 5 - 2,
    ),
    (
        "uniform",
        lambda: random.uniform(KEY, (A, B), maxval=axn.named([1.0, 10.0], B)),
        lambda: jax.random.uniform(KEY, (4, 2)) * jnp.array([1.0, 10.0]),
    ),
    (
        "truncated_normal",
        lambda: random.truncated_normal(KEY, (A, B), -1, 2),
        lambda: jax.random.truncated_normal(KEY, -1, 2, (4, 2)),
    ),
    ("bernoulli", lambda: random.bernoulli(KEY, (A, B), 0.3), lambda: jax.random.bernoulli(KEY, 0.3, (4, 2))),
    (
        "bernoulli",
        lambda: random.bernoulli(KEY, (A, B), axn.named([0.0, 0.3, 0.6, 1.0], A)),
        lambda: jax.random.bernoulli(KEY, jnp.array([0.0, 0.3, 0.6, 1.0])[:, None], (4, 2)),
    ),
    ("randint", lambda: random.randint(KEY, (A, B), 3, 9), lambda: jax.random.randint(KEY, (4, 2), 3, 9)),
    (
        "randint",
        lambda: random.randint(KEY, (A, B), 0, axn.named([1, 100], B), jnp.int8),
        lambda: jax.random.randint(KEY, (4, 2), 0, jnp.array([1, 100]), jnp.int8),
    ),
    (
        "categorical",
        lambda: random.categorical(KEY, axn.arange((A, B), dtype=float), "b"),
        lambda: jax.random.categorical(KEY, jnp.arange(8.0).reshape(4, 2), -1),
    ),
    (
        "permutation",
        lambda: random.permutation(KEY, axn.arange((B, A)), "a"),
        lambda: jax.random.permutation(KEY, jnp.arange(8).reshape(2, 4), axis=1),
    ),
    (
        "permutation",
        lambda: random.permutation(KEY, axn.arange((B, A)), "a", independent=True),
        lambda: jax.random.permutation(KEY, jnp.arange(8).reshape(2, 4), axis=1, independent=True),
    ),
]
IDS = [f"{name}-{i}" for i, (name, *_) in enumerate(ROWS)]


def test_every_function_has_a_row() -> None:
    assert {name for name, *_ in ROWS} == set(random.__all__)


@pytest.mark.parametrize(("call", "reference"), [row[1:] for row in ROWS], ids=IDS)
class TestLaws:
    def test_equals_jax(self, call: Any, reference: Any) -> None:
        result, expected = call(), reference()
        assert len(result.names) == result.ndim
        assert_close(result.array, np.asarray(expected))
        assert result.dtype == expected.dtype
        assert_close(jax.jit(call)().array, np.asarray(expected))

    @pytest.mark.parametrize("kind", ["auto", "explicit"])
    def test_does_not_depend_on_the_layout(
        self, call: Any, reference: Any, kind: str, request: pytest.FixtureRequest
    ) -> None:
        expected = np.asarray(reference())
        with jax.set_mesh(request.getfixturevalue(f"{kind}_mesh")), axn.axis_mapping({"a": "data", "b": "model"}):
            assert_close(np.asarray(jax.jit(call)().array), expected)


def test_names_come_in_the_order_of_the_axes() -> None:
    assert random.normal(KEY, (B, A)).axes == (B, A)
    assert random.normal(KEY, {"q": 3}).axes == (axn.Axis("q", 3),)
    assert random.normal(KEY, ()).axes == ()
    assert random.categorical(KEY, axn.ones((A, B)), "a").names == ("b",)
    assert random.permutation(KEY, axn.ones((A, B)), A).names == ("a", "b")


def test_the_order_of_logits_does_not_matter_to_their_distribution() -> None:
    logits = axn.named(jnp.array([[0.0, -np.inf], [-np.inf, 0.0]]), ("a", "b"))
    for stored in (logits, logits.rearrange(("b", "a"))):
        assert random.categorical(KEY, stored, "b").tolist() == [0, 1]
        assert random.categorical(KEY, stored.untag("a"), "b").array.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_results_are_laid_out_by_the_mapping(kind: str, request: pytest.FixtureRequest) -> None:
    with jax.set_mesh(request.getfixturevalue(f"{kind}_mesh")), axn.axis_mapping({"a": "data", "b": "model"}):
        drawn = jax.jit(lambda: random.normal(KEY, (B, A)))()
        assert drawn.sharding.spec == PartitionSpec("model", "data")


def test_axes_under_vmap_draw_their_own_values() -> None:
    keys = axn.NamedArray(jax.random.split(KEY, 4), "a")
    drawn = axn.vmap(lambda key: random.normal(key.array, B), "a")(keys)
    assert drawn.axes == (A, B)
    assert_close(drawn.array, jax.vmap(lambda key: jax.random.normal(key, 2))(keys.array))


INPUT = KEY, A

BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "axn.random.normal(key, 'a')",
        lambda key, A: axn.random.normal(key, "a"),
        OperandError,
        "normal: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        "axn.random.normal(key, (A, A))",
        lambda key, A: axn.random.normal(key, (A, A)),
        AxisClashError,
        "normal: axis 'a' is given twice\n  axes: a, a",
    ),
    (
        "axn.random.normal(A, key)",
        lambda key, A: axn.random.normal(A, key),
        OperandError,
        "normal: an object of type PRNGKeyArray is neither an Axis nor the name of one\n"
        '  hint: write an axis as Axis("batch", 32) or as "batch"',
    ),
    (
        "axn.random.bernoulli(key, A, axn.ones(axn.Axis('b', 2)))",
        lambda key, A: axn.random.bernoulli(key, A, axn.ones(axn.Axis("b", 2))),
        AxisNotFoundError,
        "bernoulli: a parameter has axis 'b', which the result would not have\n  parameter has: b=2\n  asked for: a=4",
    ),
    (
        "axn.random.bernoulli(key, A, axn.ones(A.resize(2)))",
        lambda key, A: axn.random.bernoulli(key, A, axn.ones(A.resize(2))),
        AxisSizeError,
        "bernoulli: axis 'a' has two sizes: 4 and 2\n"
        "  operand 1 has: a=4\n"
        "  operand 2 has: a=2\n"
        "  hint: rename one of the two 'a' axes",
    ),
    (
        "axn.random.randint(key, A, 0, axn.full(axn.Axis('b', 2), 3))",
        lambda key, A: axn.random.randint(key, A, 0, axn.full(axn.Axis("b", 2), 3)),
        AxisNotFoundError,
        "randint: a parameter has axis 'b', which the result would not have\n  parameter has: b=2\n  asked for: a=4",
    ),
    (
        "axn.random.categorical(key, axn.ones(A), 'b')",
        lambda key, A: axn.random.categorical(key, axn.ones(A), "b"),
        AxisNotFoundError,
        "rearrange: no axis named 'b'\n  array has: a=4",
    ),
    (
        "axn.random.categorical(key, axn.ones(A), A.resize(2))",
        lambda key, A: axn.random.categorical(key, axn.ones(A), A.resize(2)),
        AxisSizeError,
        "rearrange: axis 'a' was given with size 2, but has size 4\n  array has: a=4",
    ),
    (
        "axn.random.categorical(key, np.ones(3), 'b')",
        lambda key, A: axn.random.categorical(key, np.ones(3), "b"),
        OperandError,
        "rearrange: expected a NamedArray, got ndarray\n"
        "  its shape: (3,)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.random.permutation(key, axn.ones(A), 'b')",
        lambda key, A: axn.random.permutation(key, axn.ones(A), "b"),
        AxisNotFoundError,
        "rearrange: no axis named 'b'\n  array has: a=4",
    ),
    (
        "axn.random.permutation(key, axn.ones(A), A.resize(2))",
        lambda key, A: axn.random.permutation(key, axn.ones(A), A.resize(2)),
        AxisSizeError,
        "rearrange: axis 'a' was given with size 2, but has size 4\n  array has: a=4",
    ),
    (
        "axn.random.permutation(key, np.ones(3), 'a')",
        lambda key, A: axn.random.permutation(key, np.ones(3), "a"),
        OperandError,
        "rearrange: expected a NamedArray, got ndarray\n"
        "  its shape: (3,)\n"
        '  hint: name it first: axn.named(array, ("batch", ...))',
    ),
    (
        "axn.random.truncated_normal(key, 'a', -1, 1)",
        lambda key, A: axn.random.truncated_normal(key, "a", -1, 1),
        OperandError,
        "truncated_normal: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(*INPUT)
    assert str(caught.value) == text


def test_a_plain_parameter_is_a_scalar() -> None:
    with pytest.raises(OperandError) as caught:
        random.bernoulli(KEY, (A, B), np.ones(2))
    assert str(caught.value) == (
        "bernoulli: a plain parameter of shape (2,) meets named axes a, b\n"
        "  hint: name it first: axn.named(array, (...))"
    )
