"""MXFP4, against its numbers spelled bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import OperandError
from tests.nn.layouts import fails

RNG = np.random.default_rng(0)
BLOCKS = RNG.integers(256, size=(3, 2, 128, 16), dtype=np.uint8)
# All scales but those whose products float32 cannot hold.
SCALES = np.arange(3 * 2 * 128, dtype=np.uint8).reshape(3, 2, 128) % 252


def spelled(bits: int) -> float:
    """Return the number of a sign, two bits of exponent and one of mantissa."""
    sign, exponent, mantissa = bits >> 3, bits >> 1 & 3, bits & 1
    size = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
    return -size if sign else size


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float32])
def test_numbers_are_those_of_the_specification(dtype):
    nibbles = np.stack([BLOCKS & 15, BLOCKS >> 4], axis=-1).ravel()
    numbers = np.array([spelled(int(bits)) for bits in nibbles]).reshape(*SCALES.shape, 32)
    expected = (numbers * 2.0 ** (SCALES.astype(float) - 127)[..., None]).reshape(3, 2, -1)
    found = axn.quant.decode_mxfp4(BLOCKS, SCALES, dtype)
    assert found.dtype == dtype
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found.astype(float), expected)
    compiled = jax.jit(lambda *given: axn.quant.decode_mxfp4(*given, dtype))(BLOCKS, SCALES)
    np.testing.assert_array_equal(np.asarray(compiled), found)
    nothing = axn.quant.decode_mxfp4(BLOCKS[:, :, :0], SCALES[:, :, :0], dtype)
    assert nothing.shape == (3, 2, 0)


def test_the_last_scale_is_nan_and_large_numbers_are_infinite():
    blocks = np.full((2, 16), 0x71, np.uint8)
    found = axn.quant.decode_mxfp4(blocks, np.array([255, 254], np.uint8)).astype(float)
    assert np.isnan(found[:32]).all()
    assert found[32:34].tolist() == [2.0**126, np.inf]


def test_arrays_that_do_not_fit_are_an_error():
    text = "decode_mxfp4: expected bytes of shapes (..., blocks, 16) and (..., blocks)\n"
    text += "  blocks: (3, 2, 128, 16), scales: (2, 128), dtypes: uint8"
    fails(OperandError, text, lambda: axn.quant.decode_mxfp4(BLOCKS, SCALES[0]))
    text = text.replace("scales: (2, 128), dtypes: uint8", "scales: (3, 2, 128), dtypes: int8, uint8")
    fails(OperandError, text, lambda: axn.quant.decode_mxfp4(BLOCKS, SCALES.astype(np.int8)))
