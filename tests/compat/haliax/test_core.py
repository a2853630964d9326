"""`NamedArray` as a class: what it is made of, its methods and operators, and its annotations."""

import axonym.compat.haliax  # isort: skip

import copy
import dataclasses
import inspect
import pickle
from typing import Any
from unittest import mock

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equinox.internal import ω
from haliax import Axis, NamedArray

import axonym
import axonym.compat.haliax  # makes `haliax` resolve

A, B, C = hax.make_axes(a=2, b=3, c=4)
VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7
X = hax.named(VALUES, (A, B, C))
COUNTS = hax.named(np.arange(6).reshape(2, 3) + 1, (A, B))


def check(found: Any, axes: Any, values: Any) -> None:
    assert type(found) is NamedArray
    assert hax.axis_name(found.axes) == tuple(axes)
    np.testing.assert_allclose(np.asarray(found.array), values, rtol=1e-5)
    assert found.dtype == jnp.asarray(values).dtype


# making one
@pytest.mark.parametrize("axes", [(A, B), [A, B], {"a": 2, "b": 3}])
def test_the_constructor_takes_axes_with_sizes(axes: Any) -> None:
    array = jnp.ones((2, 3))
    x = NamedArray(array, axes)
    assert x.array is array
    assert x.axes == (A, B)
    assert NamedArray(array=jnp.ones(2), axes=A).axes == (A,)  # type: ignore[arg-type]  # Haliax takes it
    assert NamedArray(jnp.array(1), ()).axes == ()


def test_the_constructor_refuses() -> None:
    for axes in ("a", ("a", "b"), (A, "b"), {"a": 2, "b": None}, 3, None):
        with pytest.raises(TypeError, match=r"^NamedArray"):
            NamedArray(jnp.ones((2, 3)), axes)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValueError, match="Axes must be unique"):
        NamedArray(jnp.ones((2, 2)), (A, A))
    for axes in ((A,), (A, C), (B, A), (A, B, C)):
        with pytest.raises(ValueError, match="Shape of underlying array"):
            NamedArray(jnp.ones((2, 3)), axes)


def test_the_payload_is_kept_as_it_is() -> None:
    struct = NamedArray(jax.ShapeDtypeStruct((2,), jnp.float32), (A,))  # type: ignore[arg-type]  # Haliax takes it
    assert struct.axes == (A,)
    assert struct.dtype == jnp.float32
    assert NamedArray([1, 2], (A,)).axes == (A,)  # type: ignore[arg-type]  # as above
    assert NamedArray(3, ()).axes == ()  # type: ignore[arg-type]  # as above
    assert NamedArray(None, (A,)).array is None  # type: ignore[arg-type]  # as above


def test_shape_checks_can_be_switched_off_and_on() -> None:
    assert hax.are_shape_checks_enabled()
    with hax.enable_shape_checks(False) as before:
        assert before
        assert not hax.are_shape_checks_enabled()
        assert NamedArray(jnp.ones(5), (A,)).array.shape == (5,)
        with hax.enable_shape_checks(True) as inner:
            assert not inner
            assert hax.are_shape_checks_enabled()
    assert hax.are_shape_checks_enabled()


@pytest.mark.parametrize(
    ("values", "axis", "axes"),
    [
        (np.ones((2, 3)), (A, B), (A, B)),
        ([[1, 2, 3], [4, 5, 6]], ("a", B), (A, B)),
        ([1, 2], "a", (A,)),
        ([1, 2], A, (A,)),
        (3.0, (), ()),
        (jnp.ones((2, 3)), {"a": None, "b": 3}, (A, B)),
        ([1, 2], "two words", (Axis("two words", 2),)),
    ],
)
def test_named(values: Any, axis: Any, axes: Any) -> None:
    found = hax.named(values, axis)
    assert type(found) is NamedArray
    assert found.axes == axes
    np.testing.assert_array_equal(found.array, values)


def test_named_refuses() -> None:
    for axis in ((B, A), ("a",), (A, B, C), (A, A)):
        with pytest.raises(ValueError, match=r"Shape mismatch|must be unique"):
            hax.named(np.ones((2, 3)), axis)
    assert hax.core.check_shape((2, 3), ("a", B)) == (A, B)
    with pytest.raises(ValueError, match="Shape mismatch"):
        hax.core.check_shape((2, 3), (A, C))


# what it is
def test_properties() -> None:
    assert X.shape == {"a": 2, "b": 3, "c": 4}
    assert (X.ndim, X.size, X.nbytes, X.dtype) == (3, 24, 96, jnp.float32)
    wave = hax.named(VALUES[0] * (1 + 2j), (B, C))
    check(wave.real, "bc", VALUES[0])
    check(wave.imag, "bc", 2 * VALUES[0])
    assert isinstance(X, axonym.NamedArray)
    assert hax.util.is_named_array(X)


