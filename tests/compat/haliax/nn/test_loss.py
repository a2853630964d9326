"""Losses against `jax.nn` and numpy: targets of both kinds, reductions, masks."""

import axonym.compat.haliax  # noqa: F401  # makes `haliax` resolve

# isort: split

import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.nn.loss import maybe_reduce_loss, reduce_loss
from haliax.util import UNSPECIFIED

Batch, Pos, Label = hax.make_axes(batch=3, pos=4, label=5)
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(3, 5, 4)).astype(np.float32)
IDS = RANDOM.integers(0, 5, size=(3, 4))
MASK = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], bool)
logits = hax.named(LOGITS, (Batch, Label, Pos))
ids = hax.named(jnp.asarray(IDS), (Batch, Pos))
targets = hnn.one_hot(ids, Label)
mask = hax.named(jnp.asarray(MASK), (Batch, Pos))
LOSSES = -np.take_along_axis(np.asarray(jax.nn.log_softmax(LOGITS, axis=1)), IDS[:, None], 1)[:, 0]


def same(out, axes, expected):
    assert type(out) is hax.NamedArray
    assert out.axes == axes
    np.testing.assert_allclose(out.array, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("wanted", [targets, targets.astype(jnp.int32), ids], ids=["floats", "integers", "ids"])
@pytest.mark.parametrize("label", [Label, "label"])
def test_cross_entropy(wanted, label):
    same(hnn.cross_entropy_loss(logits, label, wanted), (), LOSSES.mean())
    same(hnn.cross_entropy_loss(logits, label, wanted, None), (Batch, Pos), LOSSES)
    losses, normalizers = hnn.cross_entropy_loss_and_log_normalizers(logits, label, wanted)
    same(losses, (Batch, Pos), LOSSES)
    same(normalizers, (Batch, Pos), jax.nn.logsumexp(LOGITS, axis=1))


def test_soft_targets_and_targets_with_more_axes():
    soft = RANDOM.dirichlet(np.ones(5), size=3).astype(np.float32)
    out = hnn.cross_entropy_loss(logits, Label, hax.named(soft, (Batch, Label)), reduction=None)
    same(out, (Batch, Pos), -(jax.nn.log_softmax(LOGITS, axis=1) * soft[:, :, None]).sum(1))
    one = hax.named(LOGITS[0, :, 0], Label)
    out = hnn.cross_entropy_loss(one, Label, targets, reduction=None)
    expected = -np.asarray(jax.nn.log_softmax(LOGITS[0, :, 0]))[IDS]
    same(out.rearrange((Batch, Pos)), (Batch, Pos), expected)


REDUCTIONS = [
    ({}, (), LOSSES.mean()),
    ({"reduction": UNSPECIFIED}, (), LOSSES.mean()),
    ({"reduction": hax.mean}, (), LOSSES.mean()),
    ({"reduction": hax.sum}, (), LOSSES.sum()),
    ({"reduction": hax.max}, (), LOSSES.max()),
    ({"reduction": None}, (Batch, Pos), LOSSES),
    ({"reduction": None, "where": mask}, (Batch, Pos), LOSSES * MASK),
    ({"reduction_axis": ()}, (Batch, Pos), LOSSES),
    ({"reduction_axis": (), "where": mask}, (Batch, Pos), LOSSES * MASK),
    ({"reduction_axis": Pos}, (Batch,), LOSSES.mean(1)),
    ({"reduction_axis": "batch", "reduction": hax.sum}, (Pos,), LOSSES.sum(0)),
    ({"reduction_axis": (Pos, "batch")}, (), LOSSES.mean()),
    ({"where": mask}, (), LOSSES[MASK].mean()),
    ({"where": mask.astype(jnp.float32)}, (), LOSSES[MASK].mean()),
    ({"where": mask, "reduction": hax.sum}, (), LOSSES[MASK].sum()),
    ({"where": mask, "reduction_axis": Pos}, (Batch,), LOSSES.mean(1, where=MASK)),
    ({"where": mask["batch", 0]}, (), LOSSES.mean(where=MASK[:1])),
    ({"where": mask, "reduction": lambda array, axis=None, where=None: hax.sum(array, axis, where=where)}, (),
     LOSSES[MASK].sum()),
]  # fmt: skip


@pytest.mark.parametrize(("options", "axes", "expected"), REDUCTIONS, ids=range(len(REDUCTIONS)))
def test_reductions(options, axes, expected):
    same(hnn.cross_entropy_loss(logits, Label, targets, **options), axes, expected)
    losses = hax.named(LOSSES, (Batch, Pos))
    same(reduce_loss(losses, **options), axes, expected)
    given = {"reduction": UNSPECIFIED, "reduction_axis": None, "where": None} | options
    same(maybe_reduce_loss(losses, **given), axes, expected)


def test_arguments_by_position():
    same(hnn.cross_entropy_loss(logits, Label, targets, hax.sum, mask, Pos), (Batch,), LOSSES.sum(1, where=MASK))
    same(reduce_loss(hax.named(LOSSES, (Batch, Pos)), hax.sum, Pos, mask), (Batch,), LOSSES.sum(1, where=MASK))
    out = hnn.binary_cross_entropy_loss(hax.named(LOSSES, (Batch, Pos)), mask, hax.sum, mask, Pos)
    same(out, (Batch,), (np.logaddexp(0, -LOSSES)).sum(1, where=MASK))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bool_, jnp.int32])
