"""Experts that take a fixed number of tokens each: values and gradients on a mesh, what is sent, and memory."""

import equinox as eqx
import jax
import measure
import pytest

import axonym as axn
from axonym import nn
from tests.nn.layouts import draw
from tests.nn.routed import KEY, B, Case, E, M, S, X, check, made, on_mesh

SAME = {"batch": "data", "experts": "data"}
DROPPING = {"capacity_factor": 1.0, "tokens": "seq"}
CASES = {
    "split like tokens": Case(DROPPING, {**SAME, "mlp": "model"}, "auto_mesh"),
    "split otherwise than tokens": Case(DROPPING, {"batch": "model", "experts": "data"}, "explicit_mesh"),
    "over more axes than tokens": Case(DROPPING, {"batch": "data", "experts": ("data", "model")}, "explicit_mesh"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients(name, request):
    case = CASES[name]
    found, text = on_mesh(case, request.getfixturevalue(case.kind))
    check(case, found)

    sent = measure.collectives(text)
    exchanges = [each.bytes for each in sent if each.kind == "all-to-all"]
    # Two sequences of 6 tokens on each device, of which an expert takes 2; there and back, in both passes.
    ways = 2 if "more" in name else 1
    expected = [4 * 4 * 8 * 2 * 2 // ways] * 4
    assert exchanges == ([] if "otherwise" in name else expected)


def test_memory_is_linear_in_the_tokens():
    def temp_bytes(size):
        model = eqx.filter_eval_shape(nn.MixtureOfExperts.init, E, X, M, 2, key=KEY, capacity_factor=1.25)
        x = axn.NamedArray(jax.ShapeDtypeStruct((size, 4), "float32"), ("token", "embed"))
        compiled = jax.jit(jax.grad(lambda model, x: (model(x)[0] ** 2).sum().scalar())).lower(model, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temp_bytes(8192) < 4.4 * temp_bytes(2048)


def test_tokens_may_be_mapped_over():
    model, x = made(nn.MixtureOfExperts.init, E, X, M, 2, **DROPPING), draw(B, S, E)
    each = jax.jit(jax.vmap(lambda row: model(axn.named(row, ("seq", "embed")))[0].array))
    whole = jax.jit(lambda model, x: model(x)[0].array)(model, x)
    assert abs(each(x.array) - whole).max() < 1e-6 * abs(whole).max()
