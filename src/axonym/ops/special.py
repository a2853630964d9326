"""Special functions of single elements, or of pairs of elements by name: error, gamma and Bessel functions and others.

For any other function of `jax.scipy.special`, use `axn.nmap`, as in `axn.nmap(jax.scipy.special.expi)(x)`.
"""

from typing import TYPE_CHECKING

from jax.scipy import special

from ..engine import batched, checks, pointwise
from ..engine.core import Operand
from .examples import add_examples

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "betainc",
    "betaln",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfinv",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammaln",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_ndtr",
    "logit",
    "ndtr",
    "ndtri",
    "polygamma",
    "rel_entr",
    "xlog1py",
    "xlogy",
    "zeta",
]


def betainc(a: Operand, b: Operand, x: Operand) -> "NamedArray":
    """Return the regularised incomplete beta function of `a` and `b` at `x`, by name."""
    return _apply_locally(special.betainc, a, b, x)


def betaln(x: Operand, y: Operand) -> "NamedArray":
    """Return the logarithm of the absolute value of the beta function of each pair of elements, by name."""
    return _apply_locally(special.betaln, x, y)


def digamma(x: "NamedArray") -> "NamedArray":
    """Return the derivative of the logarithm of the gamma function of each element."""
    return pointwise.unary(special.digamma, x)


def entr(x: "NamedArray") -> "NamedArray":
    """Return -x log(x) of each element: zero at zero, minus infinity for negative numbers."""
    return pointwise.unary(special.entr, x)


def erf(x: "NamedArray") -> "NamedArray":
    """Return the error function of each element."""
    return pointwise.unary(special.erf, x)


def erfc(x: "NamedArray") -> "NamedArray":
    """Return one minus the error function of each element, precise where the result is near zero."""
    return pointwise.unary(special.erfc, x)


def erfinv(x: "NamedArray") -> "NamedArray":
    """Return the inverse of the error function of each element."""
    return pointwise.unary(special.erfinv, x)


def gamma(x: "NamedArray") -> "NamedArray":
    """Return the gamma function of each element."""
    return _apply_locally(special.gamma, x)


def gammainc(a: Operand, x: Operand) -> "NamedArray":
    """Return the regularised lower incomplete gamma function of order `a` at `x`, by name."""
    return _apply_locally(special.gammainc, a, x)


def gammaincc(a: Operand, x: Operand) -> "NamedArray":
    """Return the regularised upper incomplete gamma function, one minus `gammainc`, by name."""
    return _apply_locally(special.gammaincc, a, x)


def gammaln(x: "NamedArray") -> "NamedArray":
    """Return the logarithm of the absolute value of the gamma function of each element."""
    return _apply_locally(special.gammaln, x)


def i0e(x: "NamedArray") -> "NamedArray":
    """Return the modified Bessel function of order zero, times exp(-|x|), of each element."""
    return pointwise.unary(special.i0e, x)


def i1(x: "NamedArray") -> "NamedArray":
    """Return the modified Bessel function of the first kind and order one, of each element."""
    return pointwise.unary(special.i1, x)


def i1e(x: "NamedArray") -> "NamedArray":
    """Return the modified Bessel function of order one, times exp(-|x|), of each element."""
    return pointwise.unary(special.i1e, x)


def kl_div(p: Operand, q: Operand) -> "NamedArray":
    """Return p log(p / q) - p + q of each pair of elements, by name: the terms of the Kullback-Leibler divergence."""
    return pointwise.binary(special.kl_div, p, q)


def log_ndtr(x: "NamedArray") -> "NamedArray":
    """Return the logarithm of `ndtr` of each element, precise where `ndtr` is near zero."""
    return pointwise.unary(special.log_ndtr, x)


def logit(x: "NamedArray") -> "NamedArray":
    """Return log(x / (1 - x)), the inverse of the logistic sigmoid, of each element."""
    return pointwise.unary(special.logit, x)


def ndtr(x: "NamedArray") -> "NamedArray":
    """Return the distribution function of the standard normal distribution at each element."""
    return pointwise.unary(special.ndtr, x)


def ndtri(x: "NamedArray") -> "NamedArray":
    """Return the inverse of `ndtr`, a quantile of the standard normal distribution, for each element."""
    return _apply_locally(special.ndtri, x)


def polygamma(n: Operand, x: Operand) -> "NamedArray":
    """Return the derivative of order `n` of `digamma` at `x`, by name."""
    return pointwise.binary(special.polygamma, n, x)


def rel_entr(p: Operand, q: Operand) -> "NamedArray":
    """Return p log(p / q) of each pair of elements, by name; zero where `p` is zero."""
    return pointwise.binary(special.rel_entr, p, q)


def xlog1py(x: Operand, y: Operand) -> "NamedArray":
    """Return x log(1 + y) of each pair of elements, by name; zero where `x` is zero."""
    return pointwise.binary(special.xlog1py, x, y)


def xlogy(x: Operand, y: Operand) -> "NamedArray":
    """Return x log(y) of each pair of elements, by name; zero where `x` is zero."""
    return pointwise.binary(special.xlogy, x, y)


def zeta(x: Operand, q: Operand) -> "NamedArray":
    """Return the Hurwitz zeta function, the sum of (k + q)^-x over k = 0, 1, ..., by name; Riemann's for q = 1."""
    return pointwise.binary(special.zeta, x, q)


def _apply_locally(fn: checks.Function, *operands: Operand) -> "NamedArray":
    """Apply a function that some releases of JAX do not support on Explicit axes, where the compiler decides."""
    return batched.apply_batched(fn, operands, [()] * len(operands), ())


add_examples({name: globals()[name] for name in __all__})
