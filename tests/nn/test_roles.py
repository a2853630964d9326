"""What the axes of the parameters of every layer are for: a table that is written by hand."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import pytest

import axonym as axn
from axonym import nn
from axonym.nn.roles import Part

KEY = jax.random.key(0)
L, E, M, V, G, K, D, X, P, R = axn.make_axes(
    layers=4, embed=8, mlp=6, vocab=12, group=3, kv_heads=2, head_dim=4, experts=2, pos=7, ensemble=5
)


def linear(*, key):
    return nn.Linear.init(E, (K, D), key=key)


class Residual(eqx.Module):
    """A module that says nothing: its layers do."""

    inner: nn.Linear
    scale: axn.NamedArray

    @staticmethod
    def init(*, key):
        return Residual(linear(key=key), axn.ones(E))


class Own(eqx.Module):
    """A module that has arrays, and says what their axes are for."""

    kernel: axn.NamedArray
    first: nn.Linear
    axis_roles: ClassVar[Any] = {"kernel": {"vocab": "table", "embed": "output"}, "kv_heads": "head", "embed": "output"}

    @staticmethod
    def init():
        return Own(axn.ones((E, V)), linear(key=KEY))


# What makes a module; of each of its parameters, by the end of its path: kind, stacks, inputs, outputs, heads.
ROWS = {
    "linear": (
        linear,
        {"weight": ("matrix", "", "embed", "kv_heads head_dim"), "bias": ("shift", "", "", "kv_heads head_dim")},
    ),
    "same name": (
        lambda key: nn.Linear.init(E, E, key=key, out_first=True),
        {"weight": ("matrix", "", "embed", "embed.out"), "bias": ("shift", "", "", "embed")},
    ),
    "to a number": (
        lambda key: nn.Linear.init(E, (), key=key, use_bias=False),
        {"weight": ("matrix", "", "embed", "")},
    ),
    "stacked": (
        lambda key: nn.Stacked.init(L, Residual)(key=key),
        {
            "weight": ("matrix", "layers", "embed", "kv_heads head_dim"),
            "bias": ("shift", "layers", "", "kv_heads head_dim"),
            "scale": ("scale", "layers", "", "embed"),
        },
    ),
    "rounds": (
        lambda key: nn.Stacked.init(L, nn.RmsNorm, rounds=2)(E, use_bias=False),
        {"weight": ("scale", "layers_round layers", "", "embed")},
    ),
    "vmapped": (
        lambda key: axn.vmap(lambda key: linear(key=key), R)(jax.random.split(key, 5)),
        {
            "weight": ("matrix", "ensemble", "embed", "kv_heads head_dim"),
            "bias": ("shift", "ensemble", "", "kv_heads head_dim"),
        },
    ),
    "vmapped by JAX": (
        lambda key: jax.vmap(lambda key: nn.Linear.init(E, M, key=key, use_bias=False))(jax.random.split(key, 5)),
        {"weight": ("matrix", "0", "embed", "mlp")},
    ),
    "table": (lambda key: nn.Embedding.init(V, E, key=key), {"weight": ("table", "", "vocab", "embed")}),
    "positions": (lambda key: nn.PositionEmbedding.init(P, E, key=key), {"weight": ("table", "", "pos", "embed")}),
    "table and scores": (
        lambda key: [nn.Embedding.init(V, E, key=key), nn.Linear.init(E, V, key=key)],
        {
            "0.weight": ("table", "", "vocab", "embed"),
            "1.weight": ("table", "", "embed", "vocab"),
            "bias": ("shift", "", "", "vocab"),
        },
    ),
    "attention": (
        lambda key: nn.Attention.init(E, (K, G), D, KVHeads=K, key=key, use_bias=False),
        {
            "query.weight": ("matrix", "", "embed", "kv_heads group head_dim", "kv_heads group"),
            "key.weight": ("matrix", "", "embed", "kv_heads head_dim", "kv_heads"),
            "value.weight": ("matrix", "", "embed", "kv_heads head_dim", "kv_heads"),
            "out.weight": ("matrix", "", "kv_heads group head_dim", "embed", "kv_heads group"),
        },
    ),
    "adapted": (
        lambda key: nn.add_lora(nn.Stacked.init(L, linear)(key=key), 2, key=key),
        {
            "base.weight": ("matrix", "layers", "embed", "kv_heads head_dim"),
            "base.bias": ("shift", "layers", "", "kv_heads head_dim"),
            "down.weight": ("matrix", "layers", "embed", "lora"),
            "up.weight": ("matrix", "layers", "lora", "kv_heads head_dim"),
        },
    ),
    "experts": (
        lambda key: nn.MoELinear.init(X, E, M, key=key),
        {"weight": ("matrix", "experts", "embed", "mlp"), "bias": ("shift", "experts", "", "mlp")},
    ),
    "convolution": (
        lambda key: nn.Conv.init(("x", "y"), E, E, 3, groups=2, key=key),
        {"weight": ("matrix", "", "group.embed kernel.x kernel.y", "embed"), "bias": ("shift", "", "", "embed")},
    ),
    "transposed convolution": (
        lambda key: nn.ConvTranspose.init("x", E, M, 2, key=key),
        {"weight": ("matrix", "", "embed kernel.x", "mlp"), "bias": ("shift", "", "", "mlp")},
    ),
    "groups": (
        lambda key: nn.GroupNorm.init(E, 2, "x"),
        {"weight": ("scale", "", "", "embed"), "bias": ("shift", "", "", "embed")},
    ),
    "recurrence": (
        lambda key: nn.LSTMCell.init(E, M, key=key),
        {
            "input.weight": ("matrix", "", "embed", "gate mlp"),
            "input.bias": ("shift", "", "", "gate mlp"),
            "hidden.weight": ("matrix", "", "mlp", "gate mlp.out"),
        },
    ),
    "module of a user": (
        lambda key: Own.init(),
        {
            "kernel": ("table", "", "vocab", "embed"),
            "weight": ("matrix", "", "embed", "kv_heads head_dim", "kv_heads"),
            "bias": ("shift", "", "", "kv_heads head_dim", "kv_heads"),
        },
    ),
    "Equinox": (
        lambda key: [
            eqx.nn.Linear(3, 4, key=key),
            eqx.nn.Conv2d(3, 4, 2, key=key),
            eqx.nn.Embedding(5, 4, key=key),
            eqx.nn.LayerNorm((4,), use_bias=False),
            nn.Stacked.init(L, lambda key: eqx.nn.GRUCell(3, 4, use_bias=False, key=key))(key=key),
            eqx.filter_vmap(lambda key: eqx.nn.Linear(3, 4, use_bias=False, key=key))(jax.random.split(key, 5)),
        ],
        {
            "0.weight": ("matrix", "", "1", "0"),
            "0.bias": ("shift", "", "", "0"),
            "1.weight": ("matrix", "", "1 2 3", "0"),
            "1.bias": ("shift", "", "", "0 1 2"),
            "2.weight": ("table", "", "0", "1"),
            "3.weight": ("scale", "", "", "0"),
            "stacked.weight_ih": ("matrix", "0", "2", "1"),
            "stacked.weight_hh": ("matrix", "0", "2", "1"),
            "5.weight": ("matrix", "0", "2", "1"),
        },
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_the_axes_of_a_layer_are_for(name):
    make, expected = ROWS[name]
    found = list(axn.parameters.walk(eqx.filter_eval_shape(make, key=KEY)))
    assert len(found) == len(expected)
    for own in found:
        (row,) = [row for end, row in expected.items() if f".{own.path}".endswith(f".{end}")]
        kind, *axes = row
        columns = ("stack", "expert"), ("input", "window", "table"), ("output",)
        shown = [" ".join(map(str, own.list_axes(*roles))) for roles in columns]
        assert (own.kind, *shown, " ".join(own.heads)) == (kind, *axes, "")[:5]


def test_parts_of_two_parameters_are_two():
    (own,) = axn.parameters.walk(axn.ones((E, M)))
    part = Part.of(("embed", "mlp"), own, 0)
    assert part == Part.of(("embed", "mlp"), own, 0)
    assert hash(part) == hash(Part.of(("embed", "mlp"), own, 0))
    assert part != Part.of(("embed", "mlp"), own, 1)
    assert part != ("embed", "mlp")
    assert part.whole.path == ""
