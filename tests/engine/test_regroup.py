"""rearrange by expression: against numpy's reshape and transpose, its messages, its program, its layout."""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import PartitionSpec

import axonym as axn
from axonym.engine import regroup
from axonym.errors import AxisClashError, AxisError, AxisNotFoundError, AxisSizeError, OperandError, PatternError
from tests.laws import Row, Sharded, Values, count_equations, placed

Pieces = list[tuple[str, int]]


@st.composite
def regroupings(draw: st.DrawFn) -> tuple[dict[str, Pieces], list[tuple[str, list[str]]]]:
    """Draw axes with their pieces, and the axes of a result with theirs."""
    count, axes = draw(st.integers(0, 3)), {}
    for i in range(count):
        parts = draw(st.integers(1, 3))
        axes[f"x{i}"] = [(f"p{i}{j}", draw(st.sampled_from([1, 2, 3]))) for j in range(parts)]
    flat = draw(st.permutations([piece for pieces in axes.values() for piece, _ in pieces]))
    result, i = [], 0
    while i < len(flat):
        taken = draw(st.integers(1, 3))
        result.append((f"y{i}", flat[i : i + taken]))
        i += taken
    return axes, result


def by_hand(array: np.ndarray, axes: dict[str, Pieces], result: list[tuple[str, list[str]]]) -> np.ndarray:
    sizes = dict(piece for pieces in axes.values() for piece in pieces)
    order = [list(sizes).index(piece) for _, pieces in result for piece in pieces]
    split = array.reshape(list(sizes.values())).transpose(order)
    return split.reshape([math.prod(sizes[piece] for piece in pieces) for _, pieces in result])


@given(drawn=regroupings(), data=st.data())
def test_equals_reshape_and_transpose(drawn: Any, data: st.DataObject) -> None:
    axes, result = drawn
    sizes = dict(piece for pieces in axes.values() for piece in pieces)
    shape = [math.prod(size for _, size in pieces) for pieces in axes.values()]
    array = np.arange(math.prod(shape)).reshape(shape)
    expected = by_hand(array, axes, result)
    known = dict(sizes)
    for pieces in axes.values():
        known.pop(data.draw(st.sampled_from([piece for piece, _ in pieces])))
    right = " ".join(f"({name}: {' '.join(pieces)})" for name, pieces in result)
    names = tuple(name for name, _ in result)
    stored = data.draw(st.permutations(list(axes)))
    turned = np.transpose(array, [list(axes).index(name) for name in stored])
    left = " ".join(f"({' '.join(piece for piece, _ in pieces)})" for pieces in axes.values())
    groups = [f"({name}: {' '.join(piece for piece, _ in axes[name])})" for name in data.draw(st.permutations(stored))]

    @jax.jit
    def regrouped(x: axn.NamedArray, turned: axn.NamedArray) -> list[axn.NamedArray]:
        by_name = turned.rearrange(f"{{{' '.join(groups)}}} -> {right}", **known)
        return [by_name, axn.rearrange(x, f"{left} -> {right}", **known)] if axes else [by_name]

    for got in regrouped(axn.NamedArray(array, tuple(axes)), axn.NamedArray(turned, tuple(stored))):
        assert got.names == names
        np.testing.assert_array_equal(np.asarray(got.array), expected)


ORDERS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("b s e -> e b s", {}, {"embed": 8, "batch": 2, "seq": 3}),
    ("b ... -> ... b", {}, {"seq": 3, "embed": 8, "batch": 2}),
    ("... e -> e ...", {}, {"embed": 8, "batch": 2, "seq": 3}),
    ("{seq} -> seq ...", {}, {"seq": 3, "batch": 2, "embed": 8}),
    ("{embed, batch} -> embed ... batch", {}, {"embed": 8, "seq": 3, "batch": 2}),
    ("{} -> ... batch", {}, {"seq": 3, "embed": 8, "batch": 2}),
    ("{embed ...} -> embed ...", {}, {"embed": 8, "batch": 2, "seq": 3}),
    ("{e} -> e ...", {"e": "embed"}, {"embed": 8, "batch": 2, "seq": 3}),
    ("{} -> e ...", {"e": axn.Axis("embed", 8)}, {"embed": 8, "batch": 2, "seq": 3}),
    ("b s (h d) -> h b s d", {"h": 4}, {"h": 4, "batch": 2, "seq": 3, "d": 2}),
    (
        "b s (h d) -> h b s d",
        {"d": axn.Axis("head_size", 4), "h": "heads"},
        {"heads": 2, "batch": 2, "seq": 3, "head_size": 4},
    ),
    ("{(embed: h d)} -> h ... d", {"h": 4, "d": 2}, {"h": 4, "batch": 2, "seq": 3, "d": 2}),
    ("{(e: embed d)} -> embed ... d", {"e": "embed", "embed": 4}, {"embed": 4, "batch": 2, "seq": 3, "d": 2}),
    ("b s e -> (token: b s) e", {}, {"token": 6, "embed": 8}),
    ("{} -> (all: ...)", {}, {"all": 48}),
    ("... e -> e (t: ...)", {"t": axn.Axis("token", 6)}, {"embed": 8, "token": 6}),
    ("b s (e) -> b s e", {"e": "mlp"}, {"batch": 2, "seq": 3, "mlp": 8}),
    ("b s e -> b (seq: s e)", {}, {"batch": 2, "seq": 24}),
]


