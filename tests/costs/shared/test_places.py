"""Layers and phases, from what JAX calls operations."""

import pytest

from axonym.costs.shared.places import expand_merged, find_layer, find_place

LOOP = "jit(step)/while/body/closed_call"


@pytest.mark.parametrize(
    ("source", "layer", "phase"),
    [
        (f"{LOOP}/jvp(blocks)/while/body/closed_call/mlp/up/checkpoint/dot_general", "blocks.mlp.up", "forward"),
        (f"{LOOP}/transpose(jvp(blocks))/while/body/eval_jaxpr/mlp/up/dot_general", "blocks.mlp.up", "backward"),
        (
            f"{LOOP}/transpose(jvp(blocks))/while/body/checkpoint/rematted_computation/mlp/mul",
            "blocks.mlp",
            "recomputed",
        ),
        (f"{LOOP}/jvp(dropout)/jit(_bernoulli)/jit(_uniform)/while/body/xor", "dropout", "forward"),
        (f"{LOOP}/jvp(vmap(norm))/jit(silu)/bf,fe->be/dot_general", "norm", "forward"),
        ("jit(step)/transpose(jvp(blocks))/while/body/mlp/up/mlp/up/checkpoint/add", "blocks.mlp.up", "backward"),
        ("jit(step)/reduce_sum", "", "other"),
        ("w1", "", "other"),
    ],
)
def test_places(source, layer, phase):
    assert find_place(source, has_gradient=True) == (layer, phase)


def test_without_a_gradient_all_is_forward():
    assert find_place("jit(f)/head/dot_general", has_gradient=False) == ("head", "forward")


def test_operations_that_the_compiler_merged():
    assert expand_merged("jit(f)/(jvp()/sum:transpose(jvp(a))/(b:c)/add)/d") == [
        "jit(f)/jvp()/sum/d",
        "jit(f)/transpose(jvp(a))/b/add/d",
        "jit(f)/transpose(jvp(a))/c/add/d",
    ]
    assert expand_merged("jit(f)/jvp(a)/add") == ["jit(f)/jvp(a)/add"]


def test_the_layer_of_a_parameter():
    layers = {layer: layer for layer in ("blocks", "blocks.mlp", "blocks.mlp.up", "norm", "blocks.attention")}
    layers["norm"] = "Decoder.norm"
    path = "state.model.blocks.repeated.stacked.0.mlp.up.weight"
    assert find_layer(path, layers) == "blocks.mlp.up"
    assert find_layer("state.model.head.weight", layers) == "head"
    assert find_layer("state.model.norm.weight", layers) == "Decoder.norm"
    assert find_layer("w", layers) == ""
