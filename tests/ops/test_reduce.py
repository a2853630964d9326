"""Functions that remove axes: laws over one row per function, and its options."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from axonym.ops import nan_reduce, reduce
from tests.laws import DOMAINS, Bulk, Laws, Row, Smooth, SmoothBulk, Values, assert_close


def logsumexp(x: np.ndarray, axis: Any = None, where: Any = True) -> np.ndarray:
    return np.log(np.sum(np.exp(x), axis, where=where))


def logmeanexp(x: np.ndarray, axis: Any = None) -> np.ndarray:
    return np.log(np.mean(np.exp(x), axis))


JNP = {"logsumexp": jax.nn.logsumexp, "logmeanexp": jax.nn.logmeanexp}
NUMPY = {"logsumexp": logsumexp, "logmeanexp": logmeanexp}


def over(name: str, axis: Any, at: Any, out: str, domain: str = "real", *, case: str = "", **options: Any) -> Row:
    """Make a row for a reduction over `axis`, which stands at the dimensions `at` of a, b, c."""
    fn, positional = getattr(axn, name), JNP.get(name) or getattr(jnp, name)
    oracle = NUMPY.get(name) or getattr(np, name)
    return Row(
        name,
        lambda x: fn(x, axis, **options),
        ("abc",),
        lambda x: positional(x, at, **options),
        out,
        None if "dtype" in options or "initial" in options else lambda x: oracle(x, at, **options),
        (domain,),
        case=case,
    )


def limits(dtype: Any) -> tuple[Any, Any]:
    """Return where the search for a largest and for a smallest element starts."""
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    return (False, True) if jnp.issubdtype(dtype, jnp.bool_) else (-np.inf, np.inf)


def masked(name: str, domain: str = "real") -> Row:
    """Make a row with a mask over two of three axes, stored the other way round."""
    fn, positional = getattr(axn, name), JNP.get(name) or getattr(jnp, name)

    def start(dtype: Any) -> dict[str, Any]:
        if name in {"nanmax", "nanmin"} and jnp.issubdtype(dtype, jnp.inexact):
            return {}
        low, high = limits(dtype)
        starts = {"max": low, "min": high, "ptp": True}
        extremum = name.removeprefix("nan")
        return {"initial": starts[extremum]} if extremum in starts else {}

    def reference(x: jax.Array, mask: jax.Array) -> jax.Array:
        if name in {"nanmax", "nanmin"} and jnp.issubdtype(x.dtype, jnp.inexact):
            return positional(jnp.where(mask.T[:, None], x, jnp.nan), (-3, -1))
        options = {"where": jnp.expand_dims(mask.T, 1), **start(x.dtype)}
        if name == "ptp":
            return jnp.max(x, (0, 2), **options) - jnp.min(x, (0, 2), **options)
        return positional(x, (-3, -1), **options)

    return Row(
        name,
        lambda x, mask: fn(x, ("a", "c"), where=mask, **start(x.dtype)),
        ("abc", "ca"),
        reference,
        "b",
        None,
        (domain, "bool"),
        case="masked",
    )


def moved(array: Any) -> Any:
    return array.transpose(1, 2, 0).reshape(array.shape[1], -1)


SMOOTH = [
    over("logsumexp", ("c", "a"), (2, 0), "b"),
    over("max", "b", 1, "ac"),
    over("mean", "b", 1, "ac"),
    over("min", ("c", "a"), (2, 0), "b"),
    over("prod", "a", 0, "bc"),
    over("ptp", "c", 2, "ab"),
    over("sum", ("c", "a"), (2, 0), "b"),
    over("var", "a", 0, "bc"),
]
STEPS = [
    over("all", "b", 1, "ac", "bool"),
    over("any", ("c", "a"), (2, 0), "b", "bool"),
    over("argmax", "a", 0, "bc"),
    over("argmin", "c", 2, "ab"),
]


def with_nan(name: str, axis: Any, at: Any, out: str) -> Row:
    """Make a row for what leaves NaN out, of numbers most of which but the smallest are turned into NaN."""
    fn, positional, oracle = getattr(axn, name), getattr(jnp, name), getattr(np, name)
    return Row(
        name,
        lambda x: fn(axn.where((x > 0) & (x > x.min(axis)), jnp.nan, x), axis),
        ("abc",),
        lambda x: positional(jnp.where((x > 0) & (x > x.min(at, keepdims=True)), jnp.nan, x), at),
        out,
        lambda x: oracle(np.where((x > 0) & (x > x.min(at, keepdims=True)), np.nan, x), at),
        case="NaN",
    )


def average(x: Any, weights: Any) -> Any:
    """Weigh the way jnp and numpy do it: with weights of the whole shape."""
    module = jnp if isinstance(x, jax.Array) else np
    full = module.broadcast_to(weights.T[:, None], x.shape)
    return module.average(x, (2, 1), full)


PLAIN_SMOOTH = [
    over("logmeanexp", ("c", "a"), (2, 0), "b"),
    over("nanmax", "b", 1, "ac"),
    over("nanmean", "b", 1, "ac"),
    over("nanmin", ("c", "a"), (2, 0), "b"),
    over("nanprod", "a", 0, "bc"),
    over("nanstd", ("c", "a"), (2, 0), "b"),
    over("nansum", ("c", "a"), (2, 0), "b"),
    over("nanvar", "a", 0, "bc"),
    over("std", ("c", "a"), (2, 0), "b"),
    over("average", "b", 1, "ac", case="equal weights"),
    Row(
        "average",
        lambda x, weights: axn.average(x, ("c", "b"), weights),
        ("abc", "ca"),
        average,
        "a",
        average,
        ("real", "positive"),
    ),
]
PLAIN_STEPS = [
    over("count_nonzero", ("c", "a"), (2, 0), "b", "shift"),
    over("nanargmax", "a", 0, "bc"),
    over("nanargmin", "c", 2, "ab"),
]
MASKED = [
    masked("all", "bool"),
    masked("any", "bool"),
    masked("logsumexp"),
    masked("max"),
    masked("mean"),
    masked("min"),
    masked("prod"),
    masked("sum"),
    masked("var"),
]
PLAIN_MASKED = [
    masked("logmeanexp"),
    *(masked(name) for name in ("nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar")),
    masked("ptp"),
    masked("std"),
]
UNMASKED = {"argmax", "argmin", "average", "count_nonzero", "nanargmax", "nanargmin"}
NAMES = sorted([*reduce.__all__, *nan_reduce.__all__])
VARIANTS = [
    *(
        over(name, None, None, "", "bool" if name in {"all", "any"} else "real", case="all axes")
        for name in NAMES
        if not name.endswith(("argmax", "argmin"))  # the order of the axes decides: a test of their own
    ),
    over("sum", axn.Axis("b", 2), 1, "ac", case="Axis"),
    over("sum", [axn.Axis("b", 2), "a"], (0, 1), "c", case="list"),
    over("sum", {"b": 2, "a": None}, (0, 1), "c", case="dict"),
    over("sum", (), (), "abc", case="no axis"),
    over("max", (), (), "abc", case="no axis"),
    *(over(name, "b", 1, "ac", dtype=jnp.bfloat16, case="dtype") for name in ("mean", "prod", "std", "sum", "var")),
    over("sum", "b", 1, "ac", "bool", dtype="float32", case="dtype of bools"),
    over("std", "a", 0, "bc", ddof=1, case="ddof"),
    over("var", "a", 0, "bc", ddof=1, case="ddof"),
    over("max", "a", 0, "bc", initial=0.0, case="initial"),
    over("min", "a", 0, "bc", initial=0.0, case="initial"),
    *(over(name, "b", 1, "ac", initial=2.0, case="initial") for name in ("nanmax", "nanmin", "nanprod", "nansum")),
    over("prod", "b", 1, "ac", initial=2, case="initial"),
    # Of positive numbers: a sum of 16 bits that is near zero depends on the order of its terms.
    over("sum", ("c", "a"), (2, 0), "b", "positive", initial=2, dtype=jnp.bfloat16, case="initial"),
    *(with_nan(name, "b", 1, "ac") for name in NAMES if name.startswith("nan")),
    Row(
        "average",
        lambda x, weights: axn.average(x, "b", weights),
        ("abc", "ca"),
        lambda x, weights: jnp.average(x, 1),
        "ac",
        lambda x, weights: np.average(x, 1),
        ("real", "positive"),
        case="weights that do not differ",
    ),
    Row(
        "average",
        lambda x, weights: axn.average(x, weights=weights),
        ("abc", "abc"),
        lambda x, weights: jnp.average(x, weights=weights),
        "",
        lambda x, weights: np.average(x, weights=weights),
        ("int", "shift"),
        case="integers, all axes",
    ),
    Row(
        "argmax",
        lambda x: x.argmax(("c", "a")),
        ("abc",),
        lambda x: jnp.argmax(moved(x), -1),
        "b",
        lambda x: np.argmax(moved(x), -1),
        case="several axes, in the order of the call",
    ),
    Row(
        "argmin",
        lambda x: x.argmin(("c", "a")),
        ("abc",),
        lambda x: jnp.argmin(moved(x), -1),
        "b",
        lambda x: np.argmin(moved(x), -1),
        case="several axes, in the order of the call",
    ),
    Row(
        "sum",
        lambda x, mask: x.sum("a", where=mask),
        ("abc", ""),
        lambda x, mask: jnp.sum(x, 0, where=mask),
        "bc",
        domains=("real", "bool"),
        case="0-d mask",
    ),
]


def test_every_function_has_a_row() -> None:
    assert {row.function for row in SMOOTH + STEPS + PLAIN_SMOOTH + PLAIN_STEPS} == set(NAMES)
    assert {row.function for row in MASKED + PLAIN_MASKED} == set(NAMES) - UNMASKED


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", STEPS + MASKED, ids=str)
class TestSteps(Laws):
    """All laws but the gradient."""


@pytest.mark.parametrize("row", PLAIN_SMOOTH, ids=str)
class TestPlainSmooth(SmoothBulk):
    """Fewer examples, gradients included, of an engine that the rows above have put through all laws."""


@pytest.mark.parametrize("row", PLAIN_STEPS + PLAIN_MASKED, ids=str)
class TestPlainSteps(Bulk):
    """Fewer examples."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axis."""


