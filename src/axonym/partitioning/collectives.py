"""Communication between the devices of a `shard_map`, by name.

Each function takes a tree of arrays and an *axis*: a named axis, which stands for the mesh axes of its mapping, or a
mesh axis. An axis that is not mapped to Manual mesh axes needs no communication: sums are complete and axes are not
split, as outside any shard_map. Arrays are then returned unchanged, but sums of bools and means of integers have the
usual dtype.

Names show what each device holds. So it is an error, not a wrong number, to sum the blocks of an axis, to sum values
that JAX knows to be equal on all devices, or to gather an axis that is complete. Under two mappings, an array without
an axis that only data has may be a parameter, or data without its batch axis. If the mappings give an axis different
mesh axes, the size of its block decides. Otherwise, the array is data inside a map or loop over an axis that only data
has; elsewhere, it is a parameter if only parameters have the axis. If it is still not clear, an error asks for the mesh
axes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..array import NamedArray
from ..axis import AxisSelection, AxisSelector, selection, selector
from ..errors import ArgumentError, BroadcastError, ShardingError, describe, message
from ..faults import narrow_sums
from ..faults.empty_arrays import is_refused_by_collectives
from ..faults.lost_nan import restore_nan_of_devices
from ..layout import assignment, explicit, modes, partition, tracing
from ..layout.assignment import Entry
from ..layout.scope import current_scope
from ..names.plans import Names
from .addresses import (
    Meaning,
    count_devices,
    describe_array,
    find_dimension,
    find_mesh_axes,
    is_checked,
    list_manual_axes,
    require_axis,
    require_blocks,
    require_computed,
    require_even,
    require_no_blocks,
    require_one_meaning,
    require_partial,
    require_size,
    require_whole,
)
from .leaves import map_along, map_arrays, read_axes
from .permutations import list_pairs, renumber

__all__ = [
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_size",
    "fold_key",
    "pcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
    "ragged_all_to_all",
]

T = TypeVar("T")


def psum(x: T, axis: AxisSelection | None = None, *, over: AxisSelection | None = None) -> T:
    """Add up the values of all devices; each gets the sum.

    Args:
        x: arrays without the axis, such as sums over the local block of it.
        axis: the axes over which sums are partial, or mesh axes. Python numbers are multiplied by the number of blocks.
        over: mesh axes to add up over, instead of the axis. Only here, a name that is an axis of both the mesh and
            arrays means the mesh axis; an `Axis` is always an axis of arrays.

    Raises:
        AxisSizeError: if an `Axis` is given whose size is neither the local nor the global one.
        OperandError: if neither `axis` nor `over` is given.
        ShardingError: if an array has the axis itself, or a `vmap` hides it; if it is the same on all devices; if it
            matters and is ambiguous whether it is a parameter; if the axis is unknown, or of both arrays and the mesh.

    Examples:
        >>> def norm(x):
        ...     return axn.sqrt(axn.psum((x * x).sum("embed"), "embed"))
        >>> mesh = jax.make_mesh((4,), ("model",))
        >>> axn.shard_map(norm, {"embed": "model"}, mesh)(axn.ones(axn.Axis("embed", 16))).item()
        4.0
    """
    return _reduce_over_devices("psum", lax.psum, x, axis, over, idle=False)


def pmean(x: T, axis: AxisSelection | None = None, *, over: AxisSelection | None = None) -> T:
    """Average the values of all devices; each gets the mean. Arguments and errors are those of `psum`.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> x = axn.arange(axn.Axis("batch", 8))
        >>> axn.shard_map(lambda x: axn.pmean(x.mean(), "batch"), {"batch": "data"}, mesh)(x).item()
        3.5
    """
    return _reduce_over_devices("pmean", lax.pmean, x, axis, over, idle=False)


def pmax(x: T, axis: AxisSelection | None = None, *, over: AxisSelection | None = None) -> T:
    """Return the elementwise maximum over all devices; JAX has no derivative of it.

    Arguments are those of `psum`.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> x = axn.arange(axn.Axis("batch", 8))
        >>> axn.shard_map(lambda x: axn.pmax(x.max(), "batch"), {"batch": "data"}, mesh)(x).item()
        7
    """
    return _reduce_over_devices("pmax", restore_nan_of_devices(lax.pmax), x, axis, over, idle=True)


def pmin(x: T, axis: AxisSelection | None = None, *, over: AxisSelection | None = None) -> T:
    """Return the elementwise minimum over all devices; JAX has no derivative of it.

    Arguments are those of `psum`.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> x = axn.arange(axn.Axis("batch", 8))
        >>> axn.shard_map(lambda x: axn.pmin(x.min(), "batch"), {"batch": "data"}, mesh)(x).item()
        0
    """
    return _reduce_over_devices("pmin", restore_nan_of_devices(lax.pmin), x, axis, over, idle=True)


def all_gather(
    x: T,
    axis: AxisSelection | None = None,
    *,
    over: AxisSelection | None = None,
    to: Literal["varying", "invarying", "reduced"] = "varying",
) -> T:
    """Gather the blocks of an axis; each device gets the whole axis. The gradient is a `psum_scatter`.

    Args:
        x: arrays; arrays of a tree that lack the axis stay as they are.
        axis: the axis to gather. A mesh axis stands for the axis of each array that is mapped to it.
        over: the axis or mesh axis to gather over, if the mapping does not say. Alone, it stands for the axis of each
            array that is mapped to it.
        to: "invarying" makes a result that may leave the shard_map replicated; its gradient is not scattered.

    Raises:
        AxisNotFoundError: if no array has the axis.
        AxisSizeError: if an `Axis` is given whose size is neither the local nor the global one.
        OperandError: if there are only plain arrays, or neither `axis` nor `over` is given.
        ShardingError: if the axis is complete already, the order of mesh axes would be lost, or a name may be that of
            an axis of arrays or of the mesh.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> x = axn.arange(axn.Axis("batch", 8))
        >>> def center(x):
        ...     return x - axn.all_gather(x, "batch").mean()
        >>> axn.shard_map(center, {"batch": "data"}, mesh)(x)["batch", 0].item()
        -3.5
    """

    def one(array: jax.Array, names: Names, name: str, dim: int, axes: Entry) -> Any:
        require_blocks("all_gather", array, names, name, axes, has_over=over is not None)

        gather = functools.partial(lax.all_gather, axis_name=assignment.shorten_entry(axes), to=to)
        if is_refused_by_collectives(array, dim):
            # JAX refuses to join an empty dimension. Stacked and reshaped, it is as empty, with the type that `to`
            # gives.
            return _without_types(lambda array: gather(array).reshape(array.shape), array)
        # The gradient is a sum.
        joined = functools.partial(gather, axis=dim, tiled=True)
        return narrow_sums.reduce_in_float32(functools.partial(_without_types, joined), array)

    return map_along("all_gather", one, x, axis, over)


def psum_scatter(
    x: T, axis: AxisSelection | None = None, *, over: AxisSelection | None = None
) -> T:
    """Add up the values of all devices, and scatter the sum along an axis; each device gets its block.

    Args:
        x: arrays with the complete axis; if an array of a tree lacks the axis, each device gets its complete sum.
        axis: the axis to scatter. A mesh axis stands for the axis of each array that is mapped to it.
        over: the axis or mesh axis to add up and scatter over, if the mapping does not say. Alone, it stands for the
            axis of each array that is mapped to it.

    Raises:
        AxisNotFoundError: if no array has the axis.
        AxisSizeError: if the axis does not divide, or has a size that is neither the local nor the global one.
        OperandError: if neither `axis` nor `over` is given.
        ShardingError: if an array is the same on all devices or a block already, the order of mesh axes would be
            lost, or a name may be that of an axis of arrays or of the mesh.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> def add_up(x):  # {batch, embed} in blocks of the batch
        ...     return axn.psum_scatter(x.sum("batch"), "embed", over="data")
        >>> x = axn.ones({"batch": 8, "embed": 4})
        >>> axn.shard_map(add_up, {"batch": "data"}, mesh, out_mapping={"embed": "data"})(x).array
        Array([8., 8., 8., 8.], dtype=float32)
    """

    def one(array: jax.Array, names: Names, name: str, dim: int, axes: Entry) -> Any:
        require_partial("psum_scatter", array, names, axes)
        require_even("psum_scatter", array, names, name, dim, axes)
        if over is None:
            require_whole("psum_scatter", array, names, name, dim, axes)
        if is_refused_by_collectives(array, dim):
            return array
        # JAX takes the blocks along a dimension itself, without a new one (`tiled`).
        scatter = functools.partial(
            lax.psum_scatter,
            axis_name=assignment.shorten_entry(axes),
            scatter_dimension=dim,
            tiled=True,
        )
        return narrow_sums.reduce_in_float32(functools.partial(_without_types, scatter), array)

    def rest(array: jax.Array, names: Names, axes: Entry) -> Any:
        require_partial("psum_scatter", array, names, axes)
        return narrow_sums.reduce_in_float32(lambda array: lax.psum(array, axes), array)

    return map_along("psum_scatter", one, x, axis, over, rest)


def all_to_all(
    x: T, split: AxisSelector, concat: AxisSelector, *, over: AxisSelection | None = None
) -> T:
    """Split one axis and gather another: each device gets its block of `split`, and all of `concat`.

    Args:
        x: arrays with both axes.
        split: the axis to split.
        concat: the axis to gather.
        over: the axis or mesh axis over which to exchange blocks, if the mapping splits neither of the two axes.

    Raises:
        AxisNotFoundError: if an array lacks one of the axes.
        AxisSizeError: if `split` does not divide, or the size of an `Axis` is neither the local nor the global one.
        ShardingError: if the mapping gives the two to different mesh axes, an array is the same on all devices, or the
            order of mesh axes would be lost.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> def exchange(x):
        ...     return axn.all_to_all(x, split="heads", concat="pos")
        >>> x = axn.ones({"pos": 8, "heads": 4})
        >>> moved = axn.shard_map(exchange, {"pos": "data"}, mesh, out_mapping={"heads": "data"})
        >>> moved(x).shape
        {'pos': 8, 'heads': 4}
    """
    (cut, _), (grown, _) = given = selector(split, "all_to_all"), selector(concat, "all_to_all")
    if over is not None:
        # It is parsed here, so that a wrong name is an error for a tree without arrays, too.
        over = dict(selection(over, "all_to_all"))

    def one(array: jax.Array, names: Names) -> Any:
        for name in (cut, grown):
            require_axis("all_to_all", name, names, array)
        if over is not None:
            axes = find_mesh_axes("all_to_all", over, names, array, meaning="mesh")
        else:
            first = find_mesh_axes("all_to_all", grown, names, array, meaning="arrays")
            second = find_mesh_axes("all_to_all", cut, names, array, cut, meaning="arrays")
            if first and second and first != second:
                problem = f"axis {grown!r} is split over {', '.join(first)}, and {cut!r} over {', '.join(second)}"
                hint = "name the mesh axes of the blocks with over="
                raise ShardingError(
                    message("all_to_all", problem, describe_array(names, array), hint=hint)
                )
            # Either axis may give the mesh axes: they split `concat` before the exchange, and `split` after it.
            axes = first or second
        for one_axis in given:
            require_size("all_to_all", one_axis, names, array, axes)
        if not axes:
            return array
        require_blocks("all_to_all", array, names, grown, axes, has_over=over is not None)
        at, to = find_dimension(array, names, cut), find_dimension(array, names, grown)
        require_even("all_to_all", array, names, cut, at, axes)
        return lax.all_to_all(
            array, assignment.shorten_entry(axes), split_axis=at, concat_axis=to, tiled=True
        )

    return map_arrays("all_to_all", one, x)


def ppermute(
    x: T,
    axis: AxisSelection | None = None,
    shift: int | Sequence[tuple[int, int]] | np.ndarray = 1,
    *,
    over: AxisSelection | None = None,
) -> T:
    """Send values to other devices along an axis.

    Args:
        x: arrays.
        axis: the axis whose blocks the devices hold, or a mesh axis.
        shift: the distance along the ring of devices; or pairs of source and destination: all other devices get zeros.
        over: mesh axes, instead of the axis, as in `psum`.

    Raises:
        ArgumentError: if the shift is not an integer, or a device is a source or a destination twice, or does not
            exist.
        OperandError: if neither `axis` nor `over` is given.
        ShardingError: if the axis is unknown, or of both arrays and the mesh.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> x = axn.arange(axn.Axis("batch", 8))
        >>> axn.shard_map(lambda x: axn.ppermute(x, "batch"), {"batch": "data"}, mesh)(x).array
        Array([6, 7, 0, 1, 2, 3, 4, 5], dtype=int32)
    """
    asked, meaning = read_axes("ppermute", axis, over)

    def one(array: jax.Array, names: Names) -> Any:
        axes = find_mesh_axes("ppermute", asked, names, array, meaning=meaning)
        if not axes:
            return array
        # Arrays of a tree may be split over different mesh axes, so that each is checked.
        pairs = list_pairs(shift, count_devices(axes), axes)
        # JAX numbers the devices in the order of the mesh, whatever the order of the axes.
        ordered = tuple(mesh_axis for mesh_axis in list_manual_axes() if mesh_axis in axes)
        numbers = renumber(axes, ordered)
        return lax.ppermute(
            array, assignment.shorten_entry(ordered), [(numbers[i], numbers[j]) for i, j in pairs]
        )

    return map_arrays("ppermute", one, x)


def ragged_all_to_all(
    operand: NamedArray,
    output: NamedArray,
    axis: AxisSelector,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    over: AxisSelector | None = None,
) -> NamedArray:
    """Send a different number of rows to each device, and write received rows into `output`. TPU and GPU only.

    Args:
        operand: the rows to send, along `axis`.
        output: the array to overwrite with the received rows; the other axes are those of `operand`.
        axis: the axis of the rows.
        input_offsets: where the rows for each device start in `operand`.
        send_sizes: how many rows to send to each device.
        output_offsets: where to write them in the `output` of each device.
        recv_sizes: how many rows to receive from each device.
        over: the axis or mesh axis whose devices take part, if the mapping of `axis` does not say.

    Raises:
        ArgumentError: if offsets or sizes are not one per device.
        AxisNotFoundError: if an operand lacks the axis.
        BroadcastError: if the two arrays have different axes.
        ShardingError: if no Manual mesh axis takes part.

    Examples:
        >>> def exchange(rows, room, sizes):  # on each device; `sizes` has a number for each device
        ...     starts = jnp.cumsum(sizes) - sizes
        ...     return axn.collectives.ragged_all_to_all(rows, room, "token", starts, sizes, starts, sizes)
        >>> mesh = jax.make_mesh((4,), ("expert",))
        >>> run = axn.shard_map(exchange, {"token": "expert"}, mesh)
        >>> rows = axn.ones({"token": 16, "embed": 2})
        >>> jax.eval_shape(run, rows, rows, jnp.ones(4, int)).shape
        {'token': 16, 'embed': 2}
    """
    name, _ = selector(axis, "ragged_all_to_all")
    for side in (operand, output):
        require_axis("ragged_all_to_all", name, side.names, side.array)
    if set(operand.names) != set(output.names):
        problem = "the two arrays have different axes"
        facts = [f"operand has: {describe(operand.names, None)}"]
        facts += [f"output has: {describe(output.names, None)}"]
        raise BroadcastError(message("ragged_all_to_all", problem, *facts))
    meaning: Meaning = "mesh"
    if over is None:
        over, meaning = axis, "arrays"
    axes = find_mesh_axes("ragged_all_to_all", over, operand.names, operand.array, meaning=meaning)
    if not axes:
        hint = "name the mesh axis to send rows over with over="
        problem = f"axis {name!r} is mapped to no Manual mesh axis"
        raise ShardingError(message("ragged_all_to_all", problem, hint=hint))
    numbers = {"input_offsets": input_offsets, "send_sizes": send_sizes}
    numbers |= {"output_offsets": output_offsets, "recv_sizes": recv_sizes}
    for what, given in numbers.items():
        if jnp.shape(given) != (count_devices(axes),):
            problem = f"{what} has shape {jnp.shape(given)}, but {', '.join(axes)} has {count_devices(axes)} devices"
            raise ArgumentError(message("ragged_all_to_all", problem))
    # JAX sends rows, the first dimension.
    order = (name, *(n for n in operand.names if n != name))
    sent = lax.ragged_all_to_all(
        # Rows need the same order of axes on both sides.
        operand.rearrange(order).array,
        output.rearrange(order).array,
        *numbers.values(),
        axis_name=assignment.shorten_entry(axes),
    )
    return NamedArray(sent, order).rearrange(output.names)


def axis_index(
    axis: AxisSelection | None = None, *, over: AxisSelection | None = None
) -> jax.Array:
    """Return the index of this device's block of an axis: 0 where it is not mapped.

    For several mesh axes, the last one runs fastest. Arguments are those of `psum`.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> x = axn.arange(axn.Axis("batch", 8))
        >>> axn.shard_map(lambda x: 0 * x + axn.axis_index("batch"), {"batch": "data"}, mesh)(x).array
        Array([0, 0, 1, 1, 2, 2, 3, 3], dtype=int32)
    """
    axes = _find_mesh_axes("axis_index", axis, over)
    return lax.axis_index(axes) if axes else jnp.zeros((), jnp.int32)


def axis_size(axis: AxisSelection | None = None, *, over: AxisSelection | None = None) -> int:
    """Return the number of blocks of an axis: 1 where it is not mapped. Arguments are those of `psum`.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> x = axn.arange(axn.Axis("batch", 8))
        >>> axn.shard_map(lambda x: 0 * x + axn.collectives.axis_size("batch"), {"batch": "data"}, mesh)(x).array
        Array([4, 4, 4, 4, 4, 4, 4, 4], dtype=int32)
    """
    return count_devices(_find_mesh_axes("axis_size", axis, over))


def fold_key(
    key: jax.Array, axis: AxisSelection | None = None, *, over: AxisSelection | None = None
) -> jax.Array:
    """Make a random key that differs between the blocks of an axis; where it is not mapped, keep the key.

    Arguments are those of `psum`.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> x = axn.arange(axn.Axis("batch", 8))
        >>> def draw(x, key):
        ...     return 0 * x + axn.random.bits(axn.fold_key(key, "batch"), ()).astype(int)
        >>> drawn = axn.shard_map(draw, {"batch": "data"}, mesh)(x, jax.random.key(0))
        >>> len(set(drawn.array.tolist()))  # one number for each device
        4
    """
    axes = _find_mesh_axes("fold_key", axis, over)
    return jax.random.fold_in(key, lax.axis_index(axes)) if axes else key


def pcast(
    x: T,
    axis: AxisSelection | None = None,
    to: Literal["varying"] = "varying",
    *,
    over: AxisSelection | None = None,
) -> T:
    """Make JAX treat values as if they differed between the blocks of an axis.

    Each device then computes its own gradient with respect to the value, to be summed later. Use this for gradient
    accumulation, for Jacobians and gradients of each row, and for loop carries that are initially equal on all devices.
    Arguments are those of `psum`.

    Raises:
        ArgumentError: if `to` is not "varying".

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> def grow(x):
        ...     start = axn.pcast(axn.zeros(()), "batch")
        ...     return x + axn.fold(lambda total, row: total + row, "batch")(start, x)
        >>> x = axn.ones({"batch": 8})
        >>> axn.shard_map(grow, {"batch": "data"}, mesh)(x).array
        Array([3., 3., 3., 3., 3., 3., 3., 3.], dtype=float32)
    """
    asked, meaning = read_axes("pcast", axis, over)
    if to != "varying":
        raise ArgumentError(message("pcast", f"to must be 'varying', not {to!r}"))

    def one(array: jax.Array, names: Names) -> Any:
        axes = find_mesh_axes("pcast", asked, names, meaning=meaning)
        # JAX refuses to cast an array over mesh axes over which it varies already.
        missing = partition.without(axes, tracing.varying_over(array))
        if missing and is_checked(axes):
            return lax.pcast(array, missing, to=to)
        return array

    return map_arrays("pcast", one, x)


def _find_mesh_axes(function: str, axis: AxisSelection | None, over: AxisSelection | None) -> Entry:
    asked, meaning = read_axes(function, axis, over)
    return find_mesh_axes(function, asked, (), meaning=meaning)


def _reduce_over_devices(
    function: str,
    collective: Callable[..., Any],
    x: T,
    axis: AxisSelection | None,
    over: AxisSelection | None,
    *,
    idle: bool,
) -> T:
    """Reduce each leaf over the devices; `idle` allows values that are equal on all devices."""
    asked, meaning = read_axes(function, axis, over)
    named = asked if over is None else {}  # mesh axes may add up blocks of any axis

    def combine(array: jax.Array, axes: Entry) -> Any:
        return narrow_sums.reduce_in_float32(lambda array: collective(array, axes), array)

    def one(array: Any, names: Names) -> Any:
        for pair in named.items():
            _require_reducible(function, pair, names, array)
        is_number = isinstance(array, bool | int | float | complex)
        axes = find_mesh_axes(function, asked, names, None if is_number else array, meaning=meaning)
        for pair in named.items():
            require_no_blocks(function, pair, names, array, axes)

        if is_number:
            if idle or not axes:
                return array
            return collective(array, axes)
        if not axes:
            return _reduce_alone(function, array)
        if idle and is_checked(axes):
            # an extremum of equal values is the value: only those that differ are compared
            axes = partition.only(axes, tracing.varying_over(array))
            if not axes:
                return array
        else:
            require_partial(function, array, names, axes)
        return combine(array, axes)

    return map_arrays(function, one, x, numbers=True)


def _require_reducible(
    function: str, axis: tuple[str, int | None], names: Names, array: object
) -> None:
    """Raise for a reduction over an axis that the array has, or that a surrounding `vmap` hides."""
    name, size = axis
    if size is None:
        require_one_meaning(function, name, names, array)
    scope = current_scope()
    if scope is not None and name in scope.hidden and find_mesh_axes(function, {name: size}, names):
        problem = f"a surrounding vmap or nmap maps over axis {name!r}, "
        problem += "so the reduction would be only over devices"
        hint = "reduce outside of it; or name the mesh axis"
        raise ShardingError(message(function, problem, describe_array(names, array), hint=hint))
    if name in names:
        problem = f"the array has axis {name!r} itself, so its blocks would be reduced into one"
        hint = f'reduce it first: axn.{function}(x.sum("{name}"), "{name}"); '
        hint += "or name the mesh axis"
        raise ShardingError(message(function, problem, describe_array(names, array), hint=hint))
    require_computed(function, name, names, array)


def _reduce_alone(function: str, array: jax.Array) -> jax.Array:
    """Reduce over a single device, with the dtype that a reduction over several has."""
    if function == "psum" and array.dtype == bool:
        return array.astype(jnp.int32)
    if function == "pmean" and (array.dtype == bool or jnp.issubdtype(array.dtype, jnp.integer)):
        # Over no mesh axes, it divides by one, and so makes floats of integers.
        array = lax.pmean(array, ())
    return array


def _without_types(collective: Callable[..., Any], array: jax.Array) -> Any:
    """Run a collective whose result has the types of its operand on Explicit mesh axes.

    JAX 0.12.0.1 cannot lower a `psum_scatter`, or the gradient of an `all_gather`, beside Explicit axes.
    """
    sharding = jax.typeof(array).sharding
    # Usual meshes need no detour, which would be traced apart.
    if not modes.has_explicit(sharding.mesh):
        return collective(array)
    return explicit.make_auto(collective, sharding.mesh, sharding)(array)
