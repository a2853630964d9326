"""Draw vectors and matrices, and choose or shuffle given elements."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import Axis, AxisSelector, AxisSpec, axis_size, shown, spec
from ..base.calls import explain_calls
from ..engine import auto
from ..engine.core import Operand, facts
from ..errors import ArgumentError, OperandError, message
from ..layout import constraints, explicit
from .draw import Key, alone, axis_of, draw, one_key

__all__ = [
    "ball",
    "categorical",
    "choice",
    "dirichlet",
    "multinomial",
    "multivariate_normal",
    "orthogonal",
    "permutation",
]

Shape: TypeAlias = tuple[int, ...]
Dtype: TypeAlias = DTypeLike | None


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
        shape: the axes of the result: all other axes of `logits`, by default, and perhaps more. The numbers are the
            same as in `jax.random` with the categories as the last axis, wherever they are in `logits`.

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

    # Each draw is a row along the other axes, which are the last ones of the result.
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
    shuffled = explicit.reshard_like(shuffled, x.array)
    return NamedArray(constraints.shard_result(shuffled, x.names), x.names)


def _permutation(key: jax.Array, *, shape: Shape) -> jax.Array:
    return jax.random.permutation(key, shape[0])


explain_calls(globals(), __all__)
