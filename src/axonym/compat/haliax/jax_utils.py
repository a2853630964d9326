"""Small additions to JAX."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import multihost_utils

from axonym import Axis, AxisSpec
from axonym.engine import Tree, transforming
from axonym.errors import ArgumentError, message

from ._adapt import Function, KindError, Operand
from ._checkpoint import tree_checkpoint_name
from ._elementwise import raw
from ._index import to_size
from .util import (
    UNSPECIFIED,
    ensure_tuple,
    is_jax_or_hax_array_like as is_jax_array_like,
    safe_wraps,
)

__all__ = [
    "F",
    "Static",
    "T",
    "assert_equal",
    "broadcast_one_to_all",
    "broadcast_prefix",
    "combine",
    "ensure_scalar",
    "filter_checkpoint",
    "filter_eval_shape",
    "is_in_jit",
    "is_jax_array_like",
    "is_on_mac_metal",
    "is_pallas_dslice",
    "is_scalarish",
    "maybe_rng_split",
    "multilevel_scan",
    "named_call",
    "shaped_rng_split",
    "sync_global_devices",
    "to_jax_shape",
    "tree_checkpoint_name",
]

F = TypeVar("F", bound=Function)
T = TypeVar("T")

combine = eqx.combine
filter_checkpoint = eqx.filter_checkpoint
filter_eval_shape = eqx.filter_eval_shape
sync_global_devices = multihost_utils.sync_global_devices


class Static(eqx.Module):
    """A value stored as a static part of a tree."""

    value: Any = eqx.field(static=True)


def assert_equal(in_tree: Tree, fail_message: str = "") -> None:
    """Check that all processes have equal values."""
    multihost_utils.assert_equal(in_tree, fail_message)


def broadcast_one_to_all(in_tree: Tree, is_source: bool | None = None) -> Tree:
    """Broadcast the values of one process, by default the first, to all."""
    return multihost_utils.broadcast_one_to_all(in_tree, is_source)


def broadcast_prefix(
    prefix_tree: Tree, full_tree: Tree, is_leaf: Callable[[Any], bool] | None = None
) -> Tree:
    """Repeat the leaves of a tree prefix for all leaves of a tree, in its structure."""
    return jax.tree.broadcast(prefix_tree, full_tree, is_leaf=is_leaf)


def is_in_jit() -> bool:
    """Return whether JAX is tracing."""
    return transforming()


def is_on_mac_metal() -> bool:
    """Return whether the default backend is Metal."""
    return jax.default_backend().lower() == "metal"


def is_pallas_dslice(x: object) -> bool:
    """Return whether something is a dynamic slice of Pallas, such as `pl.ds(start, size)`."""
    from jax.experimental import pallas  # slow to import, and rarely needed

    return isinstance(x, pallas.Slice)


def is_scalarish(x: object) -> bool:
    """Return whether `x` is a number or an array without dimensions, named or not."""
    return isinstance(x, bool | int | float | complex) or getattr(x, "ndim", None) == 0


def ensure_scalar(x: Operand, *, name: str = "value") -> Any:
    """Return a number or an array without dimensions, converting a NamedArray to a plain array.

    Raises:
        KindError: if it has dimensions.
    """
    if not is_scalarish(x):
        raise KindError(message("ensure_scalar", f"{name} must be a scalar, not {_kind(x)}"))
    return raw(x)


def _kind(x: object) -> str:
    shape = getattr(x, "shape", None)
    if shape is None:
        return type(x).__name__
    return f"{type(x).__name__} of shape {shape}"


def maybe_rng_split(key: jax.Array | None, num: int = 2) -> Any:
    """Split a key, or return as many None for None; for `num=1`, the key is not split."""
    if key is None:
        return [None] * num
    if num == 1:
        return jnp.expand_dims(key, 0)
    return jax.random.split(key, num)


def shaped_rng_split(key: jax.Array, split_shape: int | Sequence[int] = 2) -> jax.Array:
    """Split a key into an array of keys; for a single one, it is not split."""
    shape = ensure_tuple(split_shape)
    keys: jax.Array = jnp.reshape(maybe_rng_split(key, math.prod(shape)), (*shape, *key.shape))
    return keys


def to_jax_shape(shape: AxisSpec | int | Sequence[Axis | int]) -> tuple[int, ...]:
    """Return the sizes of axes, each of which may be given as a size."""
    if isinstance(shape, Mapping):
        return tuple(shape.values())
    given: tuple[Axis | int, ...] = ensure_tuple(shape)
    return tuple(map(to_size, given))


def named_call(f: Any = UNSPECIFIED, name: str | None = None) -> Any:
    """Name the operations of a function in profiles; also a decorator, with and without a name."""
    if f is UNSPECIFIED:
        return lambda fn: named_call(fn, name)
    scope = name
    if scope is None:
        scope = getattr(f, "__qualname__", None) or type(f).__qualname__
        owner = getattr(f, "__self__", None)
        if owner is not None and not isinstance(owner, type):
            scope = f"{type(owner).__qualname__}.{f.__name__}"

    @safe_wraps(f)
    def call(*args: object, **kwargs: object) -> Tree:
        with jax.named_scope(scope):
            return f(*args, **kwargs)

    return call


def multilevel_scan(
    f: Callable[[Tree, Tree], tuple[Tree, Tree]],
    carry: Tree,
    xs: Tree,
    outer_size: int,
    length: int,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Tree, Tree]:
    """Run a `lax.scan` in groups, saving only the carries between groups for the backward pass.

    Raises:
        ArgumentError: if the number of steps is not a multiple of the number of groups.
    """
    if outer_size < 1 or length % outer_size:
        problem = f"{length} steps cannot be split into {outer_size} equal groups"
        raise ArgumentError(message("multilevel_scan", problem))
    inner = length // outer_size
    grouped = jax.tree.map(lambda x: x.reshape(outer_size, inner, *x.shape[1:]), xs)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def group(carry: Tree, xs: Tree) -> tuple[Tree, Tree]:
        return lax.scan(f, carry, xs, length=inner, reverse=reverse, unroll=unroll)

    carry, ys = lax.scan(group, carry, grouped, length=outer_size, reverse=reverse)
    return carry, jax.tree.map(lambda y: y.reshape(length, *y.shape[2:]), ys)
