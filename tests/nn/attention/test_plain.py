"""How the plain implementation computes scores."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from measure import equations

import axonym as axn
from axonym import nn
from tests.nn.layouts import draw

B, H, G, Q, K, D = axn.make_axes(batch=4, heads=2, group=3, pos=5, key_pos=7, head_dim=8)


def attend(q, k, v, **options):
    return nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, **options)


def test_scores_have_no_axis_of_one_element_that_only_queries_have():
    q, k, v = draw(B, H, Q, G.resize(1), D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2)
    program = jax.make_jaxpr(jax.grad(lambda q: attend(q, k, v).sum().scalar()))(q).jaxpr
    shapes = {out.aval.shape for one in equations(program) for out in one.outvars}
    assert (4, 2, 5, 7) in shapes
    assert not {shape[-3:] for shape in shapes} & {(5, 1, 7), (1, 5, 7)}


def test_no_more_equations_than_by_hand():
    q, k, v = draw(B, H, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, D, seed=2)

    def hand(q, k, v):
        scores = jnp.einsum("bhqd,bhkd->bhqk", q * (1 / math.sqrt(8)), k)
        scores = jnp.where(np.tri(5, 7, dtype=bool), scores, jnp.finfo(jnp.float32).min)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)

    mask = nn.causal_mask(Q, K)
    ours = jax.make_jaxpr(jax.grad(lambda *x: attend(*x, mask=mask).sum().scalar(), (0, 1, 2)))(q, k, v)
    arrays = [x.array for x in (q, k, v)]
    theirs = jax.make_jaxpr(jax.grad(lambda *x: hand(*x).sum(), (0, 1, 2)))(*arrays)
    assert len(list(equations(ours.jaxpr))) <= len(list(equations(theirs.jaxpr)))
