"""Layers, activations and losses."""

# Some names refer to a module first, and then to the function of that name.
# mypy: disable-error-code="no-redef"
# pyright: reportUnusedImport=false

import axonym.compat.haliax as haliax
import axonym.compat.haliax as hax

from ..axis import Axis
from ..core import NamedArray
from . import (
    activations,
    attention,
    conv,
    dropout,
    embedding,
    linear,
    loss,
    mlp,
    mup,
    normalization,
    pool,
    scan,
)
from .activations import *
from .attention import *
from .conv import *
from .dropout import *
from .embedding import *
from .linear import *
from .loss import *
from .mlp import *
from .mup import *
from .normalization import *
from .pool import *
from .scan import *
