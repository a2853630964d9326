"""Claims about abstract arguments, which are proven or refused."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import nn, testing
from axonym.errors import ArgumentError
from axonym.testing.program import Program
from axonym.testing.proving import Proofs

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


def test_tokens_have_no_gradient_and_the_values_are_proven():
    layer = nn.Embedding.init(axn.Axis("vocab", 5), axn.Axis("embed", 4), key=jax.random.key(0))
    tokens = axn.NamedArray(jax.ShapeDtypeStruct((3, 2), "int32"), ("batch", "pos"))
    table = jax.eval_shape(lambda: layer)
    mixed = lambda layer, x: layer(x) + layer(x).mean("batch")  # noqa: E731
    for kind, axis in (("independent", "batch"), ("causal", "pos"), ("equivariant", "pos")):
        program = Program("check", lambda layer, x: layer(x), (table, tokens))
        assert Proofs(program).find_verdict(kind, axis)
    assert not Proofs(Program("check", mixed, (table, tokens))).find_verdict("independent", "batch")