def test_it_counts_as_a_dataclass() -> None:
    assert dataclasses.is_dataclass(X)
    assert [field.name for field in dataclasses.fields(NamedArray)] == ["array", "axes"]
    check(dataclasses.replace(X, array=X.array + 1), "abc", VALUES + 1)
    check(dataclasses.replace(X, axes=(A, B, Axis("z", 4))), "abz", VALUES)
    with pytest.raises(ValueError, match="Shape of underlying array"):
        dataclasses.replace(X, array=jnp.ones(3))
    for name in ("array", "axes"):
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign"):
            setattr(X, name, 1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(X)


def test_copies_and_pickles() -> None:
    for other in (copy.copy(X), copy.deepcopy(X), pickle.loads(pickle.dumps(X))):
        check(other, "abc", VALUES)


def test_printing() -> None:
    assert "a=2" in repr(X)
    assert str(X) == repr(X)
    assert "a=2" in eqx.tree_pformat({"x": X})
    assert repr(NamedArray(None, (A,)))  # type: ignore[arg-type]  # Haliax takes it


# looking up axes
def test_looking_up_axes() -> None:
    assert X.resolve_axis("b") == B
    assert X.resolve_axis(("c", A)) == (C, A)
    assert X.resolve_axis({"c": None}) == {"c": 4}
    assert X.axis_size("b") == 3
    assert X.axis_size((C, "a")) == (4, 2)
    assert X.axis_indices("b") == X._lookup_indices(B) == 1
    assert X.axis_indices("z") is None
    assert X.axis_indices(("c", "z", A)) == (2, None, 0)
    assert X.has_axis("a")
    assert not X.has_axis("z")
    assert X.has_axis(("a", C))
    assert not X.has_axis(("a", "z"))


@pytest.mark.parametrize("method", ["resolve_axis", "axis_size", "axis_indices", "has_axis"])
def test_an_axis_of_another_size_is_a_runtime_error(method: str) -> None:
    for axis in (Axis("a", 9), ("b", Axis("a", 9))):
        with pytest.raises(RuntimeError, match="size 9"):
            getattr(X, method)(axis)


@pytest.mark.parametrize("method", ["resolve_axis", "axis_size"])
def test_a_missing_axis_is_a_value_error(method: str) -> None:
    with pytest.raises(ValueError, match="'z'"):
        getattr(X, method)("z")


# methods
METHODS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, Any]] = [
    ("all", ("b",), {}, "ac", VALUES.all(1)),
    ("any", (), {"axis": ("a", B)}, "c", VALUES.any((0, 1))),
    ("argmax", (), {}, "", jnp.int32(23)),
    ("argmax", ("c",), {}, "ab", VALUES.argmax(2).astype(np.int32)),
    ("argmin", ("c",), {}, "ab", VALUES.argmin(2).astype(np.int32)),
    ("argsort", (C,), {"stable": True}, "abc", VALUES.argsort(2).astype(np.int32)),
    ("astype", (jnp.int32,), {}, "abc", VALUES.astype(np.int32)),
    ("broadcast_axis", (Axis("z", 2),), {}, "zabc", np.stack([VALUES, VALUES])),
    ("clip", (-1, 1), {}, "abc", VALUES.clip(-1, 1)),
    ("clip", (), {"a_max": 1}, "abc", np.minimum(VALUES, 1)),
    ("conj", (), {}, "abc", VALUES),
    ("conjugate", (), {}, "abc", VALUES),
    ("copy", (), {}, "abc", VALUES),
    ("cumprod", ("b",), {"dtype": jnp.float32}, "abc", VALUES.cumprod(1)),
    ("cumsum", ("b",), {}, "abc", VALUES.cumsum(1)),
    ("max", (), {}, "", VALUES.max()),
    ("max", ("a",), {"where": X < 0}, "bc", np.where(VALUES < 0, VALUES, -np.inf).max(0)),
    ("mean", ({"b": 3},), {"dtype": jnp.float32}, "ac", VALUES.mean(1)),
    ("mean", ((),), {}, "abc", VALUES),
    ("min", (("a", "c"),), {}, "b", VALUES.min((0, 2))),
    ("prod", ("a",), {}, "bc", VALUES.prod(0)),
    ("product", ("a",), {}, "bc", VALUES.prod(0)),
    ("ptp", ("b",), {}, "ac", np.ptp(VALUES, 1)),
    ("ravel", ("z",), {}, "z", VALUES.ravel()),
    ("rearrange", (("c", ...),), {}, "cab", VALUES.transpose(2, 0, 1)),
    ("rename", ({"a": "z"},), {}, "zbc", VALUES),
    ("round", (), {"decimals": 0}, "abc", VALUES),
    ("sort", ("b",), {}, "abc", np.sort(VALUES, 1)),
    ("std", (C,), {"ddof": 1}, "ab", VALUES.std(2, ddof=1)),
    ("sum", ("c",), {"where": X > 0}, "ab", np.where(VALUES > 0, VALUES, 0).sum(2)),
    ("take", ("b", 1), {}, "ac", VALUES[:, 1]),
    ("trace", ("a", "b"), {"offset": 1}, "c", np.trace(VALUES, 1)),
    ("var", (C, jnp.float32, 1), {}, "ab", VALUES.var(2, ddof=1)),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "axes", "values"), METHODS)
