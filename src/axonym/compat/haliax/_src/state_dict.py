"""Aliases of `haliax.state_dict`, and its default for a module that overrides nothing."""

from typing import Any, TypeVar, cast

import equinox as eqx

from ..state_dict import (
    ModuleWithStateDictSerialization,
    StateDict,
    flatten_modules_for_export,
    from_state_dict,
    from_torch_compatible_state_dict,
    load_state_dict,
    save_state_dict,
    to_numpy_state_dict,
    to_state_dict,
    to_torch_compatible_state_dict,
    unflatten_modules_from_export,
    with_prefix,
)

__all__ = [
    "ModuleWithStateDictSerialization",
    "StateDict",
    "default_eqx_module_from_state_dict",
    "default_eqx_module_to_state_dict",
    "flatten_modules_for_export",
    "from_state_dict",
    "from_torch_compatible_state_dict",
    "load_state_dict",
    "save_state_dict",
    "to_numpy_state_dict",
    "to_state_dict",
    "to_torch_compatible_state_dict",
    "unflatten_modules_from_export",
    "with_prefix",
]

Mod = TypeVar("Mod", bound=eqx.Module)


def default_eqx_module_to_state_dict(mod: eqx.Module, prefix: str | None = None) -> StateDict:
    """Return the arrays of a module by key, field by field."""
    return ModuleWithStateDictSerialization.to_state_dict(cast(Any, mod), prefix)


def default_eqx_module_from_state_dict(
    mod: Mod, state_dict: StateDict, prefix: str | None = None
) -> Mod:
    """Return a module with the arrays of a state dict, field by field."""
    return cast(
        Mod, ModuleWithStateDictSerialization.from_state_dict(cast(Any, mod), state_dict, prefix)
    )
