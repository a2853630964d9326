import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import random

KEY = jax.random.key(1)
A, B, X = axn.make_axes(a=4, b=2, x=3)


def test_the_order_of_logits_does_not_matter_to_their_distribution() -> None:
    logits = axn.named(jnp.array([[0.0, -np.inf], [-np.inf, 0.0]]), ("a", "b"))
    for stored in (logits, logits.rearrange(("b", "a"))):
        assert random.categorical(KEY, stored, "b").tolist() == [0, 1]
        assert random.categorical(KEY, stored.untag("a"), "b").array.tolist() == [0, 1]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_permutation_is_that_of_jax(at: int, each: bool) -> None:
    stored = axn.arange((A, X, B))
    wanted = jax.random.permutation(KEY, stored.array, at, independent=each)
    for x in (stored, stored.untag(*stored.names[:at])):
        got = random.permutation(KEY, x, stored.names[at], independent=each)
        np.testing.assert_array_equal(got.array, wanted)
