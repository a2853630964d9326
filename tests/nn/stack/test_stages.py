"""How a pipeline cuts arrays into microbatches, and lays them out in time."""

import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym.layout.assignment import normalized
from axonym.nn.stack.running import name_dimensions
from axonym.nn.stack.stages import Pipeline
from axonym.partitioning.options import Microbatches
from tests.nn.layouts import draw, same

L, B, E = axn.make_axes(layers=6, batch=24, embed=2)


def make(stages=3, microbatches=6, ways=2):
    empty = normalized({})
    return Pipeline("fold", L, Microbatches("batch", microbatches), (), stages, ways, ways, empty, empty, empty)


def test_a_microbatch_has_rows_of_all_devices():
    queue = make().make_queue(axn.arange(B))
    assert queue.shape == {"layers.stage": 3, "layers.slot": 2, "batch": 4}
    # Two devices have 12 rows each, of which a microbatch takes two.
    expected = [[2 * m, 2 * m + 1, 12 + 2 * m, 13 + 2 * m] for m in range(6)]
    assert np.array_equal(queue.array.reshape(6, 4), expected)


def test_a_queue_is_joined_again():
    """Eight ticks are four turns of the two slots."""
    x = draw(E, B)
    same(make().dequeue(make().make_queue(x)), ("embed", "batch"), x.array)


def test_what_lacks_the_axis_is_repeated_and_averaged():
    pipeline = make()
    queue = pipeline.make_queue(axn.named(3.0, ()))
    assert queue.shape == {"layers.stage": 3, "layers.slot": 2}
    counted = axn.named(jnp.arange(6.0).reshape(3, 2), queue.names)
    assert pipeline.dequeue(counted).item() == 2.5


def test_a_stage_works_on_a_microbatch_later_than_the_one_before():
    pipeline = make(ways=1)
    microbatches = pipeline.schedule(pipeline.split_by_stage((axn.arange(B) // 4).broadcast_axis(L)))
    first_row = microbatches["batch", 0, "layers", 0].rearrange(("layers.stage", "layers.tick"))
    # A stage that waits works on some microbatch.
    assert np.array_equal(first_row.array[0, :6], range(6))
    assert np.array_equal(first_row.array[1, 1:7], range(6))
    assert np.array_equal(first_row.array[2, 2:], range(6))
    assert set(first_row.array.ravel().tolist()) == set(range(6))


def test_outputs_are_collected_by_layer_and_row():
    pipeline, x = make(), draw(L, B, E)
    same(pipeline.collect(pipeline.schedule(pipeline.split_by_stage(x))), ("layers", "batch", "embed"), x.array)


def test_a_queue_takes_a_microbatch_into_a_slot():
    pipeline, x = make(), draw(B)
    queue = pipeline.make_queue(x)
    tail = axn.arange(pipeline.Stage).broadcast_axis(axn.Axis("batch", 4)).astype("float32")
    put = pipeline.store(jnp.asarray(1), queue, tail)
    assert np.array_equal(put.array[:, 1], np.repeat([[0], [1], [2]], 4, 1))
    assert np.array_equal(put.array[:, 0], queue.array[:, 0])


def test_plain_arrays_get_names():
    assert name_dimensions(jnp.ones((2, 3)), ("layers",)).shape == {"layers": 2, "dimension.1": 3}
    assert name_dimensions(1.0, ("layers",)).shape == {}
