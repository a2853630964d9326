"""Scores have no axis of one element that only queries have."""

from axonym.faults.copied_scores import find_single_axes


def test_axes_of_keys_and_longer_ones_stay():
    sizes = {"batch": 1, "group": 1, "heads": 2, "pos": 1}
    assert find_single_axes(sizes, ("batch", "pos", "key_pos")) == ("group",)
