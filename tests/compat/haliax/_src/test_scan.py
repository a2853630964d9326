"""The private aliases of loops."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
import haliax._src.scan as private
import jax.numpy as jnp
from haliax import hof


def test_aliases():
    for name in ("scan", "fold", "map"):
        assert getattr(private, name) is getattr(hax, name)
    assert private.ScanCheckpointPolicy is hax.ScanCheckpointPolicy
    assert private.ScanCheckpointSpec == hof.ScanCheckpointSpec


def test_what_is_scanned_by_default():
    scanned = private.is_named_or_shaped_array_like
    assert [scanned(x) for x in (hax.named(1, ()), jnp.ones(2), jnp.ones(()), 1.0, "a")] == [True, True, *[False] * 3]
