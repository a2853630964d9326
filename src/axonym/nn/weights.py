"""Internal. Products of inputs with weights, and what layers do with their parameters.

This is the seam between layers and meshes: `multiply`, `look_up` and `gathered` decide how devices share a product.
The compiler shares it by default. `manual`, where `named_jit` asks for it, gathers weights in a `shard_map`; `rings`
sends blocks of the input around. Both ask `find_mesh_to_share` first. Layers know nothing of meshes.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import Axis, AxisSpec, axis_name
from ..base.dtypes import widen_to
from ..engine import primitives
from ..faults.gathered_rows import find_lookup
from ..layout import tracing
from ..layout.assignment import AxisMapping, MeshLike
from ..layout.context import context_mesh, current_mapping, find_stored_mapping, get_taken_axes
from ..layout.layout import Layout
from ..layout.modes import is_one_mode
from ..layout.partition import count_shards
from ..layout.records import AUDIT, Table, note_table
from ..names.plans import Names
from ..ops.contract import dot
from ..ops.index import take
from ..ops.logical import logical_or
from ..ops.where import where
from ..partitioning.options import PRODUCTS
from ..partitioning.padding import PaddedArray, is_padded
from ..partitioning.shard import auto_sharded, pspec_for
from ..partitioning.trees import find_static_axes, shard_tree
from .manual import Division, apply_by_hand, find_division

X = TypeVar("X")
W = TypeVar("W")
R = TypeVar("R")
LayerT = TypeVar("LayerT", bound=eqx.Module)


def find_mesh_to_share(is_asked: bool) -> tuple[AxisMapping, MeshLike] | None:
    """Return the current mapping and mesh, if devices may share products by hand; None leaves it to the compiler.

    Args:
        is_asked: whether the surrounding `named_jit` asks for this kind of sharing.
    """
    # `axn.check` reports the layout of arrays, and inside a shard_map it would see blocks.
    if not is_asked or AUDIT.get() is not None:
        return None
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None or mapping.uneven or get_taken_axes():
        return None
    # Operations that run at once need no plan. A shard_map around the product, or mesh axes in two modes, would have to
    # agree with the shard_map by hand about each axis.
    return (mapping, mesh) if tracing.tracing() and is_one_mode(mesh) else None


def apply_gathered(
    fn: Callable[[X, W], R],
    x: X,
    weights: W,
    keep: Callable[..., bool] | None = None,
) -> R:
    """Call a function of inputs and weights, after gathering weights that are stored in another layout.

    The compiler alone may move the larger activations, or the weights several times. The backward pass gathers the
    weights again. If it kept them, every device would have those of all layers of a loop at once.

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
        # No program is traced, though perhaps a gradient, so arrays are moved at once. JAX would evaluate a checkpoint
        # operation by operation, and raise for constraints on weights that one device has.
        return fn(x, auto_sharded(weights))

    def run(x: X, weights: W) -> R:
        return fn(x, auto_sharded(weights))

    # Outside a loop, the compiler may merge both gathers. That sends less, and keeps the weights of few layers.
    result: R = jax.checkpoint(run, prevent_cse=False, policy=keep)(x, weights)
    return result


def multiply(
    x: NamedArray,
    weight: NamedArray | PaddedArray,
    axis: tuple[Axis, ...],
    dot_general: Callable[..., jax.Array] | None = None,
) -> NamedArray:
    """Contract an input and a weight over axes; devices gather the weight by hand, if they are asked to.

    Args:
        x: axes {*axis, ...}.
        weight: axes {*axis, ...}. Neither sum nor result has its padding.
        axis: the axes to sum over.
        dot_general: multiplies, instead of `jax.lax.dot_general`.
    """
    if isinstance(weight, PaddedArray):
        # The padding meets zeros in the sum, and is cut off the result: so its gradient is zero, too.
        extended = weight.extend(x)
        x = extended if extended is x else auto_sharded(extended)
        return weight.trim(multiply(x, weight.read(), axis, dot_general))
    # Names without sizes, since a block of the weight in a shard_map has other ones.
    names = axis_name(axis)
    dot_general = lax.dot_general if dot_general is None else dot_general

    def product(x: NamedArray, weight: NamedArray) -> NamedArray:
        return dot(x, weight, axis=names, dot_general=dot_general)

    # Another function may look at all of an operand, such as for a scale.
    division = _find_division(x, weight, names) if _is_plain(dot_general) else None
    if division is not None:
        return apply_by_hand(product, division, x, weight)
    return apply_gathered(product, x, weight)


