"""Images over named axes: `axn.image`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax

from ..axis import AxisSpec, names_and_sizes, spec
from ..base.calls import explain_calls
from ..engine import auto, checks, kernels
from ..engine.core import shape_of, wrap
from ..engine.renaming import share_by_renaming
from ..errors import ArgumentError, AxisSizeError, describe, message, suggestion
from ..names import plans
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["resize"]

_METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")


def resize(
    x: "NamedArray",
    new_axes: AxisSpec | Mapping[str, int],
    method: str = "linear",
    *,
    antialias: bool = True,
) -> "NamedArray":
    """Resample along axes, which get other sizes; all other axes, such as channels, are batch axes.

    Args:
        x: axes {those of `new_axes`, ...}.
        new_axes: the axes with their new sizes.
        method: "nearest", "linear", "cubic", "lanczos3" or "lanczos5".
        antialias: whether to blur before an axis becomes shorter.

    Returns:
        The axes of `x` in the same order, with the new sizes.

    Raises:
        AxisNotFoundError: if an axis is missing.
        ArgumentError: if the method is unknown.

    Examples:
        >>> Height, Width, Channel = axn.make_axes(height=4, width=6, channel=3)
        >>> axn.image.resize(axn.ones((Height, Width, Channel)), {"height": 8, "width": 3}).shape
        {'height': 8, 'width': 3, 'channel': 3}
    """
    if method not in _METHODS:
        problem, known = f"unknown method {method!r}", f"methods: {', '.join(_METHODS)}"
        raise ArgumentError(message("resize", problem, known, hint=suggestion(method, _METHODS)))
    names, sizes = names_and_sizes(spec(new_axes, "resize"))
    checks.require("resize", x, names)
    kernel = _make_resize(x.names, names, sizes, method, bool(antialias))
    return wrap(x, kernel.call(x.array), x.names)


@share_by_renaming("names", "resized")
def _make_resize(
    names: Names, resized: Names, sizes: tuple[int, ...], method: str, antialias: bool
) -> kernels.Kernel:
    at = plans.positions(names, resized)

    def body(array: jax.Array) -> jax.Array:
        shape = list(shape_of("resize", array, names))
        for position, size in zip(at, sizes, strict=True):
            if not shape[position] and size:
                problem = f"axis {names[position]!r} has no elements to resample"
                held = f"array has: {describe(names, array.shape)}"
                raise AxisSizeError(message("resize", problem, held))
            shape[position] = size

        # On Explicit axes, too, the compiler decides what devices send.
        def resample(array: jax.Array) -> jax.Array:
            result: jax.Array = jax.image.resize(array, shape, method, antialias)
            return result

        return auto.move_elements(resample, [array])

    return kernels.Kernel(names, body)


explain_calls(globals(), __all__)
