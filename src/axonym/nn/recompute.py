"""What functions keep for their backward pass: their inputs, from which the cheap rest is computed again."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import jax

__all__ = ["from_inputs", "keep_intermediates"]

P = ParamSpec("P")
R = TypeVar("R")

# A user context, because it is part of the key of every trace cache of JAX.
_keeping: Any = jax.make_user_context(default_value=False)


def from_inputs(fn: Callable[P, R]) -> Callable[P, R]:
    """Make a function keep for its backward pass its inputs alone, and compute what lies between again.

    It suits what is cheap next to the arrays that it would keep: elementwise functions, normalisations, masks.

    Args:
        fn: a function of arrays and named arrays; arguments by keyword are static.
    """

    @wraps(fn)
    def run(*args: P.args, **options: P.kwargs) -> R:
        if _keeping.value:
            return fn(*args, **options)
        # Outside of a loop the compiler would merge the second computation with the first, were that not prevented.
        result: R = jax.checkpoint(partial(fn, **options) if options else fn)(*args)
        return result

    return run


def keep_intermediates(keep: bool = True) -> AbstractContextManager[None]:
    """Within the context, make activations and norms keep for their backward pass what automatic differentiation wants.

    By default they keep their inputs and compute the rest again, which takes less memory and, since memory is slow,
    less time.
    """
    context: AbstractContextManager[None] = _keeping(keep)
    return context
