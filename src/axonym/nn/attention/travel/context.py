"""Attention over positions that are split over devices: by a ring, by all-gather, or by all-to-all.

The layout of queries and keys tells that positions are split: the mapping on Auto mesh axes, types on Explicit ones.
Then a `jax.shard_map` computes the forward pass, and another one the backward pass, so that JAX, which cannot
differentiate one inside of another, differentiates neither. Inside of a `shard_map` over the mesh axes of the
positions, the same functions are called at once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ....array import NamedArray, is_named_array
from ....core import Core, wrap
from ....engine import auto, kernels
from ....errors import ShardingError, message
from ....layout import context, explicit, modes, partition, tracing
from ....layout.assignment import Entry, MeshLike, looked_up
from ....layout.blocks import choose_manual_axes, find_entries, find_mesh
from ....layout.scope import current_scope
from ....names import plans
from ....names.plans import Names
from ....partitioning.addresses import mesh_axes_of
from ..blocks.loop import finished
from ..blocks.plan import BLOCK, Number, Operands, Plan, Rest, Tree, prepared
from ..call import FUNCTION, KEYS, QUERIES, AttentionCall, told
from ..hidden import all_see
from ..masks.conditions import of_both
from ..masks.mask import AttentionMask
from .devices import Layout, mapped, on_devices, summed, to_sum, varied
from .exchange import exchange_backward, exchange_forward, gather_backward, gather_forward
from .local import blockwise
from .ring import ring_backward, ring_forward

METHODS = ("ring", "all-gather", "all-to-all")


@dataclasses.dataclass(frozen=True)
class Split:
    """Which mesh axes split the positions of a call.

    Attributes:
        queries: those of the queries.
        keys: those of the keys.
        ways: the number of parts of the queries.
        mesh: the mesh.
        entries: those of all other axes of the scores.
        is_inside: whether the call is inside of a `shard_map` over them.
    """

    queries: Entry
    keys: Entry
    ways: int
    mesh: MeshLike
    entries: tuple[tuple[str, Entry], ...] = ()
    is_inside: bool = False

    def ways_of(self, name: str) -> int:
        """Return into how many parts an axis other than positions is split."""
        return partition.ways_on(self.mesh, dict(self.entries).get(name, ()))


def split_of(call: AttentionCall, *, inside: bool = False) -> Split | None:
    """Return how the positions of queries are split over devices; None if they are not, or not known to be.

    Args:
        call: the call.
        inside: whether to look for a surrounding `shard_map` over their mesh axes too, in which all axes are local, so
            that attention is local too unless a method is asked for.
    """
    if call.q_pos is None:
        return None
    if inside:
        found = _split_inside(call)
        if found is not None:
            return found
    mesh = find_mesh(call.query.array)
    if mesh.empty:
        return None
    tables: list[dict[str, Entry]] = []
    for x in (call.query, call.keys, call.values):
        entries = find_entries(jnp.asarray(x.array), x.names)
        named = entries[len(entries) - len(x.names) :]
        tables.append(dict(zip(x.names, named, strict=True)))
    queries, keys = tables[0][call.q_pos], tables[1][call.k_pos]
    ways = partition.ways_on(mesh, queries)
    if ways == 1:
        return None
    used = {*queries}
    entries_of_others: dict[str, Entry] = {}
    for axis in call.score_axes:
        if axis.name in (call.q_pos, call.k_pos):
            continue
        offers = [partition.without(table.get(axis.name, ()), used) for table in tables]
        entry: Entry = next(filter(None, offers), ())
        used.update(entry)
        entries_of_others[axis.name] = entry
    return Split(queries, keys, ways, mesh, tuple(entries_of_others.items()))


def _split_inside(call: AttentionCall) -> Split | None:
    if current_scope() is None:
        return None
    found: list[Entry] = []
    for x, name in ((call.query, str(call.q_pos)), (call.keys, call.k_pos)):
        known = looked_up(dict(context.current_mapping() or {}), name) is not None
        entry: Entry = ()
        if known:
            array = jnp.asarray(x.array)
            entry = mesh_axes_of(FUNCTION, name, x.names, array, meaning="arrays")
        found.append(entry)
    queries, keys = found
    if not queries:
        return None
    mesh = find_mesh(call.query.array)
    return Split(queries, keys, partition.ways_on(mesh, queries), mesh, is_inside=True)


def choose_method(call: AttentionCall) -> str | None:
    """Return the method that sends the fewest bytes; None unless queries and keys are split alike."""
    if _is_unknown(call):
        return None
    split = split_of(call)
    if split is None or split.queries != split.keys:
        return None
    sent = {"ring": bytes_sent("ring", call, split)}
    if _heads(call, split) is not None:
        sent["all-to-all"] = bytes_sent("all-to-all", call, split)
    return min(sent, key=sent.__getitem__)


def _is_unknown(call: AttentionCall) -> bool:
    """Return whether a size is only known to `jax.export`."""
    arrays = (call.query, call.keys)
    return not all(isinstance(size, int) for x in arrays for size in x.array.shape)


def bytes_sent(method: str, call: AttentionCall, split: Split) -> float:
    """Return how many bytes each device sends for queries, keys, values and results, forwards and backwards.

    With n devices, keys and values go n - 1 hops in each pass, or as far as a causal window reaches, and their
    gradients, in the dtype of scores, as many in the backward pass. With all-gather it is the same. With all-to-all,
    each device keeps one of n parts of queries, keys, values and the result, and sends the others, in both passes.
    """
    n = split.ways
    parts = n * math.prod(split.ways_of(name) for name, _ in split.entries)
    query, keys, values = call.query.nbytes, call.keys.nbytes, call.values.nbytes
    if method == "all-to-all":
        dtype = jnp.promote_types(call.query.dtype, call.values.dtype)
        result = math.prod(call.out_shape.values()) * dtype.itemsize
        return 2 * (query + keys + values + result) / parts * (n - 1) / n
    hops = n - 1
    if method == "ring":
        hops = _hops(call, split)
    wide = (call.keys.size + call.values.size) * call.dtype.itemsize
    sent: float = hops * (2 * (keys + values) + wide) / parts
    return sent


def _hops(call: AttentionCall, split: Split) -> int:
    """Return how many devices before its own a query may see keys of; fewer than all with a causal window."""
    most, mask = split.ways - 1, call.mask
    starts_at_0 = all(isinstance(x, int) and x == 0 for x in (call.q_start, call.k_start))
    if mask is None or mask.places is not None or not starts_at_0:
        return most
    sizes = call.query.axis_size(str(call.q_pos)), call.keys.axis_size(call.k_pos)
    if sizes[0] != sizes[1]:
        return most
    windows = [clause.window if clause.causal else None for clause in mask.clauses]
    if None in windows:
        return most
    local = sizes[1] if split.is_inside else sizes[1] // split.ways
    reach = max(window or 0 for window in windows) - 1
    return min(most, -(-reach // local))


def _heads(call: AttentionCall, split: Split) -> str | None:
    """Return an axis that queries, keys and values share, and that can be split further: the last one."""
    for axis in reversed(call.query.axes):
        if axis.name in (call.q_pos, call.feature):
            continue
        shared = axis.name in call.keys.names and axis.name in call.values.names
        if shared and axis.size % (split.ways_of(axis.name) * split.ways) == 0:
            return axis.name
    return None


def over_devices(method: str, call: AttentionCall) -> NamedArray:
    """Compute attention whose positions are split over devices; where they are not, block by block."""
    split = split_of(call, inside=True)
    if split is None:
        return blockwise(call)
    _check(method, call, split)
    plan, operands, rest = prepared(call)
    if split.is_inside:  # operands have only a part of the positions
        queries, keys = plan.sizes
        if split.keys:
            keys *= split.ways
        sizes = queries * split.ways, keys
        named = {**dict(plan.all_sizes), QUERIES: sizes[0], KEYS: sizes[1]}
        plan = dataclasses.replace(plan, sizes=sizes, all_sizes=tuple(named.items()))
    layout = _layout(method, call, split, all_see(rest, plan.sizes))
    all_arrays = rest._replace(mask=_with_key_arrays(rest.mask))
    results = _on_mesh(plan, layout, operands, all_arrays)
    return finished(call, plan, operands, rest, results, over=split.keys if split.is_inside else ())


def _layout(method: str, call: AttentionCall, split: Split, sees: bool) -> Layout:
    entries = [(name, entry) for name, entry in split.entries if entry]
    manual: set[str] = set()
    if not split.is_inside:
        is_nested = modes.has_manual(split.mesh)
        typed = explicit.has_explicit_axes(call.query.array) and not is_nested
        used = [split.queries, *(entry for _, entry in entries)]
        manual = choose_manual_axes(split.mesh, used, typed)
    heads = None
    if method == "all-to-all":
        heads = _heads(call, split)
    return Layout(
        method=method,
        axes=split.queries,
        ways=split.ways,
        entries=tuple(entries),
        splits_keys=bool(split.keys),
        heads=heads,
        hops=_hops(call, split),
        sees=sees,
        block_size=call.block_size or (BLOCK, BLOCK),
        manual=frozenset(manual),
        mesh=context.mesh_for_blocks(split.mesh),
        check=not context.taken_axes(),
        one_by_one=bool(context.taken_axes()) and explicit.has_explicit_axes(call.query.array),
    )


def _check(method: str, call: AttentionCall, split: Split) -> None:
    """Check that a method can do a call."""
    queries, keys = (", ".join(entry) or "nothing" for entry in (split.queries, split.keys))
    layout = f"positions: {call.q_pos} over {queries}, {call.k_pos} over {keys}"
    facts = told("query", call.query), told("keys", call.keys), layout
    problem = hint = None
    if split.keys and split.keys != split.queries:
        problem = "queries and keys are split over different mesh axes"
        hint = f"map {call.q_pos!r} and {call.k_pos!r} to the same ones"
    elif method == "ring" and not split.keys:
        problem = "each device has all keys, so that there is nothing to send around"
        hint = f'call their axis "{call.q_pos}.key", which is split like {call.q_pos!r}; '
        hint += 'or implementation="all-gather"'
    elif method == "all-to-all" and _heads(call, split) is None:
        problem = "no axis that queries, keys and values share can be split "
        problem += f"in {split.ways} more parts"
        hint = 'implementation="ring" needs no heads'
    if problem is not None:
        text = f"implementation {method!r} does not support this: {problem}"
        raise ShardingError(message(FUNCTION, text, *facts, hint=hint))


def _with_key_arrays(mask: AttentionMask | None) -> AttentionMask | None:
    """Return the mask with arrays for the keys where those of the queries were meant for both."""
    if mask is None:
        return None
    clauses: list[AttentionMask] = []
    for clause in mask.clauses:
        pairs = [of_both(pair, QUERIES, KEYS, "segment ids") for pair in clause.segment_ids]
        clauses.append(dataclasses.replace(clause, segment_ids=tuple(pairs)))
    places = mask.places
    if places is not None:
        places = of_both(places, QUERIES, KEYS, "positions")
    first, *others = clauses
    return dataclasses.replace(first, alternatives=tuple(others), places=places)


def _on_mesh(
    plan: Plan, layout: Layout, operands: Operands, rest: Rest
) -> tuple[NamedArray, NamedArray, NamedArray]:
    """Compute, on Explicit mesh axes as on Auto ones."""
    leaves, tree = jax.tree.flatten((operands, rest), is_leaf=is_named_array)
    arrays = [x.array if isinstance(x, NamedArray) else kernels.run(jnp.asarray, x) for x in leaves]
    if not layout.manual:
        arrays = varied(layout, arrays)

    def positional(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        named: list[Tree] = []
        for x, array in zip(leaves, arrays, strict=True):
            named.append(wrap(x, array, x.names) if isinstance(x, Core) else array)
        results: Tree = _compiled(plan, layout, *jax.tree.unflatten(tree, named))
        return tuple(x.array for x in results)

    if modes.has_manual(jax.sharding.get_abstract_mesh()):
        # JAX after 0.10 cannot differentiate a shard_map inside of another where axes changed their type in between.
        laid_out = [_typed(layout, *pair) for pair in zip(leaves, arrays, strict=True)]
        out, largest, total = positional(*laid_out)
    else:
        entries = _entries(plan, layout)
        of_results = tuple(_explicit(operands.query.array, each) for each in entries)
        out, largest, total = auto.local(positional, arrays, of_results)
    rows, query = _rows(plan), operands.query
    return wrap(query, out, plan.out_names), wrap(query, largest, rows), wrap(query, total, rows)


def _full(layout: Layout, x: object, array: jax.Array) -> list[Entry]:
    """Return the mesh axes of all dimensions."""
    if isinstance(x, NamedArray):
        return partition.entries_from_spec(layout.spec(x))
    return [()] * array.ndim


def _typed(layout: Layout, x: object, array: jax.Array) -> jax.Array:
    """On Explicit mesh axes, lay an array out as the devices take it."""
    if not layout.manual or not explicit.has_explicit_axes(array):
        return array
    return explicit.relayout(array, _explicit(array, _full(layout, x, array)))


def _explicit(array: jax.Array, entries: list[Entry]) -> list[Entry]:
    """Leave out mesh axes that are not Explicit: types do not have them."""
    typed = modes.find_explicit_axes(explicit.mesh_of_type(array))
    return [partition.only(entry, typed) for entry in entries]


def _entries(plan: Plan, layout: Layout) -> Iterator[list[Entry]]:
    """Yield the mesh axes of each axis of the result, of the largest scores and of the totals."""
    rows = _rows(plan)
    by_heads = layout.method == "all-to-all"
    yield layout.entries_of(plan.out_names)
    for _ in range(2):
        yield layout.entries_of(rows, exchanged=by_heads)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(plan: Plan, layout: Layout, operands: Operands, rest: Rest) -> Tree:
    """Return the result, and for each query the largest score and the sum of exponentials relative to it."""
    return _forward(plan, layout, operands, rest)[0]


def _forward(plan: Plan, layout: Layout, operands: Operands, rest: Rest) -> Tree:
    def run(operands: Operands, rest: Rest) -> Tree:
        if layout.method == "all-to-all":
            return exchange_forward(plan, layout, operands, rest)
        return _FORWARD[layout.method](plan, layout, *varied(layout, (operands, rest))), ()

    rows, anonymous = _rows(plan), _anonymous(operands)
    by_heads = layout.method == "all-to-all"
    of_out = layout.spec_of(plan.out_names, anonymous)
    of_rows = layout.spec_of(rows, anonymous, exchanged=by_heads)
    of_kept: Tree = ()
    if by_heads:
        out = layout.spec_of(plan.out_names, anonymous, exchanged=True)
        of_kept = mapped(_spec_by_heads(layout), operands), out
    args, specs = (operands, rest), mapped(layout.spec, (operands, rest))
    results, kept = on_devices(layout, run, args, specs, ((of_out, of_rows, of_rows), of_kept))
    return results, (operands, rest, results, kept)


def _backward(plan: Plan, layout: Layout, saved: Tree, cotangents: Tree) -> Tree:
    operands, rest, results, kept = saved
    over = to_sum(layout, operands, rest)

    def run(*given: Number) -> Tree:
        operands, rest, results, kept, cotangents = varied(layout, given)
        if layout.method == "all-to-all":
            results = kept, results[1:]
        by = _BACKWARD[layout.method](plan, layout, operands, rest, results, cotangents)
        return summed(by, given[0], over)

    by_heads = layout.method == "all-to-all"
    rows = functools.partial(layout.spec, exchanged=by_heads)
    of_results = layout.spec(results[0]), rows(results[1]), rows(results[2])
    of_operands = mapped(layout.spec, operands)
    of_kept = mapped(_spec_by_heads(layout), kept)
    # Else the compiler might keep what one pass received for the other, and need the memory of all positions.
    args = jax.lax.optimization_barrier((operands, rest, results, kept, cotangents))
    specs = of_operands, mapped(layout.spec, rest), of_results, of_kept, of_results
    return on_devices(layout, run, args, specs, of_operands), None


def _spec_by_heads(layout: Layout) -> Callable[[NamedArray], PartitionSpec | None]:
    """Return how the backward pass finds an array that it keeps by heads; None for one without heads."""

    def spec(x: NamedArray) -> PartitionSpec | None:
        return layout.spec(x, exchanged=True) if str(layout.heads) in x.names else None

    return spec


def _rows(plan: Plan) -> Names:
    """Return the axes of what is known of each query."""
    return plans.without(plan.scoring.names, (KEYS,))


def _anonymous(operands: Operands) -> int:
    return operands.query.array.ndim - len(operands.query.names)


_FORWARD = {"ring": ring_forward, "all-gather": gather_forward}
_BACKWARD: Mapping[str, Callable[..., Operands]] = {
    "ring": ring_backward,
    "all-gather": gather_backward,
    "all-to-all": exchange_backward,
}
_attend.defvjp(_forward, _backward)
_compiled = jax.jit(_attend, static_argnums=(0, 1), inline=tracing.INLINE)
