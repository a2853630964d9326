"""The engine: what a call of any operation does, once per names and shapes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import axonym as axn
from axonym.errors import AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import _lift
from tests.laws import SIZES, assert_close, primitives

NAMES = st.lists(st.sampled_from("abc"), unique=True).map(tuple)


@settings(max_examples=3)
@given(st.data(), NAMES)
def test_lined_up_puts_dimensions_where_the_target_has_them(data: st.DataObject, target: tuple[str, ...]) -> None:
    source = data.draw(st.permutations(target).flatmap(lambda p: st.integers(0, len(p)).map(lambda n: tuple(p[:n]))))
    array = jnp.arange(np.prod([SIZES[n] for n in source], initial=1)).reshape([SIZES[n] for n in source])
    lined = _lift.lined_up(array, source, target)
    if source:
        assert lined.shape == tuple(SIZES[n] if n in source else 1 for n in target)
    named = axn.NamedArray(array, source)
    full = named.broadcast_to([axn.Axis(n, SIZES[n]) for n in target])
    np.testing.assert_array_equal(np.broadcast_to(lined, full.array.shape), full.array)


def test_a_function_is_traced_once_per_shape() -> None:
    seen = []

    def double(x: jax.Array) -> jax.Array:
        seen.append(x.shape)
        return x + x

    def run(size: int) -> axn.NamedArray:
        return _lift.unary(double, axn.ones(axn.Axis("a", size)))

    assert [run(size).tolist() for size in (1, 2, 1, 2)] == [[2], [2, 2], [2], [2, 2]]
    assert seen == [(1,), (2,)]


def test_options_are_part_of_the_function() -> None:
    x = axn.named([1.234, 5.678], "a")
    rounded = [x.round(decimals=decimals).array for decimals in (0, 1, 0)]
    np.testing.assert_allclose(rounded, [[1, 6], [1.2, 5.7], [1, 6]], rtol=1e-6)
    assert x.astype(int).dtype != x.astype(bool).dtype


def test_options_that_are_equal_but_of_another_type_are_not_the_same() -> None:
    x = axn.arange(axn.Axis("a", 3))
    scale = lambda array, by: array * by  # noqa: E731
    assert [_lift.unary_with(scale, x, by=by).dtype for by in (1, 1.0, 1)] == [jnp.int32, jnp.float32, jnp.int32]


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, lambda zero: complex(1.0, zero)])
def test_zeros_of_both_signs_are_not_the_same(kind: Any) -> None:
    x = axn.zeros(axn.Axis("a", 2))
    sign = lambda array, of: jnp.copysign(array + 1, np.imag(of) if isinstance(of, complex) else of)  # noqa: E731
    found = [_lift.unary_with(sign, x, of=kind(zero)).tolist() for zero in (0.0, -0.0, 0.0)]
    assert found == [[1, 1], [-1, -1], [1, 1]]
    signs = [np.signbit(x.max(initial=zero, where=x > 0).array).item() for zero in (0.0, -0.0)]
    assert signs == [False, True]


def test_an_array_is_no_option() -> None:
    x = axn.ones(axn.Axis("a", 3))
    for call in (lambda: x.std(ddof=jnp.int32(1)), lambda: jax.jit(lambda d: x.std(ddof=d))(1)):
        with pytest.raises(OperandError, match=r"^std: ddof must be a static Python value, not "):
            call()


def test_a_kernel_under_a_trace_is_inlined() -> None:
    x = axn.ones(axn.Axis("a", 2))
    assert primitives(lambda x: axn.exp(x) + x, x) == ["exp", "add"]
    assert primitives(jax.jit(lambda x: axn.exp(x) + x), x) == ["jit", "exp", "add"]


def test_a_python_number_stays_weak_in_and_out_of_a_trace() -> None:
    x = axn.ones(axn.Axis("a", 2), jnp.bfloat16)
    for run in (lambda f: f, jax.jit):
        assert run(lambda x: x * 2.0 + 1)(x).dtype == jnp.bfloat16
        assert run(lambda x: axn.where(x > 0, x, 0.0))(x).dtype == jnp.bfloat16
        assert run(lambda x: x.clip(0.5, 1.0))(x).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("fn", "name"),
    [(jnp.exp, "exp"), (jnp.add, "add"), (partial(jnp.sum, axis=0), "sum"), (partial(partial(jnp.sum)), "sum")],
)
def test_an_error_speaks_of_the_function(fn: Any, name: str) -> None:
    assert _lift.title(fn) == name


def test_sizes_are_checked_where_both_have_the_name() -> None:
    names = (("a", "b"), (), ("b",))
    assert _lift.check_sizes("f", names, (jnp.ones((2, 3)), 1.0, jnp.ones((7, 3)))) == {"a": 2, "b": 3}
    with pytest.raises(AxisSizeError) as caught:
        _lift.check_sizes("f", names, (jnp.ones((5, 2, 3)), 1.0, jnp.ones(4)))
    assert str(caught.value) == (
        "f: axis 'b' has two sizes: 3 and 4\n"
        "  operand 1 has: anonymous (5,), a=2, b=3\n"
        "  operand 2 has: no axes\n"
        "  operand 3 has: b=4\n"
        "  hint: rename one of the two 'b' axes"
    )


def test_anonymous_dimensions_of_operands_broadcast_as_in_jnp() -> None:
    x, y = axn.ones((axn.Axis("z", 2), axn.Axis("a", 3))).untag("z"), axn.arange(axn.Axis("a", 3))
    assert (x + y).array.shape == (y + x).array.shape == (2, 3)
    assert (x + y).names == ("a",)
    assert_close((x * 2.0).array, 2 * x.array)


def test_two_different_errors_do_not_share_a_cache() -> None:
    x = axn.ones(axn.Axis("a", 2))
    for _ in range(2):
        with pytest.raises(AxisNotFoundError, match="no axis named 'b'"):
            x.sum("b")
        with pytest.raises(AxisNotFoundError, match="no axis named 'c'"):
            x.sum("c")
    assert x.sum("a").item() == 2


def test_an_axis_and_its_name_are_the_same_selection() -> None:
    x = axn.ones((axn.Axis("a", 2), axn.Axis("b", 3)))
    for axis in ("a", axn.Axis("a", 2), ["a"], ("a",), {"a": 2}, {"a": None}):
        assert x.sum(axis).axes == (axn.Axis("b", 3),)
        assert axn.softmax(x, axis).names == ("a", "b")
    for function in (x.sum, x.cumsum, x.argmax):
        with pytest.raises(OperandError, match=r"2\.5 is neither an Axis nor the name of one"):
            function(2.5)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda x, y: x.at["a", 1].set(y), id="update"),
        pytest.param(lambda x, y: x.at["a", axn.named(jnp.array([3, 1, 3, 0]), "b")].add(y), id="scatter"),
        pytest.param(lambda x, y: axn.insert(x, 2, y, "a"), id="insert"),
    ],
)
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda y: y, id="itself"),
        pytest.param(lambda y: axn.named(y.array, "b"), id="named"),
        pytest.param(lambda y: axn.flip(-y, "b"), id="computed"),
    ],
)
def test_eager_gradients_of_what_was_made_before_an_explicit_mesh_lie_on_it(
    explicit_mesh: jax.sharding.Mesh, value: Any, made: Any
) -> None:
    x, y = axn.named(jnp.arange(-16.0, 16).reshape(8, 4), ("a", "b")), axn.named(jnp.arange(4.0), "b")
    gradient = jax.grad(lambda y, x: (value(x, made(y)) ** 2).sum().scalar())
    expected = gradient(y, x)
    with axn.set_mesh(explicit_mesh), axn.axis_mapping({"a": "data", "b": "model"}):
        found = gradient(y, axn.shard(x))
        assert jax.typeof(found.array).sharding.mesh == jax.typeof(axn.shard(x).array).sharding.mesh
        assert_close(y - 0.5 * found, y - 0.5 * expected)


@pytest.mark.parametrize("number", [True, 2, 0.5])
def test_python_numbers_are_written_on_an_explicit_mesh_under_jit(
    explicit_mesh: jax.sharding.Mesh, number: float
) -> None:
    x, at = jnp.zeros((8, 4), type(number)), jnp.array([3, 1, 3, 0])
    with axn.set_mesh(explicit_mesh), axn.axis_mapping({"a": "data"}):
        found = jax.jit(lambda x: x.at["a", axn.named(at, "i")].set(number))(axn.shard(axn.named(x, ("a", "b"))))
    np.testing.assert_array_equal(found.array, x.at[at].set(number))
