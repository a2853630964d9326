"""Named tensors for JAX: name axes once; broadcasting, contraction, layout and parallelism follow from the names."""

import typing as _typing

from . import (
    array as _array,
    axis as _axis,
    create as _create,
    debug,
    dynamic_slice as _dynamic_slice,
    errors,
    mup,
    nn,
    parameters,
    partitioning,
    quant,
    random,
    ref as _ref,
    state_dict,
    tree,
    typing,
)
from .array import *
from .axis import *
from .costs.cost import cost
from .costs.plan import plan
from .create import *
from .dynamic_slice import *
from .mesh import context as _context
from .mesh.assignment import Mappings, ResourceMapping
from .mesh.context import *
from .nn.stack.one_f_one_b import pipeline_value_and_grad
from .ops import (
    bits as _bits,
    contract as _contract,
    cumulative as _cumulative,
    diagonal as _diagonal,
    elementwise as _elementwise,
    fft as _fft,
    histogram as _histogram,
    image,
    join as _join,
    linalg,
    logical as _logical,
    pad as _pad,
    poly as _poly,
    quantiles as _quantiles,
    reduce as _reduce,
    repeat as _repeat,
    roll as _roll,
    segment as _segment,
    sets as _sets,
    shape as _shape,
    signal as _signal,
    softmax as _softmax,
    sorting as _sorting,
    special as _special,
    where as _where,
)
from .ops.bits import *
from .ops.contract import *
from .ops.cumulative import *
from .ops.diagonal import *
from .ops.elementwise import *
from .ops.fft import *
from .ops.histogram import *
from .ops.index import index, ravel_multi_index, slice, take, take_along_axis, unravel_index
from .ops.join import *
from .ops.linalg import cross, vdot, vecdot
from .ops.logical import *
from .ops.pad import *
from .ops.poly import *
from .ops.quantiles import *
from .ops.reduce import *
from .ops.repeat import *
from .ops.roll import *
from .ops.segment import *
from .ops.sets import *
from .ops.shape import *
from .ops.signal import *
from .ops.softmax import *
from .ops.sorting import *
from .ops.special import *
from .ops.update import put_along_axis, updated_slice
from .ops.where import *
from .partitioning import collectives, placement as _placement, shard_map as _shard_map
from .partitioning.collectives import (
    all_gather,
    all_to_all,
    axis_index,
    fold_key,
    pcast,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    psum_scatter,
    ragged_all_to_all,
)
from .partitioning.fsdp import fsdp
from .partitioning.jit import NamedJit, named_jit
from .partitioning.placement import *
from .partitioning.shard import (
    auto_sharded,
    pspec_for,
    round_axis_for_partitioning,
    set_mesh,
    shard,
)
from .partitioning.shard_map import *
from .ref import *
from .report.check import check
from .transform import (
    associative_scan as _associative_scan,
    checkpoint as _checkpoint,
    grad as _grad,
    nmap as _nmap,
    scan as _scan,
    vmap as _vmap,
)
from .transform.associative_scan import *
from .transform.checkpoint import *
from .transform.grad import *
from .transform.nmap import *
from .transform.scan import *
from .transform.vmap import *
from .typing import Named

if not _typing.TYPE_CHECKING:  # type checkers would find every name
    from .foreign import of_axonym as __getattr__  # noqa: F401  # Python calls it

__version__ = "0.1.0"

# What a module lists in its `__all__`, users find here; single names are listed one by one.
__all__ = [
    "Mappings",
    "Named",
    "NamedJit",
    "ResourceMapping",
    "all_gather",
    "all_to_all",
    "auto_sharded",
    "axis_index",
    "check",
    "collectives",
    "cost",
    "cross",
    "debug",
    "errors",
    "fold_key",
    "fsdp",
    "image",
    "index",
    "linalg",
    "mup",
    "named_jit",
    "nn",
    "parameters",
    "partitioning",
    "pcast",
    "pipeline_value_and_grad",
    "plan",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "pspec_for",
    "psum",
    "psum_scatter",
    "put_along_axis",
    "quant",
    "ragged_all_to_all",
    "random",
    "ravel_multi_index",
    "round_axis_for_partitioning",
    "set_mesh",
    "shard",
    "slice",
    "state_dict",
    "take",
    "take_along_axis",
    "tree",
    "typing",
    "unravel_index",
    "updated_slice",
    "vdot",
    "vecdot",
]
__all__ += _array.__all__
__all__ += _axis.__all__
__all__ += _create.__all__
__all__ += _dynamic_slice.__all__
__all__ += _context.__all__
__all__ += _bits.__all__
__all__ += _contract.__all__
__all__ += _cumulative.__all__
__all__ += _diagonal.__all__
__all__ += _elementwise.__all__
__all__ += _fft.__all__
__all__ += _histogram.__all__
__all__ += _join.__all__
__all__ += _logical.__all__
__all__ += _pad.__all__
__all__ += _poly.__all__
__all__ += _quantiles.__all__
__all__ += _reduce.__all__
__all__ += _repeat.__all__
__all__ += _roll.__all__
__all__ += _segment.__all__
__all__ += _sets.__all__
__all__ += _shape.__all__
__all__ += _signal.__all__
__all__ += _softmax.__all__
__all__ += _sorting.__all__
__all__ += _special.__all__
__all__ += _where.__all__
__all__ += _placement.__all__
__all__ += _shard_map.__all__
__all__ += _ref.__all__
__all__ += _associative_scan.__all__
__all__ += _checkpoint.__all__
__all__ += _grad.__all__
__all__ += _nmap.__all__
__all__ += _scan.__all__
__all__ += _vmap.__all__


def __dir__() -> list[str]:
    """List what is public, for those who look for a name: not the modules that Python adds."""
    return __all__
