"""Internal. Attention that devices share: what each of them has, and the forward and the backward pass over all.

One `jax.shard_map` computes the forward pass, and another one the backward pass, so that JAX, which cannot
differentiate one inside of another, differentiates neither. Inside a `shard_map` over mesh axes of the positions, or
where no positions are split, the same functions are called directly. `local` and `context` call `run`. A `Method`
decides how devices exchange keys, and `blocks` computes with them; this module knows neither.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from ....array import NamedArray, is_named_array
from ....engine import auto, kernels
from ....engine.core import Core, wrap
from ....faults.mapped_exchanges import exchange_one_by_one
from ....layout import explicit, modes, partition, tracing
from ....layout.assignment import Entry, MeshLike
from ....layout.blocks import list_devices
from ....layout.layout import Layout
from ....names.plans import Names
from ..blocks.plan import BlockPlan, Operands, Rest, Tree, choose_block_sizes
from ..call import KEYS, QUERIES
from ..masks.conditions import Number


class Saved(NamedTuple):
    """What the forward pass saves for the backward pass.

    Attributes:
        operands: the operands.
        rest: those without gradients.
        results: the result, the largest score and the total of each query.
        kept: what the method keeps besides.
    """

    operands: Operands
    rest: Rest
    results: tuple[NamedArray, NamedArray, NamedArray]
    kept: Tree


class Method(NamedTuple):
    """A way in which devices get the keys of others.

    Attributes:
        name: its name in `implementation=`.
        forward: from the operands of a device to its results, and what it keeps for the backward pass.
        backward: from what is saved and the gradients by the results to those by the operands of a device.
        by_heads: whether devices have all positions of a part of the heads while they compute.
    """

    name: str
    forward: Callable[[BlockPlan, "DevicePlan", Operands, Rest], Tree]
    backward: Callable[[BlockPlan, "DevicePlan", Saved, Tree], Operands]
    by_heads: bool = False


@dataclasses.dataclass(frozen=True)
class PositionSharding:
    """Which mesh axes split the positions of a call.

    Attributes:
        queries: those of the queries.
        keys: those of the keys; none where each device has all keys.
        ways: the number of parts of the queries.
        mesh: the mesh; None where no positions are split.
        entries: those of all other axes of the scores.
        is_inside: whether the call is inside of a `shard_map` over them.
    """

    queries: Entry
    keys: Entry
    ways: int
    mesh: MeshLike | None
    entries: tuple[tuple[str, Entry], ...] = ()
    is_inside: bool = False

    def count_parts(self, name: str) -> int:
        """Return into how many parts an axis other than positions is split."""
        assert self.mesh is not None
        return partition.count_shards(self.mesh, dict(self.entries).get(name, ()))


@dataclasses.dataclass(frozen=True)
class DevicePlan:
    """The static part of a call that devices share.

    Attributes:
        method: how devices get the keys of others.
        sharding: which mesh axes split the positions.
        block_size: the numbers of query and key positions in a block, as asked.
        sees: whether each query certainly sees a key.
        heads: the axis to split while a device has all positions.
        hops: how far keys travel in a ring.
        manual: the mesh axes that become Manual; none where those of the positions are already.
        mesh: the mesh, if it is not the current one.
        check: whether JAX checks over which mesh axes results vary; it cannot under a `vmap` over mesh axes.
        one_by_one: whether to send the parts of an all-to-all one by one, under a `vmap` over Explicit mesh axes.
    """

    method: Method
    sharding: PositionSharding
    block_size: tuple[int, int]
    sees: bool
    heads: str | None = None
    hops: int = 0
    manual: frozenset[str] = frozenset()
    mesh: MeshLike | None = None
    check: bool = True
    one_by_one: bool = False

    @property
    def axes(self) -> Entry:
        """The mesh axes over which positions are split."""
        return self.sharding.queries

    @property
    def ways(self) -> int:
        """Into how many parts positions are split."""
        return self.sharding.ways

    @property
    def splits_keys(self) -> bool:
        """Whether keys are split like queries; otherwise each device has all of them."""
        return bool(self.sharding.keys)

    def list_entries(self, names: Names, *, by_heads: bool = False) -> list[Entry]:
        """Return the mesh axes of each axis of an array; `by_heads`: while devices have all positions."""
        # Names that are in no table are replicated.
        table = dict(self.sharding.entries)
        if by_heads:
            assert self.heads is not None
            table[self.heads] = (*table.get(self.heads, ()), *self.axes)
        else:
            table[QUERIES] = self.axes
            # An array for pairs is split along the queries only: a device has all keys of its own queries.
            if self.splits_keys and QUERIES not in names:
                table[KEYS] = self.axes
        return [table.get(name, ()) for name in names]

    def make_spec(self, x: object, *, by_heads: bool = False) -> PartitionSpec:
        """Return how an array is split; what has no names is replicated."""
        if not isinstance(x, NamedArray):
            return PartitionSpec()
        entries = self.list_entries(x.names, by_heads=by_heads)
        return Layout([*[()] * (x.array.ndim - len(x.names)), *entries]).spec

    def make_spec_by_heads(self, x: NamedArray) -> PartitionSpec | None:
        """Return how an array that is kept by heads is split; None if it has no heads and is not kept."""
        return self.make_spec(x, by_heads=True) if str(self.heads) in x.names else None

    def make_local(
        self, plan: BlockPlan, *, all_queries: bool = False, all_keys: bool = False
    ) -> BlockPlan:
        """Return the plan for the positions of one device, or for all queries or all keys."""
        queries, keys = plan.sizes
        if not all_queries:
            queries //= self.ways
        if self.splits_keys and not all_keys:
            keys //= self.ways
        blocks = choose_block_sizes(self.block_size, (queries, keys))
        return dataclasses.replace(plan, sizes=(queries, keys), blocks=blocks)

    def find_offsets(self, plan: BlockPlan, operands: Operands) -> dict[str, Number]:
        """Return the index of the first element that this device has, along axes other than positions.

        Only dropout asks: what it draws for a weight depends on the index of the weight in all scores.
        """
        if not plan.dropout:
            return {}
        sizes: dict[str, int] = {**operands.value.shape, **operands.key.shape}
        sizes.update(operands.query.shape)
        entries = self.sharding.entries
        return {name: lax.axis_index(entry) * sizes[name] for name, entry in entries if entry}

    def find_index(self) -> Number:
        """Return which part of the positions this device has."""
        return lax.axis_index(self.axes)

    def send(self, tree: Tree, shift: int = 1) -> Tree:
        """Send arrays to the device with the part that comes `shift` later."""
        # The parts are in the order of `axes`, and `ppermute` counts in that of the mesh.
        devices, ordered = list_devices(self.axes)
        pairs = [(devices[i], devices[(i + shift) % self.ways]) for i in range(self.ways)]
        return jax.tree.map(lambda array: lax.ppermute(array, ordered, pairs), tree)

    def exchange(self, array: jax.Array, split: int, joined: int) -> jax.Array:
        """Split one dimension over the devices of the positions, and join the parts of another."""
        if self.one_by_one:
            index = self.find_index()
            return exchange_one_by_one(array, index, self.ways, self.send, split, joined)
        result: jax.Array = lax.all_to_all(array, self.axes, split, joined, tiled=True)
        return result


def run(
    plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest
) -> tuple[NamedArray, NamedArray, NamedArray]:
    """Return the result, the largest score and the total of each query, on Explicit mesh axes as on Auto ones."""
    leaves, tree = jax.tree.flatten((operands, rest), is_leaf=is_named_array)
    # Without names, and as arrays where numbers are given: `auto.local` takes no others.
    arrays = [x.array if isinstance(x, NamedArray) else kernels.run(jnp.asarray, x) for x in leaves]
    if not devices.manual:
        arrays = vary(devices, arrays)

    def compute(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        pairs = zip(leaves, arrays, strict=True)
        named = [wrap(x, own, x.names) if isinstance(x, Core) else own for x, own in pairs]
        results: Tree = _compiled(plan, devices, *jax.tree.unflatten(tree, named))
        return tuple(x.array for x in results)

    query, rows = operands.query, plan.row_names
    if not any(map(explicit.has_explicit_axes, arrays)):
        out, largest, total = compute(*arrays)
    elif devices.axes and modes.is_in_shard_map():
        out, largest, total = compute(*_reshard_as_taken(devices, leaves, arrays))
    else:
        # The compiler decides on layouts inside; types say those of the results.
        entries = _list_result_entries(plan, devices)
        typed = tuple(_only_explicit(query.array, own) for own in entries)
        out, largest, total = auto.local(compute, arrays, typed)
    return wrap(query, out, plan.out_names), wrap(query, largest, rows), wrap(query, total, rows)


def _list_result_entries(plan: BlockPlan, devices: DevicePlan) -> Iterator[list[Entry]]:
    """Yield the mesh axes of each axis of the result, of the largest scores and of the totals."""
    yield devices.list_entries(plan.out_names)
    for _ in range(2):
        yield devices.list_entries(plan.row_names, by_heads=devices.method.by_heads)


def _only_explicit(array: jax.Array, entries: Sequence[Entry]) -> list[Entry]:
    """Leave out mesh axes that are not Explicit: types do not have them."""
    typed = modes.find_explicit_axes(explicit.mesh_of_type(array))
    return [partition.only(entry, typed) for entry in entries]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest) -> Tree:
    """Return the result, and for each query the largest score and the sum of exponentials relative to it."""
    return _pass_forward(plan, devices, operands, rest)[0]


def _pass_forward(plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest) -> Tree:
    method = devices.method
    forward = functools.partial(method.forward, plan, devices)
    anonymous = [()] * (operands.query.array.ndim - len(operands.query.names))

    def make_spec(entries: Sequence[Entry]) -> PartitionSpec:
        return Layout([*anonymous, *entries]).spec

    of_results = tuple(map(make_spec, _list_result_entries(plan, devices)))
    # The method keeps arrays by heads, which the backward pass takes as they are.
    of_kept: Tree = ()
    if method.by_heads:
        of_out = make_spec(devices.list_entries(plan.out_names, by_heads=True))
        of_kept = map_arrays(devices.make_spec_by_heads, operands), of_out
    args = operands, rest
    specs = map_arrays(devices.make_spec, args)
    results, kept = _run_on_devices(devices, forward, args, specs, (of_results, of_kept))
    return results, Saved(operands, rest, results, kept)


def _pass_backward(plan: BlockPlan, devices: DevicePlan, saved: Saved, cotangents: Tree) -> Tree:
    method = devices.method
    # Asked outside of the shard_map, where types still say what the caller's own shard_map has split.
    over = _find_axes_to_sum(devices, saved.operands, saved.rest)

    def backward(saved: Saved, cotangents: Tree) -> Operands:
        varying, by_results = vary(devices, (saved, cotangents))
        gradients = method.backward(plan, devices, varying, by_results)
        return _sum_over_devices(gradients, saved.operands, over)

    # The same tree as that of the arguments, with a spec for each array.
    make_spec_of_row = functools.partial(devices.make_spec, by_heads=method.by_heads)
    out, *rows = saved.results
    of_results: Tree = devices.make_spec(out), *map(make_spec_of_row, rows)
    of_operands, of_rest = map_arrays(devices.make_spec, (saved.operands, saved.rest))
    of_kept = map_arrays(devices.make_spec_by_heads, saved.kept)
    args: Tree = saved, cotangents
    if devices.axes:
        # Else the compiler might keep what one pass received for the other, and need the memory of all positions.
        args = lax.optimization_barrier(args)
    specs = Saved(of_operands, of_rest, of_results, of_kept), of_results
    return _run_on_devices(devices, backward, args, specs, of_operands), None


def _run_on_devices(
    devices: DevicePlan, fn: Callable[..., Tree], args: Tree, specs: Tree, out_specs: Tree
) -> Tree:
    """Run a function once per device, on blocks; where it is called so already, call it."""
    if (
        not devices.manual
    ):  # a surrounding shard_map has given this device its part, or no position is split
        return fn(*args)
    mapped = jax.shard_map(
        fn,
        in_specs=specs,
        out_specs=out_specs,
        axis_names=set(devices.manual),
        mesh=devices.mesh,
        check_vma=devices.check,
    )
    return mapped(*args)


def is_of_keys(x: object) -> bool:
    """Return whether an array belongs to the keys alone, so that it is split, and travels, with them."""
    return isinstance(x, NamedArray) and KEYS in x.names and QUERIES not in x.names


def is_of_pairs(x: object) -> bool:
    """Return whether an array has all keys of the queries of a device."""
    return isinstance(x, NamedArray) and KEYS in x.names and QUERIES in x.names


def find_dimension(x: NamedArray, name: str) -> int:
    """Return the dimension of an axis, behind anonymous ones."""
    return x.array.ndim - len(x.names) + x.names.index(name)


def map_arrays(fn: Callable[..., Tree], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to the named and plain arrays of a tree."""
    return jax.tree.map(fn, tree, *others, is_leaf=is_named_array)


