"""Internal. JAX sums gradients over mesh axes that a `shard_map` leaves idle, and divides them again.

In a `shard_map` that does not check how values vary over mesh axes, it all-reduces numbers that are already equal, on
all platforms, up to at least jax 0.10.2. The reproducer is `tests/upstream/test_idle_mesh_axes.py`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax.sharding import PartitionSpec

T = TypeVar("T")


def run_on_idle_axes(fn: Callable[..., T], idle: set[str], *operands: Any) -> T:
    """Call a function of trees of arrays; all devices along the idle mesh axes compute the same results.

    Its gradient is a separate `shard_map`, so JAX has nothing to derive.

    Args:
        fn: the function.
        idle: the mesh axes.
        operands: trees of arrays and other values.
    """
    # Only floating arrays have gradients, and static values cannot enter a shard_map.
    floating, others = eqx.partition(operands, eqx.is_inexact_array)
    counting, static = eqx.partition(others, eqx.is_array)

    def map_all(fn: Callable[..., Any]) -> Callable[..., Any]:
        spec = PartitionSpec()
        return jax.shard_map(fn, in_specs=spec, out_specs=spec, axis_names=idle, check_vma=False)

    def call(counting: Any, floating: Any) -> T:
        return fn(*eqx.combine(floating, counting, static))

    def forward(counting: object, floating: object) -> Any:
        def differentiate(counting: object, floating: object) -> Any:
            return jax.vjp(lambda floating: call(counting, floating), floating)

        return map_all(differentiate)(counting, floating)

    def backward(pull: object, by_out: object) -> Any:
        return None, *map_all(lambda pull, by_out: pull(by_out))(pull, by_out)

    run = jax.custom_vjp(map_all(call))
    run.defvjp(forward, backward)
    out: T = run(counting, floating)
    return out
