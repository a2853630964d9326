"""What a search learns from choices that are not legal, and what it may still spend."""

import dataclasses

from axonym.costs.search.choice import Choice
from axonym.costs.search.lessons import Budget, Lessons

MESH = {"data": 4, "model": 2}


def test_one_reason_that_no_legal_choice_has_is_to_blame():
    lessons, split = Lessons(), Choice(computed=(("heads", ("model",)),))
    lessons.learn(Choice(computed=(("batch", ("data",)),)), (1.0,), MESH)
    assert not lessons.forbid(split, MESH)
    lessons.learn(Choice(computed=(("batch", ("data",)), *split.computed)), None, MESH)
    assert lessons.forbid(split, MESH)
    # Another entry divides the axis otherwise, and one that works once is not to blame.
    assert not lessons.forbid(Choice(computed=(("heads", ("data",)),)), MESH)
    lessons.learn(split, (1.0,), MESH)
    assert not lessons.forbid(split, MESH)


def test_a_pair_on_one_mesh_axis_is_to_blame_where_each_name_is_not():
    lessons = Lessons()
    both = Choice(computed=(("heads", ("model",)), ("mlp", ("model",))))
    lessons.learn(both, None, MESH)
    # A name may be the reason as well: a pair that seems to be to blame would never be tried again.
    assert not lessons.forbid(both, MESH)
    for pair in both.computed:
        lessons.learn(Choice(computed=(pair,)), (1.0,), MESH)
    assert lessons.forbid(both, MESH)
    assert not lessons.forbid(Choice(computed=both.computed[:1]), MESH)


def test_what_many_devices_do_not_divide_is_tried_with_fewer():
    lessons, split = Lessons(), Choice(computed=(("heads", ("model",)),))
    lessons.learn(split, None, {"data": 2, "model": 64})
    assert lessons.forbid(split, {"data": 4, "model": 64})
    assert not lessons.forbid(split, MESH)


def test_what_good_choices_have_is_promising():
    lessons, mlp, embed = Lessons(), ("mlp", ("model",)), ("embed", ("data",))
    assert lessons.make_forecast()(Choice(computed=(mlp,))) == 0
    lessons.learn(Choice(computed=(mlp,)), (0.0, 1.0), MESH)
    lessons.learn(Choice(computed=(embed, mlp)), (0.0, 2.0), MESH)
    lessons.learn(Choice(computed=(embed,)), (1.0, 0.5), MESH)
    expect = lessons.make_forecast()
    # What nobody has tried is neither good nor bad, and another role is another part.
    assert expect(Choice(computed=(mlp,))) < expect(Choice(stored=(mlp,))) == 0 < expect(Choice(computed=(embed,)))


def test_a_budget_ends():
    budget = Budget(2)
    assert [budget.take(1), budget.ran_out, budget.take(1), budget.ran_out, budget.take()] == [
        True,
        False,
        False,
        True,
        True,
    ]
    assert budget.left == 0


def test_traces_of_a_budget_end_before_its_choices():
    budget = Budget(10, 2)
    assert [(budget.take(), budget.take_trace()) for _ in range(3)] == [(True, True), (True, True), (True, False)]
    assert (budget.left, budget.traces, budget.ran_out) == (7, 0, True)


def test_early_choices_leave_traces_for_later_ones():
    budget = Budget(10, 8)
    assert budget.take(end=5)
    # A quarter of the traces is for the last half of the choices.
    assert [budget.take_trace() for _ in range(7)] == [True] * 6 + [False]
    assert budget.take()
    assert budget.take_trace()


def test_a_part_of_a_budget_is_held_and_given_back():
    budget = Budget(200, 20)
    held = budget.hold(0.25)
    assert (budget.left, budget.traces) == (150, 15)
    budget.give(held)
    assert (budget.left, budget.traces) == (200, 20)


def test_a_state_that_cannot_be_kept_so_is_remembered():
    lessons = Lessons()
    rows = Choice(computed=(("batch", ("data",)),))
    apart, other = (dataclasses.replace(rows, kept=(("embed", (axis,)),)) for axis in ("data", "model"))
    lessons.learn(rows, (0.0, 1.0), MESH)
    lessons.learn(apart, None, MESH)
    assert lessons.forbid(dataclasses.replace(apart, stored=(("embed", ("model",)),)), MESH)
    assert not lessons.forbid(other, MESH)