def apply(fn: Callable[[jax.Array], jax.Array], x: NamedArray) -> NamedArray:
    """Apply a function to the array behind the names."""
    return wrap(x, fn(x.array), x.names)


def vary(devices: DevicePlan, tree: Tree) -> Tree:
    """Make the types of all arrays vary over the same mesh axes, those of the positions among them.

    Loops need it: the carry must keep its type, but the added values vary over the mesh axes of all operands.
    """
    varying = set[str]().union(*map(tracing.varying_over, jax.tree.leaves(tree)))
    if varying:  # nothing does in a `shard_map` that does not check
        varying.update(devices.axes)

    # Keys of random numbers stay as they are: `dropping` marks what it draws.
    def mark(x: Tree) -> Tree:
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return x if is_key else tracing.varying(x, varying)

    return jax.tree.map(mark, tree)


def _find_axes_to_sum(devices: DevicePlan, operands: Operands, rest: Rest) -> list[Entry]:
    """Return, for each operand, the mesh axes over which to sum its gradients.

    The types inside of a `jax.shard_map` would tell, but not under a `vmap` over mesh axes, which fits no check.
    """

    def find_own(x: Tree) -> set[str]:
        found = set(tracing.varying_over(getattr(x, "array", x)))
        if devices.manual:
            found.update(*Layout.from_spec(devices.make_spec(x)))
        return found

    leaves = jax.tree.leaves((operands, rest), is_leaf=is_named_array)
    varying = set[str]().union(*map(find_own, leaves))
    if devices.manual:
        varying.update(devices.axes)
    given = jax.tree.leaves(operands, is_leaf=is_named_array)
    return [tuple(sorted(varying - find_own(x))) for x in given]


