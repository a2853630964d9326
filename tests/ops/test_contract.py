"""Contractions: laws over one row per form."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError, ShardingError
from axonym.ops import contract
from tests.laws import SIZES, Row, Smooth, Values, assert_close, count_equations, has_row_for_each, placed, stored


def as_they_appear(removed: str) -> Any:
    return lambda *stored: "".join(name for name in dict.fromkeys("".join(stored)) if name not in removed)


def row(case: str, equation: str, reference: Any, names: Any = None, **options: Any) -> Row:
    """Make a row; numpy's einsum over the same letters is the oracle."""
    inputs, out = equation.split("->")
    operands = tuple(inputs.split(","))
    removed = "".join(dict.fromkeys(name for name in inputs if name not in f"{out},"))
    axis = tuple(removed)
    return Row(
        "dot",
        lambda *arrays: axn.dot(*arrays, axis=axis, **options),
        operands,
        reference or (lambda *arrays: jnp.einsum(equation, *arrays)),
        out,
        lambda *arrays: np.einsum(equation, *arrays),
        names=names or as_they_appear(removed),
        case=case,
    )


SMOOTH = [
    row("matrix", "ab,bc->ac", lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())))),
    row("vector", "abc,c->ab", lambda x, y: lax.dot_general(x, y, (((2,), (0,)), ((), ())))),
    row("batched", "abc,acj->abj", lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,))))),
    row("two axes", "abc,cbi->ai", lambda x, y: lax.dot_general(x, y, (((1, 2), (1, 0)), ((), ())))),
    row("to a scalar", "ab,ab->", lambda x, y: lax.dot_general(x, y, (((0, 1), (0, 1)), ((), ())))),
    row(
        "out_axes",
        "ab,bc->ca",
        lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ()))).T,
        lambda x, y: "ca",
        out_axes=("c", "a"),
    ),
    Row(
        "outer",
        lambda x, y: contract.outer(x, y),
        ("bc", "cj"),
        lambda x, y: x[:, :, None] * y,
        "bcj",
        lambda x, y: np.einsum("bc,cj->bcj", x, y),
        names=lambda x, y: [(*x, *(name for name in y if name not in x))],
    ),
]
VARIANTS = [
    row("outer", "ab,i->abi", None),
    row("elementwise", "ab,ab->ab", None),
    row("one array", "abc->ac", None),
    row("three arrays", "ab,bc,ci->ai", None),
    row("three arrays share one axis", "ab,b,bc->ac", None),
    row("batch in the middle", "bac,cia->bai", None),
    row("out_axes with dots", "abc,ci->iab", None, lambda x, y: "i" + x.replace("c", ""), out_axes=("i", ...)),
    row("no axes at all", ",->", None),
    row("a scalar", "ab,->ab", None),
]


def test_every_function_has_a_row() -> None:
    has_row_for_each(SMOOTH, contract, without=["einsum"])  # its three forms fill a file: test_expressions.py


@pytest.mark.parametrize("row", SMOOTH, ids=str)
class TestSmooth(Smooth):
    """All laws."""


@pytest.mark.parametrize("row", VARIANTS, ids=str)
class TestVariants(Values):
    """Values and names of the rarer forms."""


A, B, C = axn.make_axes(a=4, b=2, c=3)


def test_axis_none_sums_over_all() -> None:
    x, y = axn.ones((A, B)), axn.ones((B, C))
    assert (axn.dot(x, y, axis=None).names, axn.dot(x, y, axis=None).item()) == ((), 24.0)
    assert axn.dot(x, axis=None).item() == 8.0


def test_the_method_is_the_function() -> None:
    x, y = axn.ones((A, B)), axn.ones((B, C))
    assert x.dot(y, axis=B).axes == (A, C)


