"""Internal. Equations that move elements along a dimension, such as a sort.

If the dimension is split, compilers send something, which costs do not count: `Walk` notes it. The module must not know
collectives.
"""

from collections.abc import Iterable, Mapping, Sequence

from .equations import Equation, Value, count_shards, find_layout, is_kernel_call

# The parameter that names the dimension along which elements move, or several ones.
_ALONG = {
    "approx_top_k": "reduction_dimension",
    "concatenate": "dimension",
    "cumlogsumexp": "axis",
    "cummax": "axis",
    "cummin": "axis",
    "cumprod": "axis",
    "cumsum": "axis",
    "rev": "dimensions",
    "sort": "dimension",
    "top_k": "axis",
}
# Compilers cannot split these, so each device needs complete arrays.
_WHOLE = ("ffi_call", "kernels", "pallas_call", "pure_callback")


def write_crossing(equation: Equation, inputs: Sequence[Value], mesh: Mapping[str, int]) -> str:
    """Return a note about an equation that moves elements between shards; an empty text for others.

    Args:
        equation: the equation.
        inputs: its operands with their layouts.
        mesh: sizes of the mesh axes.
    """
    name = "kernels" if is_kernel_call(equation) else equation.primitive.name
    if name in _WHOLE:
        results = map(find_layout, equation.outvars)
        is_crossing = _is_split(inputs, mesh) and not _is_split(results, mesh)
    else:
        entries = [inputs[0].entries[i] for i in _find_dimensions(equation, inputs)]
        is_crossing = any(count_shards(entry, mesh) > 1 for entry in entries)
    return f"what devices send for {name} along a split dimension is not counted" * is_crossing


def _is_split(values: Iterable[Value], mesh: Mapping[str, int]) -> bool:
    return any(count_shards(entry, mesh) > 1 for value in values for entry in value.entries)


def _find_dimensions(equation: Equation, inputs: Sequence[Value]) -> Sequence[int]:
    """Return the dimensions of the first operand along which elements move."""
    name, params = equation.primitive.name, equation.params
    if name in _ALONG:
        found = params[_ALONG[name]]
        return found if isinstance(found, tuple) else (found,)
    if name == "conv_general_dilated":
        numbers = params["dimension_numbers"]
        places = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True)
        return [image for image, kernel in places if inputs[1].shape[kernel] > 1]
    if name.startswith("reduce_window"):
        return [i for i, size in enumerate(params["window_dimensions"]) if size > 1]
    if name in ("dynamic_slice", "dynamic_update_slice", "pad", "slice"):
        is_update = name == "dynamic_update_slice"
        other = inputs[1].shape if is_update else find_layout(equation.outvars[0]).shape
        pairs = zip(inputs[0].shape, other, strict=True)
        return [i for i, (before, after) in enumerate(pairs) if before != after]
    return ()
