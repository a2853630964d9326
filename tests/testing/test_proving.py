"""Claims about abstract arguments, which are proven or refused."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import testing
from axonym.errors import ArgumentError

B, P, E = axn.make_axes(batch=1024, pos=4096, embed=8192)
X = jax.eval_shape(lambda: axn.zeros((B, P, E), jnp.bfloat16))
NORM = jax.eval_shape(lambda: axn.nn.LayerNorm.init(E))


def test_abstract_arguments_are_proven_without_arrays():
    testing.assert_independent(NORM, B, X)
    testing.assert_equivariant(NORM, P, X)
    testing.assert_causal(lambda x: axn.cumsum(x, P), P, X)
    found = testing.check(NORM, X, independent=(B, P), causal=P)
    assert {claim.result for claim in found.claims} == {"proven"}


def test_what_is_not_proven_of_abstract_arguments_is_an_error():
    def center(x):
        return x - x.mean(P)

    text = (
        r"assert_causal: axis 'pos': not proven: the result may depend on later positions of 'pos', first at "
        r"reduce_sum \(.*test_proving.py:\d+\)\n  hint: it may still be true: give arrays, and it is tried"
    )
    with pytest.raises(ArgumentError, match=text):
        testing.assert_causal(center, P, X)
