"""Type aliases."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

__all__ = [
    "DType",
    "DTypeLike",
    "FilterSpec",
    "FilterTree",
    "GatherScatterModeStr",
    "IntScalar",
    "PrecisionLike",
    "Scalar",
]

DType = np.dtype
IntScalar: TypeAlias = int | jax.Array
Scalar: TypeAlias = float | int | jax.Array
GatherScatterModeStr: TypeAlias = Literal["promise_in_bounds", "clip", "drop", "fill"]
FilterSpec: TypeAlias = bool | Callable[[Any], bool]
FilterTree: TypeAlias = Any  # a tree of FilterSpec
