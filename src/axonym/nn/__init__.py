"""Layers: Equinox modules whose parameters are named arrays."""

from .activation import *
from .attention import *
from .batch_norm import *
from .cache import *
from .conv import *
from .dropout import *
from .embedding import *
from .group_norm import *
from .initializer import Initializer as Initializer
from .initializer import fan_in as fan_in
from .interleaved import *
from .linear import *
from .lora import *
from .loss import *
from .mask import *
from .mlp import *
from .moe import *
from .norm import *
from .pool import *
from .position import *
from .recompute import *
from .recurrent import *
from .rotary import *
from .stacked import *
from .state_space import *
