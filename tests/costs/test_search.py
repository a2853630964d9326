"""The search for mappings, against a score that is written by hand."""

import dataclasses

from axonym.costs.search import Axes, Budget, Choice, Lessons, Move, Search

SIZES = {"embed": frozenset({16}), "mlp": frozenset({6, 12})}
ARRAYS = {("embed", "mlp"): 100, ("embed",): 1}
AXES = Axes({"data": 4, "model": 2}, SIZES, {"batch": frozenset({8})}, Choice(), ARRAYS)
BEST = Choice((("embed", ("data",)),), (("batch", ("data",)), ("mlp", ("model",))))


def apart(choice):
    """Count the entries in which a choice differs from the best one; no two axes may share a mesh axis."""
    for entries in (choice.stored, choice.computed):
        used = [axis for _, entry in entries for axis in entry]
        if len(used) > len(set(used)):
            return None
    of_stored = set(choice.stored) ^ set(BEST.stored)
    return (float(len(of_stored | (set(choice.computed) ^ set(BEST.computed)))),)


def searched(axes, score, limit, lessons=None):
    """Look at all starts, and move on from the best one."""
    budget = Budget(limit)
    search = Search(axes, score, budget, lessons)
    search.begin(limit)
    search.climb(search.best()[0])
    return search, budget


def test_entries_divide_all_sizes():
    assert list(AXES.entries_of("mlp")) == [(), ("model",)]
    assert list(AXES.entries_of("embed")) == [(), ("data",), ("model",), ("data", "model")]
    assert AXES.widest("embed", ("data",)) == ("data",)
    assert AXES.widest("mlp", ("data",)) == ()


def test_others_leave_the_mesh_axes_of_a_move_that_evicts():
    before = Choice((("embed", ("data", "model")),), (("batch", ("data",)), ("mlp", ("model",))))
    evicting = Move("mlp", ("data",), "both", evicts=True).applied(before)
    assert evicting == Choice((("embed", ("model",)), ("mlp", ("data",))), (("mlp", ("data",)),))
    beside = Move("mlp", ("data",), "computed", evicts=False).applied(before)
    assert beside == Choice(before.stored, (("batch", ("data",)), ("mlp", ("data",))))


def test_the_best_choice_is_found_and_nothing_is_counted_twice():
    counted = []

    def score(choice):
        counted.append(choice)
        return apart(choice)

    search, budget = searched(AXES, score, 1000)
    found = search.best()
    assert found[0] == BEST
    assert not budget.ran_out
    assert budget.left == 1000 - len(counted)
    assert len(counted) == len(set(counted))
    assert [search.scores[one] for one in found] == sorted(search.scores[one] for one in found)
    assert all(apart(one) is not None for one in found)


def test_what_is_fixed_stays():
    fixed = Choice((), (("batch", ("model",)),))
    search, _ = searched(dataclasses.replace(AXES, fixed=fixed), apart, 1000)
    found = search.best()
    assert all(dict(one.computed)["batch"] == ("model",) for one in found)
    assert dict(found[0].stored) == {"embed": ("data",)}


def test_a_limit_ends_the_search():
    search, budget = searched(AXES, apart, 4)
    assert budget.ran_out
    assert len(search.scores) == 4


# Heads and the perceptron are in different arrays, so that one mesh axis may divide both.
LAYERS = {("vocab", "embed"): 500, ("embed", "heads"): 400, ("embed", "mlp"): 900, ("embed",): 1}
EIGHT = {name: frozenset({8}) for name in ("vocab", "embed", "heads", "mlp")}


def test_starts_are_what_experts_write():
    axes = Axes({"data": 4, "model": 2}, EIGHT, {"batch": frozenset({8})}, Choice(), LAYERS)
    every = ("data", "model")
    divided = tuple((name, ("model",)) for name in ("heads", "mlp", "vocab"))
    starts = axes.starts()
    for stored, computed in (
        ((), ()),
        ((), (("batch", every),)),
        ((("embed", every),), (("batch", every),)),
        ((("embed", ("model",)),), (("batch", every),)),
        (divided, (("batch", ("data",)), *divided)),
        ((("embed", ("data",)), *divided), (("batch", ("data",)), *divided)),
    ):
        assert Choice(stored, computed) in starts
    assert len(starts) == len(set(starts))


def test_groups_have_one_axis_of_each_array():
    axes = Axes({"model": 2}, EIGHT, {}, Choice(), LAYERS)
    assert axes.groups("model") == [("mlp", "vocab", "heads"), ("embed",)]


def test_parameters_are_not_stored_twice_along_a_mesh_axis():
    search, _ = searched(AXES, lambda choice: (0.0,), 1000)
    for choice in search.scores:
        used = [axis for name, entry in choice.stored if name in ("embed", "mlp") for axis in entry]
        assert len(used) == len(set(used))


def test_what_is_not_legal_once_is_not_tried_again():
    tried = []

    def score(choice):
        if "mlp" in dict(choice.computed):
            tried.append(choice)
            return None
        return apart(choice)

    lessons = Lessons()
    searched(AXES, score, 1000, lessons)
    # First as what shares a mesh axis with the batch or is alone, then never.
    assert len(tried) <= 3
    before = len(tried)
    searched(AXES, score, 1000, lessons)
    assert len(tried) == before


def test_a_legal_choice_takes_the_blame_away():
    lessons = Lessons()
    both = Choice((), (("batch", ("data",)), ("mlp", ("model",))))
    lessons.learn(Choice((), (("batch", ("data",)),)), is_legal=True)
    lessons.learn(both, is_legal=False)
    assert lessons.forbid(both)
    lessons.learn(Choice((), (("mlp", ("data",)),)), is_legal=True)
    assert not lessons.forbid(both)


def test_what_is_the_same_on_another_mesh_is_left_out():
    search = Search(AXES, apart, Budget(1000))
    search.begin(1000, is_first=False)
    whole = [one for one in search.scores if one.computed == (("batch", ("data", "model")),) and not one.stored]
    assert not whole
    assert search.scores


def test_parameters_list_what_the_computation_maps():
    mappings = BEST.mappings(["embed", "mlp"])
    assert mappings.of(("embed", "mlp")).entries == (("embed", ("data",)), ("mlp", ()))
    assert mappings.of(("batch", "embed")) == mappings.compute
