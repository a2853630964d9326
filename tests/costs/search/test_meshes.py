"""The meshes of so many devices."""

from axonym.costs.search.meshes import iterate_finer, iterate_groups, iterate_meshes, share_starts


def sizes(meshes):
    return [tuple(mesh.values()) for mesh in meshes]


def test_the_two_axes_of_so_many_devices():
    assert sizes(iterate_meshes(8, is_symmetric=True)) == [(8, 1), (4, 2)]
    assert sizes(iterate_meshes(8, is_symmetric=False)) == [(8, 1), (4, 2), (2, 4), (1, 8)]
    assert sizes(iterate_meshes(7, is_symmetric=False)) == [(7, 1), (1, 7)]
    assert list(iterate_meshes({"a": 2, "b": 3}, is_symmetric=True)) == [{"a": 2, "b": 3}]


def test_one_of_them_is_divided():
    found = list(iterate_finer({"data": 12, "model": 4}, set()))
    assert [axis for axis, _ in found] == ["data", "data", "model"]
    assert [tuple(mesh.items()) for _, mesh in found] == [
        (("data", 6), ("inner", 2), ("model", 4)),
        (("data", 4), ("inner", 3), ("model", 4)),
        (("data", 12), ("model", 2), ("inner", 2)),
    ]


def test_neighbours_are_groups_of_all_sizes():
    found = list(iterate_groups({"data": 12, "model": 2}, "data"))
    assert sizes(found) == [(6, 2, 2), (4, 3, 2), (3, 4, 2), (2, 6, 2)]
    assert list(found[0]) == ["data", "inner", "model"]
    assert not list(iterate_groups({"data": 3}, "data"))


def test_what_is_pinned_stays():
    assert [axis for axis, _ in iterate_finer({"data": 12, "model": 4}, {"data"})] == ["model"]
    assert not list(iterate_finer({"data": 3, "model": 1}, set()))


def test_each_mesh_has_a_start_and_with_few_one_of_several_axes_has_most():
    for starts in (5, 12, 30, 100):
        for meshes in range(1, min(starts, 6)):
            shares = share_starts(starts, meshes)
            assert sorted(shares) == list(range(meshes))
            assert min(shares.values()) > 0
            assert sum(shares.values()) <= starts
    few = share_starts(12, 5)
    assert sum(few.values()) == 12
    assert max(few, key=lambda at: few[at]) not in (0, 4)
    # Other meshes begin with its best choices, so it is counted before them.
    assert list(few)[:2] == [0, 2]
