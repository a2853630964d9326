"""Training on a mixture of data sets whose weights change over time, with the loss of each set."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax.numpy as jnp
import numpy as np
import optax
from haliax import Axis, NamedArray
from haliax.partitioning import fsdp

Embed, Source = hax.make_axes(embed=4, source=3)


@dataclass(frozen=True)
class Schedule:
    """Weights by name, from given steps on."""

    stages: tuple[tuple[int, Mapping[str, float]], ...]
    seed: int = 0

    def weights(self, step: int) -> Mapping[str, float]:
        return next(weights for start, weights in reversed(self.stages) if start <= step)

    def counts(self, step: int, names: list[str], size: int) -> list[int]:
        """Share a batch out; what is left over goes to the largest remainders."""
        given = self.weights(step)
        wanted = np.array([given.get(name, 0.0) for name in names])
        wanted = wanted / wanted.sum() * size
        counts = np.floor(wanted).astype(int)
        for i in np.argsort(counts - wanted, kind="stable")[: size - counts.sum()]:
            counts[i] += 1
        return counts.tolist()


def blended(
    sources: Mapping[str, Callable[[int], np.ndarray]], schedule: Schedule, Batch: Axis, start: int = 0
) -> Iterator[tuple[NamedArray, NamedArray]]:
    """Draw batches; starting later gives the same ones as going on."""
    names, read = list(sources), dict.fromkeys(sources, 0)
    for step in itertools.count():
        rows, ids = [], []
        for i, (name, count) in enumerate(zip(names, schedule.counts(step, names, Batch.size), strict=True)):
            rows += [sources[name](read[name] + j) for j in range(count)]
            ids += [i] * count
            read[name] += count
        order = np.random.default_rng((schedule.seed, step)).permutation(Batch.size)
        if step >= start:
            yield (
                hax.named(np.stack(rows)[order].astype(np.float32), (Batch, Embed)),
                hax.named(np.array(ids, np.int32)[order], Batch),
            )


class Auto(eqx.Module):
    """An autoencoder with one offset for each source."""

    encode: hnn.Linear
    decode: hnn.Linear
    offset: NamedArray

    @staticmethod
    def init(*, key) -> "Auto":
        Code = Axis("code", 2)
        encode = hnn.Linear.init(Embed, Code, key=key, use_bias=False)
        return Auto(encode, hnn.Linear.init(Code, Embed, key=key, use_bias=False), hax.zeros((Source, Embed)))

    def __call__(self, x: NamedArray, source: NamedArray) -> NamedArray:
        return self.decode(self.encode(x)) + self.offset.take(Source, source)


def loss_fn(model: Auto, x: NamedArray, source: NamedArray) -> tuple[Any, dict[str, NamedArray]]:
    errors = hax.mean((model(x, source) - x) ** 2, Embed)
    is_from = hnn.one_hot(source, Source)
    count = hax.sum(is_from, errors.axes)
    each = hax.dot(is_from, errors, axis=errors.axes) / hax.maximum(count, 1)
    seen = (count > 0).astype(jnp.float32)
    return (hax.sum(each) / hax.sum(seen)).scalar(), {"loss": each, "count": count}


def make_step(optimizer: optax.GradientTransformation, parameters: Any, compute: Any) -> Any:
    @fsdp(parameters, compute)
    def step(model: Auto, state: Any, x: NamedArray, source: NamedArray) -> Any:
        (loss, parts), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(model, x, source)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return loss, parts, eqx.apply_updates(model, updates), state

    return step
