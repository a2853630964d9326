"""Random named arrays. Values depend on the key and the axes only, never on the layout.

Results are laid out by the current axis mapping, so that a large parameter is never whole on one device. Parameters of
distributions may be named arrays, matched with `shape` by name. Each function draws the same numbers as its namesake
in `jax.random`, for the same key and sizes.
"""

from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .array import NamedArray
from .axis import Axis, AxisSelector, AxisSpec, axis_size, shown, spec
from .core import Core, Operand, facts
from .draw import Key, alone, axis_of, draw, one_key
from .engine import auto, batched
from .errors import ArgumentError, OperandError, message
from .layout import constraints, explicit

__all__ = [
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
]

Shape: TypeAlias = tuple[int, ...]
Dtype: TypeAlias = DTypeLike | None


if not TYPE_CHECKING:  # type checkers report names that are not there

    def __getattr__(name: str) -> object:
        from .foreign import missing

        raise missing(__name__, name)


# keys
def split(key: Key, axis: AxisSpec) -> NamedArray:
    """Split a key into keys over one or more axes; `axn.vmap` and `axn.scan` pass one to each position.

    It is a plain key there, for `jax.random` too, if the keys are an argument of the function by themselves.

    Args:
        key: the key; legacy keys, which are vectors of integers, become typed keys.
        axis: the axes over which to split, with their sizes.

    Returns:
        Keys with these axes.

    Examples:
        >>> Layers, Embed = axn.make_axes(layers=2, embed=3)
        >>> keys = axn.random.split(jax.random.key(0), Layers)
        >>> axn.vmap(lambda key: axn.random.normal(key, Embed), Layers)(keys).axes
        (Axis(name='layers', size=2), Axis(name='embed', size=3))
    """
    return draw(_split, _typed("split", key), axis)


def _split(key: jax.Array, *, shape: Shape) -> jax.Array:
    return jax.random.split(key, shape)


def fold_in(key: Key, data: Operand) -> NamedArray:
    """Make a new key for each number of `data`.

    Args:
        key: a key, or a named array of keys.
        data: an integer, or a named array of integers; its axes are matched with those of `key` by name.

    Returns:
        Keys with the axes of both.

    Examples:
        >>> axn.random.fold_in(jax.random.key(0), axn.arange(axn.Axis("step", 3))).shape
        {'step': 3}
    """
    key = _typed("fold_in", key)
    if not isinstance(key, Core) and not isinstance(data, Core) and not jnp.ndim(data):
        key = NamedArray(key, ())
    return batched.batched(_fold_in, [key, data], [(), ()], (), each=True)


def _fold_in(key: jax.Array, data: jax.Array) -> jax.Array:
    return jax.random.fold_in(key, data)


def _typed(function: str, key: Key) -> Key:
    """Convert a legacy key, a vector of integers, to a typed key."""
    if isinstance(key, Core) or jnp.issubdtype(one_key(function, key).dtype, jax.dtypes.prng_key):
        return key
    typed: jax.Array = jax.random.wrap_key_data(jnp.asarray(key))
    return typed


