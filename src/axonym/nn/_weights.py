"""Products with parameters."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax

from .. import _constraints
from ..array import NamedArray
from ..axis import Axis
from ..layout import context_mesh, current_mapping
from ..ops.contract import dot
from ..partitioning.shard import auto_sharded

__all__ = ["gathered", "multiply", "stored_outputs"]

R = TypeVar("R")


def gathered(fn: Callable[[Any, Any], R], x: Any, weights: Any, keep: Callable[..., bool] | None = None) -> R:
    """Call a function of inputs and weights, after gathering weights that are stored in another layout.

    Otherwise, the compiler may move the larger activations, or the weights several times. The backward pass gathers the
    weights again: if kept, those of all layers of a loop would be on every device at once.

    Args:
        fn: the function.
        x: its first argument, a tree.
        weights: its second one.
        keep: which intermediates to keep for the backward pass, as a policy of `jax.checkpoint`; by default none, for
            functions whose gradient needs none, such as one product.
    """
    if current_mapping() is None or context_mesh() is None:
        return fn(x, weights)
    if not _constraints.tracing():
        # No program is traced, though perhaps a gradient: arrays are moved at once. JAX would evaluate a checkpoint
        # operation by operation, and raise for constraints on weights on one device.
        return fn(x, auto_sharded(weights))
    run = jax.checkpoint(lambda x, weights: fn(x, auto_sharded(weights)), prevent_cse=False, policy=keep)
    result: R = run(x, weights)
    return result


def multiply(
    x: NamedArray, weight: NamedArray, axis: tuple[Axis, ...], dot_general: Callable[..., Any] | None = None
) -> NamedArray:
    """Contract an input and a weight, `gathered`."""
    names = [each.name for each in axis]  # a block of the weight has other sizes
    custom = lax.dot_general if dot_general is None else dot_general
    return gathered(lambda x, weight: dot(x, weight, axis=names, dot_general=custom), x, weight)


def stored_outputs(inputs: tuple[Axis, ...], outputs: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes of `outputs` in a weight: one that is also an input is called `<name>.out`."""
    taken = {axis.name for axis in inputs}
    return tuple(axis.derive("out") if axis.name in taken else axis for axis in outputs)
