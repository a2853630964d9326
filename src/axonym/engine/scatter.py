"""Internal. Writing by an index by name, the counterpart of `position.reading`.

`ops.update` calls it for each method of `x.at[...]`. A box of ints and slices is written by `lax.dynamic_update_slice`,
which compiles once for all starts; everything else is a scatter.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..base.kinds import Payload
from ..errors import AxisSizeError, BroadcastError, OperandError, describe, message, suggestion
from ..faults import uneven_scatters
from ..faults.lost_nan import may_lose_nan
from ..faults.merged_slices import separate, separate_gradient
from ..faults.sorted_positions import mark_varying_like
from ..layout import context, explicit, modes
from ..names import plans
from ..names.plans import Names, hold_axes
from . import auto, checks, kernels
from .core import Core, shape_of, sizes_of, wrap
from .operands import payload
from .position import (
    Position,
    Reach,
    clamp_indices,
    move_into_range,
    name_selection,
    positional,
    run_with_ints,
)
from .renaming import share_by_renaming
from .steps import Int, Slice, Step, Strided, axes_of_steps, gathers_in, removes_axis

if TYPE_CHECKING:
    from ..array import NamedArray


def put_on_mesh(array: jax.Array) -> jax.Array:
    """Replicate an array that was made outside a mesh with Explicit axes, so that it has the type of updates to it."""
    mesh = context.context_mesh()
    if mesh is None or not modes.has_explicit(mesh) or explicit.has_explicit_axes(array):
        return array
    placed: jax.Array = jax.reshard(array, explicit.make_sharding(array, [()] * array.ndim))
    return placed


def _replace_block(block: jax.Array, update: jax.Array) -> jax.Array:
    return mark_varying_like(jnp.broadcast_to(update, block.shape), block)


BLOCKWISE: Mapping[str, Callable[..., Any]] = {
    "set": _replace_block,
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "power": jnp.power,
    "min": jnp.minimum,
    "max": jnp.maximum,
}
"""The function that each method of `x.at[...]` applies to a block of the array."""

SCATTERS: Mapping[str, Callable[..., jax.Array]] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "subtract": lax.scatter_sub,
    "multiply": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}
"""The scatter of each method for single elements; the others are made of "multiply"."""


def is_box(steps: Sequence[Step]) -> bool:
    """Return whether an index is a box: ints and slices, all in range."""
    return all(isinstance(step, Int | Slice) for step in steps)


@hold_axes("names", "steps", "update")
class Write(NamedTuple):
    """The static description of a write to an index; `update` None is a plain scalar."""

    function: str
    names: Names
    steps: tuple[Step, ...]
    operation: str
    update: Names | None
    reach: Reach

    @property
    def is_boxed(self) -> bool:
        """Whether the index is a box: ints and slices, all in range."""
        return is_box(self.steps)

    @property
    def batch(self) -> Names:
        """The axes that index arrays share with the rest of the array, for a batched scatter.

        There are none if index arrays have further axes, since the compiler may lose elements of the array when it
        splits these axes. With slices there are none either, since a batched scatter does not support slices.
        """
        if any(isinstance(step, Strided) for step in self.steps):
            return ()
        given = plans.unite(step.axes for step in gathers_in(self.steps))
        kept = plans.without(self.names, axes_of_steps(self.steps))
        shared = plans.intersect(kept, given)
        return shared if len(shared) == len(given) else ()

    @property
    def target(self) -> Names:
        """The names of the indexed part."""
        return name_selection(self.names, self.steps)


def write(
    function: str,
    x: Core,
    steps: tuple[Step, ...],
    arguments: Sequence[Payload],
    operation: str,
    update: Payload,
    reach: Reach,
) -> "NamedArray":
    """Write to the elements at an index."""
    (array,), names = x.node
    value = payload(function, update)
    own: Names | None = update.node[1] if isinstance(update, Core) else None
    # Steps are part of the key of the kernel, so that this comes first.
    steps, arguments = make_slices_static(steps, arguments)
    kernel = checks.run_plan(
        function, (x,), writing, Write(function, names, steps, operation, own, reach)
    )
    return wrap(x, run_with_ints(kernel, array, value, *arguments), names)


def _mark_nan(array: Payload) -> jax.Array:
    return jnp.isnan(array).astype(jnp.int8)


def make_slices_static(
    steps: tuple[Step, ...], arguments: Sequence[Payload]
) -> tuple[tuple[Step, ...], Sequence[Payload]]:
    """Unless an index is a box, make the starts of its slices static, as a positional index requires."""
    if is_box(steps):
        return steps, arguments
    # A loop: in Python 3.11, a comprehension is a call, which an eager write would feel.
    static, rest = list(steps), list(arguments)
    for i, (step, argument) in enumerate(zip(steps, arguments, strict=True)):
        if isinstance(step, Slice):
            static[i] = Strided(step.name, argument, argument + step.length, 1)
            rest[i] = 0
    return tuple(static), rest


@share_by_renaming("plan")
def writing(plan: Write) -> kernels.Kernel:
    """Make the kernel that writes to the elements at an index."""
    into = _write_box if plan.is_boxed else _write_elements
    # Here, so that errors about names are raised before any array is looked at.
    plan.target  # noqa: B018

    def body(array: Payload, update: Payload, *arguments: Any) -> Any:
        shape_of(plan.function, array, plan.names)
        # Dtypes are checked while JAX traces, which it does for each of them.
        check_dtype(plan.function, plan.operation, array, update)
        # Ints stay static within `auto.local`, which would make arrays of its operands.
        traced = [i for i, argument in enumerate(arguments) if not isinstance(argument, int)]

        def positionally(array: jax.Array, update: Payload, *given: Payload) -> jax.Array:
            table = dict(zip(traced, given, strict=True))
            found = [table.get(i, argument) for i, argument in enumerate(arguments)]
            result = into(plan, array, update, found)
            if (
                plan.is_boxed
                or plan.operation not in ("max", "min")
                or not may_lose_nan(array, range(array.ndim))
            ):
                return result
            # The compiler may drop NaN in these scatters: a second one finds the places that have it.
            marks = into(plan._replace(operation="max"), _mark_nan(array), _mark_nan(update), found)
            return jnp.where(marks > 0, jnp.nan, result)

        # An array from before the mesh has no type that the result could keep.
        array = put_on_mesh(array)
        operands = [array, update, *plans.values_at(arguments, traced)]
        return auto.local(positionally, operands, list(explicit.get_layout(array)))

    return kernels.Kernel(plan.names, body)


def _write_box(
    plan: Write, array: jax.Array, update: Payload, arguments: Sequence[Payload]
) -> jax.Array:
    """Write to a block."""
    anonymous, target = array.ndim - len(plan.names), plan.target
    starts: list[Payload] = [0] * array.ndim
    lengths, dropped = list(array.shape), []
    for step, argument in zip(plan.steps, arguments, strict=True):
        at = anonymous + plan.names.index(step.name)
        starts[at] = argument
        lengths[at] = step.length if isinstance(step, Slice) else 1
        if removes_axis(step):
            dropped.append(at)
    sizes = sizes_of(plan.names, lengths)
    update = _fit_update(plan, update, array, (*range(anonymous), *target), sizes)
    if 0 in lengths:
        return array
    # An axis that an int selects is one element of the block, and the update lacks it.
    if dropped and jnp.ndim(update):
        # Dimensions are counted from the end, since an update may lack the leading ones.
        update = lax.expand_dims(update, plans.shift_places(dropped, -array.ndim))
    update = jnp.asarray(update)
    if update.dtype != array.dtype:
        update = update.astype(array.dtype)
    apply = BLOCKWISE[plan.operation]
    # The cheapest way comes first: the whole array needs no block, and "set" reads none.
    if lengths == list(array.shape):
        whole: jax.Array = apply(array, update)
        return whole
    if plan.operation == "set":
        block = jnp.broadcast_to(update, lengths)
    elif all(isinstance(start, int) for start in starts):
        # Known starts stay static, as in a program that is written by hand.
        limits = [start + length for start, length in zip(starts, lengths, strict=True)]
        block = apply(lax.slice(array, starts, limits), update)
    else:
        block = apply(
            lax.dynamic_slice(array, starts, lengths, allow_negative_indices=False), update
        )
    return lax.dynamic_update_slice(array, block, starts, allow_negative_indices=False)


def _write_elements(
    plan: Write, array: jax.Array, update: Payload, arguments: Sequence[Payload]
) -> jax.Array:
    """Write to single elements."""
    position = positional(
        plan.function, array, plan.names, plan.steps, arguments, plan.reach.mode, plan.batch
    )
    update = _fit_update(plan, update, array, position.labels, position.sizes)
    if not array.size:
        return array
    if plan.reach.mode == "clip":
        position = position._replace(
            dims=move_into_range(array, position.dims, position.places, plan.reach.wraps)
        )
    return separate_gradient(
        _scatter(plan, separate(array, position.places), update, position), position.places
    )


def _scatter(plan: Write, array: jax.Array, update: Payload, position: Position) -> jax.Array:
    if plan.batch:
        return _scatter_batches(plan, plan.operation, array, update, position)
    # Ints and slices select no element twice, unless positions are clipped to the same place.
    once = plan.reach.mode != "clip" and not gathers_in(plan.steps)
    at, mode = position.dims, plan.reach.mode
    more = uneven_scatters.count_missing(array, uneven_scatters.broadcast_shape(at))
    if any(more):
        if mode == "clip":
            at = clamp_indices(array, at, plan.reach.wraps)
        at, mode = uneven_scatters.extend_writes(at, array.shape, more), "drop"
        update = _lengthen(update, position, dict(zip(position.union, more, strict=True)))
    method = getattr(array.at[at], plan.operation)
    written: jax.Array = method(
        update,
        indices_are_sorted=plan.reach.sorted and position.exact,
        unique_indices=plan.reach.unique or once,
        mode=mode,
        wrap_negative_indices=plan.reach.wraps,
    )
    return written


def _lengthen(update: Payload, position: Position, more: Mapping[str, int]) -> Payload:
    """Give an update as many positions as its index has, where it is not broadcast."""
    array = jnp.asarray(update)
    # Labels are those of the result, and an update may lack the first ones.
    labels = position.labels[len(position.labels) - array.ndim :]
    dims = [
        at
        for at, label in enumerate(labels)
        if label in more and array.shape[at] == position.sizes[str(label)]
    ]
    return uneven_scatters.extend(array, dims, [more[str(labels[dim])] for dim in dims])


def _scatter_batches(
    plan: Write, operation: str, array: jax.Array, update: Payload, position: Position
) -> jax.Array:
    """Write to single elements at index arrays that share axes with the rest of the array.

    The compiler then knows that these are batch dimensions; explicit positions along them would hide this. `jax.vmap`
    would do the same, but move them to the front, which copies the whole array.
    """
    if operation not in SCATTERS:
        # There is no such scatter: what to divide by, or the power, is computed for ones and then applied at once.
        factors = _scatter_batches(plan, "multiply", jnp.ones_like(array), update, position)
        result: jax.Array = BLOCKWISE[operation](array, factors)
        return result
    own: tuple[object, ...] = (*range(array.ndim - len(plan.names)), *plan.names)
    sizes = dict(zip(own, array.shape, strict=True)) | position.sizes
    at = tuple(position.array_dims)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(
            i for i, label in enumerate(position.labels) if label not in position.union
        ),
        inserted_window_dims=at,
        scatter_dims_to_operand_dims=at,
        operand_batching_dims=tuple(map(own.index, plan.batch)),
        scatter_indices_batching_dims=tuple(map(position.union.index, plan.batch)),
    )
    # `lax.scatter` wants one array of indices, with the coordinates last.
    extents = plans.values_at(sizes, position.union)
    places: list[jax.Array] = []
    for i in at:
        place = position.dims[i]
        # The primitive takes negative numbers for out of range.
        if plan.reach.wraps and not isinstance(place, int):
            place = lax.select(place < 0, place + array.shape[i], place)
        places.append(jnp.broadcast_to(place, extents))
    # An option of JAX may forbid implicit promotion.
    is_wide = any(place.dtype.itemsize > 4 for place in places)
    dtype: type[np.signedinteger] = np.int64 if is_wide else np.int32
    indices = jnp.stack(places, axis=-1, dtype=dtype)
    update = jnp.broadcast_to(update, plans.values_at(sizes, position.labels))
    if update.dtype != array.dtype:
        update = update.astype(array.dtype)
    # There is one place for each batch: no element is selected twice, which the gradient exploits.
    return SCATTERS[operation](
        array, indices, update, numbers, unique_indices=True, mode=plan.reach.mode
    )


def _fit_update(
    plan: Write,
    update: Payload,
    array: jax.Array,
    labels: tuple[object, ...],
    sizes: Mapping[str, int],
) -> Any:
    """Align an update with the dimensions of the indexed part, whose axes must contain its own."""
    function, own, target = plan.function, plan.update, plan.target
    anonymous = array.ndim - len(plan.names)
    shape_of_part = (*array.shape[:anonymous], *plans.values_at(sizes, target))
    part = f"indexed part has: {describe(target, shape_of_part)}"
    if own is None:
        if jnp.ndim(update):
            problem = f"the update is a plain array of shape {jnp.shape(update)}"
            raise OperandError(message(function, problem, part, hint=checks.NAME_IT))
        return update
    # All errors below show both sides, so that users see which one to change.
    shape = shape_of(function, update, own)
    lines = (f"update has: {describe(own, shape)}", part)
    for name, size in zip(own, shape[len(shape) - len(own) :], strict=True):
        if name not in target:
            problem = f"the update has axis {name!r}, which the indexed part lacks"
            hint = suggestion(name, plans.without(target, own))
            raise BroadcastError(message(function, problem, *lines, hint=hint))
        if size != sizes[name]:
            problem = f"axis {name!r} has size {size} in the update, and {sizes[name]} in the indexed part"
            raise AxisSizeError(message(function, problem, *lines))
    leading = len(shape) - len(own)
    if leading > anonymous:
        raise OperandError(
            message(function, "the update has more anonymous dimensions than the array", *lines)
        )
    # Anonymous dimensions are counted from the right, as they are broadcast.
    own_labels: tuple[object, ...] = (*range(anonymous - leading, anonymous), *own)
    return kernels.line_up(update, own_labels, labels)


def check_dtype(function: str, operation: str, array: jax.Array, update: Payload) -> None:
    """Raise an error for an update that the dtype of an array cannot hold."""
    dtype = array.dtype
    if operation not in ("set", "min", "max") and jnp.issubdtype(dtype, jnp.bool_):
        hint = "use set, or max for a logical or, and min for a logical and"
        raise OperandError(message(function, f"{operation} is not defined for bool", hint=hint))
    if operation == "divide" and not jnp.issubdtype(dtype, jnp.inexact):
        # JAX would round each quotient in silence.
        problem = f"divide gives floats, which {dtype} cannot hold"
        raise OperandError(
            message(function, problem, hint="convert the array first: x.astype(float)")
        )
    if getattr(update, "dtype", None) != dtype and jnp.result_type(dtype, update) != dtype:
        problem = (
            f"an array of {dtype} cannot hold an update of {jnp.result_type(update)} without loss"
        )
        raise OperandError(
            message(function, problem, hint="convert one of the two: update.astype(x.dtype)")
        )
