"""Find mistakes in models and indices, wrong numbers, and differences between programs; measure layers."""

from .comparison import *
from .diagnosis import *
from .faults import *
from .heat import *
from .sizes import *
from .watching import *
