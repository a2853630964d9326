"""Internal. Products with weights that devices gather themselves, in a `shard_map`.

`weights` calls it where a `fsdp(..., manual=True)` is current. The gradient of a gather is then a reduce-scatter. The
compiler for CPUs makes none from constraints: it sums the full gradient on each device and keeps a part of it.

A product is two programs, since the compiler gathers a block over all of its mesh axes if only some of them are Manual:

* The gather has all mesh axes Manual. Each device returns the weight that it gathered as one part of an array of all
  these copies, whose gradients are not summed yet.
* The product multiplies the device's part of the batch by its own copy. Only the mesh axes of the batch are Manual. The
  compiler handles the others, such as those of tensor parallelism.
"""

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import jax
from jax import lax
from jax.sharding import PartitionSpec

from ..array import NamedArray
from ..engine.core import wrap
from ..errors import ShardingError
from ..layout import constraints, context, modes, tracing
from ..layout.assignment import AxisMapping, Entry, MeshLike
from ..layout.layout import Layout
from ..layout.partition import count_shards, find_layout
from ..names.plans import Names
from ..partitioning.shard import auto_sharded
from ..partitioning.trees import shard_tree


class Division(NamedTuple):
    """How devices share a product.

    Attributes:
        mesh: the mesh.
        mapping: the mapping by which the product is computed.
        stored: the mapping by which the weight is stored.
        stored_layout: the mesh axes of each dimension of the weight, as it is stored.
        gathered_layout: the same, after the gather.
        parts: the mesh axes over which each device has its own part of the batch, by names of the input.
        further: the other mesh axes over which the operands are sharded.
    """

    mesh: MeshLike
    mapping: AxisMapping
    stored: AxisMapping
    stored_layout: Layout
    gathered_layout: Layout
    parts: dict[str, Entry]
    further: set[str]

    @property
    def batch_axes(self) -> Entry:
        """The mesh axes of the parts."""
        return tuple(chain.from_iterable(self.parts.values()))

    @property
    def manual_axes(self) -> set[str]:
        """The mesh axes that are Manual in the product: all, if none is left to the compiler."""
        return set(self.batch_axes if self.further else self.mesh.axis_names)


def find_division(
    x: NamedArray, weight: NamedArray, summed: Names, mapping: AxisMapping, mesh: MeshLike
) -> Division | None:
    """Return how devices share a product, or None where the compiler does it as well or better.

    Args:
        x: the input.
        weight: the weight.
        summed: the axes that the product sums over.
        mapping: the current mapping.
        mesh: the current mesh.
    """
    stored = context.find_stored_mapping(weight.names)
    if stored is None or stored.uneven:
        return None
    if x.array.ndim != len(x.names) or weight.array.ndim != len(weight.names):
        return None
    try:
        stored_layout = find_layout(weight.names, weight.array.shape, stored, mesh)
        gathered_layout = find_layout(weight.names, weight.array.shape, mapping, mesh)
        of_input = find_layout(x.names, x.array.shape, mapping, mesh).by_name(x.names)
    except ShardingError:
        # The product itself raises when it shards the arrays, and its message names the operation.
        return None

    over = _find_gathered_axes(stored_layout, gathered_layout)
    # Only an axis that the product neither sums over nor takes from the weight is one of the batch.
    own = (*summed, *weight.names)
    parts = {
        name: entry for name, entry in of_input.items() if set(entry) & over and name not in own
    }
    batch = set(chain.from_iterable(parts.values()))
    others = set(chain.from_iterable(gathered_layout))
    # Each device that gathers the weight needs a part of the batch of its own. Otherwise, devices would compute the
    # same product, and their gradients would be summed too often.
    if not over or not over <= batch or batch & others or count_shards(mesh, tuple(over)) == 1:
        return None
    further = others.union(*of_input.values()) - batch
    if further and modes.has_explicit(mesh):
        # Over these axes, jax 0.10 would gather what stays outside of the shard_map.
        return None
    return Division(mesh, mapping, stored, stored_layout, gathered_layout, parts, further)


def _find_gathered_axes(stored: Layout, gathered: Layout) -> set[str]:
    """Return the mesh axes over which dimensions are gathered; none if one dimension changes its mesh axes."""
    over: set[str] = set()
    for have, wanted in zip(stored, gathered, strict=True):
        if wanted and have != wanted:
            # A move from one mesh axis to another is an all-to-all, which the compiler knows how to make.
            return set()
        if not wanted:
            over.update(have)
    return over


def apply_by_hand(
    fn: Callable[[NamedArray, NamedArray], NamedArray],
    division: Division,
    x: NamedArray,
    weight: NamedArray,
) -> NamedArray:
    """Call a function of an input and a weight on each device's part of the input, with the gathered weight.

    The backward pass gathers the weight again, so that a device never has the weights of all layers.
    """
    if modes.has_explicit(division.mesh):
        # On Explicit axes, a shard_map accepts an array only if its type is sharded as the spec says.
        x = shard_tree(x, division.mapping, division.mesh)

    def run(x: NamedArray, weight: NamedArray) -> NamedArray:
        return _multiply_parts(fn, division, x, _gather_copies(division, weight), weight)

    result: NamedArray = jax.checkpoint(run, prevent_cse=False)(x, weight)
    return wrap(result, constraints.shard_result(result.array, result.names), result.names)


def _gather_copies(division: Division, weight: NamedArray) -> jax.Array:
    """Gather a weight on each device, and return all copies, concatenated along the first dimension."""

    def gather(block: jax.Array) -> jax.Array:
        # The order decides the gradient: it is scattered first, and then summed over the mesh axes along which the
        # weight is not sharded. The other way round, the sum would be of the full weight.
        block = tracing.varying(block, division.batch_axes)
        layouts = zip(division.stored_layout, division.gathered_layout, strict=True)
        for at, (have, wanted) in enumerate(layouts):
            if have != wanted:
                block = lax.all_gather(block, have, axis=at, tiled=True)
        return block

    first, *rest = division.gathered_layout
    mapped = jax.shard_map(
        gather,
        in_specs=Layout(division.stored_layout).spec,
        out_specs=Layout([(*division.batch_axes, *first), *rest]).spec,
    )
    copies: jax.Array = mapped(shard_tree(weight, division.stored, division.mesh).array)
    return copies


def _multiply_parts(
    fn: Callable[[NamedArray, NamedArray], NamedArray],
    division: Division,
    x: NamedArray,
    copies: jax.Array,
    like: NamedArray,
) -> NamedArray:
    """Multiply each device's part of the input by its own copy of the weight."""
    # JAX reads the specs of the result after the function ran (tests/upstream/test_out_specs.py). Only then are the
    # names of the result known.
    out_specs: list[PartitionSpec] = []
    result_names: list[Names] = []

    def multiply(part: jax.Array, own: jax.Array) -> list[jax.Array]:
        weight = auto_sharded(wrap(like, own, like.names))
        result = fn(wrap(x, part, x.names), weight)
        out_specs[:] = [_make_spec(result.names, division)]
        result_names[:] = [result.names]
        return [result.array]

    mapped = jax.shard_map(
        multiply,
        in_specs=(_make_spec(x.names, division), Layout([division.batch_axes]).spec),
        out_specs=out_specs,
        axis_names=division.manual_axes,
    )
    (array,) = mapped(x.array, copies)
    return wrap(x, array, result_names[0])


def _make_spec(names: Names, division: Division) -> PartitionSpec:
    return Layout([division.parts.get(name, ()) for name in names]).spec
