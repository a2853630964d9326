"""Diagonals and triangles: laws over one row per function."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from measure import collectives, totals

import axonym as axn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError
from axonym.ops import diagonal
from tests.laws import Row, Smooth, SmoothBulk, Values, batch_then, has_row_for_each


def triangle(x: jax.Array, keep: Any) -> jax.Array:
    rows, columns = (lax.broadcasted_iota(jnp.int32, (x.shape[0], 1, x.shape[2]), i) for i in (2, 0))
    return jnp.where(keep(columns - rows), x, jnp.zeros((), x.dtype))


def turned(fn: Any) -> Any:
    """Apply a numpy function over (c, a) to an array of a, b, c."""
    return lambda x, k=0: fn(x.transpose(1, 2, 0), k).transpose(2, 0, 1)


def matrices(xp: Any, x: Any, k: int) -> Any:
    """Put the last axis of a matrix on diagonals, one vector at a time."""
    return xp.stack([xp.diag(vector, k) for vector in x])


def filled(x: Any, value: Any, k: int) -> Any:
    """Fill the diagonal over (c, a) of an array of a, b, c; the value is of b, c."""
    result = x.copy()
    for b in range(x.shape[1]):
        for c in range(x.shape[2]):
            if 0 <= c + k < x.shape[0]:
                result[c + k, b, c] = value[b, c]
    return result


def filled_in_jax(x: jax.Array, value: jax.Array, k: int) -> jax.Array:
    on_it = jnp.eye(x.shape[0], x.shape[2], -k, dtype=bool)[:, None, :]
    return jnp.where(on_it, value.astype(x.dtype), x)


SMOOTH = [
    Row(
        "tril",
        lambda x: axn.tril(x, "c", "a"),
        ("abc",),
        lambda x: triangle(x, lambda d: d <= 0),
        "abc",
        turned(np.tril),
    ),
    Row(
        "triu",
        lambda x: axn.triu(x, "c", "a", k=1),
        ("abc",),
        lambda x: triangle(x, lambda d: d >= 1),
        "abc",
        lambda x: turned(np.triu)(x, 1),
    ),
]
BULK = [
    Row(
        "diag",
        lambda x: axn.diag(x, "b", "i", "j"),
        ("ab",),
        lambda x: matrices(jnp, x, 0),
        "aij",
        lambda x: matrices(np, x, 0),
        names=batch_then("b", "ij"),
    ),
    Row(
        "diagonal",
        lambda x: axn.diagonal(x, "c", "a", "d"),
        ("abc",),
        lambda x: jnp.diagonal(x, 0, 2, 0),
        "bd",
        lambda x: np.diagonal(x, 0, 2, 0),
        names=batch_then("ac", "d"),
    ),
    Row(
        "fill_diagonal",
        lambda x, value: axn.fill_diagonal(x, "c", "a", value, k=1),
        ("abc", "bc"),
        lambda x, value: filled_in_jax(x, value, 1),
        "abc",
        lambda x, value: filled(x, value, 1),
    ),
    Row(
        "trace",
        lambda x: axn.trace(x, "c", "a"),
        ("abc",),
        lambda x: jnp.trace(x, 0, 2, 0),
        "b",
        lambda x: np.trace(x, 0, 2, 0),
        names=batch_then("ac", ""),
    ),
]
VARIANTS = [
    *(
        Row(
            "diag",
            lambda x, k=k: axn.diag(x, axn.Axis("b", 2), axn.Axis("b", 2 + abs(k)), "j", k),
            ("ab",),
            lambda x, k=k: matrices(jnp, x, k),
            "abj",
            lambda x, k=k: matrices(np, x, k),
            names=batch_then("b", "bj"),
            case=f"keeps a name, {k}",
        )
        for k in (2, -1)
    ),
    *(
        Row(
            "diagonal",
            lambda x, k=k, size=size: axn.diagonal(x, axn.Axis("a", 4), "c", axn.Axis("c", size), k),
            ("abc",),
            lambda x, k=k: jnp.diagonal(x, k, 0, 2),
            "bc",
            lambda x, k=k: np.diagonal(x, k, 0, 2),
            names=batch_then("ac", "c"),
            case=f"keeps a name, {k}",
        )
        for k, size in ((1, 2), (-3, 1), (5, 0))
    ),
    Row(
        "trace",
        lambda x: axn.trace(x, "a", axn.Axis("b", 2), -1, dtype=jnp.bfloat16),
        ("abc",),
        lambda x: jnp.trace(x, -1, 0, 1, dtype=jnp.bfloat16),
        "c",
        names=batch_then("ab", ""),
        case="offset and dtype",
    ),
    Row(
        "fill_diagonal",
        lambda x: axn.fill_diagonal(x, "a", "b", 7.5),
        ("ab",),
        lambda x: jnp.fill_diagonal(x, 7, inplace=False),
        "ab",
        domains=("int",),
        case="scalar, keeps the dtype",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + BULK, diagonal)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", BULK, ids=str)
class TestBulk(SmoothBulk):
    """The laws of what is lifted over batch axes."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write the axes."""


