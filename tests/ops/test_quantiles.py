"""Medians, quantiles and percentiles: laws over one row per function, and their options."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import quantiles
from tests.laws import Row, SmoothBulk, Values, batch_then, count_equations, has_row_for_each


def with_nan(x: Any) -> Any:
    """Make NaN of most numbers but the smallest of each row."""
    module = jnp if isinstance(x, jax.Array) else np
    return module.where((x > 0) & (x > x.min((0, 2), keepdims=True)), module.nan, x)


def middle(name: str) -> Row:
    return Row(
        name,
        lambda x: getattr(axn, name)(x, ("c", "a")),
        ("abc",),
        lambda x: getattr(jnp, name)(x, (0, 2)),
        "b",
        lambda x: getattr(np, name)(x, (0, 2)),
        names=batch_then("ac", ""),
        any_size=False,  # JAX knows no rows, or no elements to rank, in one release or another
    )


def part(name: str, q: Any, **options: Any) -> Row:
    """Make a row for one plain part."""
    return Row(
        name,
        lambda x: getattr(axn, name)(x, q, "b", **options),
        ("abc",),
        lambda x: getattr(jnp, name)(x, float(q), 1, **options),
        "ac",
        lambda x: getattr(np, name)(x, q, 1, **options),
        names=batch_then("b", ""),
        case=f"{q} {options.get('method', '')}",
        any_size=False,
    )


def parts(name: str, scale: float) -> Row:
    """Make a row for parts that are a named array."""
    return Row(
        name,
        lambda x, q: getattr(axn, name)(x, q / 3 * scale, ("c", "a")),
        ("abc", "i"),
        lambda x, q: getattr(jnp, name)(x, q / 3 * scale, (0, 2)),
        "ib",
        lambda x, q: getattr(np, name)(x, q / 3 * scale, (0, 2)),
        ("real", "shift"),
        names=lambda x, q: "ib",
        any_size=False,
        speaker=f"({name}|divide)",  # one for each operand
    )


def weighed(name: str, q: float) -> Row:
    """Make a row for weights that lack an axis."""
    options: Any = {"method": "inverted_cdf"}
    return Row(
        name,
        lambda x, weights: getattr(axn, name)(x, q, "a", weights=weights, **options),
        ("abc", "ca"),
        lambda x, weights: getattr(jnp, name)(
            x, q, 0, weights=jnp.broadcast_to(weights.T[:, None], x.shape), **options
        ),
        "bc",
        lambda x, weights: getattr(np, name)(x, q, 0, weights=np.broadcast_to(weights.T[:, None], x.shape), **options),
        ("real", "positive"),
        names=lambda x, weights: x.replace("a", ""),
        case="weights",
        any_size=False,
    )


LAWS = [
    middle("median"),
    middle("nanmedian"),
    parts("nanpercentile", 100),
    parts("nanquantile", 1),
    parts("percentile", 100),
    parts("quantile", 1),
]
VARIANTS = [
    Row(
        "median",
        axn.median,
        ("abc",),
        jnp.median,
        "",
        np.median,
        case="all axes",
    ),
    Row(
        "nanmedian",
        lambda x: axn.nanmedian(axn.where((x > 0) & (x > x.min(("a", "c"))), jnp.nan, x), ("a", "c")),
        ("abc",),
        lambda x: jnp.nanmedian(with_nan(x), (0, 2)),
        "b",
        lambda x: np.nanmedian(with_nan(x), (0, 2)),
        case="NaN",
    ),
    part("quantile", 0),
    part("quantile", 0.3),
    *(part("quantile", 0.3, method=method) for method in quantiles._METHODS),
    part("nanquantile", 0.8, method="lower"),
    part("percentile", 30),
    part("nanpercentile", 80.5, method="midpoint"),
    weighed("quantile", 0.4),
    weighed("nanquantile", 0.4),
    weighed("percentile", 40),
    weighed("nanpercentile", 40),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(LAWS, quantiles)


@pytest.mark.parametrize("row", LAWS, ids=str)
class TestLaws(SmoothBulk):
    """All laws of what is mapped over batch axes."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the parts."""


def test_the_axes_of_the_parts_come_first() -> None:
    array = jnp.arange(24.0).reshape(2, 3, 4)
    x, q = axn.named(array, ("a", "b", "c")), axn.named([[0.0, 0.25, 0.5], [0.75, 0.9, 1.0]], ("i", "j"))
    result = x.quantile(q, "b")
    assert result.names == ("i", "j", "a", "c")
    np.testing.assert_allclose(result.array, np.quantile(array, q.array, 1), rtol=1e-6)
    assert x.quantile(q).names == ("i", "j")
    assert axn.quantile(x.untag("a"), q, "b").tag("a").names == ("a", "i", "j", "c")
    assert x.quantile(q, ()).names == ("i", "j", "a", "b", "c")


def test_elements_are_sorted_once_for_all_parts() -> None:
    x, q = axn.named(jnp.arange(6.0), "a"), axn.named([0.1, 0.5], "i")
    assert count_equations(lambda x, q: x.quantile(q), x, q) <= count_equations(jnp.quantile, x.array, q.array)


def test_a_traced_part() -> None:
    x = axn.named([3.0, 1.0, 2.0], "a")
    assert jax.jit(lambda q: x.quantile(q))(0.5).item() == 2
    assert jax.grad(lambda q: x.quantile(q).scalar())(0.6) == 2


