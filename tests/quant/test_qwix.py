"""Rules of Qwix without Qwix; tests/neighbours has the rest."""

import sys

import jax
import pytest

import axonym as axn


def test_it_needs_qwix(monkeypatch):
    monkeypatch.setitem(sys.modules, "qwix", None)
    layer = axn.nn.Linear.init(axn.Axis("embed", 4), axn.Axis("mlp", 8), key=jax.random.key(0))
    with pytest.raises(ImportError) as caught:
        axn.quant.quantize_with_qwix(layer, [])
    assert caught.value.name == "qwix"
    assert str(caught.value) == "quantize_with_qwix: the library 'qwix' is not installed\n  hint: pip install qwix"
