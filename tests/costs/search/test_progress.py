"""What a plan tells while it searches."""

import axonym as axn
from tests.costs.programs import MESH, abstract, step


def test_a_plan_tells_each_mapping_that_it_counts():
    told = []
    found = axn.plan(step, MESH, *abstract(), target="v5e", limit=4, verify=0, progress=told.append)
    assert [one.doing for one in told] == ["counting"] * found.counted + ["done"]
    assert [one.counted for one in told] == [*range(1, found.counted + 1), found.counted]
    assert {one.limit for one in told} == {4}
    assert told[-1].seconds == found.best.cost.time.compared
    times = [one.seconds for one in told]
    assert times == sorted(times, reverse=True)


def test_estimates_count_as_parts_of_a_small_limit():
    told = []
    found = axn.plan(step, MESH, *abstract(), target="v5e", limit=12, verify=0, progress=told.append)
    assert found.counted > 2 * told[-1].counted
    assert told[-1].counted <= 12