def test_a_plain_mask() -> None:
    x = axn.named([1.0, 2.0, 3.0], "a")
    assert (x.sum(where=True).item(), x.sum(where=jnp.array(False)).item()) == (6.0, 0.0)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int32, jnp.uint32, jnp.float32, jnp.bfloat16, bool])
def test_a_masked_extremum_keeps_the_dtype(dtype: Any) -> None:
    x = axn.named(jnp.array([0, 1], dtype), "a")
    none = axn.named([False, False], "a")
    low, high = limits(x.dtype)
    starts = (axn.max, low), (axn.min, high), (axn.max, 0), (axn.min, 1)
    masked = lambda x, where: [extremum(x, where=where, initial=start) for extremum, start in starts]  # noqa: E731
    of_none, of_all = jax.jit(lambda x, none: (masked(x, none), masked(x, ~none)))(x, none)
    for empty, whole, (_, start) in zip(of_none, of_all, starts, strict=True):
        assert empty.item() == start
        assert whole.dtype == x.dtype
    if dtype is not bool:  # which has no difference
        assert x.ptp(where=~none, initial=1).item() == 1


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e4m3b11fnuz, jnp.float8_e5m2])
def test_a_masked_extremum_of_narrow_floats(dtype: Any) -> None:
    x, mask = axn.named(jnp.array([-1, -2, -3], dtype), "a"), axn.named([False, True, True], "a")
    start = [{"initial": limit} for limit in (jnp.finfo(dtype).min, jnp.finfo(dtype).max)]
    found = x.max(where=mask, **start[0]), x.min(where=mask, **start[1])
    ignoring = axn.nanmax(x, where=mask), axn.nanmin(x, where=mask)
    assert [float(value.scalar()) for value in (*found, *ignoring)] == [-2, -3, -2, -3]


