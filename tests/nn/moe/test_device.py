"""One device: parts of the hidden axis add up, and count a bias once."""

import jax

import axonym as axn
from axonym import nn
from axonym.nn.moe.device import apply_on_device
from axonym.nn.moe.layout import CHOICE, TokenLayout
from tests.nn.layouts import draw
from tests.nn.routed import B, E, M, S, X, made, near

Choice = axn.Axis(CHOICE, 2)


def test_parts_of_the_hidden_axis_add_up(auto_mesh):
    model = made(nn.MixtureOfExperts.init, E, X, M, 2, use_bias=True)
    experts = model.gate, model.up, model.down
    chosen = axn.arange(S).broadcast_axis((B, Choice)) + axn.arange(Choice)
    given = draw(B, S, E), draw(B, S, Choice), chosen
    layout = TokenLayout(("batch", "seq"), ("batch", "seq"))
    alone, dropped = jax.jit(lambda *given: apply_on_device(layout, (nn.silu, None), given, experts))(*given)
    assert dropped is None

    split = TokenLayout(
        ("batch", "seq"), ("batch", "seq"), hidden=("model",), mesh_sizes=tuple(auto_mesh.shape.items())
    )

    def run(given, experts):
        return apply_on_device(split, (nn.silu, None), given, experts)[0]

    with axn.set_mesh(auto_mesh):
        found = axn.shard_map(run, {"mlp": "model"})(given, experts)
    near(found.rearrange(alone.names).array, alone.array)