@pytest.mark.parametrize(("text", "keywords", "shape"), ORDERS, ids=[f"{row[0]} {row[1]}" for row in ORDERS])
def test_names_and_order(text: str, keywords: dict[str, Any], shape: dict[str, int]) -> None:
    x = axn.ones(axn.make_axes(batch=2, seq=3, embed=8))
    result = x.rearrange(text, **keywords)
    assert list(result.shape.items()) == list(shape.items())


def test_the_last_piece_varies_fastest() -> None:
    x = axn.named(np.arange(6), "e")
    np.testing.assert_array_equal(x.rearrange("(h d) -> d h", h=2).array, np.arange(6).reshape(2, 3).T)
    np.testing.assert_array_equal(x.rearrange("(h d) -> (e: d h)", h=2).array, np.arange(6).reshape(2, 3).T.ravel())


def test_patches() -> None:
    image = np.arange(2 * 3 * 8 * 12).reshape(2, 3, 8, 12)
    x = axn.named(image, ("n", "c", "h", "w"))
    expected = image.reshape(2, 3, 2, 4, 3, 4).transpose(0, 2, 4, 1, 3, 5).reshape(2, 6, 48)
    ordered = x.rearrange("n c (ph h) (pw w) -> n (patch: ph pw) (c: c h w)", h=4, w=4)
    named = x.rearrange("{(h: ph h) (w: pw w) c} -> ... (patch: ph pw) (c: c h w)", h=4, w=4)
    for result in (ordered, named):
        assert result.names == ("n", "patch", "c")
        np.testing.assert_array_equal(result.array, expected)


def test_what_changes_nothing_returns_the_same_array() -> None:
    x = axn.ones(axn.make_axes(batch=2, embed=4))
    assert x.rearrange("b e -> b e") is x
    assert x.rearrange("{embed} -> ... embed") is x


def test_an_axis_may_have_any_name() -> None:
    x = axn.ones((axn.Axis("a -> b", 2), axn.Axis("c", 3)))
    assert x.rearrange(("c", "a -> b")).names == ("c", "a -> b")
    assert x.rearrange("{x} -> c x", x="a -> b").names == ("c", "a -> b")


def test_anonymous_dimensions_stay_in_front() -> None:
    x = axn.NamedArray(jnp.ones((7, 2, 6)), ("b", "e"))
    result = x.rearrange("b (h d) -> (t: h b) d", h=3)
    assert result.array.shape == (7, 6, 2)
    assert result.names == ("t", "d")
    mapped = jax.vmap(lambda x: x.rearrange("b (h d) -> (t: h b) d", h=3))(x)
    assert mapped.array.shape == (7, 6, 2)


PROGRAMS: list[tuple[str, dict[str, Any], Callable[[jax.Array], jax.Array]]] = [
    ("a b c -> a c b", {}, lambda x: x.transpose(0, 2, 1)),
    ("a b (x y) -> a b x y", {"x": 2}, lambda x: x.reshape(2, 3, 2, 4)),
    ("a (t u) (x y) -> a t u x y", {"x": 2, "t": 3}, lambda x: x.reshape(2, 3, 1, 2, 4)),
    ("a b (x y) -> x b a y", {"x": 2}, lambda x: x.reshape(2, 3, 2, 4).transpose(2, 1, 0, 3)),
    ("a b c -> (t: a b) c", {}, lambda x: x.reshape(6, 8)),
    ("a b c -> (t: c a) b", {}, lambda x: x.transpose(2, 0, 1).reshape(16, 3)),
    (
        "a b (x y) -> (t: x a) (u: b y)",
        {"x": 2},
        lambda x: x.reshape(2, 3, 2, 4).transpose(2, 0, 1, 3).reshape(4, 12),
    ),
    ("a b (c) -> a b c", {"c": "z"}, lambda x: x),
]


