"""The private alias of `einsum`."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
from haliax._src.einsum import einsum


def test_alias():
    assert einsum is hax.einsum
