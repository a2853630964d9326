"""Layers that normalise over axes, with a derivative in closed form.

For the backward pass, they keep the input, the weight, and one or two numbers for each normalised vector. JAX's own
derivative would keep arrays of float32 as large as the input as well.
"""

import dataclasses
import functools
import itertools
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import Axis, AxisSpec, axis_name, spec
from ..base.dtypes import at_least_float32, widen_to
from ..create import ones, zeros
from ..engine import checks, kernels, primitives
from ..engine.core import wrap
from ..engine.renaming import share_by_renaming
from ..faults.broadcast_gradients import add_then_broadcast
from ..names import plans
from ..names.plans import Names
from .inputs import check_input
from .layer import Layer
from .settings import keeps_intermediates, read_tangent
from .weights import apply_affine, collect_parameters, make_if

__all__ = ["LayerNorm", "RmsNorm"]


class _Norm(Layer):
    """The fields and the constructor that both norms share."""

    axis: tuple[Axis, ...] = eqx.field(static=True)
    weight: NamedArray | None
    bias: NamedArray | None
    eps: float = eqx.field(static=True, default=1e-5)
    dtype: np.dtype[np.generic] | None = eqx.field(static=True, default=None)

    @classmethod
    def init(
        cls,
        axis: AxisSpec,
        eps: float = 1e-5,
        *,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """Make a layer; weights start at one and biases at zero.

        Args:
            axis: the axes to normalise over.
            eps: added to the mean square before the square root.
            use_weight: whether to multiply by a learned weight.
            use_bias: whether to add a learned bias.
            dtype: the dtype to compute in; by default float32, or the input's if it is wider.
        """
        axes = spec(axis, f"{cls.__name__}.init")
        weight = make_if(use_weight, ones, axes)
        bias = make_if(use_bias, zeros, axes)
        # A dtype, not a scalar type such as `jnp.float32`: static fields must compare and hash alike.
        computed = None if dtype is None else jnp.dtype(dtype)
        return cls(axes, weight, bias, float(eps), computed)

    def _apply(self, x: NamedArray, centered: bool) -> NamedArray:
        check_input(type(self).__name__, x, self.axis, ())

        operands = [x, *collect_parameters(self.weight, self.bias)]
        kernel = _make_kernel(
            tuple([operand.names for operand in operands]),  # a list is faster than a generator
            self.axis,
            centered,
            self.weight is not None,
            self.bias is not None,
            self.eps,
            self.dtype,
        )
        return wrap(x, kernel.call(*[operand.array for operand in operands]), x.names)


class LayerNorm(_Norm):
    """Subtract the mean over `axis`, divide by the standard deviation, multiply by a weight and add a bias.

    The layer computes in float32 or wider, and returns the dtype of its input.

    Attributes:
        axis: the axes to normalise over.
        weight: axes {*axis}, or None.
        bias: axes {*axis}, or None.
        eps: added to the variance before the square root.
        dtype: the dtype to compute in; by default float32, or the input's if it is wider.

    Reference:
        Ba, Kiros, Hinton (2016), Layer normalization.

    Examples:
        >>> norm = axn.nn.LayerNorm.init(axn.Axis("embed", 2))
        >>> norm(axn.named([[1.0, 3.0], [50.0, 40.0]], ("batch", "embed"))).round(2).tolist()
        [[-1.0, 1.0], [1.0, -1.0]]
    """

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalise `x`.

        Args:
            x: axes {*axis, ...}.
            key: not used; every layer takes one.

        Returns:
            The same axes.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `axis`.
            AxisSizeError: if an axis has another size.
        """
        return self._apply(x, centered=True)


class RmsNorm(_Norm):
    """Divide by the root mean square over `axis`, multiply by a weight and add a bias.

    The layer computes in float32 or wider, and returns the dtype of its input. There is a bias by default; turn it
    off for models such as Llama, by `use_bias=False`.

    Attributes:
        axis: the axes to normalise over.
        weight: axes {*axis}, or None.
        bias: axes {*axis}, or None.
        eps: added to the mean square before the square root.
        dtype: the dtype to compute in; by default float32, or the input's if it is wider.

    Reference:
        Zhang, Sennrich (2019), Root mean square layer normalization.

    Examples:
        >>> norm = axn.nn.RmsNorm.init(axn.Axis("embed", 2), use_bias=False)
        >>> norm(axn.named([1.0, 7.0], "embed")).round(2).tolist()  # the root mean square is 5
        [0.19..., 1.39...]
    """

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalise `x`.

        Args:
            x: axes {*axis, ...}.
            key: not used; every layer takes one.

        Returns:
            The same axes.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `axis`.
            AxisSizeError: if an axis has another size.
        """
        return self._apply(x, centered=False)


@share_by_renaming("operands", "axis")
def _make_kernel(
    operands: tuple[Names, ...],
    axis: tuple[Axis, ...],
    centered: bool,
    weighted: bool,
    biased: bool,
    eps: float,
    dtype: np.dtype[np.generic] | None,
) -> kernels.Kernel:
    """Make the kernel of a normalisation, with one pass over the input for the statistics and one for the result."""
    names = operands[0]
    at = plans.positions(names, axis_name(axis))
    how = _Normalization(at, centered, weighted, biased, eps, dtype)

    def body(*arrays: jax.Array) -> jax.Array:
        checks.check_sizes("norm", operands, arrays)
        x, *parameters = kernels.align_layouts(operands, arrays, names)
        # The input may have its axes in another order than the weight, and apart from each other.
        lined = tuple(map(kernels.line_up, parameters, operands[1:], itertools.repeat(names)))
        # JAX's own derivative, which keeps what it needs.
        if keeps_intermediates():
            return how.compute_result(x, how.compute_statistics(x), lined)
        normalized: jax.Array = _normalize(how, x, lined)
        return normalized

    return kernels.Kernel(names, body)


@dataclasses.dataclass(frozen=True)
class _Normalization:
    """The static part of a normalisation.

    Attributes:
        at: the dimensions to normalise over.
        centered: whether to subtract the mean.
        weighted: whether there is a weight.
        biased: whether there is a bias.
        eps: added to the mean square.
        dtype: the dtype to compute in; by default float32, or the input's if it is wider.
    """

    at: tuple[int, ...]
    centered: bool
    weighted: bool
    biased: bool
    eps: float
    dtype: np.dtype[np.generic] | None

    def widen(self, x: jax.Array) -> jax.Array:
        """Convert to the dtype to compute in."""
        return x.astype(at_least_float32(x.dtype) if self.dtype is None else self.dtype)

    def mean(self, x: jax.Array) -> jax.Array:
        """Take the mean over the dimensions, and keep them."""
        return primitives.mean(x, self.at)

    def compute_statistics(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """Return the factor of the result and, if it is centered, the mean."""
        # In two passes: the mean of squares less the squared mean would cancel where the mean is large.
        computed, means = self.widen(x), list[jax.Array]()
        if self.centered:
            means.append(self.mean(computed))
            computed = primitives.subtract(computed, means[0])
        squares = self.mean(lax.square(computed))
        return lax.rsqrt(primitives.add(squares, self.eps)), *means

    def standardize(self, x: jax.Array, statistics: tuple[jax.Array, ...]) -> jax.Array:
        """Return the input with mean square one."""
        factor, *means = statistics
        computed = self.widen(x)
        for mean in means:
            computed = primitives.subtract(computed, mean)
        return primitives.multiply(computed, factor)

    def compute_result(
        self, x: jax.Array, statistics: tuple[jax.Array, ...], parameters: tuple[jax.Array, ...]
    ) -> jax.Array:
        """Return the normalised input."""
        standardized = self.standardize(x, statistics)
        return apply_affine(standardized, parameters, self.weighted, self.biased).astype(x.dtype)

    def compute_change(
        self,
        x: jax.Array,
        statistics: tuple[jax.Array, ...],
        weight: jax.Array | None,
        tangents: tuple[Any, ...],
    ) -> jax.Array:
        """Return the tangent of the result.

        With the standardized input s, its factor f and the tangent t of the input, the tangent of s is
        f (t - mean(t) - s mean(s t)); without centering, mean(t) is left out.

        Args:
            x: the input.
            statistics: the factor and, if it is centered, the mean.
            weight: the weight, or None.
            tangents: of the input and of each parameter; None is zero.
        """
        standardized, (own, *parameters) = self.standardize(x, statistics), tangents
        # A zero gives no term: frozen parameters and inputs cost nothing.
        terms: list[jax.Array] = []
        if own is not None:
            moved = self.widen(own)
            shared = self.mean(primitives.multiply(standardized, moved))
            removed = primitives.multiply(standardized, shared)
            if self.centered:
                removed = primitives.add(removed, self.mean(moved))
            along = primitives.multiply(primitives.subtract(moved, removed), statistics[0])
            if weight is not None:
                along = primitives.multiply(along, widen_to(along.dtype, weight))
            terms.append(along)
        # The first parameter is the weight, if there is one, and the last one the bias.
        if self.weighted and parameters[0] is not None:
            wide = widen_to(standardized.dtype, parameters[0])
            terms.append(primitives.multiply(standardized, wide))
        if self.biased and parameters[-1] is not None:
            terms.append(parameters[-1].astype(standardized.dtype))
        return add_then_broadcast(primitives.add, terms, x.shape).astype(x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _normalize(how: _Normalization, x: jax.Array, parameters: tuple[jax.Array, ...]) -> jax.Array:
    """Normalise; for the backward pass, keep the input, the weight and the statistics."""
    return how.compute_result(x, how.compute_statistics(x), parameters)


def _normalize_jvp(
    how: _Normalization, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    """Differentiate in closed form.

    It is a custom JVP, since a custom VJP has no forward mode; its transpose is the usual backward pass. The checkpoint
    keeps the standardized input out of what the backward pass keeps.
    """
    x, parameters = primals
    statistics = how.compute_statistics(x)
    weight = parameters[0] if how.weighted else None
    given = [read_tangent(tangent) for tangent in (tangents[0], *tangents[1])]
    change = jax.checkpoint(how.compute_change)(x, statistics, weight, tuple(given))
    return how.compute_result(x, statistics, parameters), change


_normalize.defjvp(_normalize_jvp, symbolic_zeros=True)
