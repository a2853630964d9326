"""How a named array prints: its axes with their sizes, its layout on a mesh, and the elements of a small array."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .core import Core, facts, shape_of
from .errors import OperandError, describe, message

__all__ = ["document", "formatted", "has_values", "head", "summary", "text"]

SMALL = 16  # the largest number of elements to print


def _is_array(array: Any) -> bool:
    """Return whether a payload has a dtype and a shape, unlike other leaves of JAX's transformations."""
    return not isinstance(array, Core) and hasattr(array, "dtype") and isinstance(getattr(array, "shape", None), tuple)


def _partitions(array: Any) -> tuple[Any, ...]:
    """Return the mesh axes of each dimension, from the type of a traced array or the sharding of a concrete one."""
    owner = jax.typeof(array) if isinstance(array, Tracer) else array
    sharding = getattr(owner, "sharding", None)
    return tuple(sharding.spec) if isinstance(sharding, jax.sharding.NamedSharding) else ()


def _place(entry: Any) -> str:
    """Format the mesh axes of one dimension as JAX does in types."""
    if isinstance(entry, str):
        return f"@{entry}"
    return f"@({','.join(entry)})" if isinstance(entry, tuple) and entry else ""


def summary(x: Core) -> str:
    """Format dtype, axes and layout, as in `float32[batch=32@data, embed=64]`; only the names if there is no array."""
    (array,), names = x.node
    if not _is_array(array):
        return repr(names)
    places = [_place(entry) for entry in _partitions(array)]
    anonymous = len(array.shape) - len(names)
    if not any(places) or anonymous < 0:
        return f"{array.dtype}[{describe(names, array.shape).replace('no axes', '')}]"
    places += [""] * (len(array.shape) - len(places))
    sizes = [f"{size}{place}" for size, place in zip(array.shape, places, strict=True)]
    parts = [f"{name}={size}" for name, size in zip(names, sizes[anonymous:], strict=True)]
    if anonymous:
        parts.insert(0, f"anonymous ({', '.join(sizes[:anonymous])}{',' if anonymous == 1 else ''})")
    return f"{array.dtype}[{', '.join(parts)}]"


def head(x: Core) -> str:
    """Format an array without its elements, as in `NamedArray(float32[batch=32, embed=64])`."""
    (array,), _ = x.node
    if _is_array(array):
        return f"NamedArray({summary(x)})"
    return f"NamedArray({head(array) if isinstance(array, Core) else repr(array)}, {summary(x)})"


def has_values(array: Any) -> bool:
    """Return whether an array has values, that is, is neither traced nor abstract."""
    return not isinstance(array, Tracer) and isinstance(array, jax.Array | np.ndarray | np.generic)


def _elements(array: Any) -> str | None:
    """Format the elements; None if there are too many, or they are not available."""
    if not has_values(array) or array.size > SMALL:
        return None
    if isinstance(array, jax.Array):
        if array.is_deleted():
            return "deleted"
        here = array.is_fully_addressable or array.is_fully_replicated
        if not here or jnp.issubdtype(array.dtype, jax.dtypes.extended):
            return None
    return str(np.asarray(array))


def text(x: Core) -> str:
    """Format an array: its head, and below it the elements if they are few and available."""
    (array,), _ = x.node
    elements = _elements(array) if _is_array(array) else None
    return head(x) if elements is None else f"{head(x)}\n{elements}"


def formatted(x: Core, spec: str) -> str:
    """Format the element of an array without dimensions, as in `f"{loss:.3f}"`.

    Raises:
        OperandError: if there are dimensions, or no value yet.
    """
    (array,), names = x.node
    if not spec:
        return str(x)
    if shape_of("format", array, names):
        problem = f"format {spec!r} applies to a single element, but the array has dimensions"
        hint = "reduce or index it first; without a format, the array is shown as by print(x)"
        raise OperandError(message("format", problem, f"array has: {facts(x)}", hint=hint))
    if not has_values(array):
        hint = 'inside jax.jit, print with jax.debug.print("{x}", x=x)'
        raise OperandError(message("format", "the array has no values yet", f"array has: {facts(x)}", hint=hint))
    return format(np.asarray(array)[()], spec)


def document(x: Core, **options: Any) -> Any:
    """Build the document for printing a tree such as an Equinox module: the head; with `short_arrays=False`, the text.

    Equinox and jaxtyping print with wadler_lindig, which calls `__pdoc__`, and so is installed when this runs.
    """
    import wadler_lindig as wl

    (array,), _ = x.node
    if not _is_array(array):
        inner = [wl.pdoc(array, **options), wl.TextDoc(summary(x))]
        return wl.bracketed(wl.TextDoc("NamedArray("), inner, wl.comma, wl.TextDoc(")"), options.get("indent", 2))
    if options.get("short_arrays", True):
        return wl.TextDoc(head(x))
    # One line if it fits, else each line of the elements indented like the tree.
    return wl.join(wl.BreakDoc(" "), [wl.TextDoc(line) for line in text(x).split("\n")])
