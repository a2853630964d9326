"""Fourier transforms by name: laws over one row per function, lengths, and what undoes what."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import fft
from tests.laws import Bulk, Row, SmoothBulk, Values, count_equations, has_row_for_each


def kept(order: str) -> list[tuple[str, ...]]:
    return [tuple(order)]


def row(name: str, at: tuple[int, ...], axis: Any, *, lengths: Any = None, case: str = "", **options: Any) -> Row:
    """Make a row; `at` are the dimensions of (b, i, j) that are transformed, in order."""
    call, several = getattr(fft, name), name in {"fft", "ifft", "rfft", "irfft"}

    def positional(module: Any) -> Any:
        if "shift" in name:
            return lambda x: getattr(module, name)(x, at)
        if several:
            return lambda x: getattr(module, f"{name}n")(x, lengths, at, **options)
        return lambda x: getattr(module, name)(x, lengths and lengths[0], *at, **options)

    return Row(
        name,
        lambda x: call(x, axis, **options),
        ("bij",),
        positional(jnp.fft),
        "bij",
        positional(np.fft),
        ("real" if name in {"rfft", "ihfft"} or "shift" in name else "complex",),
        kept,
        case,
    )


def of_real(given: Row) -> Row:
    """Take real numbers, so that a gradient can be compared."""
    return dataclasses.replace(given, domains=("real",))


SMOOTH = [
    row("fftshift", (0, 2), ("b", "j")),
    of_real(row("hfft", (1,), "i")),
    row("ifftshift", (2,), "j"),
    of_real(row("irfft", (1,), "i")),
]
STEPS = [
    row("fft", (1,), "i"),
    row("ifft", (2,), "j"),
    row("ihfft", (2,), "j"),
    row("rfft", (2,), "j"),
]
VARIANTS = [
    *(row(name, (2, 1), ("j", "i"), case="two axes") for name in ("fft", "ifft", "rfft", "irfft")),
    *(
        row(name, (1,), {"i": 5}, lengths=(5,), case="cropped")
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    ),
    *(
        row(name, (2,), {"j": 9}, lengths=(9,), case="padded")
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    ),
    *(
        row(
            name,
            (2, 0, 1),
            {axn.Axis("j", 5): 4, "b": None, "i": axn.Axis("i", 11)},
            lengths=(4, 2, 11),
            case="mapping",
        )
        for name in ("fft", "ifft", "rfft", "irfft")
    ),
    *(
        row(name, (1,), "i", norm=norm, case=norm)
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
        for norm in ("backward", "ortho", "forward")
    ),
    row("fftshift", (0, 1, 2), None, case="all axes"),
    row("ifftshift", (0, 1, 2), None, case="all axes"),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + STEPS, fft)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(SmoothBulk):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Bulk):
    """All laws but the gradient, as the results are complex."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Several axes, lengths, norms."""


Batch, Time, Space = axn.make_axes(batch=2, time=6, space=5)
X = axn.named(np.random.default_rng(0).normal(size=(6, 2, 5)).astype(np.float32), (Time, Batch, Space))


@pytest.mark.parametrize("axis", ["time", ("space", "time"), {"time": None, "batch": None}])
@pytest.mark.parametrize(("there", "back"), [(axn.fft, axn.ifft), (axn.rfft, axn.irfft)])
def test_a_transform_has_an_inverse(there: Any, back: Any, axis: Any) -> None:
    result = back(there(X, axis), axis)
    assert result.axes == X.axes
    np.testing.assert_allclose(result.array, X.array, atol=1e-5)


def test_an_odd_size_comes_back_if_it_is_given() -> None:
    for there, back in ((axn.rfft, axn.irfft), (axn.ihfft, axn.hfft)):
        np.testing.assert_allclose(back(there(X, "space"), Space).array, X.array, atol=1e-5)
        assert back(there(X, "space"), "space").resolve_axis("space").size == 4
        assert back(there(X, "space"), {"space": np.int64(5)}).resolve_axis("space").size == 5


def test_the_only_axis_needs_no_name() -> None:
    line = X["batch", 0]["space", 0]
    np.testing.assert_array_equal(axn.fft(line).array, axn.fft(line, "time").array)
    rows = X["batch", 0].untag("space")
    np.testing.assert_array_equal(
        axn.fft(rows).array, axn.fft(X["batch", 0], "time").rearrange(("space", "time")).array
    )


def test_energy_has_a_gradient() -> None:
    """A transform keeps the energy but for a factor (Parseval), so its gradient is known."""
    for transform, factor in ((axn.fft, 12), (axn.ifft, 1 / 3)):
        gradient = jax.grad(lambda x, fn=transform: axn.sum(axn.abs(fn(x, "time")) ** 2).scalar())(X)
        np.testing.assert_allclose(gradient.array, factor * X.array, rtol=1e-4)


def test_frequencies_belong_to_their_transform() -> None:
    """A wave of three periods stands at frequency three."""
    Long = axn.Axis("time", 16)
    wave = axn.cos(2 * np.pi * 3 * axn.arange(Long) / 16)
    half, whole = axn.abs(axn.rfft(wave, "time")), axn.abs(axn.fft(wave, "time"))
    frequencies = axn.rfftfreq(Long, 1 / 16)
    assert frequencies["time", half.argmax("time")].item() == 3
    found = axn.fftfreq(Long, 1 / 16)["time", whole.argmax("time")].item()
    assert abs(found) == 3
    middle = axn.fftshift(axn.fftfreq(Long))
    np.testing.assert_allclose(middle.array, np.sort(np.fft.fftfreq(16)), rtol=1e-6)


