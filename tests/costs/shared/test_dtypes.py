"""The names of dtypes in XLA and in JAX belong together."""

import re

import jax
import jax.numpy as jnp
import pytest

from axonym.costs.shared.dtypes import JAX_NAMES, XLA_NAMES


@pytest.mark.parametrize("name", ["bfloat16", "bool", "float16", "float32", "float8_e5m2", "int8", "uint32"])
def test_a_program_has_the_short_name(name):
    text = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((3,), jnp.dtype(name))).as_text("hlo")
    assert set(re.findall(r"(\w+)\[3\]", text)) == {XLA_NAMES[name]}
    assert JAX_NAMES[XLA_NAMES[name]] == name
