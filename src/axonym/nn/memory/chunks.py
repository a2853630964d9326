"""Internal. Memories: matrices that are written with a key and a value at each position, and read with a query.

At each position, a memory S decays and is written: S' = a S + k v'. With the delta rule, it is written with the
difference from what the key reads already: S' = a S + b k (v - k' a S)'. A query reads q' S'.

Positions are computed in chunks. A chunk changes a memory linearly: S' = M S + B. So M and B of all chunks are
computed at once, then the memories between them in a scan, and then all results at once. Where devices share the
positions, the scan is an associative one, in which each device sends the M and B of its part.

References: Yang et al. (2024), Parallelizing linear transformers with the delta rule over sequence length, section 3;
Dao, Gu (2024), Transformers are SSMs, section 6.
"""

from typing import NamedTuple

import jax.numpy as jnp

from ...array import NamedArray
from ...axis import Axis, without_axes
from ...create import arange, eye, zeros_like
from ...engine import prefixes
from ...ops.contract import dot
from ...ops.cumulative import cumsum
from ...ops.elementwise import exp
from ...ops.linalg.solving import solve_triangular
from ...ops.pad import pad
from ...ops.roll import roll
from ...ops.where import where
from ...transform.associative_scan import associative_scan
from ...transform.scan import scan

# No mapping splits these.
WITHIN, EARLIER, FROM = (
    "position in a chunk",
    "earlier position in a chunk",
    "feature of a memory before",
)


class Writes(NamedTuple):
    """How each position changes a memory, and how it reads it; float32 or wider.

    Attributes:
        query: axes {feature, ...}.
        keys: axes {feature, ...}.
        values: axes {...}, and those of a head's values.
        log_decay: the logarithm of a, axes {...}.
        strength: b of the delta rule, axes {...}; None to add values as they are.
    """

    query: NamedArray
    keys: NamedArray
    values: NamedArray
    log_decay: NamedArray
    strength: NamedArray | None


def write_one(
    writes: Writes, feature: str, memory: NamedArray | None
) -> tuple[NamedArray, NamedArray]:
    """Write one position and read; return what is read, and the memory."""
    query, keys, values, log_decay, strength = writes
    if memory is None:
        memory = zeros_like(_multiply(keys, values))
    kept = memory * exp(log_decay)
    if strength is not None:
        values = (values - dot(kept, keys, axis=feature)) * strength
    memory = kept + _multiply(keys, values)
    return dot(memory, query, axis=feature), memory


