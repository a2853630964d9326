"""How transformations take arguments and results apart, and put them together again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisClashError, OperandError
from axonym.transform._leaves import Arguments, Outputs, axis_first, is_array, spread

A, B = axn.make_axes(a=2, b=3)


def take_apart(arguments, axis=("a", None)):
    def dimension(_, leaf):
        if isinstance(leaf, axn.NamedArray):
            return leaf.names.index("a") - len(leaf.names) if "a" in leaf.names else None
        return 0 if is_array(leaf) and leaf.ndim else None

    return Arguments("vmap", axis, arguments, dimension)


def test_what_counts_as_an_array():
    assert all(map(is_array, [jnp.ones(2), np.ones(2), np.float32(1), jax.random.key(0)]))
    assert not any(map(is_array, [1.0, True, None, "a", [1], axn.ones(A)]))
    jax.jit(lambda x: [is_array(x)] == [True] or pytest.fail("a tracer is an array"))(1.0)


def test_arguments_round_trip_without_the_axis():
    tree = (axn.ones((B, A)), {"raw": jnp.ones((2, 5)), "whole": axn.ones(B), "text": "x"}, None)
    arguments = take_apart((tree, {"k": 1.5}))
    assert (arguments.axis, arguments.size, arguments.dims) == ("a", 2, [1, 0])
    args, kwargs = arguments.rebuild(
        [array.take(0, axis=dim) for array, dim in zip(arguments.arrays, arguments.dims, strict=True)]
    )
    assert args[0].names == ("b",)
    assert args[1]["raw"].shape == (5,)
    assert args[1]["whole"] is tree[1]["whole"]
    assert (args[1]["text"], args[2], kwargs) == ("x", None, {"k": 1.5})


def test_a_given_size_serves_where_nothing_is_mapped():
    assert take_apart((("x",), {}), ("a", 7)).size == 7


def test_outputs_round_trip():
    tree = {"n": axn.ones(A), "raw": np.ones(3), "number": 2, "act": jnp.sin, "none": None}
    outputs = Outputs(tree)
    assert [np.shape(array) for array in outputs.arrays] == [(2,), (), (3,)]
    again = outputs.rebuild([array * 2 for array in outputs.arrays])
    assert again["n"].names == ("a",)
    assert again["number"] == 4
    assert again["act"] is jnp.sin
    assert again["none"] is None


def test_outputs_may_leave_numbers_alone():
    outputs = Outputs((2, True, axn.NamedArray(1.0, ()), np.float32(1)), numbers=False)
    assert len(outputs.arrays) == 2
    assert outputs.rebuild(outputs.arrays)[:2] == (2, True)


def test_outputs_get_a_first_axis_behind_anonymous_dimensions():
    x = axn.named(np.ones((5, 3)), ("c", "b")).untag("c")
    outputs = Outputs(x)
    y = outputs.rebuild([jnp.ones((2, 5, 3))], axis_first("vmap", "a"))
    assert (y.names, y.array.shape) == (("a", "b"), (5, 2, 3))
    with pytest.raises(AxisClashError):
        outputs.rebuild([jnp.ones((2, 5, 3))], axis_first("vmap", "b"))


def test_prefixes_are_spread_over_leaves():
    tree = ((axn.ones(A), {"x": 1, "y": (2, None)}), {"k": [3, 4]})
    assert spread("vmap", 0, tree) == [0, 0, 0, 0, 0]
    assert spread("vmap", ((None, {"x": 1, "y": 2}), {"k": [3, None]}), tree) == [None, 1, 2, 3, None]
    assert spread("vmap", ((0, None), {"k": len}), tree) == [0, None, None, len, len]
    with pytest.raises(OperandError, match="no prefix"):
        spread("vmap", ((0,), {}), tree)
