"""Cross entropy, against optax and float64 numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from measure import collectives

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisNotFoundError, AxisSizeError, OperandError
from tests.laws import count_equations
from tests.nn.layouts import COMPUTE, compiled, draw, fails, lies, same

pytestmark = pytest.mark.sampled

B, S, V = axn.make_axes(batch=8, seq=3, vocab=6)
CLASSES = np.random.default_rng(0).integers(0, 6, (8, 3)).astype(np.int32)


# As one program each, which operation by operation would be ten.
optax_hard = jax.jit(optax.softmax_cross_entropy_with_integer_labels)
optax_soft = jax.jit(optax.softmax_cross_entropy)


def logits():
    return draw(B, S, V) * 3


def hard():
    return axn.named(jax.device_put(CLASSES), ("batch", "seq"))


def soft():
    return axn.softmax(draw(B, S, V, seed=1), "vocab")


@pytest.mark.parametrize("order", [(B, S, V), (V, B, S), (S, V, B)], ids=str)
def test_integer_targets(order):
    x = logits().rearrange(order)
    names = tuple(axis.name for axis in order if axis.name != "vocab")
    expected = axn.named(hard_losses(), ("batch", "seq"))
    for targets in (hard(), hard().rearrange(("seq", "batch"))):
        for Label in (V, "vocab"):
            same(nn.cross_entropy_loss(x, Label, targets, reduction=None), names, expected.rearrange(names).array)


@pytest.mark.parametrize("order", [(B, S, V), (V, B, S)], ids=str)
def test_soft_targets(order):
    expected = optax_soft(logits().array, soft().array)
    same(nn.cross_entropy_loss(logits(), V, soft().rearrange(order), reduction=None), ("batch", "seq"), expected)
    # Targets need not sum to one: then it is still minus the sum of targets times log-probabilities.
    expected = optax_soft(logits().array, soft().array * 3)
    same(nn.cross_entropy_loss(logits(), V, soft() * 3, reduction=None), ("batch", "seq"), expected)
    same(nn.cross_entropy_loss(logits(), V, axn.one_hot(hard(), V), reduction=None), ("batch", "seq"), hard_losses())


def hard_losses():
    return optax_hard(logits().array, CLASSES)


def test_targets_may_lack_axes():
    one, x = axn.named(CLASSES[0], "seq"), logits()
    expected = optax_hard(x.array, np.broadcast_to(CLASSES[0], (8, 3)))
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
        if masked and initial:  # of a mask an extremum needs a value to start from
            reduction = functools.partial(reduction, **initial)
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
    loss = lambda x: nn.cross_entropy_loss(x, V, targets, where=where).scalar()  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(loss))(x)
    assert float(value) == pytest.approx(np.log(6), rel=1e-6)
    hot = np.asarray(jax.nn.one_hot(targets.array, 6))
    same(gradient, ("batch", "vocab"), np.where(where.array[:, None], 1 / 6 - hot, 0) / 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.uint32])
def test_targets_of_any_integer_dtype(dtype):
    Many = axn.Axis("vocab", 300)
    x, targets = draw(B, Many), np.array([0, 1, 3, 44, 99, 100, 126, 127], dtype)
    expected = optax_hard(x.array, targets.astype(np.int32))
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
        same(
            jax.jit(jax.grad(loss))(named),
            ("batch", "vocab"),
            np.exp(x - top - normalizer[:, None]) - np.eye(6)[classes],
        )


def test_classes_that_are_ruled_out():
    x = axn.named(jnp.array([0.0, -jnp.inf, 1.0]), "vocab")
    loss = lambda x: nn.cross_entropy_loss(x, "vocab", axn.named(2, ())).scalar()  # noqa: E731
    assert float(loss(x)) == pytest.approx(np.log(1 + np.exp(-1)), rel=1e-6)
    p = 1 / (1 + np.exp(-1))
    same(jax.jit(jax.grad(loss))(x), ("vocab",), [1 - p, 0, p - 1])


def test_the_log_normalizer_of_logits_without_a_finite_largest_one():
    x = np.array([[-np.inf, -np.inf], [np.inf, 0]], np.float32)
    _, normalizers = nn.cross_entropy_loss_and_log_normalizers(
        axn.named(x, ("batch", "vocab")), "vocab", axn.named([0, 0], "batch")
    )
    same(normalizers, ("batch",), [-np.inf, np.inf])


def test_log_normalizers():
    losses, normalizers = nn.cross_entropy_loss_and_log_normalizers(logits(), V, hard())
    same(losses, ("batch", "seq"), hard_losses())
    same(normalizers, ("batch", "seq"), jax.nn.logsumexp(logits().array, -1))
    total = lambda x: nn.cross_entropy_loss_and_log_normalizers(x, V, hard())[1].sum().scalar()  # noqa: E731
    gradient = jax.jit(jax.grad(total))(logits())
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
        expected, expected_gradient = jax.jit(jax.value_and_grad(reference))(x.array)
        assert float(value) == pytest.approx(float(expected), rel=1e-5)
        same(gradient, ("batch", "seq", "vocab"), expected_gradient, atol=1e-6)
    by_targets = jax.jit(jax.grad(lambda t: nn.cross_entropy_loss(x, V, t).scalar()))(soft())
    expected = jax.jit(jax.grad(lambda t: optax.softmax_cross_entropy(x.array, t).mean()))(soft().array)
    same(by_targets, ("batch", "seq", "vocab"), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gradients_are_rounded_once(dtype):
    # Of a likely target it is a small difference, which would be lost between numbers that are rounded apart.
    x = (logits() + 9 * axn.one_hot(hard(), V)).astype(dtype)
    gradient = jax.jit(jax.grad(lambda x: nn.cross_entropy_loss(x, V, hard(), axn.sum).scalar()))(x)
    exact = np.asarray(x.array, np.float64)
    exponentials = np.exp(exact - exact.max(-1, keepdims=True))
    expected = exponentials / exponentials.sum(-1, keepdims=True) - np.eye(6)[CLASSES]
    found = np.asarray(gradient.array, np.float64)
    assert gradient.dtype == dtype
    least = float(jnp.finfo(dtype).smallest_subnormal)
    np.testing.assert_allclose(found, expected, rtol=float(jnp.finfo(dtype).eps), atol=max(least, 5e-7))


def test_derivatives_forward_and_twice():
    options = {"z_loss": 0.01, "label_smoothing": 0.1, "ignore_index": 0}
    ours, theirs = ours_and_theirs(**options)
    x, direction = logits(), draw(B, S, V, seed=5)

    def both(loss, x, direction):
        slope = lambda x: jax.jvp(loss, (x,), (direction,))[1]  # noqa: E731
        return slope(x), jax.grad(slope)(x), jax.jvp(jax.grad(loss), (x,), (direction,))[1]

    found = jax.jit(functools.partial(both, ours))(x, direction)
    expected = jax.jit(functools.partial(both, theirs))(x.array, direction.array)
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-4)
    for mine, reference in zip(found[1:], expected[1:], strict=True):
        same(mine, ("batch", "seq", "vocab"), reference, atol=1e-6)


def test_dtypes():
    assert nn.cross_entropy_loss(logits().astype(jnp.bfloat16), V, hard()).dtype == jnp.bfloat16
    assert nn.cross_entropy_loss(logits(), V, hard()).dtype == jnp.float32
    whole = axn.named(np.arange(-9, 9).reshape(3, 6), ("seq", "vocab"))
    results = [
        (*nn.cross_entropy_loss_and_log_normalizers(x, V, axn.arange(S)), nn.binary_cross_entropy_loss(x, x > 2, None))
        for x in (whole, whole.astype(np.float32))
    ]
    for mine, reference in zip(*results, strict=True):
        assert mine.dtype == jnp.float32
        np.testing.assert_array_equal(mine.array, reference.array)


def masked_and_each(x, targets):
    mask = axn.named(CLASSES > 1, ("batch", "seq"))
    each = nn.cross_entropy_loss(x, V, targets, reduction=None)
    return jax.value_and_grad(lambda x: nn.cross_entropy_loss(x, V, targets, where=mask).scalar())(x), each


masked_and_each_on_one_device = jax.jit(masked_and_each)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("targets", [hard, soft], ids=["hard", "soft"])
@pytest.mark.parametrize("mapping", [COMPUTE, {"batch": "data", "vocab": "model"}], ids=str)
def test_on_a_mesh(kind, targets, mapping, auto_mesh, explicit_mesh):
    (value, gradient), each = masked_and_each_on_one_device(logits(), targets())
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    with axn.set_mesh(mesh):
        given = axn.shard((logits(), targets()), mapping, strict=False)
        program = axn.named_jit(masked_and_each, mapping, strict=False).lower(*given).compile()
        (found, found_gradient), found_each = program(*given)
    # No device sees the classes of another one: sums alone are sent.
    assert {each.kind for each in collectives(program)} <= {"all-reduce"}
    assert lies(found_each, mesh, mapping)
    assert lies(found_gradient, mesh, mapping)
    assert float(found) == pytest.approx(float(value), rel=1e-5)
    same(found_gradient, ("batch", "seq", "vocab"), gradient.array)
    same(found_each, ("batch", "seq"), each.array)


def ours_and_theirs(**options):
    """Return a loss of logits by name, and the same in plain code, both through integer targets."""
    smoothing, z_loss = options.get("label_smoothing", 0.0), options.get("z_loss", 0.0)

    def theirs(x):
        losses = optax.softmax_cross_entropy(x, optax.smooth_labels(jax.nn.one_hot(CLASSES, 6), smoothing))
        losses = losses + z_loss * jax.nn.logsumexp(x, -1) ** 2
        counted = options.get("ignore_index", -1) != CLASSES
        return jnp.where(counted, losses, 0).sum() / counted.sum()

    return lambda x: nn.cross_entropy_loss(x, V, hard(), **options).scalar(), theirs


OPTIONS = [
    {"z_loss": 0.1},
    {"label_smoothing": 0.2},
    {"ignore_index": 3},
    {"z_loss": 0.01, "label_smoothing": 0.1, "ignore_index": 0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options):
    ours, theirs = ours_and_theirs(**options)
    value, gradient = jax.jit(jax.value_and_grad(ours))(logits())
    expected, expected_gradient = jax.jit(jax.value_and_grad(theirs))(logits().array)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    same(gradient, ("batch", "seq", "vocab"), expected_gradient, atol=1e-6)


def test_smoothed_probabilities():
    expected = optax.softmax_cross_entropy(logits().array, optax.smooth_labels(soft().array, 0.3)).mean()
    found = nn.cross_entropy_loss(logits(), V, soft(), label_smoothing=0.3)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    every = float(nn.cross_entropy_loss(logits(), V, hard(), label_smoothing=1.0))
    even = float(nn.cross_entropy_loss(logits(), V, axn.full((V,), 1 / 6)))
    assert every == pytest.approx(even, rel=1e-5)


def test_an_ignored_class_joins_a_mask():
    mask = axn.named([True, False, True], "seq")
    losses = np.asarray(hard_losses())
    counted = (CLASSES != 2) & np.array([True, False, True])
    found = nn.cross_entropy_loss(logits(), V, hard(), axn.sum, mask, ignore_index=2)
    assert float(found) == pytest.approx(losses[counted].sum(), rel=1e-5)
    each = nn.cross_entropy_loss(logits(), V, hard(), None, mask, ignore_index=2)
    same(each, ("batch", "seq"), np.where(counted, losses, 0))


def test_what_is_left_out_never_becomes_nan():
    # A name of its own: what other tests have compiled is not checked again.
    Place, E = axn.make_axes(place=3, embed=4)
    targets = axn.named(np.where(CLASSES == 3, -100, CLASSES), ("batch", "place"))
    scores, x, table = draw(B, Place, V), draw(B, Place, E), draw(V, E, seed=1)
    counted = CLASSES != 3
    with jax.debug_nans(True):
        for gap in ({"ignore_index": -100}, {"where": targets >= 0}):
            loss = nn.cross_entropy_loss(scores, V, targets, **gap)
            losses = optax_hard(scores.array, np.where(counted, CLASSES, 0))
            assert float(loss) == pytest.approx(float(losses[counted].mean()), rel=1e-5)
            loss = nn.chunked_cross_entropy_loss(x, table, E, V, targets, **gap)
            losses = optax_hard(x.array @ table.array.T, np.where(counted, CLASSES, 0))
            assert float(loss) == pytest.approx(float(losses[counted].mean()), rel=1e-4)
        with pytest.raises(FloatingPointError):
            nn.cross_entropy_loss(scores.rename({"place": "spot"}), V, targets.rename({"place": "spot"}))


def test_axes_to_reduce_may_be_read_once_only():
    expected = nn.reduce_loss(logits(), axn.mean, ("batch", "seq"))
    for where in (None, axn.ones((B, S), bool)):
        found = nn.reduce_loss(logits(), axn.mean, (name for name in ("batch", "seq")), where)
        same(found, ("vocab",), expected.array)


def test_the_mean_of_nothing_is_zero_with_zero_gradients():
    nothing = axn.zeros((B, S), bool)
    loss = lambda x: nn.cross_entropy_loss(x, V, hard() * 0 - 100, where=nothing).scalar()  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(loss))(logits())
    assert float(value) == 0
    assert not gradient.array.any()
    assert float(nn.cross_entropy_loss(logits(), V, hard() * 0 - 100, ignore_index=-100)) == 0
    one_row = axn.named(np.arange(8) == 3, "batch")
    rows = nn.cross_entropy_loss(logits(), V, hard(), where=one_row, reduction_axis="seq")
    same(rows, ("batch",), np.where(np.arange(8) == 3, np.asarray(hard_losses()).mean(1), 0))


def test_narrow_logits_are_summed_up_in_float32():
    Many = axn.Axis("vocab", 4096)
    x = draw(B, Many).astype(jnp.bfloat16)
    targets = axn.named(CLASSES[:, 0], "batch")
    wide = np.asarray(x.array, np.float64)
    shares = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    losses = nn.cross_entropy_loss(x, Many, targets, None)
    assert losses.dtype == jnp.bfloat16
    same(losses, ("batch",), -np.log(shares[np.arange(8), CLASSES[:, 0]]), rtol=2**-8)
    gradient = jax.jit(jax.grad(lambda x: nn.cross_entropy_loss(x, Many, targets, axn.sum).scalar()))(x)
    same(gradient, ("batch", "vocab"), shares - np.eye(4096)[CLASSES[:, 0]], rtol=2**-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_squares_of_normalizers_need_not_fit_into_float16(kind):
    x = axn.named(np.array([[300, 0, 1], [-400, -401, -600]], np.float16), ("batch", "vocab"))
    wide = np.asarray(x.array, np.float64)
    hot, top = np.eye(3)[[0, 1]], wide.max(1, keepdims=True)
    normalizers = np.log(np.exp(wide - top).sum(1, keepdims=True)) + top
    expected = normalizers - (wide * hot).sum(1, keepdims=True) + 1e-4 * normalizers**2
    slopes = (1 + 2e-4 * normalizers) * np.exp(wide - normalizers) - hot
    targets = axn.named([0, 1], "batch") if kind == "hard" else axn.named(hot.astype(np.float32), x.names)
    loss = lambda x: nn.cross_entropy_loss(x, "vocab", targets, None, z_loss=1e-4)  # noqa: E731
    assert loss(x).dtype == jnp.float16
    same(loss(x), ("batch",), expected[:, 0], rtol=2**-11)
    same(jax.jit(jax.grad(lambda x: loss(x).sum().scalar()))(x), x.names, slopes, rtol=2**-10, atol=1e-6)


def yes(dtype=np.float32):
    return axn.named((CLASSES > 2).astype(dtype), ("batch", "seq"))


def test_binary():
    x = draw(B, S) * 3
    wide, expected = np.asarray(x.array, np.float64), optax.sigmoid_binary_cross_entropy(x.array, yes().array)
    targets = [yes(), yes(bool), yes(np.int32), yes(np.uint8), yes(np.uint32), yes().rearrange(("seq", "batch"))]
    for losses in compiled(lambda x, many: [nn.binary_cross_entropy_loss(x, y, None) for y in many], x, targets):
        same(losses, ("batch", "seq"), expected)
    gradient = jax.jit(jax.grad(lambda x: nn.binary_cross_entropy_loss(x, yes(), axn.sum).scalar()))(x)
    same(gradient, ("batch", "seq"), 1 / (1 + np.exp(-wide)) - yes().array)
    likely = axn.named([0.1, 0.5, 0.9], "seq")
    expected = np.logaddexp(0, wide) - wide * np.array([0.1, 0.5, 0.9])
    same(nn.binary_cross_entropy_loss(x, likely, None), ("batch", "seq"), expected)
    mask = axn.named([True, False, True], "seq")
    same(nn.binary_cross_entropy_loss(x, likely, where=mask), (), expected[:, [0, 2]].mean())
    same(nn.binary_cross_entropy_loss(x, likely, axn.sum, reduction_axis="batch"), ("seq",), expected.sum(0))
    for dtype in (jnp.bfloat16, jnp.float16):
        narrow = nn.binary_cross_entropy_loss(x.astype(dtype), yes(np.uint8), None)
        assert narrow.dtype == dtype
        rounded = np.asarray(x.astype(dtype).array, np.float64)
        same(narrow, ("batch", "seq"), np.logaddexp(0, rounded) - rounded * yes().array, rtol=2**-8, atol=1e-6)
    # One minus a small probability is one in bfloat16.
    rare, far = axn.named(jnp.array([2**-10], jnp.bfloat16), "x"), axn.named([1024.0], "x")
    same(nn.binary_cross_entropy_loss(far, rare, None), ("x",), [1023], rtol=1e-7)
    far, one = axn.named([-200.0, 20.0, 0.0, 200.0], "x"), axn.named([True] * 4, "x")
    losses = nn.binary_cross_entropy_loss(far, one, None)
    same(losses, ("x",), [200, np.log1p(np.exp(-20)), np.log(2), 0], rtol=1e-6, atol=1e-12)
    slope = jax.jit(jax.grad(lambda x: nn.binary_cross_entropy_loss(x, one, axn.sum).scalar()))(far)
    same(slope, ("x",), [-1, -1 / (1 + np.exp(20)), -0.5, 0], rtol=1e-5, atol=1e-12)


def test_binary_has_no_more_equations_than_by_hand():
    def by_hand(x, targets):
        positive = x > 0
        return jnp.log1p(jnp.exp(jnp.where(positive, -x, x))) + x * (positive.astype(x.dtype) - targets)

    x, targets = draw(B, S), yes()
    found = count_equations(lambda x, targets: nn.binary_cross_entropy_loss(x, targets, None), x, targets)
    assert found <= count_equations(by_hand, x.array, targets.array)


@pytest.mark.parametrize("target", [0.0, 0.25, 1.0])
def test_binary_at_zero_and_at_infinities(target):
    x, share = axn.named([-np.inf, -0.0, 0.0, np.inf], "x"), axn.named([target] * 4, "x")
    half, certain = np.log(2), np.inf
    expected = [certain if target else np.nan, half, half, certain if target < 1 else np.nan]
    same(nn.binary_cross_entropy_loss(x, share, None), ("x",), expected, rtol=1e-6)
    total = lambda x: nn.binary_cross_entropy_loss(x, share, axn.sum).scalar()  # noqa: E731
    same(jax.grad(total)(x), ("x",), [-target, 0.5 - target, 0.5 - target, 1 - target], rtol=1e-6)
    curvature = jax.grad(lambda x: axn.sum(jax.grad(total)(x)).scalar())(x)
    same(curvature, ("x",), [0, 0.25, 0.25, 0], rtol=1e-6)


E = axn.Axis("embed", 4)
WEIGHT = {"batch": "data", "vocab": "model"}


def chunked(x, weight, targets, **options):
    return nn.chunked_cross_entropy_loss(x, weight, E, V, targets, **options).scalar()


def whole(x, weight, targets, **options):
    options.pop("block_size", None)
    return nn.cross_entropy_loss(axn.dot(x, weight, axis=E), V, targets, **options).scalar()


def gradients(fn, **options):
    return jax.jit(jax.value_and_grad(lambda x, weight, targets: fn(x, weight, targets, **options), (0, 1)))


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 2},
        {"block_size": 4, "z_loss": 0.01, "label_smoothing": 0.1, "ignore_index": 0},
        {"block_size": 5, "label_smoothing": 0.1, "reduction": axn.sum},
        {"block_size": 100, "where": axn.named(CLASSES > 1, ("batch", "seq"))},
    ],
    ids=["two", "options", "sum", "masked"],
)
def test_chunks_change_nothing(options):
    x, weight = draw(B, S, E), draw(V, E, seed=1) * 2
    value, (dx, dweight) = gradients(chunked, **options)(x, weight, hard())
    expected, (dx_expected, dweight_expected) = gradients(whole, **options)(x, weight, hard())
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    same(dx, ("batch", "seq", "embed"), dx_expected.array, atol=1e-6)
    same(dweight, ("vocab", "embed"), dweight_expected.array, atol=1e-6)


@pytest.mark.parametrize("fn", [whole, chunked])
def test_factors_of_normalizers_may_be_traced(fn):
    given = draw(B, S, E), draw(V, E, seed=1), hard()
    found = jax.jit(lambda factor: fn(*given, z_loss=factor))(0.1)
    assert float(found) == pytest.approx(float(fn(*given, z_loss=0.1)), rel=1e-6)


def test_chunks_that_do_not_divide_the_classes():
    # 53 is a prime: zeros fill up the last chunk, and count for nothing.
    Odd, wide = axn.Axis("vocab", 53), np.random.default_rng(5).integers(0, 53, (3, 8))
    x, weight, targets = draw(S, E, B), draw(E, Odd, seed=1) * 2, axn.named(wide, ("seq", "batch"))
    small = targets.astype(np.uint8)["seq", 0]
    blocks = {"block_size": 10}
    cases = [("vocab", targets, blocks, {}), ("vocab", targets, blocks, {"label_smoothing": 0.1}), (Odd, small, {}, {})]

    @jax.jit
    def both_ways(x, weight):
        whole = axn.dot(x, weight, axis=E)
        return [
            (
                nn.chunked_cross_entropy_loss(x, weight, E, Label, given, None, **sizes, **options),
                nn.cross_entropy_loss(whole, Label, given, None, **options),
            )
            for Label, given, sizes, options in cases
        ]

    for out, expected in both_ways(x, weight):
        same(out, ("seq", "batch"), expected.array)
    unknown = compiled(nn.chunked_cross_entropy_loss, x, weight, E, Odd, targets * 0 + 53, None, block_size=10)
    assert np.isnan(unknown.array).all()


def test_chunks_of_narrow_numbers():
    Many, Wide = axn.make_axes(vocab=64, embed=32)
    x, weight = draw(B, S, Wide).astype(jnp.bfloat16), draw(Many, Wide, seed=1).astype(jnp.bfloat16)
    loss = lambda x, weight: nn.chunked_cross_entropy_loss(x, weight, Wide, Many, hard(), block_size=4)  # noqa: E731
    assert jax.eval_shape(loss, x, weight).dtype == jnp.float32
    dx, dweight = jax.jit(jax.grad(lambda *both: loss(*both).scalar(), (0, 1)))(x, weight)
    rows, matrix = (np.asarray(a.array, np.float64) for a in (x, weight))
    shares = np.exp(rows @ matrix.T)
    slopes = (shares / shares.sum(-1, keepdims=True) - np.eye(64)[CLASSES]) / 24
    assert dx.dtype == dweight.dtype == jnp.bfloat16
    # The largest are about 0.1, of which bfloat16 resolves 0.0005.
    same(dx, ("batch", "seq", "embed"), slopes @ matrix, rtol=2**-6, atol=5e-4)
    same(dweight, ("vocab", "embed"), np.einsum("bsv,bse->ve", slopes, rows), rtol=2**-6, atol=5e-4)


def chunks_with_gradients(x, weight, targets):
    options = {"block_size": 4, "label_smoothing": 0.1}
    loss = lambda x, weight: nn.chunked_cross_entropy_loss(x, weight, E, V.resize(12), targets, **options)  # noqa: E731
    return jax.value_and_grad(lambda *both: loss(*both).scalar(), (0, 1))(x, weight)


chunks_on_one_device = jax.jit(chunks_with_gradients)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_chunks_on_a_mesh(kind, auto_mesh, explicit_mesh):
    x, weight = draw(B, S, E), draw(V.resize(12), E, seed=1)
    expected, (dx, dweight) = chunks_on_one_device(x, weight, hard())
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    with axn.set_mesh(mesh):
        given = axn.shard((x, weight, hard()), WEIGHT, strict=False)
        step = axn.named_jit(chunks_with_gradients, WEIGHT, strict=False)
        value, found = step(*given)
        text = step.lower(*given).compile().as_text()
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    for one, other in zip(found, (dx, dweight), strict=True):
        same(one, other.names, other.array, atol=1e-6)
        assert lies(one, mesh, WEIGHT)
    # Each device has its part of every chunk: weights and classes stay where they are.
    assert "all-gather" not in text
    assert "all-to-all" not in text


def test_normalizers_of_targets_that_are_no_class():
    x, far = logits() - 1000, hard() - 100
    losses, normalizers = nn.cross_entropy_loss_and_log_normalizers(x, V, far)
    same(normalizers, ("batch", "seq"), jax.nn.logsumexp(x.array, -1))
    assert jnp.isnan(losses.array).all()


def test_what_targets_pick_and_exponentials_are_not_held_at_once():
    x, targets = axn.zeros((axn.Axis("batch", 64), axn.Axis("vocab", 4096))), axn.zeros(axn.Axis("batch", 64), int)
    step = jax.jit(jax.value_and_grad(lambda x, targets: nn.cross_entropy_loss(x, "vocab", targets).scalar()))
    # The one that is held in turn lies where the gradient will be.
    assert step.lower(x, targets).compile().memory_analysis().temp_size_in_bytes < x.nbytes / 4


def test_chunks_take_the_memory_of_one():
    Wide, Many = axn.make_axes(embed=16, vocab=8192)

    def temporary(loss, tokens=256):
        x, targets = axn.zeros((axn.Axis("batch", tokens), Wide)), axn.zeros(axn.Axis("batch", tokens), int)
        step = jax.jit(jax.grad(lambda *given: loss(*given).scalar(), (0, 1)))
        return step.lower(x, axn.zeros((Many, Wide)), targets).compile().memory_analysis().temp_size_in_bytes

    logits = 4 * 256 * Many.size
    assert temporary(lambda x, w, t: nn.cross_entropy_loss(axn.dot(x, w, axis=Wide), Many, t)) >= logits
    assert temporary(lambda x, w, t: nn.chunked_cross_entropy_loss(x, w, Wide, Many, t, block_size=512)) < logits / 3
    # The weight and its gradient are read and written where they lie.
    weight = 4 * Wide.size * Many.size
    assert temporary(lambda x, w, t: nn.chunked_cross_entropy_loss(x, w, Wide, Many, t, block_size=512), 4) < weight / 4


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
        "cross_entropy_loss: axis 'vocab' was given with size 7, but the logits have size 6\n"
        "  logits have: batch=8, seq=3, vocab=6",
        lambda: nn.cross_entropy_loss(logits(), axn.Axis("vocab", 7), hard()),
    )
    fails(
        AxisSizeError,
        "cross_entropy_loss: axis 'batch' has two sizes: 8 and 5\n"
        "  operand 1 has: batch=8, seq=3, vocab=6\n"
        "  operand 2 has: batch=5\n"
        '  hint: if they are the same axis, cut the longer one, x["batch", :5]; '
        'if not, rename one: x.rename({"batch": ...})',
        lambda: nn.cross_entropy_loss(logits(), V, axn.zeros(axn.Axis("batch", 5), int)),
    )
    fails(
        AxisNotFoundError,
        "cross_entropy_loss: the targets have axis 'time', which the logits lack\n"
        "  logits have: batch=8, seq=3, vocab=6\n  targets have: time=2",
        lambda: nn.cross_entropy_loss(logits(), V, axn.zeros(axn.Axis("time", 2), int)),
    )
    for Label, given in (((V, B), "2: vocab, batch"), ((), "0: none")):
        problem = f"cross_entropy_loss: expected one axis, got {given}"
        fails(OperandError, problem, lambda Label=Label: nn.cross_entropy_loss(logits(), Label, hard()))
        chunked = functools.partial(nn.chunked_cross_entropy_loss, draw(B, S, E), axn.zeros((V, E)), E, Label, hard())
        fails(OperandError, f"chunked_{problem}", chunked)
    fails(
        ArgumentError,
        "cross_entropy_loss: ignore_index is a class number, but the targets are probabilities of axis 'vocab'\n"
        "  targets have: batch=8, seq=3, vocab=6\n"
        "  hint: leave targets out by where=...",
        lambda: nn.cross_entropy_loss(logits(), V, soft(), ignore_index=0),
    )
    for given in ((logits().array, hard()), (logits(), hard().array)):
        with pytest.raises(OperandError, match=r"^cross_entropy_loss: expected a NamedArray, got a plain array"):
            nn.cross_entropy_loss(given[0], V, given[1])


def test_errors_of_reductions():
    fails(
        OperandError,
        "cross_entropy_loss: reduction must be a function, not 'mean'\n"
        "  hint: pass axn.mean, axn.sum, or None for one loss for each target",
        lambda: nn.cross_entropy_loss(logits(), V, hard(), reduction="mean"),
    )
    for function in (nn.reduce_loss, functools.partial(nn.binary_cross_entropy_loss, logits())):
        own = getattr(function, "func", function).__name__
        with pytest.raises(OperandError, match=rf"^{own}: reduction must be a function, not 'mean'"):
            function(logits(), "mean")


def test_errors_of_chunks_and_options():
    x, weight = axn.zeros((B, S, E)), axn.zeros((V, E))
    near = weight.rename({"embed": "embd"})
    fails(
        AxisNotFoundError,
        "chunked_cross_entropy_loss: the weight lacks axis 'embed'\n"
        "  weight has: vocab=6, embd=4\n"
        "  hint: did you mean 'embd'?",
        lambda: nn.chunked_cross_entropy_loss(x, near, E, V, hard()),
    )
    for axis, Embed, Label in (("embed", E.resize(9), V), ("vocab", E, V.resize(9))):
        fails(
            AxisSizeError,
            f"chunked_cross_entropy_loss: axis {axis!r} was given with size 9, "
            f"but the weight has size {weight.axis_size(axis)}\n  weight has: vocab=6, embed=4",
            lambda Embed=Embed, Label=Label: nn.chunked_cross_entropy_loss(x, weight, Embed, Label, hard()),
        )
    fails(
        AxisNotFoundError,
        "chunked_cross_entropy_loss: no axis named 'time'\n"
        "  operand 1 has: batch=8, seq=3, embed=4\n"
        "  operand 2 has: time=2",
        lambda: nn.chunked_cross_entropy_loss(x, weight, E, V, axn.zeros(axn.Axis("time", 2), int)),
    )
    fails(
        OperandError,
        "chunked_cross_entropy_loss: the targets have dtype float32 and axes batch=8, seq=3, vocab=6\n"
        "  hint: class numbers are integers without axis 'vocab'; probabilities need cross_entropy_loss",
        lambda: nn.chunked_cross_entropy_loss(x, weight, E, V, soft()),
    )
    fails(
        ArgumentError,
        "chunked_cross_entropy_loss: block_size must be positive, got 0",
        lambda: nn.chunked_cross_entropy_loss(x, weight, E, V, hard(), block_size=0),
    )
    fails(
        ArgumentError,
        "cross_entropy_loss: label_smoothing must be a fraction from 0 to 1, not 1.5",
        lambda: nn.cross_entropy_loss(logits(), V, hard(), label_smoothing=1.5),
    )
