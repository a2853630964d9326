"""Arrays from axes: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import axonym as axn
from axonym import create, samples
from axonym.errors import AxisClashError, AxisError, AxisSizeError, BroadcastError, OperandError
from tests.laws import assert_close
from tests.sample import in_ninth
from tests.together import Job, together

A, B = axn.make_axes(a=4, b=2)
# The function, a call of it, and the same in jax.numpy.
ROWS: list[tuple[str, Any, Any]] = [
    ("zeros", lambda: axn.zeros((A, B)), lambda: jnp.zeros((4, 2))),
    ("zeros", lambda: axn.zeros((A, B), jnp.int8), lambda: jnp.zeros((4, 2), jnp.int8)),
    ("ones", lambda: axn.ones({"a": 4, "b": 2}), lambda: jnp.ones((4, 2))),
    ("ones", lambda: axn.ones((), bool), lambda: jnp.ones((), bool)),
    ("full", lambda: axn.full((A, B), 7), lambda: jnp.full((4, 2), 7)),
    ("full", lambda: axn.full(A, 7, jnp.bfloat16), lambda: jnp.full(4, 7, jnp.bfloat16)),
    ("full", lambda: axn.full(A.resize(0), jnp.inf), lambda: jnp.full(0, jnp.inf)),
    ("full_like", lambda: axn.full_like(axn.ones((A, B)), 3), lambda: jnp.full_like(jnp.ones((4, 2)), 3)),
    ("full_like", lambda: axn.full_like(axn.ones(A), 3, int), lambda: jnp.full(4, 3, "int32")),
    ("zeros_like", lambda: axn.zeros_like(axn.ones((A, B), jnp.int8)), lambda: jnp.zeros((4, 2), jnp.int8)),
    ("ones_like", lambda: axn.ones_like(axn.zeros(A), jnp.int8), lambda: jnp.ones(4, jnp.int8)),
    ("arange", lambda: axn.arange(A), lambda: jnp.arange(4)),
    ("arange", lambda: axn.arange(A, start=2), lambda: jnp.arange(2, 6)),
    ("arange", lambda: axn.arange(A, start=1, step=-3), lambda: jnp.arange(1, -11, -3)),
    ("arange", lambda: axn.arange(A, start=0.5, step=0.25), lambda: jnp.arange(0.5, 1.5, 0.25)),
    ("arange", lambda: axn.arange(A, dtype=jnp.bfloat16), lambda: jnp.arange(4, dtype=jnp.bfloat16)),
    ("arange", lambda: axn.arange((A, B)), lambda: jnp.arange(8).reshape(4, 2)),
    ("arange", lambda: axn.arange((A, B), start=1, step=2), lambda: jnp.arange(1, 17, 2).reshape(4, 2)),
    ("bartlett", lambda: axn.bartlett(A), lambda: jnp.bartlett(4)),
    ("blackman", lambda: axn.blackman(A), lambda: jnp.blackman(4)),
    ("hamming", lambda: axn.hamming(A), lambda: jnp.hamming(4)),
    ("hanning", lambda: axn.hanning(A), lambda: jnp.hanning(4)),
    ("hanning", lambda: axn.hanning(A.resize(0)), lambda: jnp.hanning(0)),
    ("hanning", lambda: axn.hanning({"c": 1}), lambda: jnp.hanning(1)),
    ("kaiser", lambda: axn.kaiser(A, 2.5), lambda: jnp.kaiser(4, 2.5)),
    ("eye", lambda: axn.eye(A, "c"), lambda: jnp.eye(4)),
    ("eye", lambda: axn.eye(A, B, k=-1, dtype=bool), lambda: jnp.eye(4, 2, -1, bool)),
    ("eye", lambda: axn.eye(axn.Axis("c", 3), B.resize(0)), lambda: jnp.eye(3, 0)),
    ("tri", lambda: axn.tri(A, "c"), lambda: jnp.tri(4)),
    ("tri", lambda: axn.tri(B, A, k=1, dtype=jnp.int8), lambda: jnp.tri(2, 4, 1, jnp.int8)),
    (
        "fromfunction",
        lambda: axn.fromfunction(lambda a, b: 2 * a - b, (A, B)),
        lambda: jnp.fromfunction(lambda a, b: 2 * a - b, (4, 2), dtype=int),
    ),
    (
        "fromfunction",
        lambda: axn.fromfunction(lambda a, b: b.max("a"), (A, B), jnp.bfloat16),
        lambda: jnp.tile(jnp.arange(2, dtype=jnp.bfloat16), (4, 1)),
    ),
    ("fromfunction", lambda: axn.fromfunction(lambda a, b: 3.0, (A, B)), lambda: jnp.full((4, 2), 3.0)),
    ("fftfreq", lambda: axn.fftfreq(A), lambda: jnp.fft.fftfreq(4)),
    (
        "fftfreq",
        lambda: axn.fftfreq(axn.Axis("c", 5), 0.5, dtype=jnp.bfloat16),
        lambda: jnp.fft.fftfreq(5, 0.5, dtype=jnp.bfloat16),
    ),
    ("rfftfreq", lambda: axn.rfftfreq(axn.Axis("c", 5)), lambda: jnp.fft.rfftfreq(5)),
    ("rfftfreq", lambda: axn.rfftfreq(axn.Axis("a", 6), 0.5), lambda: jnp.fft.rfftfreq(6, 0.5)),
    ("linspace", lambda: axn.linspace(A, start=0, stop=1), lambda: jnp.linspace(0, 1, 4)),
    ("linspace", lambda: axn.linspace("c", start=0, stop=1), lambda: jnp.linspace(0, 1)),
    (
        "linspace",
        lambda: axn.linspace(A, start=1.0, stop=-3, endpoint=False, dtype=jnp.bfloat16),
        lambda: jnp.linspace(1.0, -3, 4, False, dtype=jnp.bfloat16),
    ),
    ("linspace", lambda: axn.linspace(A.resize(0), start=0, stop=1), lambda: jnp.linspace(0, 1, 0)),
    (
        "linspace",
        lambda: axn.linspace(A, start=axn.named([[0.0, 1], [2, 3], [4, 5]], ("c", "b")), stop=axn.named([3, 8], B)),
        lambda: jnp.linspace(jnp.array([[0.0, 1], [2, 3], [4, 5]]), jnp.array([3, 8]), 4, axis=-1),
    ),
    ("logspace", lambda: axn.logspace(A, start=0, stop=3), lambda: jnp.logspace(0, 3, 4)),
    (
        "logspace",
        lambda: axn.logspace(A, start=0, stop=3, base=2, endpoint=False, dtype=jnp.bfloat16),
        lambda: jnp.logspace(0, 3, 4, False, 2, jnp.bfloat16),
    ),
    (
        "logspace",
        lambda: axn.logspace(A, start=axn.named([0.0, 1], B), stop=3, base=axn.named([2.0, 3], B)),
        lambda: jnp.stack([jnp.logspace(0, 3, 4, base=2.0), jnp.logspace(1, 3, 4, base=3.0)]),
    ),
    ("geomspace", lambda: axn.geomspace(A, start=1, stop=8), lambda: jnp.geomspace(1, 8, 4)),
    (
        "geomspace",
        lambda: axn.geomspace(A, start=axn.named([1.0, 2], B), stop=81.0, endpoint=False),
        lambda: jnp.geomspace(jnp.array([1.0, 2]), 81.0, 4, False, axis=-1),
    ),
    (
        "one_hot",
        lambda: axn.one_hot(axn.named([1, 0, 5, -1], A), B),
        lambda: jax.nn.one_hot(jnp.array([1, 0, 5, -1]), 2),
    ),
    (
        "one_hot",
        lambda: axn.one_hot(axn.named(1, ()), A, dtype=jnp.int8),
        lambda: jax.nn.one_hot(1, 4, dtype=jnp.int8),
    ),
    (
        "one_hot",
        lambda: axn.one_hot(2, A),
        lambda: jax.nn.one_hot(2, 4),
    ),
    (
        "one_hot",
        lambda: axn.one_hot(jnp.array(3), A),
        lambda: jax.nn.one_hot(3, 4),
    ),
]
IDS = [f"{name}-{i}" for i, (name, *_) in enumerate(ROWS)]


def test_every_function_has_a_row() -> None:
    assert {name for name, *_ in ROWS} == {*create.__all__, *samples.__all__}


# These compute what they are made of, which compilers may do in another order; all others are exact.
COMPUTED = {
    "bartlett",
    "blackman",
    "fftfreq",
    "geomspace",
    "hamming",
    "hanning",
    "kaiser",
    "linspace",
    "logspace",
    "rfftfreq",
}


def same(name: str, got: Any, expected: Any) -> None:
    (assert_close if name in COMPUTED else np.testing.assert_array_equal)(np.asarray(got), np.asarray(expected))


def in_a_program(row: tuple[str, Any, Any], kind: str = "no mesh") -> Job:
    """Give a row to `together`, which keeps what is made on each kind of mesh apart."""
    return row[1], ()


def in_jnp(row: tuple[str, Any, Any]) -> Job:
    return row[2], ()


@pytest.mark.parametrize("row", ROWS, ids=IDS)
class TestLaws:
    def test_equals_jnp(self, row: tuple[str, Any, Any]) -> None:
        name, call, _ = row
        results, expected = [together(in_a_program, ROWS, row)], together(in_jnp, ROWS, row)
        if in_ninth(ROWS.index(row)):
            results.append(call())
        for result in results:
            assert isinstance(result, axn.NamedArray)
            assert len(result.names) == result.ndim
            assert (result.dtype, result.array.weak_type) == (expected.dtype, expected.weak_type)
            same(name, result.array, expected)

    @pytest.mark.parametrize("kind", ["auto", "explicit"])
    def test_is_the_same_on_a_mesh(self, row: tuple[str, Any, Any], kind: str, request: pytest.FixtureRequest) -> None:
        (name, call, _), expected = row, together(in_jnp, ROWS, row)  # without a mesh: once for all tests
        calls = [lambda: together(in_a_program, ROWS, row, kind)]
        if in_ninth(ROWS.index(row)):
            calls.append(call)
        with (
            jax.set_mesh(request.getfixturevalue(f"{kind}_mesh")),
            axn.axis_mapping({"a": "data", "b": "model"}),
        ):
            for each in calls:
                same(name, each().array, expected)


def test_names_come_in_the_order_of_the_axes() -> None:
    assert axn.ones((B, A)).axes == (B, A)
    assert axn.one_hot(axn.named([0, 1], B), A).names == ("b", "a")
    assert axn.one_hot(axn.arange(B).untag("b"), A).array.shape == (2, 4)


def test_numbers_agree_with_numpy() -> None:
    for named, expected in (
        (axn.linspace(A, start=-1, stop=2, endpoint=False), np.linspace(-1, 2, 4, endpoint=False)),
        (axn.logspace(A, start=-1, stop=2), np.logspace(-1, 2, 4)),
        (axn.geomspace(A, start=0.5, stop=8), np.geomspace(0.5, 8, 4)),
        (axn.hanning(A), np.hanning(4)),
        (axn.hamming(A), np.hamming(4)),
        (axn.blackman(A), np.blackman(4)),
        (axn.bartlett(A), np.bartlett(4)),
        (axn.kaiser(A, 2.5), np.kaiser(4, 2.5)),
        (axn.eye(A, B, k=-1), np.eye(4, 2, -1)),
        (axn.tri(A, B, k=-1), np.tri(4, 2, -1)),
    ):
        np.testing.assert_allclose(named.array, expected, rtol=1e-5, atol=1e-6)


def test_class_numbers_may_be_narrower_than_the_classes() -> None:
    Many = axn.Axis("class", 300)
    for numbers in (np.uint8([0, 44, 255]), np.int8([0, 44, 127])):
        hot = axn.one_hot(axn.named(numbers, "x"), Many)
        np.testing.assert_array_equal(hot.array, np.eye(300)[numbers])


def test_unsigned_integers_count_down() -> None:
    assert axn.arange(axn.Axis("a", 3), start=3, step=-1, dtype="uint8").tolist() == [3, 2, 1]


def test_names_of_the_result() -> None:
    start = axn.zeros((axn.Axis("c", 3), B))
    assert axn.linspace(A, start=axn.zeros(B), stop=start).names == ("c", "b", "a")
    assert axn.eye(B, "q").axes == (B, axn.Axis("q", 2))
    assert axn.tri(B, A).axes == (B, A)
    assert axn.fromfunction(lambda a, b: b.rearrange(("a", ...)), (B, A)).axes == (B, A)
    assert axn.hanning(A).axes == (A,)


def test_ends_and_beta_may_be_traced_and_have_gradients() -> None:
    def mean(start: Any, stop: Any, beta: Any) -> jax.Array:
        return (axn.linspace(A, start=start, stop=stop) * axn.kaiser(A, beta)).sum().scalar()

    value, gradient = jax.jit(jax.value_and_grad(mean))(0.0, 3.0, 2.0)
    window = np.kaiser(4, 2.0)
    np.testing.assert_allclose(value, (np.arange(4) * window).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, (np.linspace(1, 0, 4) * window).sum(), rtol=1e-5)


def test_start_and_step_may_be_traced() -> None:
    result = jax.jit(lambda start, step: axn.arange(A, start=start, step=step))(1, 2)
    assert result.tolist() == [1, 3, 5, 7]


def test_with_explicit_axes_arrays_are_laid_out_from_the_start(explicit_mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(explicit_mesh), axn.axis_mapping({"a": "data", "b": "model"}):
        for made in (
            axn.zeros((A, B)),
            axn.full((A, B), 2),
            axn.arange((A, B)),
            axn.eye(A, B),
            axn.tri(A, B),
            axn.fromfunction(lambda a, b: a > b, (A, B)),
            axn.linspace(B, start=axn.zeros(A), stop=1),
            jax.jit(lambda: axn.ones((A, B)))(),
        ):
            assert jax.typeof(made.array).sharding.spec == PartitionSpec("data", "model")
            assert jax.typeof(axn.zeros_like(made).array).sharding.spec == PartitionSpec("data", "model")


def test_numbers_between_sharded_ends_are_sharded(explicit_mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(explicit_mesh):
        start = axn.NamedArray(jax.device_put(jnp.arange(4.0), PartitionSpec("data")), "a")
        made = jax.jit(lambda start: axn.linspace(axn.Axis("c", 3), start=start, stop=4))(start)
        assert jax.typeof(made.array).sharding.spec == PartitionSpec("data", None)
        np.testing.assert_array_equal(made.array, np.linspace(np.arange(4.0), 4, 3, axis=-1))


@pytest.mark.parametrize(("value", "kind"), [(np.ones(4), "a plain array"), (axn.ones(A), "NamedArray")])
def test_a_fill_value_is_a_scalar(value: Any, kind: str) -> None:
    for function, call in (
        ("full", lambda: axn.full(A, value)),
        ("full_like", lambda: axn.full_like(axn.ones(A), value)),
    ):
        with pytest.raises(OperandError) as caught:
            call()
        assert str(caught.value) == (
            f"{function}: the fill value must be a scalar, not {kind}\n"
            "  hint: repeat an array along new axes: x.broadcast_axis(...)"
        )


INPUT = A

BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "axn.zeros('a')",
        lambda A: axn.zeros("a"),
        OperandError,
        "zeros: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    ("axn.ones((A, A))", lambda A: axn.ones((A, A)), AxisClashError, "ones: axis 'a' is given twice\n  axes: a, a"),
    (
        "axn.full((A, 3), 1)",
        lambda A: axn.full((A, 3), 1),
        OperandError,
        'full: 3 is a size without a name\n  hint: name it: Axis("name", 3), or {"name": 3}',
    ),
    (
        "axn.zeros({'a': -1})",
        lambda A: axn.zeros({"a": -1}),
        AxisSizeError,
        "Axis: the size of 'a' must not be negative, got -1",
    ),
    (
        "axn.zeros({'a': 2.5})",
        lambda A: axn.zeros({"a": 2.5}),
        OperandError,
        "Axis: the size of 'a' must be an int, not 2.5",
    ),
    (
        "axn.arange('a')",
        lambda A: axn.arange("a"),
        OperandError,
        "arange: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        "axn.one_hot(axn.arange(A), A)",
        lambda A: axn.one_hot(axn.arange(A), A),
        AxisClashError,
        "one_hot: the array already has axis 'a'\n  array has: a=4",
    ),
    (
        "axn.one_hot(axn.arange(A), 'c')",
        lambda A: axn.one_hot(axn.arange(A), "c"),
        OperandError,
        "one_hot: axis 'c' needs a size here\n  hint: write Axis(\"c\", size)",
    ),
    (
        "axn.one_hot([3], axn.Axis('c', 4))",
        lambda A: axn.one_hot([3], axn.Axis("c", 4)),
        OperandError,
        "one_hot: expected a NamedArray, got list\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.one_hot(axn.linspace(A, start=0, stop=1), axn.Axis('c', 4))",
        lambda A: axn.one_hot(axn.linspace(A, start=0, stop=1), axn.Axis("c", 4)),
        OperandError,
        "one_hot: the array of classes must have an integer dtype, not float32",
    ),
    (
        "axn.one_hot(3.0, axn.Axis('c', 4))",
        lambda A: axn.one_hot(3.0, axn.Axis("c", 4)),
        OperandError,
        "one_hot: the array of classes must have an integer dtype, not float32",
    ),
    (
        "axn.one_hot(axn.arange(A) > 1, axn.Axis('c', 4))",
        lambda A: axn.one_hot(axn.arange(A) > 1, axn.Axis("c", 4)),
        OperandError,
        'one_hot: the array of classes must have an integer dtype, not bool\n  hint: write x.astype("int32")',
    ),
    (
        "axn.zeros(A, B)",
        lambda A: axn.zeros(A, B),
        OperandError,
        "zeros: several axes go in a tuple, as one argument\n  axes: a=4, b=2",
    ),
    (
        "axn.full(A, B, 1.0)",
        lambda A: axn.full(A, B, 1.0),
        OperandError,
        "full: several axes go in a tuple, as one argument\n  axes: a=4, b=2",
    ),
    (
        "axn.zeros_like(np.ones(3))",
        lambda A: axn.zeros_like(np.ones(3)),
        OperandError,
        "zeros_like: expected a NamedArray, got a plain array\n"
        "  its shape: (3,)\n"
        '  hint: name its dimensions first: axn.named(array, "batch")',
    ),
    (
        "axn.full_like(3, 1)",
        lambda A: axn.full_like(3, 1),
        OperandError,
        "full_like: expected a NamedArray, got int\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.linspace((A, 'b'), start=0, stop=1)",
        lambda A: axn.linspace((A, "b"), start=0, stop=1),
        OperandError,
        "linspace: expected one axis, got 2: a, b",
    ),
    (
        "axn.linspace(A, start=np.zeros(3), stop=1)",
        lambda A: axn.linspace(A, start=np.zeros(3), stop=1),
        OperandError,
        "linspace: a plain array has no names\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
    (
        "axn.linspace(A, start=0, stop=np.ones(3))",
        lambda A: axn.linspace(A, start=0, stop=np.ones(3)),
        OperandError,
        "linspace: a plain array of shape (3,) does not match axes: none\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
    (
        "axn.logspace(A, start='0', stop=1)",
        lambda A: axn.logspace(A, start="0", stop=1),
        OperandError,
        "logspace: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        "axn.geomspace(A, start=axn.ones(A), stop=1)",
        lambda A: axn.geomspace(A, start=axn.ones(A), stop=1),
        AxisClashError,
        "geomspace: in the result, axis 'a' would appear twice\n  array has: a=4",
    ),
    (
        "axn.linspace('x', start=axn.ones(A), stop=axn.ones(B))",
        lambda A: axn.linspace("x", start=axn.ones(A), stop=axn.ones(B)),
        BroadcastError,
        "linspace: no operand has the axes of all others\n"
        "  operand 1 has: a=4\n"
        "  operand 2 has: b=2\n"
        "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(b)",
    ),
    (
        "axn.eye('a', A)",
        lambda A: axn.eye("a", A),
        OperandError,
        "eye: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    ("axn.tri(A, 'a')", lambda A: axn.tri(A, "a"), AxisClashError, "tri: axis 'a' is given twice\n  axes: a, a"),
    ("axn.eye((A, B), 'c')", lambda A: axn.eye((A, B), "c"), OperandError, "eye: expected one axis, got 2: a, b"),
    (
        "axn.hanning('a')",
        lambda A: axn.hanning("a"),
        OperandError,
        "hanning: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        "axn.kaiser((A, B), 2)",
        lambda A: axn.kaiser((A, B), 2),
        OperandError,
        "kaiser: expected one axis, got 2: a, b",
    ),
    (
        "axn.kaiser(A, axn.ones(B))",
        lambda A: axn.kaiser(A, axn.ones(B)),
        OperandError,
        "kaiser: beta must be a scalar, not NamedArray",
    ),
    (
        "axn.fromfunction(lambda a: a, 'a')",
        lambda A: axn.fromfunction(lambda a: a, "a"),
        OperandError,
        "fromfunction: axis 'a' needs a size here\n  hint: write Axis(\"a\", size)",
    ),
    (
        "axn.fromfunction(lambda a: a.rename({'a': 'c'}), A)",
        lambda A: axn.fromfunction(lambda a: a.rename({"a": "c"}), A),
        AxisError,
        "fromfunction: the function returned axes c=4\n  asked for: a=4",
    ),
    (
        "axn.fromfunction(lambda a: a['a', :2], A)",
        lambda A: axn.fromfunction(lambda a: a["a", :2], A),
        AxisError,
        "fromfunction: the function returned axes a=2\n  asked for: a=4",
    ),
    (
        "axn.fromfunction(lambda a: a.array, A)",
        lambda A: axn.fromfunction(lambda a: a.array, A),
        OperandError,
        "fromfunction: the function returned an array without names",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text
