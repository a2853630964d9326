"""The engine that turns samplers of `jax.random` into named ones."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from ..array import NamedArray
from ..axis import (
    Axis,
    AxisSelector,
    AxisSpec,
    names_and_sizes,
    not_in_a_tuple,
    selector,
    shown,
    spec,
)
from ..base.kinds import Payload, type_text
from ..engine import checks, kernels
from ..engine.core import Core, Operand, axes_of, facts, shape_of
from ..errors import AxisNotFoundError, OperandError, message, suggestion
from ..layout import constraints, context, explicit, modes
from ..names import plans
from ..names.plans import Names

Labels: TypeAlias = tuple[str | int, ...]
Key: TypeAlias = Core | jax.Array | np.ndarray
"""A key of `jax.random`, with or without names."""

_SINGLE = "key must be a single key, not an array of keys"
_NO_CORE: tuple[Names, ...] = ((), (), ())


def draw(
    sampler: Callable[..., jax.Array],
    key: Key,
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
    function = checks.title(sampler)
    given = spec(axes, function)
    if isinstance(options.get("dtype"), Axis):
        raise not_in_a_tuple(function, *given, options["dtype"])
    result = spec((*given, *last), function)
    names, sizes = names_and_sizes(given)

    arrays: list[Payload] = []
    labels: list[Labels] = []
    lead: tuple[int, ...] = ()
    for parameter, core in zip(parameters, cores, strict=False):
        array, anonymous = _line_up(function, parameter, given, core)
        lead = jnp.broadcast_shapes(lead, anonymous)
        arrays.append(array)
        labels.append((*range(-len(anonymous), 0), *names, *core) if jnp.ndim(array) else ())

    out, out_sizes = names_and_sizes(result)
    shape, full = (*lead, *sizes), (*lead, *out_sizes)
    plain_key = one_key(function, key)
    if _outside_of_jit(plain_key):
        # Floats are operands of the compiled program, so that each of their values does not compile its own.
        floats = [jax.device_put(array) for array in arrays if isinstance(array, float)]
        fixed = [None if isinstance(array, float) else array for array in arrays]
        try:
            compiled = _compile(_meaning(plain_key), sampler, shape, out, full, *fixed, **options)
        except TypeError:
            pass  # parameters that are arrays have no hash; the result follows their layout
        else:
            return NamedArray(compiled(plain_key, *floats), out)
    call = partial(sampler, shape=shape, **options)
    drawn = _local(call, plain_key, arrays, labels, out, full)
    return NamedArray(constraints.shard_result(drawn, out), out)


def _outside_of_jit(key: jax.Array) -> bool:
    """Return whether a draw is computed eagerly, with a mapping and a mesh of devices."""
    mesh = context.context_mesh()
    if context.current_mapping() is None or mesh is None or isinstance(key, Tracer):
        return False
    try:
        return not jax.sharding.get_mesh().empty and not modes.has_manual(mesh)
    except ValueError:  # while tracing
        return False


def _meaning(key: jax.Array) -> tuple[object, ...]:
    """Return the settings by which JAX reads a legacy key; JAX does not include them in its cache key."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return ()
    settings: Any = jax.config
    return settings.jax_default_prng_impl, settings.jax_legacy_prng_key


@lru_cache(1024, typed=True)  # 1 and 1.0 are different parameters
def _compile(
    meaning: tuple[object, ...],
    sampler: Callable[..., jax.Array],
    shape: tuple[int, ...],
    names: Names,
    sizes: tuple[int, ...],
    *parameters: complex | None,
    **options: Any,
) -> Callable[..., jax.Array]:
    """Compile drawing and layout as one program, in which each device draws only its part.

    None stands for a float parameter, which is an operand of the program.
    """
    del meaning
    call = partial(sampler, shape=shape, **options)

    def draw_array(key: jax.Array, *numbers: jax.Array) -> jax.Array:
        given = iter(numbers)
        operands = [next(given) if parameter is None else parameter for parameter in parameters]
        result = _local(call, key, operands, [()] * len(operands), names, sizes)
        return constraints.shard_result(result, names)

    return jax.jit(draw_array)


