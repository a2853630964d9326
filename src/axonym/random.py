"""Random named arrays. Values depend on the key and the axes alone, never on how the array is laid out.

Results are laid out by the current axis mapping, so that a large parameter is never whole on one device.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.typing import DTypeLike

from . import layout
from .array import NamedArray
from .axis import AxisSelector, AxisSpec, axis_name, spec
from .core import Core, Operand, facts, shape_of
from .errors import AxisNotFoundError, OperandError, message, suggestion
from .ops import _lift, shape

__all__ = ["bernoulli", "categorical", "gumbel", "normal", "permutation", "randint", "truncated_normal", "uniform"]


def _draw(
    sampler: Callable[..., jax.Array], key: jax.Array, axes: AxisSpec, *parameters: Operand, **options: Any
) -> NamedArray:
    """Draw over axes; parameters that are named arrays line up with them by name."""
    function = sampler.__name__.lstrip("_")
    given = spec(axes, function)
    names, sizes = tuple(axis.name for axis in given), tuple(axis.size for axis in given)
    arrays = []
    for parameter in parameters:
        if isinstance(parameter, Core):
            (array,), own = parameter.node
            for name in own:
                if name not in names:
                    problem = f"a parameter has axis {name!r}, which the result would not have"
                    lines = f"parameter has: {facts(parameter)}", f"asked for: {', '.join(map(str, given))}"
                    raise AxisNotFoundError(message(function, problem, *lines, hint=suggestion(name, names)))
            _lift.one_size(function, [names, own], [sizes, shape_of(function, array, own)])
            parameter = _lift.lined_up(array, own, names)
        elif jax.numpy.ndim(parameter):
            problem = f"a plain parameter of shape {jax.numpy.shape(parameter)} meets named axes {', '.join(names)}"
            raise OperandError(message(function, problem, hint="name it first: axn.named(array, (...))"))
        arrays.append(parameter)
    sharding = layout.explicit_sharding(names, sizes)
    if sharding is not None:
        options["out_sharding"] = sharding
    return NamedArray(layout.lay_out(sampler(key, *arrays, shape=sizes, **options), names), names)


def _standard(key: jax.Array, sampler: Any, axes: AxisSpec, dtype: DTypeLike | None) -> NamedArray:
    return _draw(sampler, key, axes, **({} if dtype is None else {"dtype": dtype}))


def normal(key: jax.Array, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the normal distribution with mean 0 and standard deviation 1.

    Example:
        >>> axn.random.normal(jax.random.key(0), axn.Axis("x", 3)).shape
        {'x': 3}
    """
    return _standard(key, jax.random.normal, shape, dtype)


def gumbel(key: jax.Array, shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Draw from the standard Gumbel distribution."""
    return _standard(key, jax.random.gumbel, shape, dtype)


def uniform(
    key: jax.Array,
    shape: AxisSpec,
    dtype: DTypeLike | None = None,
    minval: Operand = 0.0,
    maxval: Operand = 1.0,
) -> NamedArray:
    """Draw uniformly from `minval` up to, but without, `maxval`; both may be named arrays."""
    unit = _standard(key, jax.random.uniform, shape, dtype)
    if isinstance(minval, float) and isinstance(maxval, float) and (minval, maxval) == (0.0, 1.0):
        return unit
    return unit * (maxval - minval) + minval  # type: ignore[operator]  # an Operand may be a list


def truncated_normal(
    key: jax.Array, shape: AxisSpec, lower: float, upper: float, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw from the standard normal distribution between `lower` and `upper`."""
    options = {} if dtype is None else {"dtype": dtype}
    return _draw(jax.random.truncated_normal, key, shape, lower, upper, **options)


def bernoulli(key: jax.Array, shape: AxisSpec, p: Operand = 0.5) -> NamedArray:
    """Draw booleans that are true with probability `p`, which may be a named array."""
    return _draw(jax.random.bernoulli, key, shape, p)


def randint(
    key: jax.Array, shape: AxisSpec, minval: Operand, maxval: Operand, dtype: DTypeLike | None = None
) -> NamedArray:
    """Draw integers uniformly from `minval` up to, but without, `maxval`; both may be named arrays."""
    return _draw(_randint, key, shape, minval, maxval, **({} if dtype is None else {"dtype": dtype}))


def _randint(key: jax.Array, minval: Any, maxval: Any, *, shape: tuple[int, ...], **options: Any) -> jax.Array:
    return jax.random.randint(key, shape, minval, maxval, **options)


def categorical(key: jax.Array, logits: NamedArray, axis: AxisSelector) -> NamedArray:
    """Draw an index along `axis` with probabilities `softmax(logits, axis)`; the other axes of `logits` stay."""
    moved = shape.rearrange(logits, (..., axis))
    drawn = jax.random.categorical(key, moved.array, axis=-1)
    return NamedArray(drawn, tuple(name for name in moved.names if name != axis_name(axis)))


def permutation(key: jax.Array, x: NamedArray, axis: AxisSelector, *, independent: bool = False) -> NamedArray:
    """Shuffle `x` along an axis; `independent` shuffles each vector along it on its own."""
    moved = shape.rearrange(x, (..., axis))
    # JAX shuffles by a gather, which on a mesh with Explicit axes works on whole arrays only.
    whole = _lift.whole(moved.array, range(moved.ndim))
    shuffled = jax.random.permutation(key, whole, axis=moved.ndim - 1, independent=independent)
    shuffled = layout.laid_out_like(shuffled, moved.array)
    return shape.rearrange(NamedArray(shuffled, moved.names), x.names)
