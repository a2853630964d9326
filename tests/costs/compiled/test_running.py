"""Runs on the devices of a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.costs.compiled.running import find_devices, measure_run
from axonym.errors import OperandError

MESH = {"data": 4, "model": 2}


def test_a_run_gets_arrays_of_its_shapes_and_may_donate_them():
    seen = []

    def step(weight, state, rows, key):
        def note(*values):
            seen.append([(one.shape, one.dtype, np.unique(one).size) for one in values])

        jax.debug.callback(note, weight.array, state.array, rows.array)
        return weight + jax.random.normal(key, (8,)).sum().astype(weight.dtype), state + rows.sum().array

    shapes = {"batch": 8, "embed": 16}
    args = [
        axn.NamedArray(jax.ShapeDtypeStruct((8, 16), dtype), tuple(shapes))
        for dtype in (jnp.bfloat16, jnp.float32, jnp.int32)
    ]
    key = jax.eval_shape(jax.random.key, 0)
    given = axn.named_jit(step, {}, donate_args=(True, True, False, False))
    assert measure_run(given, {"batch": "data"}, MESH, (*args, key), {}, rounds=2) > 0
    jax.effects_barrier()
    assert len(seen) == 3
    for (weight, _, several), (state, _, many), (rows, dtype, alike) in seen:
        assert weight == state == rows == (8, 16)
        assert dtype == np.int32
        # Floats differ, so that nothing is computed from zeros alone.
        assert (several > 30, many > 100, alike) == (True, True, 1)


def test_a_run_needs_all_devices():
    assert dict(find_devices(MESH, "plan").shape) == MESH
    with pytest.raises(OperandError) as raised:
        find_devices({"data": 999}, "plan")
    assert str(raised.value) == (
        "plan: the mesh has 999 devices, and this machine has 8\n  hint: give a mesh of devices that are here"
    )
