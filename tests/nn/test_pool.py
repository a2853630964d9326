"""Pooling, against Equinox and loops of numpy."""

import functools
import gc
import itertools
import weakref
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym import nn
from axonym.errors import AxisNotFoundError, AxisSizeError, OperandError
from tests.laws import count_equations
from tests.nn.layouts import check_on, differentiated, draw, lies, same, value_and_gradients

pytestmark = pytest.mark.sampled

B, H, W, C = axn.make_axes(batch=8, height=7, width=6, mlp=2)
WINDOW = (H.resize(3), W.resize(2))


def windows(x, window, stride, sides, use_ceil, include_pad):
    """List the elements of each window along the last axes, by loops; None is padding."""
    spans = []
    for size, n, step, (low, high) in zip(x.shape, window, stride, sides, strict=True):
        starts = list(range(-low, size + high - n + 1, step))
        if use_ceil and starts[-1] + n < size + high and starts[-1] + step < size:
            starts.append(starts[-1] + step)
        end = size + high if include_pad else size
        spans.append([range(max(s, -low if include_pad else 0), min(s + n, end)) for s in starts])
    inside = lambda at: all(0 <= i < size for i, size in zip(at, x.shape, strict=True))  # noqa: E731
    shape = tuple(map(len, spans))
    cells = [[x[at] if inside(at) else 0.0 for at in itertools.product(*parts)] for parts in itertools.product(*spans)]
    return shape, cells


@pytest.mark.parametrize("use_ceil", [False, True])
@pytest.mark.parametrize(
    ("stride", "padding"), [((1, 1), ((0, 0), (0, 0))), ((3, 2), ((1, 0), (0, 1))), ((2, 4), ((0, 2), (1, 1)))]
)
def test_against_loops(stride, padding, use_ceil):
    x = draw(H, W, seed=3)
    array = np.asarray(x.array, np.float64)
    args = (array, (3, 2), stride, padding, use_ceil)
    shape, cells = windows(*args, False)
    expected = lambda f: np.reshape([f(cell) for cell in cells], shape)  # noqa: E731
    names = ("height", "width")

    @jax.jit
    def pooled(x):
        largest, smallest = (pool(WINDOW, x, stride, padding, use_ceil) for pool in (nn.max_pool, nn.min_pool))
        total = nn.pool(WINDOW, x, 0, lax.add, stride, padding, use_ceil)
        mean = functools.partial(nn.mean_pool, WINDOW, x, stride, padding, use_ceil=use_ceil)
        return [largest, smallest, total, mean()], mean(count_include_pad=True)

    results, padded = pooled(x)
    for result, f in zip(results, (max, min, sum, np.mean), strict=True):
        same(result, names, expected(f))
    _, cells = windows(*args, True)
    same(padded, names, expected(np.mean))


def test_equals_equinox_with_gradients():
    x = draw(B, H, C, W)
    names = x.names

    def reordered(f):
        def call(_, x):
            out = jax.vmap(f)(x.rearrange(("batch", "mlp", "height", "width")).array)
            return axn.named(out, ("batch", "mlp", "height", "width")).rearrange(names)

        return call

    ours = lambda _, x: nn.max_pool(WINDOW, x, (2, 1), 1)  # noqa: E731
    means = lambda _, x: nn.mean_pool(WINDOW, x, (2, 1), 1, count_include_pad=True)  # noqa: E731
    for mine, theirs in (
        (ours, reordered(eqx.nn.MaxPool2d((3, 2), (2, 1), 1))),
        (means, reordered(eqx.nn.AvgPool2d((3, 2), (2, 1), 1))),
    ):
        out, (_, (dx,)) = value_and_gradients(mine)(None, x)
        expected, (_, (dx_expected,)) = value_and_gradients(theirs)(None, x)
        same(out, names, expected.array)
        same(dx, names, dx_expected.array)


def test_same_keeps_sizes_and_strides_round_up():
    x = draw(B, H, W)
    same(nn.max_pool(WINDOW, x, padding="SAME"), x.names, nn.max_pool(WINDOW, x, 1, ((1, 1), (0, 1))).array)
    assert nn.mean_pool(WINDOW, x, 2, "SAME").shape == {"batch": 8, "height": 4, "width": 3}
    assert nn.max_pool((), x) is not None


def test_a_type_without_infinities_is_padded_with_its_limits():
    x = axn.named(jnp.array([1, 3, 2, -2], jnp.float8_e4m3fn), "height")
    options = {"stride": 1, "padding": ((0, 1),)}
    np.testing.assert_array_equal(nn.max_pool(H.resize(2), x, **options).array, [3, 3, 2, -2])
    np.testing.assert_array_equal(nn.min_pool(H.resize(2), x, **options).array, [1, 2, -2, -2])


