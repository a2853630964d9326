"""Internal. Products of inputs with weights, and what layers do with their parameters.

This is the seam between layers and meshes: `multiply`, `look_up` and `gathered` decide how devices share a product.
The compiler shares it by default. `manual`, where `named_jit` asks for it, gathers weights in a `shard_map`; `rings`
sends blocks of the input around. Both ask `find_mesh_to_share` first. Layers know nothing of meshes.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import equinox as eqx
import jax
from jax import lax
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import Axis, AxisSpec, axis_name
from ..dtypes import widened_to
from ..engine import primitives
from ..faults.gathered_rows import find_lookup
from ..layout import tracing
from ..layout.assignment import AxisMapping, MeshLike
from ..layout.context import context_mesh, current_mapping, stored_mapping, taken_axes
from ..layout.layout import Layout
from ..layout.modes import is_one_mode
from ..layout.partition import count_shards
from ..layout.records import AUDIT
from ..names.plans import Names
from ..ops.contract import dot
from ..ops.index import take
from ..partitioning.options import PRODUCTS
from ..partitioning.shard import auto_sharded, pspec_for
from ..partitioning.trees import shard_tree
from .manual import Division, divided, division

X = TypeVar("X")
W = TypeVar("W")
R = TypeVar("R")
LayerT = TypeVar("LayerT", bound=eqx.Module)


def find_mesh_to_share(is_asked: bool) -> tuple[AxisMapping, MeshLike] | None:
    """Return the current mapping and mesh, if devices may share products by hand; None leaves it to the compiler.

    Args:
        is_asked: whether the surrounding `named_jit` asks for this kind of sharing.
    """
    if not is_asked or AUDIT.get() is not None:  # A check is to see whole arrays.
        return None
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None or mapping.uneven or taken_axes():
        return None
    # A shard_map by hand stands for itself: another one around it, or axes in two modes, would change its types.
    return (mapping, mesh) if tracing.tracing() and is_one_mode(mesh) else None


def gathered(
    fn: Callable[[X, W], R],
    x: X,
    weights: W,
    keep: Callable[..., bool] | None = None,
) -> R:
    """Call a function of inputs and weights, after gathering weights that are stored in another layout.

    Otherwise, the compiler may move the larger activations, or the weights several times. The backward pass gathers the
    weights again: if kept, those of all layers of a loop would be on every device at once.

    Args:
        fn: the function.
        x: its first argument, a tree.
        weights: its second one.
        keep: which intermediates to keep for the backward pass, as a policy of `jax.checkpoint`; by default none, for
            functions whose gradient needs none, such as one product.
    """
    if current_mapping() is None or context_mesh() is None:
        return fn(x, weights)

    if not tracing.tracing():
        # No program is traced, though perhaps a gradient: arrays are moved at once. JAX would evaluate a checkpoint
        # operation by operation, and raise for constraints on weights on one device.
        return fn(x, auto_sharded(weights))

    def run(x: X, weights: W) -> R:
        return fn(x, auto_sharded(weights))

    result: R = jax.checkpoint(run, prevent_cse=False, policy=keep)(x, weights)
    return result


def multiply(
    x: NamedArray,
    weight: NamedArray,
    axis: tuple[Axis, ...],
    dot_general: Callable[..., jax.Array] | None = None,
) -> NamedArray:
    """Contract an input and a weight, `gathered`, or `divided` by hand."""
    names = axis_name(axis)  # a block of the weight has other sizes
    if dot_general is None:
        dot_general = lax.dot_general

    def product(x: NamedArray, weight: NamedArray) -> NamedArray:
        return dot(x, weight, axis=names, dot_general=dot_general)

    # Another function may look at all of an operand, such as for a scale.
    shares = _find_division(x, weight, names) if _is_plain(dot_general) else None
    return gathered(product, x, weight) if shares is None else divided(product, shares, x, weight)


def _find_division(x: NamedArray, weight: NamedArray, summed: Names) -> Division | None:
    """Return how devices share a product whose weight they gather by hand, or None where the compiler gathers it."""
    shared = find_mesh_to_share(PRODUCTS.get().manual)
    return None if shared is None else division(x, weight, summed, *shared)


def _is_plain(dot_general: Callable[..., jax.Array]) -> bool:
    """Return whether a function is JAX's product."""
    if isinstance(dot_general, partial) and not dot_general.args and not dot_general.keywords:
        dot_general = dot_general.func
    return dot_general is lax.dot_general


