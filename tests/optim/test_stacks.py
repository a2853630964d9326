"""A transformation runs for each position of the stacks, and one that mixes parameters raises."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import nn, optim
from axonym.errors import ArgumentError
from tests.optim.table import ALL, begin, drawn, in_rounds, train

REFUSED = {
    "scale_by_backtracking_linesearch": "calls 'value_fn', a function of the whole model",
    "add_noise": "draws random numbers, which would be the same in all layers",
}


def test_what_mixes_parameters_is_refused_without_stacks_too():
    layer = nn.Linear.init(axn.Axis("embed", 4), axn.Axis("mlp", 3), key=jax.random.key(0))
    for wrapper in (optim.per_matrix, optim.per_layer):
        tx = wrapper(optax.clip_by_global_norm(1.0))
        with pytest.raises(ArgumentError, match="the transformation mixes parameters, or the layers of one"):
            tx.update(layer, tx.init(layer), layer)


def test_what_mixes_parameters_is_refused():
    model = in_rounds(drawn(0))
    others = {"add_noise": lambda: optax.add_noise(0.1, 0.1, key=0)}
    # One looks at the loss alone; lines are searched by the same function.
    skipped = {"reduce_on_plateau", "lbfgs", "scale_by_zoom_linesearch"}
    for name, make in {**ALL, **others}.items():
        tx = optim.per_matrix(make())
        if name not in skipped:
            with pytest.raises(ArgumentError) as error:
                jax.eval_shape(lambda model, tx=tx: train(tx, begin(tx, model), model), model)
            assert str(error.value) == (
                f"per_matrix: the transformation {REFUSED.get(name, 'mixes parameters, or the layers of one')}\n"
                "  hint: leave out what works on the whole model, as the norm of all gradients does: "
                "optax.chain(optax.clip_by_global_norm(1.0), axn.optim.per_matrix(...))"
            )


def test_modules_of_equinox_and_arrays_without_names():
    """Arrays of Equinox have outputs first, which the transformation does not see; integers stay as they are."""
    key = jax.random.key(1)
    linear = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 6, key=key))(jax.random.split(key, 3))
    params = {"linear": linear, "own": jax.random.normal(key, (4, 6)), "count": jnp.arange(3)}
    tx = optim.per_matrix(optax.scale_by_factored_rms(min_dim_size_to_factor=2), roles={"own": ("input", "output")})

    @eqx.filter_jit
    def update(params):
        state = tx.init(params)
        return state, *tx.update(params, state, params)

    state, updates, after = update(params)
    assert (state.v_row["linear"].weight.shape, state.v_row["own"].shape) == ((3, 4), (4,))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    by_hand_ = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    update_by_hand = jax.jit(lambda matrix: by_hand_.update(matrix, by_hand_.init(matrix), matrix)[0])
    for i in range(3):
        expected = update_by_hand(np.asarray(linear.weight)[i].T)
        np.testing.assert_allclose(np.asarray(updates["linear"].weight)[i].T, expected, rtol=1e-5)
