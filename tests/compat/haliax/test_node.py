"""`NamedArray` as a node of trees."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

from typing import Any

import equinox as eqx
import haliax as hax
import jax
import numpy as np
import pytest
from haliax import Axis, NamedArray

A, B, C = hax.make_axes(a=2, b=3, c=4)
VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7
X = hax.named(VALUES, (A, B, C))


def check(found: Any, values: Any) -> None:
    assert type(found) is NamedArray
    assert found.axes == (A, B, C)
    np.testing.assert_allclose(np.asarray(found.array), values, rtol=1e-5)


@pytest.mark.parametrize("payload", [None, True, "text", jax.P("data")])
def test_a_tree_that_holds_no_arrays_still_tells_axes(payload: Any) -> None:
    x = jax.tree.map(lambda _: payload, X)
    assert x.array is payload
    assert x.axes == (A, B, C)
    assert x.shape == {"a": 2, "b": 3, "c": 4}
    assert NamedArray(payload, (A,)).axes == (A,)
    assert jax.tree.map(lambda _: 0, x, is_leaf=lambda y: y is payload).axes == (A, B, C)
    assert jax.tree.structure(X) == jax.tree.structure(hax.ones((A, B, Axis("c", 9))))


def test_it_is_a_tree_of_one_leaf() -> None:
    leaves, treedef = jax.tree.flatten(X)
    assert len(leaves) == 1
    check(jax.tree.unflatten(treedef, leaves), VALUES)
    children, aux = X.tree_flatten()
    assert aux == (A, B, C)
    check(NamedArray.tree_unflatten(aux, children), VALUES)
    check(eqx.combine(*eqx.partition(X, eqx.is_array)), VALUES)
    check(jax.jit(lambda x: x * 2)(X), VALUES * 2)
    check(jax.eval_shape(lambda x: x, X).array and X, VALUES)
    gradient = jax.grad(lambda x: (x * x).sum().scalar())(X)
    check(gradient, 2 * VALUES)
    (path, _), *_ = jax.tree_util.tree_flatten_with_path(X)[0]
    assert jax.tree_util.keystr(path) == ".array"
