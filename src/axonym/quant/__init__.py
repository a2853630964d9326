"""Low precision: quantised products for linear layers, states that their gradients replace, and stochastic rounding."""

from .fp8 import *
from .int8 import *
from .layers import *
from .mxfp4 import *
from .overwrite import *
from .qwix import *
from .rounding import *