def test_binary_cross_entropy(dtype):
    x = hax.named(LOGITS[:, 0], (Batch, Pos))
    expected = np.where(MASK, np.logaddexp(0, -LOGITS[:, 0]), np.logaddexp(0, LOGITS[:, 0]))
    same(hnn.binary_cross_entropy_loss(x, mask.astype(dtype)), (), expected.mean())
    same(hnn.binary_cross_entropy_loss(x, mask.astype(dtype), reduction=None), (Batch, Pos), expected)
    same(hnn.binary_cross_entropy_loss(x, mask.astype(dtype), reduction_axis="pos"), (Batch,), expected.mean(1))


def test_gradients():
    def loss(x):
        return hnn.cross_entropy_loss(x, Label, targets).scalar()

    gradient = jax.jit(jax.grad(loss))(logits)
    expected = (jax.nn.softmax(LOGITS, axis=1) - np.moveaxis(np.eye(5)[IDS], 2, 1)) / 12
    same(gradient, (Batch, Label, Pos), expected)


def test_half_precision_and_mean_of_nothing():
    out = hnn.cross_entropy_loss(logits.astype(jnp.bfloat16), Label, targets)
    assert out.dtype == jnp.float32
    assert float(out.array) == pytest.approx(LOSSES.mean(), rel=0.02)
    assert np.isnan(hnn.cross_entropy_loss(logits, Label, targets, where=mask & False).item())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32])
@pytest.mark.parametrize("wanted", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.bool_, None])
def test_losses_have_the_dtype_that_logits_and_targets_promote_to(dtype, wanted):
    x, y = (logits * 4).astype(dtype), ids if wanted is None else targets.astype(wanted)
    own = jnp.float32 if dtype == jnp.int32 else dtype
    losses, normalizers = hnn.cross_entropy_loss_and_log_normalizers(x, Label, y)
    assert losses.dtype == hnn.cross_entropy_loss(x, Label, y).dtype == jnp.result_type(own, y.dtype)
    assert normalizers.dtype == own
    exact = np.asarray(x.array, np.float32)
    expected = -np.take_along_axis(np.asarray(jax.nn.log_softmax(exact, axis=1)), IDS[:, None], 1)[:, 0]
    for found, value in ((losses, expected), (normalizers, jax.nn.logsumexp(exact, axis=1))):
        digits = float(jnp.finfo(found.dtype).eps)
        np.testing.assert_allclose(np.asarray(found.array, np.float32), value, rtol=max(digits, 2e-5), atol=2e-6)


def test_errors():
    with pytest.raises(ValueError, match="the logits lack axis 'vocab'"):
        hnn.cross_entropy_loss(logits, "vocab", targets)
    with pytest.raises(ValueError, match="class numbers must be integers"):
        hnn.cross_entropy_loss(logits, Label, ids.astype(jnp.float32))
    with pytest.raises(TypeError, match="where must be a NamedArray"):
        hnn.cross_entropy_loss(logits, Label, targets, where=MASK)
