"""Polynomials by name: laws over one row per function, names of coefficient axes, sizes that depend on values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from axonym.ops import poly
from tests.laws import Bulk, Row, SmoothBulk, Values, has_row_for_each, placed


def kept(order: str, *_: str) -> list[tuple[str, ...]]:
    return [tuple(order)]


def each(fn: Any) -> Any:
    """Map a function of one-dimensional arrays in numpy; operands with one dimension are shared."""

    def mapped(*arrays: np.ndarray) -> Any:
        batched = [a for a in arrays if a.ndim > 1]
        results = [fn(*(a if a.ndim < 2 else a[i] for a in arrays)) for i in range(len(batched[0]))]
        return tuple(map(np.stack, zip(*results, strict=True))) if isinstance(results[0], tuple) else np.stack(results)

    return mapped


def one(name: str, oracle: Any, *args: Any, case: str = "", domain: str = "real", **options: Any) -> Row:
    call, fn = getattr(poly, name), getattr(jnp, name)
    return Row(
        name,
        lambda p: call(p, *args, **options, axis="j"),
        ("bj",),
        jax.vmap(lambda p: fn(p, *args, **options)),
        "bj",
        None if oracle is None else each(lambda p: oracle(p, *args, **options)),
        (domain,),
        kept,
        case,
    )


def two(name: str, operands: tuple[str, str], out: str, names: Any, oracle: Any, case: str = "") -> Row:
    """Make a row for two operands whose coefficients are not over b."""
    call, fn = getattr(poly, name), getattr(jnp, name)
    axis = tuple(axes.strip("b") for axes in operands)
    dims = tuple(0 if "b" in axes else None for axes in operands)
    outs: Any = (out, out) if name == "polydiv" else out
    return Row(
        name,
        lambda x, y: call(x, y, axis=axis),
        operands,
        jax.vmap(fn, dims),
        outs,
        None if oracle is None else each(oracle),
        ("real", "positive"),
        names,
        case,
    )


POLYFIT = Row(
    "polyfit",
    lambda x, y: axn.polyfit(x, y, 2),
    ("i", "bi"),
    lambda x, y: jnp.polyfit(1.0 * x, 1.0 * y.T, 2).T,
    "bi",
    lambda x, y: np.polyfit(x.astype(np.float64), y.T, 2).T,
    names=lambda x, y: [("i", "b")],
)
SMOOTH = [
    one("poly", np.poly),
    two("polyadd", ("bj", "i"), "bj", kept, np.polyadd),
    one("polyder", np.polyder, 2),
    two("polydiv", ("bi", "bj"), "bi", lambda x, _: kept(x) * 2, None),
    POLYFIT,
    one("polyint", np.polyint, 2),
    two("polymul", ("bj", "bi"), "bj", kept, np.polymul),
    two("polysub", ("i", "bj"), "bi", lambda *_: [("b", "i")], np.polysub),
    Row(
        "polyval",
        lambda p, x: axn.polyval(p, x, axis="j"),
        ("bj", "cb"),
        lambda p, x: jax.vmap(jnp.polyval, (0, 1), 1)(p, x),
        "cb",
        lambda p, x: np.polynomial.polynomial.polyval(x, p.T[::-1], tensor=False),
        ("real", "unit"),
        lambda _, x: kept(x),
    ),
    Row(
        "vander",
        lambda x: axn.vander(x, axn.Axis("k", 4)),
        ("bc",),
        jax.vmap(lambda x: jnp.vander(x, 4)),
        "bck",
        each(lambda x: np.vander(x, 4)),
        names=lambda x: [(*x, "k")],
    ),
]
STEPS = [
    Row(
        "roots",
        lambda p: axn.roots(p, strip_zeros=False, axis="j"),
        ("bj",),
        jax.vmap(lambda p: jnp.roots(p, strip_zeros=False)),
        "bj",
        None,
        ("positive",),
        kept,
    ),
]
VARIANTS = [
    one("polyder", np.polyder, case="once"),
    one("polyint", np.polyint, case="once"),
    one("polyint", np.polyint, 2, 3.0, case="with a constant"),
    one("polyint", np.polyint, 2, np.array([1.0, 2.0], np.float32), case="with constants"),
    Row(
        "polyint",
        lambda p, k: axn.polyint(p, 1, k, axis="j"),
        ("bj", "b"),
        jax.vmap(lambda p, k: jnp.polyint(p, 1, k)),
        "bj",
        lambda p, k: np.stack([np.polyint(one, 1, constant) for one, constant in zip(p, k, strict=True)]),
        names=kept,
        case="with a constant for each",
    ),
    Row(
        "polyint",
        lambda p, k: axn.polyint(p, 2, k, axis="j"),
        ("bj", "bz"),
        jax.vmap(lambda p, k: jnp.polyint(p, 2, k)),
        "bj",
        each(lambda p, k: np.polyint(p, 2, k)),
        names=kept,
        case="with constants for each",
    ),
    Row(
        "vander",
        lambda x: axn.vander(x, "k", increasing=True),
        ("i",),
        lambda x: jnp.vander(x, increasing=True),
        "ik",
        lambda x: np.vander(x, increasing=True),
        ("unit",),
        lambda x: [(*x, "k")],
        "as many as elements",
    ),
    Row(
        "polyfit",
        lambda x, y, w: axn.polyfit(x, y, 1, w=w, axis="i"),
        ("bi", "bi", "i"),
        lambda x, y, w: jax.vmap(lambda x, y: jnp.polyfit(x, y, 1, w=w))(x, y),
        "bi",
        lambda x, y, w: np.stack([np.polyfit(*xy, 1, w=w) for xy in zip(x, y, strict=True)]),
        ("real", "real", "positive"),
        lambda x, y, w: [("b", "i")],
        "weights",
    ),
    Row(
        "polyfit",
        lambda x, y: axn.polyfit(x, y, 2, full=True, rcond=1e-6),
        ("i", "cbi"),
        lambda x, y: full_fit(jnp.polyfit(x, y.reshape(6, 8).T, 2, full=True, rcond=1e-6)),
        ("icb", "cb", "", "i", ""),
        lambda x, y: full_fit(np.polyfit(x.astype(np.float64), y.reshape(6, 8).T, 2, full=True, rcond=1e-6)),
        names=lambda x, y: [("i", *y.replace("i", "")), tuple(y.replace("i", "")), (), ("i",), ()],
        case="full",
    ),
]


def full_fit(results: Any) -> Any:
    fit, rest, *others = results
    return (fit.reshape(3, 3, 2), rest.reshape(3, 2), *others)


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + STEPS, poly, without=["trim_zeros"])


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(SmoothBulk):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Bulk):
    """All laws but the gradient."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options."""