def test_dtypes_are_promoted_and_can_be_chosen() -> None:
    x = axn.ones((A, B), jnp.bfloat16)
    assert axn.dot(x, x, axis="b").dtype == jnp.bfloat16
    assert axn.dot(x, axn.ones(B), axis="b").dtype == jnp.float32
    assert axn.dot(x, x, axis="b", preferred_element_type=jnp.float32).dtype == jnp.float32
    # On the CPU all products are precise: look at what the compiler is asked for.
    asked = jax.jit(lambda x: axn.dot(x, x, axis="b", precision="highest")).lower(x).as_text()
    by_hand = jax.jit(lambda x: jnp.vecdot(x, x, precision="highest")).lower(x.array).as_text()
    assert re.findall(r"precision = \[.*?\]", asked) == re.findall(r"precision = \[.*?\]", by_hand) != []


def test_integers_beside_a_narrow_float() -> None:
    x, mask = axn.named(jnp.ones((2, 3), "bfloat16"), ("b", "i")), axn.named([[1, 2], [3, 4], [5, 6]], ("i", "j"))
    product = axn.dot(x, mask, mask > 1, axis=("i", "j"))
    assert product.dtype == jnp.bfloat16
    assert product.tolist() == [20, 20]
    assert axn.einsum("{i}, {i}, {i} -> ...", x, mask, mask).tolist() == [[35, 56], [35, 56]]


def test_empty_axes() -> None:
    empty = axn.Axis("e", 0)
    result = axn.dot(axn.ones((A, empty)), axn.ones((empty, C)), axis="e")
    assert_close(result.array, jnp.zeros((4, 3)))


def test_a_permuted_operand_needs_no_transpose() -> None:
    x, y = axn.ones((A, B)), axn.ones((C, B))
    assert count_equations(lambda x, y: axn.dot(x, y, axis="b"), x, y) <= count_equations(
        lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ()))), x.array, y.array
    )


BOOLS = {
    "a product": lambda x, w: axn.dot(x, w, axis="e"),
    "an axis that one has": lambda x, w: axn.einsum("b e, k m -> b m", x, w.rename({"e": "k"})),
    "three": lambda x, w: axn.dot(x, w, x, axis=("e", "b")),
    "one": lambda x, w: axn.dot(x, axis="e"),
    "all": lambda x, w: axn.dot(x, axis=None),
    "a pattern": lambda x, w: axn.einsum("-> e", x),
    "counted": lambda x, w: axn.dot(x, axis="e", preferred_element_type=jnp.int32),
    "pairs counted": lambda x, w: axn.einsum("b e, k m -> b m", x, w.rename({"e": "k"}), preferred_element_type=int),
}


@pytest.mark.parametrize("kind", ["explicit_mesh", "mixed_mesh"])
def test_bools_are_contracted_on_every_mesh(kind: str, request: pytest.FixtureRequest) -> None:
    draw = np.random.default_rng(0).integers
    x, w = draw(0, 2, (8, 4)) == draw(0, 2, (8, 4)), draw(0, 3, (4, 8)) == 0
    expected = {
        "a product": x @ w,
        "an axis that one has": np.outer(x.any(1), w.any(0)),
        "three": np.einsum("be,em,be->m", x, w, x),
        "one": x.any(1),
        "all": x.any(),
        "a pattern": x.any(0),
        "counted": x.sum(1, dtype=np.int32),
        "pairs counted": np.outer(x.sum(1), w.sum(0)).astype(np.int32),
    }
    with axn.set_mesh(request.getfixturevalue(kind)):
        given = axn.shard((axn.named(x, ("b", "e")), axn.named(w, ("e", "m"))), {"e": "data"})
        results = jax.jit(lambda x, w: {case: fn(x, w) for case, fn in BOOLS.items()})(*given)
    for case, wanted in expected.items():
        assert results[case].dtype == wanted.dtype, case
        np.testing.assert_array_equal(results[case].array, wanted, case)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_the_mapping_decides_the_layout_of_the_result(kind: str, request: pytest.FixtureRequest) -> None:
    mesh = request.getfixturevalue(f"{kind}_mesh")
    Batch, Embed, Mlp = axn.make_axes(batch=8, embed=16, mlp=4)
    with jax.set_mesh(mesh), axn.axis_mapping({"batch": "data", "mlp": "model"}):
        x, w = axn.shard(axn.ones((Batch, Embed))), axn.shard(axn.ones((Embed, Mlp)))
        result = jax.jit(lambda x, w: axn.dot(x, w, axis=Embed))(x, w)
        assert result.sharding.spec == jax.sharding.PartitionSpec("data", "model")
        np.testing.assert_array_equal(result.array, 16)


