"""Medians, quantiles and percentiles over axes, which are removed.

`axis` is one axis, several, or None for all. Anonymous dimensions are never reduced. For a mask, use NaN:
`axn.nanmedian(axn.where(mask, x, jnp.nan), axis)`.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ..axis import AxisSelection, names_in, selection
from ..base.calls import explain_calls
from ..base.dtypes import at_least_float32, inexact_dtype
from ..engine import auto, batched, checks, reduction
from ..engine.core import Core, Operand
from ..engine.operands import own_names
from ..errors import ArgumentError, AxisClashError, AxisSizeError, message, suggestion
from ..faults.split_sorts import gather_sorted
from ..layout import explicit
from ..names import plans
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


def median(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the median over `axis`; of an even number of elements, the mean of the two middle ones.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.

    Returns:
        The axes of `x` except `axis`.

    Raises:
        AxisSizeError: if there are no elements.

    Examples:
        >>> axn.median(axn.named([3.0, 1.0, 2.0, 8.0], "i")).item()
        2.5
    """
    return reduction.reduction(_median, x, axis)


def _median(x: jax.Array, axis: tuple[int, ...]) -> jax.Array:
    return _find_middle(jnp.median, x, axis)


def nanmedian(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the median over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.

    Returns:
        The axes of `x` except `axis`; NaN where all elements are NaN.

    Raises:
        AxisSizeError: if there are no elements.

    Examples:
        >>> axn.nanmedian(axn.named([3.0, jnp.nan, 1.0], "i")).item()
        2.0
    """
    return reduction.reduction(_nanmedian, x, axis)


def _nanmedian(x: jax.Array, axis: tuple[int, ...]) -> jax.Array:
    return _find_middle(jnp.nanmedian, x, axis)


def nanpercentile(
    x: "NamedArray",
    q: Operand,
    axis: AxisSelection | None = None,
    *,
    method: str = "linear",
    weights: "NamedArray | None" = None,
) -> "NamedArray":
    """Return the `q`-th percentiles over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        q: a number between 0 and 100, or a named array of such numbers.
        axis: one axis, several, or None for all.
        method: as in `quantile`.
        weights: as in `quantile`.

    Returns:
        The axes of `q`, and those of `x` except `axis`.

    Raises:
        AxisClashError: if `q` and `x` share an axis.
        ArgumentError: as in `quantile`.

    Examples:
        >>> axn.nanpercentile(axn.named([3.0, jnp.nan, 1.0], "i"), 50).item()
        2.0
    """
    return _apply_ranking(_nanpercentile, x, q, axis, method, weights)


def _nanpercentile(q: jax.Array, x: jax.Array, *weights: jax.Array, method: str) -> jax.Array:
    return _rank(jnp.nanpercentile, q, x, weights, method)


def nanquantile(
    x: "NamedArray",
    q: Operand,
    axis: AxisSelection | None = None,
    *,
    method: str = "linear",
    weights: "NamedArray | None" = None,
) -> "NamedArray":
    """Return the `q`-th quantiles over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        q: a number between 0 and 1, or a named array of such numbers.
        axis: one axis, several, or None for all.
        method: as in `quantile`.
        weights: as in `quantile`.

    Returns:
        The axes of `q`, and those of `x` except `axis`.

    Raises:
        AxisClashError: if `q` and `x` share an axis.
        ArgumentError: as in `quantile`.

    Examples:
        >>> axn.nanquantile(axn.named([3.0, jnp.nan, 1.0], "i"), 0.5).item()
        2.0
    """
    return _apply_ranking(_nanquantile, x, q, axis, method, weights)


def _nanquantile(q: jax.Array, x: jax.Array, *weights: jax.Array, method: str) -> jax.Array:
    return _rank(jnp.nanquantile, q, x, weights, method)


def percentile(
    x: "NamedArray",
    q: Operand,
    axis: AxisSelection | None = None,
    *,
    method: str = "linear",
    weights: "NamedArray | None" = None,
) -> "NamedArray":
    """Return the `q`-th percentiles over `axis`: `quantile` with `q` between 0 and 100.

    Args:
        x: axes {axis, ...}.
        q: a number between 0 and 100, or a named array of such numbers.
        axis: one axis, several, or None for all.
        method: as in `quantile`.
        weights: as in `quantile`.

    Returns:
        The axes of `q`, and those of `x` except `axis`.

    Raises:
        AxisClashError: if `q` and `x` share an axis.
        ArgumentError: as in `quantile`.

    Examples:
        >>> axn.percentile(axn.named([1.0, 2.0, 3.0], "i"), 50).item()
        2.0
    """
    return _apply_ranking(_percentile, x, q, axis, method, weights)


def _percentile(q: jax.Array, x: jax.Array, *weights: jax.Array, method: str) -> jax.Array:
    return _rank(jnp.percentile, q, x, weights, method)


def quantile(
    x: "NamedArray",
    q: Operand,
    axis: AxisSelection | None = None,
    *,
    method: str = "linear",
    weights: "NamedArray | None" = None,
) -> "NamedArray":
    """Return the `q`-th quantiles over `axis`: values below which a fraction `q` of the elements lies.

    Args:
        x: axes {axis, ...}.
        q: a number between 0 and 1, or a named array of such numbers with axes that `x` lacks.
        axis: one axis, several, or None for all.
        method: how to choose between two elements: "linear", "lower", "higher", "midpoint", "nearest" or
            "inverted_cdf".
        weights: axes {axis, ...}, among those of `x`; only with the method "inverted_cdf".

    Returns:
        The axes of `q`, and those of `x` except `axis`.

    Raises:
        AxisClashError: if `q` and `x` share an axis.
        AxisSizeError: if there are no elements.
        ArgumentError: if `method` is unknown, or a plain number `q` is out of range.

    Examples:
        >>> x = axn.named(jnp.arange(10.).reshape(2, 5), ("batch", "embed"))
        >>> axn.quantile(x, axn.named([0.0, 0.5, 1.0], "level"), "embed")
        NamedArray(float32[level=3, batch=2])
        [[0. 5.]
         [2. 7.]
         [4. 9.]]
    """
    return _apply_ranking(_quantile, x, q, axis, method, weights)


def _quantile(q: jax.Array, x: jax.Array, *weights: jax.Array, method: str) -> jax.Array:
    return _rank(jnp.quantile, q, x, weights, method)


def _find_middle(fn: checks.Function, x: jax.Array, axis: tuple[int, ...]) -> jax.Array:
    _check_elements(fn, plans.values_at(x.shape, axis))
    x = gather_sorted(auto.whole(x, axis), axis)
    # JAX reduces by `axis`, so the other dimensions keep their shards.
    entries = enumerate(explicit.get_layout(x), start=-x.ndim)
    kept = [entry for at, entry in entries if at not in axis]
    result: jax.Array = auto.local(partial(fn, axis=axis), [x], kept)
    return result


def _rank(
    fn: checks.Function, q: jax.Array, x: jax.Array, weights: tuple[jax.Array, ...], method: str
) -> jax.Array:
    """Call a function of `jax.numpy` that ranks all elements."""
    _check_elements(fn, x.shape)
    # JAX computes positions in the dtype of `q`, and rejects integers; with weights, in the dtype of the elements and
    # weights, which it multiplies by `q` unconverted.
    dtype, options = q.dtype, {}
    if weights:
        dtype = jnp.result_type(x, *weights)
        options = {"weights": weights[0]}
    x = gather_sorted(x, range(x.ndim))
    precise = q.astype(at_least_float32(inexact_dtype(dtype)))
    result: jax.Array = fn(x, precise, method=method, **options)
    return result


def _check_elements(fn: checks.Function, sizes: Sequence[int]) -> None:
    """Raise an error for an array without elements, for which releases of JAX differ."""
    if not math.prod(sizes):
        problem = "needs at least one element along the axes to reduce"
        raise AxisSizeError(message(fn.__name__, problem))


def _check_names(names: Names, chosen: Names, quantiles: Names, weights: Names) -> None:
    plans.positions(names, chosen)
    plans.require(names, weights)
    for name in quantiles:
        if name in names:
            hint = f"rename it, since the result has it too: q.rename({{{name!r}: ...}})"
            raise AxisClashError(f"axis {name!r} is in both q and the array", hint)


def _apply_ranking(
    fn: checks.Function,
    x: "NamedArray",
    q: Operand,
    axis: AxisSelection | None,
    method: str,
    weights: "NamedArray | None",
) -> "NamedArray":
    """Compute quantiles; `fn` gets one `q` and the elements to rank, which are sorted once for all of `q`."""
    function = checks.title(fn)
    highest = 100 if function.endswith("percentile") else 1
    # Only a number is known while tracing; JAX clips the others.
    if isinstance(q, int | float | np.number) and not 0 <= q <= highest:
        raise ArgumentError(message(function, f"q must be between 0 and {highest}, got {q}"))
    if method not in _METHODS:
        problem, known = f"unknown method {method!r}", f"methods: {', '.join(_METHODS)}"
        hint = suggestion(method, _METHODS)
        raise ArgumentError(message(function, problem, known, hint=hint))
    if weights is not None and method != "inverted_cdf":
        problem = f"method {method!r} does not support weights"
        raise ArgumentError(message(function, problem, hint='write method="inverted_cdf"'))
    if not isinstance(x, Core):
        raise checks.no_names(function, x)
    chosen: AxisSelection = x.names if axis is None else batched.hashable(axis, function)
    names = names_in(selection(chosen, function))
    every = x.names, names, own_names(q), own_names(weights)
    checks.run_plan(function, (x, weights), _check_names, *every)

    # `q` comes first: `outer` puts the batch axes of the first operand first.
    operands: list[Operand] = [q, x]
    core: list[AxisSelection] = [(), chosen]
    if weights is not None:
        operands.append(weights)
        core.append(chosen)
    return batched.apply_batched(fn, operands, core, (), each=True, outer=True, method=method)


explain_calls(globals(), __all__)
