"""What loops share: names within a step, and steps that follow a checkpoint policy by themselves."""

import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym import ScanCheckpointPolicy
from axonym.transform._loop import loop, names_within

N = axn.Axis("steps", 4)


def test_names_are_found_however_deep():
    def step(x):
        inner = jax.jit(lambda x: axn.tree_checkpoint_name(x, "in jit"))
        looped = jax.lax.scan(lambda c, _: (axn.tree_checkpoint_name(c, "in scan"), None), inner(x), length=2)[0]
        branches = [lambda x: axn.tree_checkpoint_name(x, "in cond"), lambda x: x]
        return jax.checkpoint(lambda x: axn.tree_checkpoint_name(x, "in remat"))(jax.lax.switch(0, branches, looped))

    assert names_within(step, jnp.ones(())) == {"in jit", "in scan", "in cond", "in remat"}
    assert names_within(jnp.sin, jnp.ones(())) == set()


def test_a_step_that_is_checkpointed_is_not_checkpointed_again():
    def remats(policy, checkpointed):
        def run(x):
            step = lambda c, x: (axn.sin(c) * x, None)  # noqa: E731
            return loop("f", step, N, policy, False, 1, checkpointed=checkpointed)(axn.ones(()), x)[0]

        x = axn.ones(N)
        np.testing.assert_allclose(run(x).array, np.sin(np.sin(np.sin(np.sin(1)))), rtol=1e-6)
        return str(jax.make_jaxpr(run)(x)).count("prevent_cse")

    groups = ScanCheckpointPolicy(nested=2)
    assert [remats(True, each) for each in (False, True)] == [1, 0]
    assert [remats(groups, each) for each in (False, True)] == [2, 1]
