"""Equations that compute the same."""

import jax
import jax.numpy as jnp

from axonym.costs.numbering import Numbering
from tests.costs.equations_made import array, program


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
    assert numbering.of(inner.invars[0]) != numbering.of(one.invars[0])
    numbering.leave(one, inner.outvars, outer)
    assert numbering.scope == outer


def test_calls_share_the_scope_around_them():
    (one,) = program(lambda x: jax.jit(jnp.sin)(x), array((4,))).eqns
    numbering = Numbering()
    inner = one.params["jaxpr"].jaxpr
    numbering.enter(one, inner.invars)
    assert numbering.of(inner.invars[0]) == numbering.of(one.invars[0])
