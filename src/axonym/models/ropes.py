"""Rotary positions of published models: how their frequencies change for long texts."""

import dataclasses
import math
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import axonym as axn

from .. import nn
from ..array import NamedArray
from ..axis import Axis

Frequencies: TypeAlias = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """Divide low frequencies by a factor, keep high ones, and blend along a ramp between them.

    Attributes:
        factor: the divisor of low frequencies.
        fast: the number of turns in `original_length` above which a frequency stays.
        slow: the number of turns below which it is divided.
        original_length: the number of positions of the old context.
        truncate: whether the ramp begins and ends at whole pairs of features.

    Reference:
        Peng et al. (2023), YaRN: efficient context window extension of large language models, section 3.2.
    """

    factor: float
    fast: float = 32.0
    slow: float = 1.0
    original_length: int = 4096
    truncate: bool = True

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """Divide each frequency, fastest first, according to its place on the ramp."""
        count = len(frequencies)
        if count == 1:  # the ramp begins at the first pair or behind it
            return frequencies
        step = math.log(frequencies[0] / frequencies[-1]) / (count - 1)
        # The pair of features that turns so often, on the line through all of them.
        first, last = (
            math.log(self.original_length / (turns * 2 * math.pi)) / step
            for turns in (self.fast, self.slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * count - 1)
        width = last - first if last != first else 0.001
        kept = 1 - np.clip((np.arange(count) - first) / width, 0, 1)
        changed: Frequencies = frequencies * (kept + (1 - kept) / self.factor)
        return changed


@dataclasses.dataclass(frozen=True)
class DynamicScaling:
    """Divide frequencies as `axonym.nn.NtkScaling`, by a factor that grows with the text.

    Attributes:
        factor: how fast it grows: a text of twice the known length has the factor `factor + 1`.
        positions: the known length, up to which frequencies stay.
    """

    factor: float
    positions: int

    def at_length(self, frequencies: Frequencies, length: NamedArray) -> NamedArray:
        """Return the frequencies for a text, axes {pair, those of the length}."""
        times = axn.maximum(length, self.positions).astype("float32") / self.positions
        growth = times * self.factor - (self.factor - 1)
        powers = _by_pair(np.linspace(0, 1, len(frequencies)))
        return _by_pair(frequencies) / growth.broadcast_axis(powers.axes) ** powers


@dataclasses.dataclass(frozen=True)
class LongRopeScaling:
    """Divide each frequency by a number of its own, of one list for short texts and of another for long ones.

    Attributes:
        short: for texts up to the old context.
        long: for longer ones.
        original_length: the number of positions of the old context.

    Reference:
        Ding et al. (2024), LongRoPE: extending LLM context window beyond 2 million tokens.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_length: int

    def at_length(self, frequencies: Frequencies, length: NamedArray) -> NamedArray:
        """Return the frequencies for a text, axes {pair, those of the length}."""
        long, short = (_by_pair(frequencies / np.array(each)) for each in (self.long, self.short))
        is_long = (length > self.original_length).broadcast_axis(Axis("pair", len(frequencies)))
        return axn.where(is_long, long, short)


Scaling: TypeAlias = nn.FrequencyScaling | DynamicScaling | LongRopeScaling


class Rope(NamedTuple):
    """Rotary positions.

    Attributes:
        theta: the base of the frequencies.
        scaling: changes the frequencies, for long texts.
        share: of the features of a head, the first ones, that are rotated.
        magnitude: a factor of what is rotated, of queries and of keys.
    """

    theta: float = 10000.0
    scaling: Scaling | None = None
    share: float = 1.0
    magnitude: float = 1.0


def rotary_table(
    rope: Rope, HeadDim: Axis, at: Axis | NamedArray, length: NamedArray | None = None
) -> nn.RotaryTable:
    """Compute the cosines and sines of positions.

    Args:
        rope: how they are rotated.
        HeadDim: the axis of features.
        at: an axis, along which positions count from zero; or the positions.
        length: of the text so far, axes among those of `at`; by default one more than the largest position.
    """
    size, scaling = int(rope.share * HeadDim.size), rope.scaling
    if isinstance(scaling, DynamicScaling | LongRopeScaling):
        positions = axn.arange(at) if isinstance(at, Axis) else at
        if length is None:
            last = positions.max("pos") if positions.has_axis("pos") else positions
            length = last + 1
        frequencies = rope.theta ** -(np.arange(0, size, 2) / size)
        spread = positions.astype("float32").broadcast_axis(Axis("pair", len(frequencies)))
        angles = spread * scaling.at_length(frequencies, length)
        angles = angles.rearrange((*positions.names, "pair"))
        table = nn.RotaryTable(axn.cos(angles), axn.sin(angles), HeadDim, False)
    else:
        table = nn.RotaryEmbedding.init(HeadDim, rope.theta, scaling=scaling, size=size).at(at)
    if rope.magnitude == 1.0:
        return table
    cos, sin = table.cos * rope.magnitude, table.sin * rope.magnitude
    return nn.RotaryTable(cos, sin, HeadDim, False)


def _by_pair(values: Frequencies) -> NamedArray:
    return axn.named(jnp.asarray(values, jnp.float32), "pair")
