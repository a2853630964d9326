"""Named tensors for JAX: name axes once, and broadcasting, contraction, layout and parallelism follow from the names."""

from . import errors, nn, random, tree
from .array import NamedArray, is_named_array, named
from .axis import *
from .axis import __all__ as _axis
from .create import *
from .create import __all__ as _create
from .layout import ResourceMapping, axis_mapping, current_mapping
from .ops.along import *
from .ops.along import __all__ as _along
from .ops.contract import dot
from .ops.elementwise import *
from .ops.elementwise import __all__ as _elementwise
from .ops.index import index, slice, take, tril, triu, where
from .ops.logical import *
from .ops.logical import __all__ as _logical
from .ops.reduce import *
from .ops.reduce import __all__ as _reduce
from .ops.shape import *
from .ops.shape import __all__ as _shape
from .partitioning.jit import NamedJit, named_jit
from .partitioning.shard import auto_sharded, pspec_for, round_axis_for_partitioning, set_mesh, shard
from .transform.checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec, tree_checkpoint_name
from .transform.nmap import nmap
from .transform.scan import fold, map, scan
from .transform.vmap import vmap

__version__ = "0.1.0"

__all__ = [
    "NamedArray",
    "NamedJit",
    "ResourceMapping",
    "ScanCheckpointPolicy",
    "ScanCheckpointSpec",
    "auto_sharded",
    "axis_mapping",
    "current_mapping",
    "dot",
    "errors",
    "fold",
    "index",
    "is_named_array",
    "map",
    "named",
    "named_jit",
    "nmap",
    "nn",
    "pspec_for",
    "random",
    "round_axis_for_partitioning",
    "scan",
    "set_mesh",
    "shard",
    "slice",
    "take",
    "tree",
    "tree_checkpoint_name",
    "tril",
    "triu",
    "vmap",
    "where",
]
__all__ += _axis
__all__ += _create
__all__ += _along
__all__ += _elementwise
__all__ += _logical
__all__ += _reduce
__all__ += _shape