def look_up(weight: NamedArray, rows: Axis, ids: NamedArray) -> NamedArray:
    """Look up rows of a table by ids.

    Where rows are stored in parts and a device has fewer ids than the table has rows, parts of rows are looked up where
    they are stored, and sent: less than the table. Otherwise, the table is gathered.
    """
    stored, mesh = _stored_apart(weight, rows, ids), context_mesh()
    shares = _find_division(ids, weight, (rows.name,)) if stored is None else None
    if shares is not None:
        return divided(lambda ids, table: take(table, rows.name, ids), shares, ids, weight)
    if find_lookup(weight.names, weight.array.shape, rows.name, ids.names, ids.array.shape) is None:
        # Otherwise, `take` shards the table itself.
        is_apart = stored is not None and mesh is not None
        weight = shard_tree(weight, stored, mesh) if is_apart else auto_sharded(weight)
    return take(weight, rows, ids)


def _stored_apart(weight: NamedArray, rows: Axis, ids: NamedArray) -> AxisMapping | None:
    """Return how a table is stored, if rows are to be looked up there."""
    mapping, stored, mesh = current_mapping(), stored_mapping(weight.names), context_mesh()
    if mapping is None or stored is None or mesh is None or not tracing.tracing():
        return None
    split = Layout.from_spec(pspec_for(weight, stored, strict=False))
    gathered = Layout.from_spec(pspec_for(weight, mapping, strict=False))
    at = weight.names.index(rows.name)
    if split == gathered or split[at] != gathered[at]:
        return None
    by_ids = Layout.from_spec(pspec_for(ids, mapping, strict=False))
    ways = count_shards(mesh, tuple(itertools.chain.from_iterable(by_ids)))
    if ids.array.size >= rows.size * ways:
        return None
    return stored


def add_bias(y: NamedArray, bias: NamedArray | None) -> NamedArray:
    """Add a bias, if there is one, in the layout of the mapping: another one would change that of the result."""
    if bias is None:
        return y
    return y + auto_sharded(bias)


def widened_layer(layer: LayerT, dtype: DTypeLike) -> LayerT:
    """Return a layer whose floating arrays are of a dtype, or wider."""
    arrays, rest = eqx.partition(layer, eqx.is_inexact_array)
    widened: LayerT = eqx.combine(jax.tree.map(partial(widened_to, dtype), arrays), rest)
    return widened


def made_if(
    wanted: bool, make: Callable[[AxisSpec], NamedArray], axes: AxisSpec
) -> NamedArray | None:
    """Make a parameter that a layer may do without, such as a bias."""
    if not wanted:
        return None
    return make(axes)


def in_order(inputs: Sequence[Axis], outputs: Sequence[Axis], out_first: bool) -> tuple[Axis, ...]:
    """Return the axes of a weight in the order in which it is stored."""
    if out_first:
        return (*outputs, *inputs)
    return (*inputs, *outputs)


def stored_outputs(inputs: tuple[Axis, ...], outputs: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes of `outputs` in a weight: one that is also an input is called `<name>.out`."""
    taken = axis_name(inputs)

    def stored(axis: Axis) -> Axis:
        if axis.name in taken:
            return axis.derive("out")
        return axis

    return tuple(map(stored, outputs))


def derived_names(inputs: tuple[Axis, ...], outputs: tuple[Axis, ...]) -> dict[str, str]:
    """Return the names of those outputs that are called otherwise in a weight: `{"embed": "embed.out"}`."""
    pairs = zip(outputs, stored_outputs(inputs, outputs), strict=True)
    return {out.name: stored.name for out, stored in pairs if out != stored}


def parameters_of(weight: NamedArray | None, bias: NamedArray | None) -> list[NamedArray]:
    """Return those parameters that a layer has.

    Laid out before the kernel, one with another sharding is gathered once, not again in the backward pass.
    """
    return [auto_sharded(own) for own in (weight, bias) if own is not None]


def affine(
    x: jax.Array,
    parameters: Sequence[jax.Array],
    weighted: bool,
    biased: bool,
) -> jax.Array:
    """Multiply by the first parameter, if `weighted`, and add the last one, if `biased`."""
    if weighted:
        x = primitives.multiply(x, widened_to(x.dtype, parameters[0]))
    if biased:
        x = primitives.add(x, widened_to(x.dtype, parameters[-1]))
    return x