def _line_up(
    function: str, parameter: Operand, given: tuple[Axis, ...], core: Names
) -> tuple[Any, tuple[int, ...]]:
    """Align a parameter with the given axes and its core axes, and return the sizes of its anonymous dimensions."""
    names, sizes = names_and_sizes(given)
    if not isinstance(parameter, Core):
        if jnp.ndim(checks.plain(function, parameter)):
            what = f"a plain parameter of shape {jnp.shape(parameter)}"
            problem = f"cannot combine {what} with axes {', '.join(names)}"
            raise OperandError(
                message(function, problem, hint="name it first: axn.named(array, (...))")
            )
        return parameter, ()
    (array,), own = parameter.node
    shape = shape_of(function, array, own)
    batch = plans.without(own, core)
    for name in plans.without(batch, names):
        problem = f"a parameter has axis {name!r}, which the result would not have"
        lines = f"parameter has: {facts(parameter)}", f"asked for: {shown(*given)}"
        raise AxisNotFoundError(message(function, problem, *lines, hint=suggestion(name, names)))

    lead = shape[: len(shape) - len(own)]
    # JAX's samplers broadcast parameters from the right: bring axes into the order asked for, and fill in size 1.
    present = plans.intersect(names, batch)
    array = kernels.line_up(array, own, (*present, *core))
    known = array.shape[len(lead) : len(lead) + len(batch)]
    checks.one_size(function, [names, present], [sizes, known])
    if array.ndim:
        missing = [at for at, name in enumerate(names, start=len(lead)) if name not in batch]
        array = jax.lax.expand_dims(array, missing)
    return array, lead


def one_key(function: str, key: object) -> Any:
    """Return a key that has no axes, checked."""
    if not isinstance(key, Core):
        if not hasattr(key, "dtype"):
            problem = f"key must be a PRNG key, not {type_text(key)}"
            raise OperandError(
                message(function, problem, hint="make one from a seed: jax.random.key(0)")
            )
        array: Any = key
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) and array.ndim:
            problem = f"{_SINGLE} of shape {array.shape}"
            hint = "pass one of them, as in: k_embed, k_mlp = jax.random.split(key)"
            raise OperandError(message(function, problem, hint=hint))
        return array
    if key.names:
        problem = _SINGLE
        each = f"lambda key: axn.random.{function}(key, ...)"
        hint = f'draw once per key: axn.vmap({each}, "{key.names[0]}")(keys)'
        raise OperandError(message(function, problem, f"keys have: {facts(key)}", hint=hint))
    return key.array


def _local(
    call: Callable[..., jax.Array],
    key: jax.Array,
    arrays: Sequence[Payload],
    labels: Sequence[Labels],
    names: Names,
    sizes: tuple[int, ...],
) -> jax.Array:
    """Call a sampler; on a mesh with Explicit axes, set the layout of the result and leave the rest to the compiler."""
    wanted = constraints.explicit_sharding(names, sizes)
    typed = [array for array in arrays if explicit.has_explicit_axes(array)]
    result: jax.Array
    if wanted is None and not typed:
        result = kernels.run(call, key, *arrays)
        return result

    mesh = context.context_mesh() or jax.typeof(typed[0]).sharding.mesh
    if wanted is None:
        own = plans.labels(names, len(sizes))
        wanted = PartitionSpec(*explicit.choose(own, labels, arrays).values())
    result = explicit.make_auto(call, mesh, NamedSharding(mesh, wanted))(key, *arrays)
    return result


def axis_of(function: str, x: object, axis: AxisSelector | None) -> Axis:
    """Look up an axis of a parameter; None means the only one."""
    if axis is not None:
        name, size = selector(axis, function)
        return checks.require(function, x, {name: size})[0]
    if not isinstance(x, Core):
        raise checks.no_names(function, x)
    known = axes_of(function, x)
    if len(known) != 1:
        problem = f"without an axis, the array must have just one, not {len(known)}"
        raise OperandError(
            message(function, problem, f"array has: {facts(x)}", hint='give axis="..."')
        )
    return known[0]


def alone(function: str, problem: str, x: Core, ndim: int) -> None:
    """Check that a parameter has `ndim` dimensions."""
    if x.array.ndim != ndim:
        raise OperandError(message(function, problem, f"it has: {facts(x)}"))