def test_dtypes():
    x = draw(H) * 100
    whole = x.astype("int32")
    assert nn.max_pool(H.resize(3), whole, padding=1).dtype == jnp.int32
    same(nn.max_pool(H.resize(3), -abs(whole), padding=1)["height", :1], ("height",), [max(-abs(whole.array[:2]))])
    assert nn.min_pool(H.resize(7), x > 0).tolist() == [bool((x > 0).all())]
    assert nn.max_pool(H.resize(7), x > 0).tolist() == [bool((x > 0).any())]
    assert nn.mean_pool(H.resize(3), whole).dtype == jnp.float32
    long = draw(axn.Axis("height", 4096)) + 300
    narrow = nn.mean_pool(long.resolve_axis("height"), long.astype(jnp.bfloat16))
    assert narrow.dtype == jnp.bfloat16
    assert abs(narrow.array[0].astype(float) - 300) <= 1


def test_reductions_by_name_and_of_ones_own():
    x = draw(H, C)
    pooled = nn.pool(H.resize(2), x, 1.0, axn.prod)
    same(pooled, x.names, x.array[:-1] * x.array[1:])
    same(nn.pool(H.resize(2), x, jnp.array(0.0), axn.sum), x.names, x.array[:-1] + x.array[1:])
    farther = lambda a, b: jnp.where(abs(a) > abs(b), a, b)  # noqa: E731
    pairs = np.stack([x.array[:-1], x.array[1:]])
    picked = np.take_along_axis(pairs, abs(pairs).argmax(0)[None], 0)[0]
    same(nn.pool(H.resize(2), x, 0, farther), x.names, picked)


def test_a_reduction_starts_from_zeros_of_both_signs():
    x = axn.named([-1.0, -2.0], "time")
    found = [nn.pool(axn.Axis("time", 2), x, zero, jax.lax.max).item() for zero in (0.0, -0.0)]
    assert np.signbit(found).tolist() == [False, True]


@pytest.mark.parametrize(("reduction", "init"), [(axn.sum, 0), (axn.max, -np.inf), (axn.min, np.inf)])
def test_gradients_of_reductions_by_name(reduction, init):
    x = draw(H)
    slope = jax.jit(jax.grad(lambda x: (nn.pool(H.resize(3), x, init, reduction) ** 2).sum().scalar()))(x)
    expected = np.zeros(7)
    for start in range(5):
        window = np.asarray(x.array, np.float64)[start : start + 3]
        picked = {axn.sum: slice(None), axn.max: window.argmax(), axn.min: window.argmin()}[reduction]
        expected[start : start + 3][picked] += 2 * window[picked].sum()
    same(slope, ("height",), expected)


@pytest.mark.parametrize("windows", [1, 3, 4, 7])
def test_adaptive_windows(windows):
    x = draw(B, H, C)
    parts = [range(i * 7 // windows, -(-(i + 1) * 7 // windows)) for i in range(windows)]
    array = np.asarray(x.array, np.float64)
    target = (H.resize(windows), C.resize(1))
    pooled = jax.jit(lambda x: (nn.adaptive_mean_pool(target, x), nn.adaptive_max_pool(target, x)))(x)
    for result, f in zip(pooled, (np.mean, np.max), strict=True):
        expected = np.stack([f(array[:, part], (1, 2)) for part in parts], 1)[..., None]
        same(result, x.names, expected)
    for dtype, expected in ((jnp.bfloat16, jnp.bfloat16), (jnp.int32, jnp.float32)):
        of_dtype = lambda x, dtype=dtype: nn.adaptive_mean_pool(target, x.astype(dtype))  # noqa: E731
        assert jax.eval_shape(of_dtype, x).dtype == expected


def test_anonymous_dimensions():
    x = draw(B, H, W)
    expected = nn.mean_pool(WINDOW, x, 2, 1).array
    same(nn.mean_pool(WINDOW, x.untag("batch"), 2, 1), ("height", "width"), expected)
    same(axn.vmap(lambda x: nn.mean_pool(WINDOW, x, 2, 1), B)(x), ("batch", "height", "width"), expected)
    same(
        nn.adaptive_max_pool(H.resize(2), x.untag("batch")),
        ("height", "width"),
        nn.adaptive_max_pool(H.resize(2), x).array,
    )


def test_pooling_is_one_operation():
    x = draw(B, H, W)

    # Two barriers stand around a sum, against a fault of XLA; they compute nothing. A mean divides twice.
    assert count_equations(lambda x: nn.max_pool(WINDOW, x, 2, 1), x) == 1
    assert count_equations(lambda x: nn.pool(WINDOW, x, 0, axn.sum), x) <= 1 + 2
    assert count_equations(lambda x: nn.mean_pool(WINDOW, x), x) <= 3 + 2


def pooled(_, x):
    small = nn.mean_pool(H.resize(2), nn.max_pool((H.resize(2), W.resize(2)), x, 1, "SAME"), 2, 1)
    return nn.adaptive_mean_pool(W.resize(2), small)


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
def test_on_a_mesh(mode, request):
    mesh = request.getfixturevalue(mode)
    check_on(mesh, pooled, None, draw(W, B, H, C))
    # The axis itself may lie on several devices.
    mapping, x = {"batch": "data", "width": "model"}, draw(B, W)
    with axn.set_mesh(mesh):
        out = axn.named_jit(lambda x: nn.max_pool(W.resize(3), x, 1, "SAME"), mapping)(axn.shard(x, mapping))
    same(out, x.names, nn.max_pool(W.resize(3), x, 1, "SAME").array)


def overlapping(_, x):
    wide, uneven = (H.resize(3), W.resize(5)), (H.resize(3), W.resize(2))
    first = nn.max_pool(wide, x, (1, 2), ((1, 1), (2, 1)))
    second = nn.min_pool(uneven, x, (2, 1), "SAME", use_ceil=True)
    return axn.sin(first).sum() + axn.sin(second).sum()


@pytest.mark.parametrize(
    ("mode", "mapping"),
    [
        ("auto_mesh", {"height": "model"}),
        ("auto_mesh", {"height": ("model", "data")}),
        ("explicit_mesh", {"height": "data", "width": "model"}),
        ("mixed_mesh", {"batch": "data", "width": "model"}),
    ],
    ids=str,
)
def test_gradients_where_windows_overlap_between_devices(mode, mapping, request):
    x = draw(B, H.resize(16), W.resize(8))
    out, (_, (expected,)) = value_and_gradients(overlapping)(None, x)
    with axn.set_mesh(request.getfixturevalue(mode)):
        run = axn.named_jit(differentiated(overlapping), mapping, in_axis_resources=mapping, strict=False)
        result, (_, (gradient,)) = run(None, x)
    same(result, (), out.array, rtol=1e-3, atol=1e-3)
    same(gradient, x.names, expected.array, rtol=1e-3, atol=1e-3)


def test_the_result_lies_as_the_mapping_says(auto_mesh):
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"batch": "data"}):
        assert lies(jax.jit(lambda x: nn.max_pool(H.resize(2), x))(draw(B, H)), auto_mesh, {"batch": "data"})


