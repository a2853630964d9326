"""Map a function over named axes.

`vmap` hides axes from a function, so that code for one example works on a batch. On a mesh, the hidden axis stays
sharded: `jax.vmap` learns its mesh axes, and layouts inside leave them alone.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ..array import NamedArray
from ..axis import Axis, AxisSelection, selection
from ..base.calls import explain_calls, explaining_names
from ..base.kinds import is_array
from ..errors import OperandError, message, suggestion
from ..faults import empty_arrays
from ..layout import assignment, constraints, context, explicit, modes, partition
from ..layout.assignment import Entry
from ..layout.layout import Layout
from ..layout.records import note
from ..layout.scope import hiding
from .leaves import Arguments, Parts, Skeleton, make_mover, make_namer, repeat_prefix, take_arrays

__all__ = ["vmap"]

P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    fn: Callable[P, R],
    axis: AxisSelection,
    *,
    default: object = 0,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    out_axis: int = 0,
) -> Callable[P, R]:
    """Map a function over one or several axes, which the function does not see.

    Named arrays with the axis are mapped over it, and others are passed whole. Plain arrays are mapped over dimension
    0; plain scalars and everything else are passed whole. If the current mapping maps the axis to mesh axes, it is
    sharded over them, and stays so inside the function.

    Args:
        fn: the function.
        axis: the axis; an `Axis` that no argument has becomes a new one. The first of several is outermost.
        default: the dimension of plain arrays to map: an int, None to pass them whole, or a function of an array that
            returns one of these.
        args: the same for each positional argument, or trees of this; further arguments take the default.
        kwargs: the same for arguments by name.
        out_axis: the place of the axis in the result, as in `jax.vmap`: 0 is first, and -1 last.

    Returns:
        A function whose arrays have the axes of `fn`'s result and the mapped ones. Leaves of the result that are not
        arrays, Python numbers included, stay as they are.

    Raises:
        AxisSizeError: if sizes of the axis differ, or neither an argument nor an `Axis` gives one.
        AxisClashError: if the result of the function already has the axis.
        ArgumentError: if a result has no such place as `out_axis`.
        OperandError: if `args` or `kwargs` do not fit the function, or a dimension does not exist.
        ShardingError: if the mapping and the mesh do not fit the axis.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=2, embed=3)
        >>> axn.vmap(lambda x: x.sum("embed"), Batch)(axn.ones((Batch, Embed)))
        NamedArray(float32[batch=2])
        [3. 3.]
    """
    mapped: Callable[..., Any] = fn
    place = out_axis
    for pair in reversed(selection(axis, "vmap")):
        mapped = _map_over(mapped, pair, default, tuple(args), dict(kwargs or {}), place)
        if isinstance(out_axis, int) and out_axis < 0:
            place -= 1  # in front of the one behind it
    return mapped


Mapped = Callable[..., Parts]


def _map_over(
    fn: Callable[..., Any],
    axis: tuple[str, int | None],
    default: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    out_axis: int,
) -> Callable[..., Any]:
    name = axis[0]
    parameters = _list_parameters(fn, args, kwargs)

    def inner(arguments: Skeleton, *arrays: object) -> Parts:
        called, named = arguments.fill(arrays)
        with explaining_names():
            return take_arrays(fn(*called, **named), numbers=False)

    def leave_axes(arguments: Skeleton, *arrays: object) -> Parts:
        # A result may not be split over mesh axes that the mapped axis takes: `jax.vmap` adds them to its type.
        outputs, skeleton = inner(arguments, *arrays)
        return list(map(explicit.remove_taken_axes, outputs)), skeleton

    @functools.lru_cache(64)  # making one costs as much as all work on names
    def make_batched(
        dims: tuple[int, ...], size: int, mesh_axes: Entry | None, typed: bool = False
    ) -> Mapped:
        called = leave_axes if typed else inner
        return jax.vmap(called, in_axes=(None, *dims), axis_size=size, spmd_axis_name=mesh_axes)

    @functools.wraps(fn)
    def call_mapped(*positional: object, **keyword: object) -> Any:
        dims: list[object] | None = None
        if args or kwargs:
            given = _list_settings(positional, keyword, parameters, default, args, kwargs)
            dims = repeat_prefix("vmap", given, (positional, keyword))

        def dimension(i: int, leaf: Any) -> int | None:
            if isinstance(leaf, NamedArray):
                names = leaf.names
                return names.index(name) - len(names) if name in names else None
            if not is_array(leaf) or leaf.ndim == 0:
                return None
            at = default if dims is None else dims[i]
            return cast("int | None", at(leaf) if callable(at) else at)

        # Arguments are taken apart at each call; the dimensions are the key under which the mapped function is cached.
        arguments = Arguments("vmap", axis, (positional, keyword), dimension)
        outputs, skeleton = _call_batched(make_batched, name, arguments)
        arrays = list(map(empty_arrays.replicate_empty, outputs))
        # JAX puts the new dimension first; names say where it goes.
        placed = make_namer("vmap", Axis(name, arguments.size), out_axis)
        moved = make_mover("vmap", name, out_axis)
        return skeleton.fill(arrays, name=placed, plain=moved)

    return call_mapped


def _call_batched(make_batched: Callable[..., Mapped], name: str, arguments: Arguments) -> Parts:
    """Call the mapped function, and keep the axis sharded: by type on Explicit axes, by constraint on Auto ones."""
    dims, mapping = tuple(arguments.dims), context.current_mapping()
    typed = any(map(explicit.has_explicit_axes, arguments.arrays))
    if mapping is None and not typed:
        return make_batched(dims, arguments.size, None)(arguments.skeleton, *arguments.arrays)
    mesh = context.context_mesh()
    auto: tuple[str, ...] = ()
    asked = context.map_names({name: arguments.size})
    if mapping is not None and mesh is not None and asked.get(name):
        note(mapping, (name,))
        sizes = (arguments.size,)
        spec = partition.find_layout((name,), sizes, mapping, mesh, "vmap", lays_out=False).spec
        (entry,) = Layout.from_spec(spec)
        auto = partition.only(entry, modes.find_auto_axes(mesh))
    labels = [
        [name if at == dim else None for at in range(x.ndim)]
        for x, dim in zip(arguments.arrays, dims, strict=True)
    ]
    arrays, table = explicit.agree((name,), labels, arguments.arrays, asked)
    taken = table.get(name, ())
    # Explicit axes of a type win: `jax.vmap` reads them itself, and a constraint would contradict them.
    constrained = () if taken else auto
    known: Entry | None = constrained or None
    if constrained and mesh is not None and modes.has_manual(mesh):
        # Inside a shard_map, JAX takes the name of a mapped axis for a Manual mesh axis.
        known = None
        split = functools.partial(_constrain_labels, mesh=mesh, mesh_axes=constrained)
        arrays = list(map(split, arrays, labels))
    with context.take_axes((*taken, *constrained)), hiding((name,)):
        return make_batched(dims, arguments.size, known, bool(taken))(arguments.skeleton, *arrays)


def _constrain_labels(
    array: jax.Array, labels: Sequence[str | None], mesh: assignment.MeshLike, mesh_axes: Entry
) -> jax.Array:
    """Constrain the labelled dimension to Auto mesh axes; the compiler shards all others."""
    if not any(labels):
        return array
    free = PartitionSpec.UNCONSTRAINED
    spec = PartitionSpec(*(mesh_axes if label else free for label in labels))
    # in a program, since arrays that a shard_map closes over may not be on the mesh yet
    split: jax.Array = constraints.constrain_auto(array, NamedSharding(mesh, spec))
    return split


def _list_parameters(
    fn: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]
) -> list[str]:
    """Return the names of positional parameters, and check that those in `args` and `kwargs` exist."""
    if not args and not kwargs:
        return []
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # written in C: the call itself will say what does not fit
        return []
    try:
        signature.bind_partial(*args, **kwargs)
    except TypeError as flaw:
        problem = f"args and kwargs do not fit the function: {flaw}"
        strange = [key for key in kwargs if key not in signature.parameters]
        hints = (suggestion(key, signature.parameters) for key in strange)
        hint = next(filter(None, hints), None)
        raise OperandError(
            message("vmap", problem, f"its parameters: {signature}", hint=hint)
        ) from None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]


def _list_settings(
    positional: tuple[object, ...],
    keyword: dict[str, object],
    parameters: list[str],
    default: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Any:
    """Return the setting of each argument, whichever way the setting and the argument are passed."""
    # `args` may be set for a parameter that is passed by name, and the other way round.
    named = dict(zip(parameters, args, strict=False)) | kwargs
    by_position = [named.get(name, default) for name in parameters[: len(positional)]]
    rest = [default] * len(positional)
    dims = (*args, *by_position[len(args) :], *rest)[: len(positional)]
    return dims, {key: named.get(key, default) for key in keyword}


explain_calls(globals(), __all__)
