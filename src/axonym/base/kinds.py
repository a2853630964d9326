"""Internal. Kinds of leaves and payloads: arrays, arrays with values, anything with a shape and a dtype.

All files ask here and so agree: NumPy arrays, NumPy scalars and tracers are arrays. Only
`is_named_array` knows whether something is a named array.
"""

from typing import Any, Protocol, TypeAlias, TypeGuard, TypeVar

import jax
import numpy as np
from jax.core import Tracer

Payload: TypeAlias = Any
"""What a named array or a tree holds at a place: mostly an array, but a tree function may put anything there."""

Tree: TypeAlias = Any
"""A pytree: a model, its gradient, arguments of a function."""


T = TypeVar("T")


class Typed(Protocol):
    """Anything with a shape and a dtype: an array, concrete, traced or abstract."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        ...

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the elements."""
        ...


def is_array(leaf: object) -> bool:
    """Return whether a leaf is an array of JAX or NumPy, concrete or traced."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def is_concrete(leaf: object) -> bool:
    """Return whether a leaf is an array with values, that is, neither traced nor abstract."""
    return is_array(leaf) and not isinstance(leaf, Tracer)


def has_type(leaf: object) -> TypeGuard[Typed]:
    """Return whether a leaf has a shape and a dtype; abstract arrays such as `jax.ShapeDtypeStruct` do.

    A named array is not its payload, since its shape is by name.
    """
    return hasattr(leaf, "dtype") and isinstance(getattr(leaf, "shape", None), tuple)


def to_tuple(value: T | tuple[T, ...]) -> tuple[T, ...]:
    """Return a tuple as it is, and any other value as a tuple with one entry."""
    return value if isinstance(value, tuple) else (value,)


def type_text(value: object) -> str:
    """Name the type of a value for an error, in the user's words: the class of a tracer tells a user nothing."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, jax.Array | np.ndarray):
        return type(value).__name__
    is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
    return "a PRNG key" if is_key else "a plain array"
