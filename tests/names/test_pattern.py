"""The parser of expressions: what it reads, where it says things stand, and what it refuses."""

import pytest
from hypothesis import example, given, strategies as st

import axonym as axn
from axonym.errors import OperandError, PatternError
from axonym.names import pattern

NAMES = ["b", "seq", "head_size", "_x1", "é"]
spaces = st.sampled_from([" ", "  ", "\n", "\t"])


@st.composite
def sides(draw: st.DrawFn, groups: bool) -> str:
    """Draw the text of one side."""
    names = draw(st.lists(st.sampled_from([*NAMES, "..."]), unique=True, max_size=5))
    terms, i = [], 0
    while i < len(names):
        count = draw(st.integers(1, 3)) if groups else 1
        own = names[i : i + count]
        i += count
        label = draw(st.sampled_from(["", "b: ", "new :"]))
        terms.append(f"({label}{' '.join(own)})" if groups and draw(st.booleans()) else " ".join(own))
    return " ".join(terms)


def said(terms: tuple[pattern.Term, ...]) -> list[object]:
    return [term.name if term.parts is None else (term.name, said(term.parts)) for term in terms]


@given(operands=st.lists(sides(False), min_size=1, max_size=3), result=sides(False), data=st.data())
def test_reads_each_term_where_it_stands(operands: list[str], result: str, data: st.DataObject) -> None:
    braced = [data.draw(st.booleans()) for _ in operands]
    texts = [f"{{{side}}}" if brace else side for side, brace in zip(operands, braced, strict=True)]
    text = f"{','.join(texts)} -> {result}"
    expression = pattern.parse_expression(text.replace(" ", data.draw(spaces)), True)
    wanted = [side.split() for side in operands]
    if wanted == [[]] and braced == [False]:
        assert expression.operands == ()
    else:
        assert [said(side.terms) for side in expression.operands] == wanted
        assert [side.ordered for side in expression.operands] == [not brace for brace in braced]
    assert said(expression.result.terms) == result.split()
    for side in (*expression.operands, expression.result):
        for term in side.terms:
            assert expression.text[term.start : term.end] == term.name
            assert side.start <= term.start < term.end <= side.end


@given(result=sides(True))
def test_reads_groups(result: str) -> None:
    text = f"{{}} -> {result}"
    terms = pattern.parse_expression(text, False).result.terms
    spelled: list[str] = []
    for term in terms:
        if term.parts is None:
            spelled.append(term.name or "")
        else:
            assert text[term.start] + text[term.end - 1] == "()"
            label = "" if term.name is None else f"{term.name}:"
            spelled.append(f"({label}{' '.join(part.name or '' for part in term.parts)})")
    assert " ".join(spelled) == result.replace(" :", ":").replace(": ", ":")


def test_a_comma_is_a_space_where_there_is_one_operand() -> None:
    assert said(pattern.parse_expression("{b, seq} -> seq, b", False).result.terms) == ["seq", "b"]


@given(text=st.text("ab(){}->.,: 1", max_size=14) | st.text(max_size=8), several=st.booleans())
@example(text="->", several=True)
@example(text="{a", several=False)
@example(text="(a:", several=False)
def test_reads_or_refuses_any_text(text: str, several: bool) -> None:
    try:
        expression = pattern.parse_expression(text, several)
    except PatternError as error:
        problem, quoted, mark = str(error).split("\n")
        assert problem
        assert len(quoted) == len(text) + 2
        assert mark.strip() == "^" * mark.count("^") != ""
        assert len(mark) <= max(len(quoted), 3) + 1
    else:
        assert text.count("->") == 1
        assert expression.text == text


SUM = 'write -> and the axes of the result, or just -> for the sum over all of them: "a b, b ->"'
OTHER = "names have letters, digits and _; bind any other name by keyword"
ORDER = "the result has its axes in the order in which they are written"
REFUSED = [
    ("a b, b c", True, "the expression has no ->", "         ^", SUM),
    ("", True, "the expression has no ->", " ^", SUM),
    ("a b", False, "the expression has no ->", "    ^", 'write -> and the axes of the result, as in "a b -> b a"'),
    ("a > b", True, "unexpected '>'", "   ^", "write ->"),
    ("a - > b", True, "unexpected '-'", "   ^", "write ->"),
    ("a .. -> a", True, "unexpected '.'", "   ^", "write ..."),
    ("a 1 -> a", False, "unexpected '1'", "   ^", OTHER),
    ("a -> b -> c", True, "unexpected '->'", "        ^^", "an expression has one ->"),
    ("a -> b, c", True, "unexpected ','", "       ^", "an expression has one result"),
    ("a -> {b}", True, "braces are for the left side", "      ^^^", ORDER),
    ("{a b -> a", True, "the brace is not closed", " ^", None),
    ("a b} -> a", True, "unexpected '}'", "    ^", None),
    ("{a {b}} -> a", False, "unexpected '{'", "    ^", None),
    ("{a} b -> a", False, "unexpected 'b'", "     ^", None),
    ("a (b c) -> a", True, "unexpected '('", "   ^", "rearrange splits and merges axes"),
    ("a b) -> a", False, "unexpected ')'", "    ^", None),
    ("a : b -> a", False, "unexpected ':'", "   ^", None),
    ("a (b (c)) -> a", False, "unexpected '(' in a group", "      ^", "a group holds names: (name: a b)"),
    ("a (b c: d) -> a", False, "unexpected ':' in a group", "       ^", "a group holds names: (name: a b)"),
    ("a (b -> a", False, "unexpected '->' in a group", "      ^^", "close the group with )"),
    ("a -> (b", False, "the group is not closed", "      ^", None),
    ("a () -> a", False, "the group is empty", "   ^^", "broadcast_axis adds an axis of size 1"),
    ("a bc a -> a", True, "'a' appears twice", "      ^", "the axes of an array have different names"),
    ("a (b a) -> a", False, "'a' appears twice", "      ^", "the axes of an array have different names"),
    ("... a ... -> a", True, "'...' appears twice", "       ^^^", None),
    ("{a} ->\na a", True, "'a' appears twice", "          ^", "the axes of an array have different names"),
]


@pytest.mark.parametrize(("text", "several", "problem", "mark", "hint"), REFUSED, ids=[row[0] for row in REFUSED])
def test_says_what_is_wrong_and_where(text: str, several: bool, problem: str, mark: str, hint: str | None) -> None:
    with pytest.raises(PatternError) as caught:
        pattern.parse_expression(text, several)
    quoted = text.replace("\n", " ")
    assert str(caught.value) == f"{problem}\n  {quoted}\n {mark}"
    assert caught.value.hint == hint


def test_binds_keywords() -> None:
    bindings = {"a": "x", "b": axn.Axis("y", 3), "c": 4}
    assert pattern.bind("f", bindings, sizes=True) == (("a", ("x", None)), ("b", ("y", 3)), ("c", (None, 4)))


@pytest.mark.parametrize("value", [2.5, -1, None, ("a", "b")])
def test_refuses_keywords_of_another_kind(value: object) -> None:
    with pytest.raises(OperandError) as caught:
        pattern.bind("f", {"a": value}, sizes=True)
    assert str(caught.value) == f"f: the keyword 'a' must be an Axis, the name of one or a size, not {value!r}"
    with pytest.raises(OperandError) as caught:
        pattern.bind("f", {"a": 3}, sizes=False)
    assert str(caught.value) == "f: the keyword 'a' must be an Axis or the name of one, not 3"
