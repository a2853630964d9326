"""Writing by an index by name, the counterpart of `_position`.

A box of ints and slices is written by `lax.dynamic_update_slice`, which compiles once for all starts; everything else
is a scatter.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType

from .. import _constraints, layout, plans
from ..core import Core, shape_of, wrap
from ..errors import AxisError, AxisSizeError, BroadcastError, OperandError, describe, message, suggestion
from ..plans import Names
from . import _lift
from ._extremum import may_be_lost
from ._merging import settled, settled_gradient
from ._position import Position, Reach, Step, in_range, positional, run, selected_names

if TYPE_CHECKING:
    from ..array import NamedArray


def on_mesh(array: jax.Array) -> jax.Array:
    """Lay out an array that was made outside a mesh with Explicit axes like the blocks written to it."""
    mesh = layout.context_mesh()
    if mesh is None or AxisType.Explicit not in mesh.axis_types or _constraints.has_explicit_axes(array):
        return array
    placed: jax.Array = jax.reshard(array, _constraints.sharding_from(array, [()] * array.ndim))
    return placed


def _put(block: jax.Array, update: jax.Array) -> jax.Array:
    return jnp.broadcast_to(update, block.shape)


BLOCKWISE: Mapping[str, Callable[..., Any]] = {
    "set": _put,
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "power": jnp.power,
    "min": jnp.minimum,
    "max": jnp.maximum,
}
"""What each method of `x.at[...]` does to a block of the array."""

SCATTERS: Mapping[str, Callable[..., jax.Array]] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "subtract": lax.scatter_sub,
    "multiply": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}
"""What each does to single elements; the others are made of "multiply"."""


class Write(NamedTuple):
    """The static description of a write to an index; `update` None is a plain scalar."""

    function: str
    names: Names
    steps: tuple[Step, ...]
    operation: str
    update: Names | None
    reach: Reach

    @property
    def boxed(self) -> bool:
        """Whether the index is a box: ints and slices, all in range."""
        return all(kind in ("int", "slice") for _, kind, _ in self.steps)

    @property
    def batch(self) -> Names:
        """The axes that index arrays share with the rest of the array, for a batched scatter.

        There are none if index arrays have further axes, as XLA's partitioner then loses elements of the array if it
        splits those; and none with slices, which such a scatter does not support.
        """
        if any(kind == "strided" for _, kind, _ in self.steps):
            return ()
        given = {name for _, kind, static in self.steps if kind == "array" for name in static}
        kept = plans.without(self.names, tuple(name for name, _, _ in self.steps))
        return tuple(name for name in kept if name in given) if given <= {*kept} else ()

    @property
    def target(self) -> Names:
        """The names of the indexed part."""
        return selected_names(self.names, self.steps)


def write(
    function: str, x: Core, steps: tuple[Step, ...], arguments: Sequence[Any], operation: str, update: Any, reach: Reach
) -> "NamedArray":
    """Write to what an index selects."""
    (array,), names = x.node
    value = update.node[0][0] if isinstance(update, Core) else _lift.plain(function, update)
    own = update.node[1] if isinstance(update, Core) else None
    steps, arguments = sliced_statically(steps, arguments)
    try:
        kernel = writing(Write(function, names, steps, operation, own, reach))
    except AxisError as flaw:
        _lift.fail(function, flaw, x)
    return wrap(x, run(kernel, array, value, *arguments), names)


def _nans(array: Any) -> jax.Array:
    return jnp.isnan(array).astype(jnp.int8)


def sliced_statically(steps: tuple[Step, ...], arguments: Sequence[Any]) -> tuple[tuple[Step, ...], Sequence[Any]]:
    """Unless an index is a box, make the starts of its slices static, as a positional index requires."""
    if all(kind in ("int", "slice") for _, kind, _ in steps):
        return steps, arguments
    pairs = [
        ((name, "strided", (argument, argument + static, 1)), 0)
        if kind == "slice"
        else ((name, kind, static), argument)
        for (name, kind, static), argument in zip(steps, arguments, strict=True)
    ]
    return tuple(step for step, _ in pairs), [argument for _, argument in pairs]


@lru_cache(plans.CACHE)
def writing(plan: Write) -> _lift.Kernel:
    """Make the kernel that writes to what an index selects."""
    into = _into_box if plan.boxed else _scattered
    plan.target  # noqa: B018  # here, for what is wrong about names is to come out before any array is looked at

    def body(array: Any, update: Any, *arguments: Any) -> Any:
        shape_of(plan.function, array, plan.names)
        check_dtype(plan.function, plan.operation, array, update)
        traced = [i for i, argument in enumerate(arguments) if not isinstance(argument, int)]

        def positionally(array: jax.Array, update: Any, *given: Any) -> jax.Array:
            table = dict(zip(traced, given, strict=True))
            found = [table.get(i, argument) for i, argument in enumerate(arguments)]
            result = into(plan, array, update, found)
            if plan.boxed or plan.operation not in ("max", "min") or not may_be_lost(array, range(array.ndim)):
                return result
            marks = into(plan._replace(operation="max"), _nans(array), _nans(update), found)
            return jnp.where(marks > 0, jnp.nan, result)

        array = on_mesh(array)
        operands = [array, update, *(arguments[i] for i in traced)]
        return _lift.local(positionally, operands, list(_constraints.entries_of(array)))

    return _lift.Kernel(plan.names, body)


def _into_box(plan: Write, array: jax.Array, update: Any, arguments: Sequence[Any]) -> jax.Array:
    """Write to a block."""
    anonymous, target = array.ndim - len(plan.names), plan.target
    starts: list[Any] = [0] * array.ndim
    lengths, dropped = list(array.shape), []
    for (name, kind, static), argument in zip(plan.steps, arguments, strict=True):
        at = anonymous + plan.names.index(name)
        starts[at], lengths[at] = argument, 1 if kind == "int" else static
        if kind == "int":
            dropped.append(at)
    sizes = {name: lengths[anonymous + plan.names.index(name)] for name in target}
    update = _fitted(plan, update, array, (*range(anonymous), *target), sizes)
    if 0 in lengths:
        return array
    if dropped and jnp.ndim(update):
        update = lax.expand_dims(update, [at - array.ndim for at in dropped])
    update = jnp.asarray(update)
    if update.dtype != array.dtype:
        update = update.astype(array.dtype)
    apply = BLOCKWISE[plan.operation]
    if lengths == list(array.shape):
        whole: jax.Array = apply(array, update)
        return whole
    if plan.operation == "set":
        block = jnp.broadcast_to(update, lengths)
    elif all(isinstance(start, int) for start in starts):
        limits = [start + length for start, length in zip(starts, lengths, strict=True)]
        block = apply(lax.slice(array, starts, limits), update)
    else:
        block = apply(lax.dynamic_slice(array, starts, lengths, allow_negative_indices=False), update)
    return lax.dynamic_update_slice(array, block, starts, allow_negative_indices=False)


def _scattered(plan: Write, array: jax.Array, update: Any, arguments: Sequence[Any]) -> jax.Array:
    """Write to single elements."""
    position = positional(plan.function, array, plan.names, plan.steps, arguments, plan.reach.mode, plan.batch)
    update = _fitted(plan, update, array, position.labels, position.sizes)
    if not array.size:
        return array
    if plan.reach.mode == "clip":
        position = position._replace(dims=in_range(array, position.dims, position.places, plan.reach.wraps))
    return settled_gradient(_written(plan, settled(array, position.places), update, position), position.places)


def _written(plan: Write, array: jax.Array, update: Any, position: Position) -> jax.Array:
    if plan.batch:
        return _in_batches(plan, plan.operation, array, update, position)
    once = plan.reach.mode != "clip" and all(kind != "array" for _, kind, _ in plan.steps)
    method = getattr(array.at[position.dims], plan.operation)
    written: jax.Array = method(
        update,
        indices_are_sorted=plan.reach.sorted and position.exact,
        unique_indices=plan.reach.unique or once,
        mode=plan.reach.mode,
        wrap_negative_indices=plan.reach.wraps,
    )
    return written


def _in_batches(plan: Write, operation: str, array: jax.Array, update: Any, position: Position) -> jax.Array:
    """Write to single elements at index arrays that share axes with the rest of the array.

    The compiler then knows that these are batch dimensions, which positions along them would hide. `jax.vmap` would do
    the same, but move them to the front, which copies the whole array.
    """
    if operation not in SCATTERS:
        factors = _in_batches(plan, "multiply", jnp.ones_like(array), update, position)
        result: jax.Array = BLOCKWISE[operation](array, factors)
        return result
    own: tuple[Any, ...] = (*range(array.ndim - len(plan.names)), *plan.names)
    sizes = dict(zip(own, array.shape, strict=True)) | position.sizes
    at = tuple(i for i, dim in enumerate(position.dims) if not isinstance(dim, slice))
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(i for i, label in enumerate(position.labels) if label not in position.union),
        inserted_window_dims=at,
        scatter_dims_to_operand_dims=at,
        operand_batching_dims=tuple(map(own.index, plan.batch)),
        scatter_indices_batching_dims=tuple(map(position.union.index, plan.batch)),
    )
    places = []
    for i in at:
        place = position.dims[i]
        if plan.reach.wraps and not isinstance(place, int):
            place = lax.select(place < 0, place + array.shape[i], place)
        places.append(jnp.broadcast_to(place, [sizes[name] for name in position.union]))
    # Promoted like this even with strict dtype promotion.
    indices = jnp.stack(places, axis=-1, dtype=np.int64 if any(p.dtype.itemsize > 4 for p in places) else np.int32)
    update = jnp.broadcast_to(update, [sizes[label] for label in position.labels])
    if update.dtype != array.dtype:
        update = update.astype(array.dtype)
    # There is one place for each batch: no element is selected twice, which the gradient exploits.
    return SCATTERS[operation](array, indices, update, numbers, unique_indices=True, mode=plan.reach.mode)


def _fitted(plan: Write, update: Any, array: jax.Array, labels: tuple[Any, ...], sizes: Mapping[str, int]) -> Any:
    """Align an update with the dimensions of the indexed part, whose axes must contain its own."""
    function, own, target = plan.function, plan.update, plan.target
    anonymous = array.ndim - len(plan.names)
    part = f"indexed part has: {describe(target, (*array.shape[:anonymous], *(sizes[name] for name in target)))}"
    if own is None:
        if jnp.ndim(update):
            problem = f"the update is a plain array of shape {jnp.shape(update)}"
            raise OperandError(message(function, problem, part, hint=_lift.NAME_IT))
        return update
    shape = shape_of(function, update, own)
    lines = (f"update has: {describe(own, shape)}", part)
    for name, size in zip(own, shape[len(shape) - len(own) :], strict=True):
        if name not in target:
            problem = f"the update has axis {name!r}, which the indexed part lacks"
            hint = suggestion(name, [other for other in target if other not in own])
            raise BroadcastError(message(function, problem, *lines, hint=hint))
        if size != sizes[name]:
            problem = f"axis {name!r} has size {size} in the update, and {sizes[name]} in the indexed part"
            raise AxisSizeError(message(function, problem, *lines))
    leading = len(shape) - len(own)
    if leading > anonymous:
        raise OperandError(message(function, "the update has more anonymous dimensions than the array", *lines))
    own_labels: tuple[Any, ...] = (*range(anonymous - leading, anonymous), *own)
    return _lift.lined_up(update, own_labels, labels)


def check_dtype(function: str, operation: str, array: jax.Array, update: Any) -> None:
    """Raise an error for an update that would change the dtype of an array, or would not fit into it."""
    dtype = array.dtype
    if operation not in ("set", "min", "max") and jnp.issubdtype(dtype, jnp.bool_):
        hint = "use set, or max for a logical or, and min for a logical and"
        raise OperandError(message(function, f"{operation} is not defined for bool", hint=hint))
    if operation == "divide" and not jnp.issubdtype(dtype, jnp.inexact):
        problem = f"divide gives floats, which {dtype} cannot hold"
        raise OperandError(message(function, problem, hint="convert the array first: x.astype(float)"))
    if getattr(update, "dtype", None) != dtype and jnp.result_type(dtype, update) != dtype:
        problem = f"an array of {dtype} cannot hold an update of {jnp.result_type(update)} without loss"
        raise OperandError(message(function, problem, hint="convert one of the two: update.astype(x.dtype)"))
