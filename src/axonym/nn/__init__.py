"""Layers: Equinox modules whose parameters are named arrays."""

import typing as _typing

if not _typing.TYPE_CHECKING:
    from ..base import lazy as _lazy

    # Their modules have the same names, and would be found here once anything has loaded them.
    from .dropout import dropout as dropout
    from .pool import pool as pool

    __all__, __getattr__, __dir__ = _lazy.names_of("axonym.nn")
else:
    from .activation import *
    from .attention.attention import *
    from .attention.cache.cache import *
    from .attention.latent import *
    from .attention.layer import *
    from .attention.masks.arrays import *
    from .attention.masks.mask import *
    from .attention.positions.position import *
    from .attention.positions.rotary import *
    from .attention.positions.scaling import *
    from .attention.positions.zigzag import *
    from .batch_norm import *
    from .conv import *
    from .dropout import *
    from .embedding import *
    from .generation import *
    from .group_norm import *
    from .initializer import Initializer as Initializer, fan_in as fan_in
    from .linear import *
    from .lora import *
    from .loss import *
    from .memory.delta import *
    from .memory.mamba import *
    from .mlp import *
    from .moe.linear import *
    from .moe.mixture import *
    from .moe.routing import *
    from .norm import *
    from .pool import *
    from .recompute import *
    from .recurrent import *
    from .sampling import *
    from .sequential import *
    from .stack.block_seq import *
    from .stack.interleaved import *
    from .stack.stacked import *
    from .state_space import *
    from .transformer import *
