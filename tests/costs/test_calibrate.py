"""Calibration, on a machine whose rates are known: its runs take as long as these say."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

import axonym as axn
from axonym.costs.compiled import running

MODULE = importlib.import_module("axonym.costs.calibrate")
PRODUCTS, MEMORY, LINK, LATENCY = 2e9, 4e9, 1e9, 1e-4


def run(fn, mapping, mesh, args, kwargs, **options):
    """Return how long a device takes, of which there are eight behind a switch: three hops."""
    sizes = args[0].shape
    if fn is MODULE._multiply:
        return 2 * sizes["rows"] / 8 * sizes["width"] * args[1].shape["columns"] / PRODUCTS
    if fn is MODULE._attend:
        # At half the rate, the scores and four products backwards; the result itself is not needed.
        return 5 * 2 * sizes["q"] ** 2 * sizes["features"] * sizes["heads"] / (PRODUCTS / 2)
    if fn is MODULE._copy:
        return 2 * 4 * sizes["width"] / MEMORY
    if fn is MODULE._sum:
        return 2 * 7 / 8 * 4 * sizes["width"] / LINK + 6 * LATENCY
    return 7 * 4 * sizes["width"] / LINK + 3 * LATENCY


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(running, "measure_run", run)


def test_a_device_that_is_not_known_has_the_rates_that_it_reaches(machine):
    target = axn.partitioning.calibrate({"data": 4, "model": 2})
    assert target.name == "cpu, measured"
    assert target.flops == {"float32": pytest.approx(PRODUCTS), "bfloat16": pytest.approx(PRODUCTS)}
    assert target.memory_bandwidth == pytest.approx(MEMORY, rel=0.01)
    assert target.link.bandwidth == pytest.approx(LINK, rel=0.01)
    assert target.link.latency == pytest.approx(LATENCY, rel=0.01)
    shares = target.efficiency
    assert (shares.products, shares.links, shares.memory) == pytest.approx((1.0, 1.0, 1.0), rel=0.01)
    assert shares.attention == pytest.approx(0.5)


def test_a_known_device_keeps_its_peaks(machine, monkeypatch):
    monkeypatch.setitem(MODULE._KINDS, "cpu", "v5e")
    known = axn.partitioning.TARGETS["v5e"]
    target = axn.partitioning.calibrate({"data": 8})
    assert (target.name, target.flops, target.link) == (known.name, known.flops, known.link)
    assert target.efficiency.products == pytest.approx(PRODUCTS / known.flops["bfloat16"])


@pytest.mark.parametrize(
    ("kind", "name"),
    [("TPU v5 lite", "v5e"), ("TPU v5p", "v5p"), ("TPU v6 lite", "v6e"), ("NVIDIA H100 80GB HBM3", "h100")],
)
def test_devices_are_known_by_their_kind(kind, name):
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(device_kind=kind)]))
    assert MODULE._find_known(mesh).name == name
