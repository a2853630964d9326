"""Both spellings of each operation that is timed do the same thing."""

import jax
import numpy as np
import pytest
from measure import equations

import axonym as axn
from benchmarks.operations import Operation, named_arrays, operations, plain_arrays

OPERATIONS = operations()


def test_there_are_forty() -> None:
    assert len(OPERATIONS) >= 40


@pytest.mark.parametrize("row", OPERATIONS.values(), ids=OPERATIONS)
def test_both_spellings_agree(row: Operation) -> None:
    plain = plain_arrays()
    result = row.named(named_arrays(plain))
    expected = row.usual(plain)
    assert isinstance(result, axn.NamedArray)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(
        np.asarray(result.array, np.float32), np.asarray(expected, np.float32), rtol=1e-5, atol=1e-6
    )


def test_equations_are_counted_in_nested_functions() -> None:
    jaxpr = jax.make_jaxpr(lambda x: jax.jit(lambda y: y * y + 1)(x) - 1)(2.0)
    assert len(list(equations(jaxpr.jaxpr))) == 3
