"""Layers: Equinox modules whose parameters are named arrays."""

from .activation import *
from .attention import *
from .dropout import *
from .embedding import *
from .initializer import *
from .linear import *
from .loss import *
from .mlp import *
from .norm import *
from .stacked import *
