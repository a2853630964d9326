"""Operators on a named array and an object of another type: one law over all operators."""

import collections
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equinox import Module
from equinox.internal import ω

import axonym as axn
from axonym.errors import OperandError


class Operator(NamedTuple):
    """A row: a function of Python, the methods that Python calls for it, and what errors call it."""

    fn: Callable[[Any, Any], Any]
    left: str
    right: str
    title: str


def arithmetic(name: str, title: str) -> Operator:
    return Operator(getattr(operator, name, divmod), f"__{name.strip('_')}__", f"__r{name.strip('_')}__", title)


def comparison(name: str, reflected: str, title: str) -> Operator:
    return Operator(getattr(operator, name), f"__{name}__", f"__{reflected}__", title)


ARITHMETIC = [
    arithmetic("add", "add"),
    arithmetic("and_", "bitwise_and"),
    arithmetic("divmod", "divmod"),
    arithmetic("floordiv", "floor_divide"),
    arithmetic("lshift", "left_shift"),
    arithmetic("matmul", "@"),
    arithmetic("mod", "remainder"),
    arithmetic("mul", "multiply"),
    arithmetic("or_", "bitwise_or"),
    arithmetic("pow", "power"),
    arithmetic("rshift", "right_shift"),
    arithmetic("sub", "subtract"),
    arithmetic("truediv", "divide"),
    arithmetic("xor", "bitwise_xor"),
]
ORDER = [
    comparison("ge", "le", "greater_equal"),
    comparison("gt", "lt", "greater"),
    comparison("le", "ge", "less_equal"),
    comparison("lt", "gt", "less"),
]
EQUALITY = [comparison("eq", "eq", "equal"), comparison("ne", "ne", "not_equal")]
OPERATORS = ARITHMETIC + ORDER + EQUALITY
METHODS = {name for row in OPERATORS for name in (row.left, row.right)}
each_operator = pytest.mark.parametrize("row", OPERATORS, ids=lambda row: row.left)

VALUES = np.array([3, 5, 7])
X = axn.named(VALUES, "a")
# An operand may be traced, abstract, without axes, or hold what a filter leaves of it.
NAMED = [X, axn.named(2, ()), jax.eval_shape(lambda: X), axn.NamedArray(None, ("a",))]


def answering(name: str) -> Callable[[object, object], Any]:
    return lambda self, other: (name, other)


def silent(self: object, other: object) -> Any:
    return NotImplemented


Answers: Any = type("Answers", (), {name: answering(name) for name in METHODS} | {"__hash__": None})
Heir: Any = type("Heir", (Answers,), {})
Refuses: Any = type("Refuses", (), dict.fromkeys(METHODS, silent) | {"__hash__": None})
Excluded: Any = type("Excluded", (), dict.fromkeys(METHODS - {"__eq__", "__ne__"}))
Bare: Any = type("Bare", (), {})
# A metaclass gives its classes operators, as that of ω does.
Meta: Any = type("Meta", (type,), {name: answering(name) for name in METHODS} | {"__hash__": None})
OwnList: Any = type("OwnList", (list,), {name: answering(name) for name in METHODS} | {"__hash__": None})


class Tensor:
    """An array of another library, which looks like a container and like an array of NumPy."""

    def __init__(self, values: object) -> None:
        self.values = np.asarray(values)
        self.shape, self.dtype, self.ndim = self.values.shape, self.values.dtype, self.values.ndim

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Any:
        return iter(self.values)

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


def of_tensor(row: Operator) -> Callable[[Tensor, axn.NamedArray], Any]:
    swapped = row in ARITHMETIC

    def method(self: Tensor, other: axn.NamedArray) -> Any:
        operands = (other.array, self.values) if swapped else (self.values, other.array)
        return row.fn(*map(np.asarray, operands))

    return method


# The reflected method of `<` is `>`: each is defined for its own operator, with the tensor on the left.
for each in OPERATORS:
    setattr(Tensor, each.right if each in ARITHMETIC else each.left, of_tensor(each))


def refusal(row: Operator, kind: str, hint: str = "operands are NamedArrays, scalars or 0-d arrays") -> str:
    if row.title == "@":
        problem, hint = "a product of named arrays needs the axis to sum over", 'write x.dot(y, axis="embed")'
        return f"@: {problem}\n  hint: {hint}"
    return f"{row.title}: cannot combine a NamedArray and {kind}\n  hint: {hint}"


def text_of(row: Operator, *operands: object) -> str:
    with pytest.raises(OperandError) as caught:
        row.fn(*operands)
    return str(caught.value)


@each_operator
def test_a_type_that_defines_the_reflected_operator_answers(row: Operator) -> None:
    for other in (Answers(), Heir(), Meta("Class", (), {})):
        for x in NAMED:
            method, operand = row.fn(x, other)
            assert (method, operand is x) == (row.right, True)
            method, operand = row.fn(other, x)
            assert (method, operand is x) == (row.left, True)
    jax.jit(lambda x: row.fn(x, Answers())[1])(X)


@each_operator
def test_a_type_may_define_the_reflected_operator_alone(row: Operator) -> None:
    # Python derives != from == where a class defines no other.
    name = "__eq__" if row in EQUALITY else row.right
    other = type("Half", (), {name: answering(name), "__hash__": None})()
    if row.left == "__ne__":
        assert row.fn(X, other) is False
    else:
        method, operand = row.fn(X, other)
        assert (method, operand is X) == (name, True)
    without = type("Rest", (), {each: answering(each) for each in METHODS - {name, row.right, row.left}})()
    assert text_of(row, X, without) == refusal(row, "Rest")


