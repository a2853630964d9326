"""The names of dtypes in XLA and in JAX belong together."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axonym.costs.shared.dtypes import JAX_NAMES, XLA_NAMES, find_precision, find_real


@pytest.mark.parametrize("name", ["bfloat16", "bool", "float16", "float32", "float8_e5m2", "int8", "uint32"])
def test_a_program_has_the_short_name(name):
    text = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((3,), jnp.dtype(name))).as_text("hlo")
    assert set(re.findall(r"(\w+)\[3\]", text)) == {XLA_NAMES[name]}
    assert JAX_NAMES[XLA_NAMES[name]] == name


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (None, "float32"),
        ("high", "float32_high"),
        (("default", "highest"), "float32_highest"),
        (jax.lax.DotAlgorithmPreset.BF16_BF16_F32, "bfloat16"),
        (jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3, "float32_high"),
        (jax.lax.DotAlgorithmPreset.F32_F32_F32, "float32_highest"),
    ],
)
def test_precisions_in_jaxprs_and_in_programs(precision, expected):
    product = jax.jit(lambda x: jax.lax.dot(x, x, precision=precision))
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    (one,) = product.trace(x).jaxpr.jaxpr.eqns
    text = product.lower(x).as_text("hlo")
    written = ",".join(re.findall(r"operand_precision={([\w,]+)|algorithm=dot_(\w+)", text)[0]) if precision else ""
    for attributes in (str(one.params["precision"]), written):
        assert find_precision("float32", attributes) == expected
        # These take one pass in any case.
        assert find_precision("bfloat16", attributes) == "bfloat16"


def test_parts_of_complex_numbers():
    for name in ("complex64", "complex128", "float32"):
        assert jnp.dtype(find_real(name)) == np.zeros(0, name).real.dtype
