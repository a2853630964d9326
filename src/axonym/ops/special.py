"""Special functions of single elements, or of pairs of elements by name: the error function, gamma, Bessel and others.

Any other function of `jax.scipy.special` is reached by `axn.nmap`, as in `axn.nmap(jax.scipy.special.expi)(x)`.
"""

from typing import TYPE_CHECKING, Any

from jax.scipy import special

from ..core import Operand
from . import _batch, _lift

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
    """Return the incomplete beta function of `a` and `b`, regularised to reach one, at `x`, by name."""
    return _local(special.betainc, a, b, x)


def betaln(x: Operand, y: Operand) -> "NamedArray":
    """Return the logarithm of the absolute value of the beta function of each pair of elements, by name."""
    return _local(special.betaln, x, y)


def digamma(x: "NamedArray") -> "NamedArray":
    """Return the derivative of the logarithm of the gamma function of each element."""
    return _lift.unary(special.digamma, x)


def entr(x: "NamedArray") -> "NamedArray":
    """Return -x log(x), which is zero at zero and minus infinity below, of each element."""
    return _lift.unary(special.entr, x)


def erf(x: "NamedArray") -> "NamedArray":
    """Return the error function of each element."""
    return _lift.unary(special.erf, x)


def erfc(x: "NamedArray") -> "NamedArray":
    """Return one minus the error function of each element, exact where that is near zero."""
    return _lift.unary(special.erfc, x)


def erfinv(x: "NamedArray") -> "NamedArray":
    """Return the inverse of the error function of each element."""
    return _lift.unary(special.erfinv, x)


def gamma(x: "NamedArray") -> "NamedArray":
    """Return the gamma function of each element."""
    return _local(special.gamma, x)


def gammainc(a: Operand, x: Operand) -> "NamedArray":
    """Return the lower incomplete gamma function of order `a`, regularised to reach one, at `x`, by name."""
    return _local(special.gammainc, a, x)


def gammaincc(a: Operand, x: Operand) -> "NamedArray":
    """Return one minus `gammainc`, exact where that is near zero, by name."""
    return _local(special.gammaincc, a, x)


def gammaln(x: "NamedArray") -> "NamedArray":
    """Return the logarithm of the absolute value of the gamma function of each element."""
    return _local(special.gammaln, x)


def i0e(x: "NamedArray") -> "NamedArray":
    """Return the modified Bessel function of order zero, times exp(-|x|), of each element."""
    return _lift.unary(special.i0e, x)


def i1(x: "NamedArray") -> "NamedArray":
    """Return the modified Bessel function of the first kind and order one, of each element."""
    return _lift.unary(special.i1, x)


def i1e(x: "NamedArray") -> "NamedArray":
    """Return the modified Bessel function of order one, times exp(-|x|), of each element."""
    return _lift.unary(special.i1e, x)


def kl_div(p: Operand, q: Operand) -> "NamedArray":
    """Return p log(p / q) - p + q of each pair of elements, by name: a divergence before its sum."""
    return _lift.binary(special.kl_div, p, q)


def log_ndtr(x: "NamedArray") -> "NamedArray":
    """Return the logarithm of `ndtr` of each element, exact where that is near zero."""
    return _lift.unary(special.log_ndtr, x)


def logit(x: "NamedArray") -> "NamedArray":
    """Return log(x / (1 - x)), the inverse of the logistic sigmoid, of each element."""
    return _lift.unary(special.logit, x)


def ndtr(x: "NamedArray") -> "NamedArray":
    """Return the probability that a standard normal number is smaller, of each element."""
    return _lift.unary(special.ndtr, x)


def ndtri(x: "NamedArray") -> "NamedArray":
    """Return the inverse of `ndtr`, a quantile of the standard normal distribution, of each element."""
    return _local(special.ndtri, x)


def polygamma(n: Operand, x: Operand) -> "NamedArray":
    """Return the derivative of order `n` of `digamma` at `x`, by name."""
    return _lift.binary(special.polygamma, n, x)


def rel_entr(p: Operand, q: Operand) -> "NamedArray":
    """Return p log(p / q) of each pair of elements, by name, which is zero where `p` is."""
    return _lift.binary(special.rel_entr, p, q)


def xlog1py(x: Operand, y: Operand) -> "NamedArray":
    """Return x log(1 + y) of each pair of elements, by name, which is zero where `x` is."""
    return _lift.binary(special.xlog1py, x, y)


def xlogy(x: Operand, y: Operand) -> "NamedArray":
    """Return x log(y) of each pair of elements, by name, which is zero where `x` is."""
    return _lift.binary(special.xlogy, x, y)


def zeta(x: Operand, q: Operand) -> "NamedArray":
    """Return the Hurwitz zeta function, the sum of (k + q)^-x over k = 0, 1, ..., by name; q = 1 is Riemann's."""
    return _lift.binary(special.zeta, x, q)


def _local(fn: Any, *operands: Any) -> "NamedArray":
    """Apply a function for whose steps a release of JAX has no rule on Explicit axes; in it, the compiler decides."""
    return _batch.batched(fn, operands, [()] * len(operands), ())
