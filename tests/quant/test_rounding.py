"""Stochastic rounding, against the neighbours that ml_dtypes knows."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import axonym as axn
from axonym import quant
from axonym.errors import OperandError

KEY = jax.random.key(0)
DTYPES = [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2]
DRAWS = 20_000
Draw, Value = axn.Axis("draw", DRAWS), axn.Axis("value", 8)


def neighbours(column):
    """Count how far apart the two numbers in a column are, in numbers of their dtype."""
    bits = np.unique(column.view(f"uint{8 * column.itemsize}") & (2 ** (8 * column.itemsize - 1) - 1)).astype(int)
    return bits[-1] - bits[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_the_two_neighbours_are_drawn_so_that_the_expectation_stays(dtype):
    # The compiler takes subnormal numbers of float32, and with them those of bfloat16, for zero.
    finest = 2.0 if dtype == jnp.bfloat16 else float(ml_dtypes.finfo(dtype).smallest_subnormal)
    values = np.float32([1.003, -1.003, 3.14159, 0.0123, -100.3, finest * 2.3, 0.3 * finest, -0.7 * finest])
    x = axn.named(values, Value).broadcast_axis(Draw)
    rounded = quant.stochastic_round(x, dtype, key=KEY)
    assert (rounded.names, rounded.dtype) == (("draw", "value"), dtype)
    for drawn, value in zip(np.asarray(rounded.array).T, values.astype(np.float64), strict=True):
        column = drawn.astype(np.float64)
        low, high = np.unique(column)  # always two
        assert low < value < high
        assert neighbours(drawn.copy()) == 1
        up = (value - low) / (high - low)
        assert abs((column == high).mean() - up) < 5 * np.sqrt(up * (1 - up) / DRAWS)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_numbers_of_the_dtype_stay(dtype):
    kind = jnp.finfo(dtype)
    bits = np.arange(2**16, dtype=np.uint16) if kind.bits == 16 else np.arange(2**8, dtype=np.uint8)
    exact = bits.view(dtype)
    wide = exact.astype(np.float32)
    wide = np.where(np.abs(wide) < 2.0**-126, 0, wide)
    rounded = np.asarray(quant.stochastic_round(jnp.asarray(wide), dtype, key=KEY), np.float32)
    np.testing.assert_array_equal(rounded, wide)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_beyond_the_largest_number_it_is_a_cast(dtype):
    largest = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(over="ignore"):
        values = np.float32([1.0001, -1.0001, 1.01, 1.2, -1.2]) * np.float32(largest)
        expected = values.astype(dtype).astype(np.float32)
    rounded = quant.stochastic_round(jnp.asarray(np.tile(values, (DRAWS // 100, 1))), dtype, key=KEY)
    np.testing.assert_array_equal(np.asarray(rounded, np.float32), np.broadcast_to(expected, rounded.shape))


def test_small_updates_add_up_where_rounding_to_the_nearest_loses_them():
    weight, keys = jnp.ones(256, jnp.bfloat16), jax.random.split(KEY, 400)
    step = lambda w, key: (quant.stochastic_round(w.astype(jnp.float32) + 2.0**-12, jnp.bfloat16, key=key), None)  # noqa: E731
    after, _ = jax.lax.scan(step, weight, keys)
    assert (weight + jnp.bfloat16(2.0**-12) == weight).all()
    assert float(after.astype(jnp.float32).mean()) == pytest.approx(1 + 400 / 4096, rel=0.005)


def test_the_derivative_is_that_of_a_cast():
    x = axn.named(np.float32([1.003, -0.3, 0]), "value")
    for rounding in (lambda x: x.astype(jnp.bfloat16), lambda x: quant.stochastic_round(x, jnp.bfloat16, key=KEY)):
        slope = jax.grad(lambda x, rounding=rounding: (rounding(x).astype(jnp.float32) * 3).sum().scalar())(x)
        assert slope.array.tolist() == [3, 3, 3]
        assert slope.dtype == jnp.float32
        _, along = jax.jvp(rounding, (x,), (x,))
        np.testing.assert_array_equal(along.array, x.array.astype(jnp.bfloat16))


def test_names_anonymous_dimensions_and_layouts(auto_mesh, explicit_mesh):
    x = axn.random.normal(KEY, axn.make_axes(batch=8, embed=6))
    expected = quant.stochastic_round(x, jnp.bfloat16, key=KEY)
    assert expected.axes == x.axes
    plain = quant.stochastic_round(x.untag("batch"), jnp.bfloat16, key=KEY)
    assert plain.names == ("embed",)
    np.testing.assert_array_equal(plain.array, expected.array)
    np.testing.assert_array_equal(quant.stochastic_round(x.array, jnp.bfloat16, key=KEY), expected.array)
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            rounding = axn.named_jit(lambda x: quant.stochastic_round(x, jnp.bfloat16, key=KEY), {"batch": "data"})
            np.testing.assert_array_equal(rounding(axn.shard(x, {"batch": "data"})).array, expected.array)


def test_errors():
    for x, dtype, have in [
        (jnp.ones(2, jnp.bfloat16), jnp.bfloat16, "bfloat16 to bfloat16"),
        (axn.ones(Value), jnp.float32, "float32 to float32"),
        (axn.ones(Value), jnp.int8, "float32 to int8"),
        ("text", jnp.bfloat16, "str to bfloat16"),
    ]:
        with pytest.raises(OperandError) as caught:
            quant.stochastic_round(x, dtype, key=KEY)
        assert str(caught.value) == f"stochastic_round: rounds float32 to a narrower floating dtype, not {have}"
