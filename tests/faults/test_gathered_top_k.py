"""The largest elements along a split axis, against one device, and what is sent for them."""

import jax
import measure
import numpy as np
import pytest

import axonym as axn
from axonym import nn

B, V = axn.Axis("batch", 8), axn.Axis("vocab", 256)
# Many equal elements, on one device and on several, some NaN, and a row of equal ones.
NUMBERS = np.round(np.random.default_rng(0).normal(size=(8, 256)), 1).astype(np.float32) + 0.0  # no negative zeros
NUMBERS[1], NUMBERS[2, 77], NUMBERS[2, 200] = 0, np.nan, np.nan
K = 16

MAPPINGS = [
    {"batch": "data"},
    {"vocab": "data"},
    {"batch": "model", "vocab": "data"},
    {"vocab": ("model", "data")},
    {"batch": ("data", "model")},
]
meshes = pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])


def by_numpy(array, k):
    """Sort by NumPy, which puts NaN last: it counts as largest, and equal elements are in the order of positions."""
    order = np.argsort(np.where(np.isnan(array), -np.inf, -array), axis=-1, kind="stable")
    return np.take_along_axis(array, order, -1)[..., :k], order[..., :k]


def agrees(found, k, array=NUMBERS):
    for mine, theirs in zip(found, by_numpy(array, k), strict=True):
        np.testing.assert_array_equal(mine.rearrange(("batch", ...)).array, theirs)


@pytest.mark.sampled
@meshes
@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
def test_devices_send_no_more_than_they_select(mapping, kind, request):
    mesh = request.getfixturevalue(kind)
    with axn.set_mesh(mesh):
        x = axn.shard(axn.named(NUMBERS, (B, V)), mapping)
        run = axn.named_jit(lambda x: x.top_k("vocab", K), mapping)
        program = run.lower(x).compile()
        agrees(program(x), K)
        agrees(x.top_k("vocab", K), K)  # eagerly, by the sharding of the array
    agrees(x.top_k("vocab", K), K)

    entries = {name: (entry,) if isinstance(entry, str) else entry for name, entry in mapping.items()}
    rows = 8 // np.prod([mesh.shape[axis] for axis in entries.get("batch", ())], dtype=int)
    sent = [(each.kind, each.bytes) for each in measure.collectives(program.as_text())]
    # Values and positions, of four bytes each, that a device sends to each other one.
    assert sent == ([("all-gather", rows * K * 4)] * 2 if "vocab" in mapping else [])


@meshes
def test_gradients_go_back_to_where_elements_are(kind, request):
    weights = axn.arange(axn.Axis("vocab", K)) + 1.0

    def loss(x):
        return (axn.nan_to_num(x.top_k("vocab", K)[0]) * weights).sum().scalar()

    expected = np.zeros_like(NUMBERS)
    _, at = by_numpy(NUMBERS, K)
    np.put_along_axis(expected, at, np.arange(1, K + 1, dtype=np.float32), -1)
    expected[np.isnan(NUMBERS)] = 0
    mapping = {"batch": "model", "vocab": "data"}
    with axn.set_mesh(request.getfixturevalue(kind)):
        x = axn.shard(axn.named(NUMBERS, (B, V)), mapping)
        program = axn.named_jit(jax.grad(loss), mapping).lower(x).compile()
        np.testing.assert_array_equal(program(x).array, expected)
        # Inside of a map over another axis, which JAX could not differentiate.
        rows = axn.shard_map(lambda x: jax.grad(loss)(x), {**mapping}, manual_axes=("model",))
        if kind == "auto_mesh":
            np.testing.assert_array_equal(jax.jit(rows)(x).array, expected)
    assert all(each.bytes <= 4 * 4 * 4 * K for each in measure.collectives(program.as_text()))


@meshes
def test_more_than_a_device_has_and_sizes_that_do_not_divide(kind, request):
    with axn.set_mesh(request.getfixturevalue(kind)):
        x = axn.shard(axn.named(NUMBERS, (B, V)), {"vocab": "data"})
        found, rest = jax.jit(lambda x: (x.top_k("vocab", 100), x["vocab", :255].top_k("vocab", K)))(x)
        with axn.axis_mapping({"batch": "data", "vocab": "model"}):
            uneven = jax.jit(lambda x: axn.named(x, ("batch", "vocab")).top_k("vocab", K))(NUMBERS[:7, :255])
    agrees(found, 100)
    agrees(rest, K, NUMBERS[:, :255])
    for mine, theirs in zip(uneven, by_numpy(NUMBERS[:7, :255], K), strict=True):
        np.testing.assert_array_equal(mine.array, theirs)


@meshes
def test_a_batch_may_be_mapped_over(kind, request):
    mapping = {"batch": "data", "vocab": "model"}
    with axn.set_mesh(request.getfixturevalue(kind)):
        x = axn.shard(axn.named(NUMBERS, (B, V)), mapping)
        run = axn.named_jit(lambda x: axn.vmap(lambda row: row.top_k("vocab", K), "batch")(x), mapping, strict=False)
        agrees(run(x), K)


@pytest.mark.sampled
@meshes
@pytest.mark.parametrize("select", [axn.approx_max_k, axn.approx_min_k])
def test_approximate_ones_send_no_more(select, kind, request):
    sign = 1 if select is axn.approx_max_k else -1
    numbers = np.random.default_rng(1).permutation(2048).reshape(8, 256).astype(np.float32)
    with axn.set_mesh(request.getfixturevalue(kind)):
        x = axn.shard(axn.named(numbers, (B, V)), {"vocab": "data"})
        program = axn.named_jit(lambda x: select(x, "vocab", K), {"vocab": "data"}).lower(x).compile()
        values, at = program(x)
    # On a CPU, they are exact.
    theirs, places = by_numpy(sign * numbers, K)
    np.testing.assert_array_equal(values.array, sign * theirs)
    np.testing.assert_array_equal(at.array, places)
    assert {each.bytes for each in measure.collectives(program.as_text())} == {8 * K * 4}


@pytest.mark.sampled
@meshes
@pytest.mark.parametrize("mapping", MAPPINGS[:4], ids=str)
def test_filters_of_logits_gather_none(mapping, kind, request):
    logits = np.nan_to_num(NUMBERS)

    def filters(x):
        return nn.keep_top_k(x, "vocab", K), nn.keep_top_p(x, "vocab", 0.9)

    x = axn.named(logits, (B, V))
    with axn.set_mesh(request.getfixturevalue(kind)):
        program = axn.named_jit(filters, mapping).lower(axn.shard(x, mapping)).compile()
        by_k, by_p = program(axn.shard(x, mapping))
    least, _ = by_numpy(logits, K)
    np.testing.assert_array_equal(by_k.array, np.where(logits < least[:, -1:], -np.inf, logits))
    ordered = -np.sort(-logits.astype(np.float64), -1)
    shares = np.exp(ordered) / np.exp(ordered).sum(-1, keepdims=True)
    few = [row[np.argmax(sums >= 0.9)] for row, sums in zip(ordered, shares.cumsum(-1), strict=True)]
    np.testing.assert_array_equal(by_p.array, np.where(logits < np.float32(few)[:, None], -np.inf, logits))
    assert all(each.bytes <= 8 * K * 4 for each in measure.collectives(program.as_text(), unknown_trip_count=1))
    assert ("all-gather" in program.as_text()) == ("vocab" in mapping)
