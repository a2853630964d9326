"""Polynomials, as coefficients along one axis, from the highest power to the constant.

An array with one axis is one polynomial. If it has more, the keyword `axis` gives the coefficient axis, and each
position of the others is a polynomial. The coefficient axes of two operands may have different names, or one name with
two sizes; the result has the name of that of the first named operand, with the size of the result. If `axis` is needed
and the names differ, it is a pair.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from .. import plans
from ..axis import Axis, AxisSelection, AxisSelector, selector
from ..core import Core, Operand, facts, renamed, wrap
from ..errors import ArgumentError, AxisError, OperandError, message
from . import _lift
from ._batch import batched
from ._operands import one_of, position_of
from ._slide import slide_whole

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "poly",
    "polyadd",
    "polyder",
    "polydiv",
    "polyfit",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
    "roots",
    "trim_zeros",
    "vander",
]

Coefficients: TypeAlias = AxisSelector | Sequence[AxisSelector]


def poly(seq_of_zeros: "NamedArray", *, axis: AxisSelector | None = None) -> "NamedArray":
    """Return the polynomial with the given roots and a leading coefficient of one.

    Example:
        >>> axn.poly(axn.named([1., 2.], "degree"))
        NamedArray(float32[degree=3])
        [ 1. -3.  2.]
    """
    return _one(_poly, seq_of_zeros, axis)


def _poly(zeros: jax.Array) -> jax.Array:
    return jnp.atleast_1d(jnp.poly(zeros))


def polyadd(p1: Operand, p2: Operand, *, axis: Coefficients | None = None) -> "NamedArray":
    """Add polynomials of any degrees.

    Example:
        >>> axn.polyadd(axn.named([1, 0, 0], "degree"), axn.named([5, 7], "degree"))
        NamedArray(int32[degree=3])
        [1 5 7]
    """
    result: NamedArray = _two(_polyadd, p1, p2, axis)
    return result


def _polyadd(p1: jax.Array, p2: jax.Array) -> jax.Array:
    return jnp.polyadd(jnp.atleast_1d(p1), jnp.atleast_1d(p2))


def polyder(p: "NamedArray", m: int = 1, *, axis: AxisSelector | None = None) -> "NamedArray":
    """Return the derivative of order `m`: the coefficient axis is `m` shorter."""
    return _one(_polyder, p, axis, m=_number("polyder", "m", m))


def _polyder(p: jax.Array, *, m: int) -> jax.Array:
    return jnp.polyder(p, m)


def polydiv(p1: Operand, p2: Operand, *, axis: Coefficients | None = None) -> "tuple[NamedArray, NamedArray]":
    """Return the quotient and the remainder of a division of polynomials.

    The remainder has the size of `p1`, whatever its degree; `trim_zeros(remainder, "f")` cuts it outside jit.
    """
    quotient, remainder = _two(_polydiv, p1, p2, axis, several=True)
    return quotient, remainder


def _polydiv(p1: jax.Array, p2: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.polydiv(jnp.atleast_1d(p1), jnp.atleast_1d(p2))


@overload
def polyfit(
    x: Operand,
    y: Operand,
    deg: int,
    rcond: float | None = None,
    full: Literal[False] = False,
    w: Operand | None = None,
    cov: Literal[False] = False,
    *,
    axis: AxisSelector | None = None,
) -> "NamedArray": ...
@overload
def polyfit(
    x: Operand,
    y: Operand,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Operand | None = None,
    cov: bool | Literal["unscaled"] = False,
    *,
    axis: AxisSelector | None = None,
) -> Any: ...
def polyfit(
    x: Operand,
    y: Operand,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Operand | None = None,
    cov: bool | Literal["unscaled"] = False,
    *,
    axis: AxisSelector | None = None,
) -> Any:
    """Fit a polynomial to points by least squares.

    Args:
        x: axes {axis, ...}; the positions of the points.
        y: axes {axis, ...}; their values. Along axes that `x` and `w` lack, all fits share one factorisation.
        deg: the degree.
        rcond: singular values below this fraction of the largest one count as zero; by default the machine epsilon of
            the dtype times the number of points.
        full: also return the residual sums of squares, the rank, the singular values over the coefficient axis and
            `rcond`.
        w: axes among those of `x`, with `axis`; factors of the errors, not of their squares.
        cov: also return the covariance of the coefficients, over {axis, axis_cov, ...}: the second name is that of the
            axis with "_cov" appended. "unscaled" assumes that the weights are exact.
        axis: the axis of the points; by default the only one of `x`.

    Returns:
        The coefficients, over `axis` with size `deg` + 1 and the other axes of `y`; a tuple with `full` or `cov`.

    Example:
        >>> x = axn.arange(axn.Axis("degree", 5), dtype=float)
        >>> axn.rint(axn.polyfit(x, 3 * x + 1, 1)).tolist()
        [3.0, 1.0]
    """
    deg = _number("polyfit", "deg", deg)
    first = next((operand for operand in (x, y) if isinstance(operand, Core)), None)
    if first is None:
        raise _lift.unnamed("polyfit", x)
    chosen = _only("polyfit", first, axis)
    name = selector(chosen, "polyfit")[0]
    known = {name for operand in (x, w) if isinstance(operand, Core) for name in operand.names} | {name}
    extra = tuple(name for name in y.names if name not in known) if isinstance(y, Core) else ()
    operands, core = [x, y], [(chosen,), (chosen, *extra)]
    if w is not None:
        operands, core = [*operands, w], [*core, (chosen,)]
    out: Any = (name, *extra)
    if full:
        out = (out, extra, (), (name,), ())
    elif cov:
        out = (out, (name, f"{name}_cov", *extra))
    rcond = None if rcond is None else float(rcond)
    return batched(_polyfit, operands, core, out, each=True, deg=deg, rcond=rcond, full=full, cov=cov)


def _polyfit(x: jax.Array, y: jax.Array, w: jax.Array | None = None, *, deg: int, cov: Any, **options: Any) -> Any:
    """Fit a polynomial for each position of the trailing dimensions of the values."""
    x, y = 1.0 * x, 1.0 * y  # integers become floats
    trailing = y.shape[1:]
    results: Any = jnp.polyfit(x, y.reshape(y.shape[0], -1), deg, w=w, cov=cov, **options)
    if options["full"]:
        fit, rest, rank, values, rcond = results
        return fit.reshape(deg + 1, *trailing), rest.reshape(trailing), rank, values, rcond
    if cov:
        fit, covariance = results
        # Results that do not depend on the values lack their dimension.
        covariance = jnp.broadcast_to(covariance, (deg + 1, deg + 1, fit.shape[1]))
        return fit.reshape(deg + 1, *trailing), covariance.reshape(deg + 1, deg + 1, *trailing)
    return results.reshape(deg + 1, *trailing)


def polyint(p: "NamedArray", m: int = 1, k: Operand | None = None, *, axis: AxisSelector | None = None) -> "NamedArray":
    """Return the integral of order `m`: the coefficient axis is `m` longer.

    Args:
        p: axes {axis, ...}.
        m: how many times to integrate.
        k: the constants of integration, that of the first integral first: a scalar for all, or `m` of them along an
            axis that is not another axis of `p`; zero by default.
        axis: the coefficient axis; by default the only one.
    """
    if k is None:
        return _one(_polyint, p, axis, m=_number("polyint", "m", m))
    if not isinstance(p, Core):
        raise _lift.unnamed("polyint", p)
    chosen = _only("polyint", p, axis)
    name = selector(chosen, "polyint")[0]
    constants: AxisSelection = ()
    if isinstance(k, Core):
        own = [other for other in k.names if other == name or other not in p.names]
        if len(own) > 1:
            problem = f"the constants have several axes that are not batch axes of the polynomial: {', '.join(own)}"
            raise AxisError(message("polyint", problem, f"the polynomial has: {facts(p)}", f"k has: {facts(k)}"))
        if own:
            k, constants = _apart(k, own[0], p.names)
    elif jnp.ndim(k):
        constants = _fresh("constants", p.names)
    options: dict[str, Any] = {"m": _number("polyint", "m", m)}
    return batched(_polyint, [p, k], [chosen, constants], (name,), each=True, in_place=True, **options)


def _polyint(p: jax.Array, k: jax.Array | None = None, *, m: int) -> jax.Array:
    if k is not None and k.ndim and k.shape[0] not in (1, m):
        problem = f"there are {k.shape[0]} constants of integration for {m} integrals"
        raise ArgumentError(message("polyint", problem, hint="one for all, or one for each"))
    return jnp.polyint(p, m, k)


def polymul(p1: Operand, p2: Operand, *, axis: Coefficients | None = None) -> "NamedArray":
    """Multiply polynomials; coefficient axes of sizes m and n give one of size m + n - 1."""
    result: NamedArray = _two(_polymul, p1, p2, axis)
    return result


def _polymul(p1: jax.Array, p2: jax.Array) -> jax.Array:
    return slide_whole(jnp.polymul, jnp.atleast_1d(p1), jnp.atleast_1d(p2))


def polysub(p1: Operand, p2: Operand, *, axis: Coefficients | None = None) -> "NamedArray":
    """Subtract polynomials of any degrees."""
    result: NamedArray = _two(_polysub, p1, p2, axis)
    return result


def _polysub(p1: jax.Array, p2: jax.Array) -> jax.Array:
    return jnp.polysub(jnp.atleast_1d(p1), jnp.atleast_1d(p2))


def polyval(p: Operand, x: Operand, *, axis: AxisSelector | None = None) -> "NamedArray":
    """Evaluate polynomials.

    Args:
        p: axes {axis, ...}.
        x: where to evaluate: any axes, or a scalar. An axis with the name of the coefficient axis is a different one.
        axis: the coefficient axis; by default the only one of `p`.

    Returns:
        The axes of `x`, and those of `p` except the coefficients; one of the two must contain the other.

    Example:
        >>> p = axn.named([1, 0, -1], "degree")
        >>> axn.polyval(p, axn.arange(axn.Axis("x", 4)))
        NamedArray(int32[x=4])
        [-1  0  3  8]
    """
    taken = x.names if isinstance(x, Core) else ()
    if isinstance(p, Core):
        p, core = _apart(p, _only("polyval", p, axis), taken)
    else:
        core = _fresh("degree", taken)
    return batched(_polyval, [p, x], [core, ()], ())


def _polyval(p: jax.Array, x: jax.Array) -> jax.Array:
    p = jnp.moveaxis(p, -1, 0)
    if x.ndim and p.ndim > 1:  # both have dimensions that broadcast
        rank = max(x.ndim, p.ndim - 1)
        p, x = lax.expand_dims(p, range(1, rank - p.ndim + 2)), lax.expand_dims(x, range(rank - x.ndim))
    return jnp.polyval(p, x)


def roots(p: "NamedArray", *, strip_zeros: bool = True, axis: AxisSelector | None = None) -> "NamedArray":
    """Return the complex roots of a polynomial, over the coefficient axis.

    Args:
        p: axes {axis}; with `strip_zeros=False`, {axis, ...}.
        strip_zeros: drop leading zero coefficients. The number of roots then depends on values, so that this works only
            outside jit. Otherwise there is one root less than coefficients, and missing ones are NaN.
        axis: the coefficient axis; by default the only one.

    Raises:
        OperandError: while tracing, with `strip_zeros`.

    Example:
        >>> axn.roots(axn.named([0., 1., 0., -4.], "degree")).axes
        (Axis(name='degree', size=2),)
    """
    if not strip_zeros:
        return _one(_roots, p, axis)
    if not isinstance(p, Core):
        raise _lift.unnamed("roots", p)
    hint = "strip_zeros=False gives each polynomial one root less than it has coefficients"
    at = position_of("roots", p, _only("roots", p, axis))
    if p.array.ndim != 1:
        problem = "strip_zeros needs a single polynomial"
        raise AxisError(message("roots", problem, f"array has: {facts(p)}", hint=hint))
    _concrete("roots", p, hint)
    return wrap(p, jnp.roots(_lift.whole(p.array, (at,))), p.names)


def _roots(p: jax.Array) -> jax.Array:
    return jnp.roots(p, strip_zeros=False)


def trim_zeros(
    f: "NamedArray", trim: Literal["fb", "f", "b"] = "fb", *, axis: AxisSelector | None = None
) -> "NamedArray":
    """Remove positions where all elements are zero at the front ("f"), the back ("b") or both ends of an axis.

    The size of the result depends on values, so that this works only outside jit.

    Args:
        f: axes {axis, ...}.
        trim: the ends to trim.
        axis: the axis; by default the only one.

    Raises:
        OperandError: while tracing.

    Example:
        >>> axn.trim_zeros(axn.named([0, 1, 2, 0], "degree"))
        NamedArray(int32[degree=2])
        [1 2]
    """
    one_of("trim_zeros", "trim", trim, ("fb", "f", "b"))
    if not isinstance(f, Core):
        raise _lift.unnamed("trim_zeros", f)
    at = position_of("trim_zeros", f, _only("trim_zeros", f, axis))
    _concrete("trim_zeros", f, "use a slice, whose size is static")
    array = _lift.whole(f.array, (at,))
    others = tuple(i for i in range(-array.ndim, 0) if i != at)
    (kept,) = np.nonzero(np.asarray(jnp.any(array != 0, axis=others)))
    first, last = (int(kept[0]), int(kept[-1])) if kept.size else (0, -1)
    start = first if "f" in trim else 0
    stop = last + 1 if "b" in trim or not kept.size else array.shape[at]
    return wrap(f, lax.slice_in_dim(array, start, stop, axis=array.ndim + at), f.names)


def vander(x: "NamedArray", degree: AxisSelector, *, increasing: bool = False) -> "NamedArray":
    """Return the powers of each element along a new axis, from the highest to the zeroth.

    Args:
        x: any axes; one, if `degree` is a name.
        degree: the new last axis; its size, for a name the number of elements of `x`, is the number of powers.
        increasing: start with the zeroth power.

    Example:
        >>> axn.vander(axn.named([2, 3], "x"), axn.Axis("degree", 3))
        NamedArray(int32[x=2, degree=3])
        [[4 2 1]
         [9 3 1]]
    """
    name, size = selector(degree, "vander")
    if size is None and isinstance(x, Core) and len(x.names) != 1:
        problem = f"the number of powers along {name!r} is unknown"
        raise AxisError(message("vander", problem, f"array has: {facts(x)}", hint=f'write Axis("{name}", size)'))
    core = () if size is not None or not isinstance(x, Core) else x.names
    out = (*core, name)
    return batched(_vander, [x], [core], out, size=size, increasing=increasing)


def _vander(x: jax.Array, *, size: int | None, increasing: bool) -> jax.Array:
    size = x.shape[-1] if size is None else size
    return jnp.vander(x.reshape(-1), size, increasing).reshape(*x.shape, size)


def _number(function: str, argument: str, value: Any) -> int:
    """Check a number of repetitions, or a degree."""
    if not isinstance(value, int | np.integer):
        raise OperandError(message(function, f"{argument} must be an int, not {type(value).__name__}"))
    if value < 0:
        raise ArgumentError(message(function, f"{argument} must not be negative, got {value}"))
    return int(value)


def _concrete(function: str, x: Core, hint: str) -> None:
    if isinstance(x.array, Tracer):
        problem = "the size of the result depends on values, which are not known under jit, grad or vmap"
        raise OperandError(message(function, problem, f"array has: {facts(x)}", hint=hint))


def _only(function: str, x: Core, axis: AxisSelector | None) -> AxisSelector:
    """Return the axis that was given, or the only one."""
    if axis is not None:
        return axis
    if len(x.names) != 1:
        hint = f'say which: axis="{x.names[-1]}"' if x.names else None
        problem = "without an axis, the array must have just one"
        raise AxisError(message(function, problem, f"array has: {facts(x)}", hint=hint))
    return x.names[0]


def _fresh(name: str, taken: Sequence[str]) -> str:
    """Vary a name until no other axis has it."""
    while name in taken:
        name += "'"
    return name


def _apart(x: Core, axis: AxisSelector, taken: Sequence[str]) -> tuple[Core, AxisSelector]:
    """Rename an axis if others have its name, so that it counts as a different one."""
    name, size = selector(axis)
    if name not in taken or name not in x.names:
        return x, axis
    fresh = _fresh(name, (*taken, *x.names))
    return renamed(x, plans.rename(x.names, ((name, fresh),))), fresh if size is None else Axis(fresh, size)


def _one(fn: Any, p: Any, axis: AxisSelector | None, **options: Any) -> "NamedArray":
    """Apply a function of coefficients for each position of the other axes."""
    function = _lift.title(fn)
    if not isinstance(p, Core):
        raise _lift.unnamed(function, p)
    chosen = _only(function, p, axis)
    name = selector(chosen, function)[0]
    return batched(fn, [p], [chosen], (name,), each=True, in_place=True, **options)


def _two(fn: Any, p1: Any, p2: Any, axis: Coefficients | None, *, several: bool = False) -> Any:
    """Apply a function of the coefficients of two operands for each position of their other axes."""
    function = _lift.title(fn)
    given: tuple[AxisSelector | None, ...] = (None, None)
    if axis is not None:
        given = (axis, axis) if isinstance(axis, str | Axis) else tuple(axis)
        if len(given) != 2:
            problem = f"axis is one axis, or one for each of two operands, not {len(given)}"
            raise AxisError(message(function, problem))
    chosen = [_only(function, p, own) if isinstance(p, Core) else None for p, own in zip((p1, p2), given, strict=True)]
    named = next((own for own in chosen if own is not None), None)
    if named is None:
        raise _lift.unnamed(function, p1)
    out = (selector(named, function)[0],)
    operands: list[Any] = [p1, p2]
    if isinstance(p1, Core) and isinstance(p2, Core) and chosen[1] is not None:
        operands[1], chosen[1] = _apart(p2, chosen[1], p1.names)
    plain = _fresh("degree", [name for p in operands if isinstance(p, Core) for name in p.names])
    # A plain scalar is a constant: it has no coefficient axis.
    core = [own or (plain if np.ndim(p) else ()) for p, own in zip(operands, chosen, strict=True)]
    return batched(fn, operands, core, (out, out) if several else out, each=True, in_place=True)