def test_errors():
    x = draw(B, H)
    with pytest.raises(AxisNotFoundError) as error:
        nn.max_pool(axn.Axis("hight", 2), x)
    assert str(error.value) == (
        "max_pool: no axis named 'hight'\n  array has: batch=8, height=7\n  hint: did you mean 'height'?"
    )
    with pytest.raises(AxisSizeError) as error:
        nn.mean_pool(H.resize(10), x, padding=1)
    assert str(error.value) == (
        "mean_pool: a window of 10 does not fit into axis 'height' of size 7 and 2 of padding\n"
        "  input has: batch=8, height=7"
    )
    with pytest.raises(OperandError, match=r"^min_pool: axis 'height' needs a size here"):
        nn.min_pool("height", x)
    with pytest.raises(OperandError, match=r"^pool: expected a NamedArray, got a plain array"):
        nn.pool(H, x.array, 0, lax.add)
    with pytest.raises(AxisSizeError) as error:
        nn.adaptive_max_pool(H.resize(2), axn.zeros(H.resize(0)))
    assert str(error.value) == "adaptive_max_pool: cannot split an axis of size 0 into 2 windows"
    with pytest.raises(AxisNotFoundError) as error:
        nn.adaptive_mean_pool(W, x)
    assert str(error.value) == "adaptive_mean_pool: no axis named 'width'\n  array has: batch=8, height=7"


def test_a_reduction_is_not_kept_alive():
    class Held:
        """What a closure may hold: a model, a batch."""

    def pooled() -> weakref.ref[Any]:
        held = Held()

        def larger(x: Any, y: Any, held: Any = held) -> Any:
            return jnp.maximum(x, y)

        found = nn.pool(axn.Axis("time", 2), axn.arange(axn.Axis("time", 4), dtype=float), -np.inf, larger)
        assert found.tolist() == [1, 2, 3]
        return weakref.ref(held)

    reference = pooled()
    jax.clear_caches()  # JAX's own, which go with time
    gc.collect()
    assert reference() is None


def test_a_reduction_is_compiled_once(compiles):
    larger = lambda x, y: jnp.maximum(x, y)  # noqa: E731
    x = axn.arange(axn.Axis("time", 4), dtype=float)
    for number in range(3):
        nn.pool(axn.Axis("time", 2), x, -np.inf, larger)
        assert not number or not compiles
        compiles.clear()


def test_windows_of_only_padding_have_no_mean():
    found = nn.mean_pool(axn.Axis("time", 2), axn.ones(axn.Axis("time", 2)), padding=3)
    np.testing.assert_array_equal(found.array, [np.nan, np.nan, 1, 1, 1, np.nan, np.nan])
