"""What parameters are at the start."""

import math
from collections.abc import Callable
from typing import TypeAlias

import jax

from .. import random
from ..array import NamedArray
from ..axis import Axis

__all__ = ["Initializer", "fan_in"]

Initializer: TypeAlias = Callable[[jax.Array, tuple[Axis, ...]], NamedArray]
"""Makes a parameter of a key and axes."""


def fan_in(size: int, scale: float = 1.0) -> Initializer:
    """Draw from a normal distribution, cut off at three, times `scale` over the root of the number of inputs."""

    def initialize(key: jax.Array, axes: tuple[Axis, ...]) -> NamedArray:
        return random.truncated_normal(key, axes, -3.0, 3.0) * (scale / math.sqrt(max(size, 1)))

    return initialize
