"""Keys and values of many sequences in pages of one pool, allocated and freed inside of the compiled step."""

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

Seq, Page, Slot, Head = hax.make_axes(seq=3, page=8, slot=2, head=4)
Table = Axis("table", 4)  # the pages of one sequence
FREE = -1


class Pool(eqx.Module):
    values: NamedArray  # page slot head
    owner: NamedArray  # page: the sequence, or FREE
    tables: NamedArray  # seq table: the pages, or FREE
    lengths: NamedArray  # seq
    failed: NamedArray  # no axes

    @staticmethod
    def init() -> "Pool":
        return Pool(
            hax.zeros((Page, Slot, Head)),
            hax.full(Page, FREE, dtype=jnp.int32),
            hax.full((Seq, Table), FREE, dtype=jnp.int32),
            hax.zeros(Seq, dtype=jnp.int32),
            hax.named(jnp.array(False), ()),
        )


def allocate(pool: Pool, seq: NamedArray) -> Pool:
    """Give a sequence the first free page, if there is one."""
    free = pool.owner == FREE
    page = hax.argmax(free, Page)
    at = hax.take(pool.lengths, Seq, seq) // Slot.size

    def give(pool: Pool) -> Pool:
        owner = pool.owner.at[Page, page].set(seq)
        tables = pool.tables.at[Seq, seq, Table, at].set(page)
        return eqx.tree_at(lambda p: (p.owner, p.tables), pool, (owner, tables))

    def refuse(pool: Pool) -> Pool:
        return eqx.tree_at(lambda p: p.failed, pool, hax.where(hax.any(free), pool.failed, True))

    return jax.lax.cond(hax.any(free).scalar(), give, refuse, pool)


def append(pool: Pool, seq: NamedArray, value: NamedArray) -> Pool:
    """Write one position of a sequence."""
    length = hax.take(pool.lengths, Seq, seq)
    slot = length % Slot.size
    pool = jax.lax.cond((slot == 0).scalar(), lambda pool: allocate(pool, seq), lambda pool: pool, pool)
    page = hax.where(pool.failed, 0, pool.tables[Seq, seq, Table, length // Slot.size])
    part = hax.where(pool.failed, pool.values[Page, page, Slot, slot], value)
    values = pool.values.updated_slice({Page: page, Slot: slot}, part.broadcast_axis((Page.resize(1), Slot.resize(1))))
    lengths = pool.lengths.at[Seq, seq].add(hax.where(pool.failed, 0, 1))
    return eqx.tree_at(lambda p: (p.values, p.lengths), pool, (values, lengths))


def release(pool: Pool, seq: NamedArray) -> Pool:
    """Free all pages of a sequence."""
    owner = hax.where(pool.owner == seq, FREE, pool.owner)
    tables = hax.where(hax.arange(Seq) == seq, FREE, pool.tables)
    lengths = hax.where(hax.arange(Seq) == seq, 0, pool.lengths)
    return eqx.tree_at(lambda p: (p.owner, p.tables, p.lengths), pool, (owner, tables, lengths))


def append_all(pool: Pool, values: NamedArray, active: NamedArray) -> Pool:
    """Write one position of each active sequence."""

    def one(pool: Pool, seq: NamedArray, value: NamedArray, on: NamedArray) -> Pool:
        return jax.lax.cond(on.scalar(), lambda pool: append(pool, seq, value), lambda pool: pool, pool)

    return hax.fold(one, Seq)(pool, hax.arange(Seq), values, active)


def attend(pool: Pool, query: NamedArray) -> NamedArray:
    """Average the values of each sequence by how well they fit its query."""
    pages = hax.where(pool.tables == FREE, 0, pool.tables)
    known = hax.take(pool.values, Page, pages)  # seq table slot head
    place = hax.arange(Table) * Slot.size + hax.arange(Slot).broadcast_axis(Table)
    seen = place.broadcast_axis(Seq) < pool.lengths
    scores = hax.where(seen, hax.dot(known, query, axis=Head), -1e9)
    return hax.dot(hax.nn.softmax(scores, axis=(Table, Slot)), known, axis=(Table, Slot))


def decode(pool: Pool, first: NamedArray, steps: int, stop: NamedArray) -> tuple[Pool, NamedArray]:
    """Generate vectors; a sequence ends after `stop` steps, and its pages are free for others."""

    def body(state):
        i, pool, x, out = state
        on = stop > i
        pool = append_all(pool, x, on)
        y = hax.where(on, hax.tanh(attend(pool, x) + x), 0.0)
        out = out.at["step", i].set(y)

        def ended(pool, seq):
            return jax.lax.cond((stop[Seq, seq] == i + 1).scalar(), lambda p: release(p, seq), lambda p: p, pool)

        return i + 1, hax.fold(ended, Seq)(pool, hax.arange(Seq)), y, out

    out = hax.zeros((Axis("step", steps), Seq, Head))
    state = (jnp.array(0), pool, first, out)
    _, pool, _, out = jax.lax.while_loop(lambda state: state[0] < steps, body, state)
    return pool, out
