"""Scans along a split axis have the values and gradients of one device; devices send one element of their part."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import collectives, wire_bytes

import axonym as axn
from axonym import nn
from tests.laws import assert_close

pytestmark = pytest.mark.sampled

Batch, Time, Mlp = axn.make_axes(batch=4, time=16, mlp=2)
SPLIT = {"time": ("data", "model"), "batch": None}
PARTLY = {"time": "data", "batch": "model"}


def affine(first: Any, second: Any) -> Any:
    return first[0] * second[0], first[1] * second[0] + second[1]


def recurrence(x: axn.NamedArray, reverse: bool = False) -> axn.NamedArray:
    decay = x["batch", 0] * 0.5
    return axn.associative_scan(affine, "time", reverse=reverse)((decay, x))[1]


SCANS: dict[str, Callable[[axn.NamedArray], axn.NamedArray]] = {
    "cumsum": lambda x: x.cumsum("time"),
    "cumsum, reverse": lambda x: axn.cumsum(x, "time", reverse=True),
    "cummax": lambda x: axn.cummax(x, "time"),
    "cumlogsumexp": lambda x: axn.cumlogsumexp(x, "time", reverse=True),
    "recurrence": recurrence,
    "recurrence, reverse": lambda x: recurrence(x, reverse=True),
}


def drawn(*axes: axn.Axis, seed: int = 0) -> axn.NamedArray:
    values = np.random.default_rng(seed).uniform(0.5, 1.5, [axis.size for axis in axes])
    return axn.named(jax.device_put(values.astype(np.float32)), axes)


def weighed(y: axn.NamedArray) -> jax.Array:
    """Sum so that each element has a gradient of its own."""
    return (y * y * axn.cos(axn.arange(Time))).sum().scalar()


def all_at_once(x: axn.NamedArray) -> Any:
    """Give the values and the gradients of all scans, in one program."""
    values = {name: scan(x) for name, scan in SCANS.items()}
    gradients = {name: jax.grad(lambda x, scan=scan: weighed(scan(x)))(x) for name, scan in SCANS.items()}
    return values, gradients


def same(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-4)


@functools.cache
def of_one_device() -> Any:
    return jax.jit(all_at_once)(drawn(Batch, Time, Mlp))


@pytest.mark.parametrize(("kind", "mapping"), [("auto_mesh", SPLIT), ("explicit_mesh", PARTLY), ("mixed_mesh", SPLIT)])
def test_values_and_gradients_are_those_of_one_device(
    kind: str, mapping: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    x, expected = drawn(Batch, Time, Mlp), of_one_device()
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping(mapping):
        same(jax.jit(all_at_once)(axn.shard(x)), expected)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_inside_of_a_map_over_another_mesh_axis(kind: str, request: pytest.FixtureRequest) -> None:
    x = drawn(Batch, Time)
    outside = {"batch": "model"}

    def both(x: axn.NamedArray) -> Any:
        def body(x: axn.NamedArray) -> Any:
            with axn.axis_mapping({"time": "data"}):
                return x.cumsum("time"), recurrence(x, reverse=True)

        return axn.shard_map(body, outside, manual_axes={"model"})(x)

    def expected(x: axn.NamedArray) -> Any:
        rows = [recurrence(x["batch", at : at + 2], reverse=True) for at in (0, 2)]
        return x.cumsum("time"), axn.concatenate("batch", rows)

    def slopes(fn: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda x: sum(map(weighed, fn(x))))

    with axn.set_mesh(request.getfixturevalue(kind)):
        given = axn.shard(x, {"batch": "model", "time": "data"})
        same(jax.jit(both)(given), jax.jit(expected)(x))
        same(jax.jit(slopes(both))(given), jax.jit(slopes(expected))(x))


@pytest.mark.parametrize("name", ["cumsum", "recurrence"])
@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_a_device_sends_one_element_of_its_part(name: str, kind: str, request: pytest.FixtureRequest) -> None:
    mapping = {"time": "data"}
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping(mapping):
        x = axn.shard(drawn(Batch, Time))
        step = jax.jit(jax.value_and_grad(lambda x: weighed(SCANS[name](x))))
        sent = collectives(step.lower(x).compile())
    largest = max(each.bytes for each in sent)
    # float32; one element for each of the batch, and in a gradient for each of four devices
    assert largest <= 4 * Batch.size * 4
    assert not sent or sum(map(wire_bytes, sent)) <= 20 * 4 * Batch.size


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_what_does_not_divide_is_scanned_as_a_whole(kind: str, request: pytest.FixtureRequest) -> None:
    for size in (0, 1, 6):
        x = drawn(Batch, Time.resize(size))
        with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping({"time": "data"}):
            found = jax.jit(lambda x: (x.cumsum("time"), recurrence(x)))(x)
        same(found, jax.jit(lambda x: (x.cumsum("time"), recurrence(x)))(x))


def test_integers_booleans_and_narrow_floats(explicit_mesh: jax.sharding.Mesh) -> None:
    numbers = np.random.default_rng(3).integers(-3, 3, (16,))
    with axn.set_mesh(explicit_mesh), axn.axis_mapping({"time": "data"}):
        for dtype in (np.int8, bool, jnp.bfloat16):
            x = axn.named(numbers.astype(dtype), "time")
            expected = x.cumsum("time"), axn.cumprod(x, "time", reverse=True), axn.cummin(x, "time")
            found = jax.jit(lambda x: (x.cumsum("time"), axn.cumprod(x, "time", reverse=True), axn.cummin(x, "time")))(
                axn.shard(x)
            )
            for one, other in zip(found, expected, strict=True):
                assert_close(one.array, np.asarray(other.array))
                assert one.dtype == other.dtype


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_a_state_space_layer_runs_over_split_positions(kind: str, request: pytest.FixtureRequest) -> None:
    layer = nn.DiagonalSSM.init("time", Mlp, axn.Axis("state", 4), key=jax.random.key(0))
    x, start = drawn(Batch, Time, Mlp), axn.full(axn.Axis("state", 4), 0.5 + 0.5j)

    def both(layer: nn.DiagonalSSM, x: axn.NamedArray) -> Any:
        y, last = layer(x, start)
        return y, axn.real(last), jax.grad(lambda layer, x: weighed(layer(x, start)[0]), (0, 1))(layer, x)

    expected = jax.jit(both)(layer, x)
    with axn.set_mesh(request.getfixturevalue(kind)), axn.axis_mapping({"time": "data"}):
        given = axn.shard(x)
        same(jax.jit(both)(layer, given), expected)
        sent = collectives(jax.jit(lambda layer, x: layer(x)[0]).lower(layer, given).compile())
    assert {each.kind for each in sent} == {"all-gather"}
    assert max(each.bytes for each in sent) == 8 * Batch.size * 4


def test_a_function_that_divides_has_a_finite_gradient(auto_mesh: jax.sharding.Mesh) -> None:
    """What the first part combines with is dropped; a gradient of it must not be NaN."""

    def harmonic(a: axn.NamedArray, b: axn.NamedArray) -> axn.NamedArray:
        return 1 / (1 / a + 1 / b)

    x = drawn(Time)
    slope = jax.grad(lambda x: weighed(axn.associative_scan(harmonic, "time")(x)))
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"time": "data"}):
        found = jax.jit(slope)(axn.shard(x))
    same(found, jax.jit(slope)(x))
