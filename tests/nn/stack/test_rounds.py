"""Layers that are stored by rounds, one after another and in circular pipelines."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisSizeError, OperandError, ShardingError
from axonym.state_dict import from_state_dict, to_state_dict
from tests.nn.layouts import compiled, draw, fails, same, same_trees
from tests.nn.staging import (
    COMPUTED,
    KEY,
    MICROBATCHES,
    STORED,
    B,
    E,
    L,
    P,
    Residual,
    Tilted,
    close,
    gradients_by_hand,
    loss_of,
    mean_square,
    pipeline,
)

pytestmark = pytest.mark.sampled


@functools.cache
def make(rounds=2, **options):
    return compiled(nn.Stacked.init(L, Residual, rounds=rounds, **options), key=KEY)


@functools.cache
def alternating(rounds=2, **options):
    return compiled(nn.Interleaved.init(L, (Residual, Tilted), rounds=rounds, **options), key=KEY)


# stored by rounds
def test_layers_are_those_of_a_plain_stack_in_order_of_depth():
    plain, rounds = make(1), make(4)
    assert rounds.stacked.weight.axes == (L.resize(4).alias("layers_round"), L.resize(2), E, E.derive("out"))
    assert rounds.stacked.scale.shape == (4, 2)
    for one, other in zip(rounds.unstacked(), plain.unstacked(), strict=True):
        same_trees(one, other, rtol=0, atol=0)
    same_trees(rounds.get_layer(-3), plain.get_layer(5), rtol=0, atol=0)
    again = make(4).with_layers(reversed(plain.unstacked()))
    assert jax.tree.structure(again) == jax.tree.structure(rounds)
    same_trees(again.get_layer(1), plain.get_layer(6), rtol=0, atol=0)


def test_without_a_pipeline_it_computes_what_a_plain_stack_does():
    x, mask, shift = draw(B, P, E), draw(B, P), draw(L, E)
    run = jax.jit(jax.value_and_grad(loss_of, argnums=(0, 1, 2, 3)))
    (one, (mine, *rest)), (other, (theirs, *more)) = run(make(), x, mask, shift), run(make(1), x, mask, shift)
    close(one, other)
    close(mine.unstacked(), theirs.unstacked())
    close(rest, more)
    same(make().vmap(x), ("layers", "batch", "pos", "embed"), make(1).vmap(x).array)


def test_arguments_of_constructors_are_split_by_layer():
    linear = lambda bias, number: nn.Linear(bias * number, None, (), ())  # noqa: E731
    given = draw(L, E), jnp.arange(8.0)
    same_trees(nn.Stacked.init(L, linear, rounds=2)(*given).unstacked(), nn.Stacked.init(L, linear)(*given).unstacked())


@pytest.mark.parametrize("kind", ["Stacked", "Interleaved"])
def test_keys_of_state_dicts_and_values_are_those_without_rounds(kind):
    layers_of = {"Stacked": make, "Interleaved": alternating}[kind]
    state, plain = to_state_dict(layers_of(2)), to_state_dict(layers_of(1))
    assert sorted(state) == sorted(plain)
    assert "6.weight" in state
    for key, array in plain.items():
        assert jnp.array_equal(state[key], array)
    again = from_state_dict(jax.tree.map(jnp.zeros_like, layers_of(2)), plain)
    same_trees(again, layers_of(2), rtol=0, atol=0)


def test_layer_axes_do_not_count_where_layers_are_looked_at():
    seen = []
    axn.tree.scan_aware_map(lambda x: seen.append(getattr(x, "names", x.shape)), make())
    assert seen == [("embed", "embed.out"), ()]
    (weight, _) = axn.parameters.walk(make())
    assert weight.layers == ("layers_round", "layers")


def test_what_a_filter_left_empty_stays_so():
    empty = eqx.filter(make(), lambda _: False)
    assert empty.in_order().stacked.weight.names == ("layers", "embed", "embed.out")
    assert empty.with_layers(empty.unstacked()).stacked.weight.names == empty.stacked.weight.names


def test_patterns_of_layers_by_rounds():
    plain, rounds, x = alternating(1), alternating(2), draw(B, P, E)
    assert rounds.repeated.stacked[1].weight.axes == (
        *axn.make_axes(layers_round=2, layers=2),
        E,
        E.derive("out"),
    )
    same_trees(rounds.unstacked(), plain.unstacked(), rtol=0, atol=0)
    same_trees(rounds.get_layer(5), plain.get_layer(5), rtol=0, atol=0)
    same_trees(rounds.with_layers(plain.unstacked()), rounds, rtol=0, atol=0)
    same(rounds.fold(x), x.names, plain.fold(x).array)
    same(rounds.vmap(x), ("layers", *x.names), plain.vmap(x).array)


# pipelines
HALVES = {"layers": "model"}, {"layers": "model", "batch": "model"}
CASES = {
    "everything kept": (make, "auto", {}, STORED, COMPUTED, 2),
    "recomputed": (make, "explicit", {"gradient_checkpointing": True}, STORED, COMPUTED, 2),
    "several layers in a round": (make, "auto", {"gradient_checkpointing": "nested"}, *HALVES, 1),
    "policies in turn": (make, "explicit", {"gradient_checkpointing": (True, False)}, *HALVES, 1),
    "alternating": (alternating, "explicit", {"gradient_checkpointing": True}, *HALVES, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_layers_one_by_one(case, auto_mesh, explicit_mesh):
    """Arguments, outputs and dropout are by layer, by row, by both and by none."""
    layers_of, mode, options, stored, computed, ways = CASES[case]
    stack, x, mask, shift = layers_of(**options), draw(B, P, E), draw(B, P), draw(L, E)
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[mode]
    run = jax.value_and_grad(loss_of, argnums=(0, 1, 2, 3))
    value, gradients = pipeline(run, mesh, stack, x, mask, shift, stored=stored, computed=computed)

    parameters = [(layer.weight.array, layer.scale) for layer in stack.unstacked()]
    tilts = (1.0, 1.25) if layers_of is alternating else (1.0,)
    expected, (layers, *rest) = gradients_by_hand(parameters, x.array, mask.array, shift.array, tilts, ways)
    close(value, expected)
    close([(layer.weight.array, layer.scale) for layer in gradients[0].unstacked()], layers)
    close([gradient.array for gradient in gradients[1:]], rest)


def scaled(stack, x, scale):
    return stack.fold_via(lambda layer, x, scale: layer(x * scale))(x, scale)


@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_arguments_by_layer_and_row_inside_of_other_layouts(mode, auto_mesh, explicit_mesh):
    """Layers are tensor parallel, and there are four rounds over two stages."""
    stack, x, scale = make(4), draw(B, P, E), 1 + draw(B, L) / 8
    layout = {"layers": "model", "embed.out": "data"}
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[mode]
    out = pipeline(scaled, mesh, stack, x, scale, stored=layout, computed=layout)
    same(out, ("batch", "pos", "embed"), scaled(make(1), x, scale).array)


def test_inside_of_a_shard_map_over_other_axes(auto_mesh):
    mapping = {"layers": "data", "batch": "model"}

    def loss(stack, x):
        local = lambda stack, x: axn.pmean(mean_square(stack, x), "batch")  # noqa: E731
        return axn.shard_map(local, mapping, manual_axes="model")(stack, x)

    x = draw(B, P, E)
    value, gradients = pipeline(jax.value_and_grad(loss), auto_mesh, make(), x, computed=mapping)
    expected, plain = jax.value_and_grad(mean_square)(make(1), x)
    close(value, expected)
    close(gradients.unstacked(), plain.unstacked())


@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_only_one_microbatch_travels_in_a_tick_and_direction(mode, auto_mesh, explicit_mesh):
    """No weight is gathered, and each device has those of its stage."""
    stack, x = make(gradient_checkpointing=True), draw(B, P, E)
    mappings = axn.Mappings(STORED, COMPUTED)
    with axn.set_mesh({"auto": auto_mesh, "explicit": explicit_mesh}[mode]), axn.pipelined(B, MICROBATCHES):
        run = axn.named_jit(jax.value_and_grad(mean_square), mappings)
        compiled = run.lower(*axn.shard((stack, x), mappings)).compile()
        _, gradients = run(stack, x)
    program = compiled.as_text()
    assert not re.search("all-gather|all-to-all|reduce-scatter", program)
    sent = re.findall(r"= f32\[([\d,]+)\]\S* collective-permute\(", program)
    # One queue and one row of stages, forward and backward; two devices share the rows of a microbatch.
    assert sent == [f"1,{B.size // MICROBATCHES // 2},{P.size},{E.size}"] * 4
    weight = gradients.stacked.weight.array
    assert weight.sharding.shard_shape(weight.shape) == (2, 1, 4, 4)


@pytest.mark.parametrize(("checkpointing", "carries"), [(False, (4, 2, 3, 4)), (True, (1, 4, 2, 3, 4))])
def test_no_weight_is_kept_by_microbatch(checkpointing, carries, auto_mesh):
    """But inputs of stages, or those of layers."""
    ticks = 2 * MICROBATCHES + 3
    stack = make(gradient_checkpointing=checkpointing)
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTED), axn.pipelined(B, MICROBATCHES):
        backward = jax.eval_shape(lambda stack, x: jax.vjp(mean_square, stack, x)[1], stack, draw(B, P, E))
    kept = {leaf.shape for leaf in jax.tree.leaves(backward)}
    assert (ticks, *carries) in kept
    assert (ticks, 4, 1, 4, 4) not in kept


# errors
def test_numbers_of_rounds():
    for rounds in (0, True, 2.0):
        text = f"Stacked.init: the number of rounds must be a positive int, not {rounds!r}\n  hint: write rounds=2"
        fails(ArgumentError, text, lambda: make(rounds))  # noqa: B023
    text = "Stacked.init: layers=8 cannot be split evenly into 3 rounds\n  hint: use a multiple of 3 layers"
    fails(AxisSizeError, text, lambda: make(3))


def test_rounds_that_do_not_divide_among_the_stages(auto_mesh):
    text = (
        "Stacked.fold: layers=8 cannot be split evenly into 4 rounds of 4 stages over mesh axis data\n"
        "  hint: use a multiple of 16 layers, or make the stack with stages=4"
    )
    stack = make(4)
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTED), axn.pipelined(B, MICROBATCHES):
        fails(AxisSizeError, text, lambda: jax.eval_shape(mean_square, stack, draw(B, P, E)))
    text = (
        "Interleaved.fold: each of 4 stages needs as many repetitions of the pattern of 2 in each of 2 rounds\n"
        "  layers=8: 4 repetitions, and 0 layers left over\n"
        "  hint: use a multiple of 16 layers, or make the stack with stages=4"
    )
    stack = alternating()
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTED), axn.pipelined(B, MICROBATCHES):
        fails(AxisSizeError, text, lambda: jax.eval_shape(mean_square, stack, draw(B, P, E)))


def test_a_shard_map_that_splits_the_layers(auto_mesh):
    text = (
        "Stacked: layers=4 of each of 2 rounds are split over data\n"
        "  hint: a device would need those of others in between; make the layers without rounds"
    )
    with axn.set_mesh(auto_mesh):
        run = axn.shard_map(mean_square, {"layers": "data"})
        fails(ShardingError, text, lambda: jax.eval_shape(run, make(), draw(B, P, E)))


def test_one_forward_one_backward_has_no_rounds(auto_mesh):
    both = axn.pipeline_value_and_grad(lambda s: s, lambda _, x: x, lambda _, x, __: (x * x).mean())
    text = (
        "pipeline_value_and_grad: layers=8 are stored in 2 rounds\n"
        "  it passes all stages once\n"
        "  hint: take the gradient by jax.grad, or make the layers without rounds"
    )
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTED), axn.pipelined(B, MICROBATCHES):
        fails(OperandError, text, lambda: both(make(), draw(B, P, E)))
