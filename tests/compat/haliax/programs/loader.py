"""Batches for all devices from a data set on the host: sequences of any length, cut, padded and read ahead."""

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import equinox as eqx
import haliax as hax
import jax
import numpy as np
from haliax import Axis, NamedArray
from haliax.partitioning import ResourceMapping, round_axis_for_partitioning, sharding_for_axis
from jax.sharding import Mesh

T = TypeVar("T")


class Example(eqx.Module):
    tokens: NamedArray
    loss_mask: NamedArray
    length: NamedArray


def packed(documents: Sequence[Sequence[int]], Pos: Axis, eos: int) -> Iterator[np.ndarray]:
    """Cut the documents, one behind the other, into rows of the same length."""
    waiting: list[int] = []
    for document in documents:
        waiting += [*document, eos]
        while len(waiting) >= Pos.size:
            yield np.array(waiting[: Pos.size], np.int32)
            waiting = waiting[Pos.size :]
    if waiting:
        yield np.array(waiting, np.int32)


@dataclass
class Loader:
    mesh: Mesh
    mapping: ResourceMapping
    Batch: Axis
    Pos: Axis
    pad: int = 0

    @property
    def Padded(self) -> Axis:
        """The batch that the devices can share evenly."""
        with self.mesh:
            return round_axis_for_partitioning(self.Batch, self.mapping)

    def batch(self, rows: Sequence[np.ndarray]) -> Example:
        tokens = np.full((self.Padded.size, self.Pos.size), self.pad, np.int32)
        lengths = np.zeros(self.Padded.size, np.int32)
        for i, row in enumerate(rows):
            tokens[i, : len(row)], lengths[i] = row, len(row)
        with self.mesh, hax.axis_mapping(self.mapping):
            spread = self.spread(tokens, (self.Padded, self.Pos))
            length = self.spread(lengths, (self.Padded,))
            mask = hax.arange(self.Pos).broadcast_axis(self.Padded) < length
            return Example(spread, hax.auto_sharded(mask), length)

    def spread(self, values: np.ndarray, axes: tuple[Axis, ...]) -> NamedArray:
        """Let each device fetch its own part."""
        sharding = sharding_for_axis(axes)
        return NamedArray(jax.make_array_from_callback(values.shape, sharding, values.__getitem__), axes)

    def __call__(self, documents: Sequence[Sequence[int]], eos: int) -> Iterator[Example]:
        rows: list[np.ndarray] = []
        for row in packed(documents, self.Pos, eos):
            rows.append(row)
            if len(rows) == self.Batch.size:
                yield self.batch(rows)
                rows = []
        if rows:
            yield self.batch(rows)


class ReadAhead(Generic[T]):
    """Make batches in a thread, which has a mapping and a mesh of its own."""

    def __init__(self, items: Iterator[T], depth: int = 2):
        self.items, self.done = queue.Queue[Any](depth), object()
        threading.Thread(target=self._fill, args=(items,), daemon=True).start()

    def _fill(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                self.items.put(item)
        except Exception as error:
            self.items.put(error)
        self.items.put(self.done)

    def __iter__(self) -> Iterator[T]:
        while (item := self.items.get()) is not self.done:
            if isinstance(item, Exception):
                raise item
            yield item


def statistics(example: Example) -> dict[str, NamedArray]:
    tokens = hax.where(example.loss_mask, example.tokens, 0)
    return {"tokens": hax.sum(example.loss_mask), "sum": hax.sum(tokens), "by_row": hax.sum(tokens, axis="position")}
