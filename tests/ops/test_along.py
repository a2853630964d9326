"""Functions along an axis that keep it: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.core import wrap
from axonym.errors import ArgumentError, AxisClashError, AxisError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import along
from tests.laws import Bulk, Laws, Row, Smooth, SmoothBulk, Values, has_row_for_each, primitives


def softmax(x: np.ndarray, axis: Any, where: Any = True) -> np.ndarray:
    powers = np.exp(x) * where
    return powers / powers.sum(axis, keepdims=True)


def one_array_kept(x: jax.Array, at: Any, where: Any = None) -> jax.Array:
    """Call `jax.nn.softmax` behind a derivative of its own, which here is the one that JAX finds by itself."""
    fn = jax.custom_jvp(lambda x, where: jax.nn.softmax(x, at, where))
    fn.defjvp(lambda primals, dots: jax.jvp(lambda x: jax.nn.softmax(x, at, primals[1]), primals[:1], dots[:1]))
    return fn(x, where)


def row(
    name: str, axis: Any, at: Any, reference: Any, oracle: Any, *, case: str = "", domain: str = "real", **options: Any
) -> Row:
    fn = getattr(along, name)
    return Row(
        name,
        lambda x: fn(x, axis=axis, **options),
        ("abc",),
        lambda x: reference(x, at),
        "abc",
        None if oracle is None else lambda x: oracle(x, at),
        (domain,),
        case=case,
    )


def backwards(fn: Any) -> Any:
    return lambda x, at: np.flip(fn(np.flip(x, at), at), at)


def jax_backwards(fn: Any) -> Any:
    return lambda x, at: jnp.flip(fn(jnp.flip(x, at), at), at)


def cumlogsumexp(x: jax.Array, at: int) -> jax.Array:
    return lax.cumlogsumexp(x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(float), at)


def standardized(x: Any, at: Any, where: Any = True) -> Any:
    mean = x.mean(at, keepdims=True, where=where)
    return (x - mean) / (x.var(at, keepdims=True, where=where) + 1e-5) ** 0.5


def initial(fn: Any) -> Any:
    return lambda x, at: fn(x, axis=at, include_initial=True)


def as_bytes(x: axn.NamedArray) -> axn.NamedArray:
    return wrap(x, x.array.astype("uint8"), x.names)


def silent(fn: Any) -> Any:
    return lambda x, at: np.errstate(invalid="ignore")(fn)(x, at)


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


SMOOTH = [
    row("cumprod", "b", 1, jnp.cumprod, np.cumprod),
    row("cumsum", "a", 0, jnp.cumsum, np.cumsum),
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
    row("cumlogsumexp", "a", 0, cumlogsumexp, np.logaddexp.accumulate),
    row("cummax", "a", 0, jnp.maximum.accumulate, np.maximum.accumulate),
    row("cumulative_prod", "c", 2, initial(jnp.cumulative_prod), initial(np.cumulative_prod), include_initial=True),
    row("cumulative_sum", "a", 0, initial(jnp.cumulative_sum), initial(np.cumulative_sum), include_initial=True),
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
    row("standardize", ("a", "c"), (0, 2), standardized, standardized),
]
BULK = [
    row("cummin", "c", 2, jnp.minimum.accumulate, np.minimum.accumulate),
    row("nancumprod", "a", 0, jnp.nancumprod, silent(np.nancumprod), domain="special"),
    row("nancumsum", "a", 0, jnp.nancumsum, silent(np.nancumsum), domain="special"),
    row("packbits", "c", 2, jnp.packbits, np.packbits, domain="bool"),
    Row(
        "unpackbits",
        lambda x: axn.unpackbits(as_bytes(x), "a"),
        ("abc",),
        lambda x: jnp.unpackbits(x.astype("uint8"), 0),
        "abc",
        lambda x: np.unpackbits(x.astype("uint8"), 0),
        ("int",),
    ),
]
VARIANTS = [
    row("softmax", tuple("abc"), (0, 1, 2), one_array_kept, softmax, case="all axes"),
    row("softmax", axn.Axis("b", 2), 1, one_array_kept, softmax, case="Axis"),
    row("cumsum", axn.Axis("b", 2), 1, jnp.cumsum, np.cumsum, case="Axis"),
    row("cumsum", "c", 2, jax_backwards(jnp.cumsum), backwards(np.cumsum), case="reverse", reverse=True),
    row(
        "cumprod",
        "a",
        0,
        lambda x, at: jnp.flip(jnp.cumprod(jnp.flip(x, at), at, float), at),
        backwards(np.cumprod),
        case="reverse, dtype",
        domain="shift",
        dtype=float,
        reverse=True,
    ),
    row("cumsum", "a", 0, lambda x, at: jnp.cumsum(x, at, float), np.cumsum, case="dtype", domain="int", dtype=float),
    row(
        "cumlogsumexp",
        "a",
        0,
        jax_backwards(cumlogsumexp),
        backwards(np.logaddexp.accumulate),
        case="reverse",
        reverse=True,
    ),
    row(
        "cummax",
        "c",
        2,
        jax_backwards(jnp.maximum.accumulate),
        backwards(np.maximum.accumulate),
        case="reverse",
        reverse=True,
    ),
    row(
        "cummin",
        "a",
        0,
        jax_backwards(jnp.minimum.accumulate),
        backwards(np.minimum.accumulate),
        case="reverse, bool",
        domain="bool",
        reverse=True,
    ),
    row("cumulative_sum", "a", 0, lambda x, at: jnp.cumulative_sum(x, axis=at), np.cumsum, case="nothing in front"),
    row("flip", None, None, jnp.flip, np.flip, case="all axes"),
    row("flip", "b", 1, jnp.flip, np.flip, case="one axis"),
    row(
        "packbits",
        "a",
        0,
        lambda x, at: jnp.packbits(x, at, "little"),
        lambda x, at: np.packbits(x, at, "little"),
        case="little",
        domain="int",
        bitorder="little",
    ),
    Row(
        "unpackbits",
        lambda x: axn.unpackbits(as_bytes(x), "c", count=-5, bitorder="little"),
        ("abc",),
        lambda x: jnp.unpackbits(x.astype("uint8"), 2, -5, "little"),
        "abc",
        lambda x: np.unpackbits(x.astype("uint8"), 2, -5, "little"),
        ("int",),
        case="some, little",
    ),
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
    has_row_for_each(SMOOTH + STEPS + SMOOTH_BULK + BULK, along)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Laws):
    """All laws but the gradient."""


@pytest.mark.parametrize("row", SMOOTH_BULK, ids=str)
class TestSmoothBulk(SmoothBulk):
    """What the engine does for all, gradients included."""


@pytest.mark.parametrize("row", BULK, ids=str)
class TestBulk(Bulk):
    """What the engine does for all."""


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
            lambda x: x.flip(0),
            OperandError,
            'flip: 0 is neither an Axis nor the name of one\n  hint: write an axis as Axis("batch", 32) or as "batch"',
        ),
        (
            lambda x: axn.softmax(x, "embed", where=axn.ones(axn.Axis("embed", 2), bool)),
            AxisSizeError,
            "softmax: axis 'embed' has two sizes: 3 and 2\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: embed=2\n"
            "  hint: rename one of the two 'embed' axes",
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
            "softmax: expected a NamedArray, got ArrayImpl\n"
            "  its shape: (3,)\n"
            '  hint: name it first: axn.named(array, ("batch", ...))',
        ),
        (
            lambda x: axn.flip(3.0, "embed"),
            OperandError,
            'flip: expected a NamedArray, got float\n  hint: name it first: axn.named(array, ("batch", ...))',
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
            "  hint: rename one of the two 'batch' axes",
        ),
        (
            lambda x: axn.roll(jnp.ones(3), jnp.array(1), "embed"),
            OperandError,
            "roll: expected a NamedArray, got ArrayImpl\n"
            "  its shape: (3,)\n"
            '  hint: name it first: axn.named(array, ("batch", ...))',
        ),
        (
            lambda x: axn.packbits(x, "embed"),
            OperandError,
            "packbits: needs booleans or integers, got float32",
        ),
        (
            lambda x: axn.packbits(x > 0, "embed", bitorder="middle"),
            ArgumentError,
            "packbits: unknown bitorder 'middle'\n  hint: orders: big, little",
        ),
        (
            lambda x: axn.unpackbits(x, "embed"),
            OperandError,
            'unpackbits: needs uint8, got float32\n  hint: write x.astype("uint8")',
        ),
        (
            lambda x: axn.standardize(x, "embed", mean=axn.ones(axn.Axis("batch", 3)), variance=1.0),
            AxisSizeError,
            "standardize: axis 'batch' has two sizes: 4 and 3\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: batch=3\n"
            "  operand 3 has: no axes\n"
            "  operand 4 has: no axes\n"
            "  hint: rename one of the two 'batch' axes",
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

    assert primitives(named, x) == primitives(by_hand, x)
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
    result, back = jax.vjp(lambda x: axn.standardize(axn.named(x, "a"), "a").array, jnp.array(x, jnp.float16))
    np.testing.assert_allclose(result, fn(np.array(x), np), rtol=2**-9)
    _, expected = jax.vjp(lambda x: fn(x, jnp), jnp.array(x))
    np.testing.assert_allclose(back(change)[0], expected(jnp.array(change, float))[0], rtol=0.01, atol=1e-4)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_backwards_is_one_equation_and_in_the_dtype_of_forwards(name: str) -> None:
    fn, positional = getattr(along, name), getattr(jnp, name)
    x = axn.named([[2.0, 0, -2], [1, 3, 2]], ("a", "b"))
    assert primitives(lambda x: fn(x, "a", reverse=True), x) == [name]
    for own in (bool, jnp.int8, jnp.uint8, jnp.bfloat16):
        given = x.astype(own)
        for dtype in (None, bool, jnp.int16, float):
            expected = jnp.flip(positional(jnp.flip(given.array, 1), 1, dtype), 1)
            result = fn(given, "b", dtype, reverse=True).array
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)


def test_standardize_by_a_traced_epsilon() -> None:
    x = np.random.default_rng(0).normal(0, 1, (2, 8)).astype(np.float32)
    named = axn.named(x, ("batch", "embed"))
    result = jax.jit(lambda epsilon: axn.standardize(named, "embed", epsilon=epsilon))(0.5)
    np.testing.assert_allclose(result.array, jax.nn.standardize(x, epsilon=0.5), rtol=1e-5, atol=1e-6)


def test_a_running_maximum_of_weak_numbers_is_weak() -> None:
    assert axn.cummax(axn.full(axn.Axis("time", 3), 1.0), "time").weak_type


def test_a_maximum_is_nan_from_the_first_nan_on() -> None:
    x = axn.named([1.0, np.nan, 3.0], "time")
    np.testing.assert_array_equal(axn.cummax(x, "time").array, [1, np.nan, np.nan])
    np.testing.assert_array_equal(axn.cummin(x, "time", reverse=True).array, [np.nan, np.nan, 3])


def test_softmax_passes_the_checks_that_jax_has_for_its_own_development() -> None:
    x = axn.named([[1.0, 2.0, 4.0], [0.0, 1.0, 0.0]], ("a", "b"))
    with jax.enable_checks(True):
        for where in (None, x > 0):
            given, mask = (None, None) if where is None else (where, where.array)
            out, change = jax.jvp(lambda x: axn.softmax(x, "b", where=given), (x,), (x,))  # noqa: B023
            expected = jax.jvp(lambda x: jax.nn.softmax(x, 1, mask), (x.array,), (x.array,))  # noqa: B023
            np.testing.assert_allclose((out.array, change.array), expected, rtol=1e-6, atol=1e-7)


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


INTO_INFINITY = {"square root": jnp.sqrt, "entropy": jax.scipy.special.entr, "logarithm": jnp.log}


@pytest.mark.parametrize("end", INTO_INFINITY)
def test_masked_elements_of_softmax_are_constants(end):
    x, mask = np.float32([1, 2, 3, 0]), np.array([True, True, False, True])
    visible = axn.named(mask, "a")

    def ours(x):
        return axn.nmap(INTO_INFINITY[end])(axn.softmax(axn.named(x, "a"), "a", where=visible)).array

    def theirs(x):
        return INTO_INFINITY[end](jax.nn.softmax(x, where=mask))

    for derivative in (jax.grad, jax.hessian):
        results = (derivative(lambda x, f=f: f(x)[mask].sum() + f(x).sum(where=mask))(x) for f in (ours, theirs))
        np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)
    x = np.float32([1, 2, 0, 4])  # the derivative of the logarithm is infinite where it is masked
    dots = (jax.jvp(lambda x, f=f: f(jnp.log(x))[mask], (x,), (np.ones_like(x),)) for f in (ours, theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *dots)
