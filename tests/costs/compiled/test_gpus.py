"""GPUs that are not there: JAX describes them to its compiler, if its plugin is installed."""

import importlib.util

import pytest
from jax.experimental import topologies

from axonym.costs.compiled import gpus
from axonym.costs.compiled.gpus import describe_gpus


@pytest.fixture
def asked(monkeypatch):
    """Return the descriptions that JAX is asked for, as if its plugin were installed."""
    found = []

    def describe(**options):
        found.append(options)
        raise NotImplementedError

    monkeypatch.setattr(gpus, "_has_plugin", lambda: True)
    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    return found


def test_hosts_have_eight_devices(asked):
    for count in (2, 8, 256, 12):
        assert describe_gpus("h100", count) == []
    assert [one["topology"] for one in asked] == ["1x1x2", "1x1x8", "1x32x8"]
    assert {one["platform"] for one in asked} == {"cuda"}
    assert "core_count: 132" in asked[0]["target_config"]
    describe_gpus("of nobody", 8)
    assert len(asked) == 3


def test_without_the_plugin_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert describe_gpus("h100", 8) == []
