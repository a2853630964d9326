"""Internal. The options `dtype` and `initial` of reductions, for `reduce` and `nan_reduce`.

JAX only takes a static initial value, so this value becomes a keyword of the kernel. An option that is None is
left out, because not every function of JAX takes it.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.typing import DTypeLike

from ..base.kinds import type_text
from ..engine import auto
from ..errors import ArgumentError, OperandError, message
from ..layout import explicit

At: TypeAlias = tuple[int, ...]
"""The dimensions to reduce, counted from the last."""
Mask: TypeAlias = jax.Array | None

_JOINS = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "ptp": "maximum",
}
"""The function that joins an element to the result of a reduction."""


def multiply_over(
    fn: Callable[..., jax.Array],
    x: jax.Array,
    axis: At,
    where: Mask,
    options: dict[str, object],
) -> jax.Array:
    """Multiply over axes, where all options but the mask are static."""
    # Within `local`, because JAX's gradient of a product reshapes and slices sharded dimensions.
    removed = {at % x.ndim for at in axis}
    kept = [entry for at, entry in enumerate(explicit.get_layout(x)) if at not in removed]

    def call(x: jax.Array, where: jax.Array | None = None) -> jax.Array:
        return fn(x, axis, where=where, **options)

    arrays = [x] if where is None else [x, where]
    product: jax.Array = auto.local(call, arrays, kept)
    return product


def pass_dtype(dtype: DTypeLike | None) -> dict[str, Any]:
    """Return the keyword for a dtype, if there is one."""
    return {} if dtype is None else {"dtype": dtype}


def check_initial(function: str, initial: complex | None) -> dict[str, Any]:
    """Return the keyword for an initial value, if there is one; it must be static."""
    if initial is None:
        return {}
    if not isinstance(initial, bool | int | float | complex | np.generic):
        join = _JOINS[function.removeprefix("nan")]
        problem = f"initial must be a number, not {type_text(initial)}"
        hint = f"join it to the result: axn.{join}(result, initial)"
        raise OperandError(message(function, problem, hint=hint))
    return {"initial": initial}


def refuse_empty(function: str, fact: str) -> ArgumentError:
    """Return the error for a masked extremum whose mask might include no element."""
    problem = f"there is no {function} of no elements, and the mask might include none"
    hint = "give a value to start from: initial=..."
    return ArgumentError(message(function, problem, fact, hint=hint))
