"""Rings and pairs of devices; `test_collectives.py` has the mistakes."""

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.partitioning.permutations import list_pairs

B = axn.Axis("batch", 8)


def test_a_shift_is_a_ring_and_pairs_are_any_integers():
    given = [[0, 1], [np.int64(1), jnp.int32(0)]]
    assert list_pairs(-1, 3, ("data",)) == [(0, 2), (1, 0), (2, 1)]
    for pairs in (given, tuple(map(tuple, given)), np.array([[0, 1], [1, 0]])):
        assert list_pairs(pairs, 2, ("data",)) == [(0, 1), (1, 0)]


@pytest.mark.parametrize("over", [("data", "model"), ("model", "data")], ids=str)
def test_a_ring_follows_the_blocks_of_its_axis(explicit_mesh, auto_mesh, over):
    """Raw `ppermute` counts devices in the order of the mesh, whatever the order of the mesh axes it is given."""
    for mesh in (auto_mesh, explicit_mesh):
        for shift in (1, -3, np.int64(9), [(i, (i + 1) % 8) for i in range(8)]):
            f = axn.shard_map(lambda x, shift=shift: axn.ppermute(x, "batch", shift), {"batch": over}, mesh)
            by = 1 if isinstance(shift, list) else int(shift)
            np.testing.assert_array_equal(f(axn.arange(B)).array, np.roll(np.arange(8), by))
