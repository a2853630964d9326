"""States that training updates through their gradients, without the optimiser."""

from typing import Any, TypeVar

import equinox as eqx
import jax

__all__ = ["OverwriteWithGradient", "apply_updates", "partition_for_grad_overwrite"]

T = TypeVar("T")


class OverwriteWithGradient(eqx.Module):
    """Mark a module whose gradient is its next value."""


def partition_for_grad_overwrite(grad: T) -> tuple[T, T]:
    """Split a tree, such as gradients or a model, into modules that gradients overwrite, and the rest.

    Returns:
        Two trees of the same structure, in each of which the other's leaves are None.

    Examples:
        >>> model = {"scale": jnp.ones(2), "dot": axn.quant.Fp8DotGeneral.init(amax_history_length=4)}
        >>> overwrites, rest = axn.quant.partition_for_grad_overwrite(model)
        >>> overwrites["scale"], rest["dot"]
        (None, None)
    """
    overwrites, rest = eqx.partition(grad, _is_overwritten, is_leaf=_is_overwritten)
    return overwrites, rest


def apply_updates(tree: T, updates: Any, overwrites: Any) -> T:
    """Add updates to a model, and overwrite the modules that are updated through gradients.

    Args:
        tree: the model.
        updates: the optimiser's updates for the rest of the gradients; where None, the model stays as it is.
        overwrites: the other part of the gradients; where None, nothing is overwritten, not even a single array of such
            a module, such as one that `eqx.partition` removed.
    """

    def one(new: object, old: object) -> object:
        if new is None:
            return old
        return eqx.combine(new, old)

    updated = eqx.apply_updates(tree, updates)
    following: T = jax.tree.map(
        one, overwrites, updated, is_leaf=lambda new: new is None or _is_overwritten(new)
    )
    return following


def _is_overwritten(node: object) -> bool:
    return isinstance(node, OverwriteWithGradient)
