"""Softmax and standardisation: laws over one row per function."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import softmax as softmaxes
from tests.laws import Laws, Row, Smooth, SmoothBulk, Values, count_equations, has_row_for_each, row_along


def softmax(x: np.ndarray, axis: Any, where: Any = True) -> np.ndarray:
    powers = np.exp(x) * where
    return powers / powers.sum(axis, keepdims=True)


def one_array_kept(x: jax.Array, at: Any, where: Any = None) -> jax.Array:
    """Call `jax.nn.softmax` behind a derivative of its own, which here is the one that JAX finds by itself."""
    fn = jax.custom_jvp(lambda x, where: jax.nn.softmax(x, at, where))
    fn.defjvp(lambda primals, dots: jax.jvp(lambda x: jax.nn.softmax(x, at, primals[1]), primals[:1], dots[:1]))
    return fn(x, where)


row = functools.partial(row_along, softmaxes)


def standardized(x: Any, at: Any, where: Any = True) -> Any:
    mean = x.mean(at, keepdims=True, where=where)
    return (x - mean) / (x.var(at, keepdims=True, where=where) + 1e-5) ** 0.5


SMOOTH = [
    row("log_softmax", "c", -1, jax.nn.log_softmax, lambda x, at: np.log(softmax(x, at))),
    row("softmax", "b", 1, one_array_kept, softmax),
    row("softmax", ("c", "a"), (0, 2), one_array_kept, softmax, case="two axes"),
]


STEPS = [
    Row(
        "softmax",
        lambda x, mask: axn.softmax(x, "c", where=mask),
        ("abc", "cb"),
        lambda x, mask: one_array_kept(x, -1, jnp.transpose(mask)[None]),
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


SMOOTH_BULK = [
    row("standardize", ("a", "c"), (0, 2), standardized, standardized),
]


VARIANTS = [
    row("softmax", tuple("abc"), (0, 1, 2), one_array_kept, softmax, case="all axes"),
    row("softmax", axn.Axis("b", 2), 1, one_array_kept, softmax, case="Axis"),
    row("standardize", tuple("abc"), (0, 1, 2), standardized, standardized, case="all axes"),
    Row(
        "standardize",
        lambda x, mask: axn.standardize(x, "a", where=mask | (axn.arange(axn.Axis("a", 4)) < 2)),
        ("abc", "ac"),
        lambda x, mask: standardized(x, 0, (mask | (jnp.arange(4) < 2)[:, None])[:, None]),
        "abc",
        lambda x, mask: standardized(x, 0, (mask | (np.arange(4) < 2)[:, None])[:, None]),
        ("real", "bool"),
        case="masked",
    ),
    Row(
        "standardize",
        lambda x, mean, var: axn.standardize(x, "a", mean=mean, variance=var, epsilon=0.5),
        ("abc", "cb", "b"),
        lambda x, mean, var: (x - mean.T) / (var[:, None] + 0.5) ** 0.5,
        "abc",
        lambda x, mean, var: (x - mean.T) / (var[:, None] + np.float32(0.5)) ** 0.5,
        ("real", "real", "positive"),
        case="both known",
    ),
    Row(
        "standardize",
        lambda x, mean: axn.standardize(x, "a", mean=mean),
        ("abc", "cb"),
        lambda x, mean: (x - mean.T) / (((x - mean.T) ** 2).mean(0) + 1e-5) ** 0.5,
        "abc",
        lambda x, mean: (x - mean.T) / (((x - mean.T) ** 2).mean(0) + 1e-5) ** 0.5,
        case="mean known",
    ),
    Row(
        "standardize",
        lambda x, var: axn.standardize(x, "a", variance=var),
        ("abc", "b"),
        lambda x, var: (x - x.mean(0)) / (var[:, None] + 1e-5) ** 0.5,
        "abc",
        lambda x, var: (x - x.mean(0)) / (var[:, None] + np.float32(1e-5)) ** 0.5,
        ("real", "positive"),
        case="variance known",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + STEPS + SMOOTH_BULK, softmaxes)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Laws):
    """All laws but the gradient."""


@pytest.mark.parametrize("row", SMOOTH_BULK, ids=str)
class TestSmoothBulk(SmoothBulk):
    """What the engine does for all, gradients included."""


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
            lambda x: axn.log_softmax(x, axn.Axis("embed", 5)),
            AxisSizeError,
            f"log_softmax: axis 'embed' was given with size 5, but has size 3\n{AXES}",
        ),
        (
            lambda x: axn.softmax(x, "embed", where=axn.ones(axn.Axis("embed", 2), bool)),
            AxisSizeError,
            "softmax: axis 'embed' has two sizes: 3 and 2\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: embed=2\n"
            '  hint: if one is shifted by a place, cut the longer one: x["embed", :-1] or x["embed", 1:]',
        ),
        *(
            (
                getattr(axn, name),
                OperandError,
                f"{name}: say over which axis: without one, elements of a batch would be normalised together\n{AXES}\n"
                f'  hint: write {name}(x, "embed"); for all axes, {name}(x, x.names)',
            )
            for name in ("softmax", "log_softmax", "standardize")
        ),
        (
            lambda x: axn.softmax(jnp.ones(3), "embed"),
            OperandError,
            "softmax: expected a NamedArray, got a plain array\n"
            "  its shape: (3,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
        (
            lambda x: axn.standardize(x, "embed", mean=axn.ones(axn.Axis("batch", 3)), variance=1.0),
            AxisSizeError,
            "standardize: axis 'batch' has two sizes: 4 and 3\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: batch=3\n"
            "  operand 3 has: no axes\n"
            "  operand 4 has: no axes\n"
            '  hint: if one is shifted by a place, cut the longer one: x["batch", :-1] or x["batch", 1:]',
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3))))
    assert str(caught.value) == text


def test_standardize_loses_no_digits_far_from_zero() -> None:
    x = np.random.default_rng(0).normal(1000, 1, (2, 64)).astype(np.float32)
    result = axn.standardize(axn.named(x, ("batch", "embed")), "embed")
    np.testing.assert_allclose(result.array, standardized(x.astype(float), 1), atol=1e-3)


def test_standardize_finds_the_mean_once() -> None:
    x = jnp.ones((2, 8))

    def named(x: jax.Array) -> jax.Array:
        return axn.standardize(axn.NamedArray(x, ("batch", "embed")), "embed").array

    def by_hand(x: jax.Array) -> jax.Array:
        centered = x - x.mean(1, keepdims=True)
        return centered * lax.rsqrt(jnp.square(centered).mean(1, keepdims=True) + 1e-5)

    assert count_equations(named, x) <= count_equations(by_hand, x)
    assert [kept.shape for kept in jax.tree.leaves(jax.vjp(named, x)[1])] == [
        kept.shape for kept in jax.tree.leaves(jax.vjp(by_hand, x)[1])
    ]


def test_standardize_rounds_narrow_numbers_once_they_are_centered() -> None:
    x = jnp.array([1.0, 2, 4, 8, 16, 33], jnp.bfloat16)
    result = axn.standardize(axn.named(x, "a"), "a").array
    assert result.dtype == jnp.bfloat16
    wide = np.asarray(x, float)
    np.testing.assert_allclose(np.asarray(result, float), standardized(wide, 0), rtol=2**-7)


@pytest.mark.parametrize("x", [[-900.0, 300, 0, 600], [3.0, 3, 3, 3]])
def test_standardize_in_float16_beyond_its_range(x: list[float]) -> None:
    """A variance that is too large for it, or so small that the slope of the root is."""

    def fn(x: Any, xp: Any) -> Any:
        return (x - x.mean()) / xp.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)

    change = np.array([1.0, 2, -2, 3], np.float16)

    @functools.partial(jax.jit, static_argnums=2)
    def through(x: jax.Array, change: jax.Array, f: Any) -> Any:
        result, back = jax.vjp(f, x)
        return result, back(change)[0]

    narrow = np.array(x, np.float16)
    result, slope = through(narrow, change, lambda x: axn.standardize(axn.named(x, "a"), "a").array)
    np.testing.assert_allclose(result, fn(np.array(x), np), rtol=2**-9)
    _, expected = through(np.float32(x), np.float32(change), lambda x: fn(x, jnp))
    np.testing.assert_allclose(slope, expected, rtol=0.01, atol=1e-4)


def test_standardize_by_a_traced_epsilon() -> None:
    x = np.random.default_rng(0).normal(0, 1, (2, 8)).astype(np.float32)
    named = axn.named(x, ("batch", "embed"))
    result = jax.jit(lambda epsilon: axn.standardize(named, "embed", epsilon=epsilon))(0.5)
    np.testing.assert_allclose(result.array, jax.nn.standardize(x, epsilon=0.5), rtol=1e-5, atol=1e-6)


def test_softmax_passes_the_checks_that_jax_has_for_its_own_development() -> None:
    x = axn.named([[1.0, 2.0, 4.0], [0.0, 1.0, 0.0]], ("a", "b"))
    with jax.enable_checks(True):
        for where in (None, x > 0):
            given, mask = (None, None) if where is None else (where, where.array)
            out, change = jax.jvp(lambda x: axn.softmax(x, "b", where=given), (x,), (x,))  # noqa: B023
            expected = jax.jvp(lambda x: jax.nn.softmax(x, 1, mask), (x.array,), (x.array,))  # noqa: B023
            np.testing.assert_allclose((out.array, change.array), expected, rtol=1e-6, atol=1e-7)


INTO_INFINITY = {"square root": jnp.sqrt, "entropy": jax.scipy.special.entr, "logarithm": jnp.log}


@pytest.mark.parametrize("end", INTO_INFINITY)
def test_masked_elements_of_softmax_are_constants(end):
    x, mask = np.float32([1, 2, 3, 0]), np.array([True, True, False, True])
    visible = axn.named(mask, "a")

    def ours(x):
        return axn.nmap(INTO_INFINITY[end])(axn.softmax(axn.named(x, "a"), "a", where=visible)).array

    def theirs(x):
        return INTO_INFINITY[end](jax.nn.softmax(x, where=mask))

    @functools.partial(jax.jit, static_argnums=1)
    def derivatives(x, f):
        total = lambda x: f(x)[mask].sum() + f(x).sum(where=mask)  # noqa: E731
        # The derivative of the logarithm is infinite where it is masked.
        dots = jax.jvp(lambda x: f(jnp.log(x))[mask], (jnp.float32([1, 2, 0, 4]),), (jnp.ones_like(x),))
        return jax.grad(total)(x), jax.hessian(total)(x), dots

    both = derivatives(x, ours), derivatives(x, theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *both)