# without parameters
def bits(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw unsigned integers of uniform bits.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: an unsigned dtype; by default `uint32`, or `uint64` with `jax_enable_x64`.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.bits(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.bits, key, shape, dtype=dtype)


def cauchy(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the standard Cauchy distribution.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.cauchy(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.cauchy, key, shape, dtype=dtype)


def exponential(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the exponential distribution with rate 1.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.exponential(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.exponential, key, shape, dtype=dtype)


def gumbel(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the standard Gumbel distribution.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.gumbel(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.gumbel, key, shape, dtype=dtype)


def laplace(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the Laplace distribution with location 0 and scale 1.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.laplace(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.laplace, key, shape, dtype=dtype)


def logistic(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the logistic distribution with location 0 and scale 1.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.logistic(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.logistic, key, shape, dtype=dtype)


def maxwell(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the Maxwell distribution with scale 1.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.maxwell(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.maxwell, key, shape, dtype=dtype)


def normal(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the normal distribution with mean 0 and standard deviation 1.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.normal(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.normal, key, shape, dtype=dtype)


def rademacher(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw -1 or 1, each with probability one half.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: a dtype, by default that of integers in JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.rademacher(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.rademacher, key, shape, dtype=dtype)


# with parameters, one for each position
def bernoulli(key: Key, shape: AxisSpec, p: Operand = 0.5) -> NamedArray:
    """Draw booleans that are true with probability `p`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        p: the probability of True; a number, or a named array with axes of `shape`.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.bernoulli(jax.random.key(0), axn.Axis("x", 3), 0.5).shape
        {'x': 3}
    """
    return draw(jax.random.bernoulli, key, shape, p)


def beta(
    key: Key, shape: AxisSpec, a: Operand, b: Operand, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw from the beta distribution with the two shape parameters `a` and `b`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        a: the first shape parameter, positive; a number, or a named array with axes of `shape`.
        b: the second one; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.beta(jax.random.key(0), axn.Axis("x", 3), 2.0, 3.0).shape
        {'x': 3}
    """
    return draw(jax.random.beta, key, shape, a, b, dtype=dtype)


def binomial(
    key: Key, shape: AxisSpec, n: Operand, p: Operand, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw the number of successes in `n` trials with probability `p`; counts are floats.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        n: the number of trials; a number, or a named array with axes of `shape`.
        p: the probability of success in a trial; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.binomial(jax.random.key(0), axn.Axis("x", 3), 10, 0.5).shape
        {'x': 3}
    """
    return draw(jax.random.binomial, key, shape, n, p, dtype=dtype)


def chisquare(key: Key, shape: AxisSpec, df: Operand, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the chi-square distribution with `df` degrees of freedom.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        df: the degrees of freedom, positive; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.chisquare(jax.random.key(0), axn.Axis("x", 3), 2.0).shape
        {'x': 3}
    """
    return draw(jax.random.chisquare, key, shape, df, dtype=dtype)


def double_sided_maxwell(
    key: Key, shape: AxisSpec, loc: Operand, scale: Operand, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw from the Maxwell distribution with a random sign, scaled by `scale` and shifted by `loc`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        loc: the location; a number, or a named array with axes of `shape`.
        scale: the scale; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.double_sided_maxwell(jax.random.key(0), axn.Axis("x", 3), 0.0, 1.0).shape
        {'x': 3}
    """
    return draw(_double_sided_maxwell, key, shape, loc, scale, dtype=dtype)


def _double_sided_maxwell(
    key: jax.Array, loc: jax.Array, scale: jax.Array, *, shape: Shape, dtype: Dtype
) -> jax.Array:
    # JAX would append the dimensions of its parameters to the shape.
    return jax.random.double_sided_maxwell(key, 0, 1, shape, dtype) * scale + loc


def f(
    key: Key, shape: AxisSpec, dfnum: Operand, dfden: Operand, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw from the F distribution with `dfnum` and `dfden` degrees of freedom.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dfnum: the degrees of freedom of the numerator; a number, or a named array with axes of `shape`.
        dfden: those of the denominator; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.f(jax.random.key(0), axn.Axis("x", 3), 2.0, 3.0).shape
        {'x': 3}
    """
    return draw(_f, key, shape, dfnum, dfden, dtype=dtype)


def _f(
    key: jax.Array, dfnum: jax.Array, dfden: jax.Array, *, shape: Shape, dtype: Dtype
) -> jax.Array:
    # JAX requires parameters of the full shape here.
    return jax.random.f(
        key, jnp.broadcast_to(dfnum, shape), jnp.broadcast_to(dfden, shape), shape, dtype
    )


def gamma(key: Key, shape: AxisSpec, a: Operand, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the gamma distribution with shape parameter `a` and scale 1.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        a: the shape parameter, positive; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.gamma(jax.random.key(0), axn.Axis("x", 3), 2.0).shape
        {'x': 3}
    """
    return draw(jax.random.gamma, key, shape, a, dtype=dtype)


def generalized_normal(
    key: Key, shape: AxisSpec, p: Operand, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw with a density proportional to `exp(-abs(x) ** p)`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        p: the exponent of the density, a number or a named array with axes of `shape`. At 2 it is a normal
            distribution, at 1 a Laplace distribution.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.generalized_normal(jax.random.key(0), axn.Axis("x", 3), 2.0).shape
        {'x': 3}
    """
    return draw(jax.random.generalized_normal, key, shape, p, dtype=dtype)


def geometric(key: Key, shape: AxisSpec, p: Operand, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw the number of trials up to the first success, each with probability `p`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        p: the probability of success in a trial; a number, or a named array with axes of `shape`.
        dtype: an integer dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.geometric(jax.random.key(0), axn.Axis("x", 3), 0.5).shape
        {'x': 3}
    """
    return draw(jax.random.geometric, key, shape, p, dtype=dtype)


def loggamma(key: Key, shape: AxisSpec, a: Operand, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw the logarithms of `gamma`, precise for small `a` too.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        a: the shape parameter, positive; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.loggamma(jax.random.key(0), axn.Axis("x", 3), 2.0).shape
        {'x': 3}
    """
    return draw(jax.random.loggamma, key, shape, a, dtype=dtype)


def lognormal(
    key: Key, shape: AxisSpec, sigma: Operand = 1.0, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw from the log-normal distribution: exponentials of normal numbers with standard deviation `sigma`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        sigma: the standard deviation of the logarithm; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.lognormal(jax.random.key(0), axn.Axis("x", 3), 0.5).shape
        {'x': 3}
    """
    return draw(jax.random.lognormal, key, shape, sigma, dtype=dtype)


def pareto(key: Key, shape: AxisSpec, b: Operand, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the Pareto distribution with minimum 1 and shape parameter `b`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        b: the shape parameter, positive; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.pareto(jax.random.key(0), axn.Axis("x", 3), 2.0).shape
        {'x': 3}
    """
    return draw(jax.random.pareto, key, shape, b, dtype=dtype)


def poisson(key: Key, shape: AxisSpec, lam: Operand, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw counts from the Poisson distribution with mean `lam`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        lam: the mean; a number, or a named array with axes of `shape`.
        dtype: an integer dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.poisson(jax.random.key(0), axn.Axis("x", 3), 3.0).shape
        {'x': 3}
    """
    return draw(jax.random.poisson, key, shape, lam, dtype=dtype)


def randint(
    key: Key, shape: AxisSpec, minval: Operand, maxval: Operand, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw integers uniformly from `minval` (included) to `maxval` (excluded).

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        minval: the smallest number; a number, or a named array with axes of `shape`.
        maxval: the first number beyond the largest one; a number, or a named array with axes of `shape`.
        dtype: an integer dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.randint(jax.random.key(0), axn.Axis("x", 3), 0, 10).shape
        {'x': 3}
    """
    return draw(_randint, key, shape, minval, maxval, dtype=dtype)


def _randint(
    key: jax.Array, minval: jax.Array, maxval: jax.Array, *, shape: Shape, dtype: Dtype
) -> jax.Array:
    return jax.random.randint(key, shape, minval, maxval, dtype)


def rayleigh(
    key: Key, shape: AxisSpec, scale: Operand, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw from the Rayleigh distribution with scale `scale`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        scale: the scale, positive; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.rayleigh(jax.random.key(0), axn.Axis("x", 3), 1.0).shape
        {'x': 3}
    """
    return draw(jax.random.rayleigh, key, shape, scale, dtype=dtype)


def t(key: Key, shape: AxisSpec, df: Operand, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from Student's t distribution with `df` degrees of freedom.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        df: the degrees of freedom, positive; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.t(jax.random.key(0), axn.Axis("x", 3), 3.0).shape
        {'x': 3}
    """
    return draw(jax.random.t, key, shape, df, dtype=dtype)


def triangular(
    key: Key,
    shape: AxisSpec,
    left: Operand,
    mode: Operand,
    right: Operand,
    dtype: DTypeLike | None = None,
) -> NamedArray:
    """Draw from the triangular distribution between `left` and `right` with its peak at `mode`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        left: the smallest value; a number, or a named array with axes of `shape`.
        mode: the most probable value; a number, or a named array with axes of `shape`.
        right: the largest value; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.triangular(jax.random.key(0), axn.Axis("x", 3), 0.0, 0.5, 1.0).shape
        {'x': 3}
    """
    return draw(jax.random.triangular, key, shape, left, mode, right, dtype=dtype)


def truncated_normal(
    key: Key, shape: AxisSpec, lower: Operand, upper: Operand, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw from the standard normal distribution between `lower` and `upper`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        lower: the smallest value; a number, or a named array with axes of `shape`.
        upper: the largest value; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.truncated_normal(jax.random.key(0), axn.Axis("x", 3), -2.0, 2.0).shape
        {'x': 3}
    """
    return draw(jax.random.truncated_normal, key, shape, lower, upper, dtype=dtype)


def uniform(
    key: Key,
    shape: AxisSpec,
    dtype: DTypeLike | None = None,
    minval: Operand = 0.0,
    maxval: Operand = 1.0,
) -> NamedArray:
    """Draw uniformly from `minval` (included) to `maxval` (excluded).

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: a float dtype, by default that of JAX.
        minval: the smallest value; a number, or a named array with axes of `shape`.
        maxval: the bound that is never reached; a number, or a named array with axes of `shape`.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.uniform(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(_uniform, key, shape, minval, maxval, dtype=dtype)


def _uniform(
    key: jax.Array, minval: jax.Array, maxval: jax.Array, *, shape: Shape, dtype: Dtype
) -> jax.Array:
    return jax.random.uniform(key, shape, dtype, minval, maxval)


def wald(key: Key, shape: AxisSpec, mean: Operand, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the Wald distribution with mean `mean` and shape parameter 1.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        mean: the mean, positive; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.wald(jax.random.key(0), axn.Axis("x", 3), 1.0).shape
        {'x': 3}
    """
    return draw(jax.random.wald, key, shape, mean, dtype=dtype)


def weibull_min(
    key: Key,
    shape: AxisSpec,
    scale: Operand,
    concentration: Operand,
    dtype: DTypeLike | None = None,
) -> NamedArray:
    """Draw from the Weibull distribution with the given scale and shape parameter `concentration`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        scale: the scale, positive; a number, or a named array with axes of `shape`.
        concentration: the shape parameter, positive; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Returns:
        Independent draws, with the axes of `shape`.

    Examples:
        >>> axn.random.weibull_min(jax.random.key(0), axn.Axis("x", 3), 1.0, 2.0).shape
        {'x': 3}
    """
    return draw(jax.random.weibull_min, key, shape, scale, concentration, dtype=dtype)


# vectors and matrices
def ball(
    key: Key, shape: AxisSpec, D: Axis, p: float = 2.0, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw vectors uniformly from the unit ball of the `p`-norm.

    Args:
        key: the key.
        shape: the axes of the result except `D`, which comes last.
        D: the axis of the vectors.
        p: the order of the norm.
        dtype: a float dtype, by default that of JAX.

    Examples:
        >>> axn.random.ball(jax.random.key(0), axn.Axis("x", 3), axn.Axis("d", 2)).shape
        {'x': 3, 'd': 2}
    """
    (vector,) = spec(D, "ball")
    return draw(_ball, key, shape, last=(vector,), d=vector.size, p=p, dtype=dtype)


def _ball(key: jax.Array, *, shape: Shape, d: int, p: float, dtype: Dtype) -> jax.Array:
    drawn: jax.Array = jax.random.ball(key, d, p, shape, dtype)
    return drawn


def dirichlet(
    key: Key, shape: AxisSpec, alpha: NamedArray, axis: AxisSelector, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw vectors over `axis` from a Dirichlet distribution: positive numbers that sum to 1.

    Args:
        key: the key.
        shape: the axes of the result except `axis`, which comes last.
        alpha: axes {axis, ...}; the concentration of each element.
        axis: the axis over which a draw sums to 1.
        dtype: a float dtype.

    Examples:
        >>> alpha = axn.named([1.0, 2.0, 3.0], "topic")
        >>> axn.random.dirichlet(jax.random.key(0), axn.Axis("doc", 5), alpha, "topic").shape
        {'doc': 5, 'topic': 3}
    """
    vector = axis_of("dirichlet", alpha, axis)
    return draw(
        jax.random.dirichlet,
        key,
        shape,
        alpha,
        cores=((vector.name,),),
        last=(vector,),
        dtype=dtype,
    )


def multinomial(
    key: Key,
    shape: AxisSpec,
    n: Operand,
    p: NamedArray,
    axis: AxisSelector,
    dtype: DTypeLike | None = None,
) -> NamedArray:
    """Draw how often each category along `axis` occurs in `n` trials; counts are floats.

    Args:
        key: the key.
        shape: the axes of the result except `axis`, which comes last.
        n: the number of trials.
        p: axes {axis, ...}; the probabilities of the categories, which sum to 1.
        axis: the categories.
        dtype: a float dtype.

    Examples:
        >>> p = axn.named([0.5, 0.3, 0.2], "side")
        >>> axn.random.multinomial(jax.random.key(0), axn.Axis("x", 4), 10, p, "side").shape
        {'x': 4, 'side': 3}
    """
    categories = axis_of("multinomial", p, axis)
    return draw(
        _multinomial,
        key,
        shape,
        n,
        p,
        cores=((), (categories.name,)),
        last=(categories,),
        dtype=dtype,
    )


def _multinomial(
    key: jax.Array, n: jax.Array, p: jax.Array, *, shape: Shape, dtype: Dtype
) -> jax.Array:
    # The meaning of `shape` in JAX differs between its versions.
    every = jnp.broadcast_to(p, (*shape, p.shape[-1]))
    drawn: jax.Array = jax.random.multinomial(key, n, every, dtype=dtype)
    return drawn


def multivariate_normal(
    key: Key,
    shape: AxisSpec,
    mean: NamedArray,
    cov: NamedArray,
    axis: AxisSelector,
    other: AxisSelector,
    dtype: DTypeLike | None = None,
    method: str = "cholesky",
) -> NamedArray:
    """Draw vectors over `axis` from a normal distribution.

    Args:
        key: the key.
        shape: the axes of the result except `axis`, which comes last.
        mean: axes {axis, ...}.
        cov: axes {axis, other, ...}; symmetric, positive semidefinite matrices.
        axis: the axis of the vectors.
        other: the second axis of the covariance.
        dtype: a float dtype.
        method: the factorisation: `"cholesky"`, or `"eigh"` or `"svd"` for a covariance that may be singular.

    Examples:
        >>> X = axn.Axis("x", 2)
        >>> mean, cov = axn.zeros(X), axn.named([[2.0, 1.0], [1.0, 2.0]], ("x", "y"))
        >>> axn.random.multivariate_normal(jax.random.key(0), axn.Axis("sample", 5), mean, cov, "x", "y").shape
        {'sample': 5, 'x': 2}
    """
    vector = axis_of("multivariate_normal", mean, axis)
    rows = axis_of("multivariate_normal", cov, axis)
    columns = axis_of("multivariate_normal", cov, other)
    if {rows.size, columns.size} != {vector.size} or rows.name == columns.name:
        found = f"{shown(rows)} and {shown(columns)}"
        problem = f"the covariance needs two axes of size {vector.size}, not {found}"
        raise OperandError(message("multivariate_normal", problem, f"mean has: {facts(mean)}"))
    if method not in ("cholesky", "eigh", "svd"):
        problem = f"method must be 'cholesky', 'eigh' or 'svd', not {method!r}"
        raise ArgumentError(message("multivariate_normal", problem))
    cores = (vector.name,), (rows.name, columns.name)
    sampler = jax.random.multivariate_normal
    return draw(
        sampler, key, shape, mean, cov, cores=cores, last=(vector,), dtype=dtype, method=method
    )


def orthogonal(
    key: Key, shape: AxisSpec, rows: Axis, columns: Axis, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw uniformly distributed orthogonal matrices over `rows` and `columns`, the last two axes.

    Args:
        key: the key.
        shape: the axes of the result before the last two.
        rows: the axis of the rows.
        columns: that of the columns. If the sizes differ, the vectors along the larger axis are orthonormal.
        dtype: a float dtype, by default that of JAX.

    Examples:
        >>> Row, Column = axn.make_axes(row=2, column=2)
        >>> axn.random.orthogonal(jax.random.key(0), (), Row, Column).shape
        {'row': 2, 'column': 2}
    """
    matrix = spec((rows, columns), "orthogonal")
    n, m = (axis.size for axis in matrix)
    return draw(_orthogonal, key, shape, last=matrix, n=n, m=m, dtype=dtype)


def _orthogonal(key: jax.Array, *, shape: Shape, n: int, m: int, dtype: Dtype) -> jax.Array:
    if dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4:
        # There is no factorisation of matrices in narrower floats.
        return jax.random.orthogonal(key, n, shape, jnp.float32, m).astype(dtype)
    return jax.random.orthogonal(key, n, shape, dtype, m)


# choosing from given elements
def categorical(
    key: Key, logits: NamedArray, axis: AxisSelector, shape: AxisSpec | None = None
) -> NamedArray:
    """Draw an index along `axis` with probabilities `softmax(logits, axis)`.

    Args:
        key: the key.
        logits: axes {axis, ...}.
        axis: the categories.
        shape: the axes of the result: all other axes of `logits`, by default, and perhaps more. The numbers are those
            that `jax.random` draws if the categories are the last axis, wherever they are in `logits`.

    Examples:
        >>> logits = axn.zeros(axn.make_axes(batch=2, vocab=5))
        >>> axn.random.categorical(jax.random.key(0), logits, "vocab", axn.make_axes(sample=3, batch=2)).shape
        {'sample': 3, 'batch': 2}
    """
    categories = axis_of("categorical", logits, axis)
    if shape is None:
        shape = tuple(own for own in logits.axes if own != categories)
    return draw(_categorical, key, shape, logits, cores=((categories.name,),))


def _categorical(key: jax.Array, logits: jax.Array, *, shape: Shape) -> jax.Array:
    return jax.random.categorical(key, logits, axis=-1, shape=shape)


def choice(
    key: Key,
    shape: AxisSpec,
    a: NamedArray | Axis,
    axis: AxisSelector | None = None,
    replace: bool = True,
    p: NamedArray | None = None,
) -> NamedArray:
    """Choose elements or slices of an array at random positions along an axis; for an `Axis`, choose positions.

    Args:
        key: the key.
        shape: the axes of the choices; the other axes of `a` follow.
        a: the array, or the axis whose positions are chosen.
        axis: the axis of `a` to choose along; not needed if it is the only one.
        replace: whether a position may be chosen twice.
        p: axes {axis}; the probability of each position, uniform by default.

    Raises:
        ArgumentError: if there are fewer positions than choices, without `replace`.

    Examples:
        >>> a = axn.named([[1, 2, 3], [4, 5, 6]], ("row", "column"))
        >>> axn.random.choice(jax.random.key(0), axn.Axis("sample", 5), a, "column").shape
        {'sample': 5, 'row': 2}
    """
    along = a if isinstance(a, Axis) else axis_of("choice", a, axis)
    asked = spec(shape, "choice")
    count = axis_size(asked)
    if count > along.size and (not replace or not along.size):
        how = "" if replace else " without replacement"
        raise ArgumentError(message("choice", f"cannot choose {count} of {shown(along)}{how}"))
    if p is not None:
        axis_of("choice", p, along)
        alone("choice", "p must have exactly one axis", p, 1)
    if isinstance(a, Axis):
        a = NamedArray(jnp.arange(a.size), a)
    alone("choice", "the array has anonymous dimensions", a, len(a.names))

    rest = tuple(own for own in a.axes if own != along)
    cores = (along.name, *(own.name for own in rest)), (along.name,)
    parameters = [a]
    if p is not None:
        parameters.append(p)
    return draw(_choice, key, asked, *parameters, cores=cores, last=rest, replace=replace)


def _choice(
    key: jax.Array, a: jax.Array, p: jax.Array | None = None, *, shape: Shape, replace: bool
) -> jax.Array:
    # Neither the array nor the weights line up with other axes: their other dimensions have size 1.
    a = a.reshape(a.shape[len(shape) :])
    if p is not None:
        p = p.reshape(-1)
    at = jax.random.choice(key, a.shape[0], shape, replace, p)
    return jnp.take(a, at, axis=0)


def permutation(
    key: Key, x: NamedArray | Axis, axis: AxisSelector | None = None, *, independent: bool = False
) -> NamedArray:
    """Shuffle an array along an axis; for an `Axis`, shuffle its positions.

    Args:
        key: the key.
        x: the array, or the axis.
        axis: the axis to shuffle along; not needed if it is the only one.
        independent: shuffle each vector along the axis independently.

    Examples:
        >>> axn.random.permutation(jax.random.key(0), axn.Axis("x", 4)).shape
        {'x': 4}
    """
    if isinstance(x, Axis):
        return draw(_permutation, key, x)
    along = axis_of("permutation", x, axis)
    at = x.array.ndim - len(x.names) + x.names.index(along.name)
    # On a mesh with Explicit axes JAX gathers only whole vectors, and sorts them next to bits that it draws whole.
    whole = auto.whole(x.array, range(x.array.ndim) if independent else (at,))
    shuffled = jax.random.permutation(one_key("permutation", key), whole, at, independent)
    shuffled = explicit.laid_out_like(shuffled, x.array)
    return NamedArray(constraints.lay_out(shuffled, x.names), x.names)


def _permutation(key: jax.Array, *, shape: Shape) -> jax.Array:
    return jax.random.permutation(key, shape[0])
