"""The claim that a function is one under transformations and in other dtypes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from axonym.testing import ClaimError, assert_same_under
from tests.nn.layouts import draw, fails, made

B, E, H, D, M, P = axn.make_axes(batch=3, embed=8, heads=2, head_dim=4, mlp=6, pos=4)


def test_a_block_is_one_function():
    block = made(lambda *, key: nn.TransformerBlock.init(E, H, D, M, key=key))
    under = ["jit", "vmap", "scan", "grad", "remat", jnp.bfloat16]
    assert_same_under(block, draw(B, P, E), under=under)


def test_a_condition_on_tracers_is_found():
    def f(x):
        return x * (2 if isinstance(x.array, jax.core.Tracer) else 1)

    for way in ("jit", "vmap", "scan", "grad", "remat"):
        with pytest.raises(ClaimError) as error:
            assert_same_under(f, draw(B), under=[way])
        assert str(error.value).splitlines()[0] == f"assert_same_under: under {way}, batch=0 is another"


class Cancelling(eqx.Module):
    """A layer that subtracts large numbers."""

    def __call__(self, x):
        return (x + 1000) - 1000


class Model(eqx.Module):
    """A right layer and a wrong one."""

    norm: nn.RmsNorm
    shift: Cancelling

    def __call__(self, x):
        return self.shift(self.norm(x))


def test_a_layer_that_loses_digits_in_a_narrow_dtype_is_found():
    model = Model(nn.RmsNorm.init(E), Cancelling())
    assert_same_under(model, draw(B, E), under=["jit"])
    with pytest.raises(ClaimError) as error:
        assert_same_under(model, draw(B, E), under=[jnp.bfloat16])
    assert error.value.layer == "shift"
    with pytest.raises(ClaimError, match="first appears: outside of layers"):
        assert_same_under(lambda x: (x + 1000) - 1000, draw(B, E), under=[jnp.bfloat16])


def test_unknown_transformations_are_refused():
    fails(
        ArgumentError,
        "assert_same_under: unknown transformation 'pmap'\n  hint: known: jit, vmap, scan, grad, remat, and dtypes",
        lambda: assert_same_under(lambda x: x, draw(B), under=["pmap"]),
    )
