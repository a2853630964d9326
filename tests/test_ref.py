"""Mutable arrays with names: each write compared with `x.at`, and each read with `x[...]`."""

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from measure import flops_bytes

import axonym as axn
from axonym.errors import AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from tests.laws import placed

X = axn.named(np.arange(24, dtype=np.float32).reshape(4, 6), ("batch", "pos"))
INDICES: list[Any] = [
    ...,
    {},
    {"batch": 1},
    {"pos": slice(1, 5, 2)},
    {"batch": jnp.int32(2), "pos": slice(0, 3)},
    {"pos": axn.dslice(jnp.int32(4), 3)},
    {"pos": [0, 3], "batch": slice(1, 3)},
    {"batch": axn.named([0, 2], "i"), "pos": axn.named([1, 3, 5], "j")},
    {"pos": axn.named([0, 1, 2, 3], "batch")},
    (axn.Axis("batch", 4), -1),
]


def equal(x: axn.NamedArray, y: axn.NamedArray) -> bool:
    """Compare in numpy, for which nothing is compiled."""
    return x.names == y.names and np.array_equal(x.array, y.array)


@pytest.mark.sampled
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_reads_and_writes_what_the_index_of_an_array_means(index: Any) -> None:
    @jax.jit
    def as_arrays(x: axn.NamedArray) -> Any:
        value = x[index] * 2 + 1
        written = x.at[index].set(value)
        return x[index], value, written, written[index], written.at[index].set(7)

    ref = axn.new_ref(X)
    part, value, written, again, last = as_arrays(X)
    assert equal(ref[index], part)
    assert equal(axn.get(ref, index), part)
    ref[index] = value
    assert equal(ref[...], written)
    assert equal(axn.swap(ref, index, 7), again)
    assert equal(ref.value(), last)
    assert equal(axn.freeze(ref), last)


def test_knows_what_it_is() -> None:
    ref = axn.new_ref(X)
    assert ref.axes == X.axes
    assert ref.shape == ref.named_shape == X.shape
    assert (ref.dtype, ref.ndim) == (X.dtype, 2)
    assert ref.resolve_axis("pos") == axn.Axis("pos", 6)
    assert repr(ref) == "NamedRef(float32[batch=4, pos=6])"
    assert repr(ref.slice({"batch": 0, "pos": 1})) == "NamedRef(float32[])"
    assert axn.NamedRef(jax.new_ref(jnp.zeros((2, 3))), ("a", axn.Axis("b", 3))).shape == {"a": 2, "b": 3}
    (leaf,) = jax.tree.leaves(ref)
    assert isinstance(leaf, jax.Ref)


def test_the_first_value_is_not_written_to() -> None:
    x = axn.zeros(axn.Axis("a", 2))
    ref = axn.new_ref(x)
    ref["a", 0] = 1.0
    assert x.tolist() == [0, 0]


VIEWS: list[list[dict[str, Any]]] = [
    [{"batch": 1}],
    [{"batch": 1}, {"pos": slice(1, 5)}],
    [{"pos": slice(1, 5)}, {"pos": slice(None, None, 2)}],
    [{"pos": slice(1, 5)}, {"pos": axn.dslice(jnp.int32(1), 2)}, {"batch": jnp.int32(2)}],
    [{"pos": axn.dslice(jnp.int32(4), 4)}],
    [{"pos": slice(None, None, -1), "batch": axn.dslice(1, 2)}, {"batch": -1}],
    [{"pos": [4, 0, -1, 2]}, {"pos": slice(1, None), "batch": (3, 0)}, {"pos": jnp.array([2, 0])}],
    [{"pos": slice(1, 5)}, {"pos": [3, 0], "batch": 2}],
]


