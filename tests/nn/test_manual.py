"""Products whose weights devices gather themselves: equal results, and the bytes of a `shard_map` by hand."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
from measure import collectives, totals, wire_bytes

import axonym as axn
import axonym.nn as nn
from tests.feedforward import FeedForward
from tests.nn.layouts import draw, halved, made

pytestmark = pytest.mark.sampled

B, S, E, M = axn.make_axes(batch=16, seq=4, embed=16, mlp=32)
LAYERS = axn.Axis("layers", 3)
FSDP = {"embed": "data"}, {"batch": "data"}
WITH_TENSOR = {"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"}


class Model(eqx.Module):
    """Layers in a loop, between the look-up in a table and the scores by it."""

    table: nn.Embedding
    blocks: nn.Stacked

    @staticmethod
    @functools.partial(jax.jit, static_argnums=0)
    def init(vocab):
        one, other = jax.random.split(jax.random.key(0))
        table = nn.Embedding.init(axn.Axis("vocab", vocab), E, key=one)
        return Model(table, nn.Stacked.init(LAYERS, FeedForward)(E, M, key=other))

    def loss(self, ids):
        x = self.blocks.fold(self.table(ids))
        return (axn.tanh(self.table.unembed(x)) ** 2).mean().scalar()


def drawn(vocab):
    ids = np.random.default_rng(1).integers(0, vocab, (B.size, S.size), np.int32)
    return axn.named(jax.device_put(ids), (B, S))


def compiled_and_run(step, mappings, *args, **options):
    """Return the result of a step, and the collectives of its program."""
    jitted = axn.fsdp(step, *mappings, **options)
    program = jitted.lower(*args).compile()
    return program(*args), collectives(program, unknown_trip_count=1)


def kinds(found):
    return [one.kind for one in found]


def check_close(got, expected, rtol=2e-5, atol=1e-6):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=atol)


@functools.cache
def on_one_device(vocab):
    return jax.jit(jax.value_and_grad(Model.loss))(Model.init(vocab), drawn(vocab))


# Many ids for the rows of a table, which is gathered, and few, for which rows are sent.
@pytest.mark.parametrize(
    ("kind", "mappings", "vocab"),
    [
        ("auto", WITH_TENSOR, 16),
        ("auto", ({"embed": ("data", "model")}, {"batch": ("data", "model")}), 64),
        # replicas of what is stored in parts
        ("auto", ({"embed": "data"}, {"batch": ("model", "data")}), 16),
        # rows in parts
        ("auto", ({"vocab": "data", "mlp": ("model", "data")}, {"batch": ("data", "model")}), 16),
        ("explicit", FSDP, 16),
    ],
)
def test_losses_and_gradients_are_those_of_one_device(kind, mappings, vocab, auto_mesh, explicit_mesh):
    with axn.set_mesh({"auto": auto_mesh, "explicit": explicit_mesh}[kind]):
        step = jax.value_and_grad(Model.loss)
        got, found = compiled_and_run(step, mappings, Model.init(vocab), drawn(vocab), manual=True)
    check_close(got, on_one_device(vocab))
    # those of two weights in a loop, and of the scores
    assert kinds(found).count("reduce-scatter") >= 3


def test_a_device_sends_what_it_sends_in_a_shard_map_by_hand():
    """The reference is plain JAX: a loop of products, whose weights are gathered forward and backward."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    blocks = halved(halved(made(nn.Stacked.init(LAYERS, FeedForward), E, M, use_bias=False)))
    x = draw(B, E)

    def loss(blocks, x):
        return (blocks.fold(x) ** 2).mean().scalar()

    def by_hand(weights, x):
        @functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=2)
        def product(x, block, axis):
            return x @ lax.all_gather(block, "data", axis=axis, tiled=True)

        def layer(x, weights):
            up, down = weights
            return x + product(jnp.tanh(product(x, up, 0)), down, 1), None

        return lax.pmean((lax.scan(layer, x, weights)[0] ** 2).mean(), "data")

    weights = (blocks.stacked.up.weight.array, blocks.stacked.down.weight.array)
    specs = P(None, "data"), P(None, None, "data")
    with axn.set_mesh(mesh):
        got, found = compiled_and_run(jax.value_and_grad(loss), FSDP, blocks, x, manual=True)
        mapped = jax.shard_map(jax.value_and_grad(by_hand), in_specs=(specs, P("data")), out_specs=(P(), specs))
        program = jax.jit(mapped).lower(weights, x.array).compile()
        check_close(got, program(weights, x.array))
    assert sum(map(wire_bytes, found)) == sum(map(wire_bytes, collectives(program)))
    assert sorted(set(kinds(found))) == ["all-gather", "all-reduce", "reduce-scatter"]


