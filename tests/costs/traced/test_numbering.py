"""Equations that compute the same."""

import jax
import jax.numpy as jnp
import pytest

from axonym.costs.traced.compilers import CPU
from axonym.costs.traced.numbering import Numbering
from axonym.costs.traced.walk import Walk
from tests.costs.equations_made import SIZES, TYPED, array, program


def repeated(fn, *args):
    numbering = Numbering()
    return [numbering.is_repeated(one) for one in program(fn, *args).eqns]


def test_the_same_of_the_same_is_repeated():
    assert repeated(lambda x: (jnp.sin(x), jnp.sin(x)), array((4,))) == [False, True]
    assert repeated(lambda x, y: (jnp.sin(x), jnp.sin(y)), array((4,)), array((4,))) == [False, False]
    assert repeated(lambda x: (x * 2, x * 3), array((4,))) == [False, False]


def test_loops_have_a_scope_of_their_own():
    (one,) = program(lambda x: jax.lax.scan(lambda c, _: (c * 2, None), x, length=3)[0], array((4,))).eqns
    numbering = Numbering()
    body = one.params["jaxpr"]
    inner = getattr(body, "jaxpr", body)
    outer = numbering.enter(one, inner.invars)
    assert numbering.scope != outer
    assert numbering.find(inner.invars[0]) != numbering.find(one.invars[0])
    numbering.leave(one, inner.outvars, outer)
    assert numbering.scope == outer


def test_calls_share_the_scope_around_them():
    (one,) = program(lambda x: jax.jit(jnp.sin)(x), array((4,))).eqns
    numbering = Numbering()
    inner = one.params["jaxpr"].jaxpr
    numbering.enter(one, inner.invars)
    assert numbering.find(inner.invars[0]) == numbering.find(one.invars[0])


@pytest.mark.parametrize("merges", [True, False])
def test_some_compilers_look_through_barriers(merges):
    def again(x):
        return jnp.sin(x), jnp.sin(jax.lax.optimization_barrier(x))

    numbering = Numbering(merges=merges)
    assert [numbering.is_repeated(one) for one in program(again, array((4,))).eqns] == [False, False, merges]


def sent_by(fn):
    """Return how often devices send something."""
    traced = program(fn, array((8, 8), "data"))
    walk = Walk(SIZES, compiler=CPU)
    walk.run(traced, [walk.find_value(variable) for variable in traced.invars])
    return len(walk.sent)


def mapped():
    def shift(x):
        return x, jax.lax.ppermute(x, "data", [(0, 1)])

    spec = jax.P("data")
    return jax.shard_map(shift, mesh=TYPED, in_specs=spec, out_specs=spec, axis_names={"data"})


def test_maps_of_the_same_blocks_send_once():
    assert sent_by(lambda x: (mapped()(x), mapped()(x))) == 1
    assert sent_by(lambda x: (mapped()(x), mapped()(x + 1))) == 2


def test_an_array_that_is_put_together_has_the_blocks_that_it_had():
    assert sent_by(lambda x: (mapped()(x), mapped()(mapped()(x)[0]))) == 1
    assert sent_by(lambda x: (mapped()(x), mapped()(mapped()(x)[1]))) == 2
