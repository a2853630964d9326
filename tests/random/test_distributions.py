"""Random arrays: values depend on the key and the axes alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import axonym as axn
from axonym import random
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from tests.laws import assert_close
from tests.together import Job, list_beside, together

pytestmark = pytest.mark.sampled

A, B = axn.make_axes(a=4, b=2)
SIZES = (4, 2)
KEY = jax.random.key(1)
LOW, HIGH = np.float32([0.5, 1.0, 2.0, 3.0]), np.float32([1.5, 4.0])
# A parameter over the first axis, which has to become a column, and one over the second, which has to become a row.
OF_A, OF_B, COLUMN, ROW = axn.named(LOW, A), axn.named(HIGH, B), LOW[:, None], HIGH[None]
P_A = axn.named(LOW / 4, A)
X, Y = axn.make_axes(x=3, y=3)
WEIGHTS = np.float32([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
OF_BX = axn.named(WEIGHTS, (B, X))
COV = np.float32([[2, 1, 0], [1, 2, 0], [0, 0, 1]])
OF_XY = axn.named(COV, (X, Y))
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
SAMPLE = axn.Axis("sample", 5)

Draw = Callable[[], Any]
# One row for each kind of sampler: these are also checked under jit and on meshes.
KINDS: list[tuple[str, Draw, Draw]] = [
    ("normal", lambda: random.normal(KEY, (A, B)), lambda: jax.random.normal(KEY, SIZES)),
    (
        "uniform",
        lambda: random.uniform(KEY, (A, B), maxval=OF_B),
        lambda: jax.random.uniform(KEY, SIZES, None, 0, ROW),
    ),
    (
        "truncated_normal",
        lambda: random.truncated_normal(KEY, (A, B), -1, 2),
        lambda: jax.random.truncated_normal(KEY, -1, 2, SIZES),
    ),
    (
        "bernoulli",
        lambda: random.bernoulli(KEY, (A, B), P_A),
        lambda: jax.random.bernoulli(KEY, COLUMN / 4, SIZES),
    ),
    (
        "randint",
        lambda: random.randint(KEY, (A, B), 0, axn.named([1, 100], B), jnp.int8),
        lambda: jax.random.randint(KEY, SIZES, 0, jnp.array([1, 100]), jnp.int8),
    ),
    ("gamma", lambda: random.gamma(KEY, (A, B), OF_A), lambda: jax.random.gamma(KEY, COLUMN, SIZES)),
    ("poisson", lambda: random.poisson(KEY, (A, B), OF_B), lambda: jax.random.poisson(KEY, ROW, SIZES)),
    (
        "binomial",
        lambda: random.binomial(KEY, (A, B), 9, P_A),
        lambda: jax.random.binomial(KEY, 9, COLUMN / 4, SIZES),
    ),
    (
        "weibull_min",
        lambda: random.weibull_min(KEY, (A, B), OF_A, OF_B),
        lambda: jax.random.weibull_min(KEY, COLUMN, ROW, SIZES),
    ),
    (
        "dirichlet",
        lambda: random.dirichlet(KEY, (A, B), OF_BX, "x"),
        lambda: jax.random.dirichlet(KEY, WEIGHTS[None], SIZES),
    ),
    (
        "multivariate_normal",
        lambda: random.multivariate_normal(KEY, (A, B), OF_BX, OF_XY, "x", "y"),
        lambda: jax.random.multivariate_normal(KEY, WEIGHTS[None], COV[None, None], SIZES),
    ),
    ("orthogonal", lambda: random.orthogonal(KEY, A, X, B), lambda: jax.random.orthogonal(KEY, 3, (4,), m=2)),
    (
        "categorical",
        lambda: random.categorical(KEY, axn.arange((A, B), dtype=float), "b"),
        lambda: jax.random.categorical(KEY, jnp.arange(8.0).reshape(4, 2), -1),
    ),
    (
        "categorical",
        lambda: random.categorical(KEY, axn.zeros((A, X, B)), "x"),
        lambda: jax.random.categorical(KEY, jnp.zeros((4, 2, 3)), -1),
    ),
    (
        "choice",
        lambda: random.choice(KEY, B, axn.named(TABLE, (A, X)), "a"),
        lambda: jax.random.choice(KEY, TABLE, (2,)),
    ),
    (
        "permutation",
        lambda: random.permutation(KEY, axn.arange((B, A)), "a"),
        lambda: jax.random.permutation(KEY, jnp.arange(8).reshape(2, 4), axis=1),
    ),
    (
        "permutation",
        lambda: random.permutation(KEY, axn.arange((A, B)), "a", independent=True),
        lambda: jax.random.permutation(KEY, jnp.arange(8).reshape(4, 2), independent=True),
    ),
    ("permutation", lambda: random.permutation(KEY, A), lambda: jax.random.permutation(KEY, 4)),
]
MORE: list[tuple[str, Draw, Draw]] = [
    ("normal", lambda: random.normal(KEY, A, jnp.bfloat16), lambda: jax.random.normal(KEY, 4, jnp.bfloat16)),
    ("normal", lambda: random.normal(KEY, (), complex), lambda: jax.random.normal(KEY, (), complex)),
    ("ball", lambda: random.ball(KEY, (A, B), X, 1.0), lambda: jax.random.ball(KEY, 3, 1.0, SIZES)),
    ("beta", lambda: random.beta(KEY, (A, B), OF_A, OF_B), lambda: jax.random.beta(KEY, COLUMN, ROW, SIZES)),
    ("bernoulli", lambda: random.bernoulli(KEY, (A, B), 0.3), lambda: jax.random.bernoulli(KEY, 0.3, SIZES)),
    ("bits", lambda: random.bits(KEY, (A, B), jnp.uint8), lambda: jax.random.bits(KEY, SIZES, jnp.uint8)),
    (
        "categorical",
        lambda: random.categorical(KEY, OF_BX, "x", (SAMPLE, B)),
        lambda: jax.random.categorical(KEY, WEIGHTS, -1, (5, 2)),
    ),
    (
        "categorical",
        lambda: random.categorical(KEY, OF_BX, "x", (B, SAMPLE)),
        lambda: jax.random.categorical(KEY, WEIGHTS[:, None], -1, (2, 5)),
    ),
    (
        "categorical",
        lambda: random.categorical(KEY, OF_BX, "b", (SAMPLE, X)),
        lambda: jax.random.categorical(KEY, WEIGHTS.T, -1, (5, 3)),
    ),
    (
        "categorical",
        lambda: random.categorical(KEY, OF_BX, "b", (X, SAMPLE)),
        lambda: jax.random.categorical(KEY, WEIGHTS.T[:, None], -1, (3, 5)),
    ),
    ("cauchy", lambda: random.cauchy(KEY, (A, B)), lambda: jax.random.cauchy(KEY, SIZES)),
    ("chisquare", lambda: random.chisquare(KEY, (A, B), OF_A), lambda: jax.random.chisquare(KEY, COLUMN, SIZES)),
    ("choice", lambda: random.choice(KEY, SAMPLE, A), lambda: jax.random.choice(KEY, 4, (5,))),
    ("choice", lambda: random.choice(KEY, B, A, replace=False), lambda: jax.random.choice(KEY, 4, (2,), False)),
    (
        "choice",
        lambda: random.choice(KEY, (SAMPLE, B), A, p=P_A),
        lambda: jax.random.choice(KEY, 4, (5, 2), p=LOW / 4),
    ),
    (
        "choice",
        lambda: random.choice(KEY, B, OF_A, p=P_A, replace=False),
        lambda: jax.random.choice(KEY, LOW, (2,), False, LOW / 4),
    ),
    (
        "choice",
        lambda: random.choice(KEY, (A, B), axn.named(TABLE, ("row", "x")), "x"),
        lambda: np.moveaxis(jax.random.choice(KEY, TABLE, SIZES, axis=1), 0, -1),
    ),
    (
        "choice",
        lambda: random.choice(KEY, A.resize(7), axn.named(TABLE, (A, X)), A),
        lambda: jax.random.choice(KEY, TABLE, (7,)),
    ),
    ("dirichlet", lambda: random.dirichlet(KEY, (), OF_A, A), lambda: jax.random.dirichlet(KEY, LOW, ())),
    (
        "double_sided_maxwell",
        lambda: random.double_sided_maxwell(KEY, (A, B), OF_A, OF_B),
        lambda: jax.random.double_sided_maxwell(KEY, 0, 1, SIZES) * HIGH + COLUMN,
    ),
    ("exponential", lambda: random.exponential(KEY, (A, B)), lambda: jax.random.exponential(KEY, SIZES)),
    (
        "f",
        lambda: random.f(KEY, (A, B), OF_A, OF_B),
        lambda: jax.random.f(KEY, *np.broadcast_arrays(COLUMN, HIGH), SIZES),
    ),
    (
        "generalized_normal",
        lambda: random.generalized_normal(KEY, (A, B), 3.0),
        lambda: jax.random.generalized_normal(KEY, 3.0, SIZES),
    ),
    (
        "geometric",
        lambda: random.geometric(KEY, (A, B), P_A),
        lambda: jax.random.geometric(KEY, COLUMN / 4, SIZES),
    ),
    ("gumbel", lambda: random.gumbel(KEY, (A, B)), lambda: jax.random.gumbel(KEY, SIZES)),
    ("laplace", lambda: random.laplace(KEY, (A, B)), lambda: jax.random.laplace(KEY, SIZES)),
    ("loggamma", lambda: random.loggamma(KEY, (A, B), OF_A), lambda: jax.random.loggamma(KEY, COLUMN, SIZES)),
    ("logistic", lambda: random.logistic(KEY, (A, B)), lambda: jax.random.logistic(KEY, SIZES)),
    ("lognormal", lambda: random.lognormal(KEY, (A, B), OF_B), lambda: jax.random.lognormal(KEY, ROW, SIZES)),
    ("lognormal", lambda: random.lognormal(KEY, (A, B)), lambda: jax.random.lognormal(KEY, shape=SIZES)),
    ("maxwell", lambda: random.maxwell(KEY, (A, B)), lambda: jax.random.maxwell(KEY, SIZES)),
    (
        "multinomial",
        lambda: random.multinomial(KEY, (A, B), axn.named([9, 5, 3, 1], A), OF_BX, X),
        lambda: jax.random.multinomial(KEY, np.array([[9], [5], [3], [1]]), np.broadcast_to(WEIGHTS, (4, 2, 3))),
    ),
    (
        "multivariate_normal",
        lambda: random.multivariate_normal(KEY, A, axn.zeros(X), OF_XY, X, Y, jnp.float32, "eigh"),
        lambda: jax.random.multivariate_normal(KEY, np.zeros(3), COV, (4,), jnp.float32, "eigh"),
    ),
    ("orthogonal", lambda: random.orthogonal(KEY, (), X, Y), lambda: jax.random.orthogonal(KEY, 3)),
    ("pareto", lambda: random.pareto(KEY, (A, B), OF_B), lambda: jax.random.pareto(KEY, ROW, SIZES)),
    (
        "permutation",
        lambda: random.permutation(KEY, axn.arange((B, A)), "a", independent=True),
        lambda: jax.random.permutation(KEY, jnp.arange(8).reshape(2, 4), axis=1, independent=True),
    ),
    ("permutation", lambda: random.permutation(KEY, OF_A), lambda: jax.random.permutation(KEY, LOW)),
    ("rademacher", lambda: random.rademacher(KEY, (A, B)), lambda: jax.random.rademacher(KEY, SIZES)),
    ("randint", lambda: random.randint(KEY, (A, B), 3, 9), lambda: jax.random.randint(KEY, SIZES, 3, 9)),
    ("rayleigh", lambda: random.rayleigh(KEY, (A, B), OF_A), lambda: jax.random.rayleigh(KEY, COLUMN, SIZES)),
    ("t", lambda: random.t(KEY, (A, B), OF_B), lambda: jax.random.t(KEY, ROW, SIZES)),
    (
        "triangular",
        lambda: random.triangular(KEY, (A, B), 0, OF_A, 5.0),
        lambda: jax.random.triangular(KEY, 0, COLUMN, 5.0, SIZES),
    ),
    (
        "truncated_normal",
        lambda: random.truncated_normal(KEY, (A, B), 0.0, OF_A),
        lambda: jax.random.truncated_normal(KEY, 0.0, COLUMN, SIZES),
    ),
    ("uniform", lambda: random.uniform(KEY, (A, B)), lambda: jax.random.uniform(KEY, SIZES)),
    (
        "uniform",
        lambda: random.uniform(KEY, (A, B), jnp.bfloat16, -2, OF_B),
        lambda: jax.random.uniform(KEY, SIZES, jnp.bfloat16, -2, ROW),
    ),
    ("wald", lambda: random.wald(KEY, (A, B), OF_A), lambda: jax.random.wald(KEY, COLUMN, SIZES)),
]


def ids(rows: list[tuple[str, Draw, Draw]]) -> list[str]:
    return [f"{name}-{i}" for i, (name, *_) in enumerate(rows)]


def test_every_function_has_a_row() -> None:
    assert {name for name, *_ in [*KINDS, *MORE]} == set(random.__all__) - {"fold_in", "split"}


@pytest.mark.parametrize(("call", "reference"), [row[1:] for row in [*KINDS, *MORE]], ids=ids([*KINDS, *MORE]))
def test_draws_the_numbers_that_jax_draws(call: Draw, reference: Draw) -> None:
    result, expected = call(), reference()
    assert len(result.names) == result.ndim
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result.array, expected)


def job_of(row: tuple[str, Draw, Draw], kind: str) -> Job:
    """Give a row to `together`, which keeps what is drawn on each kind of mesh apart."""
    return row[1], ()


@pytest.mark.parametrize("row", KINDS, ids=ids(KINDS))
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_does_not_depend_on_the_layout(row: tuple[str, Draw, Draw], kind: str, request: pytest.FixtureRequest) -> None:
    expected = np.asarray(row[2]())
    with jax.set_mesh(request.getfixturevalue(f"{kind}_mesh")), axn.axis_mapping({"a": "data", "b": "model"}):
        drawn = together(job_of, list_beside(request, "row", kind=kind), row, kind)
        assert_close(np.asarray(drawn.array), expected)
        wanted = [{"a": "data", "b": "model"}.get(name) for name in drawn.names]
        assert drawn.sharding.is_equivalent_to(NamedSharding(drawn.sharding.mesh, PartitionSpec(*wanted)), drawn.ndim)


def test_names_come_in_the_order_of_the_axes() -> None:
    assert random.normal(KEY, (B, A)).axes == (B, A)
    assert random.normal(KEY, {"q": 3}).axes == (axn.Axis("q", 3),)
    assert random.normal(KEY, ()).axes == ()
    assert random.categorical(KEY, axn.ones((A, B)), "a").names == ("b",)
    assert random.permutation(KEY, axn.ones((A, B)), A).names == ("a", "b")


def test_axes_may_come_one_by_one() -> None:
    given, expected = (axn.random.choice(KEY, axes, A) for axes in (iter((B, A)), (B, A)))
    assert given.axes == (B, A)
    np.testing.assert_array_equal(given.array, expected.array)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_results_are_laid_out_by_the_mapping(kind: str, request: pytest.FixtureRequest) -> None:
    with jax.set_mesh(request.getfixturevalue(f"{kind}_mesh")), axn.axis_mapping({"a": "data", "b": "model"}):
        drawn = jax.jit(lambda: random.normal(KEY, (B, A)))()
        assert drawn.sharding.spec == PartitionSpec("model", "data")


def test_parameters_have_gradients() -> None:
    def total(x: axn.NamedArray) -> jax.Array:
        drawn = random.uniform(KEY, (A, B), minval=x, maxval=9.0) + random.gamma(KEY, (A, B), x)
        return (drawn * axn.arange((A, B))).sum().scalar()

    def reference(x: jax.Array) -> jax.Array:
        drawn = jax.random.uniform(KEY, SIZES, None, x, 9.0) + jax.random.gamma(KEY, x, SIZES)
        return (drawn * jnp.arange(8).reshape(4, 2)).sum()

    gradient, expected = jax.jit(lambda x: (jax.grad(total)(x), jax.grad(reference)(x.array)))(OF_B)
    assert gradient.names == ("b",)
    assert_close(gradient.array, expected)


def test_axes_under_vmap_draw_their_own_values() -> None:
    keys = random.split(KEY, A)
    drawn = axn.vmap(lambda key: random.normal(key, B), "a")(keys)
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
        "normal: a PRNG key is neither an Axis nor the name of one\n"
        "  hint: the key is the first argument, or goes by its name: key=...",
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
        '  hint: if they are the same axis, cut the longer one, x["a", :2]; if not, rename one: x.rename({"a": ...})',
    ),
    (
        "axn.random.categorical(key, axn.ones(A), 'b')",
        lambda key, A: axn.random.categorical(key, axn.ones(A), "b"),
        AxisNotFoundError,
        "categorical: no axis named 'b'\n  array has: a=4",
    ),
    (
        "axn.random.categorical(key, axn.ones(A), A.resize(2))",
        lambda key, A: axn.random.categorical(key, axn.ones(A), A.resize(2)),
        AxisSizeError,
        "categorical: axis 'a' was given with size 2, but has size 4\n  array has: a=4",
    ),
    (
        "axn.random.categorical(key, np.ones(3), 'b')",
        lambda key, A: axn.random.categorical(key, np.ones(3), "b"),
        OperandError,
        "categorical: expected a NamedArray, got a plain array\n"
        "  its shape: (3,)\n"
        '  hint: name its dimensions first: axn.named(array, "batch")',
    ),
    (
        "axn.random.permutation(key, axn.ones(A), 'b')",
        lambda key, A: axn.random.permutation(key, axn.ones(A), "b"),
        AxisNotFoundError,
        "permutation: no axis named 'b'\n  array has: a=4",
    ),
    (
        "axn.random.permutation(key, np.ones(3), 'a')",
        lambda key, A: axn.random.permutation(key, np.ones(3), "a"),
        OperandError,
        "permutation: expected a NamedArray, got a plain array\n"
        "  its shape: (3,)\n"
        '  hint: name its dimensions first: axn.named(array, "batch")',
    ),
    (
        "axn.random.normal(jax.random.split(key, 2), A)",
        lambda key, A: axn.random.normal(jax.random.split(key, 2), A),
        OperandError,
        "normal: key must be a single key, not an array of keys of shape (2,)\n"
        "  hint: pass one of them, as in: k_embed, k_mlp = jax.random.split(key)",
    ),
    (
        "axn.random.normal(axn.random.split(key, A), A)",
        lambda key, A: axn.random.normal(axn.random.split(key, A), A),
        OperandError,
        "normal: key must be a single key, not an array of keys\n"
        "  keys have: a=4\n"
        '  hint: draw once per key: axn.vmap(lambda key: axn.random.normal(key, ...), "a")(keys)',
    ),
    (
        'axn.random.gamma(key, A, axn.ones({"A": 4}))',
        lambda key, A: axn.random.gamma(key, A, axn.ones({"A": 4})),
        AxisNotFoundError,
        "gamma: a parameter has axis 'A', which the result would not have\n"
        "  parameter has: A=4\n"
        "  asked for: a=4\n"
        "  hint: did you mean 'a'?",
    ),
    (
        'axn.random.gamma(key, A, "1")',
        lambda key, A: axn.random.gamma(key, A, "1"),
        OperandError,
        "gamma: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        'axn.random.ball(key, A, "a")',
        lambda key, A: axn.random.ball(key, A, "a"),
        OperandError,
        "ball: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        'axn.random.dirichlet(key, A, axn.ones(A), "topic")',
        lambda key, A: axn.random.dirichlet(key, A, axn.ones(A), "topic"),
        AxisNotFoundError,
        "dirichlet: no axis named 'topic'\n  array has: a=4",
    ),
    (
        'axn.random.dirichlet(key, A, axn.ones(A), "a")',
        lambda key, A: axn.random.dirichlet(key, A, axn.ones(A), "a"),
        AxisClashError,
        "dirichlet: axis 'a' is given twice\n  axes: a, a",
    ),
    (
        "axn.random.multinomial(key, A, 5, axn.ones(X), X.resize(2))",
        lambda key, A: axn.random.multinomial(key, A, 5, axn.ones(X), X.resize(2)),
        AxisSizeError,
        "multinomial: axis 'x' was given with size 2, but has size 3\n  array has: x=3",
    ),
    (
        'axn.random.multivariate_normal(key, A, axn.ones(X), axn.ones((X, A)), "x", "a")',
        lambda key, A: axn.random.multivariate_normal(key, A, axn.ones(X), axn.ones((X, A)), "x", "a"),
        OperandError,
        "multivariate_normal: the covariance needs two axes of size 3, not x=3 and a=4\n  mean has: x=3",
    ),
    (
        'axn.random.multivariate_normal(key, A, axn.ones(X), axn.ones((X, B)), "x", "x")',
        lambda key, A: axn.random.multivariate_normal(key, A, axn.ones(X), axn.ones((X, B)), "x", "x"),
        OperandError,
        "multivariate_normal: the covariance needs two axes of size 3, not x=3 and x=3\n  mean has: x=3",
    ),
    (
        'axn.random.multivariate_normal(key, A, axn.ones(X), axn.ones({"x": 3, "y": 3}), "x", "y", method="lu")',
        lambda key, A: axn.random.multivariate_normal(
            key, A, axn.ones(X), axn.ones({"x": 3, "y": 3}), "x", "y", method="lu"
        ),
        ArgumentError,
        "multivariate_normal: method must be 'cholesky', 'eigh' or 'svd', not 'lu'",
    ),
    (
        "axn.random.orthogonal(key, A, X, A)",
        lambda key, A: axn.random.orthogonal(key, A, X, A),
        AxisClashError,
        "orthogonal: axis 'a' is given twice\n  axes: a, x, a",
    ),
    (
        'axn.random.categorical(key, axn.ones((A, B)), "b", X)',
        lambda key, A: axn.random.categorical(key, axn.ones((A, B)), "b", X),
        AxisNotFoundError,
        "categorical: a parameter has axis 'a', which the result would not have\n"
        "  parameter has: a=4, b=2\n"
        "  asked for: x=3",
    ),
    (
        "axn.random.choice(key, X, axn.ones((A, B)))",
        lambda key, A: axn.random.choice(key, X, axn.ones((A, B))),
        OperandError,
        'choice: without an axis, the array must have just one, not 2\n  array has: a=4, b=2\n  hint: give axis="..."',
    ),
    (
        'axn.random.choice(key, X, axn.ones((A, B)), "c")',
        lambda key, A: axn.random.choice(key, X, axn.ones((A, B)), "c"),
        AxisNotFoundError,
        "choice: no axis named 'c'\n  array has: a=4, b=2",
    ),
    (
        'axn.random.choice(key, B, axn.ones((A, B)), "a")',
        lambda key, A: axn.random.choice(key, B, axn.ones((A, B)), "a"),
        AxisClashError,
        "choice: axis 'b' is given twice\n  axes: b, b",
    ),
    (
        'axn.random.choice(key, axn.Axis("s", 5), A, replace=False)',
        lambda key, A: axn.random.choice(key, axn.Axis("s", 5), A, replace=False),
        ArgumentError,
        "choice: cannot choose 5 of a=4 without replacement",
    ),
    (
        'axn.random.choice(key, X, axn.Axis("none", 0))',
        lambda key, A: axn.random.choice(key, X, axn.Axis("none", 0)),
        ArgumentError,
        "choice: cannot choose 3 of none=0",
    ),
    (
        'axn.random.choice(key, X, axn.ones((A, B)).untag("b"), "a")',
        lambda key, A: axn.random.choice(key, X, axn.ones((A, B)).untag("b"), "a"),
        OperandError,
        "choice: the array has anonymous dimensions\n  it has: anonymous (2,), a=4",
    ),
    (
        "axn.random.choice(key, X, A, p=axn.ones((A, B)))",
        lambda key, A: axn.random.choice(key, X, A, p=axn.ones((A, B))),
        OperandError,
        "choice: p must have exactly one axis\n  it has: a=4, b=2",
    ),
    (
        "axn.random.permutation(key, axn.ones((A, B)))",
        lambda key, A: axn.random.permutation(key, axn.ones((A, B))),
        OperandError,
        "permutation: without an axis, the array must have just one, not 2\n"
        "  array has: a=4, b=2\n"
        '  hint: give axis="..."',
    ),
    (
        "axn.random.fold_in(key, np.ones(3, int))",
        lambda key, A: axn.random.fold_in(key, np.ones(3, int)),
        OperandError,
        "fold_in: expected a NamedArray, got a PRNG key\n"
        "  its shape: ()\n"
        "  hint: name its dimensions first: axn.named(array, ())",
    ),
    (
        "axn.random.fold_in(axn.random.split(key, A), axn.arange(B))",
        lambda key, A: axn.random.fold_in(axn.random.split(key, A), axn.arange(B)),
        BroadcastError,
        "fold_in: no operand has the axes of all others\n"
        "  operand 1 has: a=4\n"
        "  operand 2 has: b=2\n"
        "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(b)",
    ),
    (
        "axn.random.normal(key, A, B)",
        lambda key, A: axn.random.normal(key, A, B),
        OperandError,
        "normal: several axes go in a tuple, as one argument\n  axes: a=4, b=2",
    ),
    (
        "axn.random.normal(None, A)",
        lambda key, A: axn.random.normal(None, A),
        OperandError,
        "normal: key must be a PRNG key, not NoneType\n  hint: make one from a seed: jax.random.key(0)",
    ),
    (
        "axn.random.split(0, A)",
        lambda key, A: axn.random.split(0, A),
        OperandError,
        "split: key must be a PRNG key, not int\n  hint: make one from a seed: jax.random.key(0)",
    ),
    (
        "axn.random.fold_in(0, 1)",
        lambda key, A: axn.random.fold_in(0, 1),
        OperandError,
        "fold_in: key must be a PRNG key, not int\n  hint: make one from a seed: jax.random.key(0)",
    ),
    (
        "axn.random.permutation(0, axn.arange(A))",
        lambda key, A: axn.random.permutation(0, axn.arange(A)),
        OperandError,
        "permutation: key must be a PRNG key, not int\n  hint: make one from a seed: jax.random.key(0)",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(*INPUT)
    assert str(caught.value) == text
