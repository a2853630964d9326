"""Annotations: what they hold, under isinstance, beartype, jaxtyping and the typing module; what they refuse to say."""

import copy
import pickle
import runpy
import typing
from pathlib import Path
from typing import Any, Optional

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import PyTree, TypeCheckError, jaxtyped

import axonym as axn
from axonym import NamedArray, typing as axt
from axonym.errors import ArgumentError, AxisClashError, OperandError
from axonym.typing import Bool, Float, Int, Key, Named, Num, bf16, f32, i32

A, B, C = axn.make_axes(a=2, b=3, c=4)


def x(*axes: axn.Axis, dtype: Any = jnp.float32) -> NamedArray:
    return axn.zeros(axes or (A, B, C), dtype=dtype)


AXES = [
    ("a b c", True),
    ("  a  b c ", True),
    ("a c b", False),
    ("a b", False),
    ("b c", False),
    ("a b c d", False),
    ("", False),
    ("...", True),
    (..., True),
    ("a ... c", True),
    ("a b ... c", True),
    ("a b c ...", True),
    ("... a b c", True),
    ("... b c", True),
    ("... a b", False),
    ("a b c ... d", False),
    ("b ...", False),
    (("a", "b", "c"), True),
    (["a", ..., "c"], True),
    (("a", "...", "c"), True),
    (("a b c",), False),  # in a tuple, a name is a name
    (("a=2", "*b", "_"), False),
    ((A, "b", C), True),
    ((A, "b", C.resize(5)), False),
    ((..., C), True),
    ((..., C.resize(5)), False),
    (A, False),
    ({"a": 2, "b": None, "c": 4}, True),
    ({"a": 2, "b": None, "c": 5}, False),
    ({"a", "b", "c"}, True),
    ({"c", "a", "b"}, True),
    (frozenset({"c", "a", B}), True),
    ({"c", "a", B.resize(1)}, False),
    ({"a", "b"}, False),
    ({"a", "b", "c", "d"}, False),
    ({"c", ...}, True),
    ({C, ...}, True),
    ({C.resize(5), ...}, False),
    ({"d", ...}, False),
    ({...}, True),
]


@pytest.mark.parametrize(("axes", "fits"), AXES, ids=map(str, range(len(AXES))))
def test_axes(axes: Any, fits: bool) -> None:
    array = x()
    for annotation in (NamedArray[axes], Named[NamedArray, axes], f32[NamedArray, axes], f32[axes]):
        assert isinstance(array, annotation) is fits
        assert array.matches_axes(annotation) is fits
    assert array.matches_axes(axes) is fits
    # Tracers and shapes are arrays like any other.
    seen = []
    shapes = jax.eval_shape(lambda array: seen.append(isinstance(array, NamedArray[axes])) or array, array)
    assert [*seen, isinstance(shapes, NamedArray[axes])] == [fits, fits]


def test_no_axes() -> None:
    assert all(x().sum().matches_axes(axes) for axes in ("", (), set(), ..., {...}))
    assert not any(x(A).matches_axes(axes) for axes in ("", (), set()))


def test_anonymous_dimensions_are_axes_that_only_dots_stand_for() -> None:
    array = x().untag("a")
    assert all(array.matches_axes(axes) for axes in ("... b c", "... c", "...", {"c", ...}, {"b", "c", ...}))
    assert not any(array.matches_axes(axes) for axes in ("b c", "b ... c", "b c ...", {"b", "c"}))


EVERY = "bool_ bf16 f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 complex64 complex128".split()  # noqa: SIM905
FLOATS, SIGNED, UNSIGNED = {"bf16", "f16", "f32", "f64"}, {"i8", "i16", "i32", "i64"}, {"u8", "u16", "u32", "u64"}
FAMILIES = {
    "Named": set(EVERY),
    "Shaped": set(EVERY),
    "Bool": {"bool_"},
    "Int": SIGNED,
    "UInt": UNSIGNED,
    "Integer": SIGNED | UNSIGNED,
    "Float": FLOATS,
    "Complex": {"complex64", "complex128"},
    "Inexact": FLOATS | {"complex64", "complex128"},
    "Real": FLOATS | SIGNED | UNSIGNED,
    "Num": set(EVERY) - {"bool_"},
    "Key": set(),
}
NUMPY = {"f": "float", "i": "int", "u": "uint"}


