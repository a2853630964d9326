"""Pooling over windows that slide along named axes; as in Axonym."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jax.typing import ArrayLike

import axonym as axn
from axonym import AxisSpec

from .._adapt import adapted
from .._reduce import max as max_, min as min_, prod, sum as sum_

# Not pool: haliax.nn.pool is this module.
__all__ = ["DEFAULT_PADDING", "Padding", "max_pool", "mean_pool", "min_pool"]

Padding: TypeAlias = str | int | Sequence[int] | Sequence[tuple[int, int]]
DEFAULT_PADDING = "VALID"

max_pool = adapted(axn.nn.max_pool)
mean_pool = adapted(axn.nn.mean_pool)
min_pool = adapted(axn.nn.min_pool)

_REDUCTIONS: dict[Any, Callable[..., Any]] = {
    max_: axn.max,
    min_: axn.min,
    prod: axn.prod,
    sum_: axn.sum,
}


@adapted
def pool(
    Window: AxisSpec,
    inputs: axn.NamedArray,
    init: ArrayLike,
    reduce_fn: Callable[..., Any],
    stride: int | Sequence[int] | None = None,
    padding: Padding = DEFAULT_PADDING,
    use_ceil: bool = False,
) -> axn.NamedArray:
    """Reduce the windows that slide along `Window`, by a function of two elements, or by max, min, prod or sum."""
    return axn.nn.pool(
        Window, inputs, init, _REDUCTIONS.get(reduce_fn, reduce_fn), stride, padding, use_ceil
    )