@each_operator
def test_a_type_that_does_not_answer_gets_the_error_of_python(row: Operator) -> None:
    other = Refuses()
    if row in EQUALITY:
        assert row.fn(X, other) is row.fn(1, other)
        return
    with pytest.raises(TypeError, match=r"not supported between|unsupported operand"):
        row.fn(X, other)
    # Python asked the other object first.
    if row in ARITHMETIC:
        assert text_of(row, other, X) == refusal(row, "Refuses")


@each_operator
def test_other_objects_get_an_error_that_says_what_works(row: Operator) -> None:
    name_it = "name it first: axn.named(array, (...)); plain operands must be scalars"
    pair = collections.namedtuple("Pair", "a b")(1, 2)
    lists: list[Any] = [[], [1, 2, 3], (1, 2, 3), pair]
    hinted = [(value, name_it) for value in lists]
    others: list[Any] = [None, "text", b"text", {"a": 1}, {1}, frozenset(), range(3), slice(3), Bare(), Ellipsis]
    others += [collections.deque([1]), collections.OrderedDict(), collections.UserList([1]), {}.keys(), int]
    if row not in EQUALITY:
        others.append(Excluded())
    plain = "operands are NamedArrays, scalars or 0-d arrays"
    for other, hint in hinted + [(value, plain) for value in others]:
        kind = f"the class {other.__name__}" if isinstance(other, type) else type(other).__name__
        assert text_of(row, X, other) == refusal(row, kind, hint)
        if row in ARITHMETIC and not hasattr(type(other), row.left):
            assert text_of(row, other, X) == refusal(row, kind, hint)


@each_operator
def test_containers_answer_only_for_operators_that_they_define(row: Operator) -> None:
    other = OwnList([1, 2, 3])
    if row in EQUALITY:
        name_it = "name it first: axn.named(array, (...)); plain operands must be scalars"
        assert text_of(row, X, other) == refusal(row, "OwnList", name_it)
    else:
        assert row.fn(X, other)[0] == row.right


@pytest.mark.sampled
@each_operator
def test_arrays_and_numbers_are_operands(row: Operator) -> None:
    anonymous = axn.NamedArray(jnp.asarray(VALUES), ())
    for other in (2, np.int32(2), jnp.int32(2), np.array(2), True, np.array([1, 2, 3])):
        x = anonymous if np.ndim(other) else X
        if row.title == "@":
            assert text_of(row, x, other) == text_of(row, other, x) == refusal(row, "")
            continue
        for found, expected in ((row.fn(x, other), row.fn(VALUES, other)), (row.fn(other, x), row.fn(other, VALUES))):
            both = found if isinstance(found, tuple) else (found,)
            for part, reference in zip(both, np.atleast_2d(expected), strict=True):
                assert isinstance(part, axn.NamedArray)
                np.testing.assert_allclose(part.array, reference, rtol=1e-6)
    if row.title != "@":
        problem = f"{row.title}: cannot combine a plain array of shape (2, 3) with axes a\n"
        assert text_of(row, X, np.ones((2, 3), int)).startswith(problem)


@each_operator
def test_libraries_of_trees_and_of_arrays_compute(row: Operator) -> None:
    y = np.array([1, 2, 3])
    if row.title not in ("@", "divmod"):
        found = row.fn(X**ω, axn.named(y, "a") ** ω).ω
        assert found.names == ("a",)
        np.testing.assert_allclose(found.array, row.fn(VALUES, y), rtol=1e-6)
    np.testing.assert_array_equal(row.fn(X, Tensor(y)), row.fn(VALUES, y))


def test_equality_is_answered_by_any_type_with_one_of_its_own() -> None:
    class Record(Module):
        value: int

    x = axn.ones({"a": 3})
    assert (x == mock.ANY) is True
    assert (x != mock.ANY) is False
    # These say of themselves that they are equal to no array.
    for other in (Record(1), Fraction(1, 2), axn.Axis("a", 3), jax.ShapeDtypeStruct((3,), int)):
        assert (x == other) is False
        assert (x != other) is True


def test_abstract_arrays_are_equal_if_they_are_the_same_structure(explicit_mesh: jax.sharding.Mesh) -> None:
    def abstract(shape: tuple[int, ...] = (2, 3), dtype: Any = "float32", axes: Any = ("a", "b"), **of: Any) -> Any:
        return axn.NamedArray(jax.ShapeDtypeStruct(shape, dtype, **of), axes)

    def spread(*spec: str | None) -> Any:
        return abstract(sharding=jax.sharding.NamedSharding(explicit_mesh, jax.P(*spec)))

    others = [abstract((2, 4)), abstract(dtype="int32"), abstract(axes=("b", "a")), abstract(axes=("b",))]
    others += [abstract((2,), axes=("a",)), abstract(weak_type=True), spread("model"), {"a": 1}, None, [1], Bare()]

    def compare() -> None:
        assert (abstract() == abstract()) is True
        assert (abstract() != abstract()) is False
        assert {"a": spread("model")} == {"a": spread("model")}
        for other in others:
            assert (abstract() == other) is (other == abstract()) is False
            assert (abstract() != other) is (other != abstract()) is True

    compare()
    jax.eval_shape(compare)
    assert abstract() == mock.ANY
    with pytest.raises(OperandError, match="cannot combine a plain array"):
        operator.eq(abstract(), np.ones(3))