@pytest.mark.parametrize(("text", "keywords", "by_hand"), PROGRAMS, ids=[row[0] for row in PROGRAMS])
def test_has_no_more_equations_than_by_hand(text: str, keywords: dict[str, Any], by_hand: Any) -> None:
    x = axn.arange(axn.make_axes(batch=2, seq=3, embed=8))
    np.testing.assert_array_equal(x.rearrange(text, **keywords).array, by_hand(x.array))
    found = count_equations(lambda x: x.rearrange(text, **keywords), x)
    assert found <= count_equations(by_hand, x.array)


def test_thinks_once_per_expression_and_names() -> None:
    x = axn.ones(axn.make_axes(once=2, embed=4))
    x.rearrange("o (h d) -> h o d", h=2)
    before = regroup._find_kernel.cache_info()
    for _ in range(3):
        x.rearrange("o (h d) -> h o d", h=2)
    after = regroup._find_kernel.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (3, 0)


ROWS = [
    Row(
        "rearrange",
        lambda x: x.rearrange("{(a: x y) b} -> y ... (z: b x)", x=2),
        ("abc",),
        lambda x: jnp.transpose(x.reshape(2, 2, 2, 3), (1, 3, 2, 0)).reshape(2, 3, 4),
        "ycz",
        lambda x: np.transpose(x.reshape(2, 2, 2, 3), (1, 3, 2, 0)).reshape(2, 3, 4),
        names=lambda _: "ycz",
        case="by name",
    )
]


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestLaws(Values, Sharded):
    pass


LAYOUTS = [
    ("b s (h d) -> h b s d", {"h": 2}, {"batch": "data", "embed": "model"}, ("model", "data", None, None), True),
    ("b s (h d) -> h b s d", {"h": 3}, {"batch": "data", "embed": "model"}, (None, "data", None, None), False),
    ("b s e -> (t: b s) e", {}, {"batch": "data", "embed": "model"}, ("data", "model"), True),
    ("b s e -> (t: s b) e", {}, {"batch": "data", "embed": "model"}, (None, "model"), False),
    ("b s e -> (t: b e) s", {}, {"batch": "data", "embed": "model"}, ("data", None), False),
    ("(x b) s e -> b x s e", {"x": 4}, {"batch": ("data", "model")}, (None, "data", None, None), False),
    ("b s e -> (t: b s e)", {}, {"batch": ("data", "model")}, (("data", "model"),), True),
]


@pytest.mark.parametrize(("text", "keywords", "before", "after", "in_place"), LAYOUTS, ids=[row[0] for row in LAYOUTS])
def test_keeps_the_layout_of_the_leading_part_on_an_explicit_mesh(
    text: str, keywords: dict[str, int], before: Any, after: Any, in_place: bool, explicit_mesh: jax.sharding.Mesh
) -> None:
    x = axn.named(np.arange(8.0 * 3 * 12).reshape(8, 3, 12), ("batch", "seq", "embed"))
    expected = x.rearrange(text, **keywords)
    with axn.set_mesh(explicit_mesh):
        x = placed(x, explicit_mesh, before)
        f = jax.jit(lambda x: x.rearrange(text, **keywords))
        result = f(x)
        assert jax.typeof(result.array).sharding.spec == PartitionSpec(*after)
        np.testing.assert_array_equal(np.asarray(result.array), np.asarray(expected.array))
        np.testing.assert_array_equal(np.asarray(x.rearrange(text, **keywords).array), np.asarray(expected.array))
        if in_place:
            moves = re.findall(r"all-gather|all-to-all|collective-permute|all-reduce", f.lower(x).compile().as_text())
            assert moves == []
        gradient = jax.jit(jax.grad(lambda x: (x.rearrange(text, **keywords) ** 2).sum().scalar()))(x)
        np.testing.assert_array_equal(np.asarray(gradient.array), 2 * np.asarray(x.array))
        assert jax.typeof(gradient.array) == jax.typeof(x.array)


