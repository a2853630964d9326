"""Map positional functions over all names, to use code without names.

`nmap` leaves names and comes back: a function of `jax.numpy` or of another library sees only the dimensions that you
have untagged, and `jax.vmap` maps it over all others.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp

from ..array import NamedArray, is_named_array
from ..axis import Axis, AxisSelection, selection
from ..base.calls import explain_calls
from ..engine import auto, checks
from ..engine.core import rename_hole, shape_of, wrap
from ..errors import AxisSizeError, OperandError, describe, message
from ..layout import context, explicit
from ..layout.scope import hiding
from ..names import plans
from .leaves import Parts, is_hole, take_arrays

__all__ = ["nmap"]

_SAW_NOTHING = (
    "nmap: the function saw single elements, since all dimensions have names; "
    'untag the axes that it works on: x.untag("embed")'
)


def nmap(fn: Callable[..., Any], *, out_axis: AxisSelection | None = None) -> Callable[..., Any]:
    """Make a positional function work on named arrays: it sees only anonymous dimensions.

    The function is mapped over all names of its arguments. `x.untag("a", "b")` makes axes visible to the function. On a
    mesh with Explicit axes, the dimensions that the function sees are gathered first.

    Args:
        fn: a function of arrays and other arguments, such as any function of `jax.numpy`.
        out_axis: names for the dimensions of the result of `fn`; all arrays of the result get the same names.

    Returns:
        A function of named arrays. Arrays of its result have the names of all arguments, after the dimensions that `fn`
        returns. These stay anonymous, and `.tag(...)` names them; with `out_axis`, they have these names and come last,
        as those of `jax.vmap` do.

    Raises:
        AxisSizeError: if one name has two sizes, or `out_axis` names another number of dimensions than there are.
        AxisClashError: if a result would have a name twice.
        OperandError: if no argument is a NamedArray.

    Examples:
        >>> x = axn.named([[3., 1., 2.], [6., 5., 4.]], ("batch", "embed"))
        >>> axn.nmap(jnp.sort)(x.untag("embed")).tag("embed")
        NamedArray(float32[embed=3, batch=2])
        [[1. 4.]
         [2. 5.]
         [3. 6.]]
        >>> axn.nmap(jnp.sort, out_axis="embed")(x.untag("embed")).names
        ('batch', 'embed')
    """

    @functools.wraps(fn)
    def call_lifted(*args: object, **kwargs: object) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_named_array)
        named = [leaf for leaf in leaves if _is_mapped(leaf)]
        if not named:
            raise OperandError(
                message("nmap", "no argument is a NamedArray", hint="call the function itself")
            )
        names: tuple[str, ...] = ()
        for leaf in named:
            shape_of("nmap", leaf.array, leaf.names)
            names = plans.union(names, leaf.names)
        sizes = checks.check_sizes(
            "nmap", [leaf.names for leaf in named], [leaf.array for leaf in named]
        )

        def positional(*arrays: object) -> Parts:
            rest = iter(arrays)
            filled = [
                next(rest) if _is_mapped(leaf) else _fill_unmapped(leaf, names) for leaf in leaves
            ]
            args, kwargs = jax.tree.unflatten(tree, filled)
            return take_arrays(fn(*args, **kwargs))

        # The first name becomes the outermost map, and so the first named dimension of the result.
        mapped: Callable[..., Parts] = positional
        for name in names:
            dims = tuple(_find_dimension(leaf, name, names) for leaf in named)
            mapped = jax.vmap(mapped, in_axes=dims, out_axes=-1)
        # Under Explicit axes, `jax.vmap` wants one layout of an axis in all arguments.
        labels: list[list[str | None]] = []
        seen: list[jax.Array] = []
        for leaf in named:
            anonymous = jnp.ndim(leaf.array) - len(leaf.names)
            labels.append([*[None] * anonymous, *leaf.names])
            seen.append(auto.whole(leaf.array, range(anonymous)))
        arrays, table = explicit.agree(names, labels, seen, context.map_names(sizes))
        taken = tuple(itertools.chain.from_iterable(table.values()))
        try:
            with context.take_axes(taken), hiding(names):
                results, skeleton = mapped(*arrays)
        except Exception as error:
            # A function of arrays that got scalars fails with its own errors, which do not explain this.
            if not any(jnp.ndim(leaf.array) > len(leaf.names) for leaf in named):
                error.add_note(_SAW_NOTHING)
            raise

        def name_result(like: NamedArray, array: object) -> NamedArray:
            result = _name_dimensions(names, like, array)
            return result if out_axis is None else _tag_result(result, out_axis, names)

        def name_plain(array: object) -> NamedArray:
            return name_result(wrap(named[0], array, ()), array)

        return skeleton.fill(results, name=name_result, plain=name_plain)

    return call_lifted


def _is_mapped(leaf: object) -> TypeGuard[NamedArray]:
    return isinstance(leaf, NamedArray) and not is_hole(leaf)


def _fill_unmapped(leaf: object, names: tuple[str, ...]) -> object:
    """Return a leaf that is not mapped, as the function sees it; a hole loses names as an array would."""
    if not isinstance(leaf, NamedArray):
        return leaf
    return rename_hole(leaf, plans.without(leaf.names, names))


def _tag_result(x: NamedArray, out_axis: AxisSelection, names: tuple[str, ...]) -> NamedArray:
    """Name the anonymous dimensions of a result, and put the mapped names before them."""
    new = selection(out_axis, "nmap")
    shape = x.array.shape[: x.array.ndim - len(x.names)]
    if len(shape) != len(new):
        problem = f"out_axis has {len(new)} names, but the function returned an array with {len(shape)} dimensions"
        line = f"it returned: shape {shape}, beside {describe(x.names, None)}"
        raise AxisSizeError(message("nmap", problem, line))
    axes = [name if size is None else Axis(name, size) for name, size in new]
    return x.tag(*axes).rearrange((*names, ...))


def _find_dimension(leaf: NamedArray, name: str, names: tuple[str, ...]) -> int | None:
    """Find the dimension to map; maps over later names are further out, and have removed their dimensions already."""
    if name not in leaf.names:
        return None
    # Dimensions are counted from the end, since anonymous ones lead.
    remaining = [own for own in leaf.names if names.index(own) <= names.index(name)]
    return remaining.index(name) - len(remaining)


def _name_dimensions(names: tuple[str, ...], like: NamedArray, array: object) -> NamedArray:
    """Name an array that the function returned with names; the mapped names come after its own."""
    both = (*like.names, *names)
    plans.distinct(both, "nmap: in what the function returned, ")
    return wrap(like, array, both)


explain_calls(globals(), __all__)
