"""Random named arrays: the numbers of `jax.random` for the same key and sizes, laid out by the mapping."""

import functools
from collections.abc import Callable

import jax
from jax.typing import DTypeLike

import axonym as axn
from axonym import Axis, AxisSelector, AxisSpec, NamedArray
from axonym.engine import context_mesh, shown, spec, transforming
from axonym.errors import AxisNotFoundError, message

from ._adapt import Function, Operand, adapted
from ._shape import broadcast_axis
from .partitioning import auto_sharded, physical_axis_name

__all__ = [
    "ball",
    "bernoulli",
    "beta",
    "cauchy",
    "choice",
    "exponential",
    "gamma",
    "generate_sharded",
    "gumbel",
    "laplace",
    "loggamma",
    "logistic",
    "normal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "t",
    "truncated_normal",
    "uniform",
    "weibull_min",
]


def _draw(sampler: Callable[..., NamedArray], *args: object, **kwargs: object) -> NamedArray:
    """Draw, and lay out the result, also on the mesh of `with mesh:`; its spec has an entry for each axis."""
    drawn = adapted(sampler)(*args, **kwargs)
    if transforming() and context_mesh() is not None:
        return drawn
    return auto_sharded(drawn)


# without parameters
def _plain(sampler: Callable[..., NamedArray]) -> Callable[..., NamedArray]:
    """Convert a sampler of `key`, `shape` and `dtype` to Haliax's, whose default dtype is `float`."""

    def draw(key: jax.Array, shape: AxisSpec, dtype: DTypeLike = float) -> NamedArray:
        return _draw(sampler, key, shape, dtype)

    draw.__name__ = draw.__qualname__ = sampler.__name__
    draw.__doc__ = sampler.__doc__
    return draw


cauchy = _plain(axn.random.cauchy)
exponential = _plain(axn.random.exponential)
gumbel = _plain(axn.random.gumbel)
laplace = _plain(axn.random.laplace)
logistic = _plain(axn.random.logistic)
normal = _plain(axn.random.normal)
rademacher = _plain(axn.random.rademacher)


# with parameters, which are numbers or named arrays
def bernoulli(key: jax.Array, shape: AxisSpec, p: Operand) -> NamedArray:
    """Draw booleans that are true with probability `p`."""
    return _draw(axn.random.bernoulli, key, shape, p)


def beta(
    key: jax.Array, shape: AxisSpec, a: Operand, b: Operand, dtype: DTypeLike = float
) -> NamedArray:
    """Draw from the beta distribution."""
    return _draw(axn.random.beta, key, shape, a, b, dtype)


def gamma(key: jax.Array, shape: AxisSpec, a: Operand, dtype: DTypeLike = float) -> NamedArray:
    """Draw from the gamma distribution with scale 1."""
    return _draw(axn.random.gamma, key, shape, a, dtype)


def loggamma(key: jax.Array, shape: AxisSpec, a: Operand, dtype: DTypeLike = float) -> NamedArray:
    """Draw the logarithms of `gamma`."""
    return _draw(axn.random.loggamma, key, shape, a, dtype)


def pareto(key: jax.Array, shape: AxisSpec, b: Operand, dtype: DTypeLike = float) -> NamedArray:
    """Draw from the Pareto distribution."""
    return _draw(axn.random.pareto, key, shape, b, dtype)


def poisson(key: jax.Array, shape: AxisSpec, lam: Operand, dtype: DTypeLike = int) -> NamedArray:
    """Draw counts with mean `lam`."""
    return _draw(axn.random.poisson, key, shape, lam, dtype)


def randint(
    key: jax.Array, shape: AxisSpec, minval: Operand, maxval: Operand, dtype: DTypeLike = int
) -> NamedArray:
    """Draw integers uniformly from `minval` (included) to `maxval` (excluded)."""
    return _draw(axn.random.randint, key, shape, minval, maxval, dtype)


def t(key: jax.Array, shape: AxisSpec, df: Operand, dtype: DTypeLike = float) -> NamedArray:
    """Draw from Student's t distribution."""
    return _draw(axn.random.t, key, shape, df, dtype)


