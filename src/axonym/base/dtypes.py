"""Internal. Wider types: for positions along an axis, and for computing with narrow numbers.

All functions work with strict dtype promotion (`jax_numpy_dtype_promotion`), and say where `jax.numpy` differs.
"""

from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from ..errors import OperandError, message
from .kinds import Payload

A = TypeVar("A")
# What torch and configurations call dtypes.
_SHORT = {
    "bf16": "bfloat16",
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32"), "float32"),
    **dict.fromkeys(("fp64", "f64"), "float64"),
    "long": "int64",
}


def widen_positions(positions: Payload) -> Payload:
    """Convert integers of less than 32 bits to a type that can hold all positions along an axis."""
    dtype = getattr(positions, "dtype", None)
    # Numbers of Python have no dtype, and are wide enough.
    is_narrow = dtype is not None and dtype.itemsize < 4 and jnp.issubdtype(dtype, jnp.integer)
    return positions.astype(np.int32) if is_narrow else positions


def at_least_float32(dtype: DTypeLike) -> Any:
    """Return the dtype to compute in: `dtype` itself if it is float32 or wider, and otherwise float32.

    This is `jax.numpy.promote_types` with float32, even with strict dtype promotion.
    """
    is_wide = jnp.issubdtype(dtype, jnp.inexact) and jnp.dtype(dtype).itemsize >= 4
    return dtype if is_wide else jnp.dtype(jnp.float32)


def inexact_dtype(dtype: DTypeLike) -> Any:
    """Return the dtype in which `jax.numpy` computes means and roots: for integers and masks, a float.

    Unlike `jax.numpy.result_type(x, float)`, it has 64 bits only for 64-bit integers, and ignores strict dtype
    promotion.
    """
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype
    return jnp.dtype(jnp.float64 if jnp.dtype(dtype).itemsize == 8 else jnp.float32)


def to_inexact(x: Payload) -> Payload:
    """Convert integers and masks to the floats that `jax.numpy` would compute with."""
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(inexact_dtype(x.dtype))


def match_ranks(x: Payload, y: Payload) -> tuple[Payload, Payload]:
    """Add leading dimensions of size 1 to the array that has fewer, even if JAX may not promote ranks."""
    if x.ndim == y.ndim:
        return x, y
    rank = max(x.ndim, y.ndim)
    return lax.expand_dims(x, range(rank - x.ndim)), lax.expand_dims(y, range(rank - y.ndim))


def refuse_dtype(function: str, dtype: Any) -> None:
    """Raise OperandError for a dtype that JAX has refused, and do nothing for any other."""
    try:
        jnp.dtype(dtype)
    except TypeError:
        name = str(dtype).removeprefix("torch.")
        name = _SHORT.get(name, name)
        hint = (
            f"write jnp.{name}"
            if hasattr(jnp, name)
            else "dtypes are those of jax.numpy: jnp.bfloat16"
        )
        raise OperandError(
            message(function, f"there is no dtype {str(dtype)!r}", hint=hint)
        ) from None


def widen(x: A) -> A:
    """Return an array, named or plain, in the dtype to compute in: `at_least_float32`."""
    array: Payload = x
    wide: A = array.astype(at_least_float32(array.dtype))
    return wide


def widen_to(dtype: Any, x: Payload) -> Payload:
    """Convert an array to a wider dtype, as implicit promotion would."""
    return x.astype(dtype) if x.dtype.itemsize < dtype.itemsize else x


def limits(dtype: Any) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a dtype."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return False, True
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
        return limits.dtype.type(limits.min), limits.dtype.type(limits.max)
    if np.isnan(np.asarray(jnp.inf, dtype)):  # a narrow type without infinities
        finite = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
        return finite.min, finite.max
    return -jnp.inf, jnp.inf
