"""Internal. Which device sends to which other one, in a `ppermute`.

`lax.ppermute` numbers devices in the order of the mesh, and users number them in the order of the axis.
"""

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.core import Tracer

from ..errors import ArgumentError, message
from ..layout.assignment import Entry


def list_pairs(shift: Any, count: int, axes: Entry) -> list[tuple[int, int]]:
    """List pairs of source and destination; raise unless they permute some devices."""
    try:
        # Shifts of one ring and tables of NumPy are usual, and a traced one cannot be: it is part of the program.
        if isinstance(shift, Sequence):
            listed = list(shift)
        elif np.ndim(shift):
            listed = np.asarray(shift).tolist()
        else:
            step = operator.index(shift)
            listed = [(i, (i + step) % count) for i in range(count)]
        if not all(map(_is_pair, listed)):
            hint = "give an int to shift along the ring, "
            hint += "or pairs of a source and a destination: [(0, 1), (1, 0)]"
            problem = f"{listed!r} is not a list of pairs"
            raise ArgumentError(message("ppermute", problem, hint=hint))
        pairs = [(operator.index(i), operator.index(j)) for i, j in listed]
    except TypeError:
        got = "a traced value" if isinstance(shift, Tracer) else repr(shift)
        problem = f"shift must be an int or pairs of ints; got {got}"
        raise ArgumentError(message("ppermute", problem)) from None
    for numbers in zip(*pairs, strict=True):
        if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(count)):
            problem = f"sources and destinations are {', '.join(map(str, numbers))}"
            fact = f"mesh axis {', '.join(axes)}: devices 0 to {count - 1}, "
            fact += "each at most once on either side"
            raise ArgumentError(message("ppermute", problem, fact))
    return pairs


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def renumber(axes: Entry, ordered: Entry) -> list[int]:
    """Renumber devices along mesh axes for another order of these axes."""
    sizes = {axis: lax.axis_size(axis) for axis in axes}
    numbers: list[int] = []
    for place in itertools.product(*(range(size) for size in sizes.values())):
        at = dict(zip(axes, place, strict=True))
        # The last axis runs fastest, as in a number of several digits.
        number = 0
        for axis in ordered:
            number = number * sizes[axis] + at[axis]
        numbers.append(number)
    return numbers
