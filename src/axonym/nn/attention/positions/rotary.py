"""Rotary embeddings: positions as rotations of queries and keys."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from ....array import NamedArray, named
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
from ....ops.elementwise import cos, sin
from ...inputs import check_positions, number_positions
from ...layer import Layer
from ...settings import check_int
from .scaling import PAIR, FrequencyScaling, LengthScaling

__all__ = [
    "RotaryEmbedding",
    "RotaryTable",
    "rotary",
]


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
        magnitude: a factor of what is rotated.

    Examples:
        >>> Pos, HeadDim = axn.make_axes(pos=3, head_dim=4)
        >>> rotary = axn.nn.RotaryEmbedding.init(HeadDim)
        >>> rotary(axn.ones((Pos, HeadDim)), Pos)["pos", 0].tolist()
        [1.0, 1.0, 1.0, 1.0]
    """

    HeadDim: Axis = eqx.field(static=True)
    theta: float = eqx.field(static=True)
    scaling: FrequencyScaling | LengthScaling | None = eqx.field(static=True)
    interleaved: bool = eqx.field(static=True)
    size: int = eqx.field(static=True)
    magnitude: float = eqx.field(static=True, default=1.0)

    @classmethod
    def init(
        cls,
        HeadDim: Axis,
        theta: float = 10000.0,
        *,
        scaling: FrequencyScaling | LengthScaling | None = None,
        interleaved: bool = False,
        size: int | None = None,
        magnitude: float = 1.0,
    ) -> Self:
        """Make a layer.

        Args:
            HeadDim: the axis of features.
            theta: the base of the frequencies.
            scaling: changes the frequencies, such as `Llama3Scaling`.
            interleaved: pair neighbours; see `rotary`.
            size: rotate only this many features, the first ones; by default all.
            magnitude: a factor of what is rotated, of queries and of keys, as for `YarnScaling`.

        Raises:
            ArgumentError: if the number of features to rotate is odd or too large.

        Examples:
            >>> axn.nn.RotaryEmbedding.init(axn.Axis("head_dim", 8), size=4).size
            4
        """
        HeadDim = sized(HeadDim, "RotaryEmbedding.init")
        count = _count_features("RotaryEmbedding.init", size, HeadDim)
        return cls(HeadDim, float(theta), scaling, interleaved, count, float(magnitude))

    def at(
        self,
        positions: Axis | NamedArray,
        dtype: DTypeLike = jnp.float32,
        *,
        length: int | NamedArray | None = None,
    ) -> RotaryTable:
        """Compute the cosines and sines of positions, once for many calls.

        Args:
            positions: an axis, along which they count from zero; or the positions.
            dtype: the dtype to compute in.
            length: the number of positions of each text, axes among those of the positions, for a scaling that depends
                on it; by default the size of the axis.

        Returns:
            A table, whose cosines and sines have the axes of the positions, and `pair`.

        Raises:
            AxisClashError: if positions have an axis `pair`.
            ArgumentError: if the scaling depends on a length, and positions are no axis.

        Examples:
            >>> table = axn.nn.RotaryEmbedding.init(axn.Axis("head_dim", 4)).at(axn.Axis("pos", 3))
            >>> table.cos.shape
            {'pos': 3, 'pair': 2}
        """
        counted = number_positions("RotaryEmbedding.at", positions)
        if PAIR in counted.names:
            problem = f"positions have axis {PAIR!r}, which the table adds"
            given = f"positions have: {facts(counted)}"
            raise AxisClashError(message("RotaryEmbedding.at", problem, given))
        frequencies = self.theta ** -(np.arange(0, self.size, 2) / self.size)
        if isinstance(self.scaling, LengthScaling):
            if length is None and isinstance(positions, NamedArray):
                problem = f"the frequencies of {self.scaling!r} depend on the length of the text"
                hint = "pass length=..., as numbers or as an array over axes of the positions"
                raise ArgumentError(message("RotaryEmbedding.at", problem, hint=hint))
            if not isinstance(length, NamedArray):
                length = named(counted.array.size if length is None else length, ())
            turns = self.scaling.at_length(frequencies, length).astype(dtype)
            angles = counted.astype(dtype).broadcast_axis(turns.resolve_axis(PAIR)) * turns
            return self._make_table(angles.rearrange((*counted.names, PAIR)))
        if self.scaling is not None:
            frequencies = self.scaling(frequencies)
        rates = frequencies.astype(dtype).reshape(*[1] * counted.array.ndim, -1)
        # NumPy computed the frequencies in float64, so that the angles of far positions differ as they should.
        angles = counted.array[..., None].astype(dtype) * kernels.constant(rates)

        return self._make_table(wrap(counted, angles, (*counted.names, PAIR)))

    def _make_table(self, angles: NamedArray) -> RotaryTable:
        tables = cos(angles), sin(angles)
        if self.magnitude != 1:
            tables = tables[0] * self.magnitude, tables[1] * self.magnitude
        return RotaryTable(*tables, self.HeadDim, self.interleaved)

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
    scaling: FrequencyScaling | LengthScaling | None = None,
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
    kernel = checks.run_plan("rotary", (x, cos[PAIR, 0]), _make_kernel, *key)
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