def dtype_of(short: str) -> Any:
    """Spell out a short name of a dtype."""
    long = "bfloat16" if short == "bf16" else NUMPY.get(short[0], "") + short[1:] if short[1:].isdigit() else short
    return jnp.dtype(long.removesuffix("_"))


@pytest.mark.parametrize("family", [*FAMILIES, *EVERY])
def test_dtypes(family: str) -> None:
    holds = FAMILIES.get(family, {family})
    annotation = getattr(axt, family)[NamedArray, "a"]
    # Shapes have dtypes that arrays only have with jax_enable_x64.
    arrays = {name: NamedArray(jax.ShapeDtypeStruct((2,), dtype_of(name)), A) for name in EVERY}
    assert {name for name, array in arrays.items() if isinstance(array, annotation)} == holds


def test_every_family_is_tested() -> None:
    listed = {name for name in axt.__all__ if isinstance(getattr(axt, name), axt.DTypeFamily)}
    assert listed == {*FAMILIES, *EVERY}


def test_keys_and_narrow_dtypes() -> None:
    keys = NamedArray(jax.random.split(jax.random.key(0), 2), A)
    assert isinstance(keys, Key[NamedArray, "a"])
    assert isinstance(keys, Named[NamedArray, "a"])
    assert not isinstance(keys, Num[NamedArray, "a"] | Bool[NamedArray, "a"])
    assert isinstance(x(A, dtype=jnp.int4), Int[NamedArray, "a"])
    assert isinstance(x(A, dtype=jnp.float8_e4m3fn), Float[NamedArray, "a"])


def test_the_array_inside() -> None:
    on_host = NamedArray(np.zeros(2, np.float32), A)
    assert isinstance(x(A), f32[jax.Array, "a"])
    assert isinstance(on_host, f32[np.ndarray, "a"])
    assert not isinstance(on_host, f32[jax.Array, "a"])
    assert repr(f32[jax.Array, "a"]) == 'f32[Array, "a"]'
    assert isinstance(jax.eval_shape(lambda: x(A)), Named[jax.ShapeDtypeStruct, "a"])


@pytest.mark.parametrize("thing", [None, 1, "a", np.zeros(2), A, NamedArray, jnp.zeros(2)], ids=repr)
def test_what_is_no_named_array(thing: object) -> None:
    assert not isinstance(thing, NamedArray["..."])


@pytest.mark.parametrize("leaf", [None, 3, "text", (1, 2), jnp.float32, jnp.zeros(()), axn.zeros(A)], ids=repr)
def test_what_jax_puts_into_a_tree_is_answered_for(leaf: object) -> None:
    array = jax.tree.unflatten(jax.tree.structure(x(A)), [leaf])
    assert not isinstance(array, NamedArray["a"])
    assert not isinstance(array, f32[NamedArray, "..."])


def test_one_annotation_is_one_object() -> None:
    assert f32[NamedArray, "a b"] is f32[NamedArray, ("a", "b")] is f32["a  b"]
    assert NamedArray["a b"] is Named[NamedArray, ["a", "b"]] is NamedArray["a", "b"] is axt.annotation("a b")
    assert NamedArray[{"a", "b", ...}] is NamedArray[{..., "b", "a"}]
    assert f32[NamedArray, "a"] is not Float[NamedArray, "a"]
    assert NamedArray["a b"] is not NamedArray[{"a", "b"}]
    assert NamedArray["a"] != NamedArray[A]


