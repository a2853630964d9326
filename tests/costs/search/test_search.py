"""The search for mappings, against a score that is written by hand."""

import dataclasses

import pytest

from axonym.costs.search.axes import Axes
from axonym.costs.search.choice import Choice, Move, Spread
from axonym.costs.search.lessons import Budget, Lessons, OutOfBudgetError
from axonym.costs.search.search import Search

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
    search.climb(search.list_best()[0], limit)
    return search, budget


def test_entries_split_all_sizes_further_with_each_mesh_axis():
    assert list(AXES.iterate_entries("mlp")) == [(), ("data",), ("model",)]
    assert not AXES.is_divisible("mlp", ("data",))
    assert AXES.count_ways("mlp", ("data", "model")) == 2
    assert list(AXES.iterate_entries("embed")) == [(), ("data",), ("model",), ("data", "model")]
    assert AXES.find_widest("embed", ("data",)) == ("data",)
    assert AXES.find_widest("mlp", ("data", "model")) == ("model",)
    wide = dataclasses.replace(AXES, mesh={"data": 8, "model": 3}, parameters={"embed": frozenset({36})})
    assert wide.find_widest("embed", ("data", "model")) == ("data", "model")
    assert wide.find_widest("batch", ("model",)) == ()


def test_the_best_choice_is_found_and_nothing_is_counted_twice():
    counted = []

    def score(choice):
        counted.append(choice)
        return apart(choice)

    search, budget = searched(AXES, score, 1000)
    found = search.list_best()
    assert found[0] == BEST
    assert not budget.ran_out
    assert len(counted) == len(set(counted))
    # What is not legal is not counted.
    assert budget.left == 1000 - len(found)
    assert [search.scores[one] for one in found] == sorted(search.scores[one] for one in found)
    assert all(apart(one) is not None for one in found)


def test_what_is_fixed_stays():
    fixed = Choice((), (("batch", ("model",)),))
    search, _ = searched(dataclasses.replace(AXES, fixed=fixed), apart, 1000)
    found = search.list_best()
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
    starts = axes.list_starts()
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


def test_the_first_starts_are_those_of_every_published_rule():
    data = {"batch": frozenset({8}), "pos": frozenset({64})}
    tensor = tuple((name, ("model",)) for name in ("heads", "mlp", "vocab"))
    for mesh in ({"data": 4, "model": 2}, {"slice": 2, "data": 4, "model": 2}):
        sizes = dict.fromkeys(EIGHT, frozenset({64}))
        axes = Axes(mesh, sizes, data, Choice(), LAYERS)
        every = tuple(mesh)
        rows = ("batch", axes.find_widest("batch", every))
        rest = ("batch", axes.find_widest("batch", every[:-1]))
        # With sequence parallelism and without.
        spread = tuple(sorted((rest, *tensor, ("pos", ("model",)))))
        first = axes.list_starts()[:10]
        for choice in (
            Choice((("embed", every),), (rows,)),
            Choice((), (rows,)),
            Choice((("embed", every[:-1]), *tensor), spread, yielding=("pos",)),
            Choice((("embed", every[:-1]), *tensor), (rest, *tensor)),
        ):
            assert choice in first
    # Fully sharded inside of slices, with copies between them.
    axes = Axes({"slice": 2, "data": 4}, sizes, data, Choice(), LAYERS)
    inside = Choice((("embed", ("data",)),), (("batch", ("slice", "data")),))
    assert inside in axes.list_starts()[:20]


def test_what_lies_where_others_leave_it_free_shares_their_mesh_axis():
    tensor = Choice((), (("batch", ("data",)), ("mlp", ("model",))))
    spread = Spread("pos", ("model",)).apply(tensor)
    mapping = spread.make_mappings(["mlp"]).compute
    assert mapping.yielding == ("pos",)
    assert str(mapping) == "{'batch': 'data', 'mlp': 'model', 'pos': if_free('model')}"
    # Another move of the axis, or of one that takes its place, takes the entry back.
    assert Move("pos", (), "computed", evicts=False).apply(spread) == tensor
    assert Move("mlp", ("model",), "both", evicts=True).apply(spread).yielding == ()
    # It changes nothing if the mesh axis has nothing else, or the axis an entry.
    alone = Choice((), (("batch", ("data",)),))
    assert Spread("pos", ("model",)).apply(alone) is alone
    assert Spread("batch", ("model",)).apply(tensor) is tensor
    # Lessons of the one say nothing of the other.
    lessons = Lessons()
    lessons.learn(tensor, (1.0,), AXES.mesh)
    lessons.learn(spread, None, AXES.mesh)
    assert lessons.forbid(spread, AXES.mesh)
    assert not lessons.forbid(Move("pos", ("data",), "computed", evicts=True).apply(tensor), AXES.mesh)


def test_experts_may_share_the_mesh_axis_of_rows():
    arrays = {("experts", "embed", "mlp"): 900, ("embed", "heads"): 40}
    sizes = {**EIGHT, "experts": frozenset({8})}
    axes = Axes({"data": 4, "model": 2}, sizes, {"batch": frozenset({8})}, Choice(), arrays)
    own = (("experts", ("model",)),)
    computed = (("batch", ("data", "model")), *own)
    assert Choice(own, computed) in axes.list_starts()
    assert Choice((("embed", ("data",)), *own), computed) in axes.list_starts()


