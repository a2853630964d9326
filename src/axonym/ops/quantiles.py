"""Medians, quantiles and percentiles over axes, which are removed.

`axis` is one axis, several, or None for all. Anonymous dimensions are never reduced. For a mask, use NaN:
`axn.nanmedian(axn.where(mask, x, jnp.nan), axis)`.
"""

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _constraints, plans
from ..axis import AxisSelection, selection
from ..core import Core, Operand
from ..errors import ArgumentError, AxisClashError, AxisError, AxisSizeError, message, suggestion
from . import _batch, _lift
from ._widen import at_least_float32, inexact_dtype

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


def median(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the median over `axis`; of an even number of elements, the mean of the two middle ones."""
    return _lift.reduction(_median, x, axis)


def _median(x: jax.Array, axis: tuple[int, ...]) -> Any:
    return _middle(jnp.median, x, axis)


def nanmedian(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the median over `axis`, ignoring NaN."""
    return _lift.reduction(_nanmedian, x, axis)


def _nanmedian(x: jax.Array, axis: tuple[int, ...]) -> Any:
    return _middle(jnp.nanmedian, x, axis)


def nanpercentile(
    x: "NamedArray",
    q: Operand,
    axis: AxisSelection | None = None,
    *,
    method: str = "linear",
    weights: "NamedArray | None" = None,
) -> "NamedArray":
    """Return the `q`-th percentiles over `axis`, ignoring NaN; as `quantile`, with `q` between 0 and 100."""
    return _ranked(_nanpercentile, x, q, axis, method, weights)


def _nanpercentile(q: jax.Array, x: jax.Array, *weights: jax.Array, method: str) -> jax.Array:
    return jnp.nanpercentile(_some("nanpercentile", x), _precise(q, x, *weights), method=method, **_weighing(*weights))


def nanquantile(
    x: "NamedArray",
    q: Operand,
    axis: AxisSelection | None = None,
    *,
    method: str = "linear",
    weights: "NamedArray | None" = None,
) -> "NamedArray":
    """Return the `q`-th quantiles over `axis`, ignoring NaN; as `quantile`."""
    return _ranked(_nanquantile, x, q, axis, method, weights)


def _nanquantile(q: jax.Array, x: jax.Array, *weights: jax.Array, method: str) -> jax.Array:
    return jnp.nanquantile(_some("nanquantile", x), _precise(q, x, *weights), method=method, **_weighing(*weights))


def percentile(
    x: "NamedArray",
    q: Operand,
    axis: AxisSelection | None = None,
    *,
    method: str = "linear",
    weights: "NamedArray | None" = None,
) -> "NamedArray":
    """Return the `q`-th percentiles over `axis`; as `quantile`, with `q` between 0 and 100."""
    return _ranked(_percentile, x, q, axis, method, weights)


def _percentile(q: jax.Array, x: jax.Array, *weights: jax.Array, method: str) -> jax.Array:
    return jnp.percentile(_some("percentile", x), _precise(q, x, *weights), method=method, **_weighing(*weights))


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
        q: a number between 0 and 1, or a named array of such numbers; its axes, which `x` must not have, come first in
            the result.
        axis: one axis, several, or None for all.
        method: how to choose between two elements: "linear", "lower", "higher", "midpoint", "nearest" or
            "inverted_cdf".
        weights: axes {axis, ...}, among those of `x`; only with the method "inverted_cdf".

    Raises:
        AxisClashError: if `q` and `x` share an axis.
        ArgumentError: if `method` is unknown, or a plain number `q` is out of range.

    Example:
        >>> x = axn.named(jnp.arange(10.).reshape(2, 5), ("batch", "embed"))
        >>> axn.quantile(x, axn.named([0.0, 0.5, 1.0], "level"), "embed")
        NamedArray(float32[level=3, batch=2])
        [[0. 5.]
         [2. 7.]
         [4. 9.]]
    """
    return _ranked(_quantile, x, q, axis, method, weights)


def _quantile(q: jax.Array, x: jax.Array, *weights: jax.Array, method: str) -> jax.Array:
    return jnp.quantile(_some("quantile", x), _precise(q, x, *weights), method=method, **_weighing(*weights))


def _middle(fn: Any, x: jax.Array, axis: tuple[int, ...]) -> Any:
    x = _lift.whole(_some(fn.__name__, x, axis), axis)
    kept = [entry for at, entry in enumerate(_constraints.entries_of(x), start=-x.ndim) if at not in axis]
    return _lift.local(partial(fn, axis=axis), [x], kept)


def _precise(q: jax.Array, x: jax.Array, *weights: jax.Array) -> jax.Array:
    """Convert to floats of at least 32 bits: JAX computes positions in the dtype of `q`, and rejects integers.

    With weights, they are computed in the dtype of the elements and weights, which JAX multiplies by `q` unconverted.
    """
    return q.astype(at_least_float32(inexact_dtype(jnp.result_type(x, *weights) if weights else q.dtype)))


def _weighing(*weights: jax.Array) -> dict[str, Any]:
    """Return the weights as an option, which JAX's type stubs lack."""
    return {"weights": weights[0]} if weights else {}


def _some(function: str, x: jax.Array, axis: tuple[int, ...] | None = None) -> jax.Array:
    """Raise an error for an array without elements, for which releases of JAX differ."""
    if not math.prod(x.shape if axis is None else (x.shape[at] for at in axis)):
        raise AxisSizeError(message(function, "needs at least one element along the axes to reduce"))
    return x


def _ranked(
    fn: Any, x: "NamedArray", q: Operand, axis: AxisSelection | None, method: str, weights: "NamedArray | None"
) -> "NamedArray":
    """Compute quantiles; `fn` gets one `q` and the elements to rank, which are sorted once for all of `q`."""
    function = _lift.title(fn)
    highest = 100 if function.endswith("percentile") else 1
    if isinstance(q, int | float | np.number) and not 0 <= q <= highest:
        raise ArgumentError(message(function, f"q must be between 0 and {highest}, got {q}"))
    if method not in _METHODS:
        hint = suggestion(method, _METHODS)
        raise ArgumentError(
            message(function, f"unknown method {method!r}", f"methods: {', '.join(_METHODS)}", hint=hint)
        )
    if weights is not None and method != "inverted_cdf":
        problem = f"method {method!r} does not support weights"
        raise ArgumentError(message(function, problem, hint='write method="inverted_cdf"'))
    if not isinstance(x, Core):
        raise _lift.unnamed(function, x)
    chosen = x.names if axis is None else _batch.hashable(axis, function)
    names = tuple(name for name, _ in selection(chosen, function))
    try:
        plans.positions(x.names, names)
        plans.require(x.names, weights.names if isinstance(weights, Core) else ())
        for name in q.names if isinstance(q, Core) else ():
            if name in x.names:
                hint = f"rename it, since the result has it too: q.rename({{{name!r}: ...}})"
                raise AxisClashError(f"axis {name!r} is in both q and the array", hint)
    except AxisError as flaw:
        _lift.fail(function, flaw, x, weights)
    operands, core = [q, x], [(), chosen]
    if weights is not None:
        operands, core = [*operands, weights], [*core, chosen]
    return _batch.batched(fn, operands, core, (), each=True, outer=True, method=method)