@pytest.mark.parametrize("name", ["std", "nanstd"])
def test_the_gradient_of_the_deviation_of_equal_elements_is_zero(name: str) -> None:
    x = axn.named([[3.0, 3.0, 3.0], [1.0, 2.0, 6.0]], ("batch", "time"))
    gradient = jax.jit(jax.grad(lambda x: getattr(axn, name)(x, "time").sum().scalar()))(x).array
    row = np.array([1.0, 2.0, 6.0])
    np.testing.assert_allclose(gradient, [np.zeros(3), (row - row.mean()) / (3 * row.std())], rtol=1e-6)

    def of_row(row: jax.Array) -> jax.Array:
        return getattr(axn, name)(axn.named(row, "time")).scalar()

    hessian = jax.jit(jax.hessian(of_row))
    np.testing.assert_allclose(hessian(row), jax.jit(jax.hessian(jnp.std))(row), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(hessian(np.full(3, 3.0)), np.zeros((3, 3)))


def test_averages_of_integers_do_not_overflow() -> None:
    x = axn.named(jnp.full(4, 2**30), "a")
    assert axn.average(x, "a", axn.named([1, 2, 3, 4], "a")).item() == 2**30


def test_argmax_over_all_axes_counts_as_flatten_does() -> None:
    array = jnp.asarray(DOMAINS["real"](np.random.default_rng(0), (4, 2, 3)))
    for x in (axn.named(array, [*"abc"]), axn.named(array.transpose(2, 0, 1), [*"cab"])):
        assert x.flatten("all")["all", x.argmax()].item() == x.max().item()
        assert x.flatten("all")["all", x.argmin()].item() == x.min().item()


def test_a_reduction_over_all_axes_leaves_anonymous_dimensions() -> None:
    x = axn.ones((axn.Axis("a", 2), axn.Axis("b", 3))).untag("a")
    assert (x.sum().array.shape, x.sum().names) == ((2,), ())
    assert_close(x.sum().array, jnp.array([3.0, 3.0]))


def test_scalar_takes_the_0_d_array_out() -> None:
    x = axn.named([1.0, 2.0], "a")
    assert_close(jax.grad(lambda x: (x * x).sum().scalar())(x).array, jnp.array([2.0, 4.0]))


AXES = "  array has: batch=4, embed=3"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: x.sum("embd"),
            AxisNotFoundError,
            f"sum: no axis named 'embd'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        (
            lambda x: x.std(("batch", "Embed")),
            AxisNotFoundError,
            f"std: no axis named 'Embed'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        (lambda x: x.argmax("zebra"), AxisNotFoundError, f"argmax: no axis named 'zebra'\n{AXES}"),
        (
            lambda x: axn.logsumexp(x["batch", 0]["embed", 0], "q"),
            AxisNotFoundError,
            "logsumexp: no axis named 'q'\n  array has: no axes",
        ),
        (
            lambda x: x.max(axn.Axis("embed", 4)),
            AxisSizeError,
            f"max: axis 'embed' was given with size 4, but has size 3\n{AXES}",
        ),
        (
            lambda x: x.argmin(axn.Axis("embed", 4)),
            AxisSizeError,
            f"argmin: axis 'embed' was given with size 4, but has size 3\n{AXES}",
        ),
        (
            lambda x: x.mean(("batch", "batch")),
            AxisClashError,
            "mean: axis 'batch' is given twice\n  axes: batch, batch",
        ),
        (
            lambda x: x.prod(1),
            OperandError,
            'prod: 1 is a position, but axes have names\n  array has: batch=4, embed=3\n  hint: write "embed"',
        ),
        (
            lambda x: x.min((-1, "batch")),
            OperandError,
            'min: -1 is a position, but axes have names\n  array has: batch=4, embed=3\n  hint: write "embed"',
        ),
        (
            lambda x: x.sum("batch", where=axn.ones(axn.Axis("embd", 3), bool)),
            AxisNotFoundError,
            "sum: no axis named 'embd'\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: embd=3\n"
            "  hint: did you mean 'embed'?",
        ),
        (
            lambda x: x.any("batch", where=axn.ones(axn.Axis("embed", 2), bool)),
            AxisSizeError,
            "any: axis 'embed' has two sizes: 3 and 2\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: embed=2\n"
            '  hint: if one is shifted by a place, cut the longer one: x["embed", :-1] or x["embed", 1:]',
        ),
        (
            lambda x: x.sum("batch", where=[True] * 4),
            OperandError,
            "sum: cannot combine a NamedArray and list\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda x: x.sum("batch", where=np.ones(3, bool)),
            OperandError,
            "sum: the mask has shape (3,) and no names\n  array has: batch=4, embed=3\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda x: axn.sum(x.array, "batch"),
            OperandError,
            "sum: expected a NamedArray, got a plain array\n"
            "  its shape: (4, 3)\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.argmax([1], "batch"),
            OperandError,
            "argmax: expected a NamedArray, got list\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.nanmean(x, "embd"),
            AxisNotFoundError,
            f"nanmean: no axis named 'embd'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        (
            lambda x: x.sum("embed", initial=jnp.ones(())),
            OperandError,
            "sum: initial must be a number, not a plain array\n  hint: join it to the result: axn.add(result, initial)",
        ),
        (
            lambda x: axn.nanmax(x, "embed", initial=x),
            OperandError,
            "nanmax: initial must be a number, not NamedArray\n"
            "  hint: join it to the result: axn.maximum(result, initial)",
        ),
        (
            lambda x: axn.average(x, "embed", np.ones(3)),
            OperandError,
            f'average: weights must be a NamedArray, not a plain array\n{AXES}\n  hint: axn.named(weights, "axis")',
        ),
        (
            lambda x: axn.average(x.array, "embed", np.ones(3)),
            OperandError,
            "average: expected a NamedArray, got a plain array\n"
            "  its shape: (4, 3)\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.average(x, "embed", axn.ones(axn.Axis("embd", 3))),
            AxisNotFoundError,
            "average: no axis named 'embd'\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: embd=3\n"
            "  hint: did you mean 'embed'?",
        ),
        (
            lambda x: axn.average(x, "embed", axn.ones(axn.Axis("embed", 1))),
            AxisSizeError,
            "average: axis 'embed' has two sizes: 3 and 1\n"
            "  operand 1 has: batch=4, embed=3\n"
            "  operand 2 has: embed=1\n"
            '  hint: an axis of size 1 is not stretched: drop it, x["embed", 0]',
        ),
        (
            lambda x: x.mean("embed").scalar(),
            AxisSizeError,
            "scalar: the array has dimensions\n"
            "  array has: batch=4\n"
            "  hint: reduce them first, as x.mean().scalar() does",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3))))
    assert str(caught.value) == text


