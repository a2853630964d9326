"""Fourier transforms, against numpy."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import sys

import haliax as hax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.fft import fftshift, irfft, rfft

A, T = hax.Axis("A", 3), hax.Axis("T", 4)
X = np.float32([[1, 2, 0, 3], [4, 1, 5, 2], [0, 0, 1, 7]])


def x():
    return hax.NamedArray(jnp.asarray(X), (A, T))


def matches(result, expected, *axes):
    assert type(result) is hax.NamedArray
    assert result.axes == axes
    np.testing.assert_allclose(np.asarray(result.array), expected, rtol=1e-4, atol=1e-4)


def sized(axis, size):
    return hax.Axis(axis.name, size)


@pytest.mark.parametrize(
    ("name", "size"), [("fft", 4), ("ifft", 4), ("rfft", 3), ("irfft", 6), ("hfft", 6), ("ihfft", 3)]
)
def test_over_one_axis(name, size):
    fn, ref = getattr(hax, name), getattr(np.fft, name)
    matches(fn(x()), ref(X), A, sized(T, size))  # the last one
    matches(fn(a=x(), axis="T", norm="ortho"), ref(X, norm="ortho"), A, sized(T, size))
    matches(fn(x(), sized(T, 5)), ref(X, 5), A, sized(T, 3 if name in ("rfft", "ihfft") else 5))


def test_over_the_first_axis():
    matches(hax.fft(x(), A), np.fft.fft(X, axis=0), A, T)
    matches(rfft(x(), "A"), np.fft.rfft(X, axis=0), sized(A, 2), T)


def test_over_several_axes():
    matches(hax.fft(x(), ("A", "T")), np.fft.fft2(X), A, T)
    matches(hax.ifft(x(), {"T": None, "A": 5}), np.fft.ifftn(X, (4, 5), (1, 0)), sized(A, 5), T)
    matches(hax.fft(x(), {T: hax.Axis("N", 8)}), np.fft.fft(X, 8), A, sized(T, 8))
    half = rfft(x(), ["A", "T"])
    matches(half, np.fft.rfft2(X), A, sized(T, 3))
    matches(irfft(half, {"A": None, "T": 4}), X, A, T)
    with pytest.raises(ValueError, match="one axis"):
        hax.hfft(x(), ("A", "T"))
    with pytest.raises(ValueError, match="'Q'"):
        hax.fft(x(), "Q")


def test_frequencies_and_shifts():
    matches(hax.fftfreq(T, 0.5), np.fft.fftfreq(4, 0.5), T)
    matches(hax.rfftfreq(axis=T, d=2.0), np.fft.rfftfreq(4, 2.0), sized(T, 3))
    matches(fftshift(x()), np.fft.fftshift(X), A, T)
    matches(hax.ifftshift(x(), axes=("A",)), np.fft.ifftshift(X, 0), A, T)


def test_the_name_is_a_function_and_a_module():
    assert callable(hax.fft)
    assert sys.modules["haliax.fft"].fft is hax.fft
