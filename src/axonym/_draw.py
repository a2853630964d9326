"""The engine that turns samplers of `jax.random` into named ones."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from . import _constraints, layout, plans
from .array import NamedArray
from .axis import Axis, AxisSelector, AxisSpec, not_in_a_tuple, selector, shown, spec
from .core import Core, Operand, axes_of, facts, shape_of
from .errors import AxisError, AxisNotFoundError, OperandError, message, suggestion
from .ops import _lift
from .plans import Names

_NO_CORE: tuple[Names, ...] = ((), (), ())


def draw(
    sampler: Callable[..., jax.Array],
    key: Any,
    axes: AxisSpec,
    *parameters: Operand,
    cores: Sequence[Names] = _NO_CORE,
    last: Sequence[Axis] = (),
    **options: Any,
) -> NamedArray:
    """Draw over axes; parameters that are named arrays are matched with them by name.

    Args:
        sampler: a positional function of a key and parameters, with an argument `shape`.
        key: the key.
        axes: the axes to draw over, in the order of the result.
        parameters: numbers and named arrays; anonymous dimensions come first in the result.
        cores: for each parameter the axes that the sampler works on, which come last.
        last: the axes of each draw, which come last in the result.
        options: further keyword arguments of the sampler.
    """
    function = _lift.title(sampler)
    given = spec(axes, function)
    if isinstance(options.get("dtype"), Axis):
        raise not_in_a_tuple(function, *given, options["dtype"])
    result = spec((*given, *last), function)
    names, sizes = tuple(axis.name for axis in given), tuple(axis.size for axis in given)
    arrays, labels = [], []
    lead: tuple[int, ...] = ()
    for parameter, core in zip(parameters, cores, strict=False):
        array, anonymous = _lined_up(function, parameter, given, core)
        lead = jnp.broadcast_shapes(lead, anonymous)
        arrays.append(array)
        labels.append((*range(-len(anonymous), 0), *names, *core) if jnp.ndim(array) else ())
    out, full = tuple(axis.name for axis in result), (*lead, *(axis.size for axis in result))
    key, compiled = one_key(function, key), None
    if _outside_of_jit(key):
        with suppress(TypeError):  # for parameters that are arrays, which have no hash; the result follows their layout
            fixed = tuple(None if isinstance(array, float) else array for array in arrays)
            compiled = _compiled(_meaning(key), sampler, (*lead, *sizes), out, full, *fixed, **options)
    if compiled is not None:
        numbers = [jax.device_put(array) for array in arrays if isinstance(array, float)]
        return NamedArray(compiled(key, *numbers), out)
    call = partial(sampler, shape=(*lead, *sizes), **options)
    return NamedArray(_constraints.lay_out(_local(call, key, arrays, labels, out, full), out), out)


def _outside_of_jit(key: Any) -> bool:
    """Return whether a draw is computed eagerly, with a mapping and a mesh of devices."""
    mesh = layout.context_mesh()
    if layout.current_mapping() is None or mesh is None or isinstance(key, Tracer):
        return False
    try:
        return not jax.sharding.get_mesh().empty and AxisType.Manual not in mesh.axis_types
    except ValueError:  # while tracing
        return False


def _meaning(key: Any) -> tuple[Any, ...]:
    """Return the settings that determine how a legacy key is read, which are not part of JAX's cache key."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return ()
    settings: Any = jax.config
    return settings.jax_default_prng_impl, settings.jax_legacy_prng_key


@lru_cache(1024, typed=True)  # 1 and 1.0 are different parameters
def _compiled(
    meaning: tuple[Any, ...],
    sampler: Callable[..., jax.Array],
    shape: tuple[int, ...],
    names: Names,
    sizes: tuple[int, ...],
    *parameters: complex | None,
    **options: Any,
) -> Callable[..., jax.Array]:
    """Compile drawing and layout as one program, in which each device draws only its part.

    Parameters that are None are floats, which the program takes as operands.
    """
    del meaning
    call = partial(sampler, shape=shape, **options)

    def drawn(key: Any, *numbers: Any) -> jax.Array:
        given = iter(numbers)
        operands = [next(given) if parameter is None else parameter for parameter in parameters]
        return _constraints.lay_out(_local(call, key, operands, [()] * len(operands), names, sizes), names)

    return jax.jit(drawn)


