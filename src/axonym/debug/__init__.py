"""Find mistakes: in models and indices, and where numbers first go wrong."""

from .diagnosis import *
from .faults import *
