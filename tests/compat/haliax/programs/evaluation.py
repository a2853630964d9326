"""Evaluation: running sums over batches, by tag, with top-k, calibration and a confusion matrix."""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax.numpy as jnp
from haliax import NamedArray
from haliax.partitioning import ResourceMapping, named_jit

Classes, Tag, Bin = hax.make_axes(classes=5, tag=3, bin=4)


class Totals(eqx.Module):
    count: NamedArray  # tag
    loss: NamedArray  # tag
    correct: NamedArray  # tag
    among_two: NamedArray  # no axes
    confusion: NamedArray  # classes guess
    confident: NamedArray  # bin
    right: NamedArray  # bin

    @staticmethod
    def zero() -> "Totals":
        by_tag = [hax.zeros(Tag) for _ in range(3)]
        return Totals(
            *by_tag, hax.zeros(()), hax.zeros((Classes, Classes.alias("guess"))), hax.zeros(Bin), hax.zeros(Bin)
        )


def evaluate(model: Any, totals: Totals, x: NamedArray, labels: NamedArray, tags: NamedArray) -> Totals:
    """Add a batch; labels below zero are padding, and each example has any number of tags."""
    Batch = labels.axes[0]
    logits = eqx.nn.inference_mode(model)(x)
    valid = labels >= 0
    weights = valid.astype(jnp.float32)
    targets = hnn.one_hot(hax.where(valid, labels, 0), Classes)
    loss = hnn.cross_entropy_loss(logits, Classes, targets, reduction=None)
    guess = hax.argmax(logits, Classes)
    correct = (guess == labels) * weights
    _, best = hax.top_k(logits, Classes, 2, "rank")
    among = hax.any(best == labels, axis="rank") * weights
    surest = hax.max(hnn.softmax(logits, Classes), Classes)
    at = hnn.one_hot(hax.clip(hax.floor(surest * Bin.size), 0, Bin.size - 1).astype(jnp.int32), Bin)
    matrix = hax.dot(targets * weights, hnn.one_hot(guess, Classes.alias("guess")), axis=Batch)
    found = Totals(
        hax.dot(tags, weights, axis=Batch),
        hax.dot(tags, loss * weights, axis=Batch),
        hax.dot(tags, correct, axis=Batch),
        hax.sum(among),
        matrix,
        hax.dot(at, surest * weights, axis=Batch),
        hax.dot(at, correct, axis=Batch),
    )
    return hax.tree_util.tree_map(hax.add, totals, found)


def run(model: Any, batches: Iterable[tuple[NamedArray, ...]], mapping: ResourceMapping) -> dict[str, Any]:
    step = named_jit(evaluate, axis_resources=mapping, out_axis_resources={}, donate_args=(False, True))
    totals = Totals.zero()
    for batch in batches:
        totals = step(model, totals, *batch)
    count = hax.maximum(totals.count, 1)
    return {
        "loss": (totals.loss / count).tolist(),
        "accuracy": (totals.correct / count).tolist(),
        "among_two": totals.among_two.item(),
        "confusion": totals.confusion.array,
        "calibration": hax.sum(hax.abs(totals.confident - totals.right)).item(),
    }
