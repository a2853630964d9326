"""Linear algebra by name: laws over one row per function, and what the names of results promise."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest
import scipy.linalg

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisError, AxisNotFoundError, AxisSizeError, OperandError
from axonym.ops import linalg
from tests.laws import (
    Bulk,
    Row,
    SmoothBulk,
    Values,
    batch_then,
    check_gradients,
    differentiated,
    has_row_for_each,
)
from tests.together import Job, together

SWAPPED = {"m": "n", "n": "m", "i": "c", "c": "i"}


def opposite(order: str) -> list[tuple[str, ...]]:
    """Give the names of what stands in the place of a matrix and maps the other way."""
    return [tuple(SWAPPED.get(name, name) for name in order)]


def kept(order: str) -> list[tuple[str, ...]]:
    return [tuple(order)]


def solution(core: str, *outs: str) -> Any:
    """Give the names of what is solved for: C are the unknowns, E the axes that only the right-hand sides have."""

    def names(a: str, b: str) -> list[tuple[str, ...]]:
        batch = [name for name in a if name not in core]
        table = {"C": core[1], "E": "".join(name for name in b if name not in a)}
        return [(*batch, *"".join(table.get(letter, letter) for letter in out)) for out in outs]

    return names


def exact(fn: Any) -> Any:
    """Compute in numpy with twice the precision."""
    return lambda *arrays: fn(*(np.asarray(a, np.result_type(a, np.float64)) for a in arrays))


def of_matrices(
    name: str,
    outs: str | tuple[str, ...],
    oracle: Any,
    *args: Any,
    core: str = "mn",
    names: Any = None,
    case: str = "",
    reference: Any = None,
    **options: Any,
) -> Row:
    """Make a row for a function of matrices; `outs` are the axes of each result without the batch axis."""
    call, fn = getattr(linalg, name), reference or getattr(jnp.linalg, name)
    every = (outs,) if isinstance(outs, str) else outs
    return Row(
        name,
        lambda x: call(x, *core, *args, **options),
        (f"b{core}",),
        (lambda x: tuple(fn(x, **options))) if isinstance(outs, tuple) else lambda x: fn(x, **options),
        f"b{outs}" if isinstance(outs, str) else tuple(f"b{out}" for out in outs),
        None if oracle is None else exact(oracle),
        ("definite" if core == "mn" else "real",),
        names or batch_then(core, *every),
        case,
    )


def of_norms(name: str, oracle: Any, reference: Any, out: str, *args: Any, case: str = "", **options: Any) -> Row:
    call = getattr(linalg, name)
    return Row(name, lambda x: call(x, *args, **options), ("bcj",), reference, out, oracle, case=case)


def solver(name: str, reference: Any, oracle: Any, case: str = "", **options: Any) -> Row:
    """Make a row for a function that solves for right-hand sides, some of which share a matrix."""
    call = getattr(linalg, name)
    return Row(
        name,
        lambda a, b: call(a, b, "m", "n", **options),
        ("bmn", "bmj"),
        reference,
        "bnj",
        exact(oracle),
        ("definite", "real"),
        solution("mn", "CE"),
        case,
    )


def each(fn: Any) -> Any:
    return lambda *arrays: np.stack([fn(*one) for one in zip(*arrays, strict=True)])


def cubed(x: np.ndarray) -> np.ndarray:
    return x @ x @ x


def one_lstsq(a: jax.Array, b: jax.Array, rcond: jax.Array) -> tuple[jax.Array, ...]:
    solution, rest, rank, values = jnp.linalg.lstsq(a, b, rcond)
    return solution, rest[0], rank, values


def thin_svd(x: jax.Array, **options: Any) -> Any:
    return jnp.linalg.svd(x, full_matrices=False, **options)


VDOT = Row(
    "vdot",
    lambda x, y: linalg.vdot(x, y),
    ("bcj", "bcj"),
    lambda x, y: jnp.vdot(x, y),
    "",
    exact(np.vdot),
    speaker="(conj|dot)",
)
VECDOT = Row(
    "vecdot",
    lambda x, y: linalg.vecdot(x, y, "j"),
    ("bcj", "cj"),
    lambda x, y: jnp.vecdot(x, y[None]),
    "bc",
    exact(lambda x, y: (x.conj() * y).sum(-1)),
    speaker="(conj|dot)",
)
SMOOTH = [
    solver(
        "cho_solve",
        lambda a, b: jax.scipy.linalg.cho_solve((a, True), b),
        each(lambda a, b: scipy.linalg.cho_solve((a, True), b)),
    ),
    of_matrices("cholesky", "mn", np.linalg.cholesky, names=kept),
    of_matrices("cond", "", np.linalg.cond),
    Row(
        "cross",
        lambda x, y: linalg.cross(x, y, "c"),
        ("bcj", "cj"),
        lambda x, y: jnp.cross(x, y[None], axis=1),
        "bcj",
        lambda x, y: np.cross(x, y[None], axis=1),
    ),
    of_matrices("det", "", np.linalg.det),
    of_matrices("eigvalsh", "k", np.linalg.eigvalsh, "k"),
    of_matrices("inv", "nm", np.linalg.inv, names=opposite),
    Row(
        "lstsq",
        lambda a, b: linalg.lstsq(a, b, "i", "c", "k"),
        ("bic", "bij"),
        lambda a, b: jax.vmap(jnp.linalg.lstsq)(a, b),
        ("bcj", "bj", "b", "bk"),
        exact(lambda a, b: tuple(map(np.stack, zip(*map(np.linalg.lstsq, a, b), strict=True)))),
        names=solution("ic", "CE", "E", "", "k"),
    ),
    of_norms(
        "matrix_norm", lambda x: np.linalg.norm(x, axis=(1, 2)), lambda x: jnp.linalg.matrix_norm(x), "b", "c", "j"
    ),
    of_norms("norm", lambda x: np.linalg.norm(x, axis=1), lambda x: jnp.linalg.norm(x, axis=1), "bj", "c"),
    of_matrices("pinv", "ci", np.linalg.pinv, core="ic", names=opposite),
    of_matrices("slogdet", ("", ""), np.linalg.slogdet),
    solver("solve", jnp.linalg.solve, np.linalg.solve),
    solver("solve_triangular", jax.scipy.linalg.solve_triangular, each(scipy.linalg.solve_triangular)),
    of_matrices("svdvals", "k", lambda x: np.linalg.svd(x)[1], "k", core="ic"),
    VDOT,
    VECDOT,
    of_norms(
        "vector_norm",
        lambda x: np.linalg.norm(x.reshape(len(x), -1), axis=1),
        lambda x: jnp.linalg.vector_norm(x, axis=(1, 2)),
        "b",
        ("j", "c"),
    ),
]
STEPS = [
    of_matrices("eig", ("k", "mk"), None, "k"),
    of_matrices("eigh", ("k", "mk"), None, "k"),
    of_matrices("eigvals", "k", None, "k"),
    Row(
        "expm",
        lambda x: linalg.expm(0.1 * x, "m", "n"),
        ("bmn",),
        lambda x: jax.scipy.linalg.expm(0.1 * x),
        "bmn",
        exact(lambda x: scipy.linalg.expm(0.1 * x)),
        speaker="multiply",
    ),
    of_matrices("matrix_power", "mn", cubed, 3, names=kept, reference=lambda x: jnp.linalg.matrix_power(x, 3)),
    of_matrices("matrix_rank", "", np.linalg.matrix_rank, core="ic"),
    of_matrices("qr", ("ik", "kc"), None, "k", core="ic"),
    of_matrices("svd", ("ik", "k", "kc"), None, "k", core="ic", reference=thin_svd),
]
VARIANTS = [
    *(
        of_norms(
            "vector_norm",
            lambda x, order=order: np.linalg.norm(x, order, axis=1),
            lambda x, order=order: jnp.linalg.vector_norm(x, axis=1, ord=order),
            "bj",
            axn.Axis("c", 3),
            case=f"ord {order}",
            ord=order,
        )
        for order in (0, 1, 2.5, np.inf, -np.inf)
    ),
    *(
        of_norms(
            name,
            lambda x, order=order: np.linalg.norm(x, order, axis=(1, 2)),
            lambda x, order=order: jnp.linalg.norm(x, order, axis=(1, 2)),
            "b",
            *axes,
            case=f"ord {order}",
            ord=order,
        )
        for name, axes in (("matrix_norm", ("c", "j")), ("norm", (("c", "j"),)))
        for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    ),
    of_norms("norm", lambda x: np.linalg.norm(x), lambda x: jnp.linalg.norm(x), "", case="all axes"),
    of_norms(
        "norm",
        lambda x: np.linalg.norm(x, 3, axis=2),
        lambda x: jnp.linalg.norm(x, 3, axis=2),
        "bc",
        "j",
        3,
        case="of vectors",
    ),
    of_matrices("cholesky", "mn", lambda x: np.linalg.cholesky(x).swapaxes(1, 2), names=kept, case="upper", upper=True),
    of_matrices("cond", "", lambda x: np.linalg.cond(x, 1), case="p 1", p=1),
    of_matrices("cond", "", np.linalg.cond, core="ic", case="rectangular"),
    of_matrices("eigh", ("k", "mk"), None, "k", case="upper", UPLO="U", symmetrize_input=False),
    of_matrices("eigvalsh", "k", np.linalg.eigvalsh, "k", case="upper", UPLO="U", symmetrize_input=False),
    of_matrices(
        "matrix_power",
        "mn",
        lambda x: np.linalg.matrix_power(x, -1),
        -1,
        names=kept,
        case="negative",
        reference=lambda x: jnp.linalg.matrix_power(x, -1),
    ),
    of_matrices("pinv", "nm", np.linalg.pinv, names=opposite, case="hermitian", hermitian=True),
    of_matrices("qr", ("ik", "kc"), None, "k", core="ic", case="complete", mode="complete"),
    of_matrices("slogdet", ("", ""), np.linalg.slogdet, case="qr", method="qr"),
    of_matrices("svd", ("ik", "k", "kc"), None, "k", core="ic", case="full", full_matrices=True),
    of_matrices("svd", ("mk", "k", "kn"), None, "k", case="hermitian", reference=thin_svd, hermitian=True),
    solver(
        "cho_solve",
        lambda a, b: jax.scipy.linalg.cho_solve((a, False), b),
        each(lambda a, b: scipy.linalg.cho_solve((a, False), b)),
        case="upper",
        upper=True,
    ),
    solver(
        "solve_triangular",
        lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True, unit_diagonal=True),
        each(lambda a, b: scipy.linalg.solve_triangular(a, b, lower=True, unit_diagonal=True)),
        case="lower",
        lower=True,
        unit_diagonal=True,
    ),
    dataclasses.replace(VDOT, domains=("complex", "complex"), case="complex"),
    dataclasses.replace(VECDOT, domains=("complex", "complex"), case="complex"),
    Row(
        "pinv",
        lambda x, rtol: linalg.pinv(x, "i", "c", rtol=rtol),
        ("bic", "b"),
        lambda x, rtol: jnp.linalg.pinv(x, rtol),
        "bci",
        exact(np.linalg.pinv),
        ("real", "unit"),
        lambda x, _: opposite(x),
        "rtol",
    ),
    Row(
        "matrix_rank",
        lambda x, tol: linalg.matrix_rank(x, "i", "c", tol=tol),
        ("bic", "b"),
        lambda x, tol: jnp.linalg.matrix_rank(x, tol),
        "b",
        exact(lambda x, tol: np.linalg.matrix_rank(x, tol)),
        ("real", "above one"),
        lambda x, _: batch_then("ic", "")(x),
        "tol",
    ),
    Row(
        "lstsq",
        lambda a, b, rcond: linalg.lstsq(a, b, "i", "c", "k", rcond=rcond),
        ("bic", "bi", ""),
        lambda a, b, rcond: jax.vmap(one_lstsq, (0, 0, None))(a, b, rcond),
        ("bc", "b", "b", "bk"),
        None,
        ("real", "real", "unit"),
        lambda a, b, _: solution("ic", "CE", "E", "", "k")(a, b),
        "rcond",
    ),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + STEPS, linalg)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(SmoothBulk):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Bulk):
    """All laws but the gradient: it blows up where singular values are close."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Options, and other ways to write an axis."""


