"""Experts inside of maps over other mesh axes, against one device."""

import jax
import pytest

import axonym as axn
from axonym import nn
from tests.nn.layouts import draw
from tests.nn.routed import B, E, Long, M, X, apply_model, halved, made, near

pytestmark = pytest.mark.sampled

# Competing tokens are split, the experts over other mesh axes than the surrounding map.
GLOBAL = {"capacity_factor": 0.75}
BLOCKS = {"capacity_factor": 1.0, "tokens": "seq"}


def differentiated(call):
    def loss(model, x):
        y = call(model, x)
        return axn.sin(y).sum().scalar(), y

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)


def check(found, expected):
    (_, y), gradients = found
    (_, theirs), others = expected
    near(y.rearrange(theirs.names).array, theirs.array)
    for gradient, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(others), strict=True):
        near(gradient, other)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("auto_mesh", GLOBAL), ("explicit_mesh", {}), ("explicit_mesh", BLOCKS)],
    ids=["some dropped", "sorted", "blocks"],
)
def test_inside_of_a_shard_map_over_other_axes(kind, options, request):
    model = made(nn.MixtureOfExperts.init, E, X, M, 2, use_bias=True, **options)
    model, x = halved((model, draw(B, Long, E)))
    mapping = {"batch": "data", "experts": "data"}
    manual = {"seq": "model"}
    if "tokens" in options:  # those of a sequence stay together
        mapping, manual = {"experts": "data"}, {"batch": "model"}
    with axn.set_mesh(request.getfixturevalue(kind)):
        inner = axn.shard_map(apply_model, {**mapping, **manual}, manual_axes=("model",), strict=False)
        program = jax.jit(differentiated(inner)).lower(model, x).compile()
        found = program(model, x)
    check(found, jax.jit(differentiated(apply_model))(model, x))
    assert ("all-to-all(" in program.as_text()) == ("batch" in mapping)


@pytest.mark.parametrize(("kind", "options"), [("auto_mesh", BLOCKS), ("explicit_mesh", BLOCKS), ("explicit_mesh", {})])
def test_inside_of_a_pipeline(kind, options, request):
    Layers = axn.Axis("layers", 4)
    stack = made(nn.Stacked.init(Layers, nn.MixtureOfExperts), E, X, M, 2, use_bias=True, **options)
    stack, x = halved((stack, draw(B, Long, E)))

    def run(stack, x):
        return x + stack.scan(x)[0]

    mapping = {"batch": "model", "experts": "model", "layers": "data"}
    with axn.set_mesh(request.getfixturevalue(kind)), axn.pipelined("batch", 4):
        given = axn.shard(stack, mapping, strict=False), axn.shard(x, {"batch": "model"})
        found = axn.named_jit(differentiated(run), mapping, strict=False)(*given)
    check(found, jax.jit(differentiated(run))(stack, x))