def test_diag_and_diagonal_are_inverse() -> None:
    x = axn.arange(axn.make_axes(a=2, b=3))
    for k in (-2, 0, 1):
        there = axn.diag(x, "b", "row", "column", k)
        assert axn.array_equal(there.diagonal("row", "column", "b", k), x)
        assert axn.array_equal(there.trace("row", "column", k), x.sum("b"))


def test_anonymous_dimensions_stay_in_front() -> None:
    x = axn.arange(axn.make_axes(a=2, b=3, c=3)).untag("a")
    assert axn.fill_diagonal(x, "c", "b", 0).array.shape == (2, 3, 3)
    assert x.diagonal("b", "c", "d").array.shape == (2, 3)


@pytest.mark.parametrize("layout", [{"i": "data", "j": "model"}, {"j": ("data", "model")}, {"a": "data", "i": "model"}])
def test_trace_of_split_matrices_moves_only_sums(layout: dict[str, Any], explicit_mesh: jax.sharding.Mesh) -> None:
    x = axn.named(np.random.default_rng(0).normal(size=(8, 8, 8)), ("i", "a", "j"))

    def traced(x: axn.NamedArray) -> axn.NamedArray:
        return axn.trace(x, "i", "j", offset=1)

    def total(x: axn.NamedArray) -> jax.Array:
        return (traced(x) ** 2).sum().scalar()

    with jax.set_mesh(explicit_mesh):
        placed = axn.shard(x, layout)
        program = jax.jit(traced).lower(placed).compile()
        assert set(totals(collectives(program))) == {"all-reduce"}
        result, gradient = jax.jit(traced)(placed), jax.jit(jax.grad(total))(placed)
    expected = np.trace(x.array, 1, 0, 2)
    np.testing.assert_allclose(result.array, expected, rtol=1e-5)
    on_diagonal = np.eye(8, k=1)[:, None, :]
    np.testing.assert_allclose(gradient.array, 2 * expected[:, None] * on_diagonal, rtol=1e-5)
    assert jax.typeof(gradient.array).sharding == jax.typeof(placed.array).sharding
    kept = {name: entry for name, entry in layout.items() if name == "a"}
    assert jax.typeof(result.array).sharding.spec == axn.pspec_for(result, kept, explicit_mesh, strict=False)


def test_weak_types_stay_weak() -> None:
    weak = axn.full(axn.make_axes(a=2, b=2), 1.0)
    for result in (axn.tril(weak, "a", "b"), axn.triu(weak, "a", "b"), axn.diag(weak["a", 0], "b", "row", "column")):
        assert result.weak_type


INPUT = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6)))

BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "axn.tril(x, 'batch', 'embd')",
        lambda x: axn.tril(x, "batch", "embd"),
        AxisNotFoundError,
        "tril: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.tril(x, axn.Axis('batch', 5), 'embed')",
        lambda x: axn.tril(x, axn.Axis("batch", 5), "embed"),
        AxisSizeError,
        "tril: axis 'batch' was given with size 5, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "axn.tril(x.array, 'batch', 'embed')",
        lambda x: axn.tril(x.array, "batch", "embed"),
        OperandError,
        "tril: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.tril(x, 'batch', 'batch')",
        lambda x: axn.tril(x, "batch", "batch"),
        AxisClashError,
        "tril: axis 'batch' is given twice\n  axes: batch, batch",
    ),
    (
        "axn.tril(x, ['batch'], 'embed')",
        lambda x: axn.tril(x, ["batch"], "embed"),
        OperandError,
        "tril: an object of type list is neither an Axis nor the name of one\n"
        '  hint: an axis is written as Axis("batch", 32), or as "batch"',
    ),
    (
        "axn.diagonal(x, ['batch'], 'embed', 'd')",
        lambda x: axn.diagonal(x, ["batch"], "embed", "d"),
        OperandError,
        "diagonal: an object of type list is neither an Axis nor the name of one\n"
        '  hint: an axis is written as Axis("batch", 32), or as "batch"',
    ),
    (
        "axn.diagonal(x, 'batch', 'embd', 'd')",
        lambda x: axn.diagonal(x, "batch", "embd", "d"),
        AxisNotFoundError,
        "diagonal: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.diagonal(x, axn.Axis('batch', 5), 'embed', 'd')",
        lambda x: axn.diagonal(x, axn.Axis("batch", 5), "embed", "d"),
        AxisSizeError,
        "diagonal: axis 'batch' was given with size 5, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "axn.diagonal(x.array, 'batch', 'embed', 'd')",
        lambda x: axn.diagonal(x.array, "batch", "embed", "d"),
        OperandError,
        "diagonal: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.diagonal(x, 'batch', 'batch', 'd')",
        lambda x: axn.diagonal(x, "batch", "batch", "d"),
        AxisClashError,
        "diagonal: axis 'batch' is given twice\n  axes: batch, batch",
    ),
    (
        "axn.trace(x, 'batch', 'embd')",
        lambda x: axn.trace(x, "batch", "embd"),
        AxisNotFoundError,
        "trace: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.trace(x, axn.Axis('batch', 5), 'embed')",
        lambda x: axn.trace(x, axn.Axis("batch", 5), "embed"),
        AxisSizeError,
        "trace: axis 'batch' was given with size 5, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "axn.trace(x.array, 'batch', 'embed')",
        lambda x: axn.trace(x.array, "batch", "embed"),
        OperandError,
        "trace: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.trace(x, 'batch', 'batch')",
        lambda x: axn.trace(x, "batch", "batch"),
        AxisClashError,
        "trace: axis 'batch' is given twice\n  axes: batch, batch",
    ),
    (
        "axn.fill_diagonal(x, 'batch', 'embd', 0)",
        lambda x: axn.fill_diagonal(x, "batch", "embd", 0),
        AxisNotFoundError,
        "fill_diagonal: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.fill_diagonal(x, axn.Axis('batch', 5), 'embed', 0)",
        lambda x: axn.fill_diagonal(x, axn.Axis("batch", 5), "embed", 0),
        AxisSizeError,
        "fill_diagonal: axis 'batch' was given with size 5, but has size 4\n  array has: batch=4, embed=6",
    ),
    (
        "axn.fill_diagonal(x.array, 'batch', 'embed', 0)",
        lambda x: axn.fill_diagonal(x.array, "batch", "embed", 0),
        OperandError,
        "fill_diagonal: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.fill_diagonal(x, 'batch', 'batch', 0)",
        lambda x: axn.fill_diagonal(x, "batch", "batch", 0),
        AxisClashError,
        "fill_diagonal: axis 'batch' is given twice\n  axes: batch, batch",
    ),
    (
        "axn.triu(x, 'batch', 'embed', 0.5)",
        lambda x: axn.triu(x, "batch", "embed", 0.5),
        OperandError,
        "triu: the diagonal offset must be an int, not float",
    ),
    (
        "axn.trace(x, 'batch', ('batch', 'embed'))",
        lambda x: axn.trace(x, "batch", ("batch", "embed")),
        OperandError,
        "trace: an object of type tuple is neither an Axis nor the name of one\n"
        '  hint: an axis is written as Axis("batch", 32), or as "batch"',
    ),
    (
        "axn.diagonal(x, 'batch', 'embed', axn.Axis('d', 5))",
        lambda x: axn.diagonal(x, "batch", "embed", axn.Axis("d", 5)),
        AxisSizeError,
        "diagonal: axis 'd' was given with size 5, but the diagonal has size 4",
    ),
    (
        "axn.diagonal(x.broadcast_axis({'d': 2}), 'batch', 'embed', 'd')",
        lambda x: axn.diagonal(x.broadcast_axis({"d": 2}), "batch", "embed", "d"),
        AxisClashError,
        "diagonal: in the result, axis 'd' would appear twice\n  array has: d=2, batch=4, embed=6",
    ),
    (
        "axn.diag(x, 'embd', 'i', 'j')",
        lambda x: axn.diag(x, "embd", "i", "j"),
        AxisNotFoundError,
        "diag: no axis named 'embd'\n  array has: batch=4, embed=6\n  hint: did you mean 'embed'?",
    ),
    (
        "axn.diag(x, 'embed', 'i', 'i')",
        lambda x: axn.diag(x, "embed", "i", "i"),
        AxisClashError,
        "diag: in the result, axis 'i' would appear twice\n  array has: batch=4, embed=6",
    ),
    (
        "axn.diag(x, 'embed', 'i', 'batch')",
        lambda x: axn.diag(x, "embed", "i", "batch"),
        AxisClashError,
        "diag: in the result, axis 'batch' would appear twice\n  array has: batch=4, embed=6",
    ),
    (
        "axn.diag(x, 'embed', axn.Axis('i', 6), 'j', 1)",
        lambda x: axn.diag(x, "embed", axn.Axis("i", 6), "j", 1),
        AxisSizeError,
        "diag: axis 'i' was given with size 6, but the matrix has size 7",
    ),
    (
        "axn.diag(x.array, 'embed', 'i', 'j')",
        lambda x: axn.diag(x.array, "embed", "i", "j"),
        OperandError,
        "diag: expected a NamedArray, got a plain array\n"
        "  its shape: (4, 6)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "jax.jit(lambda k: axn.diag(x, 'embed', 'i', 'j', k))(1)",
        lambda x: jax.jit(lambda k: axn.diag(x, "embed", "i", "j", k))(1),
        OperandError,
        "diag: the diagonal offset must be an int, not a plain array",
    ),
    (
        "axn.fill_diagonal(x, 'batch', 'embed', axn.ones(axn.Axis('bach', 4)))",
        lambda x: axn.fill_diagonal(x, "batch", "embed", axn.ones(axn.Axis("bach", 4))),
        BroadcastError,
        "fill_diagonal: no operand has the axes of all others\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: bach=4\n"
        "  hint: did you mean 'batch'? Or: if the outer product is meant, give an operand the others' axes first: "
        "x.broadcast_axis(bach)",
    ),
    (
        "axn.fill_diagonal(x, 'batch', 'embed', axn.ones(axn.Axis('batch', 3)))",
        lambda x: axn.fill_diagonal(x, "batch", "embed", axn.ones(axn.Axis("batch", 3))),
        AxisSizeError,
        "fill_diagonal: axis 'batch' has two sizes: 4 and 3\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: batch=3\n"
        '  hint: if one is shifted by a place, cut the longer one: x["batch", :-1] or x["batch", 1:]',
    ),
    (
        "axn.fill_diagonal(x, 'batch', 'embed', 'z')",
        lambda x: axn.fill_diagonal(x, "batch", "embed", "z"),
        OperandError,
        "fill_diagonal: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        "axn.fill_diagonal(x, 'batch', 'embed', jnp.ones(4))",
        lambda x: axn.fill_diagonal(x, "batch", "embed", jnp.ones(4)),
        OperandError,
        "fill_diagonal: cannot combine a plain array of shape (4,) with axes batch, embed\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(INPUT)
    assert str(caught.value) == text
