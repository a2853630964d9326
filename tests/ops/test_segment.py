"""Reductions over groups: laws over one row per function, with dense code as the reference."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from axonym.ops import segment
from tests.laws import Bulk, Row, SmoothBulk, Values, assert_close, count_equations, has_row_for_each

Segment = axn.Axis("s", 3)
NUMPY = {"segment_max": np.max, "segment_min": np.min, "segment_prod": np.prod, "segment_sum": np.sum}
EMPTY = {"segment_max": -np.inf, "segment_min": np.inf, "segment_prod": 1, "segment_sum": 0, "segment_mean": np.nan}


def reduced(name: str, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Reduce the last axis of an array by segments, one after the other."""
    fn = NUMPY.get(name, np.mean)
    parts = [fn(x[..., ids == i], -1) if (ids == i).any() else np.full(x.shape[:-1], EMPTY[name]) for i in range(3)]
    return np.stack(parts, -1).astype(x.dtype)


def row(name: str) -> Row:
    """Ids over one axis, some of them out of range."""
    fn, reference = getattr(segment, name), getattr(jax.ops, name, None)

    def mean(x: Any, ids: Any, size: int) -> Any:
        wide = x.astype(jnp.promote_types(jnp.result_type(x, float), jnp.float32))
        total = jax.ops.segment_sum(wide, ids, size)
        counts = jax.ops.segment_sum(jnp.ones(ids.shape, int), ids, size)
        return (total / counts[:, None]).astype(jnp.result_type(x, float))

    return Row(
        name,
        lambda x, ids: fn(x, ids, Segment),
        ("ai", "i"),
        lambda x, ids: (reference or mean)(x.T, ids, 3).T,
        "as",
        lambda x, ids: reduced(name, x, ids),
        ("real", "shift"),
        lambda x, ids: x.replace("i", "s"),
    )


def product(x: Any, w: Any, sizes: Any) -> Any:
    """Multiply (t, c) by the matrix (c, o) of each element's group, all of (g, c, o), in dense code."""
    ends = jnp.cumsum(sizes)
    at = jnp.arange(x.shape[0])[:, None]
    mine = (at >= ends - sizes) & (at < ends)
    chosen = jnp.where(mine[..., None, None], w, jnp.zeros((), w.dtype)).sum(1).astype(w.dtype)
    return jnp.einsum("tc,tco->to", x, chosen)


def ragged(x: axn.NamedArray, w: axn.NamedArray, sizes: axn.NamedArray, **options: Any) -> axn.NamedArray:
    return axn.ragged_dot(x, w, sizes, axis="c", ragged="i", groups="j", **options)


