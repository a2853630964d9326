"""Internal. One call in a program that describes what a kernel computes, and may replace the kernel.

`kernel_cost` and the kernels of attention call it while a cost is counted. It knows no kernel.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..current.machine import MACHINE, KernelCall

T = TypeVar("T")


def count_kernel(
    kernel: str,
    flops: int,
    backward: int,
    fn: Callable[[Any], T],
    operands: Any,
    results: Any = None,
    kept: Any = (),
) -> T:
    """Call a kernel while a cost is counted; if its compiler is missing here, call a stand-in.

    Args:
        kernel: its name.
        flops: its operations.
        backward: those of its gradient.
        fn: the kernel, of the operands as one tree.
        operands: the tree; leaves that are no arrays are static.
        results: the shapes of its results, perhaps with shardings; by default, the kernel is traced for them.
        kept: the shapes of further arrays that it keeps for its gradient, besides operands and results.
    """
    leaves, structure = jax.tree.flatten(operands)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    arrays = [leaves[i] for i in at]

    def run(*arrays: jax.Array) -> T:
        own = list(leaves)
        for i, array in zip(at, arrays, strict=True):
            own[i] = array
        return fn(jax.tree.unflatten(structure, own))

    if results is None:
        results = jax.tree.map(_drop_sharding, jax.eval_shape(run, *arrays))
    one = KernelCall(kernel, flops, backward, _count_elements(results))
    machine = MACHINE.get()
    if machine is not None and machine.has_compiler:
        return _call(one, run, arrays)
    found: T = _stand_in(one, arrays, results, kept)
    return found


def _stand_in(one: KernelCall, arrays: Sequence[jax.Array], results: Any, kept: Any) -> Any:
    """Return the results of a stand-in: neither the call nor its gradient ever runs."""
    # A custom derivative keeps JAX from asking the call for its rules, of which it has none.
    own: Any = jax.custom_vjp(lambda *arrays: _call_nothing(one, results, arrays))

    def forward(*arrays: jax.Array) -> Any:
        out, more = _call_nothing(one, (results, kept), arrays)
        return out, (arrays, out, more)

    def backward(saved: Any, by_out: object) -> Any:
        # Gradients have the shardings of operands, if somebody says that the kernel computes shards.
        like = _drop_sharding if _find_first(results).sharding is None else jax.typeof
        floating = [like(x) if jnp.issubdtype(x.dtype, jnp.inexact) else None for x in saved[0]]
        gradient = KernelCall(one.kernel, one.backward, 0, _count_elements(floating))
        return tuple(_call_nothing(gradient, floating, (saved, by_out)))

    own.defvjp(forward, backward)
    return own(*arrays)


def _call_nothing(one: KernelCall, results: T, operands: Any) -> T:
    """Return arrays of the given shapes that depend on all operands, by a call that must never run."""

    def never(*_: object) -> Any:
        raise AssertionError("a program whose cost was counted must not run")

    def run(*arrays: jax.Array) -> Any:
        out = jax.pure_callback(never, results, *arrays, vmap_method="broadcast_all")
        if not jax.sharding.get_abstract_mesh().explicit_axes:
            return out
        # A callback loses the Explicit mesh axes of a `vmap` around it, such as that of pipeline stages.
        return jax.tree.map(lambda x, own: jax.reshard(x, _find_spec(own)), out, results)

    found: T = _call(one, run, jax.tree.leaves(operands))
    return found


def _call(one: KernelCall, run: Callable[..., T], arrays: Sequence[jax.Array]) -> T:
    """Call a function under a name that describes what it computes."""

    def call(*arrays: jax.Array) -> T:
        return run(*arrays)

    call.__name__ = call.__qualname__ = one.name
    found: T = jax.jit(call)(*arrays)
    return found


def _find_spec(one: jax.ShapeDtypeStruct) -> jax.P:
    return jax.P(*[None] * len(one.shape)) if one.sharding is None else one.sharding.spec


def _drop_sharding(one: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(one.shape, one.dtype)


def _count_elements(shapes: Any) -> int:
    """Return the number of elements of the first result."""
    return math.prod(_find_first(shapes).shape)


def _find_first(shapes: Any) -> Any:
    return next(iter(jax.tree.leaves(shapes)))