def test_a_result_that_the_mapping_cannot_lay_out_is_refused(auto_mesh: jax.sharding.Mesh) -> None:
    x, w = axn.ones((axn.Axis("batch", 6), B)), axn.ones((B, C))
    with (
        jax.set_mesh(auto_mesh),
        axn.axis_mapping({"batch": "data"}),
        pytest.raises(ShardingError, match="batch=6 cannot be split evenly in 4 over mesh axis data"),
    ):
        axn.dot(x, w, axis="b")


class Scaled:
    """A product of another kind: it works on rounded numbers, and holds an array."""

    def __init__(self, scale: Any) -> None:
        self.scale = scale
        self.calls: list[Any] = []

    def __call__(
        self, x: Any, y: Any, dimension_numbers: Any, precision: Any = None, preferred_element_type: Any = None
    ) -> Any:
        self.calls.append((x.shape, y.shape, dimension_numbers, precision, preferred_element_type))
        x, y = jnp.round(x * self.scale), jnp.round(y * self.scale)
        product = lax.dot_general(x, y, dimension_numbers, precision, preferred_element_type)
        return product / self.scale**2


CUSTOM: list[tuple[str, Any, list[Any]]] = [
    ("ab,bc->ac", {}, [((4, 2), (2, 3), (((1,), (0,)), ((), ())), None, None)]),
    ("abc,acj->abj", {}, [((4, 2, 3), (4, 3, 5), (((2,), (1,)), ((0,), (0,))), None, None)]),
    (
        "ab,bc,ci->ai",
        {"precision": "highest", "preferred_element_type": jnp.float32},
        [
            ((4, 2), (2, 3), (((1,), (0,)), ((), ())), "highest", jnp.float32),
            ((4, 3), (3, 8), (((1,), (0,)), ((), ())), "highest", jnp.float32),
        ],
    ),
    (
        "ab,b,bc->ac",
        {},
        [((4, 2), (2,), (((), ()), ((1,), (0,))), None, None), ((2, 4), (2, 3), (((0,), (0,)), ((), ())), None, None)],
    ),
    ("ab,i->iab", {}, [((4, 2), (8,), (((), ()), ((), ())), None, None)]),
    ("a->", {}, []),
]


@pytest.mark.parametrize("form", ["dot", "einsum"])
@pytest.mark.parametrize(("equation", "options", "calls"), CUSTOM, ids=[custom[0] for custom in CUSTOM])
def test_a_product_of_another_kind_multiplies_pair_by_pair(
    form: str, equation: str, options: Any, calls: list[Any]
) -> None:
    inputs, out = equation.split("->")
    rng = np.random.default_rng(0)
    arrays = [
        stored(rng.integers(-9, 9, [SIZES[n] for n in names]).astype(np.float32), names, names)
        for names in inputs.split(",")
    ]
    product = Scaled(4.0)  # exact on integers, so that only its calls tell that it was used
    if form == "dot":
        axis = tuple(dict.fromkeys(name for name in inputs if name not in f"{out},"))
        result = axn.dot(*arrays, axis=axis, out_axes=tuple(out), dot_general=product, **options)
    else:
        result = axn.einsum(f"-> {' '.join(out)}", *arrays, dot_general=product, **options)
    assert result.names == tuple(out)
    assert_close(result.array, np.einsum(equation, *(np.asarray(x.array) for x in arrays)))
    assert product.calls == calls


