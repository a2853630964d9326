"""A field `inference` that is a node of the tree, so that `eqx.nn.inference_mode` switches it in a whole model."""

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
        if isinstance(inference, _BOOLS):
            inference = Switch(bool(inference))
        vars(layer)[_FIELD] = inference


def switchable(layer: type[LayerT]) -> type[LayerT]:
    """Let a class of layers keep its field `inference` as a switch."""
    setattr(layer, _FIELD, _Slot())
    return layer