SMOOTH = [row("segment_sum")]
RAGGED = [
    Row(
        "ragged_dot",
        ragged,
        ("aic", "bjc", "aj"),
        jax.vmap(lambda x, w, sizes: product(x, w.transpose(1, 2, 0), sizes), (0, None, 0)),
        "aib",
        domains=("real", "real", "index"),
        names=lambda x, w, sizes: "aib",
        any_size=False,
    ),
]
STEPS = [row("segment_mean")]
# These run the same code.
VARIANTS = [
    row("segment_max"),
    row("segment_min"),
    row("segment_prod"),
    Row(
        "segment_sum",
        lambda x, ids: axn.segment_sum(x, ids, Segment, axis="i", mode="drop"),
        ("iba", "ai"),
        jax.vmap(lambda x, ids: jax.ops.segment_sum(x, ids, 3), (2, 0)),
        "asb",
        None,
        ("real", "shift"),
        lambda x, ids: x.replace("i", "s"),
        case="ids for each position",
    ),
    Row(
        "segment_sum",
        lambda x, ids: axn.segment_sum(x, ids, Segment),
        ("abc", "cb"),
        lambda x, ids: jax.vmap(lambda x: jax.ops.segment_sum(x.T.ravel(), ids.ravel(), 3))(x),
        "as",
        lambda x, ids: reduced("segment_sum", x.reshape(4, 6), ids.T.ravel()),
        ("real", "shift"),
        lambda x, ids: "as",
        case="two axes",
    ),
    Row(
        "segment_sum",
        lambda x, ids: axn.segment_sum(x, axn.sort(ids, "i"), axn.Axis("i", 4), indices_are_sorted=True),
        ("i", "i"),
        lambda x, ids: jax.ops.segment_sum(x, jnp.sort(ids), 4),
        "i",
        None,
        ("int", "shift"),
        case="sorted, the same name",
    ),
    Row(
        "ragged_dot",
        ragged,
        ("ci", "jc", "j"),
        lambda x, w, sizes: product(x.T, w[..., None], sizes)[:, 0],
        "i",
        domains=("real", "real", "index"),
        names=lambda x, w, sizes: "i",
        case="nothing new",
    ),
    Row(
        "ragged_dot",
        ragged,
        ("iabc", "cjab", "ja"),
        jax.vmap(jax.vmap(lambda x, w, sizes: product(x, w.T[..., None], sizes)[:, 0], (1, 2, None)), (1, 2, 1)),
        "abi",
        domains=("real", "real", "index"),
        names=lambda x, w, sizes: "".join(name for name in x if name in "ab") + "i",
        case="matched axes",
    ),
    Row(
        "ragged_dot",
        lambda x, w, sizes: axn.ragged_dot(x, w, sizes, axis=("c", "b"), ragged=axn.Axis("i", 8), groups="j"),
        ("ibc", "jcba", "j"),
        lambda x, w, sizes: product(x.transpose(0, 2, 1).reshape(8, 6), w.reshape(5, 6, 4), sizes),
        "ia",
        domains=("real", "real", "index"),
        names=lambda x, w, sizes: "ia",
        case="two sums",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + RAGGED + STEPS + VARIANTS, segment)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(SmoothBulk):
    """The laws of lifted functions, gradients included."""


@pytest.mark.parametrize("row", RAGGED, ids=str)
class TestRagged(SmoothBulk):
    """All but jax.vmap, for which lax has no rule here."""

    test_works_under_named_vmap = None  # type: ignore[assignment]


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Bulk):
    """The laws of lifted functions."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other axes."""


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*NUMPY, "segment_mean"])
@pytest.mark.parametrize(
    ("names", "of_ids", "expected"),
    [
        ("bif", "i", "bsf"),
        ("ibf", "i", "sbf"),
        ("ibf", "bi", "sbf"),
        ("bfi", "ib", "bfs"),
        ("fibg", "ib", "fsbg"),
    ],
)
def test_rows_behind_the_axis_move_as_one(name: str, names: str, of_ids: str, expected: str) -> None:
    sizes = {"b": 2, "i": 5, "f": 3, "g": 4}
    rng = np.random.default_rng(0)
    x = axn.named(rng.normal(size=[sizes[n] for n in names]).astype(np.float32), tuple(names))
    ids = axn.named(rng.integers(-1, 4, [sizes[n] for n in of_ids]), tuple(of_ids))
    result = jax.jit(lambda x, ids: getattr(axn, name)(x, ids, Segment, "i"))(x, ids)
    assert result.names == tuple(expected)
    others = "".join(n for n in "bfg" if n in names)
    array = np.einsum(f"{names}->{others}i", x.array)
    each = np.broadcast_to(np.einsum(f"{of_ids}->bi", ids.array) if "b" in of_ids else ids.array, (2, 5))
    parts = np.stack([reduced(name, array[b], each[b]) for b in range(2)])
    np.testing.assert_allclose(result.array, np.einsum(f"{others}s->{expected}", parts), rtol=1e-5, atol=1e-6)


