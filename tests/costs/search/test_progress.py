"""What a plan tells while it searches."""

import axonym as axn
from tests.costs.programs import MESH, abstract, step


def test_a_plan_tells_each_mapping_that_it_counts():
    told = []
    found = axn.plan(step, MESH, *abstract(), target="v5e", limit=4, verify=0, progress=told.append)
    assert [one.doing for one in told] == ["counting"] * found.counted + ["done"]
    assert [one.counted for one in told] == [*range(1, found.counted + 1), found.counted]
    # Most mappings are only estimated, so that ten times as many are counted.
    assert {one.limit for one in told} == {40}
    assert told[-1].seconds == found.best.cost.time.compared
    times = [one.seconds for one in told]
    assert times == sorted(times, reverse=True)


def test_a_small_limit_bounds_the_mappings_that_are_traced():
    found = axn.plan(step, MESH, *abstract(), target="v5e", limit=6, verify=0)
    shown, *others = found.best, *found.others[:5]
    traced = sum(not one.is_estimated for one in found.others[5:])
    assert not any(one.is_estimated for one in (shown, *others))
    assert traced <= 6 < found.counted <= 60
