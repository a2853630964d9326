"""Products with weights that devices gather themselves, in a `shard_map`; the gradient of a gather is a reduce-scatter.

From constraints alone, the compiler for CPUs makes no reduce-scatter: it adds up the whole gradient on each device, and
keeps a part. A product is divided in two programs, since the compiler gathers a block over all of its mesh axes where
only some of them are Manual:

* the gather, with all mesh axes Manual. Each device returns the weight that it gathered as a part of an array of all of
  these copies, whose gradients are not summed yet;
* the product of the device's part of the batch with its own copy, in which only the mesh axes of the batch are Manual.
  Others, such as those of tensor parallelism, are left to the compiler.
"""

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import jax
from jax import lax
from jax.sharding import PartitionSpec

from ..array import NamedArray
from ..core import wrap
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
        split: the mesh axes of the weight as it is stored, by dimension.
        whole: the same, once it is gathered.
        parts: the mesh axes over which each device has its own part of the batch, by names of the input.
        further: the mesh axes over which the operands are split besides.
    """

    mesh: MeshLike
    mapping: AxisMapping
    stored: AxisMapping
    split: Layout
    whole: Layout
    parts: dict[str, Entry]
    further: set[str]

    @property
    def manual(self) -> Entry:
        """The mesh axes of the parts."""
        return tuple(chain.from_iterable(self.parts.values()))

    @property
    def named(self) -> set[str]:
        """The mesh axes that are Manual in the product: all, if none is left to the compiler."""
        if self.further:
            return set(self.manual)
        return set(self.mesh.axis_names)


def division(
    x: NamedArray, weight: NamedArray, summed: Names, mapping: AxisMapping, mesh: MeshLike
) -> Division | None:
    """Return how devices share a product, or None where the compiler is to.

    Args:
        x: the input.
        weight: the weight.
        summed: the axes that the product sums over.
        mapping: the current mapping.
        mesh: the current mesh.
    """
    stored = context.stored_mapping(weight.names)
    if stored is None or stored.uneven:
        return None
    if x.array.ndim != len(x.names) or weight.array.ndim != len(weight.names):
        return None
    try:
        split = find_layout(weight.names, weight.array.shape, stored, mesh)
        whole = find_layout(weight.names, weight.array.shape, mapping, mesh)
        lying = find_layout(x.names, x.array.shape, mapping, mesh).by_name(x.names)
    except ShardingError:  # which the product raises, where it lays the arrays out
        return None

    over = _gathered_over(split, whole)
    own = (*summed, *weight.names)
    parts = {name: entry for name, entry in lying.items() if set(entry) & over and name not in own}
    batch = set(chain.from_iterable(parts.values()))
    others = set(chain.from_iterable(whole))
    if not over or not over <= batch or batch & others or count_shards(mesh, tuple(over)) == 1:
        return None
    further = others.union(*lying.values()) - batch
    if further and modes.has_explicit(mesh):
        # jax 0.10 would gather over them what is outside of the shard_map
        return None
    return Division(mesh, mapping, stored, split, whole, parts, further)


def _gathered_over(split: Layout, whole: Layout) -> set[str]:
    """Return the mesh axes over which dimensions are gathered; none if a dimension is to lie otherwise."""
    over: set[str] = set()
    for have, wanted in zip(split, whole, strict=True):
        if wanted and have != wanted:
            return set()
        if not wanted:
            over.update(have)
    return over


def divided(
    fn: Callable[[NamedArray, NamedArray], NamedArray],
    shares: Division,
    x: NamedArray,
    weight: NamedArray,
) -> NamedArray:
    """Call a function of an input and a weight on each device's part of the input, with the gathered weight.

    The backward pass gathers the weight again.
    """
    if modes.has_explicit(shares.mesh):
        # A shard_map takes only what its type says to be split so.
        x = shard_tree(x, shares.mapping, shares.mesh)

    def run(x: NamedArray, weight: NamedArray) -> NamedArray:
        return _product(fn, shares, x, _copies(shares, weight), weight)

    result: NamedArray = jax.checkpoint(run, prevent_cse=False)(x, weight)
    return wrap(result, constraints.lay_out(result.array, result.names), result.names)


def _copies(shares: Division, weight: NamedArray) -> jax.Array:
    """Gather a weight on each device, and return all that were gathered, one after the other."""

    def gather(block: jax.Array) -> jax.Array:
        # The gradient is scattered first, and then summed over the mesh axes along which the weight is not split.
        block = tracing.varying(block, shares.manual)
        for at, (have, wanted) in enumerate(zip(shares.split, shares.whole, strict=True)):
            if have != wanted:
                block = lax.all_gather(block, have, axis=at, tiled=True)
        return block

    stored = shard_tree(weight, shares.stored, shares.mesh)
    mapped = jax.shard_map(
        gather,
        in_specs=Layout(shares.split).spec,
        out_specs=Layout([(*shares.manual, *shares.whole[0]), *shares.whole[1:]]).spec,
    )
    copies: jax.Array = mapped(stored.array)
    return copies


def _product(
    fn: Callable[[NamedArray, NamedArray], NamedArray],
    shares: Division,
    x: NamedArray,
    copies: jax.Array,
    like: NamedArray,
) -> NamedArray:
    """Multiply each device's part of the input by its own copy of the weight."""
    # JAX reads the specs of the result after the function ran (tests/upstream/test_out_specs.py).
    out_specs: list[PartitionSpec] = []
    made: list[Names] = []

    def multiply(part: jax.Array, own: jax.Array) -> list[jax.Array]:
        weight = auto_sharded(wrap(like, own, like.names))
        result = fn(wrap(x, part, x.names), weight)
        out_specs[:] = [_spec(result.names, shares)]
        made[:] = [result.names]
        return [result.array]

    mapped = jax.shard_map(
        multiply,
        in_specs=(_spec(x.names, shares), Layout([shares.manual]).spec),
        out_specs=out_specs,
        axis_names=shares.named,
    )
    (array,) = mapped(x.array, copies)
    return wrap(x, array, made[0])


def _spec(names: Names, shares: Division) -> PartitionSpec:
    return Layout([shares.parts.get(name, ()) for name in names]).spec
