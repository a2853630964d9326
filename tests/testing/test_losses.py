"""The claim that a loss is a mean."""

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from axonym.testing import ClaimError, assert_mean_over
from tests.nn.layouts import draw, fails, made

B, P, E, V = axn.make_axes(batch=4, pos=3, embed=5, vocab=6)
TARGETS = axn.named(np.arange(12).reshape(4, 3) % 6, (B, P))
REAL = TARGETS != 2


@pytest.fixture(scope="module")
def model():
    return made(lambda *, key: nn.Linear.init(E, V, key=key))


def loss(model, x, targets, real):
    return nn.cross_entropy_loss(model(x), V, targets, where=real)


def test_a_masked_mean_is_a_mean(model):
    assert_mean_over(loss, B, model, draw(B, P, E), TARGETS, REAL, where=REAL)


@pytest.mark.parametrize(
    ("wrong", "factor"),
    [
        (lambda *args: loss(*args) * 4 * args[3].mean(), None),
        (lambda model, x, targets, real: nn.cross_entropy_loss(model(x), V, targets, axn.sum, where=real), 2.0),
    ],
)
def test_sums_are_none_and_the_factor_is_named(model, wrong, factor):
    x = draw(B, P, E)
    with pytest.raises(ClaimError) as error:
        assert_mean_over(wrong, B, model, x, TARGETS, REAL, where=REAL)
    assert error.value.factor == (pytest.approx(factor) if factor else error.value.factor)
    if factor:
        assert str(error.value).splitlines()[:2] == [
            "assert_mean_over: every example twice changes the result",
            "  factor: 2",
        ]


def test_a_step_that_sums_gradients_names_the_parameter(model):
    def step(model, x):
        own = jax.grad(lambda model: axn.square(model(x)).sum().scalar())(model)
        return {"next": jax.tree.map(lambda p, g: p - 0.1 * g, model, own)}

    with pytest.raises(ClaimError) as error:
        assert_mean_over(step, B, model, draw(B, E))
    assert (error.value.parameter, error.value.layer) == ("0.weight", "0")


def test_a_batch_of_a_fixed_size_is_an_error_that_says_why_there_is_another_one():
    with pytest.raises(ValueError, match="multiply to 4, not to batch=8") as error:
        assert_mean_over(lambda x: x.unflatten_axis("batch", axn.make_axes(micro=2, each=2)).mean(), B, draw(B))
    note = "assert_mean_over: it was called with every example twice: no size of 'batch' may be fixed in it"
    assert note in error.value.__notes__


def test_a_loss_has_no_axis_of_examples(model):
    fails(
        ArgumentError,
        "assert_mean_over: every result has axis 'batch'\n  hint: return the loss, or its mean",
        lambda: assert_mean_over(model, B, draw(B, E)),
    )
    fails(
        ArgumentError,
        "assert_mean_over: where must be one of the arguments, since the function has to read it",
        lambda: assert_mean_over(lambda x: x.mean(), B, draw(B), where=axn.ones(B, dtype=bool)),
    )
