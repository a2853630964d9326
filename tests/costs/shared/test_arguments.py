"""Arguments that are laid out on a mesh, and what is known of their names."""

import jax
import jax.numpy as jnp
import optax
import pytest

import axonym as axn
from axonym.costs.shared.arguments import lay_out_arguments, list_rows, sort_by_kind
from tests.costs.programs import MAPPINGS, abstract, step

X = axn.ones(axn.make_axes(batch=8, embed=16))


def paths(kinds):
    return {kind: [row.path for row in rows] for kind, rows in kinds.items()}


def test_arguments_are_sorted_by_what_they_are(auto_mesh):
    given = lay_out_arguments(step, MAPPINGS, auto_mesh, abstract(), {})
    found = paths(sort_by_kind(given, list_rows(given)))
    assert found == {
        "parameters": ["model.blocks.stacked.up.weight", "model.blocks.stacked.down.weight"],
        "optimizer": [
            "state.0.count",
            "state.0.mu.blocks.stacked.up.weight",
            "state.0.mu.blocks.stacked.down.weight",
            "state.0.nu.blocks.stacked.up.weight",
            "state.0.nu.blocks.stacked.down.weight",
        ],
        "data": ["x"],
    }


def test_without_a_model_arrays_are_parameters(auto_mesh):
    key, whole = jax.random.key(0), jnp.arange(3)
    given = lay_out_arguments(lambda w, x, **_: w, {"embed": "data"}, auto_mesh, (X, whole), {"key": key})
    assert paths(sort_by_kind(given, list_rows(given))) == {
        "parameters": ["w"],
        "optimizer": [],
        "data": ["x", "key"],
    }


def sort_paths(mesh, fn, *args):
    """Return the paths of arguments by kind, without mappings."""
    given = lay_out_arguments(fn, {}, mesh, args, {})
    return paths(sort_by_kind(given, list_rows(given)))


def test_a_batch_of_images_and_labels_is_data(auto_mesh):
    model = {"patches": axn.ones({"pixels": 4, "embed": 16}), "positions": axn.ones({"pos": 2, "embed": 16})}
    images, labels = axn.ones({"batch": 8, "pos": 2, "pixels": 4}), axn.zeros({"batch": 8}, dtype=int)
    found = sort_paths(auto_mesh, lambda model, rows: rows, model, (images, labels))
    assert found == {
        "parameters": ["model.patches", "model.positions"],
        "optimizer": [],
        "data": ["rows.1", "rows.0"],
    }


def test_a_batch_of_images_alone_is_data_beside_the_state_of_an_optimizer(auto_mesh):
    model, images = {"patches": axn.ones({"pixels": 4, "embed": 16})}, axn.ones({"batch": 8, "pixels": 4})
    state = optax.adam(1e-3).init(model)
    found = sort_paths(auto_mesh, lambda model, state, rows: rows, model, state, (images, images))
    assert (found["parameters"], found["data"]) == (["model.patches"], ["rows.0", "rows.1"])


def test_a_cache_is_data_and_other_models_are_not(auto_mesh):
    one, other = {"read": axn.ones({"embed": 16, "heads": 4})}, {"own": axn.ones({"embed": 16, "mlp": 4})}
    cache = {"key": axn.ones({"batch": 8, "places": 2, "heads": 4})}
    tokens = axn.zeros({"batch": 8, "pos": 1}, dtype=int)
    found = sort_paths(auto_mesh, lambda *args: args, one, other, cache, tokens)
    assert (found["parameters"], found["data"]) == (["args.0.read", "args.1.own"], ["args.3", "args.2.key"])
    # Two models with one optimiser, and no data that is an array.
    state = optax.adam(1e-3).init((one, other))
    found = sort_paths(auto_mesh, lambda one, other, state: state, one, other, state)
    assert (found["parameters"], found["data"]) == (["one.read", "other.own"], [])


def test_nothing_needs_to_exist(auto_mesh):
    given = lay_out_arguments(step, MAPPINGS, auto_mesh, abstract(), {})
    leaves = jax.tree.leaves((given.args, given.kwargs))
    assert {type(leaf) for leaf in leaves} == {jax.ShapeDtypeStruct}
    assert {leaf.sharding.mesh for leaf in leaves} == {auto_mesh}


@pytest.mark.parametrize("mapping", [MAPPINGS, None])
def test_the_mappings_of_a_compiled_function(auto_mesh, mapping):
    compiled = axn.named_jit(step, MAPPINGS, donate_args=(True,))
    given = lay_out_arguments(compiled, mapping, auto_mesh, abstract(), {})
    assert given.mappings == MAPPINGS
    assert (given.fn is compiled) == (mapping is None)