@pytest.mark.sampled
@pytest.mark.parametrize("stages", VIEWS, ids=str)
def test_views_compose(stages: list[dict[str, Any]]) -> None:
    view = ref = axn.new_ref(X)
    for stage in stages:
        view = view.slice(stage)
    first = {axis.name: 0 for axis in view.axes[:1]}
    some = {axis.name: axn.named([0, 1], "i") for axis in view.axes}

    @jax.jit
    def viewed(x: axn.NamedArray) -> list[axn.NamedArray]:
        for stage in stages:
            x = x[stage]
        return [x, x[first], x[some]]

    expected, of_first, _ = viewed(X)
    # Where each element of the view lies: what has no place, out of range, is element 0 here.
    places = viewed(axn.NamedArray(np.arange(1, 25).reshape(4, 6), X.names))
    assert view.axes == expected.axes
    assert view.unsliced().axes == X.axes
    assert equal(view[...], expected)
    assert equal(view[first], of_first)
    written = np.array(X.array)
    for index, place, value in zip(({}, first, some), places, (-1.0, -2.0, -3.0), strict=True):
        view[index] = value
        where = np.asarray(place.array).ravel() - 1
        written.ravel()[where[where >= 0]] = value
        np.testing.assert_array_equal(ref[...].array, written)
    np.testing.assert_array_equal(axn.freeze(view).array, axn.named(written, X.names)[stages[0]].array) if len(
        stages
    ) == 1 else None


OUTER = [slice(2, 8), slice(None, None, -2), slice(1, None, 3), axn.dslice(2, 5), axn.dslice(jnp.int8(6), 7),
         axn.dslice(jnp.int32(-3), 8), [6, 0, -3, 2, 9], axn.named(np.array([3, 1, 8], np.uint8), "a")]  # fmt: skip
INNER: list[tuple[Any, bool]] = [
    *((slice(1, 3), False), (slice(None, None, -2), False), (slice(2, 2), False), (1, True), (-2, True)),
    *((jnp.int32(2), True), (jnp.int8(-1), True), (jnp.int32(9), True), (jnp.int32(-9), True), (jnp.uint32(2), True)),
    *((axn.dslice(1, 2), False), (axn.dslice(jnp.int32(-2), 4), False), (axn.dslice(2, 9), False)),
    *(([0, -1], True), (axn.named([1, 9, -9, -2], "i"), True), (axn.named(np.array([2, 250], np.uint8), "i"), True)),
]


@pytest.mark.sampled
@pytest.mark.parametrize("outer", OUTER, ids=str)
def test_a_view_writes_no_further_than_it_reaches(outer: Any) -> None:
    numbers, size = np.arange(10), 10
    if isinstance(outer, axn.dslice):
        within: Any = range(outer.start, outer.start + outer.size)
    elif isinstance(outer, slice):
        within = range(size)[outer]
    else:
        within = [range(size)[i] for i in (outer.tolist() if isinstance(outer, axn.NamedArray) else outer)]
    for inner, wraps in INNER:
        if isinstance(inner, slice):
            at = range(len(within))[inner]
        elif isinstance(inner, axn.dslice):
            at = range(int(inner.start), int(inner.start) + inner.size)
        else:
            at = np.ravel(inner.array if isinstance(inner, axn.NamedArray) else inner).tolist()
        at = [i + len(within) if wraps and i < 0 else i for i in at]
        places = [within[i] for i in at if 0 <= i < len(within)]
        expected = np.array(numbers)
        expected[[place for place in places if 0 <= place < size]] = -1
        ref = axn.new_ref(axn.named(jax.device_put(numbers), "a"))
        ref.slice({"a": outer})["a", inner] = -1
        assert ref[...].tolist() == expected.tolist(), inner


def test_an_index_matches_what_a_view_of_a_view_leaves() -> None:
    ref, expected = axn.new_ref(X), np.array(X.array)
    view = ref.slice({"pos": slice(4, None, -1)}).slice({"batch": slice(1, 4)})
    view["pos", axn.dslice(jnp.int32(3), 3), "batch", axn.named([0, 2, 1], "pos")] = axn.named([7, 8, 9], "pos")
    expected[[1, 3], [1, 0]] = [7, 8]
    np.testing.assert_array_equal(ref[...].array, expected)


