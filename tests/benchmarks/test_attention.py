"""All ways of attending that are timed do the same thing, and ours needs no more equations than the one by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import equations

from benchmarks import attention


def test_all_ways_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCK", 16)
    inputs = attention.inputs(32, batch=1)
    results = [jax.jit(attention.step(attend))(*inputs) for attend in attention.WAYS.values()]
    for result in results[1:]:
        for mine, other in zip(jax.tree.leaves(result), jax.tree.leaves(results[0]), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


def test_plain_attention_needs_no_more_equations() -> None:
    for dtype in (jnp.float32, jnp.bfloat16):
        count = {
            name: len(list(equations(jax.make_jaxpr(attention.step(attention.WAYS[name]))(*arrays).jaxpr)))
            for arrays in [attention.inputs(32, dtype, batch=1)]
            for name in ("plain", "plain by hand")
        }
        assert count["plain"] <= count["plain by hand"]