def test_groups_have_one_axis_of_each_array():
    axes = Axes({"model": 2}, EIGHT, {}, Choice(), LAYERS)
    assert axes.find_groups(("model",)) == [("mlp", "vocab", "heads"), ("embed",)]


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
    # Once for each way to divide the axis, and once where another name may be to blame; then never.
    assert len(tried) <= 4
    before = len(tried)
    searched(AXES, score, 1000, lessons)
    assert len(tried) == before


def test_a_legal_choice_takes_the_blame_away():
    lessons = Lessons()
    both = Choice((), (("batch", ("data",)), ("mlp", ("model",))))
    lessons.learn(Choice((), (("batch", ("data",)),)), (1.0,), AXES.mesh)
    lessons.learn(both, None, AXES.mesh)
    assert lessons.forbid(both, AXES.mesh)
    # Other devices may divide what these cannot.
    other = Choice((), (("batch", ("data",)), ("mlp", ("data", "model"))))
    assert not lessons.forbid(other, AXES.mesh)
    lessons.learn(Choice((), (("mlp", ("model",)),)), (1.0,), AXES.mesh)
    assert not lessons.forbid(both, AXES.mesh)


def test_what_is_the_same_on_another_mesh_is_left_out():
    search = Search(AXES, apart, Budget(1000))
    search.begin(1000, is_first=False)
    whole = [one for one in search.scores if one.computed == (("batch", ("data", "model")),) and not one.stored]
    assert not whole
    assert search.scores


PIPED = dataclasses.replace(
    AXES,
    parameters={**SIZES, "layers": frozenset({4})},
    arrays={("layers", "embed", "mlp"): 100},
    piped=("layers", "batch"),
)


def test_a_pipeline_is_tried_with_numbers_of_microbatches_that_divide():
    # 8 rows: over two stages they are cut into 8, 4 or 2; over four, into 8 or 4.
    assert [one.microbatches for one in PIPED.list_pipelines("model")] == [8, 4, 2]
    assert [one.microbatches for one in PIPED.list_pipelines("data")] == [8, 4]
    rows = {(one.microbatches, dict(one.computed)["batch"]) for one in PIPED.list_starts() if one.microbatches}
    # Four devices that each cut two rows have no eight microbatches; where they divide layers, there are eight.
    assert {(4, ("model", "data")), (2, ("data", "model")), (8, ("model",))} <= rows


def test_stages_alone_have_microbatches():
    searched_for, _ = searched(PIPED, lambda choice: (-float(choice.microbatches or 0),), 1000)
    for choice in searched_for.scores:
        assert ("layers" in dict(choice.computed)) == (choice.microbatches is not None)
    # With the rows along the stages alone, all eight can be cut.
    assert searched_for.list_best()[0].microbatches == 8


def test_all_values_of_arguments_are_tried():
    axes = dataclasses.replace(AXES, fixed=Choice(given=(0, 0)), alternatives=(2, 3))

    def score(choice):
        own = apart(choice)
        return own and (*own, -choice.given[1], -choice.given[0])

    search, _ = searched(axes, score, 1000)
    assert search.list_best()[0] == dataclasses.replace(BEST, given=(1, 2))


def test_the_state_of_an_optimiser_may_be_elsewhere():
    axes = dataclasses.replace(AXES, has_state=True)

    def score(choice):
        own = apart(choice)
        return own and (*own, choice.kept != (("embed", ("data", "model")),))

    search, _ = searched(axes, score, 1000)
    assert search.list_best()[0] == dataclasses.replace(BEST, kept=(("embed", ("data", "model")),))
    # Where it lies as the parameters do, it is none of its own.
    assert all(one.kept != one.stored for one in search.scores)


@pytest.mark.parametrize("model", [2, 4])
def test_mesh_axes_exchange_their_roles_before_anything_else_moves(model):
    """From the roles of two mesh axes, one step leads to the other ones, also where only their links differ."""
    wrong = Choice((("mlp", ("data",)),), (("batch", ("model",)), ("mlp", ("data",))))
    right = Choice((("mlp", ("model",)),), (("batch", ("data",)), ("mlp", ("model",))))

    def score(choice):
        return (float(choice != right),)

    sizes = {"embed": frozenset({16}), "mlp": frozenset({16})}
    axes = Axes({"data": 4, "model": model}, sizes, {"batch": frozenset({8})}, Choice(), ARRAYS)
    search = Search(axes, score, Budget(2))
    search.look_at(wrong)
    search.climb(wrong, 1)
    assert search.list_best()[0] == right


def test_a_climb_that_ends_early_can_go_on():
    search = Search(AXES, apart, Budget(100))
    start = Choice(computed=(("batch", ("data",)),))
    search.look_at(start)
    search.climb(start, 1)
    assert not search.climbed
    search.climb(start, 100)
    assert start in search.climbed
    assert search.list_best()[0] == BEST


def test_a_choice_without_a_trace_is_not_judged():
    def score(choice):
        if choice.stored:
            raise OutOfBudgetError
        return apart(choice)

    search = Search(AXES, score, Budget(100))
    assert search.look_at(BEST) is None
    assert BEST not in search.scores
    assert search.look_at(Choice(computed=BEST.computed)) == (1.0,)
