"""The rows of a batch: windows of the text, or whole documents side by side; drawn ahead in a thread.

The rows of a step depend on the tokens, the seed and the number of the step alone: not on earlier steps, the devices
or the rows that were drawn ahead. So a run keeps only the number of steps as its position.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import equinox as eqx
import jax
import numpy as np
from data import Tokens
from numpy.typing import NDArray

import axonym as axn
from axonym import NamedArray

T = TypeVar("T")


class Batch(eqx.Module):
    """What the model reads in a step; axes microbatch, batch and pos, or fewer of them.

    Attributes:
        tokens: one position more than the model sees.
        documents: the number of its document within the row, for each position that the model sees; a position sees
            its own document alone.
        counted: which of the tokens that follow count in the loss.
    """

    tokens: NamedArray
    documents: NamedArray | None = None
    counted: NamedArray | None = None

    def part(self, i: int) -> "Batch":
        """Return a microbatch."""
        return jax.tree.map(lambda x: x["microbatch", i], self, is_leaf=axn.is_named_array)

    def shares(self) -> NamedArray:
        """Return how many tokens of each microbatch count, relative to their mean."""
        if self.counted is None:
            return axn.ones(self.tokens.resolve_axis("microbatch"))
        counts = self.counted.sum(("batch", "pos"))
        return counts / counts.mean()


class Rows(Protocol):
    """Where rows come from."""

    def rows(self, step: int, batch: int, chosen: NDArray[np.integer]) -> list[NDArray[np.generic]]:
        """Return the arrays of a `Batch`, (chosen, pos) each, for some rows of the batch of a step."""
        ...


@dataclasses.dataclass(frozen=True)
class Windows:
    """Random windows of the text.

    Attributes:
        tokens: of all texts.
        length: what the model sees; a window has one token more, because each is predicted from those before it.
        seed: of their order.
        end: the token that ends a document, and begins the next one: windows are divided there. None divides nowhere.
    """

    tokens: Tokens
    length: int
    seed: int
    end: int | None = None

    def rows(self, step: int, batch: int, chosen: NDArray[np.integer]) -> list[NDArray[np.generic]]:
        """Draw windows; every one is possible."""
        size = self.tokens.size
        if size < self.length + 1:
            raise ValueError(
                f"a window takes {self.length + 1} tokens (length {self.length}, and one more to predict), but the "
                f"text has {size}; pass a longer text, or a length of at most {max(size - 1, 0)}"
            )
        starts = np.random.default_rng((self.seed, step)).integers(self.tokens.size - self.length, size=batch)
        windows = self.tokens[starts[chosen, None] + np.arange(self.length + 1)].astype(np.int32)
        if self.end is None:
            return [windows]
        return [windows, np.cumsum(windows[:, :-1] == self.end, axis=1, dtype=np.int32)]


class Packed:
    """Whole documents side by side in rows, in random order; those longer than a row are cut.

    A document begins with the token that ended the one before, and a row that has no room for the next one ends early.
    Each epoch has all rows, in an order of its own.

    Args:
        tokens: of all texts.
        length: what the model sees; a row has one token more.
        seed: of the order of documents and rows.
        end: the token that ends a document.
    """

    def __init__(self, tokens: Tokens, length: int, seed: int, end: int) -> None:
        pieces = pieces_of(tokens, length, end)
        if not len(pieces):
            raise ValueError(f"a text of {tokens.size} tokens has no document of two tokens")
        self._tokens, self._length, self._seed = tokens, length, seed
        self._pieces = np.random.default_rng(seed).permutation(pieces)
        firsts, room = [0], length + 1
        for i, size in enumerate((self._pieces[:, 1] - self._pieces[:, 0]).tolist()):
            if size > room:
                firsts.append(i)
                room = length + 1
            room -= size
        self._bounds = np.array([*firsts, len(pieces)])

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def rows(self, step: int, batch: int, chosen: NDArray[np.integer]) -> list[NDArray[np.generic]]:
        """Return the next rows of an epoch, or the first ones of the next."""
        tokens = np.zeros((len(chosen), self._length + 1), np.int32)
        documents = np.full(tokens.shape, -1, np.int32)
        for own_tokens, own_documents, at in zip(tokens, documents, (step * batch + chosen).tolist(), strict=True):
            epoch, place = divmod(at, len(self))
            row, filled = shuffled(self._seed, epoch, len(self))[place], 0
            for number, i in enumerate(range(self._bounds[row], self._bounds[row + 1])):
                piece = self._tokens[slice(*self._pieces[i])]
                own = slice(filled, filled + len(piece))
                own_tokens[own], own_documents[own] = piece, number
                filled += len(piece)
        counted = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        return [tokens, documents[:, :-1], counted]


@functools.lru_cache(maxsize=4)
def shuffled(seed: int, epoch: int, count: int) -> NDArray[np.integer]:
    """Return the order of the rows of an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def pieces_of(tokens: Tokens, length: int, end: int) -> NDArray[np.integer]:
    """Return where documents begin and end, (number, 2); long ones are cut so that each token is predicted once."""
    ends = np.flatnonzero(np.asarray(tokens == end))
    firsts = np.concatenate([[0], ends])
    lasts = np.concatenate([ends, [tokens.size - 1]])
    counts = -(-(lasts - firsts) // length)
    numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(firsts, counts) + numbers * length
    stops = np.minimum(starts + length, np.repeat(lasts, counts)) + 1
    return np.stack([starts, stops], axis=1)


def batch_of(
    source: Rows,
    step: int,
    batch: int,
    microbatches: int = 1,
    own: slice = slice(None),
    padded: int | None = None,
) -> Batch:
    """Return the batch of a step in the memory of the host.

    Args:
        source: of its rows.
        step: the number of the step.
        batch: rows of the whole batch.
        microbatches: parts into which it is cut; the rows are the same for any number.
        own: which rows of each part to draw: those that the devices of this process have.
        padded: the rows of a part with those that pad it, so that devices divide it; they do not count.

    Raises:
        ValueError: if the parts are not equal, or the text is too short.
    """
    if microbatches < 1 or batch < 1 or batch % microbatches:
        raise ValueError(
            f"cannot split a batch of {batch} into {microbatches} microbatches; microbatches must divide batch"
        )
    chosen = np.arange(batch).reshape(microbatches, -1)[:, own]
    arrays = source.rows(step, batch, chosen.reshape(-1))
    names = ("microbatch", "batch", "pos")
    drawn = Batch(*(NamedArray(array.reshape(*chosen.shape, -1), names) for array in arrays))
    if padded is None or padded == batch // microbatches:
        return drawn
    # The last processes may have none but padding; all have the same arrays.
    rows = axn.Axis("batch", len(range(padded)[own]))
    whole, real = axn.pad_batch(drawn, rows)
    counted = np.ones(whole.tokens.array[..., 1:].shape, bool) if whole.counted is None else whole.counted.array
    counted = NamedArray(counted & np.asarray(real.array)[:, None], names)
    return Batch(whole.tokens, whole.documents, counted)


def ahead(draw: Callable[[int], T], steps: Iterable[int], depth: int = 2) -> Iterator[T]:
    """Yield what is drawn for each step; the next ones are drawn in a thread meanwhile, at most `depth` of them.

    An error of the thread is raised where its step would come.
    """
    waiting: deque[Future[T]] = deque()
    to_come = iter(steps)
    with ThreadPoolExecutor(1, thread_name_prefix="rows") as thread:
        try:
            while True:
                for step in to_come:
                    waiting.append(thread.submit(draw, step))
                    if len(waiting) > depth:
                        break
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
