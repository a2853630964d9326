"""Rotary embeddings: positions as rotations of queries and keys."""

import dataclasses
import math
from collections.abc import Callable
from typing import Self, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from jax.typing import DTypeLike

from ....array import NamedArray
from ....axis import Axis, AxisSelector, selector, shown, sized
from ....base.calls import explain_calls
from ....base.dtypes import at_least_float32
from ....engine import auto, checks, kernels
from ....engine.core import Core, facts, shape_of, wrap
from ....engine.renaming import share_by_renaming
from ....errors import ArgumentError, AxisClashError, message
from ....layout import explicit
from ....names import plans
from ....names.plans import Names
from ...inputs import check_positions, number_positions
from ...layer import Layer
from ...settings import check_int

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


class RotaryTable(Layer):
    """Cosines and sines of the angles of positions, made by `RotaryEmbedding.at`; a call rotates an array.

    One table serves queries and keys of all layers. Without it, a loop over layers computes them in each, and the
    compiler may do so for each head.

    Attributes:
        cos: axes {those of the positions, pair}.
        sin: the same.
        HeadDim: the axis of features.
        interleaved: which features are paired, see `rotary`.

    Examples:
        >>> Pos, HeadDim = axn.make_axes(pos=3, head_dim=4)
        >>> table = axn.nn.RotaryEmbedding.init(HeadDim).at(Pos)
        >>> x = axn.ones((Pos, HeadDim))
        >>> bool(axn.allclose(table(x), axn.nn.rotary(x, Pos, HeadDim)))
        True
    """

    cos: NamedArray
    sin: NamedArray
    HeadDim: Axis = eqx.field(static=True)
    interleaved: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Rotate the features of an array.

        Args:
            x: axes {HeadDim, those of the positions, ...}, queries or keys.
            key: not used; every layer takes one.

        Returns:
            The axes and the dtype of `x`.

        Raises:
            AxisNotFoundError: if `x` lacks an axis.

        Examples:
            >>> Pos, HeadDim = axn.make_axes(pos=3, head_dim=4)
            >>> axn.nn.RotaryEmbedding.init(HeadDim).at(Pos)(axn.ones((Pos, HeadDim))).shape
            {'pos': 3, 'head_dim': 4}
        """
        return _rotate(x, self.cos, self.sin, self.HeadDim, self.interleaved)


class RotaryEmbedding(Layer):
    """Rotate pairs of features by angles that grow with the position, for queries and keys; see `rotary`.

    It has no parameters.

    Attributes:
        HeadDim: the axis of features.
        theta: the base of the frequencies.
        scaling: changes the frequencies, for a longer context.
        interleaved: which features are paired.
        size: the number of features to rotate.

    Examples:
        >>> Pos, HeadDim = axn.make_axes(pos=3, head_dim=4)
        >>> rotary = axn.nn.RotaryEmbedding.init(HeadDim)
        >>> rotary(axn.ones((Pos, HeadDim)), Pos)["pos", 0].tolist()
        [1.0, 1.0, 1.0, 1.0]
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
        """Make a layer.

        Args:
            HeadDim: the axis of features.
            theta: the base of the frequencies.
            scaling: changes the frequencies, such as `Llama3Scaling`.
            interleaved: pair neighbours; see `rotary`.
            size: rotate only this many features, the first ones; by default all.

        Raises:
            ArgumentError: if the number of features to rotate is odd or too large.

        Examples:
            >>> axn.nn.RotaryEmbedding.init(axn.Axis("head_dim", 8), size=4).size
            4
        """
        HeadDim = sized(HeadDim, "RotaryEmbedding.init")
        count = _count_features("RotaryEmbedding.init", size, HeadDim)
        return cls(HeadDim, float(theta), scaling, interleaved, count)

    def at(self, positions: Axis | NamedArray, dtype: DTypeLike = jnp.float32) -> RotaryTable:
        """Compute the cosines and sines of positions, once for many calls.

        Args:
            positions: an axis, along which they count from zero; or the positions.
            dtype: the dtype to compute in.

        Returns:
            A table, whose cosines and sines have the axes of the positions, and `pair`.

        Raises:
            AxisClashError: if positions have an axis `pair`.

        Examples:
            >>> table = axn.nn.RotaryEmbedding.init(axn.Axis("head_dim", 4)).at(axn.Axis("pos", 3))
            >>> table.cos.shape
            {'pos': 3, 'pair': 2}
        """
        counted = number_positions("RotaryEmbedding.at", positions)
        if _PAIR in counted.names:
            problem = f"positions have axis {_PAIR!r}, which the table adds"
            given = f"positions have: {facts(counted)}"
            raise AxisClashError(message("RotaryEmbedding.at", problem, given))
        frequencies = self.theta ** -(np.arange(0, self.size, 2) / self.size)
        if self.scaling is not None:
            frequencies = self.scaling(frequencies)
        turns = frequencies.astype(dtype).reshape(*[1] * counted.array.ndim, -1)
        # NumPy computed the frequencies in float64, so that the angles of far positions differ as they should.
        angles = counted.array[..., None].astype(dtype) * kernels.constant(turns)

        names = (*counted.names, _PAIR)
        cos, sin = wrap(counted, jnp.cos(angles), names), wrap(counted, jnp.sin(angles), names)
        return RotaryTable(cos, sin, self.HeadDim, self.interleaved)

    def __call__(
        self, x: NamedArray, positions: AxisSelector | NamedArray, *, key: jax.Array | None = None
    ) -> NamedArray:
        """Rotate the features of an array, as `rotary` does.

        Args:
            x: axes {HeadDim, ...}, queries or keys.
            positions: an axis of `x`, along which they count from zero; or the positions.
            key: not used; every layer takes one.

        Returns:
            The axes and the dtype of `x`.

        Examples:
            >>> Batch, HeadDim = axn.make_axes(batch=2, head_dim=4)
            >>> rotary = axn.nn.RotaryEmbedding.init(HeadDim)
            >>> rotary(axn.ones((Batch, HeadDim)), axn.named([0, 7], "batch")).shape
            {'batch': 2, 'head_dim': 4}
        """
        if not isinstance(x, Core):
            raise checks.no_names("rotary", x)
        check_positions("rotary", positions)
        if not isinstance(positions, NamedArray):
            (positions,) = checks.require("rotary", x, positions)
        return self.at(positions, at_least_float32(x.dtype))(x)


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

    Returns:
        The axes and the dtype of `x`.

    Raises:
        ArgumentError: if the number of features to rotate is odd or too large.
        AxisError: if `x` lacks an axis, or positions have one that `x` lacks, or `HeadDim`.

    Examples:
        >>> Pos, HeadDim = axn.make_axes(pos=3, head_dim=4)
        >>> turned = axn.nn.rotary(axn.ones((Pos, HeadDim)), Pos, HeadDim)
        >>> turned.shape, turned["pos", 0].tolist()
        ({'pos': 3, 'head_dim': 4}, [1.0, 1.0, 1.0, 1.0])

    Reference:
        Su et al. (2021), RoFormer: enhanced transformer with rotary position embedding, eq. 34.
    """
    if not isinstance(x, Core):
        raise checks.no_names("rotary", x)
    (axis,) = checks.require("rotary", x, HeadDim)
    count = _count_features("rotary", size, axis)
    return RotaryEmbedding(axis, float(theta), scaling, interleaved, count)(x, positions)


def _count_features(function: str, size: int | None, axis: Axis) -> int:
    """Return how many features are paired."""
    size = check_int(function, "size", axis.size if size is None else size)
    if size % 2 or not 0 < size <= axis.size:
        problem = f"features are rotated in pairs: cannot rotate {size} of {shown(axis)}"
        hint = "pass size=..., an even number of features to rotate"
        raise ArgumentError(message(function, problem, hint=hint))
    return size


def _rotate(
    x: NamedArray, cos: NamedArray, sin: NamedArray, HeadDim: Axis, interleaved: bool
) -> NamedArray:
    if not isinstance(x, Core):
        raise checks.no_names("rotary", x)
    # One kernel for all calls whose axes have the same names.
    key = (x.names, cos.names[:-1], selector(HeadDim, "rotary"), interleaved)
    kernel = checks.run_plan("rotary", (x, cos[_PAIR, 0]), _make_kernel, *key)
    return wrap(x, kernel.call(x.array, cos.array, sin.array), x.names)


@share_by_renaming("names", "own", "feature")
def _make_kernel(
    names: Names, own: Names, feature: tuple[str, int | None], interleaved: bool
) -> kernels.Kernel:
    """Make the kernel of a rotation, whose positions have the axes `own`."""
    plans.require(names, (feature[0], *own))
    if feature[0] in own:
        raise AxisClashError(f"positions have the axis of features, {feature[0]!r}")
    table = (*own, feature[0])

    def body(x: jax.Array, *tables: jax.Array) -> jax.Array:
        shape = shape_of("rotary", x, names)
        checks.check_given("rotary", (feature,), names, shape)
        checks.one_size("rotary", (names, own), (shape, tables[0].shape[:-1]))
        lead = jnp.broadcast_shapes(shape[: -len(names)], tables[0].shape[: -len(table)])
        x = given = jnp.broadcast_to(x, (*lead, *shape[-len(names) :]))

        # A pair may lie on two devices: the features are gathered, and then sharded as they were.
        at = len(lead) + names.index(feature[0])
        operands = (auto.whole(x, (at,)), *tables)
        x, cos, sin = kernels.align_layouts((names, table, table), operands, names)
        cos, sin = kernels.line_up(cos, table, names), kernels.line_up(sin, table, names)
        rotated = _rotate_pairs(x.astype(cos.dtype), cos, sin, at, tables[0].shape[-1], interleaved)
        return explicit.reshard_like(rotated.astype(x.dtype), given)

    return kernels.Kernel(names, body)


def _rotate_pairs(
    x: jax.Array, cos: jax.Array, sin: jax.Array, at: int, half: int, interleaved: bool
) -> jax.Array:
    """Rotate `half` pairs of features along a dimension; further ones stay."""
    # Strides take the neighbours apart without moving the others.
    if interleaved:
        first = lax.slice_in_dim(x, 0, 2 * half, 2, at)
        second = lax.slice_in_dim(x, 1, 2 * half, 2, at)
    else:
        first = lax.slice_in_dim(x, 0, half, axis=at)
        second = lax.slice_in_dim(x, half, 2 * half, axis=at)

    # (a + bi) * (cos + i sin), where a and b are the two features of a pair.
    turned = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        both = lax.concatenate([lax.expand_dims(each, (at + 1,)) for each in turned], at + 1)
        turned = [lax.reshape(both, (*x.shape[:at], 2 * half, *x.shape[at + 1 :]))]
    if 2 * half < x.shape[at]:
        turned.append(lax.slice_in_dim(x, 2 * half, x.shape[at], axis=at))
    return turned[0] if len(turned) == 1 else lax.concatenate(turned, at)


explain_calls(globals(), __all__)
