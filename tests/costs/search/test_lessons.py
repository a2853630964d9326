"""What a search learns from choices that are not legal, and what it may still spend."""

from axonym.costs.search.choice import Choice
from axonym.costs.search.lessons import Budget, Lessons


def test_one_reason_that_no_legal_choice_has_is_to_blame():
    lessons, split = Lessons(), Choice(computed=(("heads", ("model",)),))
    lessons.learn(Choice(computed=(("batch", ("data",)),)), is_legal=True)
    assert not lessons.forbid(split)
    lessons.learn(Choice(computed=(("batch", ("data",)), *split.computed)), is_legal=False)
    assert lessons.forbid(split)
    # Another entry divides the axis otherwise, and one that works once is not to blame.
    assert not lessons.forbid(Choice(computed=(("heads", ("data",)),)))
    lessons.learn(split, is_legal=True)
    assert not lessons.forbid(split)


def test_a_pair_on_one_mesh_axis_is_to_blame_before_one_name():
    lessons = Lessons()
    both = Choice(computed=(("heads", ("model",)), ("mlp", ("model",))))
    lessons.learn(both, is_legal=False)
    assert lessons.forbid(both)
    for name, entry in both.computed:
        assert not lessons.forbid(Choice(computed=((name, entry),)))


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