def test_writing_to_a_view_touches_no_more_than_is_written() -> None:
    x = axn.zeros(axn.Axis("a", 10_000))

    def write(x: axn.NamedArray, i: Any) -> axn.NamedArray:
        ref = axn.new_ref(x)
        ref.slice({"a": slice(10, 9990)}).slice({"a": slice(0, 9900)})["a", i] = 1.0
        return axn.freeze(ref)

    def by_hand(x: jax.Array, i: Any) -> jax.Array:
        ref = jax.new_ref(x)
        ref[10 + i] = 1.0
        return jax.freeze(ref)

    mine, theirs = (jax.jit(fn).lower(x, 3).compile() for fn, x in ((write, x), (by_hand, x.array)))
    # Of the 40 kB of a view nothing is read.
    assert flops_bytes(mine).bytes < flops_bytes(theirs).bytes + 1000
    assert np.flatnonzero(write(x, jnp.int32(3)).array).tolist() == [13]


@jax.jit
def fill(view: axn.NamedRef, i: Any) -> axn.NamedArray:
    view["pos", i] = -1.0
    return view.value()


def test_a_view_is_an_argument_of_jit() -> None:
    ref = axn.new_ref(X)
    view = ref.slice({"batch": jnp.int32(1), "pos": slice(2, 6)}).slice({"pos": axn.dslice(jnp.int32(1), 2)})
    assert fill(view, 0).tolist() == [-1, 10]
    assert fill(ref.slice({"batch": 3}), 5).tolist() == [18, 19, 20, 21, 22, -1]
    assert fill(ref.slice({"batch": 0, "pos": [4, 2]}), 1).tolist() == [4, -1]
    assert ref[...].tolist() == X.at["batch", [1, 3, 0], "pos", axn.named([3, 5, 2], "batch")].set(-1.0).tolist()


def test_a_reference_is_an_argument_of_named_jit_like_an_array() -> None:
    traces = 0

    def add(ref: axn.NamedRef, x: axn.NamedArray) -> axn.NamedArray:
        nonlocal traces
        traces += 1
        ref["batch", 0] = ref["batch", 0] + x["batch", 1]
        return ref["batch", 0]

    jitted = axn.named_jit(add, donate_args=(False, False))
    seen = []
    for start in range(3):
        ref = axn.new_ref(X + start)
        seen.append(weakref.ref(ref.whole.array))
        expected = np.asarray(X)[0] + start + np.asarray(X)[1]
        np.testing.assert_array_equal(jitted(ref, X).array, expected)
        np.testing.assert_array_equal(ref["batch", 0].array, expected)
    assert traces == 1
    del ref
    gc.collect()
    assert [kept() for kept in seen] == [None] * 3

    ref = axn.new_ref(X)
    jax.jit(lambda ref, x: axn.named_jit(add)(ref, x))(ref, X)
    np.testing.assert_array_equal(ref["batch", 0].array, np.asarray(X)[0] + np.asarray(X)[1])
    with pytest.raises(ValueError, match=r"cannot be returned\.\n\n.* passed in as the argument ref\."):
        axn.named_jit(lambda ref: ref)(ref.whole.array)


def test_a_scan_writes_to_a_reference_that_it_closes_over() -> None:
    def running(x: axn.NamedArray) -> axn.NamedArray:
        ref = axn.new_ref(axn.zeros_like(x))

        def step(total: axn.NamedArray, i: Any) -> tuple[axn.NamedArray, None]:
            total = total + x["pos", i]
            ref["pos", i] = total
            return total, None

        lax.scan(step, axn.zeros(axn.Axis("batch", 4)), jnp.arange(6))
        return axn.freeze(ref)

    expected = np.cumsum(X.array, 1)
    np.testing.assert_array_equal(running(X).array, expected)
    np.testing.assert_array_equal(jax.jit(running)(X).array, expected)
    np.testing.assert_array_equal(axn.vmap(running_of_one, "batch")(X).array, expected)
    gradient = jax.jit(jax.grad(lambda x: running(x).sum().scalar()))(X)
    np.testing.assert_array_equal(gradient.array, np.broadcast_to(np.arange(6, 0, -1), (4, 6)))


