"""What quantised products share: scaled operands, and the gradients of a product."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
from jax import lax

from .._constraints import varying
from ..errors import ArgumentError, message

__all__ = ["DimensionNumbers", "Scaled", "cotangent", "equally_varying", "hashable", "once_differentiable"]

Pair: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
DimensionNumbers: TypeAlias = tuple[Pair, Pair]


class Scaled(NamedTuple):
    """An array in a narrow dtype, and what to multiply it by."""

    values: jax.Array
    scale: jax.Array

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.values.ndim


def hashable(dimension_numbers: Sequence[Sequence[Sequence[int]]]) -> DimensionNumbers:
    """Give the dimension numbers of `lax.dot_general` a form that a cache can key on."""
    (left, right), (left_batch, right_batch) = dimension_numbers
    return (tuple(left), tuple(right)), (tuple(left_batch), tuple(right_batch))


def equally_varying(left: jax.Array, right: jax.Array) -> list[jax.Array]:
    """Inside of a shard_map, let both operands differ between the same devices, so that autodiff sums what it must."""
    axes = {axis for x in (left, right) for axis in jax.typeof(x).mat.varying}
    return [varying(x, axes) for x in (left, right)]


@jax.custom_vjp
def once_differentiable(x: jax.Array) -> jax.Array:
    """Return an operand as it is, inside of a rule for gradients, which JAX would differentiate as it is written.

    The rounding has no slope: second derivatives would be those of the scales alone. The forward pass may be
    differentiated as long as nothing uses the result, such as a gradient behind `stop_gradient`.
    """
    return x


def _refused(_: None, gradient: jax.Array) -> Any:
    problem = "a quantised product has no second derivative"
    facts = "a function that computes a gradient is differentiated by what goes into the product"
    hint = "take the inner gradient without quantised products, or put `jax.lax.stop_gradient` around it"
    raise ArgumentError(message("axonym.quant", problem, facts, hint=hint))


once_differentiable.defvjp(lambda x: (x, None), _refused)


def cotangent(
    multiply: Callable[[Any, Any, DimensionNumbers], jax.Array],
    gradient: Any,
    other: Any,
    dimension_numbers: DimensionNumbers,
    *,
    of_left: bool,
) -> jax.Array:
    """Multiply the gradient of a product by one operand, which gives the gradient of the other operand.

    Args:
        multiply: `lax.dot_general`, or what stands for it.
        gradient: of the product; its dimensions are batch, those of the left operand alone, those of the right alone.
        other: the operand that is multiplied.
        dimension_numbers: of the product.
        of_left: whether the result is the gradient of the left operand.
    """
    (left, right), (batch_left, batch_right) = dimension_numbers
    summed, of_other = (left, right) if of_left else (right, left)
    batch, batch_of_other = (batch_left, batch_right) if of_left else (batch_right, batch_left)
    alone = tuple(at for at in range(other.ndim) if at not in of_other and at not in batch_of_other)
    start = gradient.ndim - len(alone) if of_left else len(batch)
    contract = (tuple(range(start, start + len(alone))), alone)
    result = multiply(gradient, other, (contract, (tuple(range(len(batch))), batch_of_other)))
    own = tuple(at for at in range(result.ndim) if at not in summed and at not in batch)
    order = (*batch, *own, *(summed[of_other.index(at)] for at in sorted(of_other)))
    return lax.transpose(result, [order.index(at) for at in range(result.ndim)])
