"""Test what axes mean: that no example affects another, that no position sees a later one, that layouts agree."""

from .axes import *
from .failure import *
from .layouts import *
from .losses import *
from .padding import *
from .report import *
from .storage import *
from .symmetry import *
from .tolerances import *
from .transforms import *
