"""Policies of what a loop keeps for its backward pass."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import dataclasses

import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import ScanCheckpointPolicy

FIELDS = ["save_carries", "save_inputs", "save_block_internals", "offload_block_internals"]


@pytest.mark.parametrize(
    ("short", "fields"),
    [
        (True, {"simple": True}),
        (False, {"disable": True}),
        ("offload", {"save_carries": "offload", "save_inputs": "offload"}),
        ("recompute", {"save_carries": False, "save_inputs": False, "save_block_internals": False}),
        ("full", {"save_carries": False, "save_inputs": False, "save_block_internals": False}),
        ("save_all", {"save_carries": True, "save_inputs": True, "save_block_internals": True}),
        ("nested", {"nested": True}),
    ],
)
def test_short_forms_of_policies(short, fields):
    policy = ScanCheckpointPolicy.from_bool_or_str(short)
    assert type(policy) is ScanCheckpointPolicy
    assert {name: getattr(policy, name) for name in fields} == fields
    assert isinstance(hash(policy), int)


def test_policies():
    assert hax.ScanCheckpointPolicy is hnn.ScanCheckpointPolicy is ScanCheckpointPolicy
    policy = ScanCheckpointPolicy("offload", True, ["a"], ["b"], True)
    assert [getattr(policy, name) for name in FIELDS] == ["offload", True, ("a",), ("b",)]
    assert policy.prevent_cse is True
    assert dataclasses.replace(policy, disable=True).save_inputs is True
    with pytest.raises(ValueError, match="is not a checkpoint policy"):
        ScanCheckpointPolicy.from_bool_or_str("off")
    for error in (TypeError, ValueError):
        with pytest.raises(error, match="nothing is left to offload"):
            ScanCheckpointPolicy(save_block_internals=True, offload_block_internals=["a"])


@pytest.mark.parametrize(
    "policy",
    [
        ScanCheckpointPolicy(disable=True),
        ScanCheckpointPolicy(simple=True),
        ScanCheckpointPolicy(save_inputs=True, save_block_internals=["inner"]),
        ScanCheckpointPolicy(save_block_internals=True),
        ScanCheckpointPolicy(save_carries="offload", offload_block_internals=["inner"]),
    ],
)
def test_checkpoint(policy):
    def step(carry, x):
        carry, x = hax.tree_checkpoint_name(carry, "carry"), hax.tree_checkpoint_name(x, "x")
        return hax.tree_checkpoint_name(jnp.sin(carry * x), "inner") * x

    kept = policy.checkpoint("carry", "x", step)
    assert (kept is step) is policy.disable
    np.testing.assert_allclose(jax.grad(kept)(0.5, 2.0), jax.grad(step)(0.5, 2.0), rtol=1e-6)
