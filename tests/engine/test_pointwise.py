"""Functions of elements: numbers beside arrays, and dimensions without names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from tests.laws import assert_close


def test_a_python_number_stays_weak_in_and_out_of_a_trace() -> None:
    x = axn.ones(axn.Axis("a", 2), jnp.bfloat16)
    for run in (lambda f: f, jax.jit):
        assert run(lambda x: x * 2.0 + 1)(x).dtype == jnp.bfloat16
        assert run(lambda x: axn.where(x > 0, x, 0.0))(x).dtype == jnp.bfloat16
        assert run(lambda x: x.clip(0.5, 1.0))(x).dtype == jnp.bfloat16


def test_anonymous_dimensions_of_operands_broadcast_as_in_jnp() -> None:
    x, y = axn.ones((axn.Axis("z", 2), axn.Axis("a", 3))).untag("z"), axn.arange(axn.Axis("a", 3))
    assert (x + y).array.shape == (y + x).array.shape == (2, 3)
    assert (x + y).names == ("a",)
    assert_close((x * 2.0).array, 2 * x.array)


@pytest.mark.parametrize("number", [True, 2, 0.5])
def test_python_numbers_are_written_on_an_explicit_mesh_under_jit(
    explicit_mesh: jax.sharding.Mesh, number: float
) -> None:
    x, at = jnp.zeros((8, 4), type(number)), jnp.array([3, 1, 3, 0])
    with axn.set_mesh(explicit_mesh), axn.axis_mapping({"a": "data"}):
        found = jax.jit(lambda x: x.at["a", axn.named(at, "i")].set(number))(axn.shard(axn.named(x, ("a", "b"))))
    np.testing.assert_array_equal(found.array, x.at[at].set(number))


def test_anonymous_dimensions_broadcast_where_ranks_are_not_promoted() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(4, 1, 3)
    one, other = axn.NamedArray(jnp.asarray(x), ("a",)), axn.NamedArray(jnp.asarray(y), ("a",))
    with jax.numpy_rank_promotion("raise"):
        for found in (one + other, axn.maximum(one, other), axn.where(one > -1, one, other) + 0 * other):
            assert found.array.shape == (4, 2, 3)
        np.testing.assert_array_equal((one + other).array, x + y)
        scaled = one * axn.named(2.0, ()) + axn.named([1.0, 2.0, 3.0], "a")
    np.testing.assert_array_equal(scaled.array, x * 2 + [1, 2, 3])


def test_anonymous_dimensions_of_two_sizes_are_told() -> None:
    one, other = axn.NamedArray(jnp.ones((5, 3)), ("a",)), axn.NamedArray(jnp.ones((2, 3)), ("a",))
    with pytest.raises(axn.errors.AxisSizeError) as caught:
        one + other
    assert str(caught.value) == (
        "add: the anonymous dimensions do not broadcast\n  operand 1 has: anonymous (5,), a=3\n"
        "  operand 2 has: anonymous (2,), a=3\n  hint: name them: x.tag(...)"
    )
