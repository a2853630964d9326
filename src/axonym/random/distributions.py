"""Draw numbers from distributions, independently at each position.

Parameters of distributions may be named arrays, matched with `shape` by name.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import AxisSpec
from ..base.calls import explain_calls
from ..engine.core import Operand
from .draw import Key, draw

__all__ = [
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "cauchy",
    "chisquare",
    "double_sided_maxwell",
    "exponential",
    "f",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "normal",
    "pareto",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
]

Shape: TypeAlias = tuple[int, ...]
Dtype: TypeAlias = DTypeLike | None


def bits(key: Key, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw unsigned integers of uniform bits.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        dtype: an unsigned dtype; by default `uint32`, or `uint64` with `jax_enable_x64`.

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

    Examples:
        >>> axn.random.rademacher(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return draw(jax.random.rademacher, key, shape, dtype=dtype)


def bernoulli(key: Key, shape: AxisSpec, p: Operand = 0.5) -> NamedArray:
    """Draw booleans that are true with probability `p`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        p: the probability of True; a number, or a named array with axes of `shape`.

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
        maxval: the largest number plus one; a number, or a named array with axes of `shape`.
        dtype: an integer dtype, by default that of JAX.

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

    Examples:
        >>> axn.random.wald(jax.random.key(0), axn.Axis("x", 3), 1.0).shape
        {'x': 3}
    """
    return draw(jax.random.wald, key, shape, mean, dtype=dtype)


def weibull_min(
    key: Key, shape: AxisSpec, scale: Operand, concentration: Operand, dtype: Dtype = None
) -> NamedArray:
    """Draw from the Weibull distribution with the given scale and shape parameter `concentration`.

    Args:
        key: a key; a named array of keys draws for each of its positions.
        shape: the axes of the result.
        scale: the scale, positive; a number, or a named array with axes of `shape`.
        concentration: the shape parameter, positive; a number, or a named array with axes of `shape`.
        dtype: a float dtype, by default that of JAX.

    Examples:
        >>> axn.random.weibull_min(jax.random.key(0), axn.Axis("x", 3), 1.0, 2.0).shape
        {'x': 3}
    """
    return draw(jax.random.weibull_min, key, shape, scale, concentration, dtype=dtype)


explain_calls(globals(), __all__)