def _find_division(x: NamedArray, weight: NamedArray, summed: Names) -> Division | None:
    """Return how devices share a product whose weight they gather by hand, or None where the compiler gathers it."""
    shared = find_mesh_to_share(PRODUCTS.get().manual)
    return None if shared is None else find_division(x, weight, summed, *shared)


def _is_plain(dot_general: Callable[..., jax.Array]) -> bool:
    """Return whether a function is JAX's product."""
    # `Linear` stores a function as a `jax.tree_util.Partial`.
    if isinstance(dot_general, partial) and not dot_general.args and not dot_general.keywords:
        dot_general = dot_general.func
    return dot_general is lax.dot_general


def look_up(weight: NamedArray | PaddedArray, rows: Axis, ids: NamedArray) -> NamedArray:
    """Look up rows of a table by ids.

    The table is gathered, unless its rows are stored in parts and a device has fewer ids than the table has rows. Then
    each device looks up its parts of these rows and sends them, which is less than the table.
    """
    if isinstance(weight, PaddedArray):
        Stored = weight.read().resolve_axis(rows.name)
        return weight.trim(look_up(weight.read(), Stored, _avoid_padding(ids, rows, Stored)))
    stored, mesh = _find_storage_of_parts(weight, rows, ids), context_mesh()
    division = _find_division(ids, weight, (rows.name,)) if stored is None else None
    if division is not None:
        return apply_by_hand(lambda ids, table: take(table, rows.name, ids), division, ids, weight)
    table = Table(weight.names, weight.array.shape, rows.name, ids.names, ids.array.shape)
    note_table(table)
    if find_lookup(table) is None:
        # In the other case, `take` shards the table itself.
        weight = (
            auto_sharded(weight)
            if stored is None or mesh is None
            else shard_tree(weight, stored, mesh)
        )
    return take(weight, rows, ids)


def _avoid_padding(ids: NamedArray, rows: Axis, Stored: Axis) -> NamedArray:
    """Return the ids of the same rows in a table with padding at its end; those out of range stay so."""
    if ids.dtype.itemsize < 4:  # it may have no number for the end of the table
        ids = ids.astype(jnp.int32)
    ids = where(ids < 0, ids + rows.size, ids)
    return where(logical_or(ids < 0, ids >= rows.size), Stored.size, ids)


def _find_storage_of_parts(weight: NamedArray, rows: Axis, ids: NamedArray) -> AxisMapping | None:
    """Return the mapping by which a table is stored, if its rows should be looked up in parts there."""
    mapping, stored, mesh = current_mapping(), find_stored_mapping(weight.names), context_mesh()
    if mapping is None or stored is None or mesh is None or not tracing.tracing():
        return None
    stored_layout = Layout.from_spec(pspec_for(weight, stored, strict=False))
    gathered_layout = Layout.from_spec(pspec_for(weight, mapping, strict=False))
    at = weight.names.index(rows.name)
    # A device that has only some of the rows cannot look up the others.
    if stored_layout == gathered_layout or stored_layout[at] != gathered_layout[at]:
        return None
    by_ids = Layout.from_spec(pspec_for(ids, mapping, strict=False))
    shards = count_shards(mesh, tuple(itertools.chain.from_iterable(by_ids)))
    return stored if ids.array.size < rows.size * shards else None


def add_bias(y: NamedArray, bias: NamedArray | PaddedArray | None) -> NamedArray:
    """Add a bias, if there is one, in the layout of the mapping: another layout would change that of the result."""
    if isinstance(bias, PaddedArray):
        return y + bias.cut()
    return y if bias is None else y + auto_sharded(bias)


