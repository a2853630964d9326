"""Claims about what masks leave out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisNotFoundError, OperandError
from axonym.testing import ClaimError, assert_ignores
from tests.nn.layouts import draw, fails, made

B, P, E, H, D, V = axn.make_axes(batch=3, pos=5, embed=8, heads=2, head_dim=4, vocab=7)
REAL = axn.arange(P).broadcast_axis(B) < axn.named(np.array([5, 3, 2]), B)


def broken(*args, **options):
    with pytest.raises(ClaimError) as error:
        assert_ignores(*args, **options)
    return error.value


def test_means_softmaxes_and_losses_with_a_mask_ignore_padding():
    x, targets = draw(B, P, V), axn.named(np.arange(15).reshape(3, 5) % 7, (B, P))
    assert_ignores(lambda x: x.mean("pos", where=REAL), P, x, where=REAL)
    assert_ignores(lambda x: axn.softmax(x, "pos", where=REAL), P, x, where=REAL)
    loss = lambda x, targets, real: nn.cross_entropy_loss(x, V, targets, where=real)  # noqa: E731
    assert_ignores(loss, P, x, targets, REAL, where=REAL)


def test_the_smallest_coordinates_and_the_operation():
    error = broken(lambda x: x / x.max("pos"), P, draw(B, P), where=REAL)
    assert not bool(REAL[dict(error.source)].array)
    assert bool(REAL[dict(error.target)].array)
    assert error.operation == "reduce_max"
    assert str(error).splitlines()[0] == (
        f"assert_ignores: batch={error.source['batch']}, pos={error.source['pos']} is masked, and affects "
        f"batch={error.target['batch']}, pos={error.target['pos']}"
    )


def test_attention_ignores_keys_that_are_masked():
    attention = made(lambda *, key: nn.Attention.init(E, H, D, key=key))
    mask = REAL.rename({"pos": "pos.key"})
    assert_ignores(lambda x: attention(x, mask), P, draw(B, P, E), where=REAL)
    assert broken(attention, P, draw(B, P, E), where=REAL).layer == ""


def test_a_gradient_alone_may_depend_on_padding():
    """A rule of a gradient reads what no value does."""

    x = draw(B, P)
    assert_ignores(lambda w, x: axn.where(REAL, x * w, 0).sum(), P, axn.named(2.0, ()), x, where=REAL)

    @jax.custom_vjp
    def noisy(a):
        return a * 1

    noisy.defvjp(lambda a: (a * 1, a), lambda a, g: (g + 0.1 * a.mean(),))
    error = broken(
        lambda w, x: axn.where(REAL, axn.named(noisy((x * w).array), x.axes), 0).sum(),
        P,
        axn.named(2.0, ()),
        x,
        where=REAL,
    )
    assert error.parameter == "0"


def test_a_sequence_without_padding_is_another_claim():
    left = axn.arange(P).broadcast_axis(B) >= 2
    x = draw(B, P)
    first = lambda x: axn.where(left, x, 0) * (1 + axn.arange(x.resolve_axis("pos")))  # noqa: E731
    assert_ignores(first, P, x, where=left)
    sums = lambda x, left: axn.cumsum(axn.where(left, x, 0), "pos")  # noqa: E731
    assert_ignores(sums, P, x, left, where=left, is_absent=True)
    counted = lambda x, left: sums(x, left) * (1 + axn.arange(x.resolve_axis("pos")))  # noqa: E731
    assert broken(counted, P, x, left, where=left, is_absent=True).target["pos"] == 2


def test_masks_that_say_nothing_are_refused():
    x = draw(B, P)
    call = lambda where: lambda: assert_ignores(lambda x: x, P, x, where=where)  # noqa: E731
    fails(OperandError, "assert_ignores: where must be booleans, not float32", call(x))
    fails(
        OperandError,
        "assert_ignores: where must be a named array of booleans, got a plain array",
        call(jnp.ones(3, bool)),
    )
    fails(AxisNotFoundError, "assert_ignores: where lacks axis 'pos'\n  where has: batch=3", call(REAL["pos", 0]))
    fails(
        ArgumentError,
        "assert_ignores: where masks no position, so that there is nothing to ignore",
        call(axn.ones((B, P), dtype=bool)),
    )
    fails(
        ArgumentError,
        "assert_ignores: is_absent needs the same masked positions everywhere\n  where has: batch=3, pos=5\n"
        "  hint: check sequences of one length at a time",
        lambda: assert_ignores(lambda x: axn.where(REAL, x, 0), P, x, where=REAL, is_absent=True),
    )
