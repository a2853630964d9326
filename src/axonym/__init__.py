"""Named tensors for JAX: name axes once; broadcasting, contraction, layout and parallelism follow from the names."""

import typing as _typing

__version__ = "0.1.0"

if not _typing.TYPE_CHECKING:
    # A name is loaded at its first use. `base/places.py` says where it is; `tools/places.py` writes that file from the
    # imports below.
    from .base import lazy as _lazy

    __all__, __getattr__, __dir__ = _lazy.names_of("axonym")
else:
    # Users find all names of a module's `__all__` here; single names are imported one by one.
    from . import (
        debug as debug,
        errors as errors,
        mup as mup,
        nn as nn,
        optim as optim,
        parameters as parameters,
        partitioning as partitioning,
        quant as quant,
        random as random,
        state_dict as state_dict,
        testing as testing,
        tree as tree,
        typing as typing,
    )
    from .array import *
    from .axis import *
    from .costs.cost import cost as cost
    from .costs.plan import plan as plan
    from .create import *
    from .dynamic_slice import *
    from .layout.assignment import (
        Mappings as Mappings,
        ResourceMapping as ResourceMapping,
    )
    from .layout.context import *
    from .nn.stack.one_f_one_b import pipeline_value_and_grad as pipeline_value_and_grad
    from .ops import (
        image as image,
        linalg as linalg,
    )
    from .ops.bits import *
    from .ops.contract import *
    from .ops.cumulative import *
    from .ops.diagonal import *
    from .ops.elementwise import *
    from .ops.fft import *
    from .ops.histogram import *
    from .ops.index import (
        index as index,
        ravel_multi_index as ravel_multi_index,
        slice as slice,
        take as take,
        take_along_axis as take_along_axis,
        unravel_index as unravel_index,
    )
    from .ops.join import *
    from .ops.linalg import (
        cross as cross,
        vdot as vdot,
        vecdot as vecdot,
    )
    from .ops.logical import *
    from .ops.nan_reduce import *
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
    from .ops.update import (
        put_along_axis as put_along_axis,
        updated_slice as updated_slice,
    )
    from .ops.where import *
    from .partitioning import collectives as collectives
    from .partitioning.batches import pad_batch as pad_batch
    from .partitioning.blocks import (
        axis_mapping as axis_mapping,
        pipelined as pipelined,
    )
    from .partitioning.collectives import (
        all_gather as all_gather,
        all_to_all as all_to_all,
        axis_index as axis_index,
        fold_key as fold_key,
        pcast as pcast,
        pmax as pmax,
        pmean as pmean,
        pmin as pmin,
        ppermute as ppermute,
        psum as psum,
        psum_scatter as psum_scatter,
        ragged_all_to_all as ragged_all_to_all,
    )
    from .partitioning.fsdp import fsdp as fsdp
    from .partitioning.jit import (
        NamedJit as NamedJit,
        named_jit as named_jit,
    )
    from .partitioning.placement import *
    from .partitioning.shard import (
        auto_sharded as auto_sharded,
        pspec_for as pspec_for,
        round_axis_for_partitioning as round_axis_for_partitioning,
        set_mesh as set_mesh,
        shard as shard,
    )
    from .partitioning.shard_map import *
    from .ref import *
    from .report.check import check as check
    from .samples import *
    from .transform.associative_scan import *
    from .transform.checkpoint import *
    from .transform.grad import *
    from .transform.nmap import *
    from .transform.scan import *
    from .transform.vmap import *
    from .typing import Named as Named
    from .xarray import *
