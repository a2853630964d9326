"""Internal. Settings for layers that users make by `pipelined` and by options of `named_jit`; `nn` reads them."""

import dataclasses
from typing import NamedTuple

from ..current.features import Feature


@dataclasses.dataclass(frozen=True)
class Microbatches:
    """How pipelines cut their work.

    Attributes:
        axis: the name of the axis that is cut.
        count: the number of microbatches.
    """

    axis: str
    count: int


MICROBATCHES: Feature[Microbatches | None] = Feature(None, depends_on_names=True)
"""How pipelines cut their work."""


class Products(NamedTuple):
    """How layers compute products of weights, by the options of `named_jit` and `fsdp`.

    Attributes:
        manual: whether products gather their weights in a shard_map.
        rings: whether perceptrons send positions in rings.
    """

    manual: bool = False
    rings: bool = False


PRODUCTS: Feature[Products] = Feature(Products())
"""How layers compute products of weights."""
