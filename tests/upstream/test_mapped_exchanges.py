"""XLA gathers the mapped axis for an all-to-all under a `vmap` over Explicit mesh axes.

The test holds while XLA has the fault. Where it begins to fail, `faults/mapped_exchanges.py` can go.
"""

import jax
import pytest
from jax import lax

import axonym as axn
from axonym import nn
from axonym.nn.attention.travel import devices
from benchmarks.measure import collectives, totals
from tests.nn.split import MAPPING, attend, inputs, on


def exchange(array: jax.Array, index: object, ways: int, send: object, split: int, joined: int) -> jax.Array:
    return lax.all_to_all(array, MAPPING["pos"], split, joined, tiled=True)


def test_an_all_to_all_under_a_vmap(explicit_mesh: jax.sharding.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    each = axn.vmap(lambda *x: attend(*x, mask=nn.causal(), implementation="all-to-all"), "batch")
    monkeypatch.setattr(devices, "exchange_one_by_one", exchange)
    _, program = on(explicit_mesh, MAPPING, each, *inputs())
    assert "all-gather" in totals(collectives(program))
