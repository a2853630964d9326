"""einsum: against numpy in all three forms, for every storage order; its messages, its program, its layout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import PartitionSpec

import axonym as axn
from axonym.errors import AxisClashError, AxisError, AxisNotFoundError, AxisSizeError, OperandError, PatternError
from axonym.ops import contract
from tests.laws import Row, Sharded, Values, assert_close, count_equations, placed

SIZES = {"a": 2, "b": 3, "c": 4, "d": 1, "e": 5}
LETTERS = dict(zip(SIZES, ["p", "q", "rr", "s_1", "a"], strict=True))
Operands = list[tuple[str, ...]]
stores = st.permutations(list(SIZES)).flatmap(lambda names: st.integers(0, 4).map(lambda count: tuple(names[:count])))
several = st.lists(stores, min_size=1, max_size=3)


def arrays(operands: Operands) -> list[axn.NamedArray]:
    rng = np.random.default_rng(0)
    shapes = [tuple(SIZES[name] for name in names) for names in operands]
    return [
        axn.NamedArray(jax.device_put(np.asarray(rng.normal(size=s), np.float32)), n)
        for s, n in zip(shapes, operands, strict=True)
    ]


def check(result: axn.NamedArray, named: list[axn.NamedArray], out: tuple[str, ...]) -> None:
    """Compare with numpy's einsum over the names."""
    assert result.names == out
    equation = f"{','.join(''.join(x.names) for x in named)}->{''.join(out)}"
    expected = np.einsum(equation, *(np.asarray(x.array, np.float64) for x in named))
    np.testing.assert_allclose(np.asarray(result.array), expected, rtol=1e-5, atol=1e-5)


def union(operands: Operands) -> list[str]:
    return list(dict.fromkeys(name for names in operands for name in names))


@given(operands=several, data=st.data())
def test_letters_bind_by_position(operands: Operands, data: st.DataObject) -> None:
    every = union(operands)
    out = tuple(data.draw(st.permutations(every)))[: data.draw(st.integers(0, len(every)))]
    spell = lambda names: " ".join(LETTERS[name] for name in names)  # noqa: E731
    text = f"{' , '.join(map(spell, operands)) or ' '} -> {spell(out)}"
    named = arrays(operands)
    if operands == [()]:
        text = "->"
    check(axn.einsum(text, *named), named, out)


@given(operands=several, data=st.data())
def test_dots_stand_for_the_axes_between(operands: Operands, data: st.DataObject) -> None:
    every = union(operands)
    dotted = set(data.draw(st.permutations(every))[: data.draw(st.integers(0, len(every)))])
    lettered = [name for name in every if name not in dotted]
    # Dots cover neighbours, hence the operands are stored so that those are.
    operands = [
        tuple(sorted(names, key=lambda n: (n in dotted) if i % 2 else (n not in dotted)))
        for i, names in enumerate(operands)
    ]
    spelled = []
    for i, names in enumerate(operands):
        letters = [LETTERS[name] for name in names if name not in dotted]
        spelled.append(" ".join([*letters, "..."] if i % 2 else ["...", *letters]))
    kept = data.draw(st.permutations(lettered))[: data.draw(st.integers(0, len(lettered)))]
    at = data.draw(st.integers(0, len(kept)))
    result = [LETTERS[name] for name in kept]
    text = f"{', '.join(spelled)} -> {' '.join([*result[:at], '...', *result[at:]])}"
    covered = [name for name in union(operands) if name in dotted]
    named = arrays(operands)
    check(axn.einsum(text, *named), named, (*kept[:at], *covered, *kept[at:]))


@given(operands=several, data=st.data())
def test_names_in_braces_bind_by_name(operands: Operands, data: st.DataObject) -> None:
    mentioned = [data.draw(st.permutations(names)) for names in operands]
    mentioned = [names[: data.draw(st.integers(0, len(names)))] for names in mentioned]
    left_dots, right_dots = data.draw(st.booleans()), data.draw(st.booleans())
    every = union(operands)
    wanted = data.draw(st.permutations(every))[: data.draw(st.integers(0, len(every)))]
    at = data.draw(st.integers(0, len(wanted)))
    sides = [" ".join([*names, "..."] if left_dots and i == 0 else names) for i, names in enumerate(mentioned)]
    right = [*wanted[:at], "...", *wanted[at:]] if right_dots else wanted
    rest = [n for n in every if n not in wanted and not any(n in names for names in mentioned)]
    out = [*wanted[:at], *rest, *wanted[at:]] if right_dots else wanted if left_dots else [*rest, *wanted]
    named = arrays(operands)
    result = axn.einsum(f"{', '.join(f'{{{side}}}' for side in sides)} -> {' '.join(right)}", *named)
    check(result, named, tuple(out))


