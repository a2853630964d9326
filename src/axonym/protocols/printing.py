"""Internal. Print a named array: its axes with their sizes, its layout on a mesh, and the elements of a small array.

Only a wrong format raises an error: debuggers print arrays that are broken, traced, deleted or on other hosts.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..base.callers import find_calling_module
from ..base.kinds import Payload, has_type, is_concrete
from ..engine.core import Core, facts, shape_of
from ..errors import OperandError, describe, message

SMALL = 16  # the largest number of elements to print


def _find_partitions(array: Payload) -> tuple[object, ...]:
    """Return the mesh axes of each dimension, from the type of a traced array or the sharding of a concrete one."""
    if isinstance(array, Tracer):
        array = jax.typeof(array)
    sharding = getattr(array, "sharding", None)
    return tuple(sharding.spec) if isinstance(sharding, jax.sharding.NamedSharding) else ()


def _write_entry(entry: object) -> str:
    """Format the mesh axes of one dimension as JAX does in types."""
    if isinstance(entry, str):
        return f"@{entry}"
    if isinstance(entry, tuple) and entry:
        return f"@({','.join(entry)})"
    return ""


def summary(x: Core) -> str:
    """Format dtype, axes and layout, as in `float32[batch=32@data, embed=64]`; only the names if there is no array."""
    (array,), names = x.node
    if not has_type(array):
        return repr(names)
    places = [_write_entry(entry) for entry in _find_partitions(array)]
    anonymous = len(array.shape) - len(names)
    if not any(places) or anonymous < 0:
        return f"{array.dtype}[{describe(names, array.shape).replace('no axes', '')}]"
    places += [""] * (len(array.shape) - len(places))
    sizes = [f"{size}{place}" for size, place in zip(array.shape, places, strict=True)]
    parts = [f"{name}={size}" for name, size in zip(names, sizes[anonymous:], strict=True)]
    if anonymous:
        comma = "," if anonymous == 1 else ""  # as in a tuple of Python
        parts.insert(0, f"anonymous ({', '.join(sizes[:anonymous])}{comma})")
    return f"{array.dtype}[{', '.join(parts)}]"


def head(x: Core) -> str:
    """Format an array without its elements, as in `NamedArray(float32[batch=32, embed=64])`."""
    (array,), _ = x.node
    if has_type(array):
        return f"NamedArray({summary(x)})"
    inner = head(array) if isinstance(array, Core) else repr(array)
    return f"NamedArray({inner}, {summary(x)})"


def _write_elements(array: Payload) -> str | None:
    """Format the elements; None if there are too many, or they are not available."""
    if not is_concrete(array) or array.size > SMALL:
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
    elements = _write_elements(array)
    return head(x) if elements is None else f"{head(x)}\n{elements}"


def format_element(x: Core, spec: str) -> str:
    """Format the element of an array without dimensions, as in `f"{loss:.3f}"`.

    Raises:
        OperandError: if there are dimensions, or no value yet.
    """
    (array,), names = x.node
    if not spec:
        # `jax.grad` refuses a named loss, and shows it in its error. `jax.debug.print` shows what users ask for.
        module = find_calling_module()
        if module.startswith("jax.") and "debug" not in module:
            plain = "x.mean().scalar()" if names else "x.scalar()"
            return f"{x!s} (a named array: {plain} is a plain one, and axn.grad takes named ones)"
        return str(x)
    if shape_of("format", array, names):
        problem = f"format {spec!r} applies to a single element, but the array has dimensions"
        hint = "reduce or index it first; without a format, the array is shown as by print(x)"
        raise OperandError(message("format", problem, f"array has: {facts(x)}", hint=hint))
    if not is_concrete(array):
        hint = 'inside jax.jit, print with jax.debug.print("{x}", x=x)'
        problem = "the array has no values yet"
        raise OperandError(message("format", problem, f"array has: {facts(x)}", hint=hint))
    return format(np.asarray(array)[()], spec)


def document(x: Core, **options: Any) -> Any:
    """Build the document for printing a tree such as an Equinox module: the head, or the text if `short_arrays=False`.

    Equinox and jaxtyping print with wadler_lindig, which calls `__pdoc__`, so it is installed when this runs.
    """
    import wadler_lindig as wl

    (array,), _ = x.node
    if not has_type(array):
        inner = [wl.pdoc(array, **options), wl.TextDoc(summary(x))]
        first, last = wl.TextDoc("NamedArray("), wl.TextDoc(")")
        return wl.bracketed(first, inner, wl.comma, last, options.get("indent", 2))
    if options.get("short_arrays", True):
        return wl.TextDoc(head(x))
    # One line if it fits, else each line of the elements indented like the tree.
    return wl.join(wl.BreakDoc(" "), [wl.TextDoc(line) for line in text(x).split("\n")])
