"""Plans are tested on their own: what they say about names, checked by numpy where they move dimensions."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from axonym.errors import AxisClashError, AxisNotFoundError, BroadcastError
from axonym.names import plans

NAMES = st.lists(st.sampled_from("abcde"), unique=True).map(tuple)
SIZES = dict(zip("abcde", (2, 3, 4, 5, 6), strict=True))


def array(names: tuple[str, ...]) -> np.ndarray:
    """Make an array whose elements tell their position by name, whatever the order of the dimensions."""
    grids = np.meshgrid(*(np.arange(SIZES[name]) * 10 ** "abcde".index(name) for name in names), indexing="ij")
    return np.asarray(sum(grids, np.zeros(())))


@given(st.data(), NAMES)
def test_align_lines_up_by_name(data: st.DataObject, target: tuple[str, ...]) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(target), max_size=len(target)))
    source = data.draw(st.permutations([n for n, keep in zip(target, kept, strict=True) if keep]).map(tuple))
    plan = plans.align(source, target)
    if source == target:
        assert plan is None
        return
    lined = array(source)
    if plan.order is not None:
        assert plan.order != tuple(range(len(source)))
        lined = lined.transpose(plan.order)
    for at in plan.insert:
        lined = np.expand_dims(lined, at)
    assert lined.shape == tuple(SIZES[name] if name in source else 1 for name in target)
    np.testing.assert_array_equal(lined + 0 * array(target), np.broadcast_to(lined, array(target).shape))
    restored = lined.reshape([SIZES[name] for name in target if name in source])
    np.testing.assert_array_equal(restored, array(tuple(name for name in target if name in source)))


@given(st.lists(NAMES, min_size=1, max_size=3).map(tuple))
def test_broadcast_takes_the_first_operand_that_contains_all(operands: tuple[tuple[str, ...], ...]) -> None:
    every = set().union(*operands)
    holders = [names for names in operands if set(names) == every]
    if holders:
        assert plans.broadcast(operands) == holders[0]
    else:
        with pytest.raises(BroadcastError):
            plans.broadcast(operands)


@given(st.data(), NAMES, NAMES)
def test_contraction_is_that_of_einsum(data: st.DataObject, left: tuple[str, ...], right: tuple[str, ...]) -> None:
    shared = [name for name in left if name in right]
    contracted = tuple(data.draw(st.lists(st.sampled_from(shared), unique=True))) if shared else ()
    rest = [name for name in dict.fromkeys((*left, *right)) if name not in contracted]
    out = data.draw(st.permutations(rest).map(tuple))
    plan = plans.contraction(left, right, contracted, out)
    batch = [left[at] for at in plan.batch[0]]
    assert batch == [right[at] for at in plan.batch[1]]
    assert [left[at] for at in plan.contract[0]] == [right[at] for at in plan.contract[1]] == list(contracted)
    free = [n for n in left if n not in (*batch, *contracted)] + [n for n in right if n not in (*batch, *contracted)]
    produced = [*batch, *free]
    assert sorted(produced) == sorted(out)
    assert tuple(produced) == out if plan.order is None else tuple(produced[at] for at in plan.order) == out
    equation = plans.letters((left, right), out)
    expected = np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", array(left), array(right))
    np.testing.assert_array_equal(np.einsum(equation, array(left), array(right)), expected)


@given(NAMES, NAMES)
def test_sets_of_names(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    assert plans.union(first, second) == (*first, *(name for name in second if name not in first))
    assert plans.without(first, second) == tuple(name for name in first if name not in second)
    assert plans.intersect(first, second) == tuple(name for name in first if name in second)
    if set(second) <= set(first):
        assert [first[at] for at in plans.positions(first, second)] == list(second)
        assert all(at < 0 for at in plans.positions(first, second))
    else:
        with pytest.raises(AxisNotFoundError):
            plans.positions(first, second)


def test_labels_count_dimensions_without_names_backwards() -> None:
    assert plans.labels(("x", "y"), 4) == (-2, -1, "x", "y")
    assert plans.labels((), 0) == ()


def test_positions_are_those_of_distinct_axes() -> None:
    with pytest.raises(AxisClashError):
        plans.positions(("a", "b"), ("a", "a"))


def test_rename_happens_all_at_once() -> None:
    assert plans.rename(("a", "b", "c"), (("a", "b"), ("b", "a"))) == ("b", "a", "c")
    assert plans.rename(("a",), ()) == ("a",)
    with pytest.raises(AxisClashError, match="axis 'b' would appear twice"):
        plans.rename(("a", "b"), (("a", "b"),))
    with pytest.raises(AxisNotFoundError, match="no axis named 'q'"):
        plans.rename(("a", "b"), (("q", "r"),))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (("b", "a", "c"), "bac"),
        (("c", ...), "cab"),
        ((..., "a"), "bca"),
        (("b", ..., "a"), "bca"),
        ((...,), "abc"),
        (("a", "b", "c", ...), "abc"),
    ],
)
def test_complete_fills_in_the_rest(order: tuple, expected: str) -> None:
    assert plans.complete(("a", "b", "c"), order) == tuple(expected)


@pytest.mark.parametrize(
    ("order", "error", "text"),
    [
        (("a",), AxisNotFoundError, "the order leaves out b"),
        ((), AxisNotFoundError, "the order leaves out a, b"),
        (("a", "q", "b"), AxisNotFoundError, "no axis named 'q'"),
        (("a", "a", "b"), AxisClashError, "axis 'a' would appear twice"),
        ((..., "a", ...), AxisClashError, "the order has more than one ..."),
    ],
)
def test_complete_refuses(order: tuple, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        plans.complete(("a", "b"), order)
    assert str(caught.value) == text


def test_letters_never_run_out() -> None:
    names = [f"axis {i}" for i in range(60)]
    inputs, out = plans.letters([names], names[:1]).split("->")
    assert len(set(inputs)) == 60
    assert all(letter.isalpha() for letter in inputs)
    assert out == inputs[0]


def test_plans_are_remembered() -> None:
    assert plans.align(("c", "a"), ("a", "b", "c")) is plans.align(("c", "a"), ("a", "b", "c"))


def test_plans_need_no_jax() -> None:
    here = Path(plans.__file__)
    top = here.parent.parent
    below = {name: top / f"{name.replace('.', '/')}.py" for name in ("base.callers", "errors", "base.phrases")}
    files = below | {"names.plans": here}
    code = "import sys, types; import importlib.util as u; sys.modules['jax'] = None; "
    code += "sys.modules.update({name: types.ModuleType(name) for name in ('p', 'p.base', 'p.names')}); "
    code += "; ".join(
        f"s = u.spec_from_file_location('p.{name}', r'{file}'); m = u.module_from_spec(s); "
        f"sys.modules['p.{name}'] = m; s.loader.exec_module(m)"
        for name, file in files.items()
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_memo_that_is_full_is_emptied(monkeypatch):
    memo = {}
    monkeypatch.setattr(plans, "CACHE", 2)
    assert [plans.keep(memo, key, key.upper()) for key in "abc"] == ["A", "B", "C"]
    assert memo == {"c": "C"}


def test_the_union_of_names_has_each_once_where_it_first_occurs() -> None:
    assert plans.unite([("b", "a"), (), ("a", "c")]) == ("b", "a", "c")