def _lined_up(function: str, parameter: Operand, given: tuple[Axis, ...], core: Names) -> tuple[Any, tuple[int, ...]]:
    """Align a parameter with the given axes and its core axes, and return the sizes of its anonymous dimensions."""
    names = tuple(axis.name for axis in given)
    if not isinstance(parameter, Core):
        if jnp.ndim(_lift.plain(function, parameter)):
            problem = f"cannot combine a plain parameter of shape {jnp.shape(parameter)} with axes {', '.join(names)}"
            raise OperandError(message(function, problem, hint="name it first: axn.named(array, (...))"))
        return parameter, ()
    (array,), own = parameter.node
    sized = shape_of(function, array, own)
    batch = plans.without(own, core)
    for name in batch:
        if name not in names:
            problem = f"a parameter has axis {name!r}, which the result would not have"
            lines = f"parameter has: {facts(parameter)}", f"asked for: {shown(*given)}"
            raise AxisNotFoundError(message(function, problem, *lines, hint=suggestion(name, names)))
    lead = sized[: len(sized) - len(own)]
    array = _lift.lined_up(array, own, (*(name for name in names if name in batch), *core))
    known = array.shape[len(lead) : len(lead) + len(batch)]
    present = tuple(name for name in names if name in batch)
    _lift.one_size(function, [names, present], [tuple(axis.size for axis in given), known])
    if array.ndim:
        array = jax.lax.expand_dims(array, [len(lead) + at for at, name in enumerate(names) if name not in batch])
    return array, lead


def one_key(function: str, key: Any) -> Any:
    """Return a key that has no axes, checked."""
    if not isinstance(key, Core):
        if not hasattr(key, "dtype"):
            problem = f"key must be a PRNG key, not {type(key).__name__}"
            raise OperandError(message(function, problem, hint="make one from a seed: jax.random.key(0)"))
        return key
    if key.names:
        problem = "key must be a single key, not an array of keys"
        hint = f'draw once per key: axn.vmap(lambda key: axn.random.{function}(key, ...), "{key.names[0]}")(keys)'
        raise OperandError(message(function, problem, f"keys have: {facts(key)}", hint=hint))
    return key.array


def _local(
    call: Callable[..., jax.Array],
    key: Any,
    arrays: Sequence[Any],
    labels: Sequence[Sequence[Any]],
    names: Names,
    sizes: tuple[int, ...],
) -> Any:
    """Call a sampler; on a mesh with Explicit axes, set the layout of the result and leave the rest to the compiler."""
    wanted = _constraints.explicit_sharding(names, sizes)
    typed = [array for array in arrays if _constraints.has_explicit_axes(array)]
    if wanted is None and not typed:
        return _lift.run(call, key, *arrays)
    mesh: Any = layout.context_mesh() or jax.typeof(typed[0]).sharding.mesh
    if wanted is None:
        own = (*range(len(names) - len(sizes), 0), *names)
        operands = [
            (label, _constraints.entries_of(array)) for label, array in zip(labels, arrays, strict=True) if label
        ]
        wanted = PartitionSpec(*_constraints.settle(own, operands).values())
    return _constraints.untyped(call, mesh, NamedSharding(mesh, wanted))(key, *arrays)


def axis_of(function: str, x: Any, axis: AxisSelector | None) -> Axis:
    """Look up an axis of a parameter; None means the only one."""
    if not isinstance(x, Core):
        raise _lift.unnamed(function, x)
    known = {own.name: own for own in axes_of(function, x)}
    if axis is None:
        if len(known) != 1:
            problem = f"without an axis, the array must have just one, not {len(known)}"
            raise OperandError(message(function, problem, f"array has: {facts(x)}", hint='give axis="..."'))
        return next(iter(known.values()))
    name, size = selector(axis, function)
    try:
        plans.require(x.names, (name,))
    except AxisError as flaw:
        _lift.fail(function, flaw, x)
    _lift.check_given(function, ((name, size),), x.names, x.array.shape)
    return known[name]


def alone(function: str, problem: str, x: Core, ndim: int) -> None:
    """Check that a parameter has `ndim` dimensions."""
    if x.array.ndim != ndim:
        raise OperandError(message(function, problem, f"it has: {facts(x)}"))
