"""Cross entropy, against optax and float64 numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import COMPUTE, draw, lies, same

B, S, V = axn.make_axes(batch=8, seq=3, vocab=6)
CLASSES = np.random.default_rng(0).integers(0, 6, (8, 3)).astype(np.int32)


def logits():
    return draw(B, S, V) * 3


def hard():
    return axn.named(CLASSES, ("batch", "seq"))


def soft():
    return axn.softmax(draw(B, S, V, seed=1), "vocab")


@pytest.mark.parametrize("order", [(B, S, V), (V, B, S), (S, V, B)], ids=str)
def test_integer_targets(order):
    x = logits().rearrange(order)
    names = tuple(axis.name for axis in order if axis.name != "vocab")
    expected = axn.named(optax.softmax_cross_entropy_with_integer_labels(logits().array, CLASSES), ("batch", "seq"))
    for targets in (hard(), hard().rearrange(("seq", "batch"))):
        for Label in (V, "vocab"):
            same(nn.cross_entropy_loss(x, Label, targets, reduction=None), names, expected.rearrange(names).array)


@pytest.mark.parametrize("order", [(B, S, V), (V, B, S)], ids=str)
def test_soft_targets(order):
    expected = optax.softmax_cross_entropy(logits().array, soft().array)
    same(nn.cross_entropy_loss(logits(), V, soft().rearrange(order), reduction=None), ("batch", "seq"), expected)
    # Targets need not sum to one: then it is still minus the sum of targets times log-probabilities.
    expected = optax.softmax_cross_entropy(logits().array, soft().array * 3)
    same(nn.cross_entropy_loss(logits(), V, soft() * 3, reduction=None), ("batch", "seq"), expected)
    same(nn.cross_entropy_loss(logits(), V, axn.one_hot(hard(), V), reduction=None), ("batch", "seq"), hard_losses())


def hard_losses():
    return optax.softmax_cross_entropy_with_integer_labels(logits().array, CLASSES)


def test_targets_may_lack_axes():
    one, x = axn.named(CLASSES[0], "seq"), logits()
    expected = optax.softmax_cross_entropy_with_integer_labels(x.array, np.broadcast_to(CLASSES[0], (8, 3)))
    same(nn.cross_entropy_loss(x, V, one, reduction=None), ("batch", "seq"), expected)
    scalar = nn.cross_entropy_loss(x["batch", 0, "seq", 0], V, axn.named(CLASSES[0, 0], ()))
    assert float(scalar) == pytest.approx(float(hard_losses()[0, 0]), rel=1e-5)
    same(nn.cross_entropy_loss(x.untag("batch"), V, one.untag("seq").tag("seq"), None), ("seq",), expected)


@pytest.mark.parametrize("targets", [hard, soft], ids=["hard", "soft"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("axis", [None, "seq", S, ("batch",), ("batch", "seq"), ()], ids=str)
@pytest.mark.parametrize("reduction", [axn.mean, axn.sum, axn.max, axn.min], ids=lambda f: f.__name__)
def test_reductions(reduction, axis, masked, targets):
    losses = np.asarray(nn.cross_entropy_loss(logits(), V, targets(), reduction=None).array)
    mask = np.random.default_rng(3).random((8, 3)) < 0.7
    mask[:, 0] = mask[0] = True
    where = axn.named(mask, ("batch", "seq")) if masked else None
    names = {None: ("batch", "seq"), "seq": ("seq",), S: ("seq",)}.get(axis, axis)
    at = tuple(("batch", "seq").index(name) for name in names)
    kept = tuple(name for name in ("batch", "seq") if name not in names)
    if axis == ():
        expected = np.where(mask | (not masked), losses, 0)
    else:
        initial = {"max": {"initial": -np.inf}, "min": {"initial": np.inf}}.get(reduction.__name__, {})
        expected = getattr(np, reduction.__name__)(losses, axis=at, **(initial | {"where": mask} if masked else {}))
    same(nn.cross_entropy_loss(logits(), V, targets(), reduction, where, axis), kept, expected)


def test_without_a_reduction_what_does_not_count_is_zero_whatever_it_was():
    x = axn.named(jnp.array([[0.0, -jnp.inf], [1.0, 2.0], [0.0, 0.0]]), ("batch", "vocab"))
    where = axn.named([False, True, False], "batch")
    out = nn.cross_entropy_loss(x, "vocab", axn.named([1, 1, -100], "batch"), None, where)
    same(out, ("batch",), [0, np.log(1 + np.exp(-1)), 0])
    same(nn.reduce_loss(x, None, where=x > 0), ("batch", "vocab"), [[0, 0], [1, 2], [0, 0]])
    assert nn.reduce_loss(x, None) is x
    assert float(nn.reduce_loss(axn.ones(B))) == 1


def test_a_number_that_is_no_class_gives_nan_unless_left_out():
    x, targets = axn.zeros((B, V)), axn.named([0, 5, 6, -1, -100, 3, 2**30, 1], "batch")
    out = nn.cross_entropy_loss(x, V, targets, reduction=None).array
    assert np.isnan(out).tolist() == [False, False, True, True, True, False, True, False]
    where = (targets >= 0) & (targets < 6)
    value, gradient = jax.value_and_grad(lambda x: nn.cross_entropy_loss(x, V, targets, where=where).scalar())(x)
    assert float(value) == pytest.approx(np.log(6), rel=1e-6)
    hot = np.asarray(jax.nn.one_hot(targets.array, 6))
    same(gradient, ("batch", "vocab"), np.where(where.array[:, None], 1 / 6 - hot, 0) / 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.uint32])
def test_targets_of_any_integer_dtype(dtype):
    Many = axn.Axis("vocab", 300)
    x, targets = draw(B, Many), np.array([0, 1, 3, 44, 99, 100, 126, 127], dtype)
    expected = optax.softmax_cross_entropy_with_integer_labels(x.array, targets.astype(np.int32))
    same(nn.cross_entropy_loss(x, Many, axn.named(targets, "batch"), reduction=None), ("batch",), expected)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_extreme_logits(kind):
    base = np.random.default_rng(0).integers(-5, 5, (8, 6)).astype(np.float64)
    classes = CLASSES[:, 0]
    for x in (base + 2.0**20, base - 2.0**20, base * 1e4, base * 1e36, base * 0):
        top = x.max(1, keepdims=True)
        normalizer = np.log(np.exp(x - top).sum(1))
        expected = normalizer - (x - top)[np.arange(8), classes]
        targets = axn.named(classes, "batch")
        targets = targets if kind == "hard" else axn.one_hot(targets, V)
        named = axn.named(x.astype(np.float32), ("batch", "vocab"))
        loss = lambda x, targets=targets: nn.cross_entropy_loss(x, V, targets, axn.sum).scalar()  # noqa: E731
        same(nn.cross_entropy_loss(named, V, targets, reduction=None), ("batch",), expected)
        same(jax.grad(loss)(named), ("batch", "vocab"), np.exp(x - top - normalizer[:, None]) - np.eye(6)[classes])


def test_classes_that_are_ruled_out():
    x = axn.named(jnp.array([0.0, -jnp.inf, 1.0]), "vocab")
    loss = lambda x: nn.cross_entropy_loss(x, "vocab", axn.named(2, ())).scalar()  # noqa: E731
    assert float(loss(x)) == pytest.approx(np.log(1 + np.exp(-1)), rel=1e-6)
    p = 1 / (1 + np.exp(-1))
    same(jax.grad(loss)(x), ("vocab",), [1 - p, 0, p - 1])


def test_log_normalizers():
    losses, normalizers = nn.cross_entropy_loss_and_log_normalizers(logits(), V, hard())
    same(losses, ("batch", "seq"), hard_losses())
    same(normalizers, ("batch", "seq"), jax.nn.logsumexp(logits().array, -1))
    gradient = jax.grad(lambda x: nn.cross_entropy_loss_and_log_normalizers(x, V, hard())[1].sum().scalar())(logits())
    same(gradient, ("batch", "seq", "vocab"), jax.nn.softmax(logits().array))


def test_gradients_equal_those_of_optax():
    x = logits()
    for targets, reference in [
        (hard(), lambda x: optax.softmax_cross_entropy_with_integer_labels(x, CLASSES).mean()),
        (soft(), lambda x: optax.softmax_cross_entropy(x, soft().array).mean()),
    ]:
        value, gradient = jax.jit(
            jax.value_and_grad(lambda x, targets=targets: nn.cross_entropy_loss(x, V, targets).scalar())
        )(x)
        expected, expected_gradient = jax.value_and_grad(reference)(x.array)
        assert float(value) == pytest.approx(float(expected), rel=1e-5)
        same(gradient, ("batch", "seq", "vocab"), expected_gradient, atol=1e-6)
    by_targets = jax.grad(lambda t: nn.cross_entropy_loss(x, V, t).scalar())(soft())
    expected = jax.grad(lambda t: optax.softmax_cross_entropy(x.array, t).mean())(soft().array)
    same(by_targets, ("batch", "seq", "vocab"), expected)


def test_dtypes():
    assert nn.cross_entropy_loss(logits().astype(jnp.bfloat16), V, hard()).dtype == jnp.bfloat16
    assert nn.cross_entropy_loss(logits(), V, hard()).dtype == jnp.float32


def test_the_program_neither_gathers_nor_scatters():
    text = str(jax.make_jaxpr(jax.grad(lambda x: nn.cross_entropy_loss(x, V, hard()).scalar()))(logits()))
    assert "gather" not in text
    assert "scatter" not in text


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("targets", [hard, soft], ids=["hard", "soft"])
@pytest.mark.parametrize("mapping", [COMPUTE, {"batch": "data", "vocab": "model"}], ids=str)
def test_on_a_mesh(kind, targets, mapping, auto_mesh, explicit_mesh):
    mask = axn.named(CLASSES > 1, ("batch", "seq"))

    def run(x, targets):
        each = nn.cross_entropy_loss(x, V, targets, reduction=None)
        return jax.value_and_grad(lambda x: nn.cross_entropy_loss(x, V, targets, where=mask).scalar())(x), each

    (value, gradient), each = jax.jit(run)(logits(), targets())
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    with axn.set_mesh(mesh):
        given = axn.shard((logits(), targets()), mapping, strict=False)
        (found, found_gradient), found_each = axn.named_jit(run, mapping, strict=False)(*given)
    assert lies(found_each, mesh, mapping)
    assert lies(found_gradient, mesh, mapping)
    assert float(found) == pytest.approx(float(value), rel=1e-5)
    same(found_gradient, ("batch", "seq", "vocab"), gradient.array)
    same(found_each, ("batch", "seq"), each.array)


def fails(error, message, call):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_errors():
    fails(
        AxisNotFoundError,
        "cross_entropy_loss: the logits lack axis 'vocb'\n"
        "  logits have: batch=8, seq=3, vocab=6\n"
        "  hint: did you mean 'vocab'?",
        lambda: nn.cross_entropy_loss(logits(), "vocb", hard()),
    )
    fails(
        OperandError,
        "cross_entropy_loss: the targets have dtype float32 and lack axis 'vocab'\n"
        "  logits have: batch=8, seq=3, vocab=6\n"
        "  targets have: batch=8, seq=3\n"
        "  hint: class numbers must be integers, probabilities must have the axis of classes",
        lambda: nn.cross_entropy_loss(logits(), "vocab", hard().astype(jnp.float32)),
    )
    fails(
        AxisSizeError,
        "cross_entropy_loss: axis 'vocab' was given with size 7, but has size 6\n  array has: batch=8, seq=3, vocab=6",
        lambda: nn.cross_entropy_loss(logits(), axn.Axis("vocab", 7), hard()),
    )
    fails(
        AxisSizeError,
        "cross_entropy_loss: axis 'batch' has two sizes: 8 and 5\n"
        "  operand 1 has: batch=8, seq=3, vocab=6\n"
        "  operand 2 has: batch=5\n"
        "  hint: rename one of the two 'batch' axes",
        lambda: nn.cross_entropy_loss(logits(), V, axn.zeros(axn.Axis("batch", 5), int)),
    )
    fails(
        AxisNotFoundError,
        "cross_entropy_loss: no axis named 'time'\n  operand 1 has: batch=8, seq=3, vocab=6\n  operand 2 has: time=2",
        lambda: nn.cross_entropy_loss(logits(), V, axn.zeros(axn.Axis("time", 2), int)),
    )
    for given in ((logits().array, hard()), (logits(), hard().array)):
        with pytest.raises(OperandError, match=r"^cross_entropy_loss: expected a NamedArray, got ArrayImpl"):
            nn.cross_entropy_loss(given[0], V, given[1])
