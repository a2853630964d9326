"""The axes that a search can map, and the order of the mappings that it begins with."""

import dataclasses

from axonym.costs.search.axes import Axes
from axonym.costs.search.choice import Choice, Spread

ARRAYS = {("embed", "heads"): 400, ("embed", "mlp"): 900}
PARAMETERS = {name: frozenset({64}) for name in ("embed", "heads", "mlp")}
ROWS = {"batch": frozenset({32}), "pos": frozenset({64})}
AXES = Axes({"data": 16, "model": 2}, PARAMETERS, ROWS, Choice(), ARRAYS)
ALL = ("data", "model")


def find_first(axes):
    """Return the axis of data that the first start divides along all mesh axes."""
    first = axes.list_starts()[0]
    return next(name for name, entry in first.computed if entry == ALL)


def test_the_axis_of_data_that_makes_the_step_fastest_is_divided_first():
    # Both have enough parts, so the time on two devices decides.
    assert find_first(dataclasses.replace(AXES, paces={"batch": 1.0, "pos": 1.2})) == "batch"
    assert find_first(dataclasses.replace(AXES, paces={"batch": 1.2, "pos": 1.0})) == "pos"
    # On 32 devices, 4 rows have an eighth of the parts that positions have.
    few = dataclasses.replace(AXES, data={**ROWS, "batch": frozenset({4})})
    assert find_first(dataclasses.replace(few, paces={"batch": 1.0, "pos": 1.2})) == "pos"


def test_with_few_rows_layers_take_two_mesh_axes():
    """As in Pope et al. (2022), Efficiently scaling transformer inference, section 3.2.2."""
    one = dataclasses.replace(AXES, data={"batch": frozenset({1})})
    layers = (("embed", ("data",)), ("heads", ("model",)), ("mlp", ("model",)))
    assert Choice(layers, layers) in one.list_starts()[:10]


def test_heads_that_a_cache_has_too_are_axes_of_the_layers():
    """The 16 rows of a step of decoding are fewer than the features, and a cache has batch, heads and places."""
    cache = {"batch": frozenset({16}), "pos": frozenset({1, 64}), "heads": frozenset({64})}
    decoding = dataclasses.replace(AXES, data=cache)
    assert decoding.find_groups(("model",))[0] == ("mlp", "heads")
    layers = (("embed", ("data",)), ("heads", ("model",)), ("mlp", ("model",)))
    computed = tuple(sorted((("batch", ("data",)), *layers)))
    assert Choice(layers, computed, yielding=("batch",)) in decoding.list_starts()[:20]


def test_beside_experts_on_all_devices_other_parameters_are_sharded_too():
    """Attention has no experts, so that its heads take the devices, too; the features of experts cannot."""
    arrays = {("embed", "experts", "mlp"): 9000, ("embed", "heads"): 400, ("embed", "vocab"): 300}
    parameters = {name: frozenset({64}) for name in ("embed", "experts", "mlp", "heads", "vocab")}
    mixture = dataclasses.replace(AXES, mesh={"data": 8}, parameters=parameters, arrays=arrays)
    stored = tuple((name, ("data",)) for name in ("experts", "heads", "vocab"))
    beside = Choice(stored, (("batch", ("data",)), ("experts", ("data",))))
    starts = mixture.list_starts()
    replicated = dataclasses.replace(beside, stored=stored[:1])
    assert starts.index(beside) < starts.index(replicated)
    starts = dataclasses.replace(mixture, is_replicated=True).list_starts()
    assert starts.index(beside) > starts.index(replicated)


def test_experts_divide_either_mesh_axis_before_parameters_are_replicated():
    """Between nodes or inside of them: which one is faster depends on the links."""
    arrays = {("embed", "experts", "mlp"): 9000, ("embed", "heads"): 400, ("embed", "vocab"): 300}
    parameters = {name: frozenset({64}) for name in ("embed", "experts", "mlp", "heads", "vocab")}
    starts = dataclasses.replace(AXES, parameters=parameters, arrays=arrays).list_starts()

    def find(experts, **stored):
        entries = ((name, (axis,)) for name, axis in sorted({**stored, "experts": experts}.items()))
        return starts.index(Choice(tuple(entries), (("batch", ("data", "model")), ("experts", (experts,)))))

    sharded = find("model", embed="data"), find("data", embed="model")
    assert max(sharded) < min(find("model"), find("data"))


