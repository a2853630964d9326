"""How an index by name becomes positions: any index at all, read and written, against numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import axonym as axn

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


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_reading_and_writing_mean_the_elements_of_numpy(data: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = data.draw(st.permutations("abc"))
    x = axn.named(rng.normal(size=[SIZES[name] for name in names]).astype(np.float32), tuple(names))
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

    value = axn.named(rng.normal(size=read.array.shape).astype(np.float32), read.names)
    turned = value.rearrange(tuple(reversed(read.names)))

    @jax.jit
    def several(x: axn.NamedArray, value: axn.NamedArray) -> Any:
        part = x.at[index]
        return (part.get(), part.get(mode="fill"), part.get(mode="clip"), x[index]), part.add(value)

    reads, added = several(x, turned)
    for reader in reads:
        assert reader.names == read.names
        np.testing.assert_array_equal(reader.array, read.array)
    sums = np.array(expected)
    np.add.at(sums, where, np.asarray(value.array))
    written = x.at[index].set(turned)
    assert added.names == written.names == x.names
    np.testing.assert_allclose(added.array, sums, rtol=1e-5, atol=1e-6)
    flat = np.arange(expected.size).reshape(expected.shape)[where].ravel()
    if len(set(flat.tolist())) == len(flat):
        numpys = np.array(expected)
        numpys[where] = value.array
        np.testing.assert_array_equal(written.array, numpys)
