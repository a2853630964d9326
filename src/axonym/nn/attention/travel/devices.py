"""How attention is laid out over devices that have a part of the positions each."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from ....array import NamedArray, is_named_array
from ....core import wrap
from ....layout import partition, tracing
from ....layout.assignment import Entry, MeshLike
from ....layout.blocks import list_devices
from ....names.plans import Names
from ..blocks.plan import Number, Operands, Plan, Rest, Tree, sizes_of_blocks
from ..call import KEYS, QUERIES


@dataclasses.dataclass(frozen=True)
class Layout:
    """The static part of an attention whose positions are split.

    Attributes:
        method: how devices get the keys of others.
        axes: the mesh axes over which positions are split.
        ways: into how many parts.
        entries: the mesh axes of the other axes of the scores.
        splits_keys: whether keys are split like queries; otherwise each device has all of them.
        heads: the axis to split while a device has all positions, for all-to-all.
        hops: how far keys travel in a ring.
        sees: whether each query certainly sees a key.
        block_size: the numbers of query and key positions in a block.
        manual: the mesh axes that become Manual; none where those of the positions are already.
        mesh: the mesh, if it is not the current one.
        check: whether JAX checks over which mesh axes results vary; it cannot under a `vmap` over mesh axes.
        one_by_one: whether to send the parts of an all-to-all one by one, under a `vmap` over Explicit mesh axes.
    """

    method: str
    axes: Entry
    ways: int
    entries: tuple[tuple[str, Entry], ...]
    splits_keys: bool
    heads: str | None
    hops: int
    sees: bool
    block_size: tuple[int, int]
    manual: frozenset[str]
    mesh: MeshLike | None
    check: bool
    one_by_one: bool

    def entries_of(self, names: Names, *, exchanged: bool = False) -> list[Entry]:
        """Return the mesh axes of each axis of an array; `exchanged`: while devices have all positions."""
        table = dict(self.entries)
        if exchanged:
            assert self.heads is not None
            table[self.heads] = (*table.get(self.heads, ()), *self.axes)
        else:
            table[QUERIES] = self.axes
            if self.splits_keys and QUERIES not in names:
                table[KEYS] = self.axes
        return [table.get(name, ()) for name in names]

    def spec(self, x: object, *, exchanged: bool = False) -> PartitionSpec:
        """Return how an array is split; what has no names is whole on each device."""
        if not isinstance(x, NamedArray):
            return PartitionSpec()
        return self.spec_of(x.names, x.array.ndim - len(x.names), exchanged=exchanged)

    def spec_of(self, names: Names, anonymous: int, *, exchanged: bool = False) -> PartitionSpec:
        """Return how an array with these names is split, which come after anonymous dimensions."""
        entries = self.entries_of(names, exchanged=exchanged)
        return partition.spec_from_entries([*[()] * anonymous, *entries])

    def local(self, plan: Plan, *, whole: Sequence[bool] = (False, False)) -> Plan:
        """Return the plan for the positions of one device, or for all queries or keys where they are `whole`."""
        queries, keys = plan.sizes
        if not whole[0]:
            queries //= self.ways
        if self.splits_keys and not whole[1]:
            keys //= self.ways
        blocks = sizes_of_blocks(self.block_size, (queries, keys))
        return dataclasses.replace(plan, sizes=(queries, keys), blocks=blocks)

    def offsets(self, plan: Plan, operands: Operands) -> dict[str, Number]:
        """Return the index of the first element that this device has, along axes other than positions."""
        if not plan.dropout:
            return {}
        sizes: dict[str, int] = {**operands.value.shape, **operands.key.shape}
        sizes.update(operands.query.shape)
        return {name: lax.axis_index(entry) * sizes[name] for name, entry in self.entries if entry}

    def here(self) -> Number:
        """Return which part of the positions this device has."""
        return lax.axis_index(self.axes)

    def send(self, tree: Tree, shift: int = 1) -> Tree:
        """Send arrays to the device with the part that comes `shift` later."""
        devices, ordered = list_devices(self.axes)
        pairs = [(devices[i], devices[(i + shift) % self.ways]) for i in range(self.ways)]
        return jax.tree.map(lambda array: lax.ppermute(array, ordered, pairs), tree)

    def swapped(self, array: jax.Array, split: int, joined: int) -> jax.Array:
        """Split one dimension over the devices of the positions, and join the parts of another."""
        if not self.one_by_one:
            result: jax.Array = lax.all_to_all(array, self.axes, split, joined, tiled=True)
            return result
        # XLA would gather the axis of the `vmap` for an all-to-all, but not for parts that are sent one by one.
        here, size, rows = self.here(), array.shape[split] // self.ways, array.shape[joined]
        shape = list(array.shape)
        shape[split], shape[joined] = size, rows * self.ways
        result = jnp.zeros(shape, array.dtype)
        for shift in range(self.ways):
            start = (here + shift) % self.ways * size
            part = lax.dynamic_slice_in_dim(array, start, size, split)
            if shift:
                part = self.send(part, shift)
            source = (here - shift) % self.ways
            result = lax.dynamic_update_slice_in_dim(result, part, source * rows, joined)
        return result


def travels(x: object) -> bool:
    """Return whether an array belongs to the keys alone, so that it is split, and goes, with them."""
    return isinstance(x, NamedArray) and KEYS in x.names and QUERIES not in x.names


def is_row(x: object) -> bool:
    """Return whether an array has all keys of the queries of a device."""
    return isinstance(x, NamedArray) and KEYS in x.names and QUERIES in x.names


def dimension(x: NamedArray, name: str) -> int:
    """Return the dimension of an axis."""
    return x.array.ndim - len(x.names) + x.names.index(name)


def mapped(fn: Callable[..., Tree], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to the named and plain arrays of a tree."""
    return jax.tree.map(fn, tree, *others, is_leaf=is_named_array)


