"""Shard trees of named arrays over a mesh, compile functions of them, and look at the result.

The functions that most programs need (`named_jit`, `shard`, `fsdp`, `shard_map`) are names of `axonym` itself. This
package has the others: reports of layouts, costs of mappings, and blocks that limit what operations move.
"""

import typing as _typing

if not _typing.TYPE_CHECKING:
    from ..base import lazy as _lazy

    __all__, __getattr__, __dir__ = _lazy.names_of("axonym.partitioning")
else:
    from ..costs.calibrate import calibrate as calibrate
    from ..costs.report.cost import Cost as Cost
    from ..costs.report.lock import assert_layout as assert_layout
    from ..costs.search.layers import EachLayer as EachLayer
    from ..costs.search.result import Plan as Plan
    from ..costs.shared.targets import (
        TARGETS as TARGETS,
        Domain as Domain,
        Efficiency as Efficiency,
        Link as Link,
        Target as Target,
        Torus as Torus,
    )
    from ..layout.assignment import (
        first_fitting as first_fitting,
        if_free as if_free,
    )
    from ..report.check import check as check
    from ..report.fit import Fitted as Fitted, fit_mapping as fit_mapping
    from ..report.schedule import schedule as schedule
    from ..report.show import (
        show as show,
        visualize as visualize,
    )
    from .blocks import limit_reshards as limit_reshards
    from .fsdp import fsdp_mapping as fsdp_mapping
    from .hybrid import make_hybrid_mesh as make_hybrid_mesh
    from .kernels import kernel_cost as kernel_cost
    from .padding import (
        PaddedArray as PaddedArray,
        Padding as Padding,
        is_padded as is_padded,
        pad_axes as pad_axes,
        unpad_axes as unpad_axes,
    )