def test_rows_are_not_turned() -> None:
    x, ids = jnp.ones((2, 5, 3)), jnp.zeros(5, int)
    mine = lambda x, ids: axn.segment_sum(axn.named(x, ("b", "i", "f")), axn.named(ids, "i"), Segment).array  # noqa: E731
    theirs = jax.vmap(lambda x, ids: jax.ops.segment_sum(x, ids, 3), (0, None))
    assert count_equations(mine, x, ids) <= count_equations(theirs, x, ids)


def test_an_axis_of_the_ids_alone_is_refused() -> None:
    with pytest.raises(BroadcastError) as caught:
        axn.segment_sum(axn.ones({"i": 3, "f": 2}), axn.zeros({"b": 2, "i": 3}, dtype=int), Segment, "i")
    assert str(caught.value) == (
        "segment_sum: no operand has the axes of all others\n"
        "  operand 1 has: i=3, f=2\n"
        "  operand 2 has: b=2, i=3\n"
        "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(b)"
    )


def test_ids_out_of_range_are_left_out() -> None:
    x, ids = axn.named([1.0, 2.0, 4.0, 8.0], "i"), axn.named([-1, 0, 3, 2], "i")
    assert axn.segment_sum(x, ids, Segment).tolist() == [2, 0, 8]
    assert axn.segment_max(x, ids, Segment).tolist() == [2, -np.inf, 8]


def test_a_mean_of_half_precision_is_summed_in_single_precision() -> None:
    ones = axn.ones(axn.Axis("i", 1000), jnp.bfloat16)
    mean = axn.segment_mean(ones, axn.zeros(ones.axes, int), axn.Axis("s", 1))
    assert (mean.dtype, mean.tolist()) == (jnp.bfloat16, [1.0])


@pytest.mark.parametrize("stored", [("i", "c"), ("c", "i")])
def test_ragged_dot_is_the_one_of_lax(stored: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(8, 3)).astype(np.float16), rng.normal(size=(5, 3, 4)).astype(np.float16)
    sizes = np.array([2, 0, 3, 1, 2])
    named = axn.named(x, ("i", "c")).rearrange(stored), axn.named(w, ("j", "c", "o")), axn.named(sizes, "j")
    got = ragged(*named, preferred_element_type=jnp.float32, precision="highest")
    assert_close(got.array, jax.lax.ragged_dot(x, w, sizes, preferred_element_type=jnp.float32, precision="highest"))
    assert got.names == ("i", "o")
    assert ragged(named[0].astype(jnp.bfloat16), *named[1:]).dtype == jnp.float32


def test_sizes_may_have_an_axis_that_the_rows_lack() -> None:
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((8, 3), (5, 3, 4)))
    sizes = jnp.array([[2, 0, 3, 1, 2], [0, 8, 0, 0, 0]])
    got = ragged(axn.named(x, ("i", "c")), axn.named(w, ("j", "c", "o")), axn.named(sizes, ("b", "j")))
    assert got.names == ("b", "i", "o")
    assert_close(got.array, jax.vmap(product, (None, None, 0))(x, w, sizes))


