"""States that gradients overwrite, beside an optimiser of Optax."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax

import axonym as axn
from axonym import nn, quant
from tests.nn.layouts import draw, same_trees

B, E, M = axn.make_axes(batch=8, embed=4, mlp=6)
KEY = jax.random.key(0)


def model():
    mlp = nn.MLP.init(E, E, M, 1, key=KEY)
    config = quant.QuantizationConfig(functools.partial(quant.Fp8DotGeneral.init, amax_history_length=2), r"layers\.0")
    return quant.quantize_linear_layers(mlp, config)


def loss(model, x):
    return axn.square(model(x)).mean().scalar()


gradients_of = jax.jit(jax.grad(loss))


def test_a_tree_is_parted_and_put_together_again():
    tree = model()
    overwrites, rest = quant.partition_for_grad_overwrite(tree)
    assert rest.layers[0].dot_general is None
    assert rest.layers[0].weight.array is tree.layers[0].weight.array
    assert len(jax.tree.leaves(overwrites)) == 3
    assert overwrites.layers[0].dot_general is tree.layers[0].dot_general
    ones = jax.tree.map(jnp.ones_like, overwrites)
    updated = quant.apply_updates(tree, jax.tree.map(jnp.ones_like, rest), ones)
    assert jax.tree.structure(updated) == jax.tree.structure(tree)
    same_trees(updated.layers[0].dot_general, ones.layers[0].dot_general, rtol=0, atol=0)
    np.testing.assert_array_equal(updated.layers[1].weight.array, tree.layers[1].weight.array + 1)
    nothing = quant.partition_for_grad_overwrite(rest)[0]
    assert quant.apply_updates(tree, rest, nothing).layers[0].dot_general is tree.layers[0].dot_general


def test_a_state_that_was_put_aside_stays():
    """As in fine-tuning, where `eqx.partition` leaves nothing of a frozen layer but its module."""
    tree = model()
    none = jax.tree.map(lambda _: False, tree)
    trained, frozen = eqx.partition(tree, eqx.tree_at(lambda tree: tree.layers[1].weight, none, True))
    overwrites, rest = quant.partition_for_grad_overwrite(trained)
    updates = jax.tree.map(jnp.ones_like, rest)
    after = quant.apply_updates(tree, updates, overwrites)
    assert jax.tree.structure(after) == jax.tree.structure(tree)
    assert after.layers[0].dot_general.input_amax_history is tree.layers[0].dot_general.input_amax_history
    same_trees(eqx.combine(quant.apply_updates(trained, updates, overwrites), frozen), after)


def test_a_tree_without_states_is_all_rest():
    tree = {"w": jnp.ones(2), "n": 3, "f": jnp.sin}
    overwrites, rest = quant.partition_for_grad_overwrite(tree)
    assert rest == tree
    assert jax.tree.leaves(overwrites) == []
    updated = quant.apply_updates(tree, {"w": jnp.ones(2), "n": None, "f": None}, overwrites)
    np.testing.assert_array_equal(updated["w"], [2, 2])
    assert updated["n"] == 3
    assert updated["f"] is jnp.sin


def test_a_training_step():
    tree, x = model(), draw(B, E)
    optimizer = optax.chain(optax.clip_by_global_norm(1e-3), optax.adamw(0.1, weight_decay=0.5))
    state = optimizer.init(quant.partition_for_grad_overwrite(tree)[1])

    @eqx.filter_jit
    def step(tree, state, x):
        overwrites, gradients = quant.partition_for_grad_overwrite(jax.grad(loss)(tree, x))
        parameters = quant.partition_for_grad_overwrite(tree)[1]
        updates, state = optimizer.update(gradients, state, parameters)
        return quant.apply_updates(tree, updates, overwrites), state

    after, state = step(tree, state, x)
    magnitude = np.abs(x.array).max()
    np.testing.assert_array_equal(after.layers[0].dot_general.input_amax_history, np.float32([magnitude, 0]))
    after, state = step(after, state, 2 * x)
    np.testing.assert_array_equal(
        after.layers[0].dot_general.input_amax_history, np.float32([2 * magnitude, magnitude])
    )
    assert not np.allclose(after.layers[0].weight.array, tree.layers[0].weight.array)
    assert [leaf.shape for leaf in jax.tree.leaves(state[1][0].mu)] == [(4, 6), (6,), (6, 4), (4,)]


def test_the_states_of_microbatches_are_joined_by_their_maximum():
    tree, x = model(), draw(B, E)
    whole = gradients_of(tree, x)
    parts = [gradients_of(tree, part) for part in (x["batch", :4], x["batch", 4:])]
    states = [quant.partition_for_grad_overwrite(part)[0] for part in parts]
    joined = jax.tree.map(jnp.maximum, *states).layers[0].dot_general
    expected = whole.layers[0].dot_general
    np.testing.assert_array_equal(joined.input_amax_history, expected.input_amax_history)
    np.testing.assert_array_equal(joined.kernel_amax_history, expected.kernel_amax_history)


def test_a_policy_of_jmp_casts_named_arrays_and_leaves_keys_and_integers():
    policy = jmp.get_policy("params=float32,compute=bfloat16,output=float32")
    stack = nn.Stacked.init(axn.Axis("layers", 2), nn.Linear)(E, M, key=KEY)
    tree = {"stack": stack, "dot": model(), "key": KEY, "ids": axn.arange(B), "step": 3, "name": "x"}
    low = policy.cast_to_compute(tree)
    assert jax.tree.structure(low) == jax.tree.structure(tree)
    weight = low["stack"].stacked.weight
    assert isinstance(weight, axn.NamedArray)
    assert weight.names == ("layers", "embed", "mlp")
    assert weight.dtype == low["stack"].stacked.bias.dtype == low["dot"].layers[0].weight.dtype == jnp.bfloat16
    assert low["dot"].layers[0].dot_general.kernel_amax_history.dtype == jnp.bfloat16
    np.testing.assert_array_equal(weight.array, stack.stacked.weight.array.astype(jnp.bfloat16))
    assert low["ids"].dtype == jnp.int32
    assert low["key"] is KEY
    assert (low["step"], low["name"]) == (3, "x")
    assert policy.cast_to_param(low)["stack"].stacked.weight.dtype == jnp.float32
    out = policy.cast_to_output(low["dot"](draw(B, E).astype(jnp.bfloat16)))
    assert (out.names, out.dtype) == (("batch", "embed"), jnp.float32)
    # Through the cast, gradients come back in the dtype of the parameters, and states in theirs.
    cast_first = jax.jit(jax.grad(lambda tree, x: loss(policy.cast_to_compute(tree), x).astype("float32")))
    gradients = cast_first(tree["dot"], draw(B, E).astype(jnp.bfloat16))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(gradients))
    assert gradients.layers[0].dot_general.input_amax_history[0] > 0


def test_states_are_no_parameters_to_the_tools_for_them():
    tree = model()
    states = [parameter for parameter in axn.parameters.walk(tree) if "history" in parameter.path]
    assert len(states) == 3
    assert {axn.mup.Mup({"mlp": 3}).factors(state).role for state in states} == {"fixed"}
    mask = axn.parameters.decay_mask(tree)
    assert not any(jax.tree.leaves(mask.layers[0].dot_general))
    assert mask.layers[0].weight is True
    rest = quant.partition_for_grad_overwrite(tree)[1]
    assert axn.parameters.count(rest) == axn.parameters.count(tree) - 6
