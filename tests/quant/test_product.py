"""Gradients of products by hand, against those of JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from axonym import quant
from axonym.errors import ArgumentError, OperandError
from axonym.quant.product import Scaled, cotangent, make_hashable

CASES = [
    ("rows and columns", (5, 3), (3, 4), (((1,), (0,)), ((), ()))),
    ("the contraction leads", (3, 5), (4, 3), (((0,), (1,)), ((), ()))),
    ("nothing is summed", (2,), (3, 4), (((), ()), ((), ()))),
    ("everything is summed", (2, 3), (3, 2), (((1, 0), (0, 1)), ((), ()))),
    ("batch, and two contractions out of order", (2, 5, 3, 6), (6, 4, 2, 3), (((3, 2), (0, 3)), ((0,), (2,)))),
    ("two batch dimensions", (3, 2, 5), (5, 2, 7, 3), (((2,), (0,)), ((1, 0), (1, 3)))),
]


@pytest.mark.parametrize(("left", "right", "numbers"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_against_the_gradients_of_jax(left, right, numbers):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in (left, right))
    product, pull = jax.vjp(functools.partial(lax.dot_general, dimension_numbers=numbers), a, b)
    gradient = rng.normal(size=product.shape).astype(np.float32)
    expected = pull(jnp.asarray(gradient))
    found = [
        cotangent(lax.dot_general, gradient, b, make_hashable(numbers), of_left=True),
        cotangent(lax.dot_general, gradient, a, make_hashable(numbers), of_left=False),
    ]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


PRODUCTS = [quant.Int8DotGeneral(), quant.Fp8CurrentDotGeneral(), quant.Fp8DotGeneral.init(2)]


@pytest.mark.parametrize("dot_general", PRODUCTS, ids=lambda product: type(product).__name__)
def test_a_gradient_is_not_differentiated_unless_nothing_uses_the_result(dot_general):
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)

    def loss(x):
        return jnp.sin(dot_general(x, weight, (((1,), (0,)), ((), ())))).sum()

    x, inner = jnp.ones((4, 3)), jax.grad(loss)
    with pytest.raises(ArgumentError) as caught:
        jax.jit(jax.grad(lambda x: (inner(x) ** 2).sum()))(x)
    assert str(caught.value) == (
        "axonym.quant: a quantised product has no second derivative\n"
        "  a function that computes a gradient is differentiated with respect to an operand of the product\n"
        "  hint: take the inner gradient without quantised products, or put `jax.lax.stop_gradient` around it"
    )
    # A step along the gradient, and the gradient there.
    along = jax.grad(lambda x: loss(x + 0.1 * lax.stop_gradient(inner(x))))
    found, expected = jax.jit(lambda x: (along(x), inner(x + 0.1 * inner(x))))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("dot_general", PRODUCTS, ids=lambda product: type(product).__name__)
@pytest.mark.parametrize(
    "dtypes", [("complex64", "float32", None), ("int8", "complex64", None), (float, float, "complex64")]
)
def test_complex_numbers_are_refused(dot_general, dtypes):
    left, right = jnp.ones((2, 3), dtypes[0]), jnp.ones((3, 2), dtypes[1])
    with pytest.raises(OperandError) as caught:
        dot_general(left, right, (((1,), (0,)), ((), ())), preferred_element_type=dtypes[2])
    assert str(caught.value) == (
        "axonym.quant: a quantised product supports only real numbers, not complex64\n"
        "  hint: multiply the real and the imaginary parts separately, or without quantisation"
    )


def test_dimension_numbers_may_be_lists():
    assert make_hashable([[[1], [0]], [[], []]]) == (((1,), (0,)), ((), ()))


def test_a_scaled_array_has_the_dimensions_of_its_values():
    assert Scaled(np.zeros((2, 3)), np.zeros(())).ndim == 2
