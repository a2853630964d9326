"""Find mistakes: in models and indices, where numbers first go wrong, and where two programs part; measure layers."""

from .comparison import *
from .diagnosis import *
from .faults import *
from .heat import *
from .sizes import *
from .watching import *
