"""Layers: Equinox modules whose parameters are named arrays."""

import typing as _typing

from .activation import *
from .attention.attention import *
from .attention.cache import *
from .attention.layer import *
from .attention.mask import *
from .attention.position import *
from .attention.rotary import *
from .attention.zigzag import *
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
from .mlp import *
from .moe.linear import *
from .moe.mixture import *
from .norm import *
from .pool import *
from .recompute import *
from .recurrent import *
from .sampling import *
from .sequential import *
from .stack.interleaved import *
from .stack.stacked import *
from .state_space import *
from .transformer import *

if not _typing.TYPE_CHECKING:  # type checkers would find every name
    from ..foreign import of_nn as __getattr__  # noqa: F401  # Python calls it