X = axn.ones((axn.Axis("batch", 2), axn.Axis("token", 4)))
IDS = axn.zeros(axn.Axis("token", 4), int)
W = axn.ones((axn.Axis("expert", 3), axn.Axis("token", 4)))
SIZES = axn.named([1, 0, 1], "expert")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: axn.segment_sum(X, IDS.astype(float), Segment),
            OperandError,
            "segment_sum: ids must have an integer dtype, not float32",
        ),
        (
            lambda: axn.segment_max(X, IDS, "s"),
            OperandError,
            "segment_max: axis 's' needs a size here\n  hint: write Axis(\"s\", size)",
        ),
        (
            lambda: axn.segment_min(X, IDS.rename({"token": "tokens"}), Segment),
            AxisNotFoundError,
            "segment_min: operand 1 has no axis named 'tokens'\n"
            "  operand 1 has: batch=2, token=4\n"
            "  operand 2 has: tokens=4\n"
            "  hint: did you mean 'token'?",
        ),
        (
            lambda: axn.segment_prod(X, IDS["token", :3], Segment),
            AxisSizeError,
            "segment_prod: axis 'token' has two sizes: 4 and 3\n"
            "  operand 1 has: batch=2, token=4\n"
            "  operand 2 has: token=3\n"
            '  hint: if one is shifted by a place, cut the longer one: x["token", :-1] or x["token", 1:]',
        ),
        (
            lambda: axn.segment_mean(X, IDS, axn.Axis("batch", 2)),
            AxisClashError,
            "segment_mean: in the result, axis 'batch' would appear twice\n"
            "  operand 1 has: batch=2, token=4\n"
            "  operand 2 has: token=4",
        ),
        (
            lambda: axn.segment_sum(X, IDS.array, Segment),
            OperandError,
            "segment_sum: expected a NamedArray, got a plain array\n"
            "  its shape: (4,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
        (
            lambda: axn.segment_sum(X.array, IDS, Segment),
            OperandError,
            "segment_sum: a plain array of shape (2, 4) does not match axes: token\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda: axn.segment_sum(X, IDS, Segment, mode="foo"),
            ArgumentError,
            "segment_sum: the mode must be one of promise_in_bounds, clip, drop, fill, not 'foo'",
        ),
        (
            lambda: axn.ragged_dot(X, W, SIZES * 1.0, axis="token", ragged="batch", groups="expert"),
            OperandError,
            "ragged_dot: group_sizes must have an integer dtype, not float32",
        ),
        (
            lambda: axn.ragged_dot(X, W, SIZES, axis="token", ragged="batch", groups="experts"),
            AxisNotFoundError,
            "ragged_dot: no axis named 'experts'\n"
            "  operand 1 has: batch=2, token=4\n"
            "  operand 2 has: expert=3, token=4\n"
            "  operand 3 has: expert=3\n"
            "  hint: did you mean 'expert'?",
        ),
        (
            lambda: axn.ragged_dot(X, W, SIZES["expert", :2], axis="token", ragged="batch", groups="expert"),
            AxisSizeError,
            "ragged_dot: axis 'expert' has two sizes: 3 and 2\n"
            "  operand 1 has: batch=2, token=4\n"
            "  operand 2 has: expert=3, token=4\n"
            "  operand 3 has: expert=2\n"
            '  hint: if one is shifted by a place, cut the longer one: x["expert", :-1] or x["expert", 1:]',
        ),
        (
            lambda: axn.ragged_dot(X, W.array, SIZES, axis="token", ragged="batch", groups="expert"),
            OperandError,
            "ragged_dot: expected a NamedArray, got a plain array\n"
            "  its shape: (3, 4)\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: axn.vmap(lambda x: axn.ragged_dot(x, W, SIZES, axis="token", ragged="batch", groups="expert"), "s")(
                axn.stack("s", [X, X])
            ),
            OperandError,
            "ragged_dot: JAX does not map it by vmap: ragged_dot vmap over any dim but 0 - NYI\n"
            "  x has: batch=2, token=4\n"
            "  hint: keep the axis named, without vmap; of a MixtureOfExperts, a capacity_factor works, too",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


def test_ragged_dot_of_arrays_that_are_not_on_the_explicit_mesh_yet(explicit_mesh: Any) -> None:
    x, w = axn.arange({"t": 4, "i": 2}), axn.arange({"e": 2, "i": 2, "o": 3})
    sizes = axn.named([1, 3], "e")
    with axn.set_mesh(explicit_mesh):
        found = segment.ragged_dot(x, w, sizes, axis="i", ragged="t", groups="e")
    expected = [np.asarray(x.array[t]) @ np.asarray(w.array[int(t > 0)]) for t in range(4)]
    assert found.names == ("t", "o")
    np.testing.assert_array_equal(found.array, expected)
