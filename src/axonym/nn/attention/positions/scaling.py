"""How rotary embeddings change their frequencies for long texts."""

import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ....array import NamedArray, named
from ....axis import Axis
from ....ops.elementwise import maximum
from ....ops.where import where

__all__ = [
    "DynamicScaling",
    "FrequencyScaling",
    "LengthScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "NtkScaling",
    "YarnScaling",
]

PAIR = "pair"
Frequencies: TypeAlias = npt.NDArray[np.float64]
FrequencyScaling: TypeAlias = Callable[[Frequencies], Frequencies]
"""A function of the frequencies of a rotary embedding, fastest first, in radians per position; must be hashable."""


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Interpolate positions: a context that is `factor` times longer has the angles of the old one.

    Attributes:
        factor: how many times longer the context is.

    Examples:
        >>> Pos, HeadDim = axn.make_axes(pos=4, head_dim=2)
        >>> x, scaling = axn.ones((Pos, HeadDim)), axn.nn.LinearScaling(2.0)
        >>> long = axn.nn.rotary(x, Pos, HeadDim, scaling=scaling)
        >>> bool(axn.allclose(long["pos", 2], axn.nn.rotary(x, Pos, HeadDim)["pos", 1]))
        True

    Reference:
        Chen et al. (2023), Extending context window of large language models via position interpolation.
    """

    factor: float

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """Divide all frequencies, in radians per position, by the factor.

        Examples:
            >>> axn.nn.LinearScaling(2.0)(np.array([1.0, 0.5])).tolist()
            [0.5, 0.25]
        """
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class NtkScaling:
    """Divide each frequency by a power of `factor`: the fastest by one, the slowest by the factor.

    It is the same as multiplying `theta` by factor ** (size / (size - 2)).

    Attributes:
        factor: how many times longer the context is.

    Examples:
        >>> HeadDim, scaling = axn.Axis("head_dim", 8), axn.nn.NtkScaling(4.0)
        >>> axn.nn.RotaryEmbedding.init(HeadDim, scaling=scaling).scaling
        NtkScaling(factor=4.0)

    Reference:
        Peng et al. (2023), YaRN: efficient context window extension of large language models, section 3.1.
    """

    factor: float

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """Divide the frequencies, in radians per position and fastest first, by powers of the factor.

        Examples:
            >>> axn.nn.NtkScaling(4.0)(np.array([1.0, 1.0, 1.0])).tolist()
            [1.0, 0.5, 0.25]
        """
        return frequencies / self.factor ** np.linspace(0, 1, len(frequencies))


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Divide low frequencies by `factor`, and keep high ones.

    A frequency of less than `low` turns in `original_length` positions is divided, one of more than `high` turns stays,
    and one between is interpolated. The defaults are those of Llama 3.1.

    Attributes:
        factor: the divisor of low frequencies.
        low: the number of turns in `original_length` below which a frequency is low.
        high: the number of turns above which a frequency is high.
        original_length: the number of positions of the old context.

    Examples:
        >>> HeadDim, scaling = axn.Axis("head_dim", 64), axn.nn.Llama3Scaling(factor=32.0)
        >>> axn.nn.RotaryEmbedding.init(HeadDim, 500000.0, scaling=scaling).scaling.factor
        32.0

    Reference:
        Grattafiori et al. (2024), The Llama 3 herd of models; "NTK by parts" in Peng et al. (2023), YaRN, section 3.2.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """Divide each frequency, in radians per position, according to its number of turns.

        Examples:
            >>> axn.nn.Llama3Scaling()(np.array([1.0, 1e-4])).tolist()
            [1.0, 1.25e-05]
        """
        turns = self.original_length * frequencies / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        changed: Frequencies = frequencies * (kept + (1 - kept) / self.factor)
        return changed


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """Divide low frequencies by a factor, keep high ones, and blend along a ramp between them.

    Attributes:
        factor: the divisor of low frequencies.
        fast: the number of turns in `original_length` above which a frequency stays.
        slow: the number of turns below which it is divided.
        original_length: the number of positions of the old context.
        truncate: whether the ramp begins and ends at whole pairs of features.

    Examples:
        >>> HeadDim, scaling = axn.Axis("head_dim", 64), axn.nn.YarnScaling(8.0)
        >>> axn.nn.RotaryEmbedding.init(HeadDim, scaling=scaling, magnitude=1.2).scaling.factor
        8.0

    Reference:
        Peng et al. (2023), YaRN: efficient context window extension of large language models, section 3.2.
    """

    factor: float
    fast: float = 32.0
    slow: float = 1.0
    original_length: int = 4096
    truncate: bool = True

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """Divide each frequency, in radians per position and fastest first, according to its place on the ramp.

        Examples:
            >>> axn.nn.YarnScaling(4.0)(np.array([1.0, 1e-4])).tolist()
            [1.0, 2.5e-05]
        """
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
    """Divide frequencies as `NtkScaling`, by a factor that grows with the text.

    Attributes:
        factor: how fast it grows: a text of twice the known length has the factor `factor + 1`.
        original_length: the known length, up to which frequencies stay.

    Examples:
        >>> HeadDim, scaling = axn.Axis("head_dim", 8), axn.nn.DynamicScaling(2.0, original_length=4)
        >>> axn.nn.RotaryEmbedding.init(HeadDim, scaling=scaling).at(axn.Axis("pos", 9)).cos.shape
        {'pos': 9, 'pair': 4}
    """

    factor: float
    original_length: int

    def at_length(self, frequencies: Frequencies, length: NamedArray) -> NamedArray:
        """Return the frequencies for a text, axes {pair, those of the length}.

        Args:
            frequencies: those of short texts, in radians per position and fastest first.
            length: the number of positions of the text.

        Examples:
            >>> scaling, length = axn.nn.DynamicScaling(2.0, original_length=4), axn.named([4, 8], "batch")
            >>> scaling.at_length(np.array([1.0, 1.0, 0.75]), length)["pair", 2].tolist()
            [0.75, 0.25]
        """
        times = maximum(length, self.original_length).astype("float32") / self.original_length
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

    Examples:
        >>> HeadDim, scaling = axn.Axis("head_dim", 4), axn.nn.LongRopeScaling((1.0, 1.5), (2.0, 4.0), 4)
        >>> rope, length = axn.nn.RotaryEmbedding.init(HeadDim, scaling=scaling), axn.named([4, 5], "batch")
        >>> table = rope.at(axn.named([3, 6], "batch"), length=length)
        >>> bool(axn.allclose(table.cos["pair", 0], np.cos(3.0)))
        True

    Reference:
        Ding et al. (2024), LongRoPE: extending LLM context window beyond 2 million tokens.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_length: int

    def at_length(self, frequencies: Frequencies, length: NamedArray) -> NamedArray:
        """Return the frequencies for a text, axes {pair, those of the length}.

        Args:
            frequencies: those to divide, in radians per position and fastest first.
            length: the number of positions of the text.

        Examples:
            >>> scaling, length = axn.nn.LongRopeScaling((1.0, 2.0), (2.0, 4.0), 4), axn.named([4, 5], "batch")
            >>> scaling.at_length(np.array([1.0, 1.0]), length).rearrange(("batch", "pair")).tolist()
            [[1.0, 0.5], [0.5, 0.25]]
        """
        long, short = (_by_pair(frequencies / np.array(each)) for each in (self.long, self.short))
        is_long = (length > self.original_length).broadcast_axis(Axis(PAIR, len(frequencies)))
        return where(is_long, long, short)


LengthScaling: TypeAlias = DynamicScaling | LongRopeScaling
"""Scalings whose frequencies depend on the length of a text, see `RotaryEmbedding.at`."""


def _by_pair(values: Frequencies) -> NamedArray:
    return named(jnp.asarray(values, jnp.float32), PAIR)
