"""Optax computes on Auto axes, functions of the user on Explicit ones, and results are typed like what came in."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import optim
from axonym.errors import OperandError


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_transformation_runs_on_auto_axes_and_calls_functions_on_explicit_ones(is_compiled, explicit_mesh):
    modes = []

    def note(x: axn.NamedArray) -> axn.NamedArray:
        modes.append({mode.name for mode in jax.typeof(x.array).sharding.mesh.axis_types})
        return x

    def update(updates, state, params, *, value_fn):
        moved = note(updates) * value_fn(params)
        return moved, {"last": moved, "steps": state["steps"] + 1}

    tx = optim.on_auto_axes(
        optax.GradientTransformationExtraArgs(lambda x: {"last": x, "steps": jnp.zeros((), int)}, update)
    )
    with axn.set_mesh(explicit_mesh):
        x = axn.shard(axn.arange({"embed": 8}, dtype=float), {"embed": "data"})
        gradient = axn.shard(x, {"embed": "model"})

        def step(gradient, state, x):
            return tx.update(gradient, state, x, value_fn=lambda x: note(x).sum().scalar())

        run = jax.jit(step) if is_compiled else step
        updates, state = run(gradient, tx.init(x), x)
    assert modes == [{"Auto"}, {"Explicit"}]
    np.testing.assert_array_equal(updates.array, 28 * np.arange(8))
    specs = [jax.typeof(found.array).sharding.spec for found in (updates, state["last"])]
    assert specs == [jax.P("model"), jax.P("data")]
    assert state["steps"] == 1


def test_what_is_no_transformation():
    for wrap in (optim.per_matrix, optim.per_layer, optim.on_auto_axes):
        with pytest.raises(OperandError) as error:
            wrap(optax.adam)
        assert str(error.value) == (
            f"{wrap.__name__}: expected a transformation of Optax, got function\n  hint: write optax.adam(1e-3)"
        )
