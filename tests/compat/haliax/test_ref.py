"""Mutable arrays with names."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import NamedArray, ds
from jax.experimental import pallas as pl

A, B = hax.make_axes(a=2, b=3)
VALUES = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def fresh() -> hax.NamedRef:
    return hax.new_ref(hax.named(VALUES, (A, B)))


def check(found: Any, axes: Any, values: Any) -> None:
    assert type(found) is NamedArray
    assert hax.axis_name(found.axes) == tuple(axes)
    np.testing.assert_array_equal(np.asarray(found.array), values)


def test_what_a_reference_tells() -> None:
    ref = fresh()
    assert type(ref) is hax.NamedRef
    assert (ref.axes, ref.ndim, ref.dtype) == ((A, B), 2, jnp.float32)
    assert ref.shape == ref.named_shape == {"a": 2, "b": 3}
    assert ref.resolve_axis("b") == B
    assert ref._axes == (A, B)
    assert ref._prefix == (slice(None), slice(None))
    assert type(hax.NamedRef(ref._ref, (A, B), ())) is hax.NamedRef
    assert len(jax.tree.leaves(ref)) == 1
    with pytest.raises(ValueError, match="'z'"):
        ref.resolve_axis("z")


def test_the_indices_of_a_view() -> None:
    ref = hax.new_ref(hax.named(np.arange(24).reshape(6, 4), ("x", "y")))
    one, two, three = ref.slice({"x": slice(1, 5)}), ref.slice({"x": slice(0, 6, 2)}), ref.slice({"x": pl.ds(2, 3)})
    whole = slice(None)
    assert one._prefix == (pl.Slice(1, 4, 1), whole)
    assert one.slice({"x": ds(1, 2)})._prefix == (pl.Slice(2, 2, 1), whole)
    assert one.slice({"x": -1, "y": slice(2)})._prefix == (4, pl.Slice(0, 2, 1))
    assert two._prefix == (pl.Slice(0, 3, 2), whole)
    assert two.slice({"x": slice(1, 3)}).slice({"x": 1})._prefix == (4, whole)
    assert three._prefix == (pl.Slice(2, 3, 1), whole)
    assert int(ref.slice({"x": ds(jnp.int32(2), 3)}).slice({"x": 1})._prefix[0]) == 3
    picked = ref.slice({"x": [4, 0, -1], "y": slice(1, None)})
    np.testing.assert_array_equal(picked.slice({"x": slice(1, None)})._prefix[0], [0, 5])
    np.testing.assert_array_equal(picked.value().array, np.arange(24).reshape(6, 4)[[4, 0, -1], 1:])
    for view in (picked, one, two, three, one.slice({"x": -1, "y": slice(2)})):
        again = hax.NamedRef(view._ref, view._axes, view._prefix)
        assert again.axes == view.axes
        np.testing.assert_array_equal(again.value().array, view.value().array)


def test_reading() -> None:
    ref = fresh()
    check(ref.value(), "ab", VALUES)
    check(ref[...], "ab", VALUES)
    check(ref["a", 1], "b", VALUES[1])
    check(hax.get(ref, {"b": slice(1, None)}), "ab", VALUES[:, 1:])
    check(hax.get(ref), "ab", VALUES)
    check(ref["b", hax.named([2, 0], "i")], "ai", VALUES[:, [2, 0]])


def test_writing() -> None:
    ref = fresh()
    ref["a", 0] = hax.named([7.0, 8.0, 9.0], B)
    check(ref[...], "ab", [[7, 8, 9], [3, 4, 5]])
    ref["a", 0, "b", slice(0, 2)] = 1.0
    check(ref[...], "ab", [[1, 1, 9], [3, 4, 5]])
    ref["b", 0] = jnp.array([5.0, 6.0])
    check(ref[...], "ab", [[5, 1, 9], [6, 4, 5]])
    ref[...] = hax.named(VALUES.T, (B, A))
    check(ref[...], "ab", VALUES)
    with pytest.raises(ValueError, match="'z'"):
        ref["a", 0] = hax.ones(hax.Axis("z", 3))
    with pytest.raises(ValueError, match="shape"):
        ref["a", 0] = jnp.ones(2)
    for error in (ValueError, TypeError):
        with pytest.raises(error, match="needs all axes"):
            ref[...] = hax.ones(B)


def test_views_compose() -> None:
    ref = fresh()
    view = ref.slice({"a": 1})
    assert type(view) is hax.NamedRef
    assert view.axes == (B,)
    part = view.slice({"b": slice(1, 3)})
    check(part.value(), "b", VALUES[1, 1:])
    part["b", 0] = 50.0
    check(ref[...], "ab", [[0, 1, 2], [3, 50, 5]])
    check(part.unsliced()[...], "ab", [[0, 1, 2], [3, 50, 5]])
    assert type(part.unsliced()) is hax.NamedRef


def test_swap_and_freeze() -> None:
    ref = fresh()
    check(hax.swap(ref, ("a", 0), hax.zeros(B)), "b", VALUES[0])
    check(hax.freeze(ref), "ab", [[0, 0, 0], [3, 4, 5]])
    check(hax.freeze(ref.slice({"a": 1})), "b", VALUES[1])
    ref["a", 1] = 0.0
    check(ref[...], "ab", np.zeros((2, 3)))


def test_only_named_arrays_become_references() -> None:
    with pytest.raises(TypeError, match="NamedArray"):
        hax.new_ref(jnp.ones(3))  # type: ignore[arg-type]  # what is tested


def test_a_reference_in_compiled_loops() -> None:
    ref = fresh()

    @jax.jit
    def run(ref: hax.NamedRef) -> NamedArray:
        def step(i: Any, total: Any) -> Any:
            ref["b", i] = ref["b", i] * 2
            return total + ref.slice({"b": i}).value()

        return jax.lax.fori_loop(0, 3, step, hax.zeros(A))

    check(run(ref), "a", 2 * VALUES.sum(1))
    check(ref[...], "ab", 2 * VALUES)
