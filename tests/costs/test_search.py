"""The search for mappings, against a score that is written by hand."""

from axonym.costs.search import Axes, Choice, Move, Search

SIZES = {"embed": frozenset({16}), "mlp": frozenset({6, 12})}
AXES = Axes({"data": 4, "model": 2}, SIZES, {"batch": frozenset({8})}, Choice())
BEST = Choice((("embed", ("data",)),), (("batch", ("data",)), ("mlp", ("model",))))


def apart(choice):
    """Count the entries in which a choice differs from the best one; no two axes may share a mesh axis."""
    for entries in (choice.stored, choice.computed):
        used = [axis for _, entry in entries for axis in entry]
        if len(used) > len(set(used)):
            return None
    of_stored = set(choice.stored) ^ set(BEST.stored)
    return (float(len(of_stored | (set(choice.computed) ^ set(BEST.computed)))),)


def test_entries_divide_all_sizes():
    assert list(AXES.entries_of(SIZES["mlp"])) == [(), ("model",)]
    assert list(AXES.entries_of(SIZES["embed"])) == [(), ("data",), ("model",), ("data", "model")]


def test_others_leave_the_mesh_axes_of_a_move_that_evicts():
    before = Choice((("embed", ("data", "model")),), (("batch", ("data",)), ("mlp", ("model",))))
    evicting = Move("mlp", ("data",), "both", evicts=True).applied(before)
    assert evicting == Choice((("embed", ("model",)), ("mlp", ("data",))), (("mlp", ("data",)),))
    beside = Move("mlp", ("data",), "computed", evicts=False).applied(before)
    assert beside == Choice(before.stored, (("batch", ("data",)), ("mlp", ("data",))))


def test_the_best_choice_is_found_from_any_start_and_nothing_is_counted_twice():
    counted = []

    def score(choice):
        counted.append(choice)
        return apart(choice)

    search = Search(AXES, score, limit=1000)
    found = search.run()
    assert found[0] == BEST
    assert not search.is_over
    assert len(counted) == len(set(counted))
    assert [search.scores[one] for one in found] == sorted(search.scores[one] for one in found)
    assert all(apart(one) is not None for one in found)


def test_what_is_fixed_stays():
    fixed = Choice((), (("batch", ("model",)),))
    search = Search(Axes(AXES.mesh, AXES.parameters, AXES.data, fixed), apart, limit=1000)
    found = search.run()
    assert all(dict(one.computed)["batch"] == ("model",) for one in found)
    assert dict(found[0].stored) == {"embed": ("data",)}


def test_a_limit_ends_the_search():
    search = Search(AXES, apart, limit=4)
    assert search.run()
    assert search.is_over
    assert len(search.scores) == 4


def test_parameters_list_what_the_computation_maps():
    mappings = BEST.mappings(["embed", "mlp"])
    assert mappings.of(("embed", "mlp")).entries == (("embed", ("data",)), ("mlp", ()))
    assert mappings.of(("batch", "embed")) == mappings.compute
