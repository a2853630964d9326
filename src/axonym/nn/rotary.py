"""Rotary embeddings: positions as rotations of queries and keys."""

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from .. import _constraints, plans
from ..array import NamedArray
from ..axis import Axis, AxisSelector, axis_name, selector, shown, sized
from ..core import Core, facts, shape_of, wrap
from ..errors import ArgumentError, AxisClashError, AxisError, message
from ..ops import _lift
from ..ops._widen import at_least_float32
from ..plans import Names
from ._inputs import check_positions, numbered
from ._settings import integer

__all__ = [
    "FrequencyScaling",
    "LinearScaling",
    "Llama3Scaling",
    "NtkScaling",
    "RotaryEmbedding",
    "RotaryTable",
    "rotary",
]

_PAIR = "pair"
FrequencyScaling: TypeAlias = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
"""A function of the frequencies of a rotary embedding, fastest first, in radians per position; must be hashable."""


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """Interpolate positions: a context that is `factor` times longer has the angles of the old one.

    Reference:
        Chen et al. (2023), Extending context window of large language models via position interpolation.
    """

    factor: float

    def __call__(self, frequencies: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Divide all frequencies by the factor."""
        return frequencies / self.factor


@dataclasses.dataclass(frozen=True)
class NtkScaling:
    """Divide each frequency by a power of `factor`: the fastest by one, the slowest by the factor.

    It is the same as multiplying `theta` by factor ** (size / (size - 2)).

    Reference:
        Peng et al. (2023), YaRN: efficient context window extension of large language models, section 3.1.
    """

    factor: float

    def __call__(self, frequencies: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Divide the frequencies by powers of the factor."""
        return frequencies / self.factor ** np.linspace(0, 1, len(frequencies))


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Divide low frequencies by `factor`, and keep high ones.

    A frequency of less than `low` turns in `original_length` positions is divided, one of more than `high` turns stays,
    and one between is interpolated. The defaults are those of Llama 3.1.

    Reference:
        Grattafiori et al. (2024), The Llama 3 herd of models; "NTK by parts" in Peng et al. (2023), YaRN, section 3.2.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def __call__(self, frequencies: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Divide each frequency according to its number of turns."""
        turns = self.original_length * frequencies / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


class RotaryTable(eqx.Module):
    """Cosines and sines of the angles of positions, made by `RotaryEmbedding.at`; a call rotates an array.

    One table serves queries and keys of all layers. Without it, a loop over layers computes them in each, and the
    compiler may do so for each head.

    Attributes:
        cos: axes {those of the positions, pair}.
        sin: the same.
        HeadDim: the axis of features.
        interleaved: which features are paired, see `rotary`.
    """

    cos: NamedArray
    sin: NamedArray
    HeadDim: Axis = eqx.field(static=True)
    interleaved: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Rotate `x`; the result has the same axes {HeadDim, those of the positions, ...}."""
        return _rotated(x, self.cos, self.sin, self.HeadDim, self.interleaved)


class RotaryEmbedding(eqx.Module):
    """Rotate pairs of features by angles that grow with the position, for queries and keys; see `rotary`.

    It has no parameters.

    Attributes:
        HeadDim: the axis of features.
        theta: the base of the frequencies.
        scaling: changes the frequencies, for a longer context.
        interleaved: which features are paired.
        size: the number of features to rotate.
    """

    HeadDim: Axis = eqx.field(static=True)
    theta: float = eqx.field(static=True)
    scaling: FrequencyScaling | None = eqx.field(static=True)
    interleaved: bool = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        HeadDim: Axis,
        theta: float = 10000.0,
        *,
        scaling: FrequencyScaling | None = None,
        interleaved: bool = False,
        size: int | None = None,
    ) -> Self:
        """Make a layer; the arguments are those of `rotary`.

        Raises:
            ArgumentError: if the number of features to rotate is odd or too large.
        """
        HeadDim = sized(HeadDim, "RotaryEmbedding.init")
        count = _count("RotaryEmbedding.init", size, HeadDim)
        return cls(HeadDim, float(theta), scaling, interleaved, count)

    def at(self, positions: Axis | NamedArray, dtype: DTypeLike = jnp.float32) -> RotaryTable:
        """Compute the cosines and sines of positions, once for many calls.

        Args:
            positions: an axis, along which they count from zero; or the positions.
            dtype: the dtype to compute in.
        """
        counted = numbered("RotaryEmbedding.at", positions)
        if _PAIR in counted.names:
            problem = f"positions have axis {_PAIR!r}, which the table adds"
            raise AxisClashError(message("RotaryEmbedding.at", problem, f"positions have: {facts(counted)}"))
        frequencies = self.theta ** -(np.arange(0, self.size, 2) / self.size)
        scaled = frequencies if self.scaling is None else self.scaling(frequencies)
        turns = _lift.constant(scaled.astype(dtype).reshape(*[1] * counted.array.ndim, -1))
        angles = counted.array[..., None].astype(dtype) * turns
        cos, sin = (wrap(counted, f(angles), (*counted.names, _PAIR)) for f in (jnp.cos, jnp.sin))
        return RotaryTable(cos, sin, self.HeadDim, self.interleaved)

    def __call__(
        self, x: NamedArray, positions: AxisSelector | NamedArray, *, key: jax.Array | None = None
    ) -> NamedArray:
        """Rotate `x`, axes {HeadDim, ...}, which stay; `positions` are as in `rotary`."""
        if not isinstance(x, Core):
            raise _lift.unnamed("rotary", x)
        check_positions("rotary", positions)
        at = positions if isinstance(positions, NamedArray) else _resolved(x, positions)
        return self.at(at, at_least_float32(x.dtype))(x)


def rotary(
    x: NamedArray,
    positions: AxisSelector | NamedArray,
    HeadDim: AxisSelector,
    *,
    theta: float = 10000.0,
    scaling: FrequencyScaling | None = None,
    interleaved: bool = False,
    size: int | None = None,
) -> NamedArray:
    """Rotate pairs of features by angles that grow with the position; dot products then depend only on the distance.

    Pair i of n turns by `theta ** (-i / n)` radians for each position. Angles and the rotation are computed in float32
    or wider, and the result has the dtype of `x`. On a mesh with Explicit axes, a sharded `HeadDim` is gathered for the
    rotation and then sharded again.

    Args:
        x: axes {HeadDim, ...}, queries or keys.
        positions: an axis of `x`, along which positions count from zero; or the positions, axes among the other ones
            of `x`.
        HeadDim: the axis of features.
        theta: the base of the frequencies.
        scaling: changes the frequencies, such as `Llama3Scaling`.
        interleaved: pair neighbours, as RoFormer and GPT-J do, instead of the first half of the features with the
            second, as GPT-NeoX and Llama do. Weights trained with one do not work with the other.
        size: rotate only this many features, the first ones.

    Raises:
        ArgumentError: if the number of features to rotate is odd or too large.
        AxisError: if `x` lacks an axis, or positions have one that `x` lacks, or `HeadDim`.

    Example:
        >>> Pos, HeadDim = axn.make_axes(pos=3, head_dim=4)
        >>> turned = axn.nn.rotary(axn.ones((Pos, HeadDim)), Pos, HeadDim)
        >>> turned.shape, turned["pos", 0].tolist()
        ({'pos': 3, 'head_dim': 4}, [1.0, 1.0, 1.0, 1.0])

    Reference:
        Su et al. (2021), RoFormer: enhanced transformer with rotary position embedding, eq. 34.
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("rotary", x)
    axis = _resolved(x, HeadDim)
    count = _count("rotary", size, axis)
    return RotaryEmbedding(axis, float(theta), scaling, interleaved, count)(x, positions)


def _resolved(x: NamedArray, axis: AxisSelector) -> Axis:
    try:
        plans.require(x.names, (axis_name(axis),))
    except AxisError as flaw:
        _lift.fail("rotary", flaw, x)
    return x.resolve_axis(axis)


def _count(function: str, size: int | None, axis: Axis) -> int:
    """Return how many features are paired."""
    size = axis.size if size is None else integer(function, "size", size)
    if size % 2 or not 0 < size <= axis.size:
        problem = f"features are rotated in pairs: cannot rotate {size} of {shown(axis)}"
        raise ArgumentError(message(function, problem, hint="pass size=..., an even number of features to rotate"))
    return size


def _rotated(x: NamedArray, cos: NamedArray, sin: NamedArray, HeadDim: Axis, interleaved: bool) -> NamedArray:
    if not isinstance(x, Core):
        raise _lift.unnamed("rotary", x)
    own = cos.names[:-1]
    try:
        kernel = _rotation(x.names, own, selector(HeadDim, "rotary"), interleaved)
    except AxisError as flaw:
        _lift.fail("rotary", flaw, x, cos[_PAIR, 0])
    return wrap(x, kernel.call(x.array, cos.array, sin.array), x.names)


@lru_cache(plans.CACHE)
def _rotation(names: Names, own: Names, feature: tuple[str, int | None], interleaved: bool) -> _lift.Kernel:
    """Make the kernel of a rotation, whose positions have the axes `own`."""
    plans.require(names, (feature[0], *own))
    if feature[0] in own:
        raise AxisClashError(f"positions have the axis of features, {feature[0]!r}")
    table = (*own, feature[0])

    def body(x: Any, *tables: Any) -> Any:
        shape = shape_of("rotary", x, names)
        _lift.check_given("rotary", (feature,), names, shape)
        _lift.one_size("rotary", (names, own), (shape, tables[0].shape[:-1]))
        lead = jnp.broadcast_shapes(shape[: -len(names)], tables[0].shape[: -len(table)])
        x = given = jnp.broadcast_to(x, (*lead, *shape[-len(names) :]))
        shape, at = x.shape, len(lead) + names.index(feature[0])
        arrays = _lift.agreed((names, table, table), (_lift.whole(x, (at,)), *tables), names)
        x, cos, sin = arrays[0], *(_lift.lined_up(each, table, names) for each in arrays[1:])
        half = tables[0].shape[-1]

        computed = x.astype(cos.dtype)
        bounds = [(i, 2 * half, 2) for i in range(2)] if interleaved else [(0, half, 1), (half, 2 * half, 1)]
        first, second = (lax.slice_in_dim(computed, start, stop, stride, at) for start, stop, stride in bounds)
        turned = [first * cos - second * sin, second * cos + first * sin]
        if interleaved:
            both = lax.concatenate([lax.expand_dims(each, (at + 1,)) for each in turned], at + 1)
            turned = [lax.reshape(both, (*shape[:at], 2 * half, *shape[at + 1 :]))]
        if 2 * half < shape[at]:
            turned.append(lax.slice_in_dim(computed, 2 * half, shape[at], axis=at))
        joined = (lax.concatenate(turned, at) if len(turned) > 1 else turned[0]).astype(x.dtype)
        return _constraints.laid_out_like(joined, given)

    return _lift.Kernel(names, body)