def write_all(
    writes: Writes,
    feature: str,
    name: str,
    memory: NamedArray | None,
    real: NamedArray | None,
    begins: NamedArray | None,
    size: int,
) -> tuple[NamedArray, NamedArray]:
    """Write all positions and read at each.

    Args:
        writes: of all positions, with the axis `name`.
        feature: the axis of features of queries and keys.
        name: the axis of positions.
        memory: the memory to start from; by default zeros.
        real: which positions are real; the others leave the memory as it is.
        begins: at which positions the memory is emptied first.
        size: the number of positions in a chunk.

    Returns:
        What is read, with the axis `name`, and the last memory.
    """
    if real is not None:
        keys, log_decay = where(real, writes.keys, 0.0), where(real, writes.log_decay, 0.0)
        writes = writes._replace(keys=keys, log_decay=log_decay)
    count = writes.keys.axis_size(name)
    at = writes.keys.names.index(name)
    _, parts = prefixes.find_parts(
        writes.keys.array, at - len(writes.keys.names) + writes.keys.array.ndim, name
    )
    size = _choose_size(count, size, parts)
    number = max(-(-count // size), 1)
    Chunks, Within = Axis(name, number).derive("chunk"), Axis(WITHIN, size)

    def cut(x: NamedArray) -> NamedArray:
        extra = number * size - count
        # Keys of zeros without a decay leave the memory as it is.
        x = pad(x, {name: (0, extra)}) if extra else x
        return x.unflatten_axis(name, (Chunks, Within))

    chunks = Writes(*(None if x is None else cut(x) for x in writes))  # type: ignore[arg-type]
    starts = None if begins is None else cut(begins.astype(jnp.int32))
    read, memory = _write_chunks(chunks, starts, feature, Chunks, memory, is_split=parts > 1)
    read = read.flatten_axes((Chunks.name, WITHIN), name)
    return read if read.axis_size(name) == count else read[name, :count], memory


def _choose_size(count: int, size: int, parts: int) -> int:
    """Return the number of positions in a chunk: where devices share them, each has several whole chunks."""
    if parts == 1:
        return max(min(count, size), 1)
    own = count // parts
    return next(n for n in range(min(size, own // 2), 0, -1) if own % n == 0)


def _write_chunks(
    writes: Writes,
    begins: NamedArray | None,
    feature: str,
    Chunks: Axis,
    memory: NamedArray | None,
    *,
    is_split: bool,
) -> tuple[NamedArray, NamedArray]:
    """Do `write_all` for positions in two axes."""
    query, keys, values, log_decay, strength = writes
    Within = keys.resolve_axis(WITHIN)
    Earlier, to_earlier = Axis(EARLIER, Within.size), {WITHIN: EARLIER}
    row, column = arange(Within).broadcast_axis(Earlier), arange(Earlier)

    total = cumsum(log_decay, WITHIN)
    last = total[WITHIN, -1]
    distance = total.broadcast_axis(Earlier) - total.rename(to_earlier)
    distance = where(row >= column, distance, -jnp.inf)
    since, until = total, last - total
    if begins is not None:
        # A position sees those, and a memory, that nothing has emptied between.
        emptied = cumsum(begins, WITHIN)
        at_end = emptied[WITHIN, -1]
        is_one = emptied.broadcast_axis(Earlier) == emptied.rename(to_earlier)
        distance = where(is_one, distance, -jnp.inf)
        since = where(emptied == 0, since, -jnp.inf)
        until = where(emptied == at_end, until, -jnp.inf)
        last = where(at_end == 0, last, -jnp.inf)
    decays, since, until, last = exp(distance), exp(since), exp(until), exp(last)

    earlier, kept = keys.rename(to_earlier), _multiply(keys, until)
    map_, own = last, values
    of_memory = None
    if strength is not None:
        # The differences of a chunk are those of values, less what earlier ones have changed: (I + L) d = b (v - k S).
        changed = where(row > column, dot(keys, earlier, axis=feature) * decays, 0.0) * strength
        own = _solve(changed, values * strength)
        of_memory = _solve(changed, _multiply(keys, since * strength))
        # Each feature before, to each feature after.
        one = eye(keys.resolve_axis(feature), FROM, dtype=keys.dtype)
        map_ = _multiply(one, last) - dot(kept, of_memory.rename({feature: FROM}), axis=WITHIN)
    added = dot(kept, own, axis=WITHIN)

    if memory is not None:
        added = added.broadcast_axis(without_axes(memory.axes, added.names))
    before, memory = _scan(map_, added, feature, Chunks, memory, is_split=is_split)
    if of_memory is not None:
        own = own - dot(of_memory, before, axis=feature)
    among = dot(query, earlier, axis=feature) * decays
    read = dot(_multiply(query, since), before, axis=feature)
    return read + dot(among, own.rename(to_earlier), axis=EARLIER), memory


def _multiply(x: NamedArray, y: NamedArray) -> NamedArray:
    """Multiply two arrays, neither of which needs all axes of the other."""
    return x.broadcast_axis(y.axes) * y


def _solve(changed: NamedArray, x: NamedArray) -> NamedArray:
    """Solve d + `changed` d = x for d."""
    x = x.broadcast_axis(without_axes(changed.axes, (*x.names, EARLIER)))
    solved = solve_triangular(changed, x, WITHIN, EARLIER, lower=True, unit_diagonal=True)
    return solved.rename({EARLIER: WITHIN})


def _scan(
    map_: NamedArray,
    added: NamedArray,
    feature: str,
    Chunks: Axis,
    memory: NamedArray | None,
    *,
    is_split: bool,
) -> tuple[NamedArray, NamedArray]:
    """Return the memory before each chunk, and the last one."""

    def apply(map_: NamedArray, x: NamedArray) -> NamedArray:
        if FROM not in map_.names:
            return _multiply(x, map_)
        return dot(map_, x.rename({feature: FROM}), axis=FROM)

    names = added.names
    start = zeros_like(added[Chunks.name, 0]) if memory is None else memory
    start = start.broadcast_to(added[Chunks.name, 0].axes)
    if not is_split:

        def step(
            before: NamedArray, map_: NamedArray, added: NamedArray
        ) -> tuple[NamedArray, NamedArray]:
            return (apply(map_, before) + added).rearrange(before.names), before

        memory, before = scan(step, Chunks)(start, map_, added)
        return before, memory

    def compose(
        first: tuple[NamedArray, NamedArray], second: tuple[NamedArray, NamedArray]
    ) -> tuple[NamedArray, NamedArray]:
        middle = "feature of a memory between"
        both = second[0]
        if FROM in both.names:
            both = dot(both.rename({FROM: middle}), first[0].rename({feature: middle}), axis=middle)
        else:
            both = both * first[0]
        after = apply(second[0], first[1]) + second[1]
        return both.rearrange(first[0].names), after.rearrange(first[1].names)

    maps, sums = associative_scan(compose, Chunks)((map_, added))
    after = (apply(maps, start) + sums).rearrange(names)
    before = where(arange(Chunks) == 0, start, roll(after, 1, Chunks))
    return before, after[Chunks.name, -1]
