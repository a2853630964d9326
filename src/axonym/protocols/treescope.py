"""Internal. Show a named array in treescope, which is an extra: this module is imported when treescope calls it."""

from typing import Any

from treescope import ndarray_adapters, rendering_parts, type_registries  # type: ignore[import-untyped]  # no py.typed

from ..engine.core import Core, axes_of
from ..ops.shape import broadcast_to
from .printing import summary

# Treescope takes objects without a hash for mutable, and marks an array that a tree holds twice.
type_registries.IMMUTABLE_TYPES_REGISTRY[Core] = True


def render(x: Core, path: str | None, subtree_renderer: Any) -> Any:
    """Render the names, sizes and layout, and the array in treescope's way."""
    array = subtree_renderer(x.array, path=None if path is None else f"{path}.array")
    # In roundtrip mode, treescope puts angle brackets around a text that Python cannot evaluate.
    return rendering_parts.build_foldable_tree_node_from_children(
        prefix=rendering_parts.siblings(
            rendering_parts.roundtrip_condition(roundtrip=rendering_parts.text("<")),
            f"{type(x).__name__}(",
        ),
        children=[summary(x), rendering_parts.siblings_with_annotations("array=", array)],
        suffix=rendering_parts.siblings(
            ")", rendering_parts.roundtrip_condition(roundtrip=rendering_parts.text(">"))
        ),
        comma_separated=True,
        path=path,
    )


def adapter(x: Core) -> "NamedAdapter | None":
    """Return the adapter to draw an array with its names, or None if treescope cannot draw the wrapped array."""
    axes_are_here = len(getattr(x.array, "shape", ())) >= len(x.names)
    held = type_registries.lookup_ndarray_adapter(x.array) if axes_are_here else None
    if held is None or isinstance(x.array, Core):
        return None
    return NamedAdapter(held)


class NamedAdapter(ndarray_adapters.NDArrayAdapter[Core]):  # type: ignore[misc]  # treescope has no py.typed
    """Draw named arrays by name, with the positional adapter of the wrapped array.

    Args:
        held: the adapter of the wrapped array.
    """

    def __init__(self, held: ndarray_adapters.NDArrayAdapter[Any]) -> None:
        self.held = held

    def get_axis_info_for_array_data(self, array: Core) -> tuple[ndarray_adapters.AxisInfo, ...]:
        """Return the names with their sizes; anonymous dimensions are identified by position."""
        sizes = array.array.shape
        anonymous = len(sizes) - len(array.names)
        positional, by_name = (
            ndarray_adapters.PositionalAxisInfo,
            ndarray_adapters.NamedPositionlessAxisInfo,
        )
        return (
            *(positional(at, size) for at, size in enumerate(sizes[:anonymous])),
            *(by_name(axis.name, axis.size) for axis in axes_of("treescope", array)),
        )

    def get_array_data_with_truncation(
        self, array: Core, mask: Any, edge_items_per_axis: tuple[int | None, ...]
    ) -> Any:
        """Return the elements to draw; a named mask is matched by name."""
        if isinstance(mask, Core):
            mask = broadcast_to(mask, axes_of("treescope", array)).array  # type: ignore[arg-type]  # always a NamedArray
        return self.held.get_array_data_with_truncation(array.array, mask, edge_items_per_axis)

    def get_array_summary(self, array: Core, fast: bool) -> Any:
        """Return one line: names, sizes, and the wrapped adapter's summary of the elements."""
        return rendering_parts.siblings(
            f"NamedArray {summary(array)} ", self.held.get_array_summary(array.array, fast)
        )

    def get_numpy_dtype(self, array: Core) -> Any:
        """Return the dtype, or None for PRNG keys."""
        return self.held.get_numpy_dtype(array.array)

    def get_sharding_info_for_array_data(self, array: Core) -> ndarray_adapters.ShardingInfo | None:
        """Return the sharding of the array."""
        return self.held.get_sharding_info_for_array_data(array.array)

    def should_autovisualize(self, array: Core) -> Any:
        """Return whether the elements are available to draw."""
        return self.held.should_autovisualize(array.array)
