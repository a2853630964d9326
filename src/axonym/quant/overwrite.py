"""States that training replaces by their gradients, without the optimiser."""

from typing import Any, TypeVar

import equinox as eqx
import jax

__all__ = ["OverwriteWithGradient", "apply_updates", "partition_for_grad_overwrite"]

T = TypeVar("T")


class OverwriteWithGradient(eqx.Module):
    """Mark a module whose gradient is its next value, such as the scales of an 8-bit product.

    Its own gradient rule returns the new state, see `Fp8DotGeneral`. In a training step, `partition_for_grad_overwrite`
    takes such modules out of the gradients, and `apply_updates` puts them into the model.

    Examples:
        >>> isinstance(axn.quant.Fp8DotGeneral.init(4), axn.quant.OverwriteWithGradient)
        True
    """


def partition_for_grad_overwrite(grad: T) -> tuple[T, T]:
    """Split a tree, such as gradients or a model, into modules that their gradients overwrite, and the rest.

    Args:
        grad: the tree; the optimiser gets the rest.

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
        overwrites: the other part of the gradients. Where it is None, nothing is overwritten; this may also be a single
            array of a module, such as one that `eqx.partition` removed.

    Returns:
        The model after the step.

    Examples:
        >>> dot = axn.quant.Fp8DotGeneral.init(amax_history_length=4)
        >>> model = {"scale": jnp.ones(2), "dot": dot}
        >>> after = jax.tree.map(lambda x: x + 2, dot)
        >>> new = axn.quant.apply_updates(model, {"scale": -jnp.ones(2), "dot": None}, {"scale": None, "dot": after})
        >>> new["scale"].tolist(), new["dot"].input_amax_history.tolist()
        ([0.0, 0.0], [2.0, 2.0, 2.0, 2.0])
    """

    def overwrite(new: object, old: object) -> object:
        return old if new is None else eqx.combine(new, old)  # leaves of `new` may be None

    updated = eqx.apply_updates(tree, updates)
    result: T = jax.tree.map(
        overwrite, overwrites, updated, is_leaf=lambda new: new is None or _is_overwritten(new)
    )
    return result


def _is_overwritten(node: object) -> bool:
    return isinstance(node, OverwriteWithGradient)