STRETCHED = [row for row in STEPS if row.function in {"eigh", "expm", "matrix_power", "qr", "svd"}]


def stretched(row: Row) -> Job:
    """Differentiate by matrices whose singular values lie far apart."""
    rng = np.random.default_rng(0)
    shape = (2, 8, 3) if row.operands == ("bic",) else (2, 3, 3)
    spread = np.array([1, 3, 9]) * np.linalg.qr(rng.normal(size=shape))[0]
    arrays = [(spread if shape[1] == 8 else spread @ spread.swapaxes(1, 2) / 9).astype(np.float32)]
    return differentiated(row, [tuple(reversed(row.operands[0]))], arrays)


@pytest.mark.parametrize("row", STRETCHED, ids=str)
def test_gradients_away_from_equal_singular_values(row: Row) -> None:
    check_gradients(row, [tuple(reversed(row.operands[0]))], *together(stretched, STRETCHED, row))


X = axn.ones((axn.Axis("batch", 2), axn.Axis("row", 3), axn.Axis("column", 3)))
HAS = "  array has: batch=2, row=3, column=3"
BOTH = "  operand 1 has: batch=2, row=3, column=3\n  operand 2 has: "
ORDERS = "'fro', 'nuc', 1, -1, 2, -2, inf, -inf"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: linalg.inv(X, "rwo", "column"),
            AxisNotFoundError,
            f"inv: no axis named 'rwo'\n{HAS}\n  hint: did you mean 'row'?",
        ),
        (lambda: linalg.det(X, "row", "row"), AxisClashError, "det: axis 'row' is given twice\n  axes: row, row"),
        (
            lambda: linalg.det(X, "row", ("column", "batch")),
            AxisSizeError,
            "det: the matrix is not square\n"
            "  it has: rows row=3, columns column=3, batch=2\n"
            "  hint: pinv, lstsq, qr and svd take matrices of any shape",
        ),
        (
            lambda: linalg.cond(X, "batch", "column", p=1),
            AxisSizeError,
            "cond: the matrix is not square\n"
            "  it has: rows batch=2, columns column=3\n"
            "  hint: pinv, lstsq, qr and svd take matrices of any shape",
        ),
        (
            lambda: linalg.solve(X, axn.ones({"row": 4}), "row", "column"),
            AxisSizeError,
            f"solve: axis 'row' has two sizes: 3 and 4\n{BOTH}row=4\n"
            '  hint: if one is shifted by a place, cut the longer one: x["row", :-1] or x["row", 1:]',
        ),
        (
            lambda: linalg.solve(X, axn.ones({"column": 3}), "row", "column"),
            AxisClashError,
            f"solve: both operands have axis 'column', which is the axis of the unknowns\n{BOTH}column=3\n"
            '  hint: rename that of the second operand: b.rename({"column": "column_2"})',
        ),
        (
            lambda: linalg.lstsq(X, axn.ones({"rows": 3}), "row", "column", "k"),
            AxisNotFoundError,
            f"lstsq: operand 2 has no axis named 'row'\n{BOTH}rows=3\n  hint: did you mean 'rows'?",
        ),
        (
            lambda: linalg.eigh(X, "row", axn.Axis("column", 4), "k"),
            AxisSizeError,
            f"eigh: axis 'column' was given with size 4, but has size 3\n{HAS}",
        ),
        (
            lambda: linalg.svd(X, "row", "column", axn.Axis("k", 2)),
            AxisSizeError,
            "svd: axis 'k' was given with size 2, but has size 3\n  array has: k=3",
        ),
        (
            lambda: linalg.qr(X, "row", "column", "batch"),
            AxisClashError,
            f"qr: in the result, axis 'batch' would appear twice\n{HAS}",
        ),
        (
            lambda: linalg.eigvals(X, "row", "column", ("k", "l")),
            OperandError,
            "eigvals: expected one axis, got 2: k, l",
        ),
        (
            lambda: linalg.slogdet(np.ones((3, 3)), "row", "column"),
            OperandError,
            "slogdet: expected a NamedArray, got a plain array\n"
            "  its shape: (3, 3)\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: linalg.solve(X, [1, 2, 3], "row", "column"),
            OperandError,
            "solve: cannot combine a NamedArray and list\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda: linalg.solve(X, np.ones((3, 2)), "row", "column"),
            OperandError,
            "solve: a plain array of shape (3, 2) does not match axes: row\n"
            "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
        ),
        (
            lambda: linalg.matrix_power(X, "row", "column", 0.5),
            OperandError,
            "matrix_power: the power must be an int, not float",
        ),
        (
            lambda: linalg.qr(X, "row", "column", "k", mode="r"),
            ArgumentError,
            "qr: mode='r' is not one of 'reduced', 'complete'",
        ),
        (
            lambda: linalg.eigh(X, "row", "column", "k", UPLO="l"),
            ArgumentError,
            "eigh: UPLO='l' is not one of 'L', 'U'",
        ),
        (
            lambda: linalg.eigvalsh(X, "row", "column", "k", UPLO="l"),
            ArgumentError,
            "eigvalsh: UPLO='l' is not one of 'L', 'U'",
        ),
        (
            lambda: linalg.slogdet(X, "row", "column", method="svd"),
            ArgumentError,
            "slogdet: method='svd' is not one of None, 'lu', 'qr'",
        ),
        (
            lambda: linalg.matrix_norm(X, "row", "column", ord=3),
            ArgumentError,
            f"matrix_norm: ord=3 is not one of {ORDERS}",
        ),
        (
            lambda: linalg.cond(X, "row", "column", p="f"),
            ArgumentError,
            f"cond: p='f' is not one of None, {ORDERS}",
        ),
        (
            lambda: linalg.norm(X, ("row", "column"), "f"),
            ArgumentError,
            f"norm: ord='f' is not one of {ORDERS}",
        ),
        (
            lambda: linalg.norm(X, "row", "fro"),
            ArgumentError,
            "norm: the ord of a vector norm must be a number, not 'fro'",
        ),
        (
            lambda: linalg.norm(X, ord=2),
            AxisError,
            "norm: ord needs one axis or a pair (row, column), got 3 axes\n"
            "  hint: vector_norm takes any number of axes, and matrix_norm several for row and for column",
        ),
        (
            lambda: linalg.norm(1.0, ord=2),
            OperandError,
            "norm: expected a NamedArray, got float\n"
            '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
        ),
        (
            lambda: linalg.norm(X, "rows"),
            AxisNotFoundError,
            f"norm: no axis named 'rows'\n{HAS}\n  hint: did you mean 'row'?",
        ),
        (
            lambda: linalg.vector_norm(X, ord="fro"),
            ArgumentError,
            "vector_norm: the ord of a vector norm must be a number, not 'fro'",
        ),
        (
            lambda: linalg.cross(X, X, "batch"),
            AxisSizeError,
            "cross: axis 'batch' has size 2, but must have size 3",
        ),
        (
            lambda: linalg.cross(X, X, axn.Axis("row", 2)),
            AxisSizeError,
            f"cross: axis 'row' was given with size 2, but has size 3\n{HAS}",
        ),
    ],
)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


def test_a_matrix_without_elements_has_rank_zero_and_no_condition() -> None:
    a = axn.zeros((axn.Axis("batch", 2), axn.Axis("row", 0), axn.Axis("column", 3)))
    np.testing.assert_array_equal(
        linalg.matrix_rank(a, "row", "column").array, np.linalg.matrix_rank(np.zeros((2, 0, 3)))
    )
    with pytest.raises(axn.errors.AxisSizeError) as raised:
        linalg.cond(a, "row", "column")
    text, _, words_of_jax = str(raised.value).partition("  JAX says: ")
    problem = "cond: there is no result of no elements: axis 'row' has size 0"
    assert text == f"{problem}\n  array has: batch=2, row=0, column=3\n"
    assert words_of_jax
