"""All layers and families are what the table says that their axes mean, under any layout."""

from typing import Any

import jax
import pytest

import axonym as axn
from axonym import testing
from tests.nn.test_every_layer import ROWS
from tests.testing.meanings import FAMILIES, LAYERS, Meaning

MAPPINGS = {
    "data": {"batch": "data"},
    "tensor": {"batch": "data", "kv_heads": "model", "mlp": "model", "vocab": "model"},
    "fsdp": axn.Mappings({"embed": ("data", "model")}, {"batch": ("data", "model")}),
    "context": {"batch": "data", "pos": "model"},
    "layers": axn.Mappings({"layers": "model"}, {"batch": "data"}),
}


def check(meaning: Meaning) -> None:
    """Check the claims of a row, and that its exceptions are some."""
    f, args = meaning.make()
    found = testing.check(
        f,
        *args,
        independent=meaning.independent,
        causal=meaning.causal,
        equivariant=meaning.equivariant,
        invariant=meaning.invariant,
        declared=meaning.declared,
    )
    assert not found, str(found)
    assert {claim.text for claim in found.claims if claim.result == "declared"} == meaning.declared.keys()


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAYERS | FAMILIES)
def test_axes_mean_what_is_declared(name: str) -> None:
    check((LAYERS | FAMILIES)[name])


def test_the_table_has_all_layers() -> None:
    assert LAYERS.keys() >= ROWS.keys()


def loss(model: Any, tokens: axn.NamedArray) -> axn.NamedArray:
    return model.loss(tokens)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_decoder_is_the_same_under_all_layouts(mapping: str, kind: str) -> None:
    model, (tokens,) = FAMILIES["Llama-3.1-8B"].make()
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    testing.assert_same_layouts(loss, MAPPINGS[mapping], mesh, model, tokens["pos", :5], kinds=[kind])