def test_a_method(name: str, args: Any, kwargs: Any, axes: str, values: Any) -> None:
    check(getattr(X, name)(*args, **kwargs), axes, values)


def test_leaving_the_names() -> None:
    total = X.sum()
    assert isinstance(total.scalar(), jax.Array)
    assert total.item() == VALUES.sum()
    assert X.tolist() == VALUES.tolist()
    assert X.tobytes() == VALUES.tobytes()
    assert (float(total), int(total), bool(total), complex(total)) == (108.0, 108, True, 108 + 0j)
    one = hax.named([[3]], ("a", "b"))
    assert (float(one), int(one), bool(one), complex(one)) == (3.0, 3, True, 3 + 0j)
    with pytest.raises(ValueError, match=r"^scalar"):
        X.scalar()
    text = "item: there are 24 elements, not one\n  array has: a=2, b=3, c=4"
    for kind in (float, int, complex, NamedArray.item):
        for error in (TypeError, ValueError):
            with pytest.raises(error) as flaw:
                kind(X)
            assert str(flaw.value) == text


def test_item_looks_at_a_value_that_is_differentiated() -> None:
    seen = []

    def loss(x: Any) -> Any:
        seen.append(x.sum().item())
        return (x**2).sum().array

    check(jax.grad(loss)(X), ("a", "b", "c"), 2 * VALUES)
    assert seen == [VALUES.sum()]


def test_signatures_name_self() -> None:
    assert list(inspect.signature(NamedArray.sum).parameters) == ["self", "axis", "where", "dtype"]
    assert list(inspect.signature(X.take).parameters) == ["axis", "index"]


# operators
BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge"]
BITS = ["and", "or", "xor", "lshift", "rshift"]


@pytest.mark.parametrize("name", [*BINARY, *BITS])
def test_an_operator(name: str) -> None:
    left = COUNTS if name in BITS else COUNTS.astype(jnp.float32)
    right = left["a", 1]
    values, row = np.asarray(left.array), np.asarray(right.array)
    named, positional = (lambda x, y: getattr(x, f"__{name}__")(y)), getattr(np.ndarray, f"__{name}__")

    check(named(left, left), "ab", positional(values, values))
    check(named(right, left), "ab", positional(np.broadcast_to(row, (2, 3)), values))
    if name not in BINARY[7:]:
        check(getattr(left, f"__r{name}__")(2), "ab", positional(np.full_like(values, 2), values))


def test_further_operators() -> None:
    check(-X, "abc", -VALUES)
    check(+X, "abc", VALUES)
    check(abs(X), "abc", abs(VALUES))
    check(~COUNTS, "ab", ~np.asarray(COUNTS.array))
    check(divmod(COUNTS, 2)[1], "ab", np.asarray(COUNTS.array) % 2)
    check(divmod(7, COUNTS)[0], "ab", 7 // np.asarray(COUNTS.array))
    check(np.float32(2) * X, "abc", 2 * VALUES)
    check(jnp.float32(2) - X, "abc", 2 - VALUES)
    check(axonym.named(VALUES[0], (B, C)) + X, "abc", VALUES + VALUES[0])
    check(X + axonym.named(VALUES[0], (B, C)), "abc", VALUES + VALUES[0])


def test_operators_let_other_objects_answer() -> None:
    check((COUNTS**ω + 2 * COUNTS**ω).ω, "ab", 3 * np.asarray(COUNTS.array))
    assert (COUNTS == mock.ANY) is True
    struct = jax.eval_shape(lambda: COUNTS)
    assert (struct == jax.eval_shape(lambda: COUNTS)) is True
    assert (struct != jax.eval_shape(lambda: X)) is True


def test_operators_refuse() -> None:
    for wrong in (
        lambda: X + hax.ones(Axis("z", 2)),
        lambda: X + hax.ones(Axis("a", 1)),
        lambda: X + jnp.ones(4),
        lambda: jnp.ones(4) * X,
        lambda: X == None,  # noqa: E711  # what is tested
        lambda: X @ X,
        lambda: jnp.ones(4) @ X,
        lambda: iter(X),
        lambda: 1 in X,
    ):
        with pytest.raises(ValueError, match=r"^\S+: "):
            wrong()
