"""Polynomials, as coefficients along one axis, from the highest power to the constant.

An array with one axis is one polynomial. If it has more, the keyword `axis` gives the coefficient axis, and each
position of the others is a polynomial. The coefficient axes of two operands may have different names, or the same name
and different sizes; the result has the name in the first operand. If `axis` is needed and the names differ, it is a
pair.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from ..axis import Axis, AxisSelection, AxisSelector, selector, selectors
from ..base.kinds import type_text
from ..engine import auto, checks
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand, facts, rename_axes, wrap
from ..engine.operands import one_of, own_names, position_of
from ..errors import ArgumentError, AxisError, AxisSizeError, OperandError, message
from ..faults.slid_signals import slide_replicated
from ..names import plans

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

    Args:
        seq_of_zeros: the roots, real or complex; axes {axis, ...}.
        axis: the axis of the roots; by default the only one.

    Returns:
        The axes of `seq_of_zeros`; `axis` is one longer. `jnp.poly` takes square matrices as well.

    Examples:
        >>> axn.poly(axn.named([1., 2.], "degree"))
        NamedArray(float32[degree=3])
        [ 1. -3.  2.]
    """
    return _apply(_poly, seq_of_zeros, axis)


def _poly(zeros: jax.Array) -> jax.Array:
    # `jnp.poly` of no roots is a 0-d one; the coefficient axis is always there.
    return jnp.atleast_1d(jnp.poly(zeros))


def polyadd(p1: Operand, p2: Operand, *, axis: Coefficients | None = None) -> "NamedArray":
    """Add polynomials of any degrees.

    Args:
        p1, p2: axes {axis, ...}, or scalars; other axes are matched by name.
        axis: the coefficient axis, or one for each of the two; by default the only one of each.

    Returns:
        The coefficients over `axis`, as many as in the longer of the two.

    Examples:
        >>> axn.polyadd(axn.named([1, 0, 0], "degree"), axn.named([5, 7], "degree"))
        NamedArray(int32[degree=3])
        [1 5 7]
    """
    return _apply_to_two(_polyadd, p1, p2, axis)


def _polyadd(p1: jax.Array, p2: jax.Array) -> jax.Array:
    return jnp.polyadd(*_give_coefficients(p1, p2))


def _give_coefficients(p1: jax.Array, p2: jax.Array) -> list[jax.Array]:
    """Give a scalar a dimension, and an empty polynomial as many zeros as the other has coefficients."""
    # JAX refuses to add an empty polynomial to another one.
    operands = [jnp.atleast_1d(p1), jnp.atleast_1d(p2)]
    size = max(p.size for p in operands)
    return [p if p.size else jnp.zeros(size, p.dtype) for p in operands]


def polyder(p: "NamedArray", m: int = 1, *, axis: AxisSelector | None = None) -> "NamedArray":
    """Return the derivative of order `m`.

    Args:
        p: axes {axis, ...}.
        m: how many times to differentiate.
        axis: the coefficient axis; by default the only one.

    Returns:
        The axes of `p`; `axis` is `m` shorter.

    Examples:
        >>> axn.polyder(axn.named([1, 2, 3], "degree")).tolist()
        [2.0, 2.0]
    """
    return _apply(_polyder, p, axis, m=_check_count("polyder", "m", m))


def _polyder(p: jax.Array, *, m: int) -> jax.Array:
    return jnp.polyder(p, m)


