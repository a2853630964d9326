"""Counting and covariances: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import collectives, totals

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import histogram as histograms
from tests.laws import Bulk, Row, SmoothBulk, Values, batch_then, has_row_for_each

Bin, Other = axn.make_axes(p=5, q=3)


def each(fn: Any) -> Any:
    """Map a numpy function over the first axis of all its arrays."""
    return lambda *arrays: tuple(np.stack(one) for one in zip(*map(fn, *arrays), strict=True))


def short(*histogram: axn.NamedArray) -> list[axn.NamedArray]:
    """Give edges one letter."""
    letters = {"p_edges": "e", "q_edges": "f"}
    return [x.rename({name: letters[name] for name in x.names if name in letters}) for x in histogram]


def counts(histogram: Any) -> Any:
    """Let a histogram of jax.numpy count in integers, as numpy does."""
    number, *edges = histogram
    return (number.real.astype(int), *edges)


def as_ints(histogram: Any) -> Any:
    number, *edges = histogram
    return (number.astype(np.int32), *(edge.astype(np.float32) for edge in edges))


SMOOTH = [
    Row(
        "corrcoef",
        lambda x: axn.corrcoef(x, "b", "i", "v"),
        ("abi",),
        jax.vmap(jnp.corrcoef),
        "abv",
        lambda x: np.stack([np.corrcoef(one).astype(x.dtype) for one in x]),
        names=batch_then("bi", "bv"),
        any_size=False,
    ),
    Row(
        "cov",
        lambda x: axn.cov(x, "b", ("i", "c"), "v"),
        ("abci",),
        jax.vmap(lambda x: jnp.cov(x.transpose(0, 2, 1).reshape(2, 24))),
        "abv",
        lambda x: np.stack([np.cov(one.transpose(0, 2, 1).reshape(2, 24)).astype(x.dtype) for one in x]),
        names=batch_then("bci", "bv"),
        any_size=False,
    ),
]


STEPS = [
    Row(
        "bincount",
        lambda x, w: axn.bincount(x, axn.Axis("s", 4), "i", weights=w),
        ("ai", "ia"),
        jax.vmap(lambda x, w: jnp.bincount(x, w, length=4), (0, 1)),
        "as",
        lambda x, w: np.stack([np.bincount(x[i], w[:, i], 4) for i in range(4)]).astype(w.dtype),
        ("shift", "int"),
        lambda x, w: "as",
    ),
    Row(
        "digitize",
        lambda x, bins: axn.digitize(x, bins.cumsum("i")),
        ("abc", "i"),
        lambda x, bins: jnp.digitize(x, jnp.cumsum(bins)),
        "abc",
        lambda x, bins: np.digitize(x, np.cumsum(bins)).astype(np.int32),
        ("int", "index"),
        lambda x, bins: x,
        speaker="(cumsum|digitize)",
    ),
    Row(
        "histogram",
        lambda x: short(*axn.histogram(x, Bin, ("i", "b"))),
        ("aib",),
        jax.vmap(lambda x: counts(jnp.histogram(x, 5))),
        ("ap", "ae"),
        each(lambda x: as_ints(np.histogram(x, 5))),
        names=lambda x: ["ap", "ae"],
        any_size=False,
    ),
    Row(
        "histogram2d",
        lambda x, y: short(*axn.histogram2d(x, y, (Bin, Other), "i")),
        ("ai", "ia"),
        jax.vmap(lambda x, y: counts(jnp.histogram2d(x, y, (5, 3))), (0, 1)),
        ("apq", "ae", "af"),
        lambda x, y: each(lambda x, y: as_ints(np.histogram2d(x, y, (5, 3))))(x, y.T),
        ("real", "unit"),
        lambda x, y: ["apq", "ae", "af"],
        any_size=False,
    ),
    Row(
        "histogram_bin_edges",
        lambda x: short(axn.histogram_bin_edges(x, Bin, "i"))[0],
        ("ai",),
        jax.vmap(lambda x: jnp.histogram_bin_edges(x, 5)),
        "ae",
        lambda x: np.stack([np.histogram_bin_edges(one, 5) for one in x]).astype(x.dtype),
        names=lambda x: "ae",
        any_size=False,
    ),
]


# These run the same code.
VARIANTS = [
    Row(
        "histogramdd",
        lambda x, w: axn.histogramdd(
            x.unbind("c"),
            (Bin, Other, axn.Axis("r", 2)),
            range=[(-1, 1), None, (0, axn.named(2.0, ()))],
            weights=w,
        )[0],
        ("ic", "i"),
        lambda x, w: jnp.histogramdd(x, (5, 3, 2), [jnp.array([-1, 1]), None, jnp.array([0, 2])], w)[0],
        "pqr",
        lambda x, w: np.histogramdd(x, (5, 3, 2), [(-1, 1), None, (0, 2)], weights=w)[0].astype(x.dtype),
        names=lambda x, w: "pqr",
    ),
    Row(
        "bincount",
        lambda x: axn.bincount(x, axn.Axis("s", 9)),
        ("ab",),
        lambda x: jnp.bincount(jnp.where(x < 0, 9, x).ravel(), length=9),
        "s",
        lambda x: np.bincount(x[(x >= 0) & (x < 9)], minlength=9).astype(np.int32),
        ("int",),
        lambda x: "s",
        case="all axes",
    ),
    Row(
        "cov",
        lambda x, f, w: axn.cov(x, axn.Axis("b", 2), "i", axn.Axis("v", 2), ddof=0, fweights=f, aweights=w),
        ("ib", "i", "i"),
        lambda x, f, w: jnp.cov(x, rowvar=False, ddof=0, fweights=f, aweights=w),
        "bv",
        None,
        ("complex", "shift", "positive"),
        lambda x, f, w: "bv",
        case="weights",
    ),
    Row(
        "cov",
        lambda x, w: axn.cov(x, "b", "i", "v", aweights=w),
        ("bi", "i"),
        lambda x, w: jnp.cov(x, aweights=w),
        "bv",
        lambda x, w: np.cov(x, aweights=w).astype(x.dtype),
        ("real", "positive"),
        lambda x, w: "bv",
        case="some weights",
    ),
    Row(
        "digitize",
        lambda x, bins: axn.digitize(x, -bins.cumsum("i"), "i", right=True),
        ("ab", "ia"),
        jax.vmap(lambda x, bins: jnp.digitize(x, -jnp.cumsum(bins), right=True), (0, 1)),
        "ab",
        None,
        ("int", "index"),
        lambda x, bins: x,
        case="falling, for each position",
    ),
    Row(
        "histogram",
        lambda x, w: short(*axn.histogram(x, Bin, "i", range=(-1, 2), weights=w, density=True)),
        ("ai", "ai"),
        jax.vmap(lambda x, w: jnp.histogram(x, 5, (-1, 2), w, density=True), out_axes=(0, None)),
        ("ap", "e"),
        lambda x, w: (
            np.stack([np.histogram(x[a], 5, (-1, 2), True, w[a])[0] for a in range(4)]).astype(x.dtype),
            np.linspace(-1, 2, 6, dtype=x.dtype),
        ),
        ("real", "positive"),
        lambda x, w: ["ap", "e"],
        case="density",
    ),
    Row(
        "histogram",
        lambda x, edges: axn.histogram(x, axn.Axis("p", 7), edges=edges.cumsum("i"))[0],
        ("abc", "i"),
        lambda x, edges: jnp.histogram(x, jnp.cumsum(edges))[0].astype(int),
        "p",
        lambda x, edges: np.histogram(x, np.cumsum(edges))[0].astype(np.int32),
        ("real", "positive"),
        lambda x, edges: "p",
        case="edges",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + STEPS + VARIANTS, histograms)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(SmoothBulk):
    """The laws of lifted functions, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Bulk):
    """The laws of lifted functions."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other axes."""


