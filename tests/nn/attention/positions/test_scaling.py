"""Frequencies of rotary positions, against their definitions in plain Python."""

import math

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from tests.nn.layouts import fails

HEAD = axn.Axis("head_dim", 16)
OWN = [1e4 ** (-2 * i / 12) for i in range(6)]  # of the first 12 features


def yarn(base, factor, fast, slow, length, truncate):
    """Follow Peng et al. (2023), eq. 17 to 19, with the bounds of the authors' program."""
    size = 2 * len(OWN)
    low, high = (size * math.log(length / (n * 2 * math.pi)) / (2 * math.log(base)) for n in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramps = [min(max((i - low) / (high - low), 0), 1) for i in range(len(OWN))]
    return [own / factor * ramp + own * (1 - ramp) for own, ramp in zip(OWN, ramps, strict=True)]


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("length", [50, 4096])
def test_yarn_blends_along_a_ramp(length, truncate):
    found = nn.YarnScaling(8.0, 2.0, 1.0, length, truncate)(np.array(OWN))
    np.testing.assert_allclose(found, yarn(1e4, 8.0, 2.0, 1.0, length, truncate), rtol=1e-12)
    assert nn.YarnScaling(8.0)(np.ones(1)).tolist() == [1.0]


def angles(scaling, lengths):
    """Return the angles of position 3 in texts of several lengths, each alone and all at once, as they must agree."""
    rope = nn.RotaryEmbedding.init(HEAD, scaling=scaling, size=12)
    at = axn.named([[*range(length - 4, length)] for length in lengths], ("batch", "pos"))
    table = jax.jit(lambda at, length: rope.at(at, length=length))(at, axn.named(lengths, "batch"))
    alone = [rope.at(axn.Axis("pos", length)) for length in lengths]
    for i, one in enumerate(alone):
        np.testing.assert_allclose(one.cos["pos", -4:].array, table.cos["batch", i].array, rtol=1e-5, atol=1e-5)
    return np.stack([np.arctan2(one.sin["pos", 3].array, one.cos["pos", 3].array) for one in alone])


def wrapped(values):
    return np.angle(np.exp(1j * 3 * np.asarray(values)))


def test_dynamic_frequencies_follow_the_length_of_each_text():
    def base(length):
        times = 4.0 * max(length, 8) / 8 - 3.0
        return (1e4 * times ** (12 / 10)) ** -(np.arange(0, 12, 2) / 12)

    found = angles(nn.DynamicScaling(4.0, 8), (5, 8, 9, 40))
    np.testing.assert_allclose(found, [wrapped(base(length)) for length in (5, 8, 9, 40)], rtol=1e-4, atol=1e-6)


def test_long_texts_have_frequencies_of_their_own():
    short, long = (1.0, 1.0, 1.5, 2.0, 2.5, 3.0), (1.0, 2.0, 3.0, 4.0, 5.0, 9.0)
    found = angles(nn.LongRopeScaling(short, long, 8), (8, 9))
    wanted = [wrapped(np.array(OWN) / np.array(each)) for each in (short, long)]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_positions_without_a_length_are_an_error():
    rope = nn.RotaryEmbedding.init(HEAD, scaling=nn.DynamicScaling(4.0, 8))
    fails(
        ArgumentError,
        "RotaryEmbedding.at: the frequencies of DynamicScaling(factor=4.0, original_length=8) depend on the length of "
        "the text\n  hint: pass length=..., as numbers or as an array over axes of the positions",
        lambda: rope.at(axn.named([3, 4], "pos")),
    )


def test_a_magnitude_scales_what_is_rotated():
    rope = nn.RotaryEmbedding.init(HEAD, scaling=nn.YarnScaling(8.0), magnitude=1.25, size=12)
    table = rope.at(axn.Axis("pos", 5))
    np.testing.assert_allclose((table.cos**2 + table.sin**2).array, 1.25**2, rtol=1e-5)
    x = axn.ones((axn.Axis("pos", 5), HEAD))
    assert table(x)["head_dim", 12:].tolist() == [[1.0] * 4] * 5  # further features are not rotated