@given(operands=several, data=st.data())
def test_the_result_alone_says_what_stays(operands: Operands, data: st.DataObject) -> None:
    every = union(operands)
    out = tuple(data.draw(st.permutations(every)))[: data.draw(st.integers(0, len(every)))]
    named = arrays(operands)
    check(axn.einsum(f"-> {' '.join(out)}", *named), named, out)


def test_several_axes_under_dots_keep_their_order() -> None:
    x = axn.named(np.arange(18.0).reshape(2, 3, 3), ("b", "s", "t"))
    y = axn.named(np.arange(3.0), "t")
    assert_close(axn.einsum("... s t -> ... s t", x).array, x.array)
    assert_close(
        axn.einsum("... t, t -> ...", x, y).array,
        jnp.asarray(np.arange(18).reshape(2, 3, 3) @ np.arange(3.0), jnp.float32),
    )
    assert axn.einsum("b ... -> ... b", x).names == ("s", "t", "b")


def test_keywords_stand_for_axes() -> None:
    Batch, Embed, Mlp = axn.make_axes(batch=2, embed=3, mlp=4)
    x, w = axn.ones((Batch, Embed)), axn.ones((Embed, Mlp))
    assert axn.einsum("{e}, {e m} -> ... m", x, w, e=Embed, m="mlp").axes == (Batch, Mlp)
    assert axn.einsum("-> m", x, w, m=Mlp).axes == (Mlp,)
    assert axn.einsum("b e, e m -> m b", x, w, e=Embed, b="batch").axes == (Mlp, Batch)
    odd = x.rename({"embed": "layer/0"})
    assert axn.einsum("{first} -> ", odd, first="layer/0").axes == (Batch,)


def test_takes_precision_and_the_dtype_to_accumulate_in() -> None:
    x = axn.ones((axn.Axis("a", 3),), dtype=jnp.bfloat16)
    result = axn.einsum("a, a ->", x, x, precision="highest", preferred_element_type=jnp.float32)
    assert result.dtype == jnp.float32
    assert result.names == ()


def test_anonymous_dimensions_are_matched_in_front() -> None:
    x = axn.NamedArray(jnp.ones((7, 2, 3)), ("a", "b"))
    y = axn.NamedArray(jnp.ones((3, 4)), ("b", "c"))
    assert axn.einsum("a b, b c -> c a", x, y).array.shape == (7, 4, 2)


@pytest.mark.parametrize(
    ("text", "by_hand"),
    [
        ("b s e, e m -> b s m", lambda x, w: x @ w),
        ("... e, e m -> m ...", lambda x, w: (x @ w).transpose(2, 0, 1)),
        ("{embed}, {embed} -> mlp ...", lambda x, w: (x @ w).transpose(2, 0, 1)),
        ("-> mlp seq", lambda x, w: jnp.einsum("bse,em->ms", x, w)),
    ],
)
def test_has_no_more_equations_than_by_hand(text: str, by_hand: Any) -> None:
    x, w = axn.ones(axn.make_axes(batch=2, seq=3, embed=4)), axn.ones(axn.make_axes(embed=4, mlp=5))
    found = count_equations(lambda x, w: axn.einsum(text, x, w), x, w)
    assert found <= count_equations(by_hand, x.array, w.array)


def test_thinks_once_per_expression_and_names() -> None:
    x, w = axn.ones(axn.make_axes(once=2, embed=4)), axn.ones(axn.make_axes(embed=4, mlp=5))
    axn.einsum("o e, e m -> m o", x, w, o="once")
    before = contract._make_einsum.cache_info()
    for _ in range(3):
        axn.einsum("o e, e m -> m o", x, w, o="once")
    after = contract._make_einsum.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (3, 0)


