"""Policies of what a loop keeps for its backward pass."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import dataclasses

import equinox as eqx
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


Layers, Embed = hax.make_axes(layers=4, embed=3)


class Waves(eqx.Module):
    weight: hax.NamedArray

    @staticmethod
    def init(weight):
        return Waves(weight)

    def __call__(self, x):
        y = hax.tree_checkpoint_name(hax.sin(x + self.weight), "sin")
        return x + hax.tree_checkpoint_name(hax.cos(y + x), "cos")


def kept(gradient, *args):
    """List the shapes of what the forward loop gives to the backward one, and whether it lies on the host."""
    (forward, _) = (each for each in jax.make_jaxpr(gradient)(*args).eqns if each.primitive.name == "scan")
    return sorted((out.aval.shape, out.aval.memory_space == jax.memory.Space.Host) for out in forward.outvars[1:])


ON_DEVICE, ON_HOST = ((4, 3), False), ((4, 3), True)
KEPT = [
    ({"disable": True}, [ON_DEVICE] * 2),
    ({"simple": True}, [ON_DEVICE]),
    ({}, [ON_DEVICE]),
    ({"save_carries": False, "save_block_internals": True}, [ON_DEVICE] * 2),
    ({"save_inputs": True, "save_block_internals": True}, [ON_DEVICE] * 2),
    ({"save_carries": False, "save_inputs": True}, [ON_DEVICE] * 2),
    ({"save_block_internals": ["sin"]}, [ON_DEVICE] * 2),
    ({"save_block_internals": ["sin"], "save_inputs": True}, [ON_DEVICE] * 3),
    ({"offload_block_internals": ["sin"]}, [ON_DEVICE, ON_HOST]),
    ({"save_carries": "offload"}, [ON_HOST]),
    ({"nested": 2, "save_block_internals": ["sin"]}, [((2, 3), False)]),
]


@pytest.mark.parametrize(("options", "wanted"), KEPT)
def test_what_a_loop_keeps(options, wanted):
    weight, x = hax.named(np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3), (Layers, Embed)), hax.ones(Embed)

    def loss(model, x):
        return model.fold(x).sum().scalar()

    policy = ScanCheckpointPolicy(**options)
    model = hnn.Stacked.init(Layers, Waves, gradient_checkpointing=policy)(weight)
    assert kept(eqx.filter_grad(loss), model, x) == wanted


def test_what_a_loop_keeps_does_not_change_gradients():
    values = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)

    def plain(weights):
        x = jnp.ones(3)
        for weight in weights:
            x = x + jnp.cos(jnp.sin(x + weight) + x)
        return x.sum()

    def loss(model):
        return model.fold(hax.ones(Embed)).sum().scalar()

    expected = jax.grad(plain)(values)
    for options, _ in KEPT[3:6]:
        policy = ScanCheckpointPolicy(**options)
        model = hnn.Stacked.init(Layers, Waves, gradient_checkpointing=policy)(hax.named(values, (Layers, Embed)))
        np.testing.assert_allclose(eqx.filter_grad(loss)(model).stacked.weight.array, expected, rtol=1e-5)


def test_a_policy_that_keeps_all_on_the_device_offloads_nothing():
    policy = ScanCheckpointPolicy(save_carries="offload", save_block_internals=True)
    with pytest.raises(ValueError, match="nothing is left to offload"):
        hax.fold(lambda carry, x: carry + x, Layers, remat=policy)(0.0, jnp.ones(4))
