"""How an index by name becomes positions: any index at all, read and written, against numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import axonym as axn
from axonym.errors import OperandError
from tests.laws import count_equations

SIZES = {"a": 4, "b": 5, "c": 3}


def selectors(name: str) -> st.SearchStrategy[Any]:
    """Draw one selector of each kind for an axis, and the positions that it means with the names of their axes."""
    size = SIZES[name]
    at = st.integers(-size, size - 1)
    bound = st.none() | st.integers(-size - 1, size + 1)
    distinct = st.permutations(range(size)).map(lambda order: np.array(order[:2]))

    def part(start: Any, stop: Any, step: Any) -> tuple[Any, Any, str]:
        return slice(start, stop, step), np.arange(size)[start:stop:step], name

    def window(start: int, traced: bool) -> tuple[Any, Any, str]:
        return axn.dslice(jnp.int32(start) if traced else start, 2), np.arange(start, start + 2), name

    return st.one_of(
        at.map(lambda i: (i, np.array(i), "")),
        at.map(lambda i: (jnp.int32(i), np.array(i), "")),
        st.builds(part, bound, bound, st.sampled_from([None, 2, -1, -2])),
        st.builds(window, st.integers(0, size - 2), st.booleans()),
        distinct.map(lambda order: (order.tolist(), order, name)),
        st.builds(
            lambda order, own: (axn.named(order, own), order, own),
            distinct,
            st.sampled_from(["i", "j"]),
        ),
        distinct.map(
            lambda order: (axn.named(np.stack([order, order[::-1]]), ("i", "j")), np.stack([order, order[::-1]]), "ij")
        ),
    )


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int16])
@pytest.mark.parametrize("concrete", [True, False])
def test_an_index_may_be_narrower_than_the_axis(dtype: Any, concrete: bool) -> None:
    size = 40000
    positions = jnp.array([100, 7] if dtype == jnp.uint8 else [100, -1], dtype)
    where = np.asarray(positions).astype(int) % size
    x, zero = axn.arange(axn.Axis("a", size)), axn.zeros(axn.Axis("a", size), dtype=int)
    pairs = axn.arange((axn.Axis("i", 2), axn.Axis("a", size)))

    def read(at: jax.Array) -> list[axn.NamedArray]:
        index, scalar = axn.named(at, "i"), at[1]
        return [
            *(x["a", index], x.take("a", index), x.take("a", index, mode="wrap"), x.at["a", index].get(mode="fill")),
            *(x.take_along_axis(axn.named(at, "a"), "a"), pairs["a", index] - axn.named([0, size], "i")),
            *(
                x["a", scalar],
                x.take("a", scalar),
                x.take("a", scalar, mode="wrap"),
                x.at["a", scalar].get(mode="fill"),
            ),
            x.slice("a", start=scalar, length=1)["a", 0],
        ]

    def written(at: jax.Array) -> list[axn.NamedArray]:
        return [
            *(zero.at["a", axn.named(at, "i")].set(1), axn.put_along_axis(zero, axn.named(at, "a"), 1, "a")),
            *(zero.at["a", at[1]].set(1), zero.updated_slice({"a": at[1]}, 1)),
        ]

    for i, result in enumerate((read if concrete else jax.jit(read))(positions)):
        np.testing.assert_array_equal(result.array, where if i < 6 else where[1])
    for i, result in enumerate((written if concrete else jax.jit(written))(positions)):
        np.testing.assert_array_equal(np.flatnonzero(result.array), np.sort(where if i < 2 else where[1:]))


def test_a_usual_index_is_not_converted() -> None:
    x, at = axn.arange(axn.Axis("a", 300)), axn.named([0, 2], "i")
    assert count_equations(lambda x, at: x["a", at], x, at) <= count_equations(
        lambda x, at: x.at[at].get(mode="clip"), x.array, at.array
    )


def on_device(array: np.ndarray, names: tuple[str, ...]) -> axn.NamedArray:
    """Name an array; `axn.named` would compile a program for each shape."""
    return axn.NamedArray(jax.device_put(array.astype(np.float32)), names)


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_reading_and_writing_mean_the_elements_of_numpy(data: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = data.draw(st.permutations("abc"))
    x = on_device(rng.normal(size=[SIZES[name] for name in names]), tuple(names))
    drawn = {
        name: data.draw(selectors(name)) for name in data.draw(st.permutations("abc"))[: data.draw(st.integers(0, 3))]
    }
    index = {name: selector for name, (selector, _, _) in drawn.items()}
    read = x[index]

    # Every position of the result by itself, whatever order its axes are in.
    meant = {name: (positions, own) for name, (_, positions, own) in drawn.items()}
    meant |= {name: (np.arange(SIZES[name]), name) for name in "abc" if name not in drawn}
    lengths = dict(zip(read.names, read.array.shape, strict=True))
    assert set(read.names) == set("".join(own for _, own in meant.values()))
    spread = []
    for name in names:
        positions, own = meant[name]
        ordered = positions.transpose([own.index(other) for other in read.names if other in own])
        spread.append(ordered.reshape([lengths[other] if other in own else 1 for other in read.names]))
    where = tuple(np.broadcast_arrays(*spread))
    expected = np.asarray(x.array)
    np.testing.assert_array_equal(read.array, expected[where])

    value = rng.normal(size=read.array.shape).astype(np.float32)
    turned = on_device(value.T, tuple(reversed(read.names)))

    @jax.jit
    def several(x: axn.NamedArray, value: axn.NamedArray) -> Any:
        part = x.at[index]
        return (part.get(), part.get(mode="fill"), part.get(mode="clip"), x[index]), part.add(value), part.set(value)

    reads, added, written = several(x, turned)
    for reader in reads:
        assert reader.names == read.names
        np.testing.assert_array_equal(reader.array, read.array)
    sums = np.array(expected)
    np.add.at(sums, where, value)
    assert added.names == written.names == x.names
    np.testing.assert_allclose(added.array, sums, rtol=1e-5, atol=1e-6)
    flat = np.arange(expected.size).reshape(expected.shape)[where].ravel()
    if len(set(flat.tolist())) == len(flat):
        numpys = np.array(expected)
        numpys[where] = value
        np.testing.assert_array_equal(written.array, numpys)


def test_slices_of_an_axis_whose_size_is_symbolic() -> None:
    (size,) = jax.export.symbolic_shape("b")
    x = axn.NamedArray(jax.ShapeDtypeStruct((size, 3), jnp.float32), ("a", "c"))
    parts = [slice(1, None), slice(None, -1), slice(None, None, 2), slice(-2, None), slice(None, np.int64(3))]

    def read_and_write(x: axn.NamedArray) -> Any:
        return [(x["a", part], x.at["a", part].add(1.0)) for part in parts], x.at["a", 1:, "c", 0].set(
            x["a", :-1, "c", 1]
        )

    exported = jax.export.export(jax.jit(read_and_write))(x)
    raw = np.arange(12, dtype=np.float32).reshape(4, 3)
    results, written = exported.call(axn.named(raw, ("a", "c")))
    for part, (read, added) in zip(parts, results, strict=True):
        expected = raw.copy()
        expected[part] += 1
        np.testing.assert_array_equal(read.array, raw[part])
        np.testing.assert_array_equal(added.array, expected)
    raw[1:, 0] = raw[:-1, 1]
    np.testing.assert_array_equal(written.array, raw)


@pytest.mark.parametrize("call", [lambda x: axn.delete(x, 0, "a"), lambda x: axn.insert(x, 0, 1.0, "a")])
def test_positions_of_an_axis_whose_size_is_symbolic_are_refused(call: Any) -> None:
    x = axn.NamedArray(jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), jnp.float32), ("a", "c"))
    with pytest.raises(OperandError, match="the size of axis 'a' is symbolic") as error:
        jax.export.export(jax.jit(call))(x)
    assert str(error.value).endswith('hint: join slices: axn.concatenate("embed", [x["embed", :2], x["embed", 3:]])')
