"""Functions of single elements and of pairs of elements: laws over one row per function."""

import inspect
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.errors import AxisSizeError, BroadcastError, OperandError
from axonym.ops import elementwise, logical
from tests.laws import (
    Bulk,
    Laws,
    Row,
    Sharded,
    Smooth,
    SmoothBulk,
    assert_close,
    count_equations,
    has_row_for_each,
    outcome,
    program,
)


def unary(name: str, domain: str = "real", reference: Any = None, oracle: Any = None) -> Row:
    return Row(
        name,
        getattr(elementwise, name),
        ("abc",),
        reference or getattr(jnp, name),
        "abc",
        oracle or getattr(np, name),
        (domain,),
    )


def binary(name: str, *domains: str, axes: tuple[str, str] = ("abc", "ca"), case: str = "") -> Row:
    """Make a row; `axes` decide how the positional code has to expand and permute the operands."""

    def lined_up(array: Any, own: str) -> Any:
        full = max(axes, key=len)
        array = array.transpose([own.index(n) for n in full if n in own])
        return array.reshape([array.shape[[n for n in full if n in own].index(n)] if n in own else 1 for n in full])

    by_hand = {
        ("abc", "abc"): lambda f: f,
        ("abc", "ca"): lambda f: lambda x, y: f(x, jnp.expand_dims(jax.lax.transpose(y, (1, 0)), 1)),
        ("c", "abc"): lambda f: lambda x, y: f(jnp.expand_dims(x, (0, 1)), y),
    }[axes]
    return Row(
        name,
        getattr(elementwise, name),
        axes,
        by_hand(getattr(jnp, name)),
        "abc",
        lambda x, y: getattr(np, name)(lined_up(x, axes[0]), lined_up(y, axes[1])),
        domains or ("real", "real"),
        case=case,
    )


SMOOTH = [
    unary("abs"),
    unary("arccos", "unit"),
    unary("arccosh", "above one"),
    unary("arcsin", "unit"),
    unary("arcsinh"),
    unary("arctan"),
    unary("arctanh", "unit"),
    unary("cbrt", "positive"),
    unary("conj"),
    unary("cos"),
    unary("cosh"),
    unary("exp"),
    unary("exp2"),
    unary("expm1"),
    unary("log", "positive"),
    unary("log10", "positive"),
    unary("log1p", "positive"),
    unary("log2", "positive"),
    unary("negative"),
    unary("positive"),
    unary("real"),
    unary("reciprocal", "positive"),
    unary("rsqrt", "positive", jax.lax.rsqrt, lambda x: 1 / np.sqrt(x)),
    unary("sign"),
    unary("sin"),
    unary("sinh"),
    unary("sqrt", "positive"),
    unary("square"),
    unary("stop_gradient", "real", jax.lax.stop_gradient, lambda x: x),
    unary("tan", "unit"),
    unary("tanh"),
    unary("ceil"),
    unary("floor"),
    unary("rint"),
    unary("trunc"),
    unary("round"),
    Row("astype", lambda x: axn.astype(x, jnp.bfloat16), ("abc",), lambda x: x.astype(jnp.bfloat16), "abc"),
    Row(
        "clip",
        lambda x, low, high: axn.clip(x, low, high),
        ("abc", "a", ""),
        lambda x, low, high: jnp.minimum(jnp.maximum(x, jnp.expand_dims(low, (1, 2))), high),
        "abc",
        lambda x, low, high: np.clip(x, low[:, None, None], high),
        ("real", "unit", "positive"),
    ),
    binary("add"),
    binary("add", axes=("c", "abc"), case="behind"),
    binary("add", axes=("abc", "abc"), case="equal"),
    binary("arctan2"),
    binary("divide", "real", "positive"),
    binary("fmod", "real", "positive"),
    binary("hypot"),
    binary("logaddexp"),
    binary("maximum"),
    binary("minimum"),
    binary("multiply"),
    binary("power", "positive", "real"),
    binary("power", "positive", "real", axes=("c", "abc"), case="behind"),
    binary("remainder", "real", "positive"),
    binary("subtract"),
    binary("subtract", axes=("c", "abc"), case="behind"),
]
STEPS = [
    unary("imag", "complex"),
    unary("isfinite", "special"),
    unary("isinf", "special"),
    unary("isnan", "special"),
    binary("floor_divide", "real", "positive"),
    Row(
        "divmod",
        axn.divmod,
        ("abc", "abc"),
        jnp.divmod,
        ("abc", "abc"),
        np.divmod,
        ("real", "positive"),
    ),
]


