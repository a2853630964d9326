"""Chunks of positions: their size is of no matter, and no digits are lost in them."""

from typing import Any

import equinox as eqx
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from tests.nn.layouts import same, same_trees
from tests.nn.remembering import MEMORY, NAMES, B, E, T, X, by_hand, each_kind, layer, run

pytestmark = pytest.mark.sampled


@each_kind
def test_the_size_of_chunks_is_of_no_matter(kind: Any) -> None:
    y, last = run(layer(kind), X)
    for chunk in (1, 3, 11, 64):
        found, state = run(layer(kind, chunk=chunk), X)
        same(found, NAMES, y.array)
        same_trees(state, last)
    # No positions leave the state as it is.
    none, state = run(layer(kind), X["time", :0], last)
    assert none.axes == X["time", :0].axes
    same_trees(state, last)


def test_equal_keys_in_a_long_chunk_lose_no_digits() -> None:
    """All keys are one, so that powers of what a chunk changes would grow to 1e17 before they cancel."""
    model = layer(nn.GatedDeltaNet, chunk=64)
    model = eqx.tree_at(lambda m: (m.decay.log_rate, m.strength.weight), model, replace_fn=lambda p: p * 0)
    model = eqx.tree_at(lambda m: m.decay.log_rate, model, replace_fn=lambda p: p - 20)
    x = axn.ones((B, T.resize(64), E))
    y, (memory, _) = run(model, x)
    expected, last = by_hand(model, np.ones((64, 4)))
    same(y["batch", 0], NAMES[1:], expected, rtol=1e-4)
    same(memory["batch", 0], MEMORY[1:], last, rtol=1e-4)