def test_a_product_of_another_kind_gets_narrow_numbers_as_they_are() -> None:
    dtypes: list[Any] = []

    def product(x: Any, y: Any, *args: Any, **options: Any) -> Any:
        dtypes.append((str(x.dtype), str(y.dtype)))
        return lax.dot_general(x, y, *args, **options)

    x = axn.full(A, 1.5).astype(jnp.float32)
    for narrow in (jnp.int4, jnp.int8, jnp.float8_e4m3fn):
        assert_close(axn.dot(x, axn.full(A, 2).astype(narrow), axis=A, dot_general=product).array, 3.0 * A.size)
    axn.dot(x, axn.ones(A, dtype=jnp.bfloat16), axis=A, dot_general=product)
    axn.dot(axn.arange(A) < 9, x, axis=A, dot_general=product)
    narrow_to_wide = [("float32", "int4"), ("float32", "int8"), ("float32", "float8_e4m3fn")]
    assert dtypes == narrow_to_wide + 2 * [("float32", "float32")]


def test_weak_types_give_way() -> None:
    narrow, mask = axn.ones(A, dtype=jnp.bfloat16), axn.where(axn.arange(A) > 0, 1.0, 0.0)
    for arrays in ((narrow, mask), (mask, narrow), (narrow, mask, narrow)):
        expected = jnp.einsum(",".join("a" * len(arrays)) + "->", *(x.array for x in arrays))
        assert axn.dot(*arrays, axis=A).dtype == expected.dtype == jnp.bfloat16
    assert axn.dot(axn.full(A, 2), narrow, axis=A).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (np.full(4, 100, np.int8), {}),
        (np.array([False, True, False, False]), {}),
        (np.array([1, 2**-9, 2**-9, 2**-9], jnp.bfloat16), {"preferred_element_type": jnp.float32}),
    ],
    ids=["int8", "bool", "accumulated"],
)
def test_a_sum_before_a_product_of_another_kind_has_the_type_of_any_other(values, options) -> None:
    def product(*given: Any, **more: Any) -> jax.Array:
        return lax.dot_general(*given, **more)

    x, one = axn.named(values, "a"), axn.ones(B, dtype=values.dtype)
    found = axn.einsum("a, b -> b", x, one, dot_general=product, **options)
    expected = jnp.einsum("a,b->b", x.array, one.array, **options)
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


def test_an_order_of_one_axis() -> None:
    x = axn.ones((A, B))
    assert axn.dot(x, x, axis=B, out_axes="a").axes == axn.dot(x, x, axis=B, out_axes=A).axes == (A,)


def test_what_only_one_array_has_is_summed_before_a_product_of_another_kind() -> None:
    product = Scaled(1.0)
    result = axn.einsum("{b}, {c} -> a", axn.ones((A, B)), axn.ones((A, C)), dot_general=product)
    assert result.tolist() == [6.0] * 4
    assert [call[:2] for call in product.calls] == [((4,), (4,))]


def test_a_product_of_another_kind_may_hold_traced_arrays() -> None:
    x, y = axn.ones((A, B)), axn.ones((B, C))

    @jax.jit
    def total(scale: jax.Array) -> jax.Array:
        mixed = axn.dot(x.astype(jnp.bfloat16), y, axis="b", dot_general=Scaled(scale))
        return (mixed + axn.einsum("a b, b c -> a c", x, y, dot_general=Scaled(scale))).sum().scalar()

    for scale in (1.0, 2.0):
        assert total(jnp.float32(scale)) == 48


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_product_of_another_kind_works_on_a_mesh(kind: str, request: pytest.FixtureRequest) -> None:
    mesh = request.getfixturevalue(f"{kind}_mesh")
    x, y = axn.arange((A, B), dtype=float), axn.arange((B, axn.Axis("d", 4)), dtype=float)
    with jax.set_mesh(mesh), axn.axis_mapping({"a": "data", "d": "model"}):
        on_mesh = [placed(x, mesh, {"b": "model"}) for x in (x, y)]
        result = jax.jit(lambda x, y: axn.dot(x, y, y, axis="b", dot_general=Scaled(1.0)))(*on_mesh)
        assert result.sharding.spec == jax.sharding.PartitionSpec("data", "model")
    np.testing.assert_allclose(np.asarray(result.array), np.einsum("ab,bd,bd->ad", x.array, y.array, y.array))


