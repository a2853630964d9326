"""Masked tokens: no expert, no capacity, no part in losses and statistics, and nothing more that devices send."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import measure
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import OperandError
from tests.nn.layouts import draw, fails, same, same_trees
from tests.nn.moe.test_nested import check as check_nested, differentiated
from tests.nn.routed import B, Case, E, Long, M, S, X, check, halved, inputs, made, on_mesh, run

SAME = {"batch": "data", "experts": "data"}
SOME = np.random.default_rng(3).random((B.size, Long.size)) < 0.6
SOME[1] = False
PADDED = axn.named(SOME, (B, Long))
CASES = {
    "sorted": Case({}, {**SAME, "mlp": "model"}, "auto_mesh"),
    "sorted, over more axes than tokens": Case({}, {"batch": "data", "experts": ("model", "data")}, "explicit_mesh"),
    "blocks": Case({"capacity_factor": 1.0, "tokens": "seq"}, SAME, "explicit_mesh"),
    "blocks, split otherwise than tokens": Case(
        {"capacity_factor": 1.0, "tokens": "seq"}, {"batch": "model", "experts": "data"}, "auto_mesh"
    ),
    "queues of split positions": Case({"capacity_factor": 0.75}, {**SAME, "seq": "model"}, "auto_mesh"),
    "queues": Case({"capacity_factor": 0.75}, SAME, "explicit_mesh"),
}


def count_collectives(text):
    return collections.Counter(each.kind for each in measure.collectives(text, unknown_trip_count=1))


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_masked_tokens_take_nothing_and_send_nothing(name, request):
    case = CASES[name]
    mesh = request.getfixturevalue(case.kind)
    masked = dataclasses.replace(case, masked=PADDED)
    found, text = on_mesh(masked, mesh)
    check(masked, found)
    (y, _), (_, by_x) = found
    for at_padding in (y, by_x):
        assert not np.asarray(at_padding.rearrange((B, Long, E)).array)[~SOME].any()
    _, without = on_mesh(case, mesh)
    assert count_collectives(text) == count_collectives(without)


@pytest.mark.parametrize("options", [{}, {"capacity_factor": 0.5, "tokens": "seq"}, {"capacity_factor": 0.75}], ids=str)
def test_on_one_device(options):
    case = Case(options, {}, "auto_mesh", masked=PADDED)
    found = jax.jit(run)(inputs(case), PADDED)
    check(case, found)


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{}, {"capacity_factor": 0.75}], ids=str)
def test_inside_of_a_shard_map_over_other_axes(options, explicit_mesh):
    model = made(nn.MixtureOfExperts.init, E, X, M, 2, use_bias=True, **options)
    model, x = halved((model, draw(B, Long, E)))

    def apply(model, x, where):
        return model(x, where=where)[0]

    def on_real(model, x):
        return apply(model, x, PADDED)

    mapping = {"batch": "data", "experts": "data", "seq": "model"}
    with axn.set_mesh(explicit_mesh):
        inner = axn.shard_map(apply, mapping, manual_axes=("model",), strict=False)
        found = jax.jit(differentiated(lambda model, x: inner(model, x, PADDED)))(model, x)
    check_nested(found, jax.jit(differentiated(on_real))(model, x))


def test_microbatches_of_a_pipeline_have_their_masks(auto_mesh):
    Layers = axn.Axis("layers", 4)
    stack = made(nn.Stacked.init(Layers, nn.MixtureOfExperts), E, X, M, 2)
    stack, x = halved((stack, draw(B, Long, E)))

    def on_real(stack, x, where):
        return x + stack.scan_via(lambda layer, x, where: layer(x, where=where))(x, where)[0]

    mapping = {"layers": "data", "batch": "model"}
    with axn.set_mesh(auto_mesh), axn.pipelined("batch", 4):
        found = axn.named_jit(on_real, mapping, strict=False)(stack, x, PADDED)
    same(found, x.names, jax.jit(on_real)(stack, x, PADDED).rearrange(x.names).array)


def test_where_no_token_is_real_losses_and_gradients_are_zero():
    model, x = made(nn.MixtureOfExperts.init, E, X, M, 2), axn.full((B, S, E), jnp.nan)
    (y, routing), gradients = jax.jit(run)((model, x), axn.zeros(B, dtype=bool))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves((y, routing, gradients)))


def test_a_mask_without_names_goes_with_the_last_dimensions_of_the_input():
    model, x = made(nn.MixtureOfExperts.init, E, X, M, 2), draw(B, Long, E)
    apply = jax.jit(lambda model, x, where: model(x, where=where))
    expected = apply(model, x, PADDED)
    for names in (("batch", "seq"), ("seq",)):
        y, routing = apply(model, x.untag(*names), PADDED.untag(*names))
        same(y.tag(*names).rearrange(x.names), x.names, expected[0].array)
        same_trees(tuple(routing), tuple(expected[1]))
    alone = apply(model, x["batch", 0, "seq", 0], PADDED["batch", 1, "seq", 0])
    assert not alone[0].array.any()


def test_errors_of_masks():
    model, x = made(nn.MixtureOfExperts.init, E, X, M, 2), draw(B, S, E)
    fails(
        OperandError,
        "MixtureOfExperts: where must be booleans, not float32\n"
        "  where has: batch=8, seq=3\n"
        "  input has: batch=8, seq=3, embed=4",
        lambda: model(x, where=axn.ones((B, S))),
    )
    fails(
        OperandError,
        "MixtureOfExperts: where has axis 'embed', which is no axis of tokens\n"
        "  where has: batch=8, embed=4\n"
        "  input has: batch=8, seq=3, embed=4",
        lambda: model(x, where=axn.ones((B, E), dtype=bool)),
    )
    fails(
        OperandError,
        "MixtureOfExperts: where has more anonymous dimensions than the input\n"
        "  where has: anonymous (8,)\n"
        "  input has: batch=8, seq=3, embed=4\n"
        "  hint: name them: where.tag(...)",
        lambda: model(x, where=axn.ones(B, dtype=bool).untag("batch")),
    )
    with pytest.raises(OperandError, match=r"^MixtureOfExperts: expected a NamedArray, got a plain array"):
        model(x, where=np.ones((8, 3), bool))
