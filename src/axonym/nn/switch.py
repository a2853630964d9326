"""Internal. A field `inference` that is a node of the tree, so that `eqx.nn.inference_mode` finds it in a model.

Layers with a training and an inference mode use it: dropout, batch norm, attention. A plain bool would be a leaf, which
`jax.jit` traces and optimizers have state for. A static field would be part of the structure, where `tree_at` cannot
replace it.
"""

from typing import TypeVar

import equinox as eqx
import jax
import numpy as np

LayerT = TypeVar("LayerT", bound=eqx.Module)

_FIELD = "inference"
_BOOLS = (bool, np.bool_)


class Switch:
    """A bool that is a node without leaves: `tree_at` can replace it, and optimizers have no state for it."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __bool__(self) -> bool:
        return self._on

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Switch | bool):
            return NotImplemented
        return self._on == bool(other)

    def __hash__(self) -> int:
        return hash(self._on)

    def __repr__(self) -> str:
        return repr(self._on)


# A copy of a tree has new switches: `tree_at` distinguishes nodes by identity, and a model may hold a layer twice.
jax.tree_util.register_pytree_node(
    Switch,
    flatten_func=lambda switch: ((), bool(switch)),
    unflatten_func=lambda on, _: Switch(on),
)


class _Slot:
    """The slot of a layer's switch, in which every bool becomes one, also those set by `inference_mode`."""

    def __set__(self, layer: eqx.Module, inference: object) -> None:
        # A module is frozen, so this writes where its `__init__` would. Another object, such as a placeholder of
        # `tree_at`, stays as it is.
        vars(layer)[_FIELD] = (
            Switch(bool(inference)) if isinstance(inference, _BOOLS) else inference
        )


def switchable(layer: type[LayerT]) -> type[LayerT]:
    """Let a class of layers keep its field `inference` as a switch."""
    setattr(layer, _FIELD, _Slot())
    return layer