TEXTS = [
    (NamedArray["a ... b"], 'NamedArray["a ... b"]'),
    (NamedArray[""], 'NamedArray[""]'),
    (f32[NamedArray, "a b"], 'f32[NamedArray, "a b"]'),
    (Named[np.ndarray, "a"], 'Named[ndarray, "a"]'),
    (Float[NamedArray, (A, ..., "b")], 'Float[NamedArray, (Axis("a", 2), ..., "b")]'),
    (NamedArray[A], 'NamedArray[(Axis("a", 2),)]'),
    (NamedArray[("a b", "c")], 'NamedArray[("a b", "c")]'),
    (NamedArray["a-b _c 2d β.out x/1"], 'NamedArray["a-b _c 2d β.out x/1"]'),
    (NamedArray["a=2", ..., "_"], 'NamedArray[("a=2", ..., "_")]'),
    (NamedArray[("2",)], 'NamedArray[("2",)]'),
    (bf16[NamedArray, {"b", "a", ...}], 'bf16[NamedArray, {"a", "b", ...}]'),
]


@pytest.mark.parametrize(("annotation", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_printing_and_pickling(annotation: Any, text: str) -> None:
    assert repr(annotation) == text
    assert repr(annotation | None) == f"{text} | None"
    assert pickle.loads(pickle.dumps(annotation)) is copy.deepcopy(annotation) is annotation
    names = {"NamedArray": NamedArray, "Axis": axn.Axis, "ndarray": np.ndarray}
    assert eval(text, vars(axt) | names) is annotation


def test_the_typing_module() -> None:
    def f(x: 'f32[NamedArray, "a"] | None', y: Optional[i32[NamedArray, "b"]] = None) -> NamedArray["a"]: ...  # noqa: UP045

    hints = typing.get_type_hints(f)
    assert hints["x"] == f32[NamedArray, "a"] | None
    assert typing.get_args(hints["y"]) == (i32[NamedArray, "b"], type(None))
    assert hints["return"] is NamedArray["a"]
    assert isinstance(x(A), hints["x"])
    assert isinstance(None, hints["x"])
    assert not isinstance(x(B), hints["x"])
    assert isinstance(x(A), (NamedArray["b"], NamedArray["a"]))


CHECKERS = {"beartype": beartype, "jaxtyping": jaxtyped(typechecker=beartype)}
VIOLATIONS = (BeartypeCallHintViolation, TypeCheckError)


@pytest.mark.parametrize("checked", CHECKERS.values(), ids=CHECKERS)
def test_functions(checked: Any) -> None:
    @checked
    def total(
        x: f32[NamedArray, "a b"], w: NamedArray["b"] | None = None, *, axis: str = "b"
    ) -> Float[NamedArray, "a"]:
        return (x if w is None else x * w).sum(axis)

    assert total(x(A, B), x(B)).names == ("a",)
    assert jax.jit(total)(x(A, B), x(B)).names == ("a",)
    assert jax.grad(lambda x: total(x).sum().scalar())(x(A, B)).names == ("a", "b")
    for call, text in [
        (lambda: total(x(B, A)), 'f32[NamedArray, "a b"]'),
        (lambda: total(x(A, B, dtype=jnp.int32)), 'f32[NamedArray, "a b"]'),
        (lambda: total(x(A, B), x(C)), 'NamedArray["b"] | None'),
        (lambda: total(x(A, B), axis="a"), 'Float[NamedArray, "a"]'),
        (lambda: jax.jit(total)(x(B, A)), 'f32[NamedArray, "a b"]'),
    ]:
        with pytest.raises(VIOLATIONS) as caught:
            call()
        assert text in str(caught.value)


def test_fields_of_modules() -> None:
    @jaxtyped(typechecker=beartype)
    class Layer(eqx.Module):
        weight: f32[NamedArray, "a b"]
        bias: NamedArray["b"] | None = None

        def __call__(self, x: NamedArray[{"a", ...}]) -> NamedArray[{"b", ...}]:
            return axn.dot(x, self.weight, axis="a")

    layer = Layer(x(A, B))
    assert layer(x(C, A)).names == ("c", "b")
    with pytest.raises(TypeCheckError, match=r'Expected type: f32\[NamedArray, "a b"\]'):
        Layer(x(B, A))
    with pytest.raises(TypeCheckError, match=r'Expected type: NamedArray\["b"\] \| None'):
        Layer(x(A, B), x(A))
    # What JAX makes of a module is not made by its __init__, and may be anything.
    assert jax.tree.map(lambda _: None, layer).weight.array is None


def test_trees_of_annotated_arrays() -> None:
    @jaxtyped(typechecker=beartype)
    def count(tree: PyTree[NamedArray["a ..."]]) -> int:
        return len(jax.tree.leaves(tree))

    assert count({"x": x(A, B), "y": [x(A)]}) == 2
    with pytest.raises(TypeCheckError):
        count({"x": x(A, B), "y": [x(B)]})


def test_the_program_that_type_checkers_read_runs() -> None:
    program = runpy.run_path(str(Path(__file__).parent / "types/annotations.py"))
    embed = program["Embed"]
    layer = program["Layer"](x(embed, B), x().sum())
    assert typing.get_type_hints(program["Layer"])["scale"] is NamedArray[""]
    array = axn.ones({"batch": 2, "embed": 64})
    assert program["attend"](array, array).names == ("batch",)
    assert layer.bias is None


BAD: list[tuple[str, Any, type[Exception], str]] = [
    (
        "two dots",
        lambda: NamedArray["a ... b ..."],
        ArgumentError,
        "annotation: ... stands for all other axes, so it may appear only once",
    ),
    (
        "a name twice",
        lambda: f32[NamedArray, "a b a"],
        AxisClashError,
        "annotation: axis 'a' is given twice\n  axes: a, b, a",
    ),
    (
        "a number",
        lambda: NamedArray["a", 2],
        OperandError,
        'annotation: 2 is a position, but axes have names\n  hint: write the name of an axis, such as "batch"',
    ),
    (
        "an array",
        lambda: NamedArray[x(A)],
        OperandError,
        "annotation: a NamedArray is neither an Axis nor the name of one\n"
        '  hint: an axis is written as Axis("batch", 32), or as "batch"',
    ),
    (
        "axes without brackets",
        lambda: f32[NamedArray, "a", "b"],
        OperandError,
        'annotation: expected an array type and its axes, got 3 entries\n  hint: write f32[NamedArray, "batch embed"]',
    ),
    (
        "a call",
        lambda: NamedArray["a"](jnp.ones(2)),
        OperandError,
        'annotation: NamedArray["a"] describes arrays and cannot be instantiated\n'
        "  hint: make the array with axn.named or axn.NamedArray",
    ),
    (
        "matches_axes",
        lambda: x().matches_axes("... ..."),
        ArgumentError,
        "annotation: ... stands for all other axes, so it may appear only once",
    ),
]


SIZE = 'write a size as an Axis: ("batch", axn.Axis("embed", 64))'
DOTS = '... stands for any axes in its place: "... embed"'
ALONE = "axes are those of the array, whatever their sizes: write the name alone"
TUPLE = "put a name with characters other than letters, digits and _ . - / in a tuple: "


@pytest.mark.parametrize(
    ("axes", "word", "hint"),
    [
        ("batch=2 embed=30", "batch=2", SIZE),
        ("batch 30", "30", SIZE),
        ("*batch embed", "*batch", DOTS),
        ("_ embed", "_", DOTS),
        ("embed #batch", "#batch", ALONE),
        ("embed ?batch", "?batch", ALONE),
        ("batch, embed", "batch,", 'there are spaces between names, and no commas: "batch embed"'),
        ("batch embed+1", "embed+1", f"{TUPLE}('embed+1',)"),
        ("batch...", "batch...", DOTS),
        ("batch embed.", "embed.", f"{TUPLE}('embed.',)"),
    ],
)
def test_spellings_of_jaxtyping(axes: str, word: str, hint: str) -> None:
    for call in (lambda: NamedArray[axes], lambda: f32[NamedArray, axes], lambda: x().matches_axes(axes)):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert str(caught.value) == f"annotation: {word!r} is not a valid axis name\n  axes: {axes!r}\n  hint: {hint}"


def test_names_with_characters_that_names_have() -> None:
    array = axn.ones({"embed.out": 1, "key_pos": 2, "layers-0": 3, "data/x": 4, "_hidden": 5, "λ2": 6})
    assert isinstance(array, f32[NamedArray, " ".join(array.names)])
    assert isinstance(axn.ones({"a=2": 1, "_": 2}), f32[NamedArray, ("a=2", "_")])


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
