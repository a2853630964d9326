"""The private alias of `dot`."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
from haliax._src.dot import dot


def test_alias():
    assert dot is hax.dot