INPUT = axn.ones((axn.Axis("batch", 4), axn.Axis("embed", 6))), axn.ones((axn.Axis("embed", 6), axn.Axis("mlp", 5)))

BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "axn.dot(x, w, axis='embd')",
        lambda x, w: axn.dot(x, w, axis="embd"),
        AxisNotFoundError,
        "dot: no axis named 'embd'\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=6, mlp=5\n"
        "  hint: did you mean 'embed'?",
    ),
    (
        "axn.dot(x, w, axis='batch')",
        lambda x, w: axn.dot(x, w, axis="batch"),
        AxisNotFoundError,
        "dot: axis 'batch' is to be summed over, but only operand 1 has it\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=6, mlp=5\n"
        '  hint: if it is meant, sum that operand first: x.sum("batch")',
    ),
    (
        "axn.dot(x, w.rename({'embed': 'embd'}), axis='embed')",
        lambda x, w: axn.dot(x, w.rename({"embed": "embd"}), axis="embed"),
        AxisNotFoundError,
        "dot: axis 'embed' is to be summed over, but only operand 1 has it\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embd=6, mlp=5\n"
        "  hint: did you mean 'embd'? Or, if it is meant, sum that operand first: x.sum(\"embed\")",
    ),
    (
        "axn.dot(x, w['embed', :5], axis='embed')",
        lambda x, w: axn.dot(x, w["embed", :5], axis="embed"),
        AxisSizeError,
        "dot: axis 'embed' has two sizes: 6 and 5\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=5, mlp=5\n"
        '  hint: if one is shifted by a place, cut the longer one: x["embed", :-1] or x["embed", 1:]',
    ),
    (
        "axn.dot(x, w['embed', :1], axis='embed')",
        lambda x, w: axn.dot(x, w["embed", :1], axis="embed"),
        AxisSizeError,
        "dot: axis 'embed' has two sizes: 6 and 1\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=1, mlp=5\n"
        '  hint: an axis of size 1 is not stretched: drop it, x["embed", 0]',
    ),
    (
        "axn.dot(x, w, axis=axn.Axis('embed', 5))",
        lambda x, w: axn.dot(x, w, axis=axn.Axis("embed", 5)),
        AxisSizeError,
        "dot: axis 'embed' was given with size 5, but has size 6\n  array has: batch=4, embed=6",
    ),
    (
        "axn.dot(x, w, axis=('embed', 'embed'))",
        lambda x, w: axn.dot(x, w, axis=("embed", "embed")),
        AxisClashError,
        "dot: axis 'embed' is given twice\n  axes: embed, embed",
    ),
    (
        "axn.dot(x, w, axis=1)",
        lambda x, w: axn.dot(x, w, axis=1),
        OperandError,
        'dot: 1 is a position, but axes have names\n  array has: batch=4, embed=6\n  hint: write "embed"',
    ),
    (
        "axn.dot(x, w.array, axis='embed')",
        lambda x, w: axn.dot(x, w.array, axis="embed"),
        OperandError,
        "dot: expected a NamedArray, got a plain array\n"
        "  its shape: (6, 5)\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    (
        "axn.dot(x, 2.0, axis='embed')",
        lambda x, w: axn.dot(x, 2.0, axis="embed"),
        OperandError,
        "dot: expected a NamedArray, got float\n"
        '  hint: name its dimensions first: axn.named(array, ("batch", "embed"))',
    ),
    ("axn.dot(axis='embed')", lambda x, w: axn.dot(axis="embed"), AxisNotFoundError, "dot: no axis named 'embed'"),
    (
        "axn.dot(x, w, axis='embed', out_axes=('mlp',))",
        lambda x, w: axn.dot(x, w, axis="embed", out_axes=("mlp",)),
        AxisNotFoundError,
        "dot: the order leaves out batch\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=6, mlp=5\n"
        "  hint: name all axes, or write ... for the others",
    ),
    (
        "axn.dot(x, w, axis='embed', out_axes=('mlp', 'bach'))",
        lambda x, w: axn.dot(x, w, axis="embed", out_axes=("mlp", "bach")),
        AxisNotFoundError,
        "dot: no axis named 'bach'\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=6, mlp=5\n"
        "  hint: did you mean 'batch'?",
    ),
    (
        "axn.dot(x, w, axis='embed', out_axes=('mlp', ..., ...))",
        lambda x, w: axn.dot(x, w, axis="embed", out_axes=("mlp", ..., ...)),
        AxisClashError,
        "dot: the order has more than one ...\n"
        "  operand 1 has: batch=4, embed=6\n"
        "  operand 2 has: embed=6, mlp=5\n"
        "  hint: write ... once",
    ),
    (
        "axn.dot(x, w, axis='embed', out_axes=('mlp', 'mlp', ...))",
        lambda x, w: axn.dot(x, w, axis="embed", out_axes=("mlp", "mlp", ...)),
        AxisClashError,
        "dot: axis 'mlp' would appear twice\n  operand 1 has: batch=4, embed=6\n  operand 2 has: embed=6, mlp=5",
    ),
    (
        "axn.dot(x, w, axis='embed', out_axes=(axn.Axis('mlp', 7), ...))",
        lambda x, w: axn.dot(x, w, axis="embed", out_axes=(axn.Axis("mlp", 7), ...)),
        AxisSizeError,
        "dot: axis 'mlp' was given with size 7, but has size 5\n  array has: embed=6, mlp=5",
    ),
    (
        "axn.dot(x, w, axis='embed', out_axes=(0, 1))",
        lambda x, w: axn.dot(x, w, axis="embed", out_axes=(0, 1)),
        OperandError,
        'dot: 0 is a position, but axes have names\n  array has: batch=4, embed=6\n  hint: write "batch"',
    ),
    (
        "x @ w",
        lambda x, w: x @ w,
        OperandError,
        '@: a product of named arrays needs the axis to sum over\n  hint: write x.dot(y, axis="embed")',
    ),
    (
        "x.array @ w",
        lambda x, w: x.array @ w,
        OperandError,
        '@: a product of named arrays needs the axis to sum over\n  hint: write x.dot(y, axis="embed")',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call(*INPUT)
    assert str(caught.value) == text


def test_outer_products_take_scalars() -> None:
    row = axn.arange(axn.Axis("row", 3))
    found = axn.outer(2.0, row)
    assert found.names == ("row",)
    assert found.tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("other", [(), (2,), (1,), (3, 1), (3, 2)])
def test_anonymous_dimensions_broadcast(other: tuple[int, ...]) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    y = np.arange(math.prod(other) * 4.0).reshape(*other, 4)
    one, two = axn.NamedArray(jnp.asarray(x), ("a", "b")), axn.NamedArray(jnp.asarray(y), ("b",))
    expected = np.einsum("...ab,...b->...a", x, y)
    np.testing.assert_allclose(axn.dot(one, two, axis="b").array, expected)
    np.testing.assert_allclose(axn.einsum("{a b}, {b} -> a", one, two).array, expected)
