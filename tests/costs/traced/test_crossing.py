"""Equations whose compiled programs send something along a split dimension, which traced costs do not count."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from tests.costs.programs import simulated

Batch, Pos = axn.make_axes(batch=8, pos=32)
X = axn.NamedArray(jax.ShapeDtypeStruct((8, 32), jnp.float32), (Batch, Pos))


def flip(x):
    return axn.flip(x, axis="pos")


def roll(x):
    return axn.roll(x, 1, axis="pos")


def halve(x):
    return x["pos", 0:16]


def order(x):
    return axn.argsort(x, axis="pos")


def double(x):
    return axn.concatenate("pos", [x, x])


@pytest.mark.parametrize("fn", [flip, roll, halve, order, double])
def test_a_note_tells_what_the_program_sends(fn):
    split, whole = {"batch": "data", "pos": "model"}, {"batch": "data"}
    mesh = {"data": 2, "model": 4}
    compiled = axn.cost(fn, split, simulated(mesh), X)
    assert compiled.totals["bytes sent"] > 0
    (note,) = axn.cost(fn, split, mesh, X, depth="traced").notes
    assert note.startswith("what devices send for ")
    assert note.endswith(" along a split dimension is not counted: outside of layers")
    # Devices that have complete rows send nothing.
    assert axn.cost(fn, whole, simulated(mesh), X).totals["bytes sent"] == 0
    assert not axn.cost(fn, whole, mesh, X, depth="traced").notes


def test_a_kernel_needs_complete_arrays():
    kernel = axn.partitioning.kernel_cost(lambda x: 2 * x, flops=lambda x: x.size)

    def run(x):
        return axn.named(kernel(x.array), x.axes)

    mapping, mesh = {"batch": "data"}, {"data": 2, "model": 4}
    compiled = axn.cost(run, mapping, simulated(mesh), X, target="h100")
    assert compiled.totals["bytes sent"] >= 8 * 32 * 4 / 2
    (note,) = axn.cost(run, mapping, mesh, X, target="h100", depth="traced").notes
    assert note == "what devices send for kernels along a split dimension is not counted: outside of layers"
    inside = axn.shard_map(run, mapping)
    assert not axn.cost(inside, mapping, mesh, X, target="h100", depth="traced").notes
