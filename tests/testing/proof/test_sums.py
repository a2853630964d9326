"""Many elements at once: reductions, products, convolutions and running sums."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import nn
from axonym.testing.proof.claims import Claim, prove

T, E, Out = axn.make_axes(time=6, embed=4, out=3)
X, W = axn.ones((T, E), jnp.float32), axn.ones((E, Out))
INDEPENDENT, CAUSAL = Claim("independent", "time"), Claim("causal", "time")
CONV = nn.Conv.init("time", E, Out, kernel_size=3, padding=((2, 0),), key=jax.random.key(0))
CENTRED = nn.Conv.init("time", E, Out, kernel_size=3, padding="SAME", key=jax.random.key(0))


@pytest.mark.parametrize(
    ("fn", "claim", "holds"),
    [
        (lambda x: x.sum("embed"), INDEPENDENT, True),
        (lambda x: axn.dot(x, W, axis=E), INDEPENDENT, True),
        (lambda x: axn.sort(x, "embed"), INDEPENDENT, True),
        (lambda x: x - x.mean("time"), CAUSAL, False),
        (lambda x: axn.cumsum(x, "time"), CAUSAL, True),
        (lambda x: axn.cumsum(x, "time", reverse=True), CAUSAL, False),
        (lambda x: axn.sort(x, "time"), CAUSAL, False),
        (CONV, CAUSAL, True),
        (CONV, INDEPENDENT, False),
        (CENTRED, CAUSAL, False),
    ],
)
def test_positions_that_a_sum_sees(fn, claim: Claim, holds: bool) -> None:
    assert bool(prove(fn, [X], claim)) == holds
