"""Products in 8-bit integers, against numpy in float64."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn, quant
from tests.nn.layouts import apply, check_on, draw

pytestmark = pytest.mark.sampled

B, S, E, M = axn.make_axes(batch=8, seq=3, embed=16, mlp=32)
KEY = jax.random.key(0)
CASES = [
    ("bk,kn->bn", (((1,), (0,)), ((), ()))),
    ("gbk,kgn->gbn", (((2,), (0,)), ((0,), (1,)))),
    ("blk,lnk->bn", (((2, 1), (2, 0)), ((), ()))),
    ("b,n->bn", (((), ()), ((), ()))),
]
SIZES = {"b": 6, "k": 16, "n": 5, "g": 2, "l": 3}


def rounded(x, letters, summed):
    axes = tuple(letters.index(letter) for letter in summed)
    scale = np.abs(x).max(axes, keepdims=True) / np.float32(127)
    return np.round(x / scale).astype(np.float64) * scale.astype(np.float64)


@functools.partial(jax.jit, static_argnums=3)
def product_and_gradients(left, right, gradient, numbers):
    product, pull = jax.vjp(lambda *args: quant.Int8DotGeneral()(*args, numbers), left, right)
    return (product, *pull(gradient))


def operands(equation):
    rng = np.random.default_rng(0)
    shapes = [[SIZES[letter] for letter in part] for part in equation.replace("->", ",").split(",")]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(("equation", "numbers"), CASES)
def test_value_and_gradients(equation, numbers):
    left, right, gradient = operands(equation)
    found = product_and_gradients(left, right, gradient, numbers)
    (a, b), out = equation.split("->")[0].split(","), equation.split("->")[1]
    summed = [letter for letter in a if letter not in out]
    left, right = rounded(left, a, summed), rounded(right, b, summed)
    expected = [
        np.einsum(equation, left, right),
        np.einsum(f"{out},{b}->{a}", gradient, right),
        np.einsum(f"{out},{a}->{b}", gradient, left),
    ]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_each_row_has_its_own_scale():
    left, right, _ = operands(CASES[0][0])
    left[2] *= 1e6
    product = quant.Int8DotGeneral()(left, right, CASES[0][1])
    exact = left @ right
    assert (np.abs(product - exact).max(1) < 0.02 * np.abs(exact).max(1)).all()


def test_the_product_is_of_integers_and_what_is_kept_is_too():
    left, right, gradient = operands(CASES[0][0])
    text = product_and_gradients.lower(left, right, gradient, CASES[0][1]).as_text()
    given = re.findall(r"dot_general.* : \((.*)\) -> (.*)", text)
    assert given.count(("tensor<6x16xi8>, tensor<16x5xi8>", "tensor<6x5xi32>")) == 1
    _, pull = jax.vjp(lambda *args: quant.Int8DotGeneral()(*args, CASES[0][1]), left, right)
    kept = {(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(pull) if leaf.size > 6}
    assert kept == {((6, 16), "int8"), ((16, 5), "int8")}


def test_what_is_not_finite_is_not_hidden():
    left, right, _ = operands(CASES[0][0])
    for value in (np.nan, np.inf):
        left[1, 2] = value
        product = np.asarray(quant.Int8DotGeneral()(left, right, CASES[0][1]))
        assert np.isnan(product[1]).all()
        assert np.isfinite(np.delete(product, 1, 0)).all()


def test_zeros_and_dtypes():
    left, right, gradient = operands(CASES[0][0])
    for x in product_and_gradients(0 * left, 0 * right, 0 * gradient, CASES[0][1]):
        assert not np.asarray(x).any()
    found = product_and_gradients(*(jnp.asarray(x, jnp.bfloat16) for x in (left, right, gradient)), CASES[0][1])
    assert [x.dtype for x in found] == [jnp.bfloat16] * 3
    np.testing.assert_allclose(np.asarray(found[0], np.float32), left @ right, atol=0.2)
    wide = quant.Int8DotGeneral()(left, right.astype(jnp.bfloat16), CASES[0][1], preferred_element_type=jnp.float32)
    assert wide.dtype == jnp.float32


def test_narrow_integers():
    """The magnitude of -128 is no int8."""
    left, right, _ = operands(CASES[0][0])
    narrow = np.full(left.shape, -128, np.int8)
    found = quant.Int8DotGeneral()(narrow, right, CASES[0][1])
    np.testing.assert_allclose(found, -128.0 * rounded(right, "kn", "k").sum(0, keepdims=True).repeat(6, 0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind, auto_mesh, explicit_mesh):
    layer = nn.Linear.init(E, M, key=KEY, dot_general=quant.Int8DotGeneral())
    check_on({"auto": auto_mesh, "explicit": explicit_mesh}[kind], apply, layer, draw(B, S, E))
