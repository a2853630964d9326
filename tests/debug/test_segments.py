"""Operations in a row, as one program with looks at its results."""

import jax
import jax.numpy as jnp
import numpy as np

from axonym.debug.dimensions import Part, start
from axonym.debug.segments import FINE, INFINITE, LARGE, NAN, Segment, find_wrong, group, look, run_with_looks


def test_the_worst_and_each_result_are_looked_at():
    def f(x):
        y = jnp.log(x)
        z = jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)
        return jnp.exp(-jnp.abs(y)), jax.jit(jnp.sqrt)(z)

    traced = jax.make_jaxpr(f)(jnp.ones(2)).jaxpr
    first, branch, last = group(traced)
    assert isinstance(first, Segment)
    assert isinstance(last, Segment)
    assert branch.primitive.name == "cond"
    found = run_with_looks(first, 10.0, jnp.array([0.0, 1.0]))
    assert len(found) == len(first.outvars) + 1
    worst, *own = np.asarray(found[-1])
    assert worst == INFINITE
    assert {*own} == {FINE, INFINITE}
    assert first.follow((start(("embed",), (2,)),), None)[0] == ((Part("embed", 2),),)


def test_looks_at_all_dtypes():
    wide = jnp.array([1.0, 50.0, jnp.inf, jnp.nan])
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.complex64, jnp.float8_e5m2):
        x = wide.astype(dtype)
        assert [int(look(x[:n], 10.0)) for n in (0, 1, 2, 3, 4)] == [FINE, FINE, LARGE, INFINITE, NAN]
        assert find_wrong(x, NAN, 10.0).tolist() == [False, False, True, True]
        assert find_wrong(x[:2], LARGE, 10.0).tolist() == [False, True]
    assert int(look(jnp.array([7]), 1.0)) == FINE
    assert int(look(jax.random.key(0), 1.0)) == FINE
