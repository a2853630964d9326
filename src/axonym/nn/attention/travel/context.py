"""Internal. Context parallelism: attention whose positions are split over devices.

The layout of queries and keys says that positions are split: the mapping on Auto mesh axes, types on Explicit ones.
`choose` asks here how, and calls `attend_over_devices` with the answer. This module turns a call into a plan of the
devices. `devices` computes, and `ring`, `gather` and `exchange` move the keys.
"""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp

from ....array import NamedArray
from ....errors import ShardingError, message
from ....layout import context, explicit, modes, partition
from ....layout.assignment import Entry, find_entry
from ....layout.blocks import choose_manual_axes, find_entries, find_mesh
from ....layout.scope import current_scope
from ....partitioning.addresses import find_mesh_axes
from ..blocks.loop import finish, is_sure_to_see
from ..blocks.plan import BLOCK, prepare
from ..call import FUNCTION, KEYS, QUERIES, AttentionCall, show
from ..masks.conditions import copy_to_keys, find_reach
from .devices import DevicePlan, Method, PositionSharding, run
from .exchange import EXCHANGE
from .gather import GATHER
from .local import attend_by_blocks
from .ring import RING

METHODS: Mapping[str, Method] = {method.name: method for method in (RING, GATHER, EXCHANGE)}


def find_sharding(call: AttentionCall) -> PositionSharding | None:
    """Return how the positions of queries are split over devices; None if they are not, or not known to be.

    Inside of a `shard_map` over their mesh axes, it is None: all axes are local there, and so is attention.
    """
    if call.q_pos is None:
        return None
    mesh = find_mesh(call.query.array)
    if mesh.empty:
        return None
    # Anonymous dimensions come first, and have no mesh axes.
    tables: list[dict[str, Entry]] = []
    for x in (call.query, call.keys, call.values):
        entries = find_entries(jnp.asarray(x.array), x.names)
        named = entries[len(entries) - len(x.names) :]
        tables.append(dict(zip(x.names, named, strict=True)))
    queries, keys = tables[0][call.q_pos], tables[1][call.k_pos]
    ways = partition.count_shards(mesh, queries)
    if ways == 1:
        return None
    # Operands may disagree on other axes, and a mesh axis splits one axis only: the first to use it keeps it.
    used = {*queries}
    others: dict[str, Entry] = {}
    for axis in call.score_axes:
        if axis.name not in (call.q_pos, call.k_pos):
            offers = [partition.without(table.get(axis.name, ()), used) for table in tables]
            others[axis.name] = next(filter(None, offers), ())
            used.update(others[axis.name])
    return PositionSharding(queries, keys, ways, mesh, tuple(others.items()))


def find_sharding_inside(call: AttentionCall) -> PositionSharding | None:
    """Return over which mesh axes a surrounding `shard_map` splits the positions; None if it does not.

    There, attention reaches the positions of other devices only if you ask for a method by its name.
    """
    if call.q_pos is None or current_scope() is None:
        return None
    mapping = dict(context.current_mapping() or {})
    found: list[Entry] = []
    for x, name in ((call.query, call.q_pos), (call.keys, call.k_pos)):
        is_mapped = find_entry(mapping, name) is not None
        array = jnp.asarray(x.array)
        found.append(
            find_mesh_axes(FUNCTION, name, x.names, array, meaning="arrays") if is_mapped else ()
        )
    queries, keys = found
    if not queries:  # each device has all queries
        return None
    mesh = find_mesh(call.query.array)
    ways = partition.count_shards(mesh, queries)
    return PositionSharding(queries, keys, ways, mesh, is_inside=True)


