"""The choice of experts by sigmoids, groups and biases, and shared experts, against plain loops over tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from tests.nn.layouts import draw, fails, halved, made
from tests.nn.routed import KEY, B, E, Long, M, X, near, run

Many = X.resize(8)
DEEPSEEK = {"weighing": "sigmoid", "groups": (4, 2), "use_choice_bias": True, "shared": 10, "scale": 2.5}


def clamp_gate(x):
    x = axn.minimum(x, 0.5)
    return x * nn.sigmoid(1.7 * x)


def clamp_up(x):
    return axn.clip(x, -0.5, 0.5) + 1


GPT_OSS = {"use_bias": True, "use_router_bias": True, "activation": clamp_gate, "up_activation": clamp_up}
CASES = {
    "as DeepSeek-V3": DEEPSEEK,
    "as gpt-oss": GPT_OSS,
    "softmax in groups of one": {"groups": (8, 3), "normalize": False, "gated": False, "shared": 5},
    "softmax and a bias": {"use_choice_bias": True},
}
SAME = {"batch": "data", "experts": "data", "mlp": "model"}


def score(model, rows):
    return rows @ model.router.weight.array + (0 if model.router.bias is None else model.router.bias.array)


def chosen_by_loop(model, x):
    """Choose as DeepSeek's code does, token by token: https://huggingface.co/deepseek-ai/DeepSeek-V3, `MoEGate`."""
    found = []
    for row in np.asarray(x.array).reshape(-1, 4):
        scores = score(model, row)
        weights = 1 / (1 + np.exp(-scores)) if model.weighing == "sigmoid" else np.exp(scores) / np.exp(scores).sum()
        ranks = weights if model.choice_bias is None else weights + np.asarray(model.choice_bias.array)
        if model.groups is not None:
            groups, kept = model.groups
            members = np.split(np.arange(8), groups)
            of_group = [np.sort(ranks[own])[::-1][:2].sum() for own in members]
            best = np.argsort(of_group)[::-1][:kept]
            ranks = [rank if i * groups // 8 in best else -np.inf for i, rank in enumerate(ranks)]
        found.append(np.argsort(ranks)[::-1][:2])
    return np.stack(found)


def reference(both, chosen):
    """Return the sum of sines of the result and losses, and result and load, from the experts that were chosen."""
    model, array = both
    rows = array.reshape(-1, 4)
    scores = score(model, rows)
    weights = jax.nn.sigmoid(scores) if model.weighing == "sigmoid" else jax.nn.softmax(scores)

    def apply(layer, x, e):
        y = (x[:, None] @ layer.weight.array[e])[:, 0]
        return y if layer.bias is None else y + layer.bias.array[e]

    def expert(up, down, gate, e=...):
        inner = apply(up, rows, e)
        if gate is None:
            return apply(down, jax.nn.silu(inner), e)
        opened = apply(gate, rows, e)
        if model.up_activation is None:
            return apply(down, jax.nn.silu(opened) * inner, e)
        opened, inner = jnp.minimum(opened, 0.5), jnp.clip(inner, -0.5, 0.5)
        return apply(down, opened * jax.nn.sigmoid(1.7 * opened) * (inner + 1), e)

    gates = jnp.take_along_axis(weights, chosen, 1)
    gates = (gates / gates.sum(1, keepdims=True) if model.normalize else gates) * model.scale
    y = jnp.zeros_like(rows)
    for gate, e in zip(gates.T, chosen.T, strict=True):
        y += gate[:, None] * expert(model.up, model.down, model.gate, e)
    if isinstance(model.shared, nn.GatedMLP):
        y += expert(model.shared.up, model.shared.down, model.shared.gate)
    elif model.shared is not None:
        y += expert(*model.shared.layers, None)
    load = np.bincount(chosen.ravel(), minlength=8) / chosen.size
    balance = 8 * (load * (weights / weights.sum(1, keepdims=True)).mean(0)).sum()
    losses = balance + (jax.nn.logsumexp(scores, axis=1) ** 2).mean()
    return jnp.sin(y).sum() + losses, (y, load)


def model_and_tokens(options):
    return halved((made(nn.MixtureOfExperts.init, E, Many, M, 2, **options), draw(B, Long, E)))


def check(found, options):
    model, x = model_and_tokens(options)
    (y, routing), gradients = found
    chosen = chosen_by_loop(model, x)
    by_loop = functools.partial(reference, chosen=chosen)
    (_, (theirs, load)), others = jax.jit(jax.value_and_grad(by_loop, has_aux=True))((model, x.array))
    near(y.rearrange(x.names).array.reshape(-1, 4), theirs)
    near(routing.load.array, load)
    for gradient, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(others), strict=True):
        near(gradient, other)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_a_loop(name):
    found = jax.jit(run)(model_and_tokens(CASES[name]))
    check(found, CASES[name])
    if (bias := found[1][0].choice_bias) is not None:
        assert not bias.array.any()


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
@pytest.mark.parametrize("capacity", [{}, {"capacity_factor": 8.0, "tokens": "seq"}], ids=["sorted", "blocks"])
@pytest.mark.parametrize("form", [DEEPSEEK, GPT_OSS], ids=["deepseek", "gpt_oss"])
def test_on_a_mesh(kind, capacity, form, request):
    options = {**form, **capacity}
    model, x = model_and_tokens(options)
    with axn.set_mesh(request.getfixturevalue(kind)):
        given = axn.shard(model, SAME, strict=False), axn.shard(x, SAME, strict=False)
        check(axn.named_jit(run, SAME, strict=False)(given), options)


@pytest.mark.parametrize("form", [DEEPSEEK, GPT_OSS], ids=["deepseek", "gpt_oss"])
def test_inside_of_a_shard_map_a_router_is_whole_and_parts_of_a_shared_expert_add_up(form, auto_mesh):
    model, x = model_and_tokens(form)
    with axn.set_mesh(auto_mesh):
        apply = axn.shard_map(lambda model, x: model(x)[0], SAME, strict=False)
        y = jax.jit(apply)(model, x)
    near(y.array, jax.jit(lambda model, x: model(x)[0].array)(model, x))


def test_errors():
    for options, problem in [
        ({"weighing": "tanh"}, "weighing must be one of softmax, sigmoid, not 'tanh'"),
        ({"groups": 4}, "groups must be two ints, the number of groups and of those to choose from, not 4"),
        ({"groups": (0, 1)}, "the number of groups must be an int of at least 1, not 0"),
        ({"groups": (3, 1)}, "8 experts do not divide into 3 groups of equal size"),
        ({"groups": (8, 1)}, "a token cannot choose 2 experts from 1 of 8 groups of 1 experts"),
        ({"groups": (2, 3)}, "a token cannot choose 2 experts from 3 of 2 groups of 4 experts"),
        (
            {"up_activation": clamp_up, "gated": False},
            "up_activation is of gated experts, none of which is shared\n  gated=False, shared=None",
        ),
    ]:
        make = lambda options=options: nn.MixtureOfExperts.init(E, Many, M, 2, key=KEY, **options)  # noqa: E731
        fails(ArgumentError, f"MixtureOfExperts.init: {problem}", make)
