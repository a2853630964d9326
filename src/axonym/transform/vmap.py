"""Map a function over named axes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from .. import layout
from ..array import NamedArray
from ..axis import AxisSelection, selection
from ..errors import AxisClashError, message
from ._leaves import Arguments, Outputs, is_array

__all__ = ["vmap"]

P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    fn: Callable[P, R],
    axis: AxisSelection,
    *,
    default: Any = 0,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Callable[P, R]:
    """Map a function over an axis, or over several, which the function does not see.

    Named arrays that have the axis are mapped over it, and others are passed whole. Plain arrays are mapped over
    dimension 0; plain scalars and all that is no array are passed whole. In the result the axis comes first. If the
    current mapping maps the axis to mesh axes, constraints inside of the function keep it there.

    Args:
        fn: the function.
        axis: the axis; an `Axis` that no argument has becomes a new one. Of several, the first is outermost.
        default: which dimension of plain arrays is mapped, an int, or None to pass them whole.
        args: the same for positional arguments one by one: ints, None, or trees of them; those left out take the default.
        kwargs: the same for keyword arguments.

    Raises:
        AxisSizeError: if sizes of the axis differ, or no argument and no `Axis` tells its size.
        AxisClashError: if the result of the function already has the axis.

    Example:
        >>> Batch, Embed = axn.make_axes(batch=2, embed=3)
        >>> axn.vmap(lambda x: x.sum("embed"), Batch)(axn.ones((Batch, Embed)))
        NamedArray(float32[batch=2])
        [3. 3.]
    """
    mapped: Callable[..., Any] = fn
    for pair in reversed(selection(axis, "vmap")):
        mapped = _vmap(mapped, pair, default, tuple(args), dict(kwargs or {}))
    return mapped


def _vmap(
    fn: Callable[..., Any], axis: tuple[str, int | None], default: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    name = axis[0]

    @functools.wraps(fn)
    def mapped(*positional: Any, **keyword: Any) -> Any:
        dims = _dimensions(positional, keyword, default, args, kwargs) if args or kwargs else None

        def dimension(i: int, leaf: Any) -> int | None:
            if isinstance(leaf, NamedArray):
                names = leaf.names
                return names.index(name) - len(names) if name in names else None
            if not is_array(leaf) or leaf.ndim == 0:
                return None
            return default if dims is None else dims[i]

        arguments = Arguments("vmap", axis, (positional, keyword), dimension)
        outputs: list[Outputs] = []

        def inner(*arrays: Any) -> Any:
            called, named = arguments.rebuild(arrays)
            outputs[:] = [Outputs(fn(*called, **named))]
            return outputs[0].arrays

        results = _batched(inner, name, arguments)
        return outputs[0].rebuild(results, name)

    return mapped


def _batched(inner: Callable[..., Any], name: str, arguments: Arguments) -> Any:
    mapping, mesh = layout.current_mapping(), layout.context_mesh()
    mesh_axes: Any = None
    if mapping and mesh is not None and mapping.get(name):
        layout.note(mapping, (name,))
        mesh_axes = mapping[name]
    vmapped = jax.vmap(inner, in_axes=tuple(arguments.dims), axis_size=arguments.size, spmd_axis_name=mesh_axes)
    return vmapped(*arguments.arrays)


def _dimensions(
    positional: tuple[Any, ...], keyword: dict[str, Any], default: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """Spread the given dimensions, which are tree prefixes, over all leaves."""
    given = (*args, *[default] * (len(positional) - len(args)))
    named = {key: kwargs.get(key, default) for key in keyword}
    is_leaf = lambda x: x is None or isinstance(x, NamedArray)  # noqa: E731
    spread = jax.tree.map(
        lambda dim, part: [dim] * len(jax.tree.leaves(part, is_leaf=lambda x: isinstance(x, NamedArray))),
        (given, named),
        (positional, keyword),
        is_leaf=is_leaf,
    )
    return [dim for dims in jax.tree.leaves(spread, is_leaf=lambda x: isinstance(x, list)) for dim in dims]
