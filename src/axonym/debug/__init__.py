"""Find mistakes: in models and indices, where numbers first go wrong, and where two programs part."""

from .comparison import *
from .diagnosis import *
from .faults import *
