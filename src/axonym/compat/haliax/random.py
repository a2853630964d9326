"""Random named arrays: the numbers of `jax.random` for the same key and sizes, laid out by the mapping."""

import functools
from collections.abc import Callable
from typing import Any

import jax

import axonym as axn
from axonym import Axis, AxisSelector, AxisSpec, NamedArray
from axonym.engine import context_mesh, shown, spec, transforming
from axonym.errors import AxisNotFoundError, message

from ._adapt import adapted
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


def _draw(sampler: Callable[..., NamedArray], *args: Any, **kwargs: Any) -> Any:
    """Draw, and lay the result out, on the mesh of `with mesh:` too, with an entry of the layout for each axis."""
    drawn = adapted(sampler)(*args, **kwargs)
    return drawn if transforming() and context_mesh() is not None else auto_sharded(drawn)


# without parameters
def _plain(sampler: Callable[..., NamedArray]) -> Callable[..., Any]:
    """Convert a sampler of `key`, `shape` and `dtype` to Haliax's, whose default dtype is `float`."""

    def draw(key: Any, shape: AxisSpec, dtype: Any = float) -> Any:
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
def bernoulli(key: Any, shape: AxisSpec, p: Any) -> Any:
    """Draw booleans that are true with probability `p`."""
    return _draw(axn.random.bernoulli, key, shape, p)


def beta(key: Any, shape: AxisSpec, a: Any, b: Any, dtype: Any = float) -> Any:
    """Draw from the beta distribution."""
    return _draw(axn.random.beta, key, shape, a, b, dtype)


def gamma(key: Any, shape: AxisSpec, a: Any, dtype: Any = float) -> Any:
    """Draw from the gamma distribution with scale 1."""
    return _draw(axn.random.gamma, key, shape, a, dtype)


def loggamma(key: Any, shape: AxisSpec, a: Any, dtype: Any = float) -> Any:
    """Draw the logarithms of `gamma`."""
    return _draw(axn.random.loggamma, key, shape, a, dtype)


def pareto(key: Any, shape: AxisSpec, b: Any, dtype: Any = float) -> Any:
    """Draw from the Pareto distribution."""
    return _draw(axn.random.pareto, key, shape, b, dtype)


def poisson(key: Any, shape: AxisSpec, lam: Any, dtype: Any = int) -> Any:
    """Draw counts with mean `lam`."""
    return _draw(axn.random.poisson, key, shape, lam, dtype)


def randint(key: Any, shape: AxisSpec, minval: Any, maxval: Any, dtype: Any = int) -> Any:
    """Draw integers uniformly from `minval` (included) to `maxval` (excluded)."""
    return _draw(axn.random.randint, key, shape, minval, maxval, dtype)


def t(key: Any, shape: AxisSpec, df: Any, dtype: Any = float) -> Any:
    """Draw from Student's t distribution."""
    return _draw(axn.random.t, key, shape, df, dtype)


def truncated_normal(key: Any, shape: AxisSpec, lower: Any, upper: Any, dtype: Any = float) -> Any:
    """Draw from the standard normal distribution between `lower` and `upper`."""
    return _draw(axn.random.truncated_normal, key, shape, lower, upper, dtype)


def uniform(
    key: Any, shape: AxisSpec, dtype: Any = float, minval: Any = 0.0, maxval: Any = 1.0
) -> Any:
    """Draw uniformly from `minval` (included) to `maxval` (excluded)."""
    return _draw(axn.random.uniform, key, shape, dtype, minval, maxval)


def weibull_min(
    key: Any, shape: AxisSpec, scale: Any, concentration: Any, dtype: Any = float
) -> Any:
    """Draw from the Weibull distribution."""
    return _draw(axn.random.weibull_min, key, shape, scale, concentration, dtype)


def ball(key: Any, shape: AxisSpec, D: Axis, p: float = 2.0, dtype: Any = float) -> Any:
    """Draw vectors over `D`, the last axis, uniformly from the unit ball of the `p`-norm."""
    return _draw(axn.random.ball, key, shape, D, p, dtype)


# choosing from given elements
def choice(
    key: Any,
    shape: AxisSpec,
    a: NamedArray,
    axis: AxisSelector,
    replace: bool = True,
    p: NamedArray | None = None,
) -> Any:
    """Choose along any axis of `a`; its other axes follow `shape`."""
    return _draw(axn.random.choice, key, shape, a, axis, replace, p)


def categorical(
    key: Any, logits: NamedArray, axis: AxisSelector, shape: AxisSpec | None = None
) -> Any:
    """Draw indices along an axis of logits: those of `jax.random.categorical` for the array as it is stored."""
    asked = () if shape is None else spec(shape, "categorical")
    if shape is not None and not {*logits.names} <= {*axn.axis_name((*asked, axis))}:
        return _draw(axn.random.categorical, key, logits, axis, shape)

    def draw() -> Any:
        # The numbers depend on the position of the axis, which Axonym moves to the end.
        stored = broadcast_axis(logits, asked)
        at: Any = stored.axis_indices(axis)
        if at is None:
            return axn.random.categorical(key, logits, axis, shape)
        rest = tuple(each for i, each in enumerate(stored.axes) if i != at)
        return auto_sharded(axn.named(jax.random.categorical(key, stored.array, at), rest))

    return _draw(draw)


def permutation(key: Any, x: NamedArray, axis: AxisSelector, independent: bool = False) -> Any:
    """Shuffle an array along an axis."""
    return _draw(axn.random.permutation, key, x, axis, independent=independent)


def generate_sharded(
    fn: Callable[..., Any], axis: AxisSelector | None = None
) -> Callable[..., Any]:
    """Draw with a separate key for each position of an axis, by default the first one that is mapped.

    The result has the axes of `shape`, in their order. If no axis is given or mapped, `fn` is called directly.
    """

    @functools.wraps(fn)
    def generate(key: Any, shape: AxisSpec, *args: Any, **kwargs: Any) -> Any:
        axes = spec(shape, "generate_sharded")
        name = axis.name if isinstance(axis, Axis) else axis
        if name is None:
            name = next((one.name for one in axes if physical_axis_name(one) is not None), None)
            if name is None:
                return fn(key, shape, *args, **kwargs)
        split = [one for one in axes if one.name == name]
        if not split:
            facts = f"asked for: {shown(*axes)}"
            raise AxisNotFoundError(
                message("generate_sharded", f"there is no axis {name!r} to split", facts)
            )
        rest = tuple(one for one in axes if one.name != name)
        keys = jax.random.split(key, split[0].size)
        each = axn.vmap(lambda own, *more, **named: fn(own, rest, *more, **named), split[0])
        return _draw(
            lambda: each(keys, *args, **kwargs).rearrange((*(one.name for one in axes), ...))
        )

    return generate