def polydiv(
    p1: Operand, p2: Operand, *, axis: Coefficients | None = None
) -> "tuple[NamedArray, NamedArray]":
    """Return the quotient and the remainder of a division of polynomials.

    Args:
        p1, p2: the dividend and the divisor, as in `polyadd`.
        axis: as in `polyadd`.

    Returns:
        The quotient and the remainder over `axis`. The remainder has the size of `p1`, whatever its degree;
        `trim_zeros(remainder, "f")` cuts it outside jit.

    Examples:
        >>> quotient, rest = axn.polydiv(axn.named([1., 0., 1.], "degree"), axn.named([1., 1.], "degree"))
        >>> quotient.tolist(), rest.tolist()
        ([1.0, -1.0], [0.0, 0.0, 2.0])
    """
    operands, core, out = _line_up_two(_polydiv, p1, p2, axis)
    outs = (out, out)
    quotient, remainder = apply_batched(_polydiv, operands, core, outs, each=True, in_place=True)
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
        rcond: singular values below this fraction of the largest count as zero; by default n times the machine epsilon.
        full: also return the residual sums of squares, the rank, the singular values over the coefficient axis and
            `rcond`.
        w: axes among those of `x`, with `axis`; factors of the errors, not of their squares.
        cov: also return the covariance of the coefficients, over {axis, axis_cov, ...}: the second name is that of the
            axis with "_cov" appended. "unscaled" assumes that the weights are exact.
        axis: the axis of the points; by default the only one of `x`.

    Returns:
        The coefficients, over `axis` with size `deg` + 1 and the other axes of `y`; a tuple with `full` or `cov`.

    Examples:
        >>> x = axn.arange(axn.Axis("degree", 5), dtype=float)
        >>> axn.rint(axn.polyfit(x, 3 * x + 1, 1)).tolist()
        [3.0, 1.0]
    """
    deg = _check_count("polyfit", "deg", deg)
    first = next((operand for operand in (x, y) if isinstance(operand, Core)), None)
    if first is None:
        raise checks.no_names("polyfit", x)
    chosen = _choose_coefficients("polyfit", first, axis)
    name = selector(chosen, "polyfit")[0]
    # Axes of the values alone are columns of one least-squares problem; mapping would factor the same matrix again.
    extra = plans.without(own_names(y), (name, *own_names(x), *own_names(w)))

    operands: list[Operand] = [x, y] if w is None else [x, y, w]
    core: list[AxisSelection] = [(chosen,), (chosen, *extra), *[(chosen,)] * (w is not None)]
    fit = (name, *extra)
    out: Any = fit
    if full:
        out = (fit, extra, (), (name,), ())
    elif cov:
        out = (fit, (name, f"{name}_cov", *extra))

    rcond = None if rcond is None else float(rcond)  # hashable, also from a number of NumPy
    options: dict[str, Any] = {"deg": deg, "rcond": rcond, "full": full, "cov": cov}
    return apply_batched(_polyfit, operands, core, out, each=True, **options)


def _polyfit(
    x: jax.Array,
    y: jax.Array,
    w: jax.Array | None = None,
    *,
    deg: int,
    rcond: float | None,
    full: bool,
    cov: Any,  # JAX's type stubs know no "unscaled"
) -> jax.Array | tuple[jax.Array, ...]:
    """Fit a polynomial for each position of the trailing dimensions of the values."""
    x, y = 1.0 * x, 1.0 * y  # integers become floats
    trailing = y.shape[1:]
    if not y.shape[0]:
        raise AxisSizeError(message("polyfit", "there are no points to fit"))
    columns = y.reshape(y.shape[0], math.prod(trailing))
    results: Any = jnp.polyfit(x, columns, deg, rcond=rcond, full=full, w=w, cov=cov)
    if full:
        fit, rest, rank, values, smallest = results
        return fit.reshape(deg + 1, *trailing), rest.reshape(trailing), rank, values, smallest
    if cov:
        fit, covariance = results
        # Results that do not depend on the values lack their dimension.
        covariance = jnp.broadcast_to(covariance, (deg + 1, deg + 1, fit.shape[1]))
        return fit.reshape(deg + 1, *trailing), covariance.reshape(deg + 1, deg + 1, *trailing)
    alone: jax.Array = results.reshape(deg + 1, *trailing)
    return alone


def polyint(
    p: "NamedArray", m: int = 1, k: Operand | None = None, *, axis: AxisSelector | None = None
) -> "NamedArray":
    """Return the integral of order `m`.

    Args:
        p: axes {axis, ...}.
        m: how many times to integrate.
        k: the constants of integration, that of the first integral first: a scalar for all, or `m` of them along an
            axis that is not another axis of `p`; zero by default.
        axis: the coefficient axis; by default the only one.

    Returns:
        Floats with the axes of `p`; `axis` is `m` longer.

    Raises:
        ArgumentError: if there are neither one nor `m` constants.

    Examples:
        >>> axn.polyint(axn.named([2., 2.], "degree"), k=5).tolist()
        [1.0, 2.0, 5.0]
    """
    if k is None:
        return _apply(_polyint, p, axis, m=_check_count("polyint", "m", m))
    if not isinstance(p, Core):
        raise checks.no_names("polyint", p)
    chosen = _choose_coefficients("polyint", p, axis)
    name = selector(chosen, "polyint")[0]

    constants: AxisSelection = ()
    if isinstance(k, Core):
        # One axis that the polynomial lacks numbers the constants; the others are its batch axes.
        own = plans.without(k.names, plans.without(p.names, (name,)))
        if len(own) > 1:
            problem = f"the constants have several axes that are not batch axes of the polynomial: {', '.join(own)}"
            lines = f"the polynomial has: {facts(p)}", f"k has: {facts(k)}"
            raise AxisError(message("polyint", problem, *lines))
        if own:
            k, constants = _rename_apart(k, own[0], p.names)
    elif jnp.ndim(k):
        constants = _vary_name("constants", p.names)

    times, core = _check_count("polyint", "m", m), [chosen, constants]
    return apply_batched(_polyint, [p, k], core, (name,), each=True, in_place=True, m=times)


def _polyint(p: jax.Array, k: jax.Array | None = None, *, m: int) -> jax.Array:
    if k is not None and k.ndim and k.shape[0] not in (1, m):
        problem = f"there are {k.shape[0]} constants of integration for {m} integrals"
        raise ArgumentError(message("polyint", problem, hint="one for all, or one for each"))
    return jnp.polyint(p, m, k)


def polymul(p1: Operand, p2: Operand, *, axis: Coefficients | None = None) -> "NamedArray":
    """Multiply polynomials.

    Args:
        p1, p2, axis: as in `polyadd`.

    Returns:
        The coefficients over `axis`: axes of sizes m and n give one of size m + n - 1.

    Examples:
        >>> axn.polymul(axn.named([1, 1], "degree"), axn.named([1, -1], "degree")).tolist()
        [1.0, 0.0, -1.0]
    """
    return _apply_to_two(_polymul, p1, p2, axis)


def _polymul(p1: jax.Array, p2: jax.Array) -> jax.Array:
    return slide_replicated(jnp.polymul, jnp.atleast_1d(p1), jnp.atleast_1d(p2))


def polysub(p1: Operand, p2: Operand, *, axis: Coefficients | None = None) -> "NamedArray":
    """Subtract polynomials of any degrees; arguments and result are those of `polyadd`.

    Examples:
        >>> axn.polysub(axn.named([1, 0, 0], "degree"), axn.named([5, 7], "degree")).tolist()
        [1, -5, -7]
    """
    return _apply_to_two(_polysub, p1, p2, axis)


def _polysub(p1: jax.Array, p2: jax.Array) -> jax.Array:
    return jnp.polysub(*_give_coefficients(p1, p2))


def polyval(p: Operand, x: Operand, *, axis: AxisSelector | None = None) -> "NamedArray":
    """Evaluate polynomials.

    Args:
        p: axes {axis, ...}.
        x: where to evaluate: any axes, or a scalar. An axis with the name of the coefficient axis is a different one.
        axis: the coefficient axis; by default the only one of `p`.

    Returns:
        The axes of `x`, and those of `p` except the coefficients; one of the two must contain the other.

    Examples:
        >>> p = axn.named([1, 0, -1], "degree")
        >>> axn.polyval(p, axn.arange(axn.Axis("x", 4)))
        NamedArray(int32[x=4])
        [-1  0  3  8]
    """
    # `x` may be over an axis of the same name, as a spectrum over "degree": these are different axes.
    taken = own_names(x)
    if isinstance(p, Core):
        p, core = _rename_apart(p, _choose_coefficients("polyval", p, axis), taken)
    else:
        core = _vary_name("degree", taken)
    return apply_batched(_polyval, [p, x], [core, ()], ())


def _polyval(p: jax.Array, x: jax.Array) -> jax.Array:
    p = jnp.moveaxis(p, -1, 0)
    if x.ndim and p.ndim > 1:  # both have dimensions that broadcast
        rank = max(x.ndim, p.ndim - 1)
        p = lax.expand_dims(p, range(1, rank - p.ndim + 2))
        x = lax.expand_dims(x, range(rank - x.ndim))
    return jnp.polyval(p, x)


def roots(
    p: "NamedArray", *, strip_zeros: bool = True, axis: AxisSelector | None = None
) -> "NamedArray":
    """Return the complex roots of a polynomial, over the coefficient axis.

    Args:
        p: axes {axis}; with `strip_zeros=False`, {axis, ...}.
        strip_zeros: drop leading zero coefficients, outside jit only, since the number of roots then depends on values.
            Otherwise there is one root less than coefficients, and missing ones are NaN.
        axis: the coefficient axis; by default the only one.

    Returns:
        The axes of `p`; `axis` has one position for each root.

    Raises:
        OperandError: while tracing, with `strip_zeros`.

    Examples:
        >>> axn.roots(axn.named([0., 1., 0., -4.], "degree")).axes
        (Axis(name='degree', size=2),)
    """
    if not strip_zeros:
        return _apply(_roots, p, axis)
    if not isinstance(p, Core):
        raise checks.no_names("roots", p)
    # Outside the engine, whose kernels are compiled: the size of the result depends on values.
    hint = "strip_zeros=False gives each polynomial one root less than it has coefficients"
    at = position_of("roots", p, _choose_coefficients("roots", p, axis))
    if p.array.ndim != 1:
        problem = "strip_zeros needs a single polynomial"
        raise AxisError(message("roots", problem, f"array has: {facts(p)}", hint=hint))
    _require_concrete("roots", p, hint)
    return wrap(p, jnp.roots(auto.whole(p.array, (at,))), p.names)


def _roots(p: jax.Array) -> jax.Array:
    return jnp.roots(p, strip_zeros=False)


def trim_zeros(
    f: "NamedArray", trim: Literal["fb", "f", "b"] = "fb", *, axis: AxisSelector | None = None
) -> "NamedArray":
    """Remove positions where all elements are zero at the front ("f"), the back ("b") or both ends of an axis.

    Args:
        f: axes {axis, ...}.
        trim: the ends to trim.
        axis: the axis; by default the only one.

    Returns:
        The axes of `f`.

    Raises:
        OperandError: while tracing, since the size of the result depends on values.

    Examples:
        >>> axn.trim_zeros(axn.named([0, 1, 2, 0], "degree"))
        NamedArray(int32[degree=2])
        [1 2]
    """
    one_of("trim_zeros", "trim", trim, ("fb", "f", "b"))
    if not isinstance(f, Core):
        raise checks.no_names("trim_zeros", f)
    at = position_of("trim_zeros", f, _choose_coefficients("trim_zeros", f, axis))
    _require_concrete("trim_zeros", f, "use a slice, whose size is static")
    array = auto.whole(f.array, (at,))
    others = tuple(i for i in range(-array.ndim, 0) if i != at)
    (kept,) = np.nonzero(np.asarray(jnp.any(array != 0, axis=others)))

    start = stop = 0  # for nothing but zeros, all of which go
    if kept.size:
        start = int(kept[0]) if "f" in trim else 0
        stop = int(kept[-1]) + 1 if "b" in trim else array.shape[at]
    return wrap(f, lax.slice_in_dim(array, start, stop, axis=array.ndim + at), f.names)


def vander(x: "NamedArray", degree: AxisSelector, *, increasing: bool = False) -> "NamedArray":
    """Return the powers of each element along a new axis, from the highest to the zeroth.

    Args:
        x: any axes; one, if `degree` is a name.
        degree: the new axis; its size, for a name the number of elements of `x`, is the number of powers.
        increasing: start with the zeroth power.

    Returns:
        Axes {..., degree}.

    Raises:
        AxisError: if `degree` has no size, unless `x` has just one axis.

    Examples:
        >>> axn.vander(axn.named([2, 3], "x"), axn.Axis("degree", 3))
        NamedArray(int32[x=2, degree=3])
        [[4 2 1]
         [9 3 1]]
    """
    name, size = selector(degree, "vander")
    if size is None and isinstance(x, Core) and len(x.names) != 1:
        problem = f"the number of powers along {name!r} is unknown"
        hint = f'write Axis("{name}", size)'
        raise AxisError(message("vander", problem, f"array has: {facts(x)}", hint=hint))
    # Without a size, that of `x` counts, so that its axis must be a core axis, whose size the function sees.
    core = own_names(x) if size is None else ()
    return apply_batched(_vander, [x], [core], (*core, name), size=size, increasing=increasing)


def _vander(x: jax.Array, *, size: int | None, increasing: bool) -> jax.Array:
    size = x.shape[-1] if size is None else size  # `jnp.vander` takes vectors only
    return jnp.vander(x.reshape(-1), size, increasing).reshape(*x.shape, size)


def _check_count(function: str, argument: str, value: object) -> int:
    """Check a number of repetitions, or a degree."""
    if not isinstance(value, int | np.integer):
        problem = f"{argument} must be an int, not {type_text(value)}"
        raise OperandError(message(function, problem))
    if value < 0:
        raise ArgumentError(message(function, f"{argument} must not be negative, got {value}"))
    return int(value)


def _require_concrete(function: str, x: Core, hint: str) -> None:
    if isinstance(x.array, Tracer):
        problem = (
            "the size of the result depends on values, which are not known under jit, grad or vmap"
        )
        raise OperandError(message(function, problem, f"array has: {facts(x)}", hint=hint))


def _choose_coefficients(function: str, x: Core, axis: AxisSelector | None) -> AxisSelector:
    """Return the axis that was given, or the only one."""
    if axis is not None:
        return axis
    if len(x.names) != 1:
        hint = f'say which: axis="{x.names[-1]}"' if x.names else None
        problem = "without an axis, the array must have just one"
        raise AxisError(message(function, problem, f"array has: {facts(x)}", hint=hint))
    return x.names[0]


def _vary_name(name: str, taken: Sequence[str]) -> str:
    """Vary a name until no other axis has it."""
    while name in taken:
        name += "'"
    return name


def _rename_apart(x: Core, axis: AxisSelector, taken: Sequence[str]) -> tuple[Core, AxisSelector]:
    """Rename an axis if others have its name, so that it counts as a different one."""
    name, size = selector(axis)
    if name not in taken or name not in x.names:
        return x, axis
    fresh = _vary_name(name, (*taken, *x.names))
    (own,) = selectors(((fresh, size),))
    return rename_axes(x, plans.rename(x.names, ((name, fresh),))), own


def _apply(
    fn: checks.Function, p: object, axis: AxisSelector | None, **options: Any
) -> "NamedArray":
    """Apply a function of coefficients for each position of the other axes."""
    function = checks.title(fn)
    if not isinstance(p, Core):
        raise checks.no_names(function, p)
    chosen = _choose_coefficients(function, p, axis)
    name, _ = selector(chosen, function)
    return apply_batched(fn, [p], [chosen], (name,), each=True, in_place=True, **options)


def _apply_to_two(
    fn: checks.Function, p1: Operand, p2: Operand, axis: Coefficients | None
) -> "NamedArray":
    """Apply a function of the coefficients of two operands for each position of their other axes."""
    operands, core, out = _line_up_two(fn, p1, p2, axis)
    return apply_batched(fn, operands, core, out, each=True, in_place=True)


def _line_up_two(
    fn: checks.Function, p1: Operand, p2: Operand, axis: Coefficients | None
) -> tuple[list[Operand], list[AxisSelection], tuple[str]]:
    """Return two operands whose coefficient axes have different names, these names, and the axis of the result."""
    function = checks.title(fn)
    # Equal names would be matched, and so refused for their different sizes.
    first, second = _read_pair(function, axis)
    if isinstance(p1, Core):
        first = _choose_coefficients(function, p1, first)
        out = selector(first, function)[0]
        chosen, second = second, None
        if isinstance(p2, Core):
            p2, second = _rename_apart(p2, _choose_coefficients(function, p2, chosen), p1.names)
    elif isinstance(p2, Core):
        first, second = None, _choose_coefficients(function, p2, second)
        out = selector(second, function)[0]
    else:
        raise checks.no_names(function, p1)

    plain = _vary_name("degree", (*own_names(p1), *own_names(p2)))
    # A plain scalar is a constant: it has no coefficient axis.
    core: list[AxisSelection] = [
        (own or plain) if isinstance(operand, Core) or np.ndim(operand) else ()
        for operand, own in ((p1, first), (p2, second))
    ]
    return [p1, p2], core, (out,)


def _read_pair(function: str, axis: Coefficients | None) -> Sequence[AxisSelector | None]:
    """Return the coefficient axis that was given for each of two operands."""
    if axis is None or isinstance(axis, str | Axis):
        return (axis, axis)
    given = tuple(axis)
    if len(given) != 2:
        problem = f"axis is one axis, or one for each of two operands, not {len(given)}"
        raise AxisError(message(function, problem))
    return given