def test_an_axis_split_by_two_mesh_axes_splits_and_merges_in_place(explicit_mesh: jax.sharding.Mesh) -> None:
    mapping = {"batch": ("data", "model"), "way": "data", "stage": "model"}
    split = "{(batch: way stage row)} -> way stage row"
    with axn.set_mesh(explicit_mesh), axn.axis_mapping(mapping):
        x = placed(axn.arange(axn.Axis("batch", 16)), explicit_mesh, {"batch": ("data", "model")})

        @jax.jit
        def there_and_back(x: axn.NamedArray) -> tuple[axn.NamedArray, axn.NamedArray]:
            pieces = x.rearrange(split, way=4, stage=2)
            return pieces, pieces.rearrange("way stage row -> (batch: way stage row)")

        pieces, again = there_and_back(x)
        program = there_and_back.lower(x).compile().as_text()
    assert jax.typeof(pieces.array).sharding.spec == PartitionSpec("data", "model", None)
    assert np.array_equal(pieces.array, np.arange(16).reshape(4, 2, 2))
    assert np.array_equal(again.array, np.arange(16))
    assert not re.search("all-gather|all-to-all|collective-permute", program)


def test_the_mapping_lays_out_new_axes(explicit_mesh: jax.sharding.Mesh) -> None:
    with axn.set_mesh(explicit_mesh), axn.axis_mapping({"heads": "model", "token": "data"}):
        x = axn.named(np.arange(8.0 * 4 * 12).reshape(8, 4, 12), ("batch", "seq", "embed"))
        y = jax.jit(lambda x: x.rearrange("b s (heads d) -> (token: b s) d heads", heads=2))(x)
        assert jax.typeof(y.array).sharding.spec == PartitionSpec("data", None, "model")
        np.testing.assert_array_equal(y.array, x.array.reshape(32, 2, 6).transpose(0, 2, 1))


