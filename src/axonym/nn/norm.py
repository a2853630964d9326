"""Layers that normalise over axes."""

import itertools
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import Axis, AxisSpec, axis_name, spec
from ..core import wrap
from ..create import ones, zeros
from ..dtypes import at_least_float32
from ..engine import checks, kernels
from ..engine.renaming import up_to_renaming
from ..names import plans
from ..names.plans import Names
from .inputs import check_input
from .layer import Layer
from .recompute import from_inputs
from .weights import affine, made_if, parameters_of

__all__ = ["LayerNorm", "RmsNorm"]


class _Norm(Layer):
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
        """Make a layer.

        Args:
            axis: the axes to normalise over.
            eps: added to the mean square before the square root.
            use_weight: whether to multiply by a learned weight.
            use_bias: whether to add a learned bias.
            dtype: the dtype to compute in; by default float32, or the input's if it is wider.
        """
        axes = spec(axis, f"{cls.__name__}.init")
        weight = made_if(use_weight, ones, axes)
        bias = made_if(use_bias, zeros, axes)
        if dtype is not None:
            dtype = jnp.dtype(dtype)
        return cls(axes, weight, bias, float(eps), dtype)

    def _apply(self, x: NamedArray, centered: bool) -> NamedArray:
        check_input(type(self).__name__, x, self.axis, ())

        operands = [x, *parameters_of(self.weight, self.bias)]
        kernel = _normalize(
            tuple([operand.names for operand in operands]),
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

    It computes in float32 or wider, and returns the dtype of its input.

    Reference:
        Ba, Kiros, Hinton (2016), Layer normalization.
    """

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalise `x`; the result has the same axes {axis, ...}.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `axis`.
            AxisSizeError: if an axis has another size.
        """
        return self._apply(x, centered=True)


class RmsNorm(_Norm):
    """Divide by the root mean square over `axis`, multiply by a weight and add a bias.

    It computes in float32 or wider, and returns the dtype of its input.

    Reference:
        Zhang, Sennrich (2019), Root mean square layer normalization.
    """

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalise `x`; the result has the same axes {axis, ...}.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `axis`.
            AxisSizeError: if an axis has another size.
        """
        return self._apply(x, centered=False)


@up_to_renaming("operands", "axis")
def _normalize(
    operands: tuple[Names, ...],
    axis: tuple[Axis, ...],
    centered: bool,
    weighted: bool,
    biased: bool,
    eps: float,
    dtype: np.dtype[np.generic] | None,
) -> kernels.Kernel:
    """Make the kernel of a normalisation, with one pass for the statistics and one for the result."""
    names = operands[0]
    at = plans.positions(names, axis_name(axis))

    def normalized(x: jax.Array, *parameters: jax.Array) -> jax.Array:
        wide = dtype
        if wide is None:
            wide = at_least_float32(x.dtype)
        computed = x.astype(wide)
        if centered:
            computed = computed - computed.mean(at, keepdims=True)
        scale = lax.rsqrt(lax.square(computed).mean(at, keepdims=True) + eps)
        return affine(computed * scale, parameters, weighted, biased).astype(x.dtype)

    def body(*arrays: jax.Array) -> jax.Array:
        checks.check_sizes("norm", operands, arrays)
        x, *parameters = kernels.align_layouts(operands, arrays, names)
        lined = map(kernels.lined_up, parameters, operands[1:], itertools.repeat(names))
        return from_inputs(normalized)(x, *lined)

    return kernels.Kernel(names, body)
