"""Products for linear layers: the plain one, and quantised ones."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from axonym import quant
from axonym.quant import OverwriteWithGradient

from ._adapt import Function

__all__ = ["DefaultDotGeneralOp", "DotGeneralOp", "Fp8DotGeneralOp", "Int8DotGeneralOp"]


Pair: TypeAlias = tuple[Sequence[int], Sequence[int]]
DotDimensionNumbers: TypeAlias = tuple[Pair, Pair]
Three: TypeAlias = tuple[jax.Array, ...]  # for the two operands and the gradient of the product


class DotGeneralOp(Protocol):
    """A callable with the signature of `jax.lax.dot_general`."""

    def __call__(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: DotDimensionNumbers,
        precision: PrecisionLike = None,
        preferred_element_type: DTypeLike | None = None,
    ) -> jax.Array:
        """Multiply two arrays."""
        ...

    @staticmethod
    def default() -> "DefaultDotGeneralOp":
        """Return the plain product."""
        return DefaultDotGeneralOp.init()


class DefaultDotGeneralOp(eqx.Module):
    """Multiply by `jax.lax.dot_general`."""

    def __call__(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: DotDimensionNumbers,
        precision: PrecisionLike = None,
        preferred_element_type: DTypeLike | None = None,
    ) -> jax.Array:
        """Multiply two arrays."""
        return lax.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)

    @staticmethod
    def init() -> "DefaultDotGeneralOp":
        """Return the one instance that all layers share."""
        return _default()


@functools.cache
def _default() -> DefaultDotGeneralOp:
    return DefaultDotGeneralOp()


class Fp8DotGeneralOp(OverwriteWithGradient):
    """Multiply in 8-bit floating point with delayed scaling, as `axonym.quant.Fp8DotGeneral` does.

    The gradient of each field is its value after the step. The scales record the divisors of the step, which are
    computed from the histories. Histories are ring buffers, as in Flax: the latest entry is first, and the second
    latest is last.

    Attributes:
        input_scale: the divisor of the latest left operand, shape (1,).
        output_grad_scale: the same for the gradient of the product.
        kernel_scale: the same for the right operand.
        input_amax_history: the largest magnitudes of left operands; zero means none.
        output_grad_amax_history: the same for gradients of the product.
        kernel_amax_history: the same for right operands.
        compute_dtype: the dtype to which operands are cast before they are rounded, or None.
    """

    input_scale: jax.Array
    output_grad_scale: jax.Array
    kernel_scale: jax.Array
    input_amax_history: jax.Array
    output_grad_amax_history: jax.Array
    kernel_amax_history: jax.Array
    compute_dtype: DTypeLike | None = eqx.field(static=True)

    @classmethod
    def init(
        cls, amax_history_length: int = 1024, compute_dtype: DTypeLike | None = None
    ) -> "Fp8DotGeneralOp":
        """Make an initial state."""
        empty = quant.Fp8DotGeneral.init(amax_history_length).input_amax_history
        scale = jnp.ones(1)
        return cls(scale, scale, scale, empty, empty, empty, compute_dtype)

    def __call__(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: DotDimensionNumbers,
        precision: PrecisionLike = None,
        preferred_element_type: DTypeLike | None = None,
    ) -> jax.Array:
        """Multiply like `jax.lax.dot_general`; `precision` is ignored."""
        if self.compute_dtype is not None:
            lhs, rhs = lhs.astype(self.compute_dtype), rhs.astype(self.compute_dtype)
        histories = (
            self.input_amax_history,
            self.kernel_amax_history,
            self.output_grad_amax_history,
        )
        multiply = quant.Fp8DotGeneral(*map(_latest_first, histories))
        product = multiply(lhs, rhs, dimension_numbers, precision, preferred_element_type)
        scales = (self.input_scale, self.kernel_scale, self.output_grad_scale)
        formats = (jnp.float8_e4m3fn, jnp.float8_e4m3fn, jnp.float8_e5m2)
        return _recorded(
            product, scales, tuple(map(_scale, lax.stop_gradient(histories), scales, formats))
        )


class Int8DotGeneralOp(OverwriteWithGradient):
    """Multiply in 8-bit integers.

    The default is `axonym.quant.Int8DotGeneral`, which rounds to nearest, without state or key.

    Attributes:
        cfg: the product, with the signature of `jax.lax.dot_general`.
    """

    cfg: Function

    @classmethod
    def init(cls) -> "Int8DotGeneralOp":
        """Make the default product."""
        return cls(quant.Int8DotGeneral())

    def __call__(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: DotDimensionNumbers,
        precision: PrecisionLike = None,
        preferred_element_type: DTypeLike | None = None,
    ) -> jax.Array:
        """Multiply like `jax.lax.dot_general`."""
        product: jax.Array = self.cfg(
            lhs,
            rhs,
            dimension_numbers,
            precision=precision,
            preferred_element_type=preferred_element_type,
        )
        return product

    def to_state_dict(  # the name of the first parameter in Haliax
        tree: Any,  # noqa: N805  # pyright: ignore[reportSelfClsParameterName]
        prefix: str | None = None,
    ) -> dict[str, Any]:
        """Return an empty dict, with a warning: there is no state to save."""
        warnings.warn("Int8DotGeneralOp has no state, so there is nothing to save", stacklevel=2)
        return {}


def _latest_first(history: jax.Array) -> jax.Array:
    """Reverse the entries after the first, which are ordered from the oldest to the latest."""
    return jnp.concatenate([history[..., :1], history[..., :0:-1]], axis=-1)


def _scale(history: jax.Array, scale: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Return the divisor of a step."""
    limit = float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]  # of jax
    used = history.max(-1, keepdims=True) / limit
    return jnp.where(used < np.finfo(np.float32).tiny, 1.0, used).astype(scale.dtype)


@jax.custom_vjp
def _recorded(product: jax.Array, scales: Three, after: Three) -> jax.Array:
    """Return the product; the gradients of the scales are their next values."""
    return product


def _record(product: jax.Array, scales: Three, after: Three) -> tuple[jax.Array, Three]:
    return product, after


def _tell(after: Three, gradient: jax.Array) -> tuple[jax.Array, Three, Three]:
    return gradient, after, tuple(map(jnp.zeros_like, after))


_recorded.defvjp(_record, _tell)
