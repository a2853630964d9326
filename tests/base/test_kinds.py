"""Arrays, values and types: what each kind of leaf has."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.base import kinds


@pytest.mark.parametrize(
    ("leaf", "array", "values", "typed"),
    [
        (jnp.ones(2), True, True, True),
        (np.ones(2), True, True, True),
        (np.float32(1), True, True, True),
        (jax.random.key(0), True, True, True),
        (jax.ShapeDtypeStruct((2,), np.float32), False, False, True),
        (1.0, False, False, False),
        (None, False, False, False),
        (axn.ones(axn.Axis("a", 2)), False, False, False),
    ],
)
def test_what_a_leaf_is(leaf: Any, array: bool, values: bool, typed: bool) -> None:
    assert (kinds.is_array(leaf), kinds.is_concrete(leaf), kinds.has_type(leaf)) == (array, values, typed)


def test_a_tracer_is_an_array_without_values() -> None:
    found: list[Any] = []

    def look(x: jax.Array) -> None:
        found.append((kinds.is_array(x), kinds.is_concrete(x), kinds.has_type(x)))

    jax.eval_shape(look, 1.0)
    assert found == [(True, False, True)]
