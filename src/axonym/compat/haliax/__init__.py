"""The public API of Haliax on Axonym: importing this package makes `import haliax` resolve to it."""

# Some names refer to a module first, and then to the function of that name.
# mypy: disable-error-code="no-redef"
# pyright: reportUnusedImport=false

from collections.abc import Sequence

from . import (
    axis,
    core,
    debug,
    fft,
    field,
    haxtyping,
    hof,
    jax_utils,
    nn,
    ops,
    partitioning,
    poly,
    quantization,
    random,
    ref,
    specialized_fns,
    state_dict,
    tree,
    tree_util,
    types,
    util,
    wrap,
)
from ._contract import *
from ._create import *
from ._elementwise import *
from ._index import *
from ._install import install
from ._reduce import *
from ._shape import *
from .axis import *
from .core import *
from .fft import *
from .field import *
from .haxtyping import Named
from .hof import *
from .jax_utils import tree_checkpoint_name
from .nn.activations import A
from .nn.scan import ScanCheckpointPolicy
from .ops import *
from .partitioning import *
from .poly import *
from .ref import *
from .specialized_fns import *
from .types import DTypeLike, Scalar
from .util import T, is_named_array
from .wrap import *
