"""Internal. Shared parts of quantised products: scaled operands, the gradients of a product, and its layer.

`fp8` and `int8` use it to multiply, and `layers` and `qwix` put products into models. Arrays here are plain: names end
where `Linear` calls `dot_general`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from ..base.dtypes import at_least_float32
from ..errors import ArgumentError, OperandError, message
from ..layout.tracing import varying
from ..nn.linear import Linear
from ..transform.leaves import is_hole

Pair: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
DimensionNumbers: TypeAlias = tuple[Pair, Pair]
Dtypes: TypeAlias = tuple[DTypeLike, DTypeLike, DTypeLike]
"""The dtypes of the operands and of their product."""


class Scaled(NamedTuple):
    """An array in a narrow dtype, and its scale."""

    values: jax.Array
    scale: jax.Array

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.values.ndim

    def restore(self) -> jax.Array:
        """Return the array times its scale, in the dtype of the scale."""
        return self.values.astype(self.scale.dtype) * self.scale


def make_hashable(dimension_numbers: Sequence[Sequence[Sequence[int]]]) -> DimensionNumbers:
    """Give the dimension numbers of `lax.dot_general` a form that a cache can key on."""
    (left, right), (left_batch, right_batch) = dimension_numbers
    return (tuple(left), tuple(right)), (tuple(left_batch), tuple(right_batch))


def check_dtypes(left: jax.Array, right: jax.Array, preferred: DTypeLike | None) -> Dtypes:
    """Return the dtypes of the operands and of their product.

    Raises:
        OperandError: if one is complex: 8-bit numbers are real.
    """
    product = jnp.dtype(preferred or jnp.promote_types(left.dtype, right.dtype))
    dtypes = (left.dtype, right.dtype, product)
    for dtype in dtypes:
        if jnp.issubdtype(dtype, jnp.complexfloating):
            hint = "multiply the real and the imaginary parts separately, or without quantisation"
            problem = f"a quantised product supports only real numbers, not {dtype}"
            raise OperandError(message("axonym.quant", problem, hint=hint))
    return dtypes


def divide(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Divide by a scale in float32, or in the dtype of the operand if it is wider, even with strict promotion."""
    dtype = at_least_float32(x.dtype)
    return x.astype(dtype) / scale.astype(dtype)


def make_alike(left: jax.Array, right: jax.Array) -> list[jax.Array]:
    """Give both operands one dtype, and let them vary between the same devices of a shard_map.

    Magnitudes of narrow integers overflow. If an operand varies over fewer devices, autodiff sums its gradients
    wrongly.
    """
    dtype = jnp.result_type(left, right)
    left, right = left.astype(dtype), right.astype(dtype)
    axes = {axis for x in (left, right) for axis in jax.typeof(x).mat.varying}
    return [varying(x, axes) for x in (left, right)]


@jax.custom_vjp
def once_differentiable(x: jax.Array) -> jax.Array:
    """Return an operand of a gradient rule unchanged, and raise if JAX differentiates the rule.

    Rounding has derivative zero, so second derivatives would be wrong: only the scales would count. The forward pass
    may be differentiated if nothing uses the result, such as a gradient under `stop_gradient`.
    """
    return x


def _refuse(_: None, gradient: jax.Array) -> Any:
    problem = "a quantised product has no second derivative"
    facts = "a function that computes a gradient is differentiated with respect to an operand of the product"
    hint = "take the inner gradient without quantised products, or put `jax.lax.stop_gradient` around it"
    raise ArgumentError(message("axonym.quant", problem, facts, hint=hint))


once_differentiable.defvjp(lambda x: (x, None), _refuse)


def cotangent(
    multiply: Callable[[Any, Any, DimensionNumbers], jax.Array],
    gradient: jax.Array | Scaled,
    other: jax.Array | Scaled,
    dimension_numbers: DimensionNumbers,
    *,
    of_left: bool,
) -> jax.Array:
    """Multiply the gradient of a product by one operand, for the gradient of the other operand.

    Args:
        multiply: `lax.dot_general`, or a replacement.
        gradient: of the product; its dimensions are batch, those of only the left operand, those of only the right.
        other: the operand to multiply by.
        dimension_numbers: of the product.
        of_left: whether the result is the gradient of the left operand.
    """
    (summed, of_other), (batch, batch_of_other) = dimension_numbers
    if not of_left:
        summed, of_other = of_other, summed
        batch, batch_of_other = batch_of_other, batch
    # Sum over the dimensions that `other` shares with the gradient alone.
    alone = tuple(at for at in range(other.ndim) if at not in (*of_other, *batch_of_other))
    start = gradient.ndim - len(alone) if of_left else len(batch)
    contract = (tuple(range(start, start + len(alone))), alone)
    result = multiply(gradient, other, (contract, (tuple(range(len(batch))), batch_of_other)))
    own = tuple(at for at in range(result.ndim) if at not in (*summed, *batch))
    # `dot_general` puts batch dimensions first; the result has the order of the operand.
    order = (*batch, *own, *(summed[of_other.index(at)] for at in sorted(of_other)))
    return lax.transpose(result, [order.index(at) for at in range(result.ndim)])


def has_weight(node: object) -> TypeGuard[Linear]:
    """Return whether this is a layer whose weight `eqx.partition` has not moved to another tree."""
    return isinstance(node, Linear) and not is_hole(node.weight)


def is_linear(node: object) -> bool:
    """Return whether a node of a tree is a linear layer, for `jax.tree`."""
    return isinstance(node, Linear)


def with_product(layer: Linear, dot_general: Any) -> Linear:
    """Give a layer its product; the axes of stacked layers come before the layer's own."""
    own = len(layer.In) + len(layer.Out)
    stacked = layer.weight.array.shape[: layer.weight.array.ndim - own]
    # Transformations reject a bare function as a leaf; a Partial is a tree without leaves.
    is_bare_function = jax.tree_util.all_leaves([dot_general])
    if is_bare_function:
        dot_general = jax.tree_util.Partial(dot_general)

    def repeat(leaf: jax.Array) -> jax.Array:
        return jnp.broadcast_to(leaf, (*stacked, *jnp.shape(leaf)))

    state = jax.tree.map(repeat, dot_general)
    return dataclasses.replace(layer, dot_general=state)
