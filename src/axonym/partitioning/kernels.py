"""Kernels with a known cost: calls that costs count by formula, and that run unchanged everywhere else."""

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

from ..current.machine import MACHINE
from ..errors import ArgumentError, message
from .counted import count_kernel

__all__ = ["kernel_cost"]

T = TypeVar("T")


def kernel_cost(
    fn: Callable[..., T],
    *,
    flops: float | Callable[..., float],
    backward: float | Callable[..., float] | None = None,
    name: str = "",
) -> Callable[..., T]:
    """Say what a kernel computes, for `axn.cost` and `axn.plan`, which cannot look into it.

    A kernel is a function whose cost a compiler does not know: a call of Pallas, of `jax.ffi`, or of a library. In a
    program that runs, the returned function does the same as the given one. While a cost is counted, a call counts as
    one operation that reads its arguments and writes its results. If the cost is for another machine, only the shapes
    of the results are asked of the function, so it need not compile here. The gradient of the call then keeps arguments
    and results, and one more call computes all gradients of floating arguments.

    Args:
        fn: the kernel, of trees of arrays.
        flops: the number of operations of one call; a multiplication and an addition count as two. Or a function of the
            same arguments that computes the number from their shapes.
        backward: the same for the gradient; by default twice `flops`.
        name: the name in reports; by default that of the function.

    Returns:
        The function, with a cost.

    Raises:
        ArgumentError: when it is called for a cost, if a number of operations is negative, or not finite.

    Examples:
        >>> def double(x):  # stands for a kernel
        ...     return 2 * x
        >>> kernel = axn.partitioning.kernel_cost(double, flops=lambda x: 10 * x.size)
        >>> step = jax.grad(lambda x: kernel(x).sum())
        >>> report = axn.cost(step, {}, {"data": 1}, jnp.zeros(64), target="h100", depth="traced")
        >>> report.totals["flops"]  # 640 forwards, and twice as many backwards
        1920.0
    """
    shown = re.sub(r"\W+", "_", name or getattr(fn, "__name__", "")) or "kernel"

    def call(*args: Any, **kwargs: Any) -> T:
        if MACHINE.get() is None:
            return fn(*args, **kwargs)

        def count(given: float | Callable[..., float]) -> int:
            number = float(given(*args, **kwargs) if callable(given) else given)
            if not 0 <= number < math.inf:
                problem = f"a kernel cannot have {number!r} operations"
                raise ArgumentError(message("kernel_cost", problem))
            return round(number)

        forward = count(flops)
        derived = 2 * forward if backward is None else count(backward)
        return count_kernel(
            shown, forward, derived, lambda args: fn(*args[0], **args[1]), (args, kwargs)
        )

    return call
