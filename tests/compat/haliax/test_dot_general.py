"""What multiplies in linear layers; what steps do to its state is tested with quantised layers."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from haliax.quantization import DefaultDotGeneralOp, DotGeneralOp, Fp8DotGeneralOp, OverwriteWithGradient

STATE = ("input_scale", "output_grad_scale", "kernel_scale")
HISTORIES = ("input_amax_history", "output_grad_amax_history", "kernel_amax_history")


def test_the_plain_product():
    assert DefaultDotGeneralOp.init() is DefaultDotGeneralOp.init()
    assert DotGeneralOp.default() is DefaultDotGeneralOp.init()
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(DotGeneralOp.default()(x, x, (((1,), (1,)), ((), ()))), x @ x.T)


def test_state_of_fp8():
    op = Fp8DotGeneralOp.init(amax_history_length=5, compute_dtype=jnp.bfloat16)
    assert isinstance(op, OverwriteWithGradient)
    assert [field.name for field in dataclasses.fields(op)] == [*STATE, *HISTORIES, "compute_dtype"]
    for name in STATE:
        np.testing.assert_array_equal(getattr(op, name), np.ones(1))
    for name in HISTORIES:
        np.testing.assert_array_equal(getattr(op, name), np.zeros(5))
    assert Fp8DotGeneralOp.init().input_amax_history.shape == (1024,)
    x = jnp.ones((2, 3))
    assert op(x, x, (((1,), (1,)), ((), ()))).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="amax_history_length"):
        Fp8DotGeneralOp.init(amax_history_length=0)