def finite(x: jax.Array) -> jax.Array:
    """Give the fill for NaN, which jnp would treat as a constant if left out."""
    return jnp.nan_to_num(x, nan=0.0)


# Functions whose engine the rows above have put through all laws.
PLAIN_SMOOTH = [
    unary("copy", reference=jnp.copy),
    binary("copysign"),
    unary("deg2rad"),
    unary("fabs"),
    binary("float_power", "positive", "real"),
    binary("fmax"),
    binary("fmin"),
    binary("heaviside"),
    unary("i0"),
    binary("ldexp", "real", "shift"),
    binary("logaddexp2"),
    Row("modf", axn.modf, ("abc",), jnp.modf, ("abc", "abc"), np.modf),
    unary("nan_to_num", "real", finite),
    unary("rad2deg"),
    unary("sinc"),
]
PLAIN_STEPS = [
    unary("angle", "complex"),
    Row("angle", lambda z: axn.angle(z, deg=True), ("abc",), lambda z: jnp.angle(z, deg=True), "abc", case="degrees"),
    Row("frexp", axn.frexp, ("abc",), jnp.frexp, ("abc", "abc"), np.frexp),
    binary("gcd", "int", "int"),
    binary("lcm", "int", "int"),
    unary("nan_to_num", "special", finite),
    Row(
        "nan_to_num",
        lambda x, low, nan: axn.nan_to_num(x, nan, neginf=low),
        ("abc", "ca", ""),
        lambda x, low, nan: jnp.nan_to_num(x, nan=nan, neginf=jnp.expand_dims(jnp.transpose(low), 1)),
        "abc",
        lambda x, low, nan: np.where(
            np.isneginf(x), low.T[:, None], np.where(np.isnan(x), nan, np.minimum(x, np.finfo(x.dtype).max))
        ),
        ("special", "real", "real"),
        case="by name",
    ),
    binary("nextafter"),
    unary("spacing"),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH + STEPS + PLAIN_SMOOTH + PLAIN_STEPS, elementwise)


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws, gradients included."""


@pytest.mark.parametrize("row", STEPS, ids=str)
class TestSteps(Laws):
    """All laws but the gradient."""


class SameProgram:
    """Nothing is added to positional code."""

    def test_has_no_more_equations_than_positional_code(self, row: Row) -> None:
        Laws().same_program(row, row.draw(8))


@pytest.mark.parametrize("row", PLAIN_SMOOTH, ids=str)
class TestPlainSmooth(SmoothBulk, SameProgram):
    """Fewer examples, gradients included."""


@pytest.mark.parametrize("row", PLAIN_STEPS, ids=str)
class TestPlainSteps(Bulk, SameProgram):
    """Fewer examples."""


# Operands of equal names are the ones whose shardings can differ in every way.
PAIRS = ["arctan2", "divide", "floor_divide", "fmod", "hypot", "logaddexp", "maximum", "power", "remainder"]


@pytest.mark.parametrize("row", [binary(n, "positive", "positive", axes=("abc", "abc")) for n in PAIRS], ids=str)
class TestEqualNames(Sharded):
    """Pairs of arrays on meshes."""


OPERATORS = [
    (operator.add, "positive"),
    (operator.sub, "positive"),
    (operator.mul, "positive"),
    (operator.truediv, "positive"),
    (operator.floordiv, "positive"),
    (operator.mod, "positive"),
    (operator.pow, "positive"),
    (divmod, "positive"),
    (operator.and_, "int"),
    (operator.or_, "int"),
    (operator.xor, "int"),
    (operator.lshift, "shift"),
    (operator.rshift, "shift"),
    (operator.eq, "int"),
    (operator.ne, "int"),
    (operator.lt, "int"),
    (operator.le, "int"),
    (operator.gt, "int"),
    (operator.ge, "int"),
]


@pytest.mark.parametrize(("op", "domain"), OPERATORS, ids=lambda part: getattr(part, "__name__", None))
class TestOperators:
    """An operator is its function, on both sides and with every kind of scalar."""

    def test_two_arrays(self, op: Any, domain: str) -> None:
        rows = Row(op.__name__, op, ("abc", "bc"), lambda x, y: op(x, y[None]), ("abc",), domains=(domain, domain))
        arrays = rows.draw(0)
        result = op(axn.named(arrays[0], ("a", "b", "c")), axn.named(arrays[1].T, ("c", "b")))
        for got, expected in zip(rows.results(result), rows.results(rows.reference(*arrays)), strict=True):
            assert got.names == ("a", "b", "c")
            assert_close(got.array, np.asarray(expected))

    def test_a_scalar_on_either_side(self, op: Any, domain: str) -> None:
        row = Row("", op, ("bc",), op, "bc", domains=(domain,))
        array = jax.device_put(row.draw(0)[0])
        x = axn.named(array, ("b", "c"))
        both_sides = lambda x: (op(x, 2), op(2, x))  # noqa: E731
        for got, expected in zip(*jax.jit(lambda *given: [both_sides(x) for x in given])(x, array), strict=True):
            for one, value in zip(row.results(got), row.results(expected), strict=True):
                assert one.names == ("b", "c")
                assert_close(one.array, value)


@pytest.mark.parametrize("scalar", [2, np.int32(2), np.array(2), jnp.asarray(2)], ids=lambda x: type(x).__name__)
def test_every_kind_of_scalar(scalar: Any) -> None:
    array = jnp.arange(3)
    x = axn.named(array, "a")
    assert_close((scalar - x).array, scalar - array)
    assert_close((x - scalar).array, array - scalar)


@pytest.mark.parametrize("op", [operator.neg, operator.pos, operator.abs, operator.invert], ids=lambda f: f.__name__)
def test_an_operator_of_one_array(op: Any) -> None:
    array = jnp.array([[1, -2], [3, 0]])
    result = op(axn.named(array, ("b", "c")))
    assert result.names == ("b", "c")
    assert_close(result.array, op(array))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8, jnp.complex64, bool])
@pytest.mark.parametrize("scalar", [2, 2.0, True, 1j, np.float32(2), jnp.float32(2)], ids=repr)
def test_a_scalar_is_as_weak_as_in_jnp(dtype: Any, scalar: Any) -> None:
    array = jnp.ones(3, dtype)
    x = axn.named(array, "a")
    for op in (lambda x: x * scalar, lambda x: scalar * x, lambda x: x <= scalar):
        assert program(op, x) == program(op, array)
    if dtype is not jnp.float32:
        got, expected = jax.jit(lambda x, array: (x * scalar, array * scalar))(x, array)
        assert_close(got.array, expected)


PAIRWISE = [
    name
    for module in (elementwise, logical)
    for name in module.__all__
    if list(inspect.signature(getattr(module, name)).parameters)[:2] == ["x", "y"]
    and name not in {"allclose", "array_equal", "array_equiv"}  # no elementwise result
]


def test_the_functions_of_pairs_are_found() -> None:
    assert {"add", "copysign", "divmod", "isclose", "right_shift"} < set(PAIRWISE)


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.complex64])
def test_each_function_of_pairs_takes_scalars_as_weak_as_jnp_does(name: str, dtype: Any) -> None:
    named, positional, array = getattr(axn, name), getattr(jnp, name), jnp.ones(3, dtype)
    x = axn.named(array, "a")
    for scalar in (2, 0.5):
        for got, expected in (
            (lambda x: named(x, scalar), lambda x: positional(x, scalar)),  # noqa: B023  # called at once
            (lambda x: named(scalar, x), lambda x: positional(scalar, x)),  # noqa: B023
        ):
            types = [outcome(lambda: program(*call)[1]) for call in ((got, x), (expected, array))]  # noqa: B023
            assert types[0] == types[1]


def test_bfloat16_stays_bfloat16() -> None:
    x = axn.ones(axn.Axis("a", 3), jnp.bfloat16)
    assert {(x * 2.0).dtype, (2 + x).dtype, (x / 3).dtype, (x**2).dtype, axn.maximum(x, 0.5).dtype} == {x.dtype}


def test_a_small_integer_power_is_multiplied_out() -> None:
    x = axn.ones(axn.Axis("a", 3))
    assert count_equations(lambda x: x**2, x) <= count_equations(lambda x: x**2, x.array)
    assert count_equations(lambda x: x**0.5, x) <= count_equations(lambda x: x**0.5, x.array)


def test_round_to_decimals() -> None:
    x = axn.named([1.234, -5.678], "a")
    np.testing.assert_allclose(np.asarray(x.round(1)), [1.2, -5.7], rtol=1e-6)


def test_clip_needs_no_bound() -> None:
    x = axn.named([-2.0, 0.0, 2.0], "a")
    assert x.clip(-1).tolist() == [-1, 0, 2]
    assert x.clip(a_max=1).tolist() == [-2, 0, 1]
    assert x.clip() is x


def test_a_copy_outlives_the_original() -> None:
    x = axn.named([1.0, 2.0], "a")
    copied = x.copy()
    x.array.delete()
    assert copied.tolist() == [1.0, 2.0]


def test_nan_to_num_replaces_each_kind() -> None:
    x = axn.named([jnp.nan, jnp.inf, -jnp.inf, 1.0], "a")
    assert axn.nan_to_num(x, 2, 3, -3).tolist() == [2, 3, -3, 1]
    assert axn.nan_to_num(x.astype(jnp.bfloat16), 2.0).dtype == jnp.bfloat16


def test_frexp_is_undone_by_ldexp() -> None:
    x = axn.named([0.0, 1.0, -2.5, 1e30], "a")
    assert axn.array_equal(axn.ldexp(*axn.frexp(x)), x)


def test_real_and_imag_are_properties() -> None:
    x = axn.named(jnp.array([1 + 2j, 3 - 4j]), "a")
    assert (x.real.tolist(), x.imag.tolist(), x.real.names) == ([1, 3], [2, -4], ("a",))


def test_results_of_zero_dimensional_arrays() -> None:
    x = axn.named(2.0, ())
    assert axn.exp(x).names == ()
    assert (x + axn.named([1.0, 2.0], "a")).names == ("a",)
    assert (x * x).item() == 4.0


BATCH = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 3)))
OTHER = axn.ones((axn.Axis("batch", 4), axn.Axis("mlp", 5)))
WIDER = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 5)))
SINGLE = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 1)))
MISSPELT = axn.ones((axn.Axis("batch", 4), axn.Axis("embd", 3)))
SIZES = "  operand 1 has: batch=4, embed=3\n  operand 2 has: batch=4, embed="
CUT = (
    '\n  hint: if they are the same axis, cut the longer one, x["embed", :3]; '
    'if not, rename one: x.rename({"embed": ...})'
)
STRETCHED = '\n  hint: an axis of size 1 is not stretched: drop it, x["embed", 0]'
TEXTS = [
    (
        "another size",
        lambda: BATCH + WIDER,
        AxisSizeError,
        f"add: axis 'embed' has two sizes: 3 and 5\n{SIZES}5{CUT}",
    ),
    (
        "size one is a size",
        lambda: BATCH + SINGLE,
        AxisSizeError,
        f"add: axis 'embed' has two sizes: 3 and 1\n{SIZES}1{STRETCHED}",
    ),
    (
        "size one in the smaller operand",
        lambda: BATCH - SINGLE["batch", 0],
        AxisSizeError,
        "subtract: axis 'embed' has two sizes: 3 and 1\n"
        f"  operand 1 has: batch=4, embed=3\n  operand 2 has: embed=1{STRETCHED}",
    ),
    (
        "neither contains the other",
        lambda: axn.maximum(BATCH, OTHER),
        BroadcastError,
        "maximum: no operand has the axes of all others\n"
        "  operand 1 has: batch=4, embed=3\n"
        "  operand 2 has: batch=4, mlp=5\n"
        "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(mlp)",
    ),
    (
        "a misspelt name",
        lambda: BATCH * MISSPELT,
        BroadcastError,
        "multiply: no operand has the axes of all others\n"
        "  operand 1 has: batch=4, embed=3\n"
        "  operand 2 has: batch=4, embd=3\n"
        "  hint: did you mean 'embed'? Or: if the outer product is meant, "
        "give an operand the others' axes first: x.broadcast_axis(embd)",
    ),
    (
        "text",
        lambda: BATCH + "1",
        OperandError,
        "add: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        "None",
        lambda: None * BATCH,
        OperandError,
        "multiply: cannot combine a NamedArray and NoneType\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        "numpy on the left",
        lambda: np.ones(3) + BATCH,
        OperandError,
        "add: cannot combine a plain array of shape (3,) with axes batch, embed\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
    (
        "jax on the left",
        lambda: jnp.ones(3) / BATCH,
        OperandError,
        "divide: cannot combine a plain array of shape (3,) with axes batch, embed\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
    (
        "a plain array of one element",
        lambda: BATCH ** np.ones(1),
        OperandError,
        "power: cannot combine a plain array of shape (1,) with axes batch, embed\n"
        "  hint: name it first: axn.named(array, (...)); plain operands must be scalars",
    ),
    (
        "no name at all, one operand",
        lambda: axn.exp(np.ones(3)),
        OperandError,
        "exp: expected a NamedArray, got a plain array\n"
        "  its shape: (3,)\n"
        '  hint: name its dimensions first: axn.named(array, "batch")',
    ),
    (
        "no name at all, two operands",
        lambda: axn.add(1, 2.0),
        OperandError,
        'add: expected a NamedArray, got int\n  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "two results",
        lambda: divmod(BATCH, WIDER),
        AxisSizeError,
        f"divmod: axis 'embed' has two sizes: 3 and 5\n{SIZES}5{CUT}",
    ),
    (
        "two results of no name at all",
        lambda: axn.modf(1.5),
        OperandError,
        "modf: expected a NamedArray, got float\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "a fill of another size",
        lambda: axn.nan_to_num(BATCH, posinf=WIDER),
        AxisSizeError,
        "nan_to_num: axis 'embed' has two sizes: 3 and 5\n"
        f"  operand 1 has: batch=4, embed=3\n  operand 2 has: no axes\n  operand 3 has: batch=4, embed=5{CUT}",
    ),
    (
        "a fill that is text",
        lambda: axn.nan_to_num(BATCH, "0"),
        OperandError,
        "nan_to_num: cannot combine a NamedArray and str\n  hint: operands are NamedArrays, scalars or 0-d arrays",
    ),
    (
        "clip by unrelated axes",
        lambda: BATCH.clip(OTHER),
        BroadcastError,
        "clip: no operand has the axes of all others\n"
        "  operand 1 has: batch=4, embed=3\n"
        "  operand 2 has: batch=4, mlp=5\n"
        "  hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(mlp)",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [text[1:] for text in TEXTS], ids=[case for case, *_ in TEXTS])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


@pytest.mark.parametrize("fn", [axn.gcd, axn.lcm])
def test_divisors_of_operands_that_vary_over_other_devices(auto_mesh: jax.sharding.Mesh, fn: Any) -> None:
    x, y = (
        axn.named(np.arange(8, dtype=np.int8)[:, None] + np.int8(1), ("batch", "embed")),
        axn.named(np.uint8([4]), "embed"),
    )
    expected = fn(x, y)
    found = axn.shard_map(fn, {"batch": "data"}, auto_mesh)(x, y)
    np.testing.assert_array_equal(found.rearrange(expected.names).array, expected.array)


@pytest.mark.parametrize("fn", [axn.gcd, axn.lcm])
def test_divisors_of_nothing(explicit_mesh: jax.sharding.Mesh, fn: Any) -> None:
    """XLA would not survive the loop of JAX."""
    with axn.set_mesh(explicit_mesh):
        x = axn.shard(axn.zeros((axn.Axis("batch", 8), axn.Axis("embed", 0)), "int32"), {"batch": "data"})
        found = jax.jit(fn)(x, x)
    assert found.shape == {"batch": 8, "embed": 0}
    assert found.dtype == jnp.int32