@pytest.mark.parametrize("size", [6, 7])
def test_the_axis_of_a_signal_is_that_of_both_ways(size: int) -> None:
    Batch, Time = axn.make_axes(batch=2, time=size)
    x = axn.arange((Batch, Time), dtype=jnp.float32)
    for there, back in ((axn.rfft, axn.irfft), (axn.ihfft, axn.hfft), (axn.fft, axn.ifft)):
        again = back(there(x, Time), Time)
        assert again.axes == (Batch, Time)
        np.testing.assert_allclose(again.array, x.array, atol=1e-4)
    both = axn.irfft(axn.rfft(x, (Batch, Time)), (Batch, Time))
    np.testing.assert_allclose(both.array, x.array, atol=1e-4)


def test_lengths_that_are_there_cost_nothing() -> None:
    """Neither does a length that is given, where it is the one that follows, nor a shift along the first axis."""
    waves = X.astype(complex)
    for name in ("fft", "ifft", "irfft"):
        for axis in ("space", {"space": 8 if name == "irfft" else 5}):
            found = count_equations(lambda x, name=name, axis=axis: getattr(axn, name)(x, axis), waves)
            assert found <= count_equations(getattr(jnp.fft, name), waves.array)
    assert count_equations(lambda x: axn.rfft(x, ("batch", "space")), X) <= count_equations(
        lambda x: jnp.fft.rfftn(x, axes=(1, 2)), X.array
    )
    for name in ("fftshift", "ifftshift"):
        found = count_equations(lambda x, name=name: getattr(axn, name)(x, "time"), X)
        assert found <= count_equations(lambda x, name=name: getattr(jnp.fft, name)(x, 0), X.array)


@pytest.mark.parametrize("size", [0, 1])
def test_a_spectrum_of_one_number_tells_no_length(size: int) -> None:
    for back in (axn.irfft, axn.hfft):
        with pytest.raises(AxisSizeError) as error:
            back(X["space", :size], "space")
        assert str(error.value) == (
            f"{back.__name__}: axis 'space' has size {size}, so the result would have no elements\n"
            f"  array has: time=6, batch=2, space={size}\n"
            '  hint: give its length: {"space": 8}'
        )
        assert back(X["space", :size], {"space": 4}).shape["space"] == 4


HAS = "  array has: time=6, batch=2, space=5"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: axn.fft(X, "tine"),
            AxisNotFoundError,
            f"fft: no axis named 'tine'\n{HAS}\n  hint: did you mean 'time'?",
        ),
        (
            lambda: axn.ifft(X),
            AxisError,
            f'ifft: without an axis, the array must have just one\n{HAS}\n  hint: say which: ifft(x, "space")',
        ),
        (
            lambda: axn.fft(axn.named(1.0, ())),
            AxisError,
            "fft: without an axis, the array must have just one\n  array has: no axes",
        ),
        (lambda: axn.rfft(X, ()), AxisError, f"rfft: needs an axis, got none\n{HAS}"),
        (lambda: axn.hfft(X, ("time", "space")), AxisError, f"hfft: needs one axis, got time, space\n{HAS}"),
        (
            lambda: axn.fft(X, ("time", "time")),
            AxisClashError,
            "fft: axis 'time' is given twice\n  axes: time, time",
        ),
        (
            lambda: axn.fft(X, {"time": 4, Time: 4}),
            AxisClashError,
            "fft: axis 'time' is given twice\n  axes: time, time",
        ),
        (
            lambda: axn.fft(X, axn.Axis("time", 99)),
            AxisSizeError,
            f"fft: axis 'time' was given with size 99, but has size 6\n{HAS}\n"
            '  hint: to crop or pad to this length, write {"time": 99}',
        ),
        (
            lambda: axn.ihfft(X, axn.Axis("time", 7)),
            AxisSizeError,
            f"ihfft: axis 'time' was given with size 7, but has size 6\n{HAS}\n"
            '  hint: to crop or pad to this length, write {"time": 7}',
        ),
        (
            lambda: axn.irfft(X, axn.Axis("time", 6)),
            AxisSizeError,
            f"irfft: axis 'time' has size 6, but half of the result time=6 has 4\n{HAS}\n"
            '  hint: to crop or pad to this length, write {"time": 6}',
        ),
        (
            lambda: axn.fft(X, {axn.Axis("time", 5): 4}),
            AxisSizeError,
            f"fft: axis 'time' was given with size 5, but has size 6\n{HAS}",
        ),
        (
            lambda: axn.fft(X, {"time": axn.Axis("frequency", 4)}),
            AxisError,
            "fft: the length along 'time' is given as another axis: 'frequency'\n"
            '  hint: rename the result: .rename({"time": "frequency"})',
        ),
        (
            lambda: axn.fft(X, {"time": 0}),
            ArgumentError,
            "fft: the length along 'time' must be positive, got 0",
        ),
        (
            lambda: axn.irfft(X, {"time": 2.0}),
            OperandError,
            "irfft: a length must be an int, an Axis or None, not float",
        ),
        (
            lambda: axn.fft(X, "time", norm="orto"),
            ArgumentError,
            "fft: norm='orto' is not one of None, 'backward', 'ortho', 'forward'",
        ),
        (
            lambda: axn.fft(X, 0),
            OperandError,
            'fft: 0 is a position, but axes have names\n  array has: time=6, batch=2, space=5\n  hint: write "time"',
        ),
        (
            lambda: axn.fft(np.ones(3), "time"),
            OperandError,
            "fft: expected a NamedArray, got a plain array\n"
            "  its shape: (3,)\n"
            '  hint: name its dimensions first: axn.named(array, "batch")',
        ),
        (
            lambda: axn.fftshift(1.0),
            OperandError,
            "fftshift: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: axn.ifftshift(X, ("time", "spaces")),
            AxisNotFoundError,
            f"ifftshift: no axis named 'spaces'\n{HAS}\n  hint: did you mean 'space'?",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
