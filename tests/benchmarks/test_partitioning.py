"""The programs with names that are compared on a mesh can be lowered, each in its form."""

import jax
import pytest
from partitioning import MODELS, with_names

import axonym as axn


@pytest.mark.parametrize("model", ["gpt2", "mlp"])
def test_programs_with_names_are_training_steps(model: str) -> None:
    programs = list(with_names(MODELS[model](False), "fsdp+tp"))
    reduced = ["Axonym, explicit, reduced"] if model == "mlp" else []
    auto = ["Axonym, auto", "Axonym, auto, fsdp", "Axonym, auto, fsdp, manual"]
    expected = [*auto, "Axonym, explicit", *reduced, "Axonym, manual"]
    assert [program.label for program in programs] == expected
    for program in programs:
        with axn.set_mesh(program.mesh):
            state = jax.tree.leaves(program.arguments[:2])
            *results, loss = jax.tree.leaves(program.step.lower(*program.arguments).out_info)
        assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in state]
        assert loss.shape == ()
