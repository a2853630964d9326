"""Layers that normalise over axes."""

from functools import lru_cache
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from .. import plans
from ..array import NamedArray
from ..axis import Axis, AxisSpec, spec
from ..core import wrap
from ..create import ones, zeros
from ..ops import _lift
from ..ops._widen import at_least_float32, widened_to
from ..partitioning.shard import auto_sharded
from ..plans import Names
from ._inputs import check_input
from .recompute import from_inputs

__all__ = ["LayerNorm", "RmsNorm"]


class _Norm(eqx.Module):
    axis: tuple[Axis, ...] = eqx.field(static=True)
    weight: NamedArray | None
    bias: NamedArray | None
    eps: float = eqx.field(static=True, default=1e-5)
    dtype: Any = eqx.field(static=True, default=None)

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
        computed = None if dtype is None else jnp.dtype(dtype)
        return cls(axes, ones(axes) if use_weight else None, zeros(axes) if use_bias else None, float(eps), computed)

    def _apply(self, x: NamedArray, centered: bool) -> NamedArray:
        check_input(type(self).__name__, x, self.axis, ())
        # Laid out here, a parameter with another sharding is gathered once, not again in the backward pass.
        parameters = [auto_sharded(p) for p in (self.weight, self.bias) if p is not None]
        operands = (x.names, *(p.names for p in parameters))
        kernel = _normalize(
            operands, self.axis, centered, self.weight is not None, self.bias is not None, self.eps, self.dtype
        )
        return wrap(x, kernel.call(x.array, *(p.array for p in parameters)), x.names)


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


@lru_cache(plans.CACHE)
def _normalize(
    operands: tuple[Names, ...],
    axis: tuple[Axis, ...],
    centered: bool,
    weighted: bool,
    biased: bool,
    eps: float,
    dtype: Any,
) -> _lift.Kernel:
    """Make the kernel of a normalisation, with one pass for the statistics and one for the result."""
    names = operands[0]
    at = plans.positions(names, tuple(a.name for a in axis))

    def normalized(x: Any, *lined: Any) -> Any:
        parameters = iter(lined)
        computed = x.astype(at_least_float32(x.dtype) if dtype is None else dtype)
        if centered:
            computed = computed - computed.mean(at, keepdims=True)
        scale = lax.rsqrt(lax.square(computed).mean(at, keepdims=True) + eps)
        result = computed * scale
        if weighted:
            result = result * widened_to(result.dtype, next(parameters))
        if biased:
            result = result + widened_to(result.dtype, next(parameters))
        return result.astype(x.dtype)

    def body(*arrays: Any) -> Any:
        _lift.check_sizes("norm", operands, arrays)
        x, *parameters = _lift.agreed(operands, arrays, names)
        lined = [_lift.lined_up(p, own, names) for p, own in zip(parameters, operands[1:], strict=True)]
        return from_inputs(normalized)(x, *lined)

    return _lift.Kernel(names, body)
