from .array import NamedArray, is_named_array, named
from .axis import *
from .create import *
from .layout import axis_mapping, current_mapping
from .ops.along import *
from .ops.contract import *
from .ops.elementwise import *
from .ops.index import *
from .ops.logical import *
from .ops.reduce import *
from .ops.shape import *
from . import random
from .partitioning.jit import *
from .partitioning.shard import *
from .transform.vmap import *
from .transform.scan import *
from .transform.checkpoint import *
from .transform.nmap import *
from . import errors, nn