def coefficients(*values: float, name: str = "degree") -> axn.NamedArray:
    return axn.named(np.array(values, np.float32), name)


def same(x: axn.NamedArray, names: tuple[str, ...], expected: Any) -> None:
    assert x.names == names
    np.testing.assert_allclose(x.array, expected, rtol=1e-5, atol=1e-5)


P, Q = coefficients(1, 2, 3), coefficients(4, 5)


@pytest.mark.parametrize(
    "other", [Q, Q.rename({"degree": "power"}), np.array([4, 5], np.float32)], ids=["same", "other", "plain"]
)
@pytest.mark.parametrize("name", ["polyadd", "polysub", "polymul"])
def test_names_and_sizes_of_coefficient_axes_may_differ(name: str, other: Any) -> None:
    fn, oracle = getattr(axn, name), getattr(np, name)
    same(fn(P, other), ("degree",), oracle([1, 2, 3], [4, 5]))
    same(
        fn(other, P),
        ("power",) if getattr(other, "names", ()) == ("power",) else ("degree",),
        oracle([4, 5], [1, 2, 3]),
    )


def test_a_scalar_is_a_constant() -> None:
    same(axn.polyadd(P, 1), ("degree",), [1, 2, 4])
    same(axn.polysub(1, P), ("degree",), [-1, -2, -2])
    same(axn.polymul(P, 2.0), ("degree",), [2, 4, 6])
    same(axn.polydiv(P, 2.0)[0], ("degree",), [0.5, 1, 1.5])


