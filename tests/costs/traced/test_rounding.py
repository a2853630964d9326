"""What products round is sent rounded."""

import jax
import jax.numpy as jnp
import pytest

from axonym.costs.traced.equations import find_readers
from axonym.costs.traced.rounding import find_width
from tests.costs.equations_made import array, program


def width(fn, *, dtype=jnp.float32):
    """Return as how many bytes a function reads its first argument."""
    traced = program(fn, array((16, 16), dtype=dtype), array((16, 16), dtype=dtype))
    return find_width(traced.invars[0], find_readers(traced.eqns), set(map(id, traced.outvars)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, x: x @ w,
        lambda w, x: x @ w.T.reshape(16, 16),
        lambda w, x: jax.jit(jnp.matmul)(x, w),
        lambda w, x: jax.checkpoint(lambda w, x: jnp.sin(x @ w))(w, x),
        lambda w, x: jax.lax.scan(lambda x, _: (x @ w, None), x, length=3)[0],
        lambda w, x: jax.lax.scan(lambda x, w: (x @ w, None), x, w.reshape(1, 16, 16))[0],
        lambda w, x: w.astype(jnp.bfloat16),
    ],
    ids=["product", "transposed", "jit", "checkpoint", "loop", "layers", "rounded"],
)
def test_two_bytes_for_what_is_only_multiplied_or_rounded(fn):
    assert width(fn) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, x: x @ w + w,
        lambda w, x: jnp.matmul(x, w, precision="highest"),
        lambda w, x: (x @ w, w),
        lambda w, x: jax.jit(lambda w: (w.T, 2.0))(w)[0],
        lambda w, x: jax.lax.cond(x.sum() > 0, jnp.matmul, jnp.add, x, w),
    ],
    ids=["added, too", "precise", "returned", "returned by jit", "in a branch"],
)
def test_four_bytes_for_what_somebody_needs_whole(fn):
    assert width(fn) == 4


def test_other_dtypes_stay_what_they_are():
    assert width(lambda w, x: x @ w, dtype=jnp.bfloat16) == 2
    assert width(lambda w, x: x @ w, dtype=jnp.int32) == 4
