"""Internal. XLA loses NaN in the largest and smallest elements of arrays that are split over devices.

To combine the results of devices, XLA for CPUs and NCCL, its library for GPUs, compare with `fmin` and `fmax`, which
prefer a number to NaN. All versions; `tests/upstream/test_joins_of_devices.py` shows it for CPUs, and
https://github.com/NVIDIA/nccl/blob/master/src/device/reduce_kernel.h for GPUs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..layout import context, explicit, modes
from ..layout.assignment import Entry


def find_max(array: jax.Array, axis: Iterable[int] | None = None, **options: object) -> jax.Array:
    """Do `jnp.max`; NaN is larger than all numbers, on all devices."""
    return _reduce(jnp.max, array, axis, options)


def find_min(array: jax.Array, axis: Iterable[int] | None = None, **options: object) -> jax.Array:
    """Do `jnp.min`; NaN is smaller than all numbers, on all devices."""
    return _reduce(jnp.min, array, axis, options)


def _reduce(
    fn: Callable[..., jax.Array],
    array: jax.Array,
    axis: Iterable[int] | None,
    options: dict[str, object],
) -> jax.Array:
    at = tuple(range(array.ndim) if axis is None else axis)
    return restore_nan(fn(array, at, **options), array, at, where=options.get("where"))


def restore_nan(
    found: jax.Array, array: jax.Array, axis: tuple[int, ...], where: Any = None
) -> jax.Array:
    """Replace an extremum over `axis` by NaN if an element is NaN, since devices may have lost the NaN."""
    if not may_lose_nan(array, axis):
        return found
    return jnp.where(jnp.any(jnp.isnan(array), axis, where=where), jnp.nan, found)


def may_lose_nan(array: jax.Array, axis: Iterable[int]) -> bool:
    """Return whether there may be NaN, and one of the dimensions `axis` may be split over several devices.

    The type of an array says so on Explicit mesh axes; on Auto ones, the compiler decides.
    """
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return False
    mesh = jax.typeof(array).sharding.mesh
    entries = explicit.get_layout(array)
    if any(entries[at] for at in axis):
        return True
    # The type of an array may have no mesh, such as that of a constant.
    if mesh.empty:
        mesh = context.context_mesh()
    if mesh is None:
        return False
    return any(mesh.shape[axis] > 1 for axis in modes.find_auto_axes(mesh))


def restore_nan_of_devices(collective: Callable[..., Any]) -> Callable[..., Any]:
    """Make a collective maximum or minimum whose result is NaN if it is NaN on a device."""

    def extremum(array: jax.Array, axes: Entry) -> Any:
        found = collective(array, axes)
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            return found
        # Integers have no NaN to lose: the flags of the devices are joined by a maximum of their own.
        return jnp.where(lax.pmax(jnp.isnan(array).astype(jnp.int8), axes) > 0, jnp.nan, found)

    return extremum