ROWS = [
    Row(
        "einsum",
        lambda x, y: axn.einsum("{i}, {i} -> j ...", x, y),
        ("abi", "ij"),
        lambda x, y: jnp.einsum("abi,ij->jab", x, y),
        "jab",
        lambda x, y: np.einsum("abi,ij->jab", x, y),
        names=lambda x, y: "j" + x.replace("i", ""),
        case="by name",
        any_size=False,
    ),
    Row(
        "einsum",
        lambda x, y: axn.einsum("-> a c", x, y),
        ("abc", "cba"),
        lambda x, y: jnp.einsum("abc,cba->ac", x, y),
        "ac",
        lambda x, y: np.einsum("abc,cba->ac", x, y),
        names=lambda x, y: "ac",
        case="result",
        any_size=False,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
class TestLaws(Values, Sharded):
    pass


@pytest.fixture
def sharded(explicit_mesh: jax.sharding.Mesh) -> Any:
    with axn.set_mesh(explicit_mesh):
        x = placed(axn.ones(axn.make_axes(batch=8, seq=3, embed=4)), explicit_mesh, {"batch": "data", "embed": "model"})
        w = placed(axn.ones(axn.make_axes(embed=4, mlp=6)), explicit_mesh, {"mlp": "model"})
        yield x, w


@pytest.mark.parametrize(
    "text", ["b s e, e m -> m s b", "... e, e m -> m ...", "{embed}, {embed} -> mlp seq batch", "-> mlp seq batch"]
)
def test_lays_the_result_out_on_an_explicit_mesh(text: str, sharded: Any) -> None:
    result = jax.jit(lambda x, w: axn.einsum(text, x, w))(*sharded)
    spec = dict(zip(result.names, jax.typeof(result.array).sharding.spec, strict=True))
    assert spec == {"batch": "data", "seq": None, "mlp": "model"}
    np.testing.assert_array_equal(np.asarray(result.array), np.full(result.array.shape, 4.0))
    with axn.axis_mapping({"batch": "model"}):
        moved = jax.jit(lambda x, w: axn.einsum(text, x, w))(*sharded)
    assert dict(zip(moved.names, jax.typeof(moved.array).sharding.spec, strict=True))["batch"] == "model"
    gradient = jax.jit(jax.grad(lambda x, w: axn.einsum(text, x, w).sum().scalar()))(*sharded)
    assert jax.typeof(gradient.array).sharding.spec == PartitionSpec("data", None, "model")
    np.testing.assert_array_equal(np.asarray(gradient.array), np.full((8, 3, 4), 6.0))


HAVE = ["operand 1 has: batch=2, seq=3, embed=4", "operand 2 has: embed=4, mlp=5"]
Refused = tuple[str, dict[str, Any], type[AxisError], str, str | None, str | None]
REFUSED: list[Refused] = [
    (
        "b s e, e m",
        {},
        PatternError,
        "the expression has no ->",
        "          ^",
        'write -> and the axes of the result, or just -> for the sum over all of them: "a b, b ->"',
    ),
    (
        "b s, e m -> b",
        {},
        PatternError,
        "operand 1 has 3 axes, but the expression has 2",
        "^^^",
        "write ... for the others",
    ),
    ("b s e, e m n -> b", {}, PatternError, "operand 2 has 2 axes, but the expression has 3", "       ^^^^^", None),
    (
        "bse, em -> bsm",
        {},
        PatternError,
        "operand 1 has 3 axes, but the expression has 1",
        "^^^",
        'separate names by spaces: "b s e"',
    ),
    (
        "b s e -> b",
        {},
        PatternError,
        "the expression has 1 operand, but 2 were given",
        "^^^^^",
        "commas separate the operands: one part for each array",
    ),
    (
        "b s e, e m, m -> b",
        {},
        PatternError,
        "the expression has 3 operands, but 2 were given",
        "^^^^^^^^^^^^^",
        "commas separate the operands: one part for each array",
    ),
    (
        "b s e, s m -> b m",
        {},
        AxisClashError,
        "'s' stands for axis 'seq', but operand 2 has 'embed' there",
        "       ^",
        'use another letter, or rename the axis: x.rename({"embed": "seq"})',
    ),
    (
        "b s e, f m -> b m",
        {},
        AxisClashError,
        "'e' and 'f' both stand for axis 'embed'",
        "       ^",
        "use one letter, or rename the axis of operand 2",
    ),
    (
        "... e, ... -> ...",
        {},
        AxisClashError,
        "axis 'embed' is 'e' in one operand and covered by ... in another",
        "       ^^^",
        "write 'e' in both",
    ),
    (
        "b s e, e m -> b head",
        {},
        PatternError,
        "'head' is not on the left",
        "                ^^^^",
        "an axis of the result is one of: b, s, e, m",
    ),
    (
        "b s e, ... m -> b",
        {},
        AxisClashError,
        "axis 'embed' is 'e' in one operand and covered by ... in another",
        "       ^^^",
        "write 'e' in both",
    ),
    (
        "... e, e m -> m",
        {},
        PatternError,
        "... is only on the left",
        "^^^",
        "write ... on both sides, or give letters to the axes to sum over",
    ),
    ("b s e, e m -> ... m", {}, PatternError, "... is only on the right", "              ^^^", None),
    (
        "{embed}, e m -> ...",
        {},
        PatternError,
        "only some operands are in braces",
        "         ^^^",
        "use braces for all operands: their axes are then found by name",
    ),
    ("{embd}, {embed} ->", {}, AxisNotFoundError, "no axis named 'embd'", " ^^^^", "did you mean 'embed'?"),
    ("{}, {embed} -> mpl", {}, AxisNotFoundError, "no axis named 'mpl'", "               ^^^", "did you mean 'mlp'?"),
    ("-> batch head", {}, AxisNotFoundError, "no axis named 'head'", "         ^^^^", None),
    ("{e}, {} ->", {"e": "head"}, AxisNotFoundError, "no axis named 'head', which 'e' stands for", " ^", None),
    ("{embed e}, {} ->", {"e": "embed"}, AxisClashError, "axis 'embed' appears twice", "       ^", None),
    (
        "b s e, e m -> b",
        {"s": "embed"},
        AxisClashError,
        "'s' was given as axis 'embed', but stands for 'seq' here",
        "  ^",
        None,
    ),
    (
        "b s e, e mlp -> b",
        {"mpl": "m"},
        PatternError,
        "the keyword 'mpl' is not in the expression",
        "",
        "did you mean 'mlp'?",
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]} {case[1]}")
def test_says_what_is_wrong(case: Refused) -> None:
    text, keywords, kind, problem, mark, hint = case
    x, w = axn.ones(axn.make_axes(batch=2, seq=3, embed=4)), axn.ones(axn.make_axes(embed=4, mlp=5))
    with pytest.raises(kind) as caught:
        axn.einsum(text, x, w, **keywords)
    assert type(caught.value) is kind
    lines = [f"einsum: {problem}", text, mark, *HAVE, hint and f"hint: {hint}"]
    assert str(caught.value) == "\n  ".join(line for line in lines if line)


def test_says_which_size_is_wrong() -> None:
    x = axn.ones(axn.make_axes(batch=2, embed=4))
    with pytest.raises(AxisSizeError) as caught:
        axn.einsum("b e -> b", x, e=axn.Axis("embed", 9))
    facts = "array has: batch=2, embed=4"
    assert str(caught.value) == f"einsum: axis 'embed' was given with size 9, but has size 4\n  {facts}"


def test_refuses_two_sizes_of_one_axis() -> None:
    x, y = axn.ones(axn.Axis("a", 2)), axn.ones(axn.Axis("a", 1))
    with pytest.raises(AxisSizeError) as caught:
        axn.einsum("i, i -> i", x, y)
    assert str(caught.value) == (
        "einsum: axis 'a' has two sizes: 2 and 1\n"
        "  operand 1 has: a=2\n"
        "  operand 2 has: a=1\n"
        '  hint: an axis of size 1 is not stretched: drop it, x["a", 0]'
    )


def test_refuses_what_is_no_expression_and_no_array() -> None:
    x = axn.ones(axn.Axis("a", 2))
    with pytest.raises(OperandError) as caught:
        axn.einsum(x, "a -> a")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "einsum: the expression is a NamedArray, not a str\n"
        '  hint: the expression comes first: einsum("b e, e m -> b m", x, w)'
    )
    with pytest.raises(OperandError, match=r"^einsum: expected a NamedArray, got a plain array\n"):
        axn.einsum("a ->", np.ones(2))  # type: ignore[arg-type]
    with pytest.raises(PatternError) as caught_too:
        axn.einsum("-> a")
    assert str(caught_too.value) == "einsum: no arrays given\n  -> a"
    with pytest.raises(OperandError) as caught:
        axn.einsum("a ->", x, a=2)  # type: ignore[arg-type]
    assert str(caught.value) == "einsum: the keyword 'a' must be an Axis or the name of one, not 2"
