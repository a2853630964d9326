"""Windows and frequencies, in use; `test_create` compares each with JAX's, on all kinds of meshes."""

import numpy as np
import pytest

import axonym as axn

Time = axn.Axis("time", 64)


@pytest.mark.parametrize("window", [axn.bartlett, axn.blackman, axn.hamming, axn.hanning, lambda t: axn.kaiser(t, 8.0)])
def test_a_window_leaks_less_into_other_frequencies(window):
    t = np.arange(64) / 64
    tone = axn.named(np.sin(2 * np.pi * 10.5 * t, dtype=np.float32), "time")
    plain, windowed = (np.abs(axn.rfft(x, "time").array) for x in (tone, tone * window(Time)))
    assert windowed[25:].max() / windowed.max() < 0.3 * plain[25:].max() / plain.max()


def test_frequencies_are_those_of_tones():
    seconds = axn.arange(Time) / 64
    for cycles in (3, 20):
        spectrum = axn.rfft(axn.cos(2 * np.pi * cycles * seconds), "time")
        found = axn.rfftfreq(Time, 1 / 64)["time", abs(spectrum).argmax("time")]
        assert found.item() == cycles
    assert axn.fftfreq(Time, 1 / 64).tolist() == np.fft.fftfreq(64, 1 / 64).tolist()