def running_of_one(x: axn.NamedArray) -> axn.NamedArray:
    ref = axn.new_ref(x)

    def step(previous: axn.NamedArray, here: axn.NamedArray) -> tuple[axn.NamedArray, axn.NamedArray]:
        ref["pos", here] += previous
        return ref["pos", here], here

    axn.scan(step, "pos")(axn.named(jnp.float32(0), ()), axn.arange(axn.Axis("pos", 6)))
    return axn.freeze(ref)


def test_works_on_explicit_axes(explicit_mesh: Mesh) -> None:
    with jax.set_mesh(explicit_mesh):
        ref = axn.new_ref(placed(X, explicit_mesh, {"batch": "data", "pos": "model"}))
        ref["batch", 1, "pos", 1:3] = 5.0
        ref["pos", axn.named([0, 5], "i")] = axn.named([1.0, 2.0], "i")
        ref.slice({"pos": slice(1, 5)})["pos", jnp.int32(2)] = 3.0
        ref.slice({"pos": axn.dslice(jnp.int32(-1), 4)})["pos", axn.dslice(0, 2)] = 4.0
        expected = X.at["batch", 1, "pos", 1:3].set(5.0).at["pos", [0, 5]].set(axn.named([1.0, 2.0], "pos"))
        expected = expected.at["pos", 3].set(3.0).at["pos", 0].set(4.0)
        assert jax.typeof(ref[...].array).sharding.spec == jax.sharding.PartitionSpec("data", "model")
        np.testing.assert_array_equal(np.asarray(ref[...].array), expected.array)


BAD: list[tuple[Any, type[Exception], str]] = [
    (
        lambda ref: ref["bach", 0],
        AxisNotFoundError,
        "ref: no axis named 'bach'\n  array has: batch=4, pos=6\n  hint: did you mean 'batch'?",
    ),
    (
        lambda ref: ref.slice({"batch": 0})["batch", 0],
        AxisNotFoundError,
        "ref: no axis named 'batch'\n  array has: pos=6",
    ),
    (
        lambda ref: ref.slice({"pos": slice(0, 2)})["pos", 2],
        AxisSizeError,
        "ref: index 2 is out of range for pos=2\n  array has: batch=4, pos=2",
    ),
    (
        lambda ref: ref.slice({"batch": [0, 4]}),
        AxisSizeError,
        "slice: index 4 is out of range for batch=4\n  array has: batch=4, pos=6",
    ),
    (
        lambda ref: ref.slice({"batch": axn.named([0, 1], "i")}),
        OperandError,
        "slice: a view keeps the axes of its array, but the index over 'batch' has other ones\n"
        "  index has: i=2\n  hint: use it in ref[...]",
    ),
    (
        lambda ref: ref.__setitem__({"batch": 0}, X),
        BroadcastError,
        "ref: the update has axis 'batch', which the indexed part lacks\n"
        "  update has: batch=4, pos=6\n  indexed part has: pos=6",
    ),
    (
        lambda ref: axn.swap(ref, {"batch": 0}, 1j),
        OperandError,
        "swap: an array of float32 cannot hold an update of complex64 without loss\n"
        "  hint: convert one of the two: update.astype(x.dtype)",
    ),
    (
        lambda ref: axn.get(X, {"batch": 0}),
        OperandError,
        "get: expected a NamedRef, got NamedArray\n  hint: make one: axn.new_ref(x)",
    ),
    (
        lambda ref: axn.new_ref(X.array),
        OperandError,
        'new_ref: expected a NamedArray, got a plain array\n  hint: name it first: axn.named(array, ("batch", ...))',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD, ids=[text.splitlines()[0] for _, _, text in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(axn.new_ref(X))
    assert str(caught.value) == text