def test_steps_in_bfloat16_with_an_optimiser_are_those_without(auto_mesh):
    policy, optimizer = jmp.get_policy("params=float32,compute=bfloat16"), optax.adam(1e-2)

    def step(model, state, ids):
        loss = lambda model: policy.cast_to_compute(model).loss(ids)  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(model)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(model, updates), state, value

    def trained(manual):
        model = axn.named_jit(Model.init, WITH_TENSOR[0])(64)
        state, losses = optimizer.init(model), []
        jitted = axn.fsdp(step, *WITH_TENSOR, manual=manual, donate_args=(True, True))
        for _ in range(3):
            before = model.blocks.stacked.up.weight.array
            model, state, loss = jitted(model, state, drawn(64))
            assert before.is_deleted()
            losses.append(float(loss))
        return losses, model

    with axn.set_mesh(auto_mesh):
        losses, model = trained(manual=True)
        usual, expected = trained(manual=False)
    np.testing.assert_allclose(losses, usual, rtol=2e-2)
    assert losses[2] < losses[0]
    layouts = [leaf.sharding.spec for leaf in jax.tree.leaves(model)]
    assert layouts == [leaf.sharding.spec for leaf in jax.tree.leaves(expected)]


def test_all_derivatives_are_there(auto_mesh):
    layer, x = made(nn.Linear.init, E, M), draw(B, E)

    def curvature(layer, x):
        slope = jax.grad(lambda layer: (axn.sin(layer(x)) ** 2).mean().scalar())
        return jax.jvp(slope, (layer,), (layer,))[1]

    with axn.set_mesh(auto_mesh):
        got, found = compiled_and_run(curvature, WITH_TENSOR, layer, x, manual=True)
    check_close(got, jax.jit(curvature)(layer, x))
    assert "reduce-scatter" in kinds(found)


def scaled(lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None, **options):
    """A product that looks at all elements of an operand."""
    largest = jnp.abs(lhs).max()
    return largest * lax.dot_general(lhs / largest, rhs, dimension_numbers)


def mapped(layer, x):
    return axn.vmap(layer, "batch")(x)


def without_batch(layer, x):
    return layer(x["batch", 0])


def in_a_shard_map(layer, x):
    return axn.shard_map(lambda layer, x: layer(x), FSDP[1])(layer, x)


def in_another_block(layer, x):
    with axn.axis_mapping({"embed": "data", "batch": None}):
        return layer(x)


def by_a_scale(layer, x):
    return nn.Linear(layer.weight, layer.bias, layer.In, layer.Out, jax.tree_util.Partial(scaled))(x)


def test_other_products_are_left_to_the_compiler(auto_mesh):
    layer, x = made(nn.Linear.init, E, M), draw(B, E)
    calls = [mapped, without_batch, in_a_shard_map, in_another_block, by_a_scale]

    def slopes(layer, x):
        return [jax.grad(lambda layer, call=call: (call(layer, x) ** 2).mean().scalar())(layer) for call in calls]

    with axn.set_mesh(auto_mesh):
        got, sent = compiled_and_run(slopes, FSDP, layer, x, manual=True)
        expected, usual = compiled_and_run(slopes, FSDP, layer, x)
    assert totals(sent) == totals(usual)
    check_close(got, expected)


def test_an_explicit_input_may_lie_otherwise_than_the_mapping_says(explicit_mesh):
    layer = made(nn.Linear.init, E, M)

    def call(layer, x):
        return layer(axn.shard(x, {"embed": "model"}))

    x = draw(B, E)
    with axn.set_mesh(explicit_mesh):
        got = axn.fsdp(call, *FSDP, manual=True)(layer, x)
    check_close(got, layer(x))


def slope(layer, x):
    return jax.grad(lambda layer: (layer(x) ** 2).mean().scalar())(layer)


def test_on_mixed_meshes_products_are_left_to_the_compiler(mixed_mesh, explicit_mesh):
    layer, x = made(nn.Linear.init, E, M), draw(B, E)
    for mesh, mappings in [(mixed_mesh, FSDP), (explicit_mesh, WITH_TENSOR)]:
        with axn.set_mesh(mesh):
            _, sent = compiled_and_run(slope, mappings, layer, x, manual=True)
            assert totals(sent) == totals(compiled_and_run(slope, mappings, layer, x)[1])


def test_a_function_that_was_traced_before_is_traced_again(auto_mesh):
    layer, x = made(nn.Linear.init, E, M), draw(B, E)
    inner = jax.jit(slope)
    decorator = axn.fsdp(*FSDP, manual=True)
    with axn.set_mesh(auto_mesh):
        forms = [axn.fsdp(inner, *FSDP), decorator(inner), decorator(axn.named_jit(inner))]
        sent = [kinds(collectives(form.lower(layer, x).compile())) for form in forms]
    assert ["reduce-scatter" in each for each in sent] == [False, True, True]


@pytest.mark.parametrize("depth", ["compiled", "traced"])
def test_costs_count_what_devices_gather_and_scatter(depth):
    layer, x = made(nn.Linear.init, E, M, use_bias=False), axn.ones((B, E))
    step = jax.grad(lambda layer, x: (axn.sin(layer(axn.sin(x))) ** 2).mean().scalar())
    report = axn.cost(axn.fsdp(step, *FSDP, manual=True), None, {"data": 8}, layer, x, depth=depth)
    sent = {(one.kind, one.axis): (one.count, one.nbytes) for one in report.communication}
    whole = 4 * E.size * M.size
    # by their operands
    assert sent == {("all-gather", "embed"): (1, whole // 8), ("reduce-scatter", "batch"): (1, whole)}