def _sum_over_devices(gradients: Operands, operands: Operands, over: Sequence[Entry]) -> Operands:
    """Sum gradients over the devices that have the same operand, and give them its dtype."""
    leaves, tree = jax.tree.flatten(operands)
    # Summed in the dtype of scores, and only then rounded to that of the operand.
    sums = [
        (lax.psum(gradient, axes) if axes else gradient).astype(x.dtype)
        for gradient, x, axes in zip(jax.tree.leaves(gradients), leaves, over, strict=True)
    ]
    result: Operands = jax.tree.unflatten(tree, sums)
    return result


def _reshard_as_taken(
    devices: DevicePlan, leaves: Sequence[Tree], arrays: Sequence[jax.Array]
) -> list[jax.Array]:
    """Inside of a shard_map, reshard arrays as the devices take them, and let no mesh axis change its mode.

    JAX after 0.10 cannot differentiate a shard_map inside of another one where `auto_axes` changed the modes of mesh
    axes in between, on any platform; jax 0.10 can. `tests/nn/attention/travel/test_devices.py` nests them.
    """
    resharded: list[jax.Array] = []
    for x, array in zip(leaves, arrays, strict=True):
        if devices.manual and explicit.has_explicit_axes(array):
            spec = devices.make_spec(x)
            entries = Layout.from_spec(spec) or [()] * array.ndim
            array = explicit.reshard(array, _only_explicit(array, entries))
        resharded.append(array)
    return resharded


_attend.defvjp(_pass_forward, _pass_backward)
# Outside of a program, it is one of its own: step by step, constants would move to the device at each call.
_compiled = jax.jit(_attend, static_argnums=(0, 1), inline=tracing.INLINE)
