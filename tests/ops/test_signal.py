"""Functions of sampled values: laws over one row per function."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.engine.core import rename_axes
from axonym.errors import ArgumentError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from axonym.ops import signal
from tests.laws import Row, SmoothBulk, Values, count_equations, has_row_for_each


def row(name: str, axis: Any, reference: Any, oracle: Any, *, out: Any = "abc", case: str = "", **options: Any) -> Row:
    fn = getattr(signal, name)
    return Row(name, lambda x: fn(x, axis, **options), ("abc",), reference, out, oracle, case=case)


def under(x: axn.NamedArray, **names: str) -> axn.NamedArray:
    """Give axes the names of others of another size; unlike `rename`, without a look at the array."""
    return rename_axes(x, tuple(names.get(name, name) for name in x.names))


def ascending(x: axn.NamedArray, axis: str) -> axn.NamedArray:
    """Make coordinates, unless the array has lost an axis."""
    return axn.cumsum(abs(x) + 1.0, axis) if x.ndim >= len(x.names) else x


def steps(x: Any, at: int) -> Any:
    return (abs(x) + 1.0).cumsum(at)


def each(fn: Any, *arrays: np.ndarray) -> np.ndarray:
    """Apply a numpy function of the last axes for each position of the leading one, which all arrays have."""
    return np.stack([fn(*parts) for parts in zip(*arrays, strict=True)])


def slid(name: str, mode: str) -> list[Row]:
    """Make rows of a function of two signals: one filter for all, one for each, all filters on all signals."""
    fn, positional, oracle = getattr(signal, name), getattr(jnp, name), getattr(np, name)

    def call(x: axn.NamedArray, v: axn.NamedArray) -> axn.NamedArray:
        return fn(x, under(v, j="i"), "i", mode=mode)

    def shared(x: jax.Array, v: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: positional(row, v, mode))(x)

    def matched(x: jax.Array, v: jax.Array) -> jax.Array:
        return jax.vmap(lambda row, own: positional(row, own, mode), (1, 0), 1)(x, v)

    def outer(x: jax.Array, v: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: jax.vmap(lambda own: positional(row, own, mode))(v))(x)

    def each_with_its_own(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        return each(lambda row, own: oracle(row, own, mode), x.T, v).T

    def each_with_all(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        return each(lambda row: each(lambda own: oracle(row, own, mode), v), x)

    def one_for_all(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        return each(lambda row: oracle(row, v, mode), x)

    return [
        Row(name, call, ("ai", "j"), shared, "ai", one_for_all, names=lambda x, v: [tuple(x)], case=mode),
        Row(
            name,
            call,
            ("ib", "bj"),
            matched,
            "ib",
            each_with_its_own,
            names=lambda x, v: [tuple(x)],
            case=f"{mode}, each its own",
        ),
        Row(
            name,
            call,
            ("bi", "cj"),
            outer,
            "bci",
            each_with_all,
            names=lambda x, v: ["bci"],
            case=f"{mode}, all filters",
        ),
    ]


def interpolate(x: axn.NamedArray, xp: axn.NamedArray, fp: axn.NamedArray, **options: Any) -> axn.NamedArray:
    return axn.interp(x, ascending(xp, "i"), fp, "i", **options)


CONVOLVE = slid("convolve", "full")
CORRELATE = slid("correlate", "valid")
SMOOTH = [
    CONVOLVE[1],
    CORRELATE[0],
    row("diff", "a", lambda x: jnp.diff(x, 2, 0), lambda x: np.diff(x, 2, 0), n=2),
    Row(
        "diff",
        lambda x, first, last: axn.diff(x, "a", prepend=under(first, i="a"), append=last),
        ("abc", "ci", "b"),
        lambda x, first, last: jnp.diff(
            x,
            axis=0,
            prepend=jnp.broadcast_to(first.T[:, None], (8, *x.shape[1:])),
            append=jnp.broadcast_to(last[:, None], (1, *x.shape[1:])),
        ),
        "abc",
        lambda x, first, last: np.diff(
            x,
            axis=0,
            prepend=np.broadcast_to(first.T[:, None], (8, *x.shape[1:])),
            append=np.broadcast_to(last[:, None], (1, *x.shape[1:])),
        ),
        names=lambda x, first, last: [tuple(x)],
        case="ends",
    ),
    row("ediff1d", "a", lambda x: x[1:] - x[:-1], lambda x: np.diff(x, axis=0)),
    row("gradient", "a", lambda x: jnp.gradient(x, axis=0), lambda x: np.gradient(x, axis=0)),
    Row(
        "gradient",
        lambda x, at: axn.gradient(x, ("c", "a"), spacing={"a": ascending(at, "a")}),
        ("abc", "a"),
        lambda x, at: jnp.gradient(x, 1.0, steps(at, 0), axis=(2, 0)),
        ("abc", "abc"),
        lambda x, at: np.gradient(x, 1.0, steps(at, 0), axis=(2, 0)),
        case="coordinates",
    ),
    Row(
        "interp",
        interpolate,
        ("b", "i", "ai"),
        lambda x, xp, fp: jax.vmap(lambda own: jnp.interp(x, steps(xp, 0), own), 0, 1)(fp),
        "ba",
        lambda x, xp, fp: np.stack([np.interp(x, steps(xp, 0), own) for own in fp], 1),
        ("positive", "real", "real"),
        names=lambda x, xp, fp: ["ba"],
    ),
    row("trapezoid", "a", lambda y: jnp.trapezoid(y, axis=0), lambda y: np.trapezoid(y, axis=0), out="bc"),
    row(
        "unwrap",
        "a",
        lambda x: jnp.unwrap(x, axis=0, period=0.5),
        lambda x: np.unwrap(x, axis=0, period=np.float32(0.5)),
        period=0.5,
    ),
]
VARIANTS = [
    *(row for mode in ("full", "same", "valid") for name in ("convolve", "correlate") for row in slid(name, mode)),
    Row(
        "convolve",
        lambda x, v: axn.convolve(v, under(x, i="j"), "j"),
        ("i", "j"),
        lambda x, v: jnp.convolve(v, x),
        "j",
        lambda x, v: np.convolve(v, x),
        names=lambda x, v: ["j"],
        case="shorter first",
    ),
    Row(
        "correlate",
        lambda x, v: axn.correlate(x, under(v, j="i"), axn.Axis("i", 8), mode="same"),
        ("i", "j"),
        lambda x, v: jnp.correlate(x, v, "same"),
        "i",
        lambda x, v: np.correlate(x, v, "same"),
        ("complex", "complex"),
        names=lambda x, v: ["i"],
        case="complex, Axis",
    ),
    Row(
        "convolve",
        lambda x: axn.convolve(x, np.array([1, 2], np.int32), "i", preferred_element_type=np.int32),
        ("ai",),
        lambda x: jax.vmap(lambda own: jnp.convolve(own, np.array([1, 2], np.int32), preferred_element_type=np.int32))(
            x
        ),
        "ai",
        lambda x: each(lambda own: np.convolve(own, [1, 2]), x),
        ("int",),
        case="plain, integers",
    ),
    Row(
        "convolve",
        lambda x: axn.convolve(np.arange(2.0, dtype=np.float32), x, "i", mode="same"),
        ("ai",),
        lambda x: jax.vmap(lambda own: jnp.convolve(jnp.arange(2.0), own, "same"))(x),
        "ai",
        lambda x: each(lambda own: np.convolve(np.arange(2.0), own, "same"), x),
        names=lambda order: ["ai"],
        case="plain first",
    ),
    row("diff", axn.Axis("c", 3), jnp.diff, np.diff, case="Axis"),
    row("diff", "c", lambda x: x, lambda x: x, case="none", n=0),
    row(
        "diff",
        "c",
        lambda x: jnp.diff(x, append=0),
        lambda x: np.diff(x, append=np.float32(0)),
        case="number behind",
        append=0,
    ),
    row(
        "diff",
        "a",
        lambda x: jnp.diff(x, 2, 0, prepend=jnp.broadcast_to(jnp.array([3.0, 5])[:, None, None], (2, 2, 3))),
        lambda x: np.diff(x, 2, 0, prepend=np.broadcast_to(np.array([3.0, 5])[:, None, None], (2, 2, 3))),
        case="plain array in front",
        n=2,
        prepend=np.array([3.0, 5], np.float32),
    ),
    Row(
        "ediff1d",
        lambda x, end: axn.ediff1d(x, "i", to_begin=end, to_end=jnp.array([1, 2])),
        ("i", ""),
        lambda x, end: jnp.ediff1d(x, jnp.array([1, 2]), end),
        "i",
        lambda x, end: np.ediff1d(x, np.array([1, 2], np.float32), end),
        case="ends",
    ),
    row("gradient", ("a", "b", "c"), jnp.gradient, np.gradient, out=("abc",) * 3, case="all axes"),
    row(
        "gradient",
        ["a"],
        lambda x: [jnp.gradient(x, 0.5, axis=0)],
        lambda x: [np.gradient(x, 0.5, axis=0, edge_order=1)],
        out=("abc",),
        case="a list of one, distance",
        spacing=0.5,
    ),
    row(
        "gradient",
        "a",
        lambda x: jnp.concatenate(
            [x[:1] * -1.5 + x[1:2] * 2 - x[2:3] / 2, (x[2:] - x[:-2]) / 2, x[-1:] * 1.5 - x[-2:-1] * 2 + x[-3:-2] / 2]
        ),
        lambda x: np.gradient(x, axis=0, edge_order=2),
        case="second order",
        edge_order=2,
    ),
    Row(
        "gradient",
        lambda x, step: axn.gradient(x, axn.Axis("a", 4), spacing=step),
        ("ab", "b"),
        lambda x, step: jnp.gradient(x, axis=0) / step,
        "ab",
        lambda x, step: np.gradient(x, axis=0) / step,
        ("real", "positive"),
        case="distance for each",
    ),
    Row(
        "gradient",
        lambda x, at: axn.gradient(x, "c", spacing=ascending(at, "c")),
        ("ac", "ca"),
        lambda x, at: jax.vmap(jnp.gradient)(x, steps(at, 0).T),
        "ac",
        lambda x, at: each(np.gradient, x, steps(at, 0).T),
        case="coordinates for each",
    ),
    Row(
        "interp",
        lambda x, xp, fp, left: interpolate(under(x, j="i"), xp, fp, left=left, right="extrapolate"),
        ("j", "ia", "i", "a"),
        lambda x, xp, fp, left: jax.vmap(lambda own, end: jnp.interp(x, own, fp, end, "extrapolate"), (1, 0))(
            steps(xp, 0), left
        ),
        "ai",
        None,
        ("positive", "real", "real", "real"),
        names=lambda x, xp, fp, left: ["ia"],
        case="ends, queries of the same name",
    ),
    Row(
        "interp",
        lambda x, period: axn.interp(x, np.arange(3.0), np.arange(3.0) ** 2, axn.Axis("t", 3), period=period),
        ("ab", ""),
        lambda x, period: jnp.interp(x, jnp.arange(3.0), jnp.arange(3.0) ** 2, period=period),
        "ab",
        lambda x, period: np.interp(x, np.arange(3.0), np.arange(3.0) ** 2, period=period).astype(np.float32),
        ("real", "positive"),
        case="period, plain samples",
    ),
    Row(
        "trapezoid",
        lambda y, x: axn.trapezoid(y, "a", x=x),
        ("abc", "ca"),
        lambda y, x: jnp.trapezoid(y, jnp.broadcast_to(x.T[:, None], y.shape), axis=0),
        "bc",
        lambda y, x: np.trapezoid(y, np.broadcast_to(x.T[:, None], y.shape), axis=0),
        names=lambda y, x: [y.replace("a", "")],
        case="coordinates",
    ),
    Row(
        "trapezoid",
        lambda y, dx: axn.trapezoid(y, "a", dx=dx),
        ("abc", "c"),
        lambda y, dx: jnp.trapezoid(y, axis=0) * dx,
        "bc",
        lambda y, dx: np.trapezoid(y, axis=0) * dx,
        case="distance for each",
    ),
    Row(
        "unwrap",
        lambda x, period: axn.unwrap(x, "c", period=period, discont=1.5),
        ("ac", "a"),
        lambda x, period: jax.vmap(lambda own, period: jnp.unwrap(own, 1.5, period=period))(x, period),
        "ac",
        lambda x, period: each(lambda own, period: np.unwrap(own, 1.5, period=period), x, period),
        ("real", "positive"),
        case="period of each",
    ),
    row(
        "unwrap",
        "a",
        lambda x: jnp.unwrap(x, axis=0),
        lambda x: np.unwrap(x, axis=0).astype(np.float32),
        case="radians",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH, signal)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(SmoothBulk):
    """What the engine does for all, gradients included."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write operands."""


