"""The order of devices and experts, and layers inside of a shard_map."""

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ShardingError
from axonym.nn.moe.layout import DEVICE, TokenLayout
from tests.nn.layouts import draw, fails
from tests.nn.routed import B, E, M, S, X, apply_model, halved, made, near

pytestmark = pytest.mark.sampled

Sixteen = X.resize(16)
TOKENS = ("batch", "seq")


@pytest.mark.parametrize("experts", [("data", "model"), ("model", "data"), ("model",), ("data",)], ids=str)
def test_each_expert_has_a_number_on_one_device(experts, auto_mesh):
    """Tokens are split over `data`; so the devices of `model` have the same."""
    ways = tuple(auto_mesh.shape.items())
    layout = TokenLayout(TOKENS, TOKENS, entries=(("batch", ("data",)),), experts=experts, mesh_sizes=ways)

    def run(own):
        reached = layout.list_reached(Sixteen)
        number = layout.number_choices(axn.arange(Sixteen), Sixteen)
        # The first expert of this device is the first of its block of weights.
        device = jax.lax.axis_index(layout.shared) if layout.shared else 0
        first = reached[DEVICE, device, "experts", 0]
        ordered = number[Sixteen, reached.flatten_axes((DEVICE, "experts"), "at")]
        return (first == own["experts", 0]).broadcast_axis(own.axes), ordered.array[None]

    out_specs = (None, jax.P(("data", "model")))
    with axn.set_mesh(auto_mesh):
        mapped = axn.shard_map(run, {"experts": experts}, out_specs=out_specs, check=False)
        is_first, ordered = mapped(axn.arange(Sixteen))
    assert is_first.all().item()
    np.testing.assert_array_equal(ordered, np.broadcast_to(np.arange(ordered.shape[1]), ordered.shape))


@pytest.mark.parametrize(
    ("kind", "mapping", "options"),
    [
        ("auto_mesh", {"batch": "data", "experts": "data", "mlp": "model"}, {"capacity_factor": 1.0, "tokens": "seq"}),
        ("explicit_mesh", {"batch": "data", "experts": "model"}, {}),
    ],
)
def test_a_layer_inside_of_a_shard_map(kind, mapping, options, request):
    model, x = halved((made(nn.MixtureOfExperts.init, E, X, M, 2, use_bias=True, **options), draw(B, S, E)))

    def loss(call, model, x):
        y = call(model, x)
        return axn.sin(y).sum().scalar(), y

    def run(call):
        return jax.jit(jax.value_and_grad(lambda model, x: loss(call, model, x), has_aux=True))

    (_, y), gradients = run(apply_model)(model, x)
    with axn.set_mesh(request.getfixturevalue(kind)):
        mapped = axn.shard_map(apply_model, mapping, strict=False)
        (_, out), others = run(mapped)(model, x)
    near(out.rearrange(y.names).array, y.array)
    for one, other in zip(jax.tree.leaves(others), jax.tree.leaves(gradients), strict=True):
        near(one, other)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_experts_that_do_not_divide(kind, request):
    model, x = made(nn.MixtureOfExperts.init, E, X.resize(6), M, 2), draw(B, S, E)
    mapping = {"batch": "data", "experts": "data"}
    expected = (
        "shard: experts=6 cannot be split evenly in 4 over mesh axis data\n"
        "  array has: experts=6, mlp=6\n"
        "  mapping: {'batch': 'data', 'experts': 'data'}\n"
        "  mesh: data=4, model=2\n"
        "  hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'experts' to None"
    )
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping(mapping):
        fails(ShardingError, expected, lambda: jax.jit(apply_model)(model, x))
    report = axn.check(model, mapping, {"data": 4, "model": 2}, x, quiet=True)
    assert "experts=6 cannot be split evenly in 4 over mesh axis data" in [found.text for found in report.problems]


def test_without_a_program(explicit_mesh):
    """Rounds and gradients, operation by operation."""
    model, x = halved((made(nn.MixtureOfExperts.init, E, X, M, 2, use_bias=True), draw(B, S, E)))

    def gradients(model):
        return jax.grad(lambda model: axn.sin(apply_model(model, x)).sum().scalar())(model)

    expected = jax.jit(gradients)(model)
    with axn.set_mesh(explicit_mesh), axn.axis_mapping({"batch": "data", "experts": "data"}):
        found = gradients(model)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        near(one, other)