def test_an_order_may_be_an_integer_of_numpy() -> None:
    same(axn.polyint(P, np.int64(2)), ("degree",), np.polyint([1, 2, 3], 2))


def test_one_axis_serves_both_operands() -> None:
    rows = axn.stack("batch", (P, 2 * P))
    same(
        axn.polymul(rows, Q, axis="degree"),
        ("batch", "degree"),
        [np.polymul([1, 2, 3], [4, 5]), np.polymul([2, 4, 6], [4, 5])],
    )
    # The coefficients of the second operand are not over the batch axis of the first, whatever their name is.
    other = Q.rename({"degree": "batch"})
    same(
        axn.polymul(rows, other, axis=("degree", "batch")),
        ("batch", "degree"),
        axn.polymul(rows, Q, axis="degree").array,
    )


def test_quotient_and_remainder_give_the_polynomial_back() -> None:
    p, d = coefficients(3, 5, 2, 7, 1), coefficients(2, 1, 4, name="divisor")
    quotient, remainder = axn.polydiv(p, d)
    assert (quotient.axes, remainder.axes) == ((axn.Axis("degree", 3),), p.axes)
    same(axn.polyadd(axn.polymul(quotient, d), remainder), ("degree",), p.array)
    same(axn.trim_zeros(remainder, "f"), ("degree",), np.polydiv([3, 5, 2, 7, 1], [2, 1, 4])[1])


def test_polynomials_are_evaluated_at_any_axes() -> None:
    grid = axn.arange((axn.Axis("x", 2), axn.Axis("y", 3)))
    same(axn.polyval(P, grid), ("x", "y"), np.polyval([1, 2, 3], np.arange(6).reshape(2, 3)))
    same(axn.polyval(P, 2), (), 11)
    same(axn.polyval(P, Q), ("degree",), np.polyval([1, 2, 3], [4, 5]))
    same(axn.polyval(np.array([1, 2, 3]), Q), ("degree",), np.polyval([1, 2, 3], [4, 5]))


def test_constants_of_integration_may_have_the_name_of_the_coefficients() -> None:
    same(axn.polyint(P, 2, Q), ("degree",), np.polyint([1, 2, 3], 2, [4, 5]))


def test_whole_numbers_are_fitted() -> None:
    x = axn.arange(axn.Axis("point", 5))
    same(axn.polyfit(x, 2 * x + 1, 1), ("point",), [2, 1])
    same(axn.polyfit(np.arange(5), 2 * x + 1, 1), ("point",), [2, 1])


@pytest.mark.parametrize("cov", [True, "unscaled"])
def test_a_fit_has_a_covariance(cov: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=8).astype(np.float32), rng.normal(size=(8, 3)).astype(np.float32)
    fit, covariance = axn.polyfit(axn.named(x, "point"), axn.named(y, ("point", "series")), 1, cov=cov)
    assert fit.names == ("point", "series")
    assert covariance.names == ("point", "point_cov", "series")
    for i in range(3):
        expected = np.polyfit(x, y[:, i], 1, cov=cov)
        np.testing.assert_allclose(fit.array[:, i], expected[0], rtol=1e-3)
        np.testing.assert_allclose(covariance.array[..., i], expected[1], rtol=1e-3, atol=1e-5)
    line = axn.polyfit(axn.named(x, "point"), axn.named(y[:, 0], "point"), 1, cov=cov)[1]
    same(line, ("point", "point_cov"), covariance.array[..., 0])


def test_roots_are_where_a_polynomial_is_zero() -> None:
    zeros = coefficients(3, -1, 2)
    found = axn.roots(axn.poly(zeros))
    np.testing.assert_allclose(np.sort(found.array.real), [-1, 2, 3], rtol=1e-4)
    assert axn.roots(coefficients(0, 0, 1, -2)).axes == (axn.Axis("degree", 1),)
    kept = axn.roots(coefficients(0, 0, 1, -2), strip_zeros=False)
    np.testing.assert_array_equal(np.isnan(kept.array), [False, True, True])


