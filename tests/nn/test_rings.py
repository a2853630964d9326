"""Perceptrons whose positions go around rings, against the same on one device."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import draw, halved, made

pytestmark = pytest.mark.sampled

B, E, M, O = axn.make_axes(batch=4, embed=8, mlp=16, out=5)  # noqa: E741
S = axn.Axis("tokens.seq", 8)
COMPUTE = {"batch": "data", "tokens": "model", "mlp": "model"}
PARAMETERS = {"mlp": "model"}


def small(*args, **options):
    return halved(halved(made(*args, **options)))


def mlp():
    return small(nn.MLP.init, E, O, M, 1, nn.gelu)


def gated(**options):
    return small(nn.GatedMLP.init, E, O, M, **options)


def step(model, x):
    def loss(both):
        model, x = both
        y = model(x)
        return axn.sin(y).sum().scalar(), y

    return jax.value_and_grad(loss, has_aux=True)((model, x))


def lowered(fn, mesh, *args, compute=COMPUTE, **options):
    """Return the program of a function, and what it returns."""
    with axn.set_mesh(mesh):
        compiled = axn.named_jit(fn, axn.Mappings(PARAMETERS, compute), **options)
        return compiled.lower(*args).as_text(), compiled(*args)


def sends(text):
    return "collective_permute" in text


def check(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (mlp, ("batch", "tokens.seq", "embed")),
        (gated, ("embed", "tokens.seq", "batch")),
        (mlp, ("tokens.seq", "embed")),
    ],
)
def test_results_and_gradients_are_those_of_one_device(kind, make, names, request):
    mesh = request.getfixturevalue(f"{kind}_mesh")
    model, x = make(), draw(B, S, E)[{"batch": 0}] if "batch" not in names else draw(B, S, E)
    x = x.rearrange(names)
    text, found = lowered(step, mesh, model, x, rings=True, strict=False)
    assert sends(text)
    assert "all_gather" not in text
    check(found, jax.jit(step)(model, x))


def test_weights_may_be_stored_in_parts(auto_mesh):
    model, x = gated(out_first=True), draw(B, S, E)
    with axn.set_mesh(auto_mesh):
        compiled = axn.fsdp(step, {"embed": "data", "mlp": "model"}, {**COMPUTE, "embed": None}, rings=True)
        assert sends(compiled.lower(model, x).as_text())
        check(compiled(model, x), jax.jit(step)(model, x))


def test_ring_of_four_in_a_loop_over_layers(explicit_mesh):
    mesh = jax.sharding.Mesh(explicit_mesh.devices.reshape(2, 4), ("data", "model"))

    class Block(eqx.Module):
        mlp: nn.MLP

        @staticmethod
        def init(*, key):
            return Block(nn.MLP.init(E, E, M, 1, functools.partial(nn.gelu, approximate=False), key=key))

        def __call__(self, x):
            return x + self.mlp(x)

    stack, x = small(nn.Stacked.init(axn.Axis("layers", 2), Block)), draw(B, S, E)

    def loss(stack, x):
        return jax.value_and_grad(lambda stack: axn.sin(stack.fold(x)).sum().scalar())(stack)

    text, found = lowered(loss, mesh, stack, x, rings=True)
    assert sends(text)
    check(found, jax.jit(loss)(stack, x))


def test_ring_over_two_mesh_axes(auto_mesh):
    whole = {"tokens": ("data", "model"), "mlp": ("data", "model")}
    x = draw(B, S, E)
    with axn.set_mesh(auto_mesh):
        compiled = axn.named_jit(step, axn.Mappings({"mlp": ("data", "model")}, whole), rings=True)
        assert sends(compiled.lower(mlp(), x).as_text())
        check(compiled(mlp(), x), jax.jit(step)(mlp(), x))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_maps_over_rows(kind, request):
    def rows(model, x):
        return axn.vmap(model, "batch")(x)

    model, x = gated(), draw(B, S, E)
    _, found = lowered(rows, request.getfixturevalue(f"{kind}_mesh"), model, x, rings=True, strict=False)
    np.testing.assert_allclose(found.array, model(x).rearrange(found.names).array, rtol=2e-5, atol=2e-6)


def smooth(x):
    return axn.exp(-axn.square(x))


@pytest.mark.parametrize(
    ("model", "compute", "options"),
    [
        (mlp(), COMPUTE, {}),  # nobody asked
        (mlp(), {"batch": "data", "mlp": "model"}, {"rings": True}),  # positions are whole
        (mlp(), {"batch": "data", "tokens": "model", "mlp": None}, {"rings": True}),  # the hidden axis is whole
        (made(nn.MLP.init, E, O, M, 1, smooth), COMPUTE, {"rings": True}),  # may look at other positions
        (mlp(), {**COMPUTE, "batch": None, "embed": "data"}, {"rings": True}),  # sums over another mesh axis, too
        (made(nn.MLP.init, E, O, M, 2), COMPUTE, {"rings": True}),  # has a square weight
        (made(nn.MLP.init, E, O, M, 0), COMPUTE, {"rings": True}),
    ],
)
def test_the_compiler_sends_where_no_ring_can(model, compute, options, auto_mesh):
    def forward(model, x):
        return model(x)

    x = draw(B, S, E)
    text, found = lowered(forward, auto_mesh, model, x, compute=compute, strict=False, **options)
    assert not sends(text)
    check(found, jax.jit(forward)(model, x))


def test_errors_are_those_of_layers(auto_mesh):
    for x, error in ((draw(B, S), AxisNotFoundError), (draw(B, S, E.resize(7)), AxisSizeError)):
        with pytest.raises(error, match="Linear: "):
            lowered(lambda model, x: model(x), auto_mesh, mlp(), x, rings=True)


def test_rings_must_be_a_bool():
    for compiled in (axn.named_jit, lambda fn, **options: axn.fsdp(fn, PARAMETERS, COMPUTE, **options)):
        with pytest.raises(OperandError, match="named_jit: rings must be True or False, not 'model'"):
            compiled(step, rings="model")