def keep_padding(layer: LayerT, *names: str) -> LayerT:
    """Return a layer that treats the padding of some axes as ordinary positions."""

    def cut(leaf: Any) -> Any:
        return leaf.cut(*names) if isinstance(leaf, PaddedArray) else leaf

    parameters = jax.tree.leaves(layer, is_leaf=is_padded)
    padding = [own for each in parameters if isinstance(each, PaddedArray) for own in each.padding]
    if not padding:
        return layer
    sizes = {own.name: own.stored for own in padding if own.name in names}
    # The layer checks inputs by the axes that it declares, so these get the stored sizes, too.
    fields: dict[str, Any] = {}
    for field, axes in find_static_axes(layer).items():
        extended = tuple(axis.resize(sizes.get(axis.name, axis.size)) for axis in axes)
        is_one = isinstance(getattr(layer, field), Axis)
        fields[field] = extended[0] if is_one else extended
    kept: LayerT = dataclasses.replace(jax.tree.map(cut, layer, is_leaf=is_padded), **fields)
    return kept


def widen_layer(layer: LayerT, dtype: DTypeLike) -> LayerT:
    """Return a layer whose floating arrays are of a dtype, or wider."""
    arrays, rest = eqx.partition(layer, eqx.is_inexact_array)
    widened: LayerT = eqx.combine(jax.tree.map(partial(widen_to, dtype), arrays), rest)
    return widened


def find_dtype(layer: Any) -> jnp.dtype[Any]:
    """Return the dtype of the weight of a layer, which is its first array, also after `add_lora`."""
    dtype: jnp.dtype[Any] = jax.tree.leaves(layer)[0].dtype
    return dtype


def make_if(
    wanted: bool, make: Callable[[AxisSpec], NamedArray], axes: AxisSpec
) -> NamedArray | None:
    """Make a parameter that a layer may do without, such as a bias."""
    return make(axes) if wanted else None


def order_axes(
    inputs: Sequence[Axis], outputs: Sequence[Axis], out_first: bool
) -> tuple[Axis, ...]:
    """Return the axes of a weight in the order in which it is stored."""
    return (*outputs, *inputs) if out_first else (*inputs, *outputs)


def find_stored_outputs(inputs: tuple[Axis, ...], outputs: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes of `outputs` in a weight: one that is also an input is called `<name>.out`."""
    # An array cannot have a name twice, so a weight from `embed` to `embed` needs a second name.
    taken = axis_name(inputs)
    return tuple(axis.derive("out") if axis.name in taken else axis for axis in outputs)


def find_derived_names(inputs: tuple[Axis, ...], outputs: tuple[Axis, ...]) -> dict[str, str]:
    """Return the names of those outputs that are called otherwise in a weight: `{"embed": "embed.out"}`."""
    pairs = zip(outputs, find_stored_outputs(inputs, outputs), strict=True)
    return {out.name: stored.name for out, stored in pairs if out != stored}


def read_vector(parameter: NamedArray | PaddedArray) -> NamedArray:
    """Return a parameter that is not a factor of a product, in the layout of the mapping and without padding."""
    return auto_sharded(parameter.cut() if isinstance(parameter, PaddedArray) else parameter)


def collect_parameters(weight: NamedArray | None, bias: NamedArray | None) -> list[NamedArray]:
    """Return those parameters that a layer has, sharded by the mapping.

    A parameter that is gathered before the kernel is gathered once; inside of it, the backward pass would do so again.
    """
    return [read_vector(own) for own in (weight, bias) if own is not None]


def apply_affine(
    x: jax.Array,
    parameters: Sequence[jax.Array],
    weighted: bool,
    biased: bool,
) -> jax.Array:
    """Multiply by the first parameter, if `weighted`, and add the last one, if `biased`."""
    if weighted:
        x = primitives.multiply(x, widen_to(x.dtype, parameters[0]))
    if biased:
        x = primitives.add(x, widen_to(x.dtype, parameters[-1]))
    return x