def test_a_mask_does_not_broadcast_the_array() -> None:
    x = axn.ones(axn.Axis("a", 2))
    with pytest.raises((AxisNotFoundError, BroadcastError)):
        x.sum("a", where=axn.ones((axn.Axis("a", 2), axn.Axis("b", 3)), bool))


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_variances_of_a_sample_count_its_degrees_of_freedom(name: str) -> None:
    values = np.array([[1.0, 4.0, 9.0, 2.0], [3.0, 3.0, 5.0, 8.0]], np.float32)
    if name.startswith("nan"):
        values[0, 1] = np.nan
    found = getattr(axn, name)(axn.named(values, ("batch", "time")), "time", ddof=1)
    np.testing.assert_allclose(found.array, getattr(np, name)(values, axis=1, ddof=1), rtol=1e-6)


def test_weights_may_lack_all_axes_and_anonymous_dimensions() -> None:
    x, weights = np.arange(24.0).reshape(2, 3, 4), np.array([1.0, 2, 3, 4])
    several = axn.NamedArray(jnp.asarray(x), ("a", "b"))
    with jax.numpy_rank_promotion("raise"):
        found = axn.average(several, "b", axn.named(weights, "b"))
        equal = axn.average(several, "b", axn.named(2.0, ()))
    np.testing.assert_allclose(found.array, np.average(x, -1, weights))
    np.testing.assert_allclose(equal.array, x.mean(-1))
