"""Functions that keep only their inputs for the backward pass, and recompute the rest.

Activations and norms are such functions. Memory is slow, so it takes longer to read their intermediates than to compute
them again. `keep_intermediates` switches this off.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import ParamSpec, TypeVar

import jax
from jax.core import Tracer

from .settings import KEEPS_INTERMEDIATES

__all__ = ["from_inputs", "keep_intermediates"]

P = ParamSpec("P")
R = TypeVar("R")


def from_inputs(fn: Callable[P, R]) -> Callable[P, R]:
    """Make a function keep only its inputs for the backward pass, and recompute its intermediates.

    This suits functions that are cheap for the size of their intermediates: elementwise functions, norms, masks. It is
    `jax.checkpoint`, but eager calls and calls within `keep_intermediates` skip it.

    Args:
        fn: a function of arrays and named arrays; arguments by keyword are static.

    Returns:
        A function with the same arguments and results.

    Examples:
        >>> swish = axn.nn.from_inputs(lambda x: x * axn.nn.sigmoid(x))
        >>> jax.grad(lambda x: swish(x).sum().scalar())(axn.zeros({"embed": 2})).tolist()
        [0.5, 0.5]
    """

    @wraps(fn)
    def run(*args: P.args, **options: P.kwargs) -> R:
        # Arrays that are no tracers have no backward pass, and JAX would evaluate a checkpoint operation by operation.
        if KEEPS_INTERMEDIATES.value or not any(
            isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args)
        ):
            return fn(*args, **options)
        # Outside a loop, the compiler would otherwise merge the recomputation with the first computation.
        recomputed: Callable[..., R] = jax.checkpoint(partial(fn, **options))
        return recomputed(*args)

    return run


def keep_intermediates(keep: bool = True) -> AbstractContextManager[None]:
    """Make activations and norms keep their intermediates for the backward pass, inside a `with` block.

    They otherwise keep their inputs and recompute the rest, which takes less memory and mostly less time.

    Args:
        keep: False restores recomputation inside the block.

    Examples:
        >>> with axn.nn.keep_intermediates():
        ...     jax.grad(lambda x: axn.nn.silu(x).sum().scalar())(axn.zeros({"embed": 2})).tolist()
        [0.5, 0.5]
    """
    context: AbstractContextManager[None] = KEEPS_INTERMEDIATES(keep)
    return context