def test_unwrap_of_integers_is_that_of_their_values() -> None:
    x = np.array([0, 3, 6, 9, 1])
    for period in (5, 5.0, 4):
        assert axn.unwrap(axn.named(x, "a"), "a", period=period).tolist() == np.unwrap(x, period=period).tolist()


@pytest.mark.parametrize(
    "places", [np.int8([-100, 0, 100, 120]), np.uint8([200, 150, 100, 0]), np.uint32([9, 7, 4, 0])]
)
def test_slopes_over_places_of_any_integers(places: Any) -> None:
    y = np.arange(4.0)
    found = axn.gradient(axn.named(y, "a"), "a", spacing=axn.named(places, "a"))
    np.testing.assert_allclose(found.array, np.gradient(y, places.astype(float)), rtol=1e-6)


@pytest.mark.parametrize("edge_order", [1, 2])
def test_slopes_of_a_parabola_are_exact_inside(edge_order: int) -> None:
    at = np.array([0.0, 1, 3, 4, 8], np.float32)
    x = axn.named(at, "time")
    result = axn.gradient(x * x, "time", spacing=x, edge_order=edge_order)
    np.testing.assert_allclose(result.array, np.gradient(at**2, at, edge_order=edge_order), rtol=1e-6)
    np.testing.assert_allclose(result.array[1:-1], 2 * at[1:-1])


