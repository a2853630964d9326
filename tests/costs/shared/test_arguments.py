"""Arguments that are laid out on a mesh, and what is known of their names."""

import jax
import jax.numpy as jnp
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
