"""Windows at a traced start, read through an index; `test_update` writes through them."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisSizeError, OperandError
from tests.laws import count_equations


@pytest.mark.sampled
@pytest.mark.parametrize("length", [0, 1, 3, 9])
@pytest.mark.parametrize("axis", ["a", "b"])
def test_a_dslice_reads_zero_out_of_range(axis: str, length: int) -> None:
    x = axn.named(np.arange(1, 21).reshape(4, 5), ("a", "b"))
    at, size = x.names.index(axis), x.shape[axis]
    padded = np.pad(np.asarray(x.array), [(20, 20) if i == at else (0, 0) for i in range(2)])
    traced = jax.jit(lambda start: x[axis, axn.dslice(start, length)])
    for start in range(-11, size + 3):
        expected = np.take(padded, range(20 + start, 20 + start + length), at)
        static = [x[axis, axn.dslice(start, length)]] if -length < start < size else []
        for result in (
            *static,
            traced(start),
            x[axis, axn.dslice(axn.named(np.int8(start), ()), axn.Axis("any", length))],
            x.at[axis, axn.dslice(jnp.int32(start), length)].get(mode="fill", fill_value=0),
        ):
            assert result.names == ("a", "b")
            np.testing.assert_array_equal(result.array, expected)
    last = jax.jit(lambda x: x[axis, axn.dslice(size - 1, length)])(x)
    np.testing.assert_array_equal(last.array, np.take(padded, range(19 + size, 19 + size + length), at))


def test_a_dslice_in_range_is_a_slice() -> None:
    x = axn.ones((axn.Axis("a", 4), axn.Axis("b", 5)))
    assert count_equations(lambda x: x["b", axn.dslice(1, 3)], x) <= count_equations(lambda x: x["b", 1:4], x)
    assert axn.dblock(2, 8).to_slice() == axn.ds(16, 8).to_slice() == axn.dslice.block(2, 8).to_slice() == slice(16, 24)


def test_a_dslice_goes_through_transformations() -> None:
    x = axn.arange((axn.Axis("a", 3), axn.Axis("b", 5)))
    window = axn.dslice(jnp.arange(3), 2)
    mapped = jax.vmap(lambda row, window: row["b", window])(x.untag("a"), window).tag("a")
    assert mapped.tolist() == [[0, 1], [6, 7], [12, 13]]
    assert jax.tree.map(lambda start: start + 1, axn.dslice(1, 2)).to_slice() == slice(2, 4)
    assert repr(axn.dslice(1, 2)) == "dslice(1, 2)"
    assert repr(window) == "dslice(ArrayImpl, 2)"


@pytest.mark.parametrize("number", [np.int8(70), jnp.int8(70), axn.named(jnp.uint8(70), ()), np.array(70, np.int16)])
def test_the_start_of_a_block_has_room_for_all_positions(number: Any) -> None:
    x = axn.arange(axn.Axis("a", 30000))
    assert x["a", axn.dblock(number, 400)].tolist() == list(range(28000, 28400))


def test_a_dslice_of_keys() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    x, data = axn.named(keys, "a"), np.pad(jax.random.key_data(keys), [(9, 9), (0, 0)])
    window = jax.jit(lambda start: x["a", axn.dslice(start, 3)])
    for start in (-1, 0, 1, 2):
        for piece in (window(start), x["a", axn.dslice(start, 3)]):
            assert piece.names == ("a",)
            assert piece.dtype == keys.dtype
            np.testing.assert_array_equal(jax.random.key_data(piece.array), data[9 + start : 12 + start])


BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: axn.dslice(0, -1), AxisSizeError, "dslice: the length must not be negative, got -1"),
    (
        lambda: axn.dslice(0, 2.5),
        OperandError,
        "dslice: the length must be an int or an Axis, not float\n  hint: the start may be traced, the length may not",
    ),
    (
        lambda: axn.ones(axn.Axis("pos", 8))["pos", axn.dslice(99, 2)],
        AxisSizeError,
        "index: dslice(99, 2) has no element of pos=8\n  array has: pos=8",
    ),
    (
        lambda: axn.ones(axn.Axis("pos", 8)).at["pos", axn.dslice(-2, 2)].set(0.0),
        AxisSizeError,
        "at: dslice(-2, 2) has no element of pos=8\n  array has: pos=8",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD, ids=[text.splitlines()[0] for _, _, text in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


def test_sizes_that_are_known_when_an_export_is_called() -> None:
    """In `jax.export`, a window and a slice may be as long as an axis."""
    shape = jax.export.symbolic_shape("n, n + 4")
    spec = jax.ShapeDtypeStruct(shape, jnp.int32)
    calls = {
        "a window of the length of an axis": lambda x: x["b", axn.dslice(2, x.axes[0])],
        "a slice": lambda x: x.slice("b", start=2, length=x.axis_size("a")),
        "a slice from a traced start": lambda x: x.slice("b", start=jnp.int32(2), length=x.axis_size("a")),
        "a window of a fixed length": lambda x: x["b", axn.dslice(2, 2)],
    }
    calls |= {"a traced start": lambda x: x["a", axn.dslice(jnp.int32(1), 4)],
              "a start out of range": lambda x: x["a", axn.dslice(-1, 3)],
              "an update": lambda x: x.at["a", axn.dslice(1, 4)].set(-1)}  # fmt: skip
    array = np.arange(21).reshape(3, 7)
    written = np.array(array)
    written[1:] = -1
    zeros = np.zeros((4, 7), array.dtype)
    expected = {"a traced start": np.concatenate([array, zeros])[1:5], "an update": written,
                "a start out of range": np.concatenate([zeros, array])[3:6]}  # fmt: skip
    for what, call in calls.items():
        fn = jax.jit(lambda array, call=call: call(axn.named(array, ("a", "b"))).array)
        found = jax.export.export(fn)(spec).call(array)
        length = 2 if "fixed" in what else 3
        np.testing.assert_array_equal(found, expected.get(what, array[:, 2 : 2 + length]), err_msg=what)