def count_hops(call: AttentionCall, sharding: PositionSharding) -> int:
    """Return how many devices before its own a query may see keys of; fewer than all with a causal window."""
    most = sharding.ways - 1
    starts_at_0 = all(isinstance(x, int) and x == 0 for x in (call.q_start, call.k_start))
    sizes = call.query.axis_size(str(call.q_pos)), call.keys.axis_size(call.k_pos)
    if call.mask is None or not starts_at_0 or sizes[0] != sizes[1]:
        return most
    reach = find_reach(call.mask)
    if reach is None:
        return most
    # A query at the start of its part sees furthest into the parts before.
    local = sizes[1] if sharding.is_inside else sizes[1] // sharding.ways
    return min(most, -(-(reach - 1) // local))


def find_heads(call: AttentionCall, sharding: PositionSharding) -> str | None:
    """Return an axis that queries, keys and values share, and that can be split further: the last one."""
    for axis in reversed(call.query.axes):
        if axis.name in (call.q_pos, call.feature):
            continue
        is_shared = axis.name in call.keys.names and axis.name in call.values.names
        if is_shared and axis.size % (sharding.count_parts(axis.name) * sharding.ways) == 0:
            return axis.name
    return None


def attend_over_devices(
    method: Method, call: AttentionCall, sharding: PositionSharding | None = None
) -> NamedArray:
    """Compute attention whose positions are split over devices; where they are not, block by block.

    Args:
        method: how devices get the keys of others.
        call: the call.
        sharding: how positions are split, if the caller has asked.
    """
    sharding = sharding or find_sharding_inside(call) or find_sharding(call)
    if sharding is None:
        return attend_by_blocks(call)
    _check(method.name, call, sharding)
    plan, operands, rest = prepare(call)
    if sharding.is_inside:  # operands have only a part of the positions
        queries, keys = plan.sizes
        sizes = queries * sharding.ways, keys * sharding.ways if sharding.keys else keys
        named = {**dict(plan.all_sizes), QUERIES: sizes[0], KEYS: sizes[1]}
        plan = dataclasses.replace(plan, sizes=sizes, all_sizes=tuple(named.items()))
    sees = is_sure_to_see(rest, plan.sizes)
    devices = _plan_devices(method, call, sharding, sees)
    # Keys travel without the queries; what the mask says of both is copied for them.
    mask = None if rest.mask is None else copy_to_keys(rest.mask, QUERIES, KEYS)
    results = run(plan, devices, operands, rest._replace(mask=mask))
    over = sharding.keys if sharding.is_inside else ()
    return finish(call, plan, operands, results, sees=sees, over=over)


def _plan_devices(
    method: Method, call: AttentionCall, sharding: PositionSharding, sees: bool
) -> DevicePlan:
    # All that a traced function reads later is decided now: the backward pass may be traced elsewhere.
    assert sharding.mesh is not None
    manual: set[str] = set()
    if not sharding.is_inside:
        # Inside of another shard_map, all mesh axes that are left become Manual.
        is_nested = modes.has_manual(sharding.mesh)
        is_typed = explicit.has_explicit_axes(call.query.array) and not is_nested
        used = [sharding.queries, *(entry for _, entry in sharding.entries)]
        manual = choose_manual_axes(sharding.mesh, used, is_typed)
    is_mapped = bool(context.get_taken_axes())  # by a surrounding `vmap` over mesh axes
    return DevicePlan(
        method,
        sharding,
        call.block_size or (BLOCK, BLOCK),
        sees,
        heads=find_heads(call, sharding) if method.by_heads else None,
        hops=count_hops(call, sharding),
        manual=frozenset(manual),
        mesh=context.mesh_for_blocks(sharding.mesh),
        check=not is_mapped,
        one_by_one=is_mapped and explicit.has_explicit_axes(call.query.array),
    )


def _check(method: str, call: AttentionCall, sharding: PositionSharding) -> None:
    """Check that a method can do a call."""
    # Parts of queries and of keys must be on the same devices: offsets are counted by one index.
    if sharding.keys and sharding.keys != sharding.queries:
        problem = "queries and keys are split over different mesh axes"
        hint = f"map {call.q_pos!r} and {call.k_pos!r} to the same ones"
    elif method == RING.name and not sharding.keys:
        problem = "each device has all keys, so that there is nothing to send around"
        hint = f'call their axis "{call.q_pos}.key", which is split like {call.q_pos!r}; '
        hint += 'or implementation="all-gather"'
    elif method == EXCHANGE.name and find_heads(call, sharding) is None:
        problem = "no axis that queries, keys and values share can be split "
        problem += f"in {sharding.ways} more parts"
        hint = 'implementation="ring" needs no heads'
    else:
        return
    queries, keys = (", ".join(entry) or "nothing" for entry in (sharding.queries, sharding.keys))
    layout = f"positions: {call.q_pos} over {queries}, {call.k_pos} over {keys}"
    facts = show("query", call.query), show("keys", call.keys), layout
    text = f"implementation {method!r} does not support this: {problem}"
    raise ShardingError(message(FUNCTION, text, *facts, hint=hint))
