"""Expressions, taken apart."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import pytest
from haliax._src.parsing import Expression, parse_einsum, parse_rearrangement, raise_parse_error


def told(expression: Expression):
    entries = [entry if entry is ... else (entry.binding, entry.axes) for entry in expression.captures]
    return entries, expression.is_ordered


def names(*entries):
    return [entry if entry is ... else (entry, (entry,)) for entry in entries]


REARRANGEMENTS = [
    ("a b -> b a", (names("a", "b"), True), (names("b", "a"), True)),
    ("a ... -> ...", (names("a", ...), True), (names(...), True)),
    ("{a, b} -> {b a}", (names("a", "b"), False), (names("b", "a"), False)),
    ("(a b) c -> (x: a c) b", ([(None, ("a", "b")), *names("c")], True), ([("x", ("a", "c")), *names("b")], True)),
    ("{c (x: a b)}->", ([*names("c"), ("x", ("a", "b"))], False), ([], True)),
    ("'two words' b_1 -> \"b_1\"", (names("two words", "b_1"), True), (names("b_1"), True)),
]


@pytest.mark.parametrize(("text", "before", "after"), REARRANGEMENTS)
def test_rearrangements(text, before, after):
    assert tuple(map(told, parse_rearrangement(text))) == (before, after)


EINSUMS = [
    ("a b, b c -> a c", [(names("a", "b"), True), (names("b", "c"), True)], (names("a", "c"), True)),
    ("{...} -> a", [(names(...), False)], (names("a"), True)),
    ("-> a", [([], True)], (names("a"), True)),
    ("a b ->", [(names("a", "b"), True)], ([], True)),
    ("a, b", [(names("a"), True), (names("b"), True)], ([], True)),
    ("", [], ([], True)),
]


@pytest.mark.parametrize(("text", "operands", "result"), EINSUMS)
def test_einsums(text, operands, result):
    found = parse_einsum(text)
    assert ([told(operand) for operand in found[0]], told(found[1])) == (operands, result)


def test_places():
    before, after = parse_rearrangement("aa (b: c  d) -> 'e f'")
    texts = ["aa", "(b: c  d)", "'e f'"]
    places = [entry.char_range for entry in (*before.captures, *after.captures)]
    assert places == [
        ("aa (b: c  d) -> 'e f'".index(text), len(text) + i) for text, i in zip(texts, (0, 3, 16), strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a b", "expected '->'\n  a b\n     \\^"),
        ("a (b c -> a", "expected '\\)'\n  a \\(b c -> a\n         \\^\\^?"),
        ("a b) -> a", "expected '->'"),
        ("{a b -> a", "expected '}'"),
        ("a,b -> a", "expected '->'"),
        ("a b -> c -> d", "expected no more"),
        ("(a b: c) -> a", "the name of a group comes first, and once"),
        ("(x: (a b)) -> a", "a group cannot hold another"),
        ("() -> a", "a group needs axes"),
        ("1 a -> a", "'1' begins no name\n  1 a -> a\n  \\^"),
        ("a! -> a", "'!' begins no name"),
    ],
)
def test_what_is_no_expression(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_rearrangement(text)


def test_an_error_points_at_a_place():
    with pytest.raises(ValueError, match=r"why\n  a b\n    \^$"):
        raise_parse_error("why", "a b", 2)
    with pytest.raises(ValueError, match=r"why\n  a b\n  \^\^$"):
        raise_parse_error("why", "a b", (0, 2))
