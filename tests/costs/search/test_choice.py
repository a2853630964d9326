"""What a search for mappings may change, one thing at a time."""

import axonym as axn
from axonym.costs.search.choice import Choice, Give, Keep, Move, Pipeline, Swap

BEST = Choice((("embed", ("data",)),), (("batch", ("data",)), ("mlp", ("model",))))


def test_others_leave_the_mesh_axes_of_a_move_that_evicts():
    before = Choice((("embed", ("data", "model")),), (("batch", ("data",)), ("mlp", ("model",))))
    evicting = Move("mlp", ("data",), "both", evicts=True).apply(before)
    assert evicting == Choice((("embed", ("model",)), ("mlp", ("data",))), (("mlp", ("data",)),))
    beside = Move("mlp", ("data",), "computed", evicts=False).apply(before)
    assert beside == Choice(before.stored, (("batch", ("data",)), ("mlp", ("data",))))


def test_parameters_list_what_the_computation_maps():
    mappings = BEST.make_mappings(["embed", "mlp"])
    assert mappings.of(("embed", "mlp")).entries == (("embed", ("data",)), ("mlp", ()))
    assert mappings.of(("batch", "embed")) == mappings.compute


def test_the_state_of_an_optimiser_has_its_own_entries():
    mappings = Keep((("mlp", ("model",)),)).apply(BEST).make_mappings(["embed", "mlp"], ["0.mu", "0.nu"])
    own = {"embed": None, "mlp": "model"}
    assert mappings == axn.Mappings(
        {"embed": "data", "mlp": None}, {"batch": "data", "mlp": "model"}, {"0.mu": own, "0.nu": own}
    )
    assert mappings.of(("embed", "mlp"), "0.mu.up.weight")["mlp"] == ("model",)
    assert mappings.of(("embed", "mlp"), "up.weight")["mlp"] == ()


def test_stages_divide_the_rows_last_and_others_leave_them():
    before = Choice((("embed", ("data", "stage")),), (("batch", ("stage", "data")),))
    piped = Pipeline("layers", "batch", "stage", 8).apply(before)
    assert piped.stored == (("embed", ("data",)), ("layers", ("stage",)))
    assert piped.computed == (("batch", ("data", "stage")), ("layers", ("stage",)))
    assert piped.microbatches == 8


def test_groups_of_neighbours_shard_parameters_unless_these_are_computed_in_parts():
    order = "data", "inner", "model"
    before = Choice((("embed", ("data", "inner", "model")), ("mlp", ("data", "inner"))), (("mlp", ("data", "inner")),))
    grouped = before.shard_groups("data", "inner", order)
    assert grouped.stored == (("embed", ("inner", "model")), ("mlp", ("data", "inner")))
    assert grouped.computed == before.computed
    # Groups that are along another mesh axis become larger.
    small = Choice((("embed", ("model",)),), (("batch", order),))
    assert small.shard_groups("data", "inner", order).stored == (("embed", ("inner", "model")),)


def test_a_part_of_a_mesh_axis_stays_where_the_whole_was():
    before = Choice((("embed", ("data", "model")),), (("batch", ("model",)), ("mlp", ("data",))), BEST.stored)
    divided = before.divide("data", "inner")
    assert divided.stored == (("embed", ("data", "inner", "model")),)
    assert divided.computed == (("batch", ("model",)), ("mlp", ("data", "inner")))
    assert divided.kept == (("embed", ("data", "inner")),)


def test_another_value_is_given():
    assert Give(1, 2).apply(Choice(given=(0, 0))).given == (0, 2)


def test_two_mesh_axes_exchange_their_roles_in_all_entries():
    before = Choice((("embed", ("data", "third")),), (("batch", ("data",)), ("mlp", ("model",))), (("mlp", ("data",)),))
    swap = Swap("data", "model", ("data", "model", "third"))
    assert swap.apply(before) == Choice(
        (("embed", ("model", "third")),), (("batch", ("model",)), ("mlp", ("data",))), (("mlp", ("model",)),)
    )
    assert swap.apply(swap.apply(before)) == before
    # The entry of the rows of a pipeline has its own order.
    piped = Pipeline("layers", "batch", "model", 8).apply(BEST)
    assert swap.apply(piped) == piped