def of_array(fn: Callable[[jax.Array], jax.Array], x: NamedArray) -> NamedArray:
    """Apply a function to the array behind the names."""
    return wrap(x, fn(x.array), x.names)


def varied(layout: Layout, tree: Tree) -> Tree:
    """Make the types of all arrays vary over the same mesh axes, those of the positions among them."""
    varying = varying_of(layout, tree)

    def one(x: Tree) -> Tree:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        return tracing.varying(x, varying)

    return jax.tree.map(one, tree)


def varying_of(layout: Layout, tree: Tree) -> set[str]:
    """Return the mesh axes over which the arrays of a tree vary; none in a `shard_map` that does not check."""
    found = set[str]().union(*map(tracing.varying_over, jax.tree.leaves(tree)))
    if found:
        found.update(layout.axes)
    return found


def to_sum(layout: Layout, operands: Operands, rest: Rest) -> list[Entry]:
    """Return for each operand over which mesh axes its gradients on the devices are to be summed.

    The types inside of a `jax.shard_map` would tell, but not under a `vmap` over mesh axes, which fits no check.
    """

    def own(x: Tree) -> set[str]:
        found = set(tracing.varying_over(getattr(x, "array", x)))
        if layout.manual:
            found.update(*partition.entries_from_spec(layout.spec(x)))
        return found

    leaves = jax.tree.leaves((operands, rest), is_leaf=is_named_array)
    varying = set[str]().union(*map(own, leaves))
    if layout.manual:
        varying.update(layout.axes)
    given = jax.tree.leaves(operands, is_leaf=is_named_array)
    return [tuple(sorted(varying - own(x))) for x in given]


def summed(gradients: Operands, operands: Operands, over: Sequence[Entry]) -> Operands:
    """Sum gradients over the devices that have the same operand, and give them its dtype."""
    leaves, tree = jax.tree.flatten(operands)
    sums: list[jax.Array] = []
    for gradient, x, axes in zip(jax.tree.leaves(gradients), leaves, over, strict=True):
        total = lax.psum(gradient, axes) if axes else gradient
        sums.append(total.astype(x.dtype))
    result: Operands = jax.tree.unflatten(tree, sums)
    return result


def on_devices(
    layout: Layout, fn: Callable[..., Tree], args: Tree, specs: Tree, out_specs: Tree
) -> Tree:
    """Run a function once per device, on blocks; where it is called so already, call it."""
    if not layout.manual:
        return fn(*args)
    run = jax.shard_map(
        fn,
        in_specs=specs,
        out_specs=out_specs,
        axis_names=set(layout.manual),
        mesh=layout.mesh,
        check_vma=layout.check,
    )
    return run(*args)