HAS = "array has: batch=2, seq=3, embed=8"
Refused = tuple[str, dict[str, Any], type[AxisError], str, str | None, str | None]
REFUSED: list[Refused] = [
    ("b s e -> b s -> e", {}, PatternError, "unexpected '->'", "             ^^", "an expression has one ->"),
    (
        "b s e",
        {},
        PatternError,
        "the expression has no ->",
        "     ^",
        'write -> and the axes of the result, as in "a b -> b a"',
    ),
    (
        "b s -> s b",
        {},
        PatternError,
        "the array has 3 axes, but the expression has 2",
        "^^^",
        "write ... for the others",
    ),
    ("b ... s e f -> b", {}, PatternError, "the array has 3 axes, but the expression has 4", "^^^^^^^^^^^", None),
    (
        "-> b s e",
        {},
        PatternError,
        "the left side is empty",
        "^",
        'name the axes on the left, or write "{} -> b s e" to find them by name',
    ),
    (
        "b s (h d) -> h b s d",
        {},
        PatternError,
        "the sizes of 'h' and 'd' are not known",
        "     ^^^",
        "give all but one by keyword: h=4",
    ),
    (
        "b s (h d) -> h b s d",
        {"h": 3},
        AxisSizeError,
        "axis 'embed' of size 8 does not split into h=3 and d",
        "    ^^^^^",
        None,
    ),
    (
        "b s (h d) -> h b s d",
        {"h": 3, "d": 3},
        AxisSizeError,
        "axis 'embed' of size 8 does not split into h=3 and d=3",
        "    ^^^^^",
        None,
    ),
    (
        "b s (h d) -> h b s d",
        {"h": 0},
        AxisSizeError,
        "axis 'embed' of size 8 does not split into h=0 and d",
        "    ^^^^^",
        None,
    ),
    ("b s (h) -> h b s", {"h": 3}, AxisSizeError, "axis 'embed' of size 8 does not split into h=3", "    ^^^", None),
    ("b s (...) -> b s", {}, PatternError, "... cannot be split", "    ^^^^^", None),
    (
        "{(h d)} -> ... h d",
        {"h": 2},
        PatternError,
        "the axis to split has no name",
        " ^^^^^",
        "write the name of the axis: (name: h d)",
    ),
    ("b s e -> b (s e)", {}, PatternError, "a merged axis needs a name", "           ^^^^^", "write (name: s e)"),
    (
        "b s e -> b s",
        {},
        PatternError,
        "'e' is not on the right",
        "    ^",
        'rearrange keeps all axes; x.sum("embed") removes one',
    ),
    ("b s e -> b s e f", {}, PatternError, "'f' is not on the left", "               ^", None),
    ("b s e -> b ...", {}, PatternError, "... is only on the right", "           ^^^", None),
    (
        "b ... -> b",
        {},
        AxisNotFoundError,
        "the result leaves out seq, embed",
        "         ^",
        "name all axes, or write ... for the others",
    ),
    (
        "{embed} -> embed",
        {},
        AxisNotFoundError,
        "the result leaves out batch, seq",
        "           ^^^^^",
        "name all axes, or write ... for the others",
    ),
    ("{embd} -> embd ...", {}, AxisNotFoundError, "no axis named 'embd'", " ^^^^", "did you mean 'embed'?"),
    ("{embed} -> embd ...", {}, AxisNotFoundError, "no axis named 'embd'", "           ^^^^", "did you mean 'embed'?"),
    (
        "{(embd: h d)} -> h d ...",
        {"h": 2},
        AxisNotFoundError,
        "no axis named 'embd'",
        " ^^^^^^^^^^^",
        "did you mean 'embed'?",
    ),
    ("{seq (seq: h d)} -> h d ...", {"h": 1}, AxisClashError, "axis 'seq' appears twice", "     ^^^^^^^^^^", None),
    ("{e} -> e embed ...", {"e": "embed"}, AxisClashError, "axis 'embed' is 'e' on the left", "         ^^^^^", None),
    (
        "{(embed: h d)} -> embed h d ...",
        {"h": 2},
        AxisClashError,
        "axis 'embed' is split on the left",
        "                  ^^^^^",
        None,
    ),
    ("{} -> e embed ...", {"e": "embed"}, AxisClashError, "axis 'embed' appears twice", "      ^^^^^^^^^^^", None),
    (
        "b s e -> b (seq: e) (seq: s)",
        {},
        AxisClashError,
        "axis 'seq' would appear twice",
        "                    ^^^^^^^^",
        None,
    ),
    (
        "b s (seq d) -> b s seq d",
        {"d": 2},
        AxisClashError,
        "axis 'seq' would appear twice",
        "                   ^^^",
        None,
    ),
    ("b s e -> b e (t: ... s)", {}, PatternError, "... is only on the right", "             ^^^^^^^^^^", None),
    (
        "... b s e -> b s e (t: ...)",
        {},
        AxisNotFoundError,
        "no axes to merge: ... matches none",
        "                   ^^^^^^^^",
        None,
    ),
    (
        "b s e -> e b s",
        {"e": "mlp"},
        AxisClashError,
        "'e' was given as axis 'mlp', but stands for 'embed' here",
        "    ^",
        None,
    ),
    ("b s e -> e b s", {"h": 9}, PatternError, "the keyword 'h' is not in the expression", "", None),
    ("b s e -> e b s", {"e": 9}, AxisSizeError, "axis 'embed' was given with size 9, but has size 8", None, None),
    ("{} -> embed ...", {"embed": 9}, AxisSizeError, "axis 'embed' was given with size 9, but has size 8", None, None),
    (
        "b s (embed: h d) -> b s h d",
        {"h": 2, "embed": 9},
        AxisSizeError,
        "axis 'embed' was given with size 9, but has size 8",
        None,
        None,
    ),
    (
        "b s e -> b (t: s e)",
        {"t": axn.Axis("token", 5)},
        AxisSizeError,
        "axis 'token' was given with size 5, but would have size 24",
        "           ^^^^^^^^",
        None,
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]} {case[1]}")
def test_says_what_is_wrong(case: Refused) -> None:
    text, keywords, kind, problem, mark, hint = case
    x = axn.ones(axn.make_axes(batch=2, seq=3, embed=8))
    with pytest.raises(kind) as caught:
        x.rearrange(text, **keywords)
    assert type(caught.value) is kind
    quoted = [] if mark is None else [text, mark]
    lines = [f"rearrange: {problem}", *quoted, HAS, hint and f"hint: {hint}"]
    assert str(caught.value) == "\n  ".join(line for line in lines if line)


def test_keywords_go_with_expressions() -> None:
    x = axn.ones(axn.make_axes(batch=2, embed=8))
    with pytest.raises(OperandError) as caught:
        x.rearrange(("embed", ...), h=2)
    assert str(caught.value) == (
        "rearrange: the keyword 'h' needs an expression, not an order\n  hint: write the order as \"a b -> b a\""
    )
    with pytest.raises(OperandError, match=r"^rearrange: expected a NamedArray, got a plain array\n"):
        axn.rearrange(np.ones(3), "a -> a")  # type: ignore[arg-type]
