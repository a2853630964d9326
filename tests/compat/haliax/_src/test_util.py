"""Helpers without a public name."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import pytest
from haliax._src.util import index_where


def test_index_where():
    assert index_where(lambda x: x > 1, [0, 1, 2, 3]) == 2
    assert index_where(lambda x: x > 1, (5, 1, 2), start=1) == 2
    for entries, start in (([0, 1], 0), ([0, 2], 5), ([], 0)):
        with pytest.raises(ValueError, match=f"no entry from index {start} on satisfies the predicate"):
            index_where(lambda x: x > 1, entries, start)
