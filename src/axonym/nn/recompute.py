"""Functions that keep only their inputs for the backward pass, and recompute the rest, which is cheap."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import ParamSpec, TypeVar

import jax
from jax.core import Tracer

from .settings import keeping

__all__ = ["from_inputs", "keep_intermediates"]

P = ParamSpec("P")
R = TypeVar("R")


def from_inputs(fn: Callable[P, R]) -> Callable[P, R]:
    """Make a function keep only its inputs for the backward pass, and recompute its intermediates.

    This suits functions that are cheap for the size of their intermediates: elementwise functions, norms, masks.

    Args:
        fn: a function of arrays and named arrays; arguments by keyword are static.
    """

    @wraps(fn)
    def run(*args: P.args, **options: P.kwargs) -> R:
        # Of arrays that are known there is no backward pass.
        if keeping.value or not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args)):
            return fn(*args, **options)
        # Outside a loop, the compiler would otherwise merge the recomputation with the first computation.
        recomputed: Callable[..., R] = jax.checkpoint(partial(fn, **options))
        return recomputed(*args)

    return run


def keep_intermediates(keep: bool = True) -> AbstractContextManager[None]:
    """Make activations and norms keep their intermediates for the backward pass, within the context.

    By default, they keep their inputs and recompute the rest, which takes less memory and, since memory is slow, less
    time.
    """
    context: AbstractContextManager[None] = keeping(keep)
    return context