@pytest.mark.parametrize("trim", ["fb", "f", "b"])
def test_zeros_are_cut_where_all_elements_are_zero(trim: Any) -> None:
    for values in ([0, 0, 1, 0, 2, 0], [0, 0], [1, 2], []):
        expected = np.trim_zeros(np.array(values, np.float32), trim)
        same(axn.trim_zeros(coefficients(*values), trim), ("degree",), expected)
    rows = axn.named(np.array([[0, 1, 0, 0], [0, 0, 2, 0]]), ("batch", "degree"))
    cut = {"fb": [[1, 0], [0, 2]], "f": [[1, 0, 0], [0, 2, 0]], "b": [[0, 1, 0], [0, 0, 2]]}
    same(axn.trim_zeros(rows, trim, axis="degree"), ("batch", "degree"), cut[trim])
    same(
        axn.trim_zeros(rows.rearrange(("degree", "batch")), trim, axis="degree").rearrange(rows.names),
        rows.names,
        cut[trim],
    )


def test_what_depends_on_values_works_on_explicit_axes(explicit_mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(explicit_mesh):
        p = placed(coefficients(0, 1, -3, 2), explicit_mesh, {"degree": "data"})
        np.testing.assert_allclose(np.sort(np.asarray(axn.roots(p).array).real), [1, 2], rtol=1e-4)
        same(axn.trim_zeros(p), ("degree",), [1, -3, 2])


ROWS = axn.ones((axn.Axis("batch", 2), axn.Axis("degree", 3)))
HAS = "  array has: batch=2, degree=3"
WHICH = f'without an axis, the array must have just one\n{HAS}\n  hint: say which: axis="degree"'
UNKNOWN = "the size of the result depends on values, which are not known under jit, grad or vmap"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: axn.polyder(ROWS), AxisError, f"polyder: {WHICH}"),
        (lambda: axn.polyval(ROWS, 1.0), AxisError, f"polyval: {WHICH}"),
        (lambda: axn.polyadd(P, ROWS), AxisError, f"polyadd: {WHICH}"),
        (lambda: axn.trim_zeros(ROWS), AxisError, f"trim_zeros: {WHICH}"),
        (
            lambda: axn.poly(P["degree", 0]),
            AxisError,
            "poly: without an axis, the array must have just one\n  array has: no axes",
        ),
        (
            lambda: axn.polyder(ROWS, axis="degre"),
            AxisNotFoundError,
            f"polyder: no axis named 'degre'\n{HAS}\n  hint: did you mean 'degree'?",
        ),
        (
            lambda: axn.trim_zeros(ROWS, axis="degre"),
            AxisNotFoundError,
            f"trim_zeros: no axis named 'degre'\n{HAS}\n  hint: did you mean 'degree'?",
        ),
        (
            lambda: axn.polyfit(P["degree", :0], P["degree", :0], 1),
            AxisSizeError,
            "polyfit: there are no points to fit",
        ),
        (
            lambda: axn.roots(P, axis=axn.Axis("degree", 4)),
            AxisSizeError,
            "roots: axis 'degree' was given with size 4, but has size 3\n  array has: degree=3",
        ),
        (
            lambda: axn.polymul(ROWS, ROWS.rename({"batch": "other"}), axis="degree"),
            BroadcastError,
            "polymul: no operand has the axes of all others\n"
            "  operand 1 has: batch=2, degree=3\n"
            "  operand 2 has: other=2, degree'=3\n"
            "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(other)",
        ),
        (
            lambda: axn.polymul(ROWS, ROWS["batch", [0, 1, 1]], axis="degree"),
            AxisSizeError,
            "polymul: axis 'batch' has two sizes: 2 and 3\n"
            "  operand 1 has: batch=2, degree=3\n"
            "  operand 2 has: batch=3, degree'=3\n"
            '  hint: if one is shifted by a place, cut the longer one: x["batch", :-1] or x["batch", 1:]',
        ),
        (
            lambda: axn.polyadd(P, P, axis=("degree", "a", "b")),
            AxisError,
            "polyadd: axis is one axis, or one for each of two operands, not 3",
        ),
        (
            lambda: axn.polyadd(P, np.ones((2, 2))),
            OperandError,
            "polyadd: a plain array of shape (2, 2) does not match axes: degree'\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda: axn.polysub([1, 2], 3),
            OperandError,
            "polysub: expected a NamedArray, got list\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: axn.poly([1, 2]),
            OperandError,
            "poly: expected a NamedArray, got list\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (lambda: axn.polyder(P, -1), ArgumentError, "polyder: m must not be negative, got -1"),
        (lambda: axn.polyint(P, 1.0), OperandError, "polyint: m must be an int, not float"),
        (lambda: axn.polyfit(P, P, -1), ArgumentError, "polyfit: deg must not be negative, got -1"),
        (
            lambda: axn.polyfit(np.ones(3), np.ones(3), 1),
            OperandError,
            "polyfit: expected a NamedArray, got a plain array\n"
            "  its shape: (3,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
        (
            lambda: axn.polyfit(P, Q, 1),
            AxisSizeError,
            "polyfit: axis 'degree' has two sizes: 3 and 2\n"
            "  operand 1 has: degree=3\n"
            "  operand 2 has: degree=2\n"
            '  hint: if one is shifted by a place, cut the longer one: x["degree", :-1] or x["degree", 1:]',
        ),
        (
            lambda: axn.polyint(P, 3, Q),
            ArgumentError,
            "polyint: there are 2 constants of integration for 3 integrals\n  hint: one for all, or one for each",
        ),
        (
            lambda: axn.polyint(P, 2, axn.ones({"a": 2, "b": 2})),
            AxisError,
            "polyint: the constants have several axes that are not batch axes of the polynomial: a, b\n"
            "  the polynomial has: degree=3\n"
            "  k has: a=2, b=2",
        ),
        (
            lambda: axn.polyint(1.0, 1, 2.0),
            OperandError,
            "polyint: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: axn.roots(ROWS, axis="degree"),
            AxisError,
            f"roots: strip_zeros needs a single polynomial\n{HAS}\n"
            "  hint: strip_zeros=False gives each polynomial one root less than it has coefficients",
        ),
        (
            lambda: axn.roots(3),
            OperandError,
            "roots: expected a NamedArray, got int\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: jax.jit(axn.roots)(P),
            OperandError,
            f"roots: {UNKNOWN}\n  array has: degree=3\n"
            "  hint: strip_zeros=False gives each polynomial one root less than it has coefficients",
        ),
        (
            lambda: jax.jit(axn.trim_zeros)(P),
            OperandError,
            f"trim_zeros: {UNKNOWN}\n  array has: degree=3\n  hint: use a slice, whose size is static",
        ),
        (
            lambda: axn.trim_zeros(ROWS, axis=("batch", "degree")),
            OperandError,
            "trim_zeros: expected one axis, got 2: batch, degree",
        ),
        (lambda: axn.trim_zeros(P, "F"), ArgumentError, "trim_zeros: trim='F' is not one of 'fb', 'f', 'b'"),
        (
            lambda: axn.trim_zeros([0, 1]),
            OperandError,
            "trim_zeros: expected a NamedArray, got list\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: axn.vander(ROWS, "power"),
            AxisError,
            f"vander: the number of powers along 'power' is unknown\n{HAS}\n  hint: write Axis(\"power\", size)",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


def test_an_empty_polynomial_is_zero() -> None:
    none, some = axn.zeros(axn.Axis("degree", 0)), axn.named([1.0, 2.0], "degree")
    for name in ("polyadd", "polysub"):
        for p, q in ((none, some), (some, none), (none, none)):
            expected = getattr(np, name)(np.asarray(p.array), np.asarray(q.array))
            np.testing.assert_array_equal(getattr(axn, name)(p, q).array, expected)