def test_learned_positions_are_no_axis_of_the_layers():
    arrays = {**ARRAYS, ("embed", "pos"): 40}
    learned = dataclasses.replace(AXES, parameters={**PARAMETERS, "pos": frozenset({64})}, arrays=arrays)
    assert all("pos" not in group for group in learned.find_groups(("model",)))


def test_slices_have_all_parameters_beside_tensor_parallelism():
    """As HSDP does: parameters are sharded inside of each slice, and slices divide the batch."""
    sliced = dataclasses.replace(AXES, mesh={"slice": 4, "data": 16, "model": 2}, data={"batch": frozenset({64})})
    layers = (("heads", ("model",)), ("mlp", ("model",)))
    computed = tuple(sorted((("batch", ("slice", "data")), *layers)))
    starts = sliced.list_starts()
    over, inside = (
        starts.index(Choice(tuple(sorted((("embed", own), *layers))), computed))
        for own in (("slice", "data"), ("data",))
    )
    assert over < inside < 20


def test_two_axes_of_a_parameter_clash_on_a_mesh_axis_unless_one_yields():
    entries = (("embed", ("data",)), ("mlp", ("data",)))
    assert AXES.has_clash(Choice(computed=entries))
    assert AXES.has_clash(Choice(stored=entries))
    assert not AXES.has_clash(Choice(computed=entries, yielding=("embed",)))
    # No array has both.
    assert not AXES.has_clash(Choice(computed=(("heads", ("data",)), ("mlp", ("data",)))))


def test_replicated_parameters_come_first_once_they_are_better():
    layers = (("heads", ("model",)), ("mlp", ("model",)))
    computed = tuple(sorted((("batch", ("data",)), *layers)))
    sharded, whole = Choice((("embed", ("data",)), *layers), computed), Choice(layers, computed)
    starts = AXES.list_starts()
    assert starts.index(sharded) < starts.index(whole)
    starts = dataclasses.replace(AXES, is_replicated=True).list_starts()
    assert starts.index(whole) < starts.index(sharded)


def test_data_is_whole_between_layers_first_once_this_is_better():
    layers = (("heads", ("model",)), ("mlp", ("model",)))
    whole = Choice((("embed", ("data",)), *layers), (("batch", ("data",)), *layers))
    spread = Spread("pos", ("model",)).apply(whole)
    assert AXES.list_between() == [(spread, whole)]
    starts = AXES.list_starts()
    assert starts.index(spread) < starts.index(whole)
    starts = dataclasses.replace(AXES, is_whole_between=True).list_starts()
    assert starts.index(whole) < starts.index(spread)


def test_axes_of_layers_are_stored_as_they_are_computed():
    own = (("mlp", ("model",)),)
    rows = (("batch", ("data",)),)
    before = Choice((("embed", ("data",)), *own), (*rows, *own))
    # Both roles leave, or parameters are stored along another axis: nothing lies apart.
    assert AXES.count_apart(before, Choice((("embed", ("data",)),), rows)) == 0
    assert AXES.count_apart(before, dataclasses.replace(before, stored=own)) == 0
    # One of the two roles leaves.
    assert AXES.count_apart(before, dataclasses.replace(before, computed=rows)) == 1
    assert AXES.count_apart(before, dataclasses.replace(before, stored=())) == 1


def test_a_small_step_divides_data_first():
    assert [choice.computed for choice in AXES.list_alone()][:2] == [(("batch", ("model",)),), (("pos", ("model",)),)]


def test_the_shortest_mesh_axis_has_the_first_entries_of_a_small_step():
    for choice in AXES.list_alone():
        assert {axis for _, entry in choice.computed for axis in entry} == {"model"}
