"""The engine: what a call of any operation does, once per names and shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import axonym as axn
from axonym.engine import kernels, pointwise
from axonym.errors import OperandError
from tests.laws import SIZES, count_equations

NAMES = st.lists(st.sampled_from("abc"), unique=True).map(tuple)


@settings(max_examples=3)
@given(st.data(), NAMES)
def test_lined_up_puts_dimensions_where_the_target_has_them(data: st.DataObject, target: tuple[str, ...]) -> None:
    source = data.draw(st.permutations(target).flatmap(lambda p: st.integers(0, len(p)).map(lambda n: tuple(p[:n]))))
    array = jnp.arange(np.prod([SIZES[n] for n in source], initial=1)).reshape([SIZES[n] for n in source])
    lined = kernels.line_up(array, source, target)
    if source:
        assert lined.shape == tuple(SIZES[n] if n in source else 1 for n in target)
    named = axn.NamedArray(array, source)
    full = named.broadcast_to([axn.Axis(n, SIZES[n]) for n in target])
    np.testing.assert_array_equal(np.broadcast_to(lined, full.array.shape), full.array)


def test_a_function_is_traced_once_per_shape() -> None:
    seen = []

    def double(x: jax.Array) -> jax.Array:
        seen.append(x.shape)
        return x + x

    def run(size: int) -> axn.NamedArray:
        return pointwise.unary(double, axn.ones(axn.Axis("a", size)))

    assert [run(size).tolist() for size in (1, 2, 1, 2)] == [[2], [2, 2], [2], [2, 2]]
    assert seen == [(1,), (2,)]


def test_options_are_part_of_the_function() -> None:
    x = axn.named([1.234, 5.678], "a")
    rounded = [x.round(decimals=decimals).array for decimals in (0, 1, 0)]
    np.testing.assert_allclose(rounded, [[1, 6], [1.2, 5.7], [1, 6]], rtol=1e-6)
    assert x.astype(int).dtype != x.astype(bool).dtype


def test_options_that_are_equal_but_of_another_type_are_not_the_same() -> None:
    x = axn.arange(axn.Axis("a", 3))
    scale = lambda array, by: array * by  # noqa: E731
    assert [pointwise.unary_with(scale, x, by=by).dtype for by in (1, 1.0, 1)] == [jnp.int32, jnp.float32, jnp.int32]


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, lambda zero: complex(1.0, zero)])
def test_zeros_of_both_signs_are_not_the_same(kind: Any) -> None:
    x = axn.zeros(axn.Axis("a", 2))
    sign = lambda array, of: jnp.copysign(array + 1, np.imag(of) if isinstance(of, complex) else of)  # noqa: E731
    found = [pointwise.unary_with(sign, x, of=kind(zero)).tolist() for zero in (0.0, -0.0, 0.0)]
    assert found == [[1, 1], [-1, -1], [1, 1]]
    signs = [np.signbit(x.max(initial=zero, where=x > 0).array).item() for zero in (0.0, -0.0)]
    assert signs == [False, True]


def test_an_array_is_no_option() -> None:
    x = axn.ones(axn.Axis("a", 3))
    for call in (lambda: x.std(ddof=jnp.int32(1)), lambda: jax.jit(lambda d: x.std(ddof=d))(1)):
        with pytest.raises(OperandError, match=r"^std: ddof must be a static Python value, not "):
            call()


def test_a_kernel_under_a_trace_is_inlined() -> None:
    """A kernel of many equations would be one call otherwise."""
    x = axn.ones(axn.Axis("a", 2))
    for fn in (lambda x: x.mean("a"), lambda x: axn.standardize(x, "a")):
        assert 1 < len(jax.make_jaxpr(fn)(x).eqns) == count_equations(fn, x) == count_equations(jax.jit(fn), x)