def truncated_normal(
    key: jax.Array, shape: AxisSpec, lower: Operand, upper: Operand, dtype: DTypeLike = float
) -> NamedArray:
    """Draw from the standard normal distribution between `lower` and `upper`."""
    return _draw(axn.random.truncated_normal, key, shape, lower, upper, dtype)


def uniform(
    key: jax.Array,
    shape: AxisSpec,
    dtype: DTypeLike = float,
    minval: Operand = 0.0,
    maxval: Operand = 1.0,
) -> NamedArray:
    """Draw uniformly from `minval` (included) to `maxval` (excluded)."""
    return _draw(axn.random.uniform, key, shape, dtype, minval, maxval)


def weibull_min(
    key: jax.Array,
    shape: AxisSpec,
    scale: Operand,
    concentration: Operand,
    dtype: DTypeLike = float,
) -> NamedArray:
    """Draw from the Weibull distribution."""
    return _draw(axn.random.weibull_min, key, shape, scale, concentration, dtype)


def ball(
    key: jax.Array, shape: AxisSpec, D: Axis, p: float = 2.0, dtype: DTypeLike = float
) -> NamedArray:
    """Draw vectors over `D`, the last axis, uniformly from the unit ball of the `p`-norm."""
    return _draw(axn.random.ball, key, shape, D, p, dtype)


# choosing from given elements
def choice(
    key: jax.Array,
    shape: AxisSpec,
    a: NamedArray,
    axis: AxisSelector,
    replace: bool = True,
    p: NamedArray | None = None,
) -> NamedArray:
    """Choose along any axis of `a`; its other axes follow `shape`."""
    return _draw(axn.random.choice, key, shape, a, axis, replace, p)


def categorical(
    key: jax.Array, logits: NamedArray, axis: AxisSelector, shape: AxisSpec | None = None
) -> NamedArray:
    """Draw indices along an axis of logits, as `jax.random.categorical` does for the array in storage order."""
    asked = () if shape is None else spec(shape, "categorical")
    if shape is not None and not {*logits.names} <= {*axn.axis_name((*asked, axis))}:
        return _draw(axn.random.categorical, key, logits, axis, shape)

    def draw() -> NamedArray:
        # The numbers depend on the position of the axis, which Axonym moves to the end.
        stored = broadcast_axis(logits, asked)
        if not stored.has_axis(axis):
            return axn.random.categorical(key, logits, axis, shape)
        at = stored.axis_indices(axis)
        rest = (*stored.axes[:at], *stored.axes[at + 1 :])
        return auto_sharded(axn.named(jax.random.categorical(key, stored.array, at), rest))

    return _draw(draw)


def permutation(
    key: jax.Array, x: NamedArray, axis: AxisSelector, independent: bool = False
) -> NamedArray:
    """Shuffle an array along an axis."""
    return _draw(axn.random.permutation, key, x, axis, independent=independent)


def generate_sharded(fn: Function, axis: AxisSelector | None = None) -> Function:
    """Draw with a separate key for each position of an axis, by default the first one that is mapped.

    The result has the axes of `shape`, in their order. If no axis is given or mapped, `fn` is called directly.
    """

    @functools.wraps(fn)
    def generate(key: jax.Array, shape: AxisSpec, *args: object, **kwargs: object) -> object:
        axes = spec(shape, "generate_sharded")
        split = _first_mapped(axes)
        if axis is not None:
            split = _named_one(axes, axn.axis_name(axis))
        if split is None:
            return fn(key, shape, *args, **kwargs)
        rest = axn.without_axes(axes, split)
        keys = jax.random.split(key, split.size)
        each = axn.vmap(lambda own, *more, **named: fn(own, rest, *more, **named), split)
        return _draw(lambda: each(keys, *args, **kwargs).rearrange((*axn.axis_name(axes), ...)))

    return generate


def _first_mapped(axes: tuple[Axis, ...]) -> Axis | None:
    for axis in axes:
        if physical_axis_name(axis) is not None:
            return axis
    return None


def _named_one(axes: tuple[Axis, ...], name: str) -> Axis:
    for axis in axes:
        if axis.name == name:
            return axis
    facts = f"asked for: {shown(*axes)}"
    raise AxisNotFoundError(
        message("generate_sharded", f"there is no axis {name!r} to split", facts)
    )