def test_one_variable_has_a_matrix_too() -> None:
    x = axn.named([[1.0, 2.0, 4.0]], ("b", "i"))
    assert axn.cov(x, "b", "i", "v").array.shape == axn.corrcoef(x, "b", "i", "v").array.shape == (1, 1)


def test_no_element_makes_empty_bins() -> None:
    found, edges = axn.histogram(axn.zeros(axn.Axis("i", 0)), axn.Axis("p", 2))
    assert (found.tolist(), edges.tolist()) == ([0, 0], [0, 0.5, 1])
    assert axn.bincount(axn.zeros(axn.Axis("i", 0), int), axn.Axis("p", 2)).tolist() == [0, 0]


def test_limits_may_differ_for_each_position_and_be_traced() -> None:
    x, low = axn.named([[0.0, 1.0, 2.0], [0.0, 4.0, 8.0]], ("a", "i")), axn.named([0.0, 4.0], "a")
    found, edges = jax.jit(lambda low: axn.histogram(x, axn.Axis("p", 2), "i", range=(low, 8.0)))(low)
    assert edges.names == ("a", "p_edges")
    assert edges.tolist() == [[0, 4, 8], [4, 6, 8]]
    assert found.tolist() == [[3, 0], [1, 1]]


def test_nan_is_in_no_bin_and_the_last_bin_has_both_edges() -> None:
    x = axn.named([np.nan, -1.0, 0.0, 1.0, 2.0, 3.0], "i")
    for limits in ((0, 2), np.array([0, 2])):
        assert axn.histogram(x, axn.Axis("p", 2), range=limits)[0].tolist() == [1, 2]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_histogram_of_a_split_array_moves_only_counts(weighted: bool, auto_mesh: jax.sharding.Mesh) -> None:
    rng, layout = np.random.default_rng(0), {"a": "data", "i": "model"}
    x, w = (axn.named(rng.uniform(-1, 1, (8, 3, 4)), ("a", "b", "i")) for _ in range(2))

    def counted(x: axn.NamedArray, w: axn.NamedArray) -> axn.NamedArray:
        return axn.histogram(x, axn.Axis("p", 5), range=(-0.5, 1.0), weights=w if weighted else None)[0]

    with axn.set_mesh(auto_mesh), axn.axis_mapping(layout):
        placed = axn.shard(x), axn.shard(w)
        program = jax.jit(counted).lower(*placed).compile()
        assert set(totals(collectives(program))) == {"all-reduce"}
        result = jax.jit(counted)(*placed)
    expected, _ = np.histogram(x.array, 5, (-0.5, 1.0), weights=w.array if weighted else None)
    np.testing.assert_allclose(result.array, expected, rtol=1e-5)


X = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))


EDGES = axn.named([0.0, 1.0, 2.0], "edge")


AXES = "  array has: batch=4, embed=6"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: axn.bincount(X, Bin),
            OperandError,
            "bincount: the counted array must have an integer dtype, not float32",
        ),
        (
            lambda: axn.bincount(X.astype(int), Bin, "embd"),
            AxisNotFoundError,
            f"bincount: no axis named 'embd'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        (
            lambda: axn.bincount(X.astype(int), "bin"),
            OperandError,
            "bincount: axis 'bin' needs a size here\n  hint: write Axis(\"bin\", size)",
        ),
        (
            lambda: axn.bincount(X.astype(int), axn.Axis("batch", 3), "embed"),
            AxisClashError,
            f"bincount: in the result, axis 'batch' would appear twice\n{AXES}",
        ),
        (
            lambda: axn.cov(X, "embed", "batch", axn.Axis("other", 5)),
            AxisSizeError,
            "cov: axis 'other' was given with size 5, but has size 6\n  array has: embed=6, other=6",
        ),
        (
            lambda: axn.cov(X, "embed", "batch", "embed"),
            AxisClashError,
            f"cov: in the result, axis 'embed' would appear twice\n{AXES}",
        ),
        (
            lambda: axn.cov(X, "embed", "embed", "other"),
            AxisClashError,
            "cov: axis 'embed' is given twice\n  axes: embed, embed",
        ),
        (
            lambda: axn.cov(X, "embed", "batch", "other", fweights=X["embed", 0]),
            OperandError,
            "cov: fweights must have an integer dtype, not float32",
        ),
        (
            lambda: axn.corrcoef(X.array, "embed", "batch", "other"),
            OperandError,
            "corrcoef: expected a NamedArray, got a plain array\n"
            "  its shape: (4, 6)\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: axn.digitize(X, X),
            AxisNotFoundError,
            f"digitize: needs one axis, got 2\n{AXES}\n  hint: say which one is meant: axis=...",
        ),
        (
            lambda: axn.histogram(X, Bin, edges=EDGES),
            AxisSizeError,
            "histogram: axis 'edge' was given with size 6, but has size 3\n  array has: edge=3",
        ),
        (
            lambda: axn.histogram(X, Bin, "embedd"),
            AxisNotFoundError,
            f"histogram: no axis named 'embedd'\n{AXES}\n  hint: did you mean 'embed'?",
        ),
        (
            lambda: axn.histogram(X, Bin, weights=X["batch", 0]),
            AxisNotFoundError,
            "histogram: operand 2 has no axis named 'batch'\n"
            "  operand 1 has: batch=4, embed=6\n  operand 2 has: embed=6",
        ),
        (
            lambda: axn.histogram2d(X, X, (Bin,)),
            ArgumentError,
            "histogram2d: 2 coordinates, but 1 axes of bins",
        ),
        (
            lambda: axn.histogramdd([X], [Bin], range=[None, None]),
            ArgumentError,
            "histogramdd: 1 coordinates, but 2 ranges",
        ),
        (
            lambda: axn.histogram2d(X, X, Bin),
            OperandError,
            "histogram2d: the axes of bins must be given as a list, not as Axis",
        ),
        (
            lambda: axn.histogramdd(X, [Bin]),
            OperandError,
            "histogramdd: the arrays must be given as a list, not as NamedArray",
        ),
        (
            lambda: axn.histogram(X, Bin, range=(0,)),
            ArgumentError,
            "histogram: a range must be a pair (lowest edge, highest edge), not a tuple of 1",
        ),
        (
            lambda: axn.histogram_bin_edges(X, Bin, range=3),
            ArgumentError,
            "histogram_bin_edges: a range must be a pair (lowest edge, highest edge), not int",
        ),
        (lambda: axn.histogramdd([], []), ArgumentError, "histogramdd: no coordinates given"),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
