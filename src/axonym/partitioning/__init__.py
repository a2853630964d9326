"""Lay out trees of named arrays on a mesh, and compile functions of them."""

import typing as _typing

if not _typing.TYPE_CHECKING:
    from .. import lazy as _lazy

    __all__, __getattr__, __dir__ = _lazy.names_of("axonym.partitioning")
else:
    from ..costs.report.cost import Cost as Cost
    from ..costs.report.lock import assert_layout as assert_layout
    from ..costs.search.result import Plan as Plan
    from ..costs.shared.targets import (
        TARGETS as TARGETS,
        Link as Link,
        Target as Target,
    )
    from ..report.check import check as check
    from ..report.schedule import schedule as schedule
    from ..report.show import (
        show as show,
        visualize as visualize,
    )
    from .blocks import limit_reshards as limit_reshards
    from .fsdp import fsdp_mapping as fsdp_mapping