@pytest.mark.parametrize("side", ["full", "same", "valid"])
def test_axes_that_only_one_signal_has_are_in_the_result(side: str) -> None:
    signal, filters = (
        axn.ones((axn.Axis("batch", 2), axn.Axis("time", 7))),
        axn.ones((axn.Axis("k", 3), axn.Axis("time", 2))),
    )
    size = {"full": 8, "same": 7, "valid": 6}[side]
    assert axn.convolve(signal, filters, "time", mode=side).shape == {"batch": 2, "k": 3, "time": size}


AXES = "  array has: batch=4, time=3"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: axn.convolve(x, x, "tme"),
            AxisNotFoundError,
            "convolve: no axis named 'tme'\n"
            "  operand 1 has: batch=4, time=3\n"
            "  operand 2 has: batch=4, time=3\n"
            "  hint: did you mean 'time'?",
        ),
        (
            lambda x: axn.correlate(x, x["time", 0], "time"),
            AxisNotFoundError,
            "correlate: operand 2 has no axis named 'time'\n  operand 1 has: batch=4, time=3\n  operand 2 has: batch=4",
        ),
        (
            lambda x: axn.interp(x, x["batch", 0, "time", :0], x["batch", 0, "time", :0], "time"),
            AxisSizeError,
            "interp: there are no samples to interpolate between",
        ),
        (
            lambda x: axn.convolve(x, x["batch", :2], "time"),
            AxisSizeError,
            "convolve: axis 'batch' has two sizes: 4 and 2\n"
            "  operand 1 has: batch=4, time=3\n"
            "  operand 2 has: batch=2, time of v=3\n"
            '  hint: if they are the same axis, cut the longer one, x["batch", :2]; '
            'if not, rename one: x.rename({"batch": ...})',
        ),
        (
            lambda x: axn.convolve(x, 2.0, "time"),
            OperandError,
            "convolve: a plain array of shape () does not match axes: time of v\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda x: axn.convolve(jnp.ones(3), jnp.ones(2), "time"),
            OperandError,
            "convolve: expected a NamedArray, got a plain array\n"
            "  its shape: (3,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
        (
            lambda x: axn.convolve(x, [1.0, 2.0], "time"),
            OperandError,
            "convolve: cannot combine a NamedArray and list\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda x: axn.correlate(x, x["time", :0], "time"),
            AxisSizeError,
            "correlate: a signal is empty: the sizes are 3 and 0",
        ),
        (
            lambda x: axn.convolve(x, x, "time", mode="half"),
            ArgumentError,
            "convolve: unknown mode 'half'\n  hint: modes: full, same, valid",
        ),
        (
            lambda x: axn.diff(x, "time", -1),
            ArgumentError,
            "diff: the order must not be negative, got -1",
        ),
        (
            lambda x: axn.diff(x, axn.Axis("time", 4)),
            AxisSizeError,
            f"diff: axis 'time' was given with size 4, but has size 3\n{AXES}",
        ),
        (
            lambda x: axn.diff(x, "time", prepend=x["batch", :2]),
            AxisSizeError,
            "diff: axis 'batch' has two sizes: 4 and 2\n"
            "  operand 1 has: batch=4, time=3\n"
            "  operand 2 has: batch=2, time of "
            "prepend=3\n"
            '  hint: if they are the same axis, cut the longer one, x["batch", :2]; '
            'if not, rename one: x.rename({"batch": ...})',
        ),
        (
            lambda x: axn.ediff1d(x, ("batch", "time")),
            OperandError,
            "ediff1d: expected one axis, got 2: batch, time",
        ),
        (
            lambda x: axn.gradient(2.0, "time"),
            OperandError,
            "gradient: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda x: axn.gradient(x, "time", spacing={"tme": 2.0}),
            AxisNotFoundError,
            f"gradient: no axis named 'tme'\n{AXES}\n  hint: did you mean 'time'?",
        ),
        (
            lambda x: axn.gradient(x["time", :2], "time", edge_order=2),
            AxisSizeError,
            "gradient: axis 'time' has size 2, but slopes need 3 elements",
        ),
        (
            lambda x: axn.gradient(x, "time", edge_order=3),
            ArgumentError,
            "gradient: edge_order must be 1 or 2, got 3",
        ),
        (
            lambda x: axn.interp(x, x["batch", 0], x["batch", 0, "time", :2], "time"),
            AxisSizeError,
            "interp: axis 'time of xp and fp' has two sizes: 3 and 2\n"
            "  operand 1 has: batch=4, time=3\n"
            "  operand 2 has: time of xp and "
            "fp=3\n"
            "  operand 3 has: time of xp and "
            "fp=2\n"
            '  hint: if one is shifted by a place, cut the longer one: x["time of xp and fp", :-1] or '
            'x["time of xp and fp", 1:]',
        ),
        (
            lambda x: axn.interp(x, x["time", 0], x, "time"),
            AxisNotFoundError,
            "interp: operand 2 has no axis named 'time'\n"
            "  operand 1 has: batch=4, time=3\n"
            "  operand 2 has: batch=4\n"
            "  operand 3 has: batch=4, time of xp and fp=3",
        ),
        (
            lambda x: axn.interp(x, x, x, "time", left="nearest"),
            ArgumentError,
            "interp: left cannot be 'nearest'\n  hint: values: a number, \"extrapolate\"",
        ),
        (
            lambda x: axn.trapezoid(x, "time", x=x["batch", :2]),
            AxisSizeError,
            "trapezoid: axis 'batch' has two sizes: 4 and "
            "2\n"
            "  operand 1 has: batch=4, "
            "time=3\n"
            "  operand 2 has: batch=2, "
            "time=3\n"
            '  hint: if they are the same axis, cut the longer one, x["batch", :2]; '
            'if not, rename one: x.rename({"batch": ...})',
        ),
        (
            lambda x: axn.unwrap(x, "time", period=axn.ones(axn.Axis("other", 2))),
            BroadcastError,
            "unwrap: no operand has the axes of all others\n"
            "  operand 1 has: batch=4, time=3\n"
            "  operand 2 has: other=2\n"
            "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(other)",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.ones((axn.Axis("batch", 4), axn.Axis("time", 3))))
    assert str(caught.value) == text


def test_a_gradient_subtracts_what_it_returns() -> None:
    """The differences of all neighbours are not computed for the sake of the first and the last one."""
    x = axn.ones(axn.Axis("time", 6))

    def by_hand(x: jax.Array) -> jax.Array:
        inner = (lax.slice(x, (2,), (6,)) - lax.slice(x, (0,), (4,))) * 0.5
        first = lax.slice(x, (1,), (2,)) - lax.slice(x, (0,), (1,))
        last = lax.slice(x, (5,), (6,)) - lax.slice(x, (4,), (5,))
        return lax.concatenate([first, inner, last], 0)

    assert count_equations(lambda x: axn.gradient(x, "time"), x) <= count_equations(by_hand, x.array)


@pytest.mark.parametrize("order", [1, -1])
def test_signals_of_sizes_that_are_known_when_an_export_is_called(order: int) -> None:
    """In `jax.export`, with gradients; either signal may be the longer one."""
    n, m = jax.export.symbolic_shape("n, m", constraints=["n >= 4", "m <= 3"])
    specs = [jax.ShapeDtypeStruct((size,), jnp.float32) for size in (n, m)][::order]
    rng = np.random.default_rng(0)
    signals = [rng.normal(size=size).astype(np.float32) for size in (7, 2)][::order]

    def all_modes(fns: Any, signals: Any) -> list[jax.Array]:
        return [fn(*signals, mode=mode) for fn in fns for mode in ("full", "same", "valid")]

    def by_name(fn: Any) -> Any:
        return lambda x, v, mode: fn(axn.named(x, "t"), axn.named(v, "t"), "t", mode=mode).array

    run = jax.jit(lambda *signals: all_modes(map(by_name, (axn.convolve, axn.correlate)), signals))
    exported = jax.export.deserialize(jax.export.export(run)(*specs).serialize(vjp_order=1))
    found, pull = jax.vjp(exported.call, *signals)
    oracle = all_modes((np.convolve, np.correlate), signals)
    wanted, pull_raw = jax.vjp(lambda *signals: all_modes((jnp.convolve, jnp.correlate), signals), *signals)
    for one, raw, by_numpy in zip(found, wanted, oracle, strict=True):
        assert one.dtype == raw.dtype
        np.testing.assert_allclose(one, by_numpy, rtol=1e-4, atol=1e-5)
    for one, raw in zip(pull(found), pull_raw(wanted), strict=True):
        np.testing.assert_allclose(one, raw, rtol=1e-4, atol=1e-4)


def test_no_samples_have_no_area() -> None:
    y = axn.zeros((axn.Axis("batch", 2), axn.Axis("time", 0)))
    for options in ({}, {"dx": 2.0}, {"x": axn.zeros(axn.Axis("time", 0))}):
        np.testing.assert_array_equal(axn.trapezoid(y, "time", **options).array, np.trapezoid(np.zeros((2, 0))))