def test_parts_are_exact_for_small_dtypes() -> None:
    x = axn.named(jnp.arange(1001.0), "a")
    assert x.quantile(axn.named([0.25, 0.5], "i").astype(jnp.bfloat16)).tolist() == [250, 500]
    assert x.quantile(1).item() == 1000
    assert (x % 256).astype(jnp.bfloat16).median().dtype == jnp.bfloat16


def test_parts_have_the_precision_of_the_elements_and_weights() -> None:
    values = np.array([0.0, 1.0, 10.0])
    with jax.enable_x64(True):
        x = axn.named(values, "a")
        assert axn.percentile(x, 30).item() == pytest.approx(np.percentile(values, 30), rel=1e-14)
        for part, q in ((axn.percentile, 30), (axn.quantile, axn.named(np.float32(0.3), ()))):
            found = part(x, q, method="inverted_cdf", weights=x)
            assert (found.dtype, found.item()) == (np.float64, 10)
        whole = x.astype(int)
        assert axn.percentile(whole, 30, method="inverted_cdf", weights=whole).item() == 10


def test_median_is_a_method() -> None:
    assert axn.named([3.0, 1.0, 2.0, 9.0], "a").median().item() == 2.5


AXES = "  array has: batch=4, embed=3"
FEW = axn.named([0.1, 0.9], "level")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: x.median("embd"),
            AxisNotFoundError,
            f"median: no axis named 'embd'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        (
            lambda x: axn.quantile(x, FEW, "embd"),
            AxisNotFoundError,
            f"quantile: no axis named 'embd'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        (
            lambda x: axn.nanquantile(x, FEW, axn.Axis("embed", 4)),
            AxisSizeError,
            "nanquantile: axis 'embed' was given with size 4, but has size 3\n" + AXES,
        ),
        (
            lambda x: axn.nanmedian(x, ("embed", "embed")),
            AxisClashError,
            "nanmedian: axis 'embed' is given twice\n  axes: embed, embed",
        ),
        (
            lambda x: axn.percentile(x, 5, ("embed", "embed")),
            AxisClashError,
            "percentile: axis 'embed' is given twice\n  axes: embed, embed",
        ),
        (
            lambda x: axn.quantile(x, FEW.rename({"level": "batch"}), "embed"),
            AxisClashError,
            f"quantile: axis 'batch' is in both q and the array\n{AXES}\n"
            "  hint: rename it, since the result has it too: q.rename({'batch': ...})",
        ),
        (
            lambda x: axn.nanpercentile(x, FEW.rename({"level": "embed"}), "embed"),
            AxisClashError,
            f"nanpercentile: axis 'embed' is in both q and the array\n{AXES}\n"
            "  hint: rename it, since the result has it too: q.rename({'embed': ...})",
        ),
        (
            lambda x: x.quantile(np.array([0.1, 0.9]), "embed"),
            OperandError,
            "quantile: a plain array of shape (2,) does not match axes: none\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda x: x.quantile([0.1, 0.9], "embed"),
            OperandError,
            "quantile: cannot combine a NamedArray and list\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (lambda x: x.quantile(95, "embed"), ArgumentError, "quantile: q must be between 0 and 1, got 95"),
        (lambda x: x.quantile(np.float32(1.5), "embed"), ArgumentError, "quantile: q must be between 0 and 1, got 1.5"),
        (
            lambda x: x.quantile(0.5, method=None),
            ArgumentError,
            "quantile: unknown method None\n  methods: linear, lower, higher, midpoint, nearest, inverted_cdf",
        ),
        (lambda x: axn.percentile(x, -0.5), ArgumentError, "percentile: q must be between 0 and 100, got -0.5"),
        (
            lambda x: x.quantile(0.5, method="linar"),
            ArgumentError,
            "quantile: unknown method 'linar'\n"
            "  methods: linear, lower, higher, midpoint, nearest, inverted_cdf\n"
            "  hint: did you mean 'linear'?",
        ),
        (
            lambda x: x.quantile(0.5, "embed", weights=x),
            ArgumentError,
            "quantile: method 'linear' does not support weights\n  hint: write method=\"inverted_cdf\"",
        ),
        (
            lambda x: x.quantile(0.5, weights=x["batch", 0], method="inverted_cdf"),
            AxisNotFoundError,
            "quantile: operand 3 has no axis named 'batch'\n"
            "  operand 2 has: batch=4, embed=3\n  operand 3 has: embed=3",
        ),
        (
            lambda x: x.quantile(0.5, "embed", weights=axn.ones({"embed": 3, "bach": 4}), method="inverted_cdf"),
            AxisNotFoundError,
            "quantile: no axis named 'bach'\n"
            "  operand 1 has: batch=4, embed=3\n  operand 2 has: embed=3, bach=4\n"
            "  hint: did you mean 'batch'?",
        ),
        (
            lambda x: x["embed", :0].median("embed"),
            AxisSizeError,
            "median: needs at least one element along the axes to reduce",
        ),
        (
            lambda x: axn.median(x.array),
            OperandError,
            "median: expected a NamedArray, got a plain array\n"
            "  its shape: (4, 3)\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.quantile(3.0, 0.5),
            OperandError,
            "quantile: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.quantile(3.0, FEW),
            OperandError,
            "quantile: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3))))
    assert str(caught.value) == text
